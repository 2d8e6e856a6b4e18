"""Uploads to S3 of which the store copies parts from other objects, by a client of botocore that
has the identity and the endpoint of obstore's.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError

from tandem.errors import ObjectNotFound, StorageError
from tandem.storage.options import StoreSettings
from tandem.storage.store_errors import replaced, translated
from tandem.storage.time_limits import TimeLimits

# A client of botocore with the identity and the endpoint of obstore's, where that is certain.
#
# botocore reads configuration files and variables that obstore does not know. So it is given no
# file and each setting that decides where a request goes and who makes it. An option that is not
# among those known here, such as a certificate, a proxy or encryption with a key of the customer,
# means that there is no client: the caller then streams. This module must not print or log a
# setting.


_KEYS: Final = frozenset({"access_key_id", "secret_access_key", "session_token"})
_CARRIED: Final = _KEYS | {
    "aws_endpoint_url_s3",
    "endpoint",
    "region",
    "virtual_hosted_style_request",
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        # On parts of an upload, or on this client.
        *("conditional_put", "copy_if_not_exists", "disable_bulk_delete", "disable_tagging"),
        *("allow_http", "connect_timeout", "timeout", "read_timeout", "user_agent"),
        *("http1_only", "pool_idle_timeout", "pool_max_idle_per_host", "randomize_addresses"),
    }
)
_OF_THE_PROCESS: Final = frozenset(
    {
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "role_arn",
        "role_session_name",
        "web_identity_token_file",
    }
)
"""botocore finds these identities itself, if the environment names them."""
_METHODS: Final = ("assume-role-with-web-identity", "container-role", "iam-role")
"""Kinds of identities of the process that obstore finds, too, in the same order."""
_DEFAULT_REGION: Final = "us-east-1"
"""obstore's."""
_ATTEMPTS: Final = 4
_NO_FILES: Final = {
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
    "profile": (None, None, None, None),
}
"""Variables of a session: what AWS's files and `AWS_PROFILE` say is among the settings."""
_SHARED_S: Final = 300.0
"""As for obstore's clients: files of credentials may have changed afterwards."""


def carried(settings: StoreSettings, environ: Mapping[str, str]) -> bool:
    """Whether botocore does with these settings what obstore does."""
    config = settings.config
    for key, value in {**config, **settings.client}.items():
        if key in _CARRIED or key in _WITHOUT_EFFECT or value in (False, "false"):
            continue
        # A profile of the configuration files may have set it, too.
        if key in _OF_THE_PROCESS and environ.get(f"AWS_{key.upper()}") == value:
            continue
        return False
    if "container_credentials_full_uri" in config and (
        "container_authorization_token_file" not in config
    ):
        return False  # obstore passes it over
    endpoint = config.get("endpoint", "")
    # obstore wants the bucket in this host, botocore puts it there.
    in_host = bool(endpoint) and config.get("virtual_hosted_style_request") == "true"
    return not in_host and urlsplit(endpoint).path in ("", "/")


def client_of(settings: StoreSettings, limits: TimeLimits) -> Any | None:
    """The client, which threads may share; None where it would not be the same, where botocore is
    not installed, or where there are no credentials.

    Raises: botocore's errors, for settings that it refuses.
    """
    if not carried(settings, os.environ):
        return None
    return _shared(
        frozenset(settings.config.items()),
        limits,
        # The identity may come from there. A client does not survive a fork.
        frozenset(os.environ.items()),
        os.getpid(),
        time.monotonic() // _SHARED_S,
    )


