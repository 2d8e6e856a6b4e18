"""The only port through which a table's objects are read and written.

Paths are relative to the table's root, `/`-separated, not percent-encoded. The only absolute
ones are those that occur in a log (shallow clones, `p` deletion vectors); `open_store` decides
which prefixes they may lie below. Implementations are synchronous and thread-safe: async callers
use a thread.

File objects over a store, a writer that publishes on close and a reader with read-ahead, are shared
by the stores of this package. They know bytes and positions, not the store behind them.
"""

from __future__ import annotations

import io
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from tandem.errors import ObjectNotFound

T = TypeVar("T")


def side_by_side(calls: Sequence[Callable[[], T]], most: int) -> list[T]:
    """The results of calls that do not depend on one another, in their order. A store far away
    answers them in the time of one.

    Args:
        most: so many at once; 1: one after the other, in their order.
    Raises: the error of the first one, in their order, that failed. Those that had begun have ended
        by then, unless this thread is interrupted, and no others begin.
    """
    if most <= 1 or len(calls) <= 1:
        return [call() for call in calls]
    # A pool of `concurrent.futures` takes several times as long to make, and this is called often.
    found: list[T | None] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    lock, waiting = threading.Lock(), list(reversed(range(len(calls))))

    def work() -> None:
        while True:
            with lock:
                if errors or not waiting:
                    return
                number = waiting.pop()
            try:
                found[number] = calls[number]()
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                with lock:
                    errors[number] = error

    others: list[threading.Thread] = []
    try:
        while len(others) < min(most, len(calls)) - 1 and waiting:  # calls may end at once
            other = threading.Thread(target=work)
            other.start()
            others.append(other)
        work()
        for other in others:
            other.join()
    finally:
        waiting.clear()  # after an interrupt, or where the system has no more threads, none begins
    if errors:
        raise errors[min(errors)]
    return cast("list[T]", found)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing. `size` in bytes, `modified_ms` in Unix milliseconds."""

    path: str
    size: int
    modified_ms: int


class Store(Protocol):
    """The objects below a table's root in an object store."""

    @property
    def location(self) -> str:
        """The canonical URL of the root, without a trailing slash and without secrets."""
        ...

    def get(self, path: str) -> bytes:
        """The whole object. Raises `ObjectNotFound`, `AccessDenied`, `StorageError`."""
        ...

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; shorter only at the object's end."""
        ...

    def head(self, path: str) -> ObjectInfo:
        """Size and time of one object. Raises `ObjectNotFound`."""
        ...

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder `prefix`, recursively, in lexicographic order of path,
        strictly after `start_after` (a full path). Objects whose write is in progress are left
        out; objects created during the listing may or may not appear."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace. Raises `StorageFull`, `AccessDenied`, `OutcomeUnknown`."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create, atomically with its whole content; durable on return.

        Raises `AlreadyExists` if there is an object, `OutcomeUnknown` if the answer was lost: then
        check with `get`. It is never sent twice, but a proxy in between may repeat it, so
        `AlreadyExists` means that an object exists, not who wrote it: compare a token in the
        content where that matters."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete; an absent object is not an error."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """A seekable reader, suitable for `pyarrow.parquet.ParquetFile`."""
        ...

    def open_output(self, path: str) -> BinaryIO:
        """A streaming writer. The object appears on close and replaces an existing one. Use it in
        a `with` block: leaving that by an exception discards everything, as do a failed `write`,
        `abort()`, and losing the last reference."""
        ...

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        """Delete everything below the folder `prefix`, including temporary files of killed
        writers (which `list` does not show), except the full paths in `keep`. If `prefix` is an
        object, it stays, and only temporary files for it are deleted. Returns the number of
        deleted objects."""
        ...


def exists(store: Store, path: str) -> bool:
    """Whether there is an object at the path. Raises: StorageError."""
    try:
        store.head(path)
    except ObjectNotFound:
        return False
    return True


# A request for less than this is extended to it: footers and page headers are read in many small
# pieces, and each piece would otherwise cost a round trip.
READ_AHEAD = 256 * 1024


