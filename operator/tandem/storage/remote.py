"""S3, GCS and Azure as stores, through obstore.

Retries: obstore retries reads and replacing puts. An exclusive put is **not** retried: after a
lost answer, a retry would find our own object and report that it exists. So it is sent once; a
definite refusal is `AlreadyExists`, an uncertain answer is `OutcomeUnknown`, and the caller
checks. Even so `AlreadyExists` only means that an object exists: a proxy in between may have
retried. A caller that needs to know the object's writer compares a token inside the object, as the
commit loop does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from weakref import WeakValueDictionary

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from tandem.errors import InvalidSpec, StorageError
from tandem.storage.options import StoreSettings
from tandem.storage.paths import check_folder, check_relative, split_location
from tandem.storage.store import PIECE, ObjectInfo, PublishingWriter, RangeReader
from tandem.storage.store_errors import CLIENT_ERRORS, refused_settings, replaced, translated
from tandem.storage.time_limits import TimeLimits, time_limits

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from tandem.storage.s3 import Bucket, PartCutter, PartUpload, SourceRange, UploadPart

_RETRIES = 6
_FIRST_PAUSE = timedelta(milliseconds=100)
_NO_RETRY: RetryConfig = {"max_retries": 0}
_LIST_CHUNK = 1000
_LITTLE = 16 << 10
"""Bytes between two ranges that are read with them rather than by another request."""
_HEAD = 64
"""Bytes of an object after which it is a stream: a file's magic is shorter."""
_SHARED_S = 300.0
"""A client that was opened before is not used for further stores: files of credentials may have
changed."""
_opening = threading.Lock()
_opened: WeakValueDictionary[Hashable, ObjectStore] = WeakValueDictionary()
"""Clients in use, by all that they depend on. To open one takes 20 ms, in which no other thread of
the process runs: so one at a time, and one for all tables of a bucket."""


