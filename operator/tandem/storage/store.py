"""The only port through which a table's objects are read and written.

Paths are relative to the table's root, `/`-separated, not percent-encoded. The only absolute
ones are those that occur in a log (shallow clones, `p` deletion vectors); `open_store` decides
which prefixes they may lie below. Implementations are synchronous and thread-safe: async callers
use a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar, cast

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
