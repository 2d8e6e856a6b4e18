"""A store in memory: deterministic, and with a place to make it fail. For simulation and tests.

Behaves as the real ones do (the same contract tests run on all), and knows nothing of disks or
networks. Time is a counter or a clock that the caller passes in; nothing here asks the machine.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, cast

from tandem.errors import AlreadyExists, ObjectNotFound
from tandem.storage.paths import canonical_location, check_folder, resolve
from tandem.storage.store import ObjectInfo, PublishingWriter, RangeReader

CallName = Literal[
    "get", "get_range", "head", "list", "put", "put_if_absent", "delete", "open_output"
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store, shown to the fault hook.

    `when` is `before` (raising means: it did not happen) or `after` (raising means: it
    happened, and the answer was lost). `number` counts calls of the store from 0. A writer
    shows one call, `open_output`, when it is closed.
    """

    name: CallName
    path: str
    when: Literal["before", "after"]
    number: int


FaultHook = Callable[[Call], None]


class MemoryStore:
    """A `Store` over a dictionary.

    Args:
        location: what `location` answers; absolute paths below it are accepted.
        clock: the time of writes in ms; by default a counter that each write advances by 1.
        fault: called before and after each call; may raise anything, delay, or look.
    """

    def __init__(
        self,
        location: str = "file:///memory",
        *,
        clock: Callable[[], int] | None = None,
        fault: FaultHook | None = None,
    ) -> None:
        self._location = canonical_location(location)
        self._clock = clock
        self.fault = fault
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._order: list[str] = []
        self._ticks = 0
        self._calls = 0

    @property
    def location(self) -> str:
        return self._location

    def paths(self) -> tuple[str, ...]:
        """All paths in order, without a call that the fault hook sees."""
        with self._lock:
            return tuple(self._order)

    def copy(self) -> MemoryStore:
        """An independent store with the same objects and times, and no fault hook."""
        with self._lock:
            copy = MemoryStore(self._location, clock=self._clock)
            copy._objects = dict(self._objects)
            copy._order = list(self._order)
            copy._ticks = self._ticks
            return copy

    def get(self, path: str) -> bytes:
        key = self._key(path)
        number = self._before("get", key)
        data = self._find(key)[0]
        self._after("get", key, number)
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        key = self._key(path)
        number = self._before("get_range", key)
        data = self._find(key)[0][start : start + max(length, 0)]
        self._after("get_range", key, number)
        return data

    def head(self, path: str) -> ObjectInfo:
        key = self._key(path)
        number = self._before("head", key)
        data, modified = self._find(key)
        self._after("head", key, number)
        return ObjectInfo(path, len(data), modified)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        folder = check_folder(prefix, resource=self._location)
        folder = folder + "/" if folder else ""
        number = self._before("list", folder)
        with self._lock:
            first = bisect_right(self._order, max(folder, start_after))
            found = []
            for path in self._order[first:]:
                if not path.startswith(folder):
                    if path > folder:
                        break
                    continue
                data, modified = self._objects[path]
                found.append(ObjectInfo(path, len(data), modified))
        self._after("list", folder, number)
        return iter(found)

    def put(self, path: str, data: bytes) -> None:
        key = self._key(path)
        number = self._before("put", key)
        self._write(key, data)
        self._after("put", key, number)

    def put_if_absent(self, path: str, data: bytes) -> None:
        key = self._key(path)
        number = self._before("put_if_absent", key)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(
                    "there is an object of this name", resource=f"{self._location}/{key}"
                )
            self._write(key, data)
        self._after("put_if_absent", key, number)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            key = self._key(path)
            number = self._before("delete", key)
            with self._lock:
                if self._objects.pop(key, None) is not None:
                    del self._order[bisect_right(self._order, key) - 1]
            self._after("delete", key, number)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        found = self.list(self._key(prefix.removesuffix("/")))
        paths = [meta.path for meta in found if meta.path not in keep]
        self.delete(paths)
        return len(paths)

    def open_input(self, path: str) -> BinaryIO:
        data = self.get(path)
        return cast(BinaryIO, RangeReader(lambda start, n: data[start : start + n], len(data)))

    def open_output(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _MemoryWriter(self, self._key(path)))

    def _key(self, path: str) -> str:
        return resolve(path, self._location).key

    def _find(self, key: str) -> tuple[bytes, int]:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound("no such object", resource=f"{self._location}/{key}")
        return found

    def _write(self, key: str, data: bytes) -> None:
        with self._lock:
            if key not in self._objects:
                insort(self._order, key)
            self._ticks += 1
            self._objects[key] = (bytes(data), self._clock() if self._clock else self._ticks)

    def _before(self, name: CallName, path: str) -> int:
        with self._lock:
            number = self._calls
            self._calls += 1
        if self.fault is not None:
            self.fault(Call(name, path, "before", number))
        return number

    def _after(self, name: CallName, path: str, number: int) -> None:
        if self.fault is not None:
            self.fault(Call(name, path, "after", number))


class _MemoryWriter(PublishingWriter):
    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._parts: list[bytes] = []

    def _append(self, data: memoryview) -> None:
        self._parts.append(bytes(data))

    def _publish(self) -> None:
        number = self._store._before("open_output", self._key)
        self._store._write(self._key, b"".join(self._parts))
        self._store._after("open_output", self._key, number)

    def _discard(self) -> None:
        self._parts.clear()