class RemoteStore:
    """Relative paths only; `tandem.storage.store.Store` describes the guarantees of each call."""

    def __init__(
        self, location: str, settings: StoreSettings, *, ceiling_s: float | None = None
    ) -> None:
        self._location = location
        self._settings = settings
        path = split_location(location)[2].strip("/")
        self._prefix = f"{path}/" if path else ""
        self._limits = time_limits(settings.client, ceiling_s)
        self._client = self._open(_retry(self._limits))

    @property
    def location(self) -> str:
        return self._location

    @cached_property
    def _exclusive(self) -> ObjectStore:
        """For exclusive puts. Opened late: readers need none."""
        return self._open(_NO_RETRY)

    def _open(self, retry: RetryConfig) -> ObjectStore:
        try:
            return _client(self._location, self._settings, self._limits, retry)
        except (BaseError, ValueError) as error:
            # Not chained: the library's message may repeat its arguments.
            raise refused_settings(error, self._location) from None

    def get(self, path: str) -> bytes:
        key = self._key(path)
        try:
            return obstore.get(self._client, key).bytes().to_bytes()
        except CLIENT_ERRORS as error:
            raise self._translate(error, path) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        key = self._key(path)
        if length <= 0:
            self.head(path)
            return b""
        return self._fetch(key, start, length)

    def _fetch(self, key: str, start: int, length: int) -> bytes:
        """Of any object of the bucket."""
        try:
            return obstore.get_range(self._client, key, start=start, length=length).to_bytes()
        except CLIENT_ERRORS as error:
            if "416 Range Not Satisfiable" in str(error):
                return b""  # begins at or after the end
            raise self._translate(error, key.removeprefix(self._prefix)) from error

    def _fetch_each(self, key: str, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Ranges of an object of the bucket; those with little between them by one request."""
        try:
            found = obstore.get_ranges(
                self._client, key, starts=starts, lengths=sizes, coalesce=_LITTLE
            )
        except CLIENT_ERRORS as error:
            raise self._translate(error, key.removeprefix(self._prefix)) from error
        return [each.to_bytes() for each in found]

    def _fetch_version(self, piece: SourceRange) -> bytes:
        """Of an object of the bucket, if it still is that version."""
        resource = f"s3://{split_location(self._location)[1]}/{piece.key}"
        end = piece.start + piece.size
        try:
            found = obstore.get(
                self._client,
                piece.key,
                options={"range": (piece.start, end), "if_match": piece.e_tag},
            ).bytes()
        except PreconditionError as error:
            raise replaced(resource, piece.e_tag) from error
        except CLIENT_ERRORS as error:
            raise translated(error, resource) from error
        return found.to_bytes()

    @cached_property
    def _bucket(self) -> Bucket | None:
        """For copies inside of S3; None for other stores."""
        scheme, name, _ = split_location(self._location)
        if scheme != "s3":
            return None
        from tandem.storage.s3 import Bucket

        return Bucket(name, self._location, self._settings, self._limits)

    def head(self, path: str) -> ObjectInfo:
        return self._meta(self._head(path))

    def _head(self, path: str) -> ObjectMeta:
        key = self._key(path)
        try:
            return obstore.head(self._client, key)
        except CLIENT_ERRORS as error:
            raise self._translate(error, path) from error

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Streams. S3, GCS and Azure list in the order of the keys' bytes; a store that does
        not (S3 directory buckets) is refused, since paging by `start_after` would miss files."""
        folder = self._prefix + check_folder(prefix, resource=self._location)
        offset = self._prefix + start_after if start_after else None
        last = ""
        try:
            for chunk in obstore.list(
                self._client, folder or None, offset=offset, chunk_size=_LIST_CHUNK
            ):
                for found in chunk:
                    meta = self._meta(found)
                    if meta.path <= start_after:
                        continue
                    if meta.path < last:
                        raise StorageError(
                            "the store does not list in lexicographic order",
                            resource=self._location,
                            found=f"{meta.path!r} after {last!r}",
                            expected="a general-purpose bucket",
                            remedy="Use another kind of bucket",
                        )
                    last = meta.path
                    yield meta
        except CLIENT_ERRORS as error:
            raise self._translate(error, prefix) from error

    def put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        try:
            obstore.put(self._client, key, data)
        except CLIENT_ERRORS as error:
            raise self._translate(error, path, writing=True) from error

    def put_if_absent(self, path: str, data: bytes) -> None:
        key = self._key(path)
        try:
            obstore.put(self._exclusive, key, data, mode="create", use_multipart=False)
        except CLIENT_ERRORS as error:
            raise self._translate(error, path, writing=True) from error

    def delete(self, paths: Iterable[str]) -> None:
        batch: list[str] = []
        for path in paths:
            batch.append(self._key(path))
            if len(batch) == _LIST_CHUNK:
                self._delete(batch)
                batch = []
        if batch:
            self._delete(batch)

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            obstore.delete(self._client, keys)
        except FileNotFoundError:
            # GCS and Azure stop with an error at an absent object: then delete one by one.
            for key in keys if len(keys) > 1 else ():
                self._delete([key])
        except CLIENT_ERRORS as error:
            raise self._translate(error, keys[0].removeprefix(self._prefix)) from error

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        removed = 0

        def seen() -> Iterator[str]:
            nonlocal removed
            folder = check_relative(prefix.removesuffix("/"), resource=self._location)
            for meta in self.list(folder):
                if meta.path not in keep:
                    removed += 1
                    yield meta.path

        self.delete(seen())
        return removed

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, RemoteReader(self, path, self._head(path)))

    def open_output(self, path: str) -> BinaryIO:
        return cast(BinaryIO, RemoteWriter(self, path))

    def _key(self, path: str) -> str:
        return self._prefix + check_relative(path, resource=self._location)

    def _meta(self, found: Any) -> ObjectInfo:
        path = found["path"].removeprefix(self._prefix)
        return ObjectInfo(path, found["size"], round(found["last_modified"].timestamp() * 1000))

    def _translate(self, error: Exception, path: str, *, writing: bool = False) -> StorageError:
        return translated(error, f"{self._location}/{path}", writing=writing)


