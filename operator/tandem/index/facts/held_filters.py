"""Bloom filters that are held. Thread-safe."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final

import structlog

from tandem.errors import StorageError
from tandem.index.facts.parquet.bloom import BloomFilter, FilterPlace, filters_of
from tandem.index.facts.threads import each_in_threads
from tandem.storage.store import Store

_MOST: Final = 10_000
"""Filters that are held at most, with those that are known to be none."""

_log = structlog.get_logger("tandem.index.facts")

Key = tuple[str, int, int]


class HeldFilters:
    """The filters of a table's files that were asked for lately."""

    def __init__(self, store: Store) -> None:
        self._read = filters_of(store, Counter())
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, BloomFilter | None] = OrderedDict()
        self._drops = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        with self._lock:
            return sum(each.nbytes for each in self._held.values() if each is not None)

    def of(self, places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
        """Filters; None for one that cannot be read or is not believed."""
        keys = [(place.path, place.size, place.start) for place in places]
        with self._lock:
            drops = self._drops
            found = {key: self._held[key] for key in keys if key in self._held}
        missing = {key: place for key, place in zip(keys, places, strict=True) if key not in found}
        answers = each_in_threads(self._one, list(missing.values()))
        lasting = set(found)
        for key, (filter_, lasts) in zip(missing, answers, strict=True):
            found[key] = filter_
            if lasts:
                lasting.add(key)
        with self._lock:
            # What was read of a table that is gone meanwhile is not kept for the next one.
            for key in dict.fromkeys(keys) if drops == self._drops else ():
                if key in lasting:
                    self._held[key] = found[key]
                    self._held.move_to_end(key)
        return [found[key] for key in keys]

    def fit(self, room: int) -> None:
        """Hold no more than so many bytes: those that were asked for least recently go."""
        over = self.nbytes - room
        with self._lock:
            while self._held and (over > 0 or len(self._held) > _MOST):
                _, oldest = self._held.popitem(last=False)
                over -= 0 if oldest is None else oldest.nbytes

    def drop(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._held.clear()
            self._drops += 1

    def _one(self, place: FilterPlace) -> tuple[BloomFilter | None, bool]:
        """A filter, and whether that is its last word."""
        try:
            (found,) = self._read([place])
        except StorageError as error:
            _log.info("a filter cannot be read now", path=place.path, problem=str(error))
            return None, False
        return found, True
