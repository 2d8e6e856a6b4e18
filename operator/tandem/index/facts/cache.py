"""The facts of one table's files, as far as questions have needed them, within a limit of memory.

Facts are taken from what is stored beside the table (`places`), else from footers, when a question
first needs them. What is not there, not believed or does not fit is unknown: a reader then reads
more, never less (X-b, X-c). No data page is read here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tandem.distinct import IntArray
from tandem.errors import FactsRefused, StorageError
from tandem.index.facts.bloom import BloomFilter, FilterPlace, filters_of
from tandem.index.facts.footer import read_facts
from tandem.index.facts.held import HeldFacts
from tandem.index.facts.model import UNKNOWN, FileFacts
from tandem.index.facts.narrow import RowGroups
from tandem.index.facts.places import WORTH_STORED, StoredFacts
from tandem.storage.store import Store

LIMIT: Final = 256 << 20
"""Bytes of facts and filters at most, by default."""
WORTH: Final = 8 << 20
"""Files of fewer bytes hardly have two row groups: their footers are not read."""
_AT_ONCE: Final = 8
_FOOTERS: Final = 64
"""Footers that are read before it is looked at whether their facts fit."""
_MOST_REFUSED: Final = 10_000

_log = structlog.get_logger("tandem.index.facts")

_T = TypeVar("_T")
_R = TypeVar("_R")


class FactsCache:
    """The facts of one table's files. Thread-safe.

    Args:
        limit: bytes that are held at most. Beyond it filters go first, then the facts that were
            used least recently.
        worth_bytes: the footers of files of fewer bytes are not read.
        most: so many footers are read for one question.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        store: Store,
        *,
        limit: int = LIMIT,
        worth_bytes: int = WORTH,
        most: int = 1_000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._limit, self._now = store, limit, now
        self._worth, self._most = worth_bytes, most
        self._lock = threading.Lock()
        self._held = HeldFacts(limit)
        self._table_id = ""
        self._stored = StoredFacts(store, now=now)
        self._refused: set[tuple[str, int]] = set()
        self._filters_lock = threading.Lock()
        self._filters: OrderedDict[tuple[str, int], BloomFilter | None] = OrderedDict()
        self._read_filters = filters_of(store, Counter())

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._held.nbytes + self._filter_bytes()

    def drop(self) -> None:
        """Hold nothing."""
        with self._lock:
            self._drop()

    def of(
        self,
        files: pa.Table,
        rows: IntArray,
        *,
        table_id: str = "",
        columns: Collection[str] | None = None,
    ) -> tuple[RowGroups | None, IntArray]:
        """The facts of files, and for each file its index in them, `UNKNOWN` if there are none.

        Args:
            files: `path` and `size` as in `Snapshot.files`.
            rows: physical rows, `UNKNOWN` where the log does not say.
            table_id: of the table; of another one nothing is believed. Without it, stored facts are
                not used.
            columns: physical names of the columns that are wanted; None for all.
        """
        wanted = _Wanted(files, rows, columns)
        with self._lock:
            if table_id and table_id != self._table_id:
                self._drop()
                self._table_id = table_id
            at = self._held.of(wanted.paths, wanted.sizes, wanted.rows)
            if table_id:
                at = self._from_stored(wanted, at)
            at = self._from_footers(wanted, at)
            self._fit()
            return self._held.groups, self._held.of(wanted.paths, wanted.sizes, wanted.rows)

    def filters(self, places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
        """Filters; None for one that cannot be read or is not believed. Those that were asked for
        lately are held."""
        keys = [(place.path, place.start) for place in places]
        with self._filters_lock:
            found = {key: self._filters[key] for key in keys if key in self._filters}
        missing = {key: place for key, place in zip(keys, places, strict=True) if key not in found}
        read = dict(zip(missing, _each(self._filter, list(missing.values())), strict=True))
        found |= {key: each[0] for key, each in read.items()}
        with self._filters_lock:
            for key in dict.fromkeys(keys):
                if key not in read or read[key][1]:
                    self._filters[key] = found[key]
                    self._filters.move_to_end(key)
        self._fit_filters()
        return [found[key] for key in keys]

    def _filter(self, place: FilterPlace) -> tuple[BloomFilter | None, bool]:
        """A filter, and whether that is its last word."""
        try:
            (found,) = self._read_filters([place])
        except StorageError as error:
            _log.info("a filter cannot be read now", path=place.path, problem=str(error))
            return None, False
        return found, True

    def _drop(self) -> None:
        self._held.drop()
        self._stored = StoredFacts(self._store, now=self._now)
        self._refused.clear()
        with self._filters_lock:
            self._filters.clear()

    def _from_stored(self, wanted: _Wanted, at: IntArray) -> IntArray:
        least = min(WORTH_STORED, self._worth)
        missing = np.flatnonzero((at == UNKNOWN) & (wanted.sizes >= least))
        if not len(missing):
            return at
        paths, sizes, rows = wanted.take(missing)
        new = []
        for facts in self._stored.of(paths.to_pylist(), self._table_id):
            # Of a wanted file only what is believed, of others what is not known yet.
            of_wanted = np.asarray(pc.is_in(facts.paths, value_set=paths))
            believed = facts.believed(paths, sizes, rows)
            keep = ~of_wanted & ~self._held.has(facts.paths)
            keep[believed[believed != UNKNOWN]] = True
            if keep.any():
                new.append(wanted.narrowed(facts.take(np.flatnonzero(keep))))
        if not new:
            return at
        if not self._held.add(new):
            self._stored.forget()
        return self._held.of(wanted.paths, wanted.sizes, wanted.rows)

    def _from_footers(self, wanted: _Wanted, at: IntArray) -> IntArray:
        missing = np.flatnonzero((at == UNKNOWN) & (wanted.sizes >= self._worth))[: self._most]
        paths, sizes, rows = wanted.take(missing)
        files = [
            file
            for file in zip(paths.to_pylist(), sizes.tolist(), rows.tolist(), strict=True)
            if file[:2] not in self._refused
        ]
        for first in range(0, len(files), _FOOTERS):
            piece = files[first : first + _FOOTERS]
            read = self.read_footers(piece, wanted.columns)
            if not self._held.add(read):
                # What this question needs does not fit: more of it would replace what it uses.
                self._stored.forget()
                break
        return self._held.of(wanted.paths, wanted.sizes, wanted.rows) if files else at

    def read_footers(
        self, files: Sequence[tuple[str, int, int]], columns: Collection[str] | None
    ) -> list[FileFacts]:
        """The facts of files by their footers, of those that can be read. Nothing is held."""

        def read(file: tuple[str, int, int]) -> FileFacts | None:
            path, size, rows = file
            try:
                return read_facts(
                    self._store, path, size, rows=None if rows < 0 else rows, columns=columns
                )
            except FactsRefused as error:
                # What is wrong with the file, its reader says.
                _log.info("a footer is not used", path=path, problem=str(error))
                if len(self._refused) >= _MOST_REFUSED:
                    self._refused.clear()
                self._refused.add((path, size))
            except StorageError as error:
                _log.info("a footer cannot be read now", path=path, problem=str(error))
            return None

        return [facts for facts in _each(read, files) if facts is not None]

    def _filter_bytes(self) -> int:
        with self._filters_lock:
            return sum(each.nbytes for each in self._filters.values() if each is not None)

    def _fit(self) -> None:
        self._fit_filters()
        if self._held.fit():
            self._stored.forget()

    def _fit_filters(self) -> None:
        room = self._limit - self._held.nbytes
        over = self._filter_bytes() - room
        with self._filters_lock:
            while self._filters and (over > 0 or len(self._filters) > _MOST_REFUSED):
                _, oldest = self._filters.popitem(last=False)
                over -= 0 if oldest is None else oldest.nbytes


class _Wanted:
    """The files and columns of a question."""

    def __init__(self, files: pa.Table, rows: IntArray, columns: Collection[str] | None) -> None:
        self.paths: pa.Array = files["path"].combine_chunks()
        self.sizes: IntArray = files["size"].to_numpy()
        self.rows, self.columns = rows, columns

    def take(self, which: IntArray) -> tuple[pa.Array, IntArray, IntArray]:
        return self.paths.take(pa.array(which)), self.sizes[which], self.rows[which]

    def narrowed(self, facts: FileFacts) -> FileFacts:
        return facts if self.columns is None else facts.only(self.columns)


def _each(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """The results in order, of calls in threads."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), "tandem-facts") as pool:
        return list(pool.map(function, items))