@functools.lru_cache(maxsize=4)
def _shared(config: frozenset[tuple[str, str]], limits: TimeLimits, *_: object) -> Any | None:
    found = dict(config)
    virtual = found.get("virtual_hosted_style_request") == "true"
    return client_of_service(
        "s3",
        found,
        limits,
        endpoint=found.get("endpoint"),
        signature_version="s3v4",
        s3={
            "addressing_style": "virtual" if virtual else "path",
            "use_accelerate_endpoint": False,
            "us_east_1_regional_endpoint": "regional",
        },
        # Stores that are not AWS's know no others.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def client_of_service(
    service: str,
    config: Mapping[str, str],
    limits: TimeLimits,
    *,
    endpoint: str | None,
    **settings: object,
) -> Any | None:
    """A client of botocore with the identity of these settings of a store, which threads may share;
    None where botocore is not installed, or where there are no credentials.

    Args:
        config: as of `StoreSettings`: the keys and the region; without keys, the identity is that
            of the process.
        endpoint: None for AWS's own.
        settings: further ones of botocore's `Config`.
    Raises: botocore's errors, for settings that it refuses.
    """
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError:
        return None
    session = botocore.session.Session(session_vars=_NO_FILES)
    region = config.get("region", _DEFAULT_REGION)
    keys = {}
    if "access_key_id" in config:
        keys = {
            "aws_access_key_id": config["access_key_id"],
            "aws_secret_access_key": config.get("secret_access_key"),
            "aws_session_token": config.get("session_token"),
        }
    else:
        # Of the region, where a role's tokens are issued.
        session.set_config_variable("region", region)
        identity = session.get_credentials()
        if identity is None or identity.method not in _METHODS:
            return None
    return session.create_client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        config=Config(
            connect_timeout=limits.connect.total_seconds(),
            read_timeout=limits.one_try.total_seconds(),
            retries={
                "mode": "standard",
                "total_max_attempts": _ATTEMPTS if limits.retries else 1,
            },
            ignore_configured_endpoint_urls=True,
            use_dualstack_endpoint=False,
            use_fips_endpoint=False,
            **settings,
        ),
        **keys,
    )


# An upload of parts, some of which the store copies from other objects.
#
# A store that does not copy parts, or must not for this identity, is noticed by its answer: that
# part and all others of the process are read and sent. The version of each source is pinned by its
# tag.


# Cuts what is appended to an object into the parts of a multipart upload. Pure.
#
# S3 wants at least 5 MiB in each part but the last one, and one source for each part that it
# copies. So a range of at least that size is copied, and what lies between such ranges is gathered
# into parts that are read and sent: where it is smaller, with bytes of the range that follows.


LEAST: Final = 5 << 20
"""Bytes of a part, unless it is the last one."""
MOST: Final = 32 << 20
"""Bytes of a part that is copied: more copies run side by side, and a part that the store does not
copy is read into memory."""
MOST_PARTS: Final = 10_000
"""Parts of an upload."""
_SPARE: Final = MOST_PARTS // 2
"""After so many parts, the others are large."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """`size` bytes from `start` of an object of the bucket, in the version with the tag `e_tag`."""

    key: str
    e_tag: str
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def precedes(self, other: SourceRange) -> bool:
        """Whether the other one goes on where this one ends."""
        same = (self.key, self.e_tag) == (other.key, other.e_tag)
        return same and self.start + self.size == other.start

    def split(self, size: int) -> tuple[SourceRange, SourceRange]:
        """Its first `size` bytes, and the others."""
        rest = replace(self, start=self.start + size, size=self.size - size)
        return replace(self, size=size), rest


@dataclass(frozen=True, slots=True)
class UploadPart:
    """A part, of bytes and ranges of objects in their order."""

    pieces: tuple[bytes | SourceRange, ...]
    is_copied: bool = False
    """It is one range, which the store can copy."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class PartCutter:
    """The parts of one object. Iterate over each result before the next call."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | SourceRange] = deque()
        self._size = 0
        """Bytes that are waiting: there may be 100,000 pieces, such as page indexes."""
        self._made = 0

    def append(self, piece: bytes | SourceRange) -> Iterator[UploadPart]:
        """Append bytes, or a range of an object; the parts that are complete by that."""
        if not len(piece):
            return
        last = self._waiting[-1] if self._waiting else b""
        if (
            isinstance(last, SourceRange)
            and isinstance(piece, SourceRange)
            and last.precedes(piece)
        ):
            self._waiting[-1] = replace(last, size=last.size + piece.size)
        else:
            self._waiting.append(piece)
        self._size += len(piece)
        yield from self._complete(is_last=False)

    def rest(self) -> Iterator[UploadPart]:
        """The parts that remain at the object's end."""
        yield from self._complete(is_last=True)

    def _complete(self, *, is_last: bool) -> Iterator[UploadPart]:
        while self._waiting:
            least = LEAST if self._made < _SPARE else MOST
            first = self._waiting[0]
            # A range at the end may grow.
            is_open = not is_last and isinstance(self._waiting[-1], SourceRange)
            closed = self._size - (len(self._waiting[-1]) if is_open else 0)
            if closed and isinstance(first, SourceRange) and first.size >= least:
                part = self._copied(first, least)
            elif is_last or closed >= (least if is_open else 2 * least):
                # Of bytes alone, enough stay for a part of their own before a range.
                part = self._gathered(least)
            else:
                return
            self._made += 1
            self._size -= part.size
            yield part

    def _copied(self, first: SourceRange, least: int) -> UploadPart:
        size = min(first.size, MOST)
        if 0 < first.size - size < least:  # too little for a part of its own
            size = first.size - least if first.size >= 2 * least else first.size
        taken, left = first.split(size)
        if left.size:
            self._waiting[0] = left
        else:
            self._waiting.popleft()
        return UploadPart((taken,), is_copied=True)

    def _gathered(self, least: int) -> UploadPart:
        pieces: list[bytes | SourceRange] = []
        missing = least
        while self._waiting and missing > 0:
            piece = self._waiting.popleft()
            if isinstance(piece, SourceRange) and piece.size - missing >= least:
                piece, left = piece.split(missing)
                self._waiting.appendleft(left)
            pieces.append(piece)
            missing -= len(piece)
        pieces += self._few_bytes(least)
        return UploadPart(tuple(pieces))

    def _few_bytes(self, least: int) -> list[bytes | SourceRange]:
        """Take the bytes that follow, if they are too few for a part."""
        found = list(takewhile(lambda piece: isinstance(piece, bytes), self._waiting))
        if sum(map(len, found)) >= least:
            return []
        for _ in found:
            self._waiting.popleft()
        return found


