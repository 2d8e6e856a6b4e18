"""A store whose credentials can be renewed while it is in use: rotated secrets must not end an
operation that outlives them. Every call goes to the latest store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO

from tandem.storage.store import ObjectInfo, Store


class RenewableStore:
    """A `Store`; `inner` may be replaced at any time by another one of the same location."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def near(self) -> bool:
        """As of `RootedStore`."""
        return bool(getattr(self.inner, "near", False))

    def get(self, path: str) -> bytes:
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        return self.inner.head(path)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after=start_after)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.inner.put_if_absent(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self.inner.delete(paths)

    def open_input(self, path: str) -> BinaryIO:
        return self.inner.open_input(path)

    def open_output(self, path: str) -> BinaryIO:
        return self.inner.open_output(path)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        return self.inner.delete_prefix(prefix, keep=keep)
