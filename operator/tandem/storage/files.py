"""File objects over a store: a writer that publishes on close, a reader with read-ahead.

Shared by the stores of this package. They know bytes and positions, not the store behind them.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, cast

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