_THREADS: Final = 4
_WAITING: Final = 2 * _THREADS
"""Parts that are being sent at most: those that are not copied are in memory."""
_refused: set[tuple[str, ...]] = set()
"""Endpoints, buckets and access keys with which this process copies no further parts."""
_refusing = threading.Lock()


@dataclass(frozen=True)
class Bucket:
    """A bucket as obstore's client sees it.

    Args:
        location: of the table, for messages.
    """

    name: str
    location: str
    settings: StoreSettings
    limits: TimeLimits

    @property
    def _place(self) -> tuple[str, ...]:
        config = self.settings.config
        return config.get("endpoint", ""), self.name, config.get("access_key_id", "")

    def is_same(self, other: Bucket | None) -> bool:
        """Whether the other one is this bucket, for the same identity."""
        return other is not None and (self.name, self.settings) == (other.name, other.settings)

    @property
    def copies(self) -> bool:
        """Whether the store has not refused to copy parts."""
        return self._place not in _refused

    def refuse(self, why: str) -> None:
        """Copy no further parts in this process."""
        with _refusing:
            if not self.copies:
                return
            _refused.add(self._place)
        _warn("parts are not copied inside of this store", bucket=self.name, problem=why)

    def begin(self, key: str, path: str, read: Callable[[SourceRange], bytes]) -> PartUpload | None:
        """An upload of an object; None if there is none that can copy parts, and all is streamed.

        Args:
            key: of the object in the bucket; `path` below the table's root, for messages.
            read: the bytes of a range.
        """
        if not self.copies:
            return None
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            return None
        try:
            client = client_of(self.settings, self.limits)
            if client is None:
                return None
            begun = client.create_multipart_upload(Bucket=self.name, Key=key)
        except (BotoCoreError, ClientError, ValueError, OSError) as error:
            # obstore may be able to write nevertheless; if not, its error is the one to report.
            self.refuse(_text(error))
            return None
        upload_id = begun.get("UploadId")
        if not upload_id:
            self.refuse("the answer to the begin of an upload names none")
            return None
        return PartUpload(self, client, key, path, upload_id, read)


