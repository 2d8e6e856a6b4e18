"""The one port through which everything reads and writes a table's objects.

Paths are relative to the table's root, `/`-separated, not percent-encoded. The only absolute
ones are those that a log itself names (shallow clones, `p` deletion vectors); `open_store`
decides which prefixes they may lie under. Implementations are synchronous and thread-safe:
async callers go through a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of one object. `size` in bytes, `modified_ms` in Unix milliseconds."""

    path: str
    size: int
    modified_ms: int


class Store(Protocol):
    """A table's root in some object store."""

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
        strictly after `start_after` (a full path). What is still being written is not shown;
        what is created meanwhile may or may not be."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Create or replace. Raises `StorageFull`, `AccessDenied`, `OutcomeUnknown`."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create, atomically with its whole content; durable when it returns.

        Raises `AlreadyExists` if there is one, `OutcomeUnknown` if the answer was lost: then
        look with `get`. It is never sent twice, but something between us and the store may do
        that, so `AlreadyExists` says that there is an object, not whose: compare a token in
        the content where that matters."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove; an absent object is no error."""
        ...

    def open_input(self, path: str) -> BinaryIO:
        """A seekable reader, fit for `pyarrow.parquet.ParquetFile`."""
        ...

    def open_output(self, path: str) -> BinaryIO:
        """A streaming writer. The object appears when it is closed, replacing one that is
        there. Use it in a `with` block: leaving that by an exception discards everything, as
        does a failed `write`, `abort()`, and losing the last reference."""
        ...

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        """Remove everything below the folder `prefix`, also what killed writers left half
        written (which `list` does not show). `keep` are full paths, as `list` gives them, that
        stay. If `prefix` is an object, it stays, and what killed writers left of it goes.
        Returns how many objects went."""
        ...