class PublishingWriter(io.RawIOBase):
    """A writer whose object appears as a whole when it is closed, or never.

    Leaving its `with` block by an exception, a failed `write`, `abort()` or losing the last
    reference discards what was written. After a discard `close` does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._position = 0
        self._discarded = False
        self._done = False

    @abstractmethod
    def _append(self, data: memoryview) -> None: ...

    @abstractmethod
    def _publish(self) -> None: ...

    @abstractmethod
    def _discard(self) -> None: ...

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        if self._done:
            raise ValueError("write to a closed or aborted writer")
        try:
            view = memoryview(data).cast("B")
            self._append(view)
        except BaseException:
            self.abort()
            raise
        self._position += len(view)
        return len(view)

    def abort(self) -> None:
        """Discard everything; nothing becomes visible. Idempotent, no effect after `close`."""
        if not self._done:
            self._done = True
            self._discarded = True
            self._discard()
        super().close()

    def close(self) -> None:
        if not self._done:
            self._done = True
            try:
                self._publish()
            except BaseException:
                self._discard()
                super().close()
                raise
        super().close()

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        # The base class would close here, and so publish an incomplete object.
        if not getattr(self, "_done", True):
            self.abort()


PIECE = 8 << 20
"""Bytes that `append_range` holds at most."""


def append_range(source: BinaryIO, start: int, size: int, sink: Any) -> None:
    """Append `size` bytes of an open object, from `start`, to one that is being written.

    Between local files the kernel copies; a file system may even share the blocks. Inside of a
    bucket of S3 the store may copy.
    Raises: StorageError, OSError; OSError if the source has fewer bytes.
    """
    if not size:
        return
    copy = getattr(sink, "append_file_range", None)
    if copy is not None and copy(source, start, size):
        return
    source.seek(start)
    while size:
        data = source.read(min(size, PIECE))
        if not data:
            raise OSError(f"the source ends {size} bytes early")
        sink.write(data)
        size -= len(data)


def read_at(source: BinaryIO, start: int, size: int) -> bytes:
    """Read bytes of an open object, fewer only at its end, wherever its position is. Threads may do
    so at once, also while Arrow reads it. Before the next `read`, seek."""
    found: bytes = cast(Any, source).read_at(size, start)  # as in pyarrow's files
    return found


def read_each(source: BinaryIO, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read several ranges (start, size) of an open object, as `read_at`; of one in a store far away
    at once."""
    if isinstance(source, RangeReader):
        return source.read_each(ranges)
    return [read_at(source, *each) for each in ranges]


def is_distant(source: BinaryIO) -> bool:
    """Whether each read of an open object is a request to a store."""
    return isinstance(source, RangeReader)


class RangeReader(io.RawIOBase):
    """A seekable reader over `fetch(start, length)`, for objects of a known size.

    Not thread-safe, like any file; pyarrow serialises its calls. `e_tag` names the version of the
    object when it was opened, as far as the store has versions.
    """

    read_ahead = READ_AHEAD
    e_tag: str | None = None

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._buffer = b""
        self._buffer_start = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._size - self._position, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted == 0:
            return b""
        data = self._from_buffer(wanted)
        if data is None:
            if wanted >= self.read_ahead:
                data = self._fetch(self._position, wanted)
            else:
                # Near the end also read backwards: a Parquet footer is read from its end.
                start = max(0, min(self._position, self._size - self.read_ahead))
                self._buffer = self._fetch(start, min(self.read_ahead, self._size - start))
                self._buffer_start = start
                data = self._from_buffer(wanted)
        if data is None or len(data) < wanted:
            raise OSError(f"object is shorter than its size of {self._size} bytes")
        self._position += wanted
        return data

    def read_at(self, size: int, offset: int) -> bytes:
        size = min(size, self._size - offset)
        return self._fetch(offset, size) if size > 0 else b""

    def read_each(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_at(size, start) for start, size in ranges]

    def _from_buffer(self, wanted: int) -> bytes | None:
        start = self._position - self._buffer_start
        if start < 0 or start + wanted > len(self._buffer):
            return None
        return self._buffer[start : start + wanted]

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, target: Any, /) -> int:
        view = memoryview(target).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def read_ahead(source: BinaryIO, size: int) -> None:
    """Let reads of less than `size` bytes fetch so many, where an object is read by ranges; 1 for
    what is read and no more."""
    if isinstance(source, RangeReader):
        source.read_ahead = size


def version_of(source: BinaryIO) -> str | None:
    """A name of the version of an open object; None if its store has none."""
    return source.e_tag if isinstance(source, RangeReader) else None