class PartUpload:
    """`Bucket.begin` makes it. Not thread-safe. `copied` counts bytes that the store copied."""

    def __init__(
        self,
        bucket: Bucket,
        client: Any,
        key: str,
        path: str,
        upload_id: str,
        read: Callable[[SourceRange], bytes],
    ) -> None:
        self._bucket, self._client, self._read = bucket, client, read
        self._resource = f"{bucket.location}/{path}"
        self._object = {"Bucket": bucket.name, "Key": key, "UploadId": upload_id}
        self._pool = ThreadPoolExecutor(_THREADS, "part-copy")
        self._waiting: deque[Future[None]] = deque()
        self._tags: dict[int, str] = {}
        self._number = 0
        self._size = 0
        self._lock = threading.Lock()
        self.copied = 0

    def add(self, part: UploadPart) -> None:
        """Append a part. Raises: StorageError, also for one of those before."""
        while len(self._waiting) >= _WAITING:
            self._waiting.popleft().result()
        self._number += 1
        if self._number > MOST_PARTS:
            raise StorageError(
                "an object has more parts than the store takes",
                resource=self._resource,
                found=f"part {self._number}",
                expected=f"at most {MOST_PARTS} parts",
                remedy="Set a smaller target size of files",
            )
        self._size += part.size
        self._waiting.append(self._pool.submit(self._send, self._number, part))

    def complete(self) -> None:
        """Publish the object. Raises: StorageError."""
        while self._waiting:
            self._waiting.popleft().result()
        self._pool.shutdown()
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(self._tags.items())]
        try:
            self._call(
                self._client.complete_multipart_upload,
                **self._object,
                MultipartUpload={"Parts": parts},
            )
        except StorageError:
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Whether an object of this name and size is there: the answer that the upload is complete
        was lost, and a further try found no upload. No other writer has this name."""
        place = {key: self._object[key] for key in ("Bucket", "Key")}
        try:
            found = self._call(self._client.head_object, **place)
        except StorageError:
            return False  # the first error is the one to report
        return bool(found.get("ContentLength") == self._size)

    def abort(self) -> None:
        """Discard what was sent. A failure leaves an unfinished upload, which is no object."""
        self._pool.shutdown(cancel_futures=True)
        try:
            self._call(self._client.abort_multipart_upload, **self._object)
        except StorageError as error:
            _warn("an unfinished upload is left", object=self._resource, problem=str(error)[:500])

    def _send(self, number: int, part: UploadPart) -> None:
        tag = self._copy(number, part) if part.is_copied and self._bucket.copies else None
        if tag is None:
            pieces = (p if isinstance(p, bytes) else self._read(p) for p in part.pieces)
            answer = self._call(
                self._client.upload_part, **self._object, PartNumber=number, Body=b"".join(pieces)
            )
            tag = str(answer.get("ETag", ""))
            if not tag:
                raise _unanswered(self._resource, "no ETag of a part")
        with self._lock:
            self._tags[number] = tag

    def _copy(self, number: int, part: UploadPart) -> str | None:
        """The tag of a part that the store copied; None if it does not copy."""
        from botocore.exceptions import BotoCoreError, ClientError

        (piece,) = part.pieces
        assert isinstance(piece, SourceRange)
        source = f"s3://{self._bucket.name}/{piece.key}"
        try:
            answer = self._client.upload_part_copy(
                **self._object,
                PartNumber=number,
                CopySource={"Bucket": self._bucket.name, "Key": piece.key},
                CopySourceRange=f"bytes={piece.start}-{piece.start + piece.size - 1}",
                CopySourceIfMatch=piece.e_tag,
            )
        except ClientError as error:
            status, code = _answer(error)
            if code == "NoSuchKey":
                raise ObjectNotFound("no such object", resource=source, found=code) from error
            if status == HTTPStatus.PRECONDITION_FAILED:
                raise replaced(source, piece.e_tag) from error
            self._bucket.refuse(_text(error))
            return None
        except BotoCoreError as error:
            self._bucket.refuse(_text(error))
            return None
        tag = str(answer.get("CopyPartResult", {}).get("ETag", ""))
        if not tag:
            # A store that does not know the header with the source takes it for an empty part,
            # which the part that is sent instead replaces.
            self._bucket.refuse("the answer to a copy names no part")
            return None
        with self._lock:
            self.copied += piece.size
        return tag

    def _call(self, call: Callable[..., Any], **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return call(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise translated(BaseError(_text(error)), self._resource, writing=True) from error


def _unanswered(resource: str, found: str) -> StorageError:
    return StorageError(
        "the store did not answer as expected",
        resource=resource,
        found=found,
        expected="the answer of S3",
        remedy="Check the endpoint, the bucket and the network",
    )


def _answer(error: Any) -> tuple[int, str]:
    """The status and the code of an answer that is an error."""
    response = error.response
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def _text(error: Exception) -> str:
    """An error of botocore in the form of obstore's, which `store_errors` reads."""
    if not hasattr(error, "response"):
        return f"{type(error).__name__}: {str(error)[:300]}"
    status, code = _answer(error)
    names = {each.value: each.phrase for each in HTTPStatus}
    message = str(error.response.get("Error", {}).get("Message", ""))[:300]
    named = f"status code: {status} {names.get(status, '')}"
    return f"{named}: <Code>{code}</Code><Message>{message}</Message>"


def _warn(what: str, **details: object) -> None:
    import structlog  # which takes as long as a small job

    structlog.get_logger("tandem.storage.s3").warning(what, **details)
