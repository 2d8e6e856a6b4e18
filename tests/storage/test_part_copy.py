"""Ranges of S3 objects that the store copies: the same bytes as a stream, few of them moved."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from support.lake.distant import Distance, at_a_distance
from support.lake.s3 import S3Server
from tandem.errors import ObjectNotFound, StorageError
from tandem.storage import Store, open_store, s3
from tandem.storage.options import settings
from tandem.storage.s3 import carried, client_of
from tandem.storage.store import append_range
from tandem.storage.time_limits import time_limits

MAGIC, FOOTER = b"PAR1", b"footer" * 100
SIZE = 6_000_000
SOURCES = ("day=a%3A b/one", "two+2", "ü")
CONTENTS = {name: MAGIC + random.Random(name).randbytes(SIZE) for name in SOURCES}


@pytest.fixture(autouse=True)
def _no_store_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_refused", set())


@pytest.fixture
def distance(s3_server: S3Server) -> Iterator[Distance]:
    with at_a_distance(s3_server) as found:
        yield found


@dataclass
class Lake:
    """A folder of the bucket with objects, seen over a proxy that counts."""

    store: Store
    distance: Distance
    contents: dict[str, bytes]

    def joined(self, path: str, ranges: list[tuple[str, int, int] | bytes]) -> tuple[Any, bytes]:
        """Join ranges and bytes to an object; its writer, and what it must contain."""
        self.distance.requests.clear()
        wanted = MAGIC
        with self.store.open_output(path) as sink:
            sink.write(MAGIC)
            for each in ranges:
                if isinstance(each, bytes):
                    sink.write(each)
                    wanted += each
                    continue
                name, start, size = each
                with self.store.open_input(name) as source:
                    append_range(source, start, size, sink)
                wanted += self.contents[name][start : start + size]
            sink.write(FOOTER)
        return sink, wanted + FOOTER

    def exists(self, path: str) -> bool:
        try:
            self.store.head(path)
        except ObjectNotFound:
            return False
        return True

    def unfinished(self) -> list[str]:
        """Keys of uploads that have neither ended nor been aborted."""
        return [each["Key"] for each in self._unfinished(self._s3())]

    def complete(self) -> None:
        """Complete the one upload that has not ended, as its writer would."""
        s3 = self._s3()
        [found] = self._unfinished(s3)
        upload = {
            "Bucket": self.distance.server.bucket,
            **{name: found[name] for name in ("Key", "UploadId")},
        }
        parts = [
            {name: each[name] for name in ("PartNumber", "ETag")}
            for each in s3.list_parts(**upload)["Parts"]
        ]
        s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def _s3(self) -> Any:
        server = self.distance.server
        return botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
        )

    def _unfinished(self, s3: Any) -> list[Any]:
        bucket = self.distance.server.bucket
        prefix = self.store.location.partition(f"{bucket}/")[2]
        found = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return [each for each in found if each["Key"].startswith(prefix)]

    def count(self, kind: str) -> int:
        return sum(each.kind == kind for each in self.distance.requests)


@pytest.fixture
def lake(distance: Distance) -> Lake:
    store = distance.server.open()
    for name, data in CONTENTS.items():
        store.put(name, data)
    return Lake(store, distance, dict(CONTENTS))


ALL: list[tuple[str, int, int] | bytes] = [(name, 4, SIZE - 100) for name in SOURCES]


def test_ranges_are_copied_and_the_magic_with_the_first(lake: Lake) -> None:
    sink, wanted = lake.joined("out", ALL)
    assert sink.copied_in_store == 3 * (SIZE - 100) + len(MAGIC)
    assert lake.count("COPY") == 3
    assert lake.distance.moved < 5_000
    assert lake.store.get("out") == wanted
    assert lake.unfinished() == []


def test_an_object_that_begins_otherwise_is_copied_without_its_beginning(lake: Lake) -> None:
    lake.contents["other"] = b"PARE" + lake.contents[SOURCES[0]][4:]
    lake.store.put("other", lake.contents["other"])
    sink, wanted = lake.joined("out", [("other", 4, SIZE - 100), *ALL])
    assert sink.copied_in_store == 3 * (SIZE - 100)
    assert lake.store.get("out") == wanted


def test_small_ranges_and_bytes_between_are_gathered(lake: Lake) -> None:
    ranges = [("two+2", 50, 100_000), *ALL, b"filter", ("ü", 9, 10), *ALL, ("ü", 0, 3_000_000)]
    sink, wanted = lake.joined("out", ranges)
    assert 3 * SIZE < sink.copied_in_store < 5 * SIZE
    assert lake.store.get("out") == wanted


def test_bytes_of_another_store_come_between(lake: Lake, tmp_path: Path) -> None:
    encoded = random.Random(2).randbytes(12_000_000)
    disk = open_store(tmp_path.as_uri())
    disk.put("encoded", encoded)
    with lake.store.open_output("out") as sink:
        sink.write(MAGIC)
        with disk.open_input("encoded") as source:
            append_range(source, 0, len(encoded), sink)
        with lake.store.open_input("ü") as source:
            append_range(source, 4, SIZE, sink)
        sink.write(FOOTER)
    assert sink.copied_in_store == SIZE  # type: ignore[attr-defined]
    assert lake.store.get("out") == MAGIC + encoded + lake.contents["ü"][4:] + FOOTER


def test_a_small_object_is_one_put(lake: Lake) -> None:
    sink, wanted = lake.joined("out", [("ü", 4, 1_000_000), ("two+2", 4, 500_000)])
    assert sink.copied_in_store == 0
    assert lake.store.get("out") == wanted
    assert (lake.count("PUT"), lake.count("POST")) == (1, 0)


@pytest.mark.part(2)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (501, "NotImplemented"),
        (400, "InvalidRequest"),
        (403, "AccessDenied"),
        (405, ""),
        # As of a part without bytes, by a store that passes the header with the source over.
        (200, ""),
    ],
)
def test_a_store_that_refuses_is_not_tried_again(
    lake: Lake, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(s3, "_warn", lambda what, **_: warned.append(what))
    refusal = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""

    def instead(kind: str, _: Mapping[str, str]) -> tuple[int, bytes] | None:
        return (status, refusal) if kind == "COPY" else None

    lake.distance.instead = instead
    sink, wanted = lake.joined("out", ALL)
    assert 1 <= lake.count("COPY") <= len(ALL)
    assert sink.copied_in_store == 0
    assert lake.store.get("out") == wanted
    sink, wanted = lake.joined("again", ALL)
    assert lake.count("COPY") == 0
    assert lake.store.get("again") == wanted
    assert lake.unfinished() == []
    assert warned == ["parts are not copied inside of this store"]


FAILED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>%s</Code><Message>We encountered an internal error.</Message></Error>"
)


@pytest.mark.parametrize("code", [b"InternalError", b"SlowDown", b"PreconditionFailed"])
def test_an_error_after_the_head_of_an_answer_copies_nothing(lake: Lake, code: bytes) -> None:
    """S3 answers 200 before it copies, and an error follows where it fails."""
    lake.distance.instead = lambda kind, _: (200, FAILED % code) if kind == "COPY" else None
    sink, wanted = lake.joined("out", ALL)
    assert sink.copied_in_store == 0
    assert lake.store.get("out") == wanted
    assert lake.unfinished() == []


def test_an_error_after_the_head_of_the_last_answer_publishes_nothing(lake: Lake) -> None:
    posts: list[str] = []

    def instead(kind: str, _: Mapping[str, str]) -> tuple[int, bytes] | None:
        posts.append(kind)
        if kind == "POST" and posts.count("POST") > 1:  # completes the upload
            return 200, FAILED % b"InternalError"
        return None

    lake.distance.instead = instead
    with pytest.raises(StorageError):
        lake.joined("out", ALL)
    assert not lake.exists("out")
    assert lake.unfinished() == []


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (403, b"<Error><Code>AccessDenied</Code></Error>"),
        (200, b""),
        (200, b"<html>Welcome</html>"),
    ],
    ids=["refused", "no answer", "page of a proxy"],
)
def test_a_store_that_begins_no_upload_gets_a_stream(
    lake: Lake, status: int, answer: bytes
) -> None:
    begun: list[str] = []

    def instead(kind: str, headers: Mapping[str, str]) -> tuple[int, bytes] | None:
        # obstore is let through, as with an identity that botocore does not have.
        if kind == "POST" and "Botocore" in headers.get("User-Agent", ""):
            begun.append(kind)
            return status, answer
        return None

    lake.distance.instead = instead
    sink, wanted = lake.joined("out", ALL)
    assert begun == ["POST"]
    assert sink.copied_in_store == 0
    assert lake.store.get("out") == wanted


def test_a_source_that_is_replaced_meanwhile_fails_the_copy(lake: Lake) -> None:
    def replaced() -> None:
        with lake.store.open_output("out") as sink, lake.store.open_input("ü") as source:
            sink.write(MAGIC)
            lake.store.put("ü", MAGIC + b"x" * SIZE)
            append_range(source, 4, SIZE, sink)

    with pytest.raises(StorageError, match="was replaced while it was copied"):
        replaced()
    assert not lake.exists("out")
    assert lake.unfinished() == []


def test_a_source_that_is_deleted_meanwhile_is_missing(lake: Lake) -> None:
    def deleted() -> None:
        with lake.store.open_output("out") as sink, lake.store.open_input("ü") as source:
            sink.write(MAGIC)
            append_range(source, 4, SIZE, sink)
            lake.store.delete(["ü"])

    with pytest.raises(ObjectNotFound):
        deleted()
    assert not lake.exists("out")
    assert lake.unfinished() == []


def test_an_error_aborts_the_upload(lake: Lake) -> None:
    def failing() -> None:
        with lake.store.open_output("out") as sink:
            sink.write(MAGIC)
            for name in SOURCES:
                with lake.store.open_input(name) as source:
                    append_range(source, 4, SIZE, sink)
            assert lake.unfinished() != []
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert not lake.exists("out")
    assert lake.unfinished() == []


def test_a_failure_to_publish_aborts_the_upload(lake: Lake) -> None:
    posts: list[str] = []

    def instead(kind: str, _: Mapping[str, str]) -> tuple[int, bytes] | None:
        posts.append(kind)
        if posts.count("POST") == 2 and kind == "POST":  # the second one completes the upload
            return 403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        return None

    lake.distance.instead = instead
    with pytest.raises(StorageError, match="permission denied"):
        lake.joined("out", ALL)
    assert not lake.exists("out")
    assert lake.unfinished() == []


def test_an_object_is_there_if_the_answer_that_it_is_complete_is_lost(lake: Lake) -> None:
    posts: list[str] = []

    def instead(kind: str, _: Mapping[str, str]) -> tuple[int, bytes] | None:
        if kind != "POST":
            return None
        posts.append(kind)
        if len(posts) < 2:
            return None
        lake.distance.instead = None
        lake.complete()
        # What S3 says to a further try.
        return 404, b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>"

    lake.distance.instead = instead
    sink, wanted = lake.joined("out", ALL)
    assert sink.copied_in_store > 3 * (SIZE - 200)
    assert lake.store.get("out") == wanted


def test_a_source_that_is_replaced_before_it_is_streamed_fails_the_copy(lake: Lake) -> None:
    def replaced() -> None:
        with lake.store.open_output("out") as sink, lake.store.open_input("ü") as source:
            sink.write(MAGIC)
            append_range(source, 4, 1_000_000, sink)
            lake.store.put("ü", MAGIC + b"x" * SIZE)

    with pytest.raises(StorageError, match="was replaced while it was copied"):
        replaced()
    assert not lake.exists("out")


def test_nothing_is_appended_to_a_writer_that_has_ended(lake: Lake) -> None:
    sink = lake.store.open_output("out")
    sink.close()
    with lake.store.open_input("ü") as source, pytest.raises(ValueError, match="closed"):
        append_range(source, 4, SIZE, sink)
    assert lake.unfinished() == []


@pytest.mark.parametrize("bucket", ["lake", "other"])
def test_files_of_a_shallow_clone_are_copied_within_their_bucket(
    lake: Lake, s3_server: S3Server, bucket: str
) -> None:
    (s3_server.folder.parent / bucket).mkdir(exist_ok=True)
    server = lake.distance.server
    root = f"s3://{bucket}/{lake.store.location.rpartition('/')[2]}-origin"
    server.open(root).put("file", lake.contents["ü"])
    clone = open_store(
        lake.store.location, server.options, allowed_prefixes=[root], environ=server.environ
    )
    lake.store = clone
    lake.contents[f"{root}/file"] = lake.contents["ü"]
    sink, wanted = lake.joined("out", [(f"{root}/file", 4, SIZE - 100)])
    assert (sink.copied_in_store > 0) is (bucket == server.bucket)
    assert lake.store.get("out") == wanted


KILLED = """
import os, signal, sys
from tandem.storage import open_store
from tandem.storage.store import append_range
options = {"endpoint": sys.argv[2], "region": "us-east-1", "allow_http": "true"}
store = open_store(sys.argv[1], options)
sink = store.open_output("out")
sink.write(b"PAR1")
for name in sys.argv[3:]:
    with store.open_input(name) as source:
        append_range(source, 4, 6_000_000, sink)
