"""An error of a store keeps the store's own code, says what to do, and shows no internals."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import pytest

from support.http_server import EveryMethod, serving
from support.lake.s3 import S3Server
from tandem.errors import (
    AccessDenied,
    InvalidSpec,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage import Store, open_store, probe_put_if_absent
from tandem.storage.store_errors import translated


class _Handler(EveryMethod):
    status, content = 200, b""

    def answer(self) -> None:
        self.body()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.content)


def answering(status: int, body: str) -> AbstractContextManager[str]:
    """A server that answers everything alike; its endpoint."""
    return serving(type("Handler", (_Handler,), {"status": status, "content": body.encode()}))


def opened(scheme: str, endpoint: str) -> Store:
    environ = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg==",
        "GOOGLE_BEARER_TOKEN": "hunter2",
    }
    own = {"region": "x"} if scheme == "s3" else {}
    location = "abfss://lake@acct/t" if scheme == "abfss" else f"{scheme}://lake/t"
    return open_store(
        location, {"endpoint": endpoint, "allow_http": "true", **own}, environ=environ
    )


def xml(code: str, message: str = "The reason,\nin two lines.") -> str:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'


@pytest.mark.part(2)
@pytest.mark.parametrize(
    ("scheme", "status", "code", "kind", "remedy"),
    [
        ("s3", 404, "NoSuchBucket", StorageError, "location"),
        ("s3", 403, "AccessDenied", AccessDenied, "policy"),
        ("s3", 403, "SignatureDoesNotMatch", AccessDenied, "secret key"),
        ("s3", 403, "InvalidAccessKeyId", AccessDenied, "access key"),
        ("s3", 403, "RequestTimeTooSkewed", AccessDenied, "clock"),
        ("s3", 400, "ExpiredToken", AccessDenied, "Renew"),
        ("s3", 400, "AuthorizationHeaderMalformed", AccessDenied, "region"),
        ("gs", 404, "NoSuchBucket", StorageError, "location"),
        ("gs", 403, "AccessDenied", AccessDenied, "policy"),
        ("abfss", 404, "ContainerNotFound", StorageError, "location"),
        ("abfss", 403, "AuthorizationPermissionMismatch", AccessDenied, "Contributor"),
        ("abfss", 403, "AuthenticationFailed", AccessDenied, "policy"),
    ],
)
def test_the_stores_own_code_is_kept(
    scheme: str, status: int, code: str, kind: type[StorageError], remedy: str
) -> None:
    with answering(status, xml(code)) as endpoint:
        store = opened(scheme, endpoint)
        for call in (
            lambda: store.get("a"),
            lambda: list(store.list()),
            lambda: store.put("a", b"1"),
            lambda: store.put_if_absent("a", b"1"),
        ):
            with pytest.raises(kind) as caught:
                call()
            assert code in caught.value.found
            assert "The reason, in two lines." in caught.value.found
            assert remedy in caught.value.remedy
            assert not isinstance(caught.value, ObjectNotFound)
            assert "\n" not in str(caught.value)
            assert "hunter2" not in str(caught.value)


def test_a_code_in_json_is_kept_too() -> None:
    body = '{"error": {"code": 403, "message": "m", "errors": [{"reason": "userProjectMissing"}]}}'
    with answering(403, body) as endpoint, pytest.raises(AccessDenied) as caught:
        opened("gs", endpoint).get("a")
    assert caught.value.found == "403 Forbidden, userProjectMissing"


@pytest.mark.parametrize("body", ["", "<html>proxy", "{", "[1]", '{"error": [1]}', "{" * 20_000])
def test_a_body_that_is_no_answer_of_a_store_is_no_trouble(body: str) -> None:
    with answering(403, body) as endpoint, pytest.raises(AccessDenied) as caught:
        opened("s3", endpoint).get("a")
    assert "403 Forbidden" in caught.value.found
    assert len(caught.value.found) <= 500


def test_a_missing_object_is_no_missing_bucket() -> None:
    with answering(404, xml("NoSuchKey")) as endpoint, pytest.raises(ObjectNotFound) as caught:
        opened("s3", endpoint).get("a")
    assert "NoSuchKey" in caught.value.found


def test_a_store_without_the_condition_is_unsuitable() -> None:
    with answering(501, xml("NotImplemented", "A header is not implemented")) as endpoint:
        store = opened("s3", endpoint)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("a", b"1")
        assert "NotImplemented" in caught.value.found


@pytest.mark.parametrize("status", [404, 403])
def test_a_store_without_credentials_says_which_are_missing(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key the client asks the machine for an identity, which it does not give."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with answering(status, "no role") as endpoint:
        options = {"metadata_endpoint": endpoint, "allow_http": "true", "region": "x"}
        store = open_store("s3://lake/t", options, environ={})
        for call in (
            lambda: store.get("a"),
            lambda: list(store.list()),
            lambda: store.put_if_absent("a", b"1"),
        ):
            with pytest.raises(StorageError, match="no credentials") as caught:
                call()
            assert type(caught.value) is StorageError
            assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caught.value.remedy
            assert "latest" not in str(caught.value), "no request is shown"


@pytest.mark.parametrize(
    ("resource", "url", "message", "remedy"),
    [
        ("s3://b/t/a", "http://169.254.170.2/v2/credentials/7", "no credentials", "AWS_"),
        ("gs://b/t/a", "http://169.254.169.254/computeMetadata/v1/x", "no credentials", "GOOGLE_"),
        ("abfss://c@a/t/a", "http://127.0.0.1:4/metadata/identity/oauth2/token?resource=x",
         "no credentials", "AZURE_"),
        ("s3://b/latest/api/token", "http://127.0.0.1:4/b/latest/api/token", "did not answer",
         "Check the endpoint"),
    ],
)  # fmt: skip
def test_requests_to_the_machine_differ_from_those_to_a_store(
    resource: str, url: str, message: str, remedy: str
) -> None:
    found = translated(TimeoutError(f"Error performing GET {url} in 3s, after 6 retries"), resource)
    assert message in found.message
    assert remedy in found.remedy


def test_a_full_store_is_known_by_its_code() -> None:
    with answering(507, xml("XMinioStorageFull")) as endpoint, pytest.raises(StorageFull) as caught:
        opened("s3", endpoint).put_if_absent("a", b"1")
    assert "XMinioStorageFull" in caught.value.found


def test_a_redirect_to_another_region_says_so() -> None:
    with (
        answering(301, xml("PermanentRedirect")) as endpoint,
        pytest.raises(StorageError, match="another region") as caught,
    ):
        opened("s3", endpoint).get("a")
    assert "region" in caught.value.remedy


def test_the_client_never_says_that_it_could_not_build_a_request() -> None:
    """An endpoint without TLS inside of a key reaches the client unseen."""
    key = (
        '{"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": true, "client_email": "",'
        ' "private_key": "", "private_key_id": ""}'
    )
    store = open_store("gs://lake/t", environ={"GOOGLE_SERVICE_ACCOUNT_KEY": key})
    for call in (lambda: store.get("a"), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StorageError) as caught:
            call()
        assert "builder error" not in str(caught.value)
        assert "allow_http" in str(caught.value)
    broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    with pytest.raises(InvalidSpec) as refused:
        open_store("s3://lake/t", {"root_certificate": broken})
    assert "builder error" not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "environ", "expected"),
    [
        ("s3://b/t", {"AWS_ACCESS_KEY_ID": "k"}, "without a secret key"),
        ("gs://b/t", {"GOOGLE_SERVICE_ACCOUNT": "/nowhere.json"}, "cannot be opened"),
        ("abfss://c@a/t", {"AZURE_STORAGE_SAS_KEY": "hunter2"}, "query string"),
        ("abfss://c@a/t", {"AZURE_ENCRYPTION_KEY": "hunter2="}, "32 bytes"),
    ],
)
def test_credentials_that_make_no_client_are_explained(
    location: str, environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        open_store(location, environ=environ)
    assert expected in refused.value.found
    assert "hunter2" not in str(refused.value)


def test_a_real_server_names_the_wrong_key_and_the_missing_bucket(s3_server: S3Server) -> None:
    wrong = {**s3_server.environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(AccessDenied) as denied:
        open_store(s3_server.fresh_location(), s3_server.options, environ=wrong).get("a")
    assert "SignatureDoesNotMatch" in denied.value.found
    nowhere = open_store("s3://no-such-bucket/t", s3_server.options, environ=s3_server.environ)
    with pytest.raises(StorageError) as absent:
        nowhere.get("a")
    assert "NoSuchBucket" in absent.value.found
    with pytest.raises((StorageError, StoreUnsuitable)):
        probe_put_if_absent(nowhere)