class RemoteReader(RangeReader):
    """An object that is read by ranges. `found` is what the store said of it."""

    def __init__(self, store: RemoteStore, path: str, found: ObjectMeta) -> None:

        def fetch(start: int, length: int) -> bytes:
            return store.get_range(path, start, length)

        super().__init__(fetch, found["size"])
        self.e_tag = found["e_tag"]
        self.store, self.key = store, store._key(path)

    def read_each(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        starts, sizes = zip(*ranges, strict=True) if ranges else ((), ())
        return self.store._fetch_each(self.key, starts, sizes)


class RemoteWriter(PublishingWriter):
    """A multipart upload; small objects are one put. A discarded upload leaves at most an
    incomplete upload, which no reader sees: a lifecycle rule of the bucket can expire those.

    Where ranges of objects are appended almost from the first byte on, the store may copy them
    (`tandem.storage.s3`); what cannot be copied is read and sent as anything else.
    """

    def __init__(self, store: RemoteStore, path: str) -> None:
        self._store = store
        self._path = path
        self._key = store._key(path)
        self._head = b""
        """The first bytes, until it is known how the object is written."""
        self._writer: Any = None
        self._parts: PartCutter | None = None
        self._upload: PartUpload | None = None
        super().__init__()

    @property
    def copied_in_store(self) -> int:
        """Bytes that the store copied; all of them after `close`."""
        return 0 if self._upload is None else self._upload.copied

    def append_file_range(self, source: BinaryIO, start: int, size: int) -> bool:
        """Append `size` bytes of an open object; False if they are to be written instead."""
        bucket = self._store._bucket
        if self._done:
            raise ValueError("write to a closed or aborted writer")
        if self._parts is None:
            if self._writer is not None or bucket is None or not bucket.copies:
                return False
            from tandem.storage.s3 import PartCutter

            self._parts = PartCutter()
        try:
            piece = self._range_of(source, start, size)
            head, self._head = self._head, b""
            if piece is not None and piece.start == len(head) and self._begins(piece.key, head):
                piece = replace(piece, start=0, size=len(head) + size)
            else:
                self._add(self._parts.append(head))
            if piece is None:
                return False
            self._add(self._parts.append(piece))
        except BaseException:
            self.abort()
            raise
        self._position += size
        return True

    def _range_of(self, source: BinaryIO, start: int, size: int) -> SourceRange | None:
        """What the store can copy; None if it cannot."""
        from tandem.storage.s3 import SourceRange

        if not isinstance(source, RemoteReader):
            return None
        bucket, tag = self._store._bucket, source.e_tag or ""
        if bucket is None or not bucket.is_same(source.store._bucket) or not tag.startswith('"'):
            return None
        return SourceRange(source.key, tag, start, size)

    def _begins(self, key: str, head: bytes) -> bool:
        """Whether an object begins with these bytes: then one part is copied from its start."""
        return bool(head) and self._store._fetch(key, 0, len(head)) == head

    def _append(self, data: memoryview) -> None:
        if self._parts is not None:
            self._add(self._parts.append(bytes(data)))
        else:
            self._stream(bytes(data))

    def _add(self, parts: Iterator[UploadPart]) -> None:
        """Send parts; all that there is as a stream, if it turns out that none can be copied."""
        for part in parts:
            if self._upload is None:
                assert self._store._bucket is not None
                self._upload = self._store._bucket.begin(self._key, self._path, self._read)
            if self._upload is None:
                assert self._parts is not None
                rest, self._parts = self._parts.rest(), None
                for each in chain((part,), parts, rest):
                    self._stream_part(each)
                return
            self._upload.add(part)

    def _stream_part(self, part: UploadPart) -> None:
        for piece in part.pieces:
            if isinstance(piece, bytes):
                self._stream(piece)
                continue
            while piece.size:
                data, piece = piece.split(min(PIECE, piece.size))
                self._stream(self._read(data))

    def _read(self, piece: SourceRange) -> bytes:
        data = self._store._fetch_version(piece)
        if len(data) < piece.size:
            raise OSError(f"the source ends {piece.size - len(data)} bytes early")
        return data

    def _stream(self, data: bytes) -> None:
        if self._writer is None and len(self._head) + len(data) <= _HEAD:
            self._head += data
            return
        self._open()
        try:
            self._writer.write(data)
        except CLIENT_ERRORS as error:
            raise self._store._translate(error, self._path, writing=True) from error

    def _open(self) -> None:
        if self._writer is None:
            self._writer = obstore.open_writer(self._store._client, self._key)
            head, self._head = self._head, b""
            if head:
                self._stream(head)

    def _publish(self) -> None:
        if self._parts is not None:
            rest = list(self._parts.rest())
            if self._upload is None and not any(part.is_copied for part in rest):
                for part in rest:  # one put
                    self._stream_part(part)
            else:
                self._add(iter(rest))
        if self._upload is not None:
            self._upload.complete()
            return
        self._open()
        try:
            self._writer.close()
        except CLIENT_ERRORS as error:
            raise self._store._translate(error, self._path, writing=True) from error
        self._writer = None

    def _discard(self) -> None:
        self._writer = None  # dropped without closing it: nothing is published
        if self._upload is not None:
            self._upload.abort()


def _retry(limits: TimeLimits) -> RetryConfig:
    return {
        "max_retries": _RETRIES,
        "retry_timeout": limits.retries,
        "backoff": {
            "init_backoff": min(_FIRST_PAUSE, limits.pause),
            "max_backoff": limits.pause,
            "base": 2,
        },
    }


def _client(
    location: str, settings: StoreSettings, limits: TimeLimits, retry: RetryConfig
) -> ObjectStore:
    """The client of a bucket or container, which other stores may use, too."""
    scheme, authority, _ = split_location(location)
    times = {"timeout": limits.one_try, "connect_timeout": limits.connect}
    client = cast("ClientConfig", {**settings.client, **times})
    key = (
        *(scheme, authority, limits, retry is _NO_RETRY),
        *(frozenset(options.items()) for options in (settings.config, settings.client)),
        # A client reads the environment itself, and does not survive a fork.
        *(frozenset(os.environ.items()), os.getpid(), time.monotonic() // _SHARED_S),
    )
    with _opening:
        found = _opened.get(key)
        if found is None:
            found = _opened[key] = _new_client(scheme, authority, settings.config, client, retry)
        return found


def _new_client(
    scheme: str,
    authority: str,
    config: Mapping[str, str],
    client: ClientConfig,
    retry: RetryConfig,
) -> ObjectStore:
    if scheme == "s3":
        return S3Store(
            authority, config=cast(Any, config), client_options=client, retry_config=retry
        )
    if scheme == "gs":
        return GCSStore(
            authority, config=cast(Any, config), client_options=client, retry_config=retry
        )
    container, _, account = authority.partition("@")
    return AzureStore(
        container,
        config=cast(Any, _of_account(account.split(".")[0], config)),
        client_options=client,
        retry_config=retry,
    )


def _of_account(account: str, config: Mapping[str, str]) -> dict[str, str]:
    """Azure's settings with the account that the location names, if any: an administrator who
    allows the location allows no other account.

    Raises: InvalidSpec.
    """
    names = {config.get("account_name", ""), account} - {""}
    if len(names) > 1:
        raise InvalidSpec(
            "the location and the options or the credentials name several storage accounts",
            field="spec.storage.options.account_name",
            found=", ".join(sorted(names)),
            expected="one",
            remedy="Leave it out where the location names it",
        )
    return {**config, "account_name": names.pop()} if names else dict(config)
