"""A folder of a store as a store of its own.

Paths are relative to the folder. The store below keeps its guarantees, its credentials and, in
tests, its injected faults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from tandem.storage.paths import check_folder, check_relative
from tandem.storage.store import ObjectInfo, Store


@dataclass(frozen=True)
class Subfolder:
    """`tandem.storage.store.Store` describes each call. `folder` is relative, without a slash at
    its end."""

    store: Store
    folder: str

    @property
    def location(self) -> str:
        return f"{self.store.location}/{self.folder}"

    def _path(self, path: str) -> str:
        return f"{self.folder}/{check_relative(path)}"

    def _own(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, path=info.path.removeprefix(f"{self.folder}/"))

    def get(self, path: str) -> bytes:
        return self.store.get(self._path(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.store.get_range(self._path(path), start, length)

    def head(self, path: str) -> ObjectInfo:
        return self._own(self.store.head(self._path(path)))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        below = self._path(check_folder(prefix)) if prefix else self.folder
        after = self._path(start_after) if start_after else ""
        return map(self._own, self.store.list(below, start_after=after))

    def put(self, path: str, data: bytes) -> None:
        self.store.put(self._path(path), data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.store.put_if_absent(self._path(path), data)

    def delete(self, paths: Iterable[str]) -> None:
        self.store.delete(map(self._path, paths))

    def open_input(self, path: str) -> BinaryIO:
        return self.store.open_input(self._path(path))

    def open_output(self, path: str) -> BinaryIO:
        return self.store.open_output(self._path(path))

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        below = self._path(check_folder(prefix))
        return self.store.delete_prefix(below, keep=[self._path(p) for p in keep])
