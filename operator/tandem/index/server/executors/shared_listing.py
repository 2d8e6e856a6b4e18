"""A table's store, of which the stored facts are listed once for all shards that an executor holds.

Each shard has facts of its own, and would list them for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import BinaryIO

from tandem.index.facts.packed import FOLDER
from tandem.index.facts.places import LISTED_S, MOST_LISTED
from tandem.storage.store import ObjectInfo, Store


class SharedListing:
    """`tandem.storage.store.Store` describes each call.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, store: Store, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._listed = -float("inf")
        self._facts: list[ObjectInfo] = []

    @property
    def location(self) -> str:
        return self._store.location

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        if prefix != FOLDER or start_after:
            return self._store.list(prefix, start_after=start_after)
        with self._lock:
            now = self._now()
            if now - self._listed >= LISTED_S:
                self._facts = [*islice(self._store.list(prefix), MOST_LISTED)]
                self._listed = now
            return iter(self._facts)

    def get(self, path: str) -> bytes:
        return self._store.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._store.get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        return self._store.head(path)

    def put(self, path: str, data: bytes) -> None:
        self._store.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._store.put_if_absent(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self._store.delete(paths)

    def open_input(self, path: str) -> BinaryIO:
        return self._store.open_input(path)

    def open_output(self, path: str) -> BinaryIO:
        return self._store.open_output(path)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        return self._store.delete_prefix(prefix, keep=keep)