assert sink._upload is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_object(lake: Lake) -> None:
    server = lake.distance.server
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, lake.store.location, server.endpoint, *SOURCES],
        env={**os.environ, **server.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert not lake.exists("out")
    assert lake.unfinished() != []
    assert [each.path for each in lake.store.list()] == sorted(SOURCES)


def test_without_botocore_all_is_streamed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "botocore"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "botocore", None)
    sink, wanted = lake.joined("out", ALL)
    assert (sink.copied_in_store, lake.count("COPY")) == (0, 0)
    assert lake.store.get("out") == wanted


def test_files_and_variables_that_obstore_does_not_know_change_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore reads them, and would go elsewhere, or as another identity."""
    other = tmp_path / "config"
    other.write_text(
        "[profile other]\naws_access_key_id = other\naws_secret_access_key = other\n"
        "endpoint_url = http://127.0.0.1:9\ns3 =\n  addressing_style = virtual\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(other))
    monkeypatch.setenv("AWS_PROFILE", "other")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    s3._shared.cache_clear()
    sink, wanted = lake.joined("out", ALL)
    assert sink.copied_in_store > 3 * (SIZE - 200)
    assert lake.store.get("out") == wanted


def test_keys_of_a_profile_are_carried(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = lake.distance.server
    file = tmp_path / "credentials"
    file.write_text(
        f"[own]\naws_access_key_id = {server.access_key}\n"
        f"aws_secret_access_key = {server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "own")
    lake.store = open_store(lake.store.location, server.options)
    sink, wanted = lake.joined("out", ALL)
    assert sink.copied_in_store > 3 * (SIZE - 200)
    assert lake.store.get("out") == wanted


KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"region": "eu-central-1", "virtual_hosted_style_request": "true"},
        {"endpoint": "https://minio:9000", "timeout": "10s", "allow_invalid_certificates": "no"},
        {"endpoint": "http://minio:9000/", "allow_http": "true", "conditional_put": "etag"},
    ],
)
def test_options_that_are_carried(options: Mapping[str, str]) -> None:
    assert carried(settings("s3", options, KEYS, {}), {})


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "https://lake.ceph", "virtual_hosted_style_request": "true"},
        {"endpoint": "https://minio/below"},
        {"root_certificate": "-----BEGIN CERTIFICATE-----"},
        {"allow_invalid_certificates": "true"},
        {"proxy_url": "http://proxy:3128"},
        {"server_side_encryption": "aws:kms"},
        {"sse_kms_key_id": "key"},
        {"request_payer": "requester"},
        {"checksum_algorithm": "SHA256"},
        {"unsigned_payload": "true"},
        {"skip_signature": "true"},
        {"s3_express": "true"},
        {"sts_endpoint": "https://sts"},
        {"metadata_endpoint": "http://metadata"},
    ],
    ids=str,
)
def test_options_that_are_not_carried(options: Mapping[str, str]) -> None:
    found = settings("s3", options, KEYS, {})
    assert not carried(found, {})
    assert client_of(found, time_limits({})) is None


def test_a_role_of_the_environment_is_carried_and_one_of_a_profile_is_not() -> None:
    role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/lake", "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    found = settings("s3", {}, {}, role)
    assert carried(found, role)
    assert not carried(found, {})


def test_a_credential_server_is_carried_where_obstore_uses_it() -> None:
    server = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"}
    assert not carried(settings("s3", {}, {}, server), server)
    server["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = "/token"
    assert carried(settings("s3", {}, {}, server), server)


def identity_of(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> Any:
    """The client of a process with these variables and no others."""
    monkeypatch.setattr(os, "environ", dict(environ))
    return client_of(settings("s3", {}, {}, environ), time_limits({}))


@pytest.mark.parametrize(
    "environ",
    [
        {"AWS_EC2_METADATA_DISABLED": "true"},
        {"AWS_EC2_METADATA_DISABLED": "true", "BOTO_CONFIG": "{boto}"},
    ],
    ids=["none", "of a file that obstore does not read"],
)
def test_without_an_identity_of_both_there_is_no_client(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto = tmp_path / "boto.cfg"
    boto.write_text("[Credentials]\naws_access_key_id = a\naws_secret_access_key = b\n")
    found = {key: value.format(boto=boto) for key, value in environ.items()}
    assert identity_of(monkeypatch, found) is None


def test_a_role_of_the_environment_is_that_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("token")
    role = {"AWS_ROLE_ARN": "arn:aws:iam::1:role/lake", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token)}
    found = identity_of(monkeypatch, {**role, "AWS_REGION": "eu-central-1"})
    assert found.meta.region_name == "eu-central-1"
    assert found.meta.endpoint_url == "https://s3.eu-central-1.amazonaws.com"
