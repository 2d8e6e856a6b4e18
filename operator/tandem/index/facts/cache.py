"""The facts of one table's files, as far as questions have needed them, within a limit of memory.

Facts are taken from what is stored beside the table (`places`), else from footers, when a question
first needs them. What is not there, not believed or does not fit is unknown: a reader then reads
more, never less (X-b, X-c). No data page is read here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray
from tandem.index.facts.held import HeldFacts
from tandem.index.facts.held_filters import HeldFilters
from tandem.index.facts.model import UNKNOWN, FileFacts
from tandem.index.facts.narrow import RowGroups
from tandem.index.facts.parquet.bloom import BloomFilter, FilterPlace
from tandem.index.facts.parquet.footers import File, Footers
from tandem.index.facts.places import WORTH_STORED, StoredFacts
from tandem.storage.store import Store

LIMIT: Final = 256 << 20
"""Bytes of facts and filters at most, by default."""
WORTH: Final = 8 << 20
"""Files of fewer bytes hardly have two row groups: their footers are not read."""
_FOOTERS: Final = 64
"""Footers that are read before it is looked at whether their facts fit."""
_TOGETHER: Final = 1_024
"""Files whose facts are stored together by `warm`."""
_MOST_REMEMBERED: Final = 10_000
"""Files that questions asked for in vain."""


class FactsCache:
    """The facts of one table's files. Thread-safe.

    Args:
        limit: bytes that are held at most. Beyond it filters go first, then the facts that were
            used least recently.
        bloom_filters: whether filters are read.
        worth_bytes: the footers of files of fewer bytes are not read.
        most: so many footers are read for one question.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        store: Store,
        *,
        limit: int = LIMIT,
        bloom_filters: bool = True,
        worth_bytes: int = WORTH,
        most: int = 1_000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._limit, self._now = store, limit, now
        self._worth, self._most = worth_bytes, most
        self._uses_filters = bloom_filters
        self._lock = threading.Lock()
        self._held = HeldFacts(limit)
        self._filters = HeldFilters(store)
        self._table_id = ""
        self._stored = StoredFacts(store, now=now)
        self._footers = Footers(store)
        self._in_vain: dict[str, None] = {}
        """What questions asked for and did not get, oldest first."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._held.nbytes + self._filters.nbytes

    @property
    def filter_bytes(self) -> int:
        """Bytes of these that are bloom filters."""
        return self._filters.nbytes

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
            self._be_of(table_id)
            known, at = self._held.groups, self._needed(wanted)
            if table_id and self._add_stored(wanted, at):
                known, at = self._held.groups, self._needed(wanted)
            self._add_footers(wanted, at)
            self._filters.fit(self._limit - self._held.nbytes)
            if self._held.fit():
                self._stored.forget()
            if self._held.groups is not known:
                at = self._needed(wanted)
            self._note(wanted, at)
            return self._held.groups, at

    def filters(self, places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
        """Filters; None for one that cannot be read or is not believed. Those that were asked for
        lately are held."""
        if not self._uses_filters:
            return [None] * len(places)
        found = self._filters.of(places)
        self._filters.fit(self._limit - self._held.nbytes)
        return found

    def warm(
        self,
        files: pa.Table,
        rows: IntArray,
        stop: Callable[[], bool],
        *,
        table_id: str,
        columns: Collection[str] | None = None,
        most: int = 100_000,
    ) -> int:
        """Read the footers of files without facts in the background, those first that questions
        asked for in vain, hold what fits, and store it beside the table where that is allowed.

        Args:
            files, rows, columns: as for `of`.
            stop: asked before every few footers, and ends it.
            most: footers that are read at most.
        Returns: of how many files facts were read.
        """
        wanted = _Wanted(files, rows, columns)
        with self._lock:
            self._be_of(table_id)
            at = self._at(wanted)
            while self._held.has_room and self._add_stored(wanted, at):
                at = self._at(wanted)
            missing, first = self._without_facts(wanted, at), dict(self._in_vain)
            footers = self._footers
        missing.sort(key=lambda file: file[0] not in first)
        done: list[FileFacts] = []
        count = size = 0
        for begin in range(0, min(len(missing), most), _FOOTERS):
            # What is not held would be read again the next time.
            if stop() or not self._held.has_room:
                break
            done += (read := footers.read(missing[begin : begin + _FOOTERS], columns))
            count += len(read)
            size += sum(facts.nbytes for facts in read)
            if len(done) >= _TOGETHER or size > self._limit // 4:
                self._keep(done, table_id)
                done, size = [], 0
        self._keep(done, table_id)
        return count

    def _keep(self, parts: Sequence[FileFacts], table_id: str) -> None:
        """Hold and store facts, unless there is another table since."""
        if not parts:
            return
        with self._lock:
            if table_id != self._table_id:
                return
            self._held.add(parts)
            stored = self._stored
        stored.put(parts, table_id)

    def _be_of(self, table_id: str) -> None:
        if table_id and table_id != self._table_id:
            self._drop()
            self._table_id = table_id

    def _drop(self) -> None:
        self._held.drop()
        self._filters.drop()
        self._stored = StoredFacts(self._store, now=self._now)
        self._footers = Footers(self._store)
        self._in_vain.clear()

    def _at(self, wanted: _Wanted) -> IntArray:
        return self._held.at(wanted.paths, wanted.sizes, wanted.rows)

    def _needed(self, wanted: _Wanted) -> IntArray:
        return self._held.needed(self._at(wanted))

    def _add_stored(self, wanted: _Wanted, at: IntArray) -> bool:
        """Whether there were more."""
        least = min(WORTH_STORED, self._worth)
        missing = np.flatnonzero((at == UNKNOWN) & (wanted.sizes >= least))
        if not len(missing):
            return False
        paths, sizes, rows = wanted.take(missing)
        new = []
        for facts in self._stored.of(paths, self._table_id, limit=self._limit):
            # Of a wanted file only what is believed, of others what is not known yet.
            keep = ~np.asarray(pc.is_in(facts.paths, value_set=paths))
            keep &= ~self._held.has(facts.paths)
            believed = facts.believed(paths, sizes, rows)
            keep[believed[believed != UNKNOWN]] = True
            if keep.any():
                new.append(wanted.narrowed(facts.take(np.flatnonzero(keep))))
        if new and not self._held.add(new):
            self._stored.forget()
        return bool(new)

    def _add_footers(self, wanted: _Wanted, at: IntArray) -> None:
        missing = self._without_facts(wanted, at)[: self._most]
        read: list[FileFacts] = []
        size = 0
        for first in range(0, len(missing), _FOOTERS):
            piece = self._footers.read(missing[first : first + _FOOTERS], wanted.columns)
            read += piece
            size += sum(facts.nbytes for facts in piece)
            if size > self._limit:
                break  # what this question needs does not fit
        if read and not self._held.add(read):
            self._stored.forget()

    def _without_facts(self, wanted: _Wanted, at: IntArray) -> list[File]:
        """The files whose footers are worth reading."""
        missing = np.flatnonzero((at == UNKNOWN) & (wanted.sizes >= self._worth))
        paths, sizes, rows = wanted.take(missing)
        files = zip(paths.to_pylist(), sizes.tolist(), rows.tolist(), strict=True)
        return self._footers.worth(list(files))

    def _note(self, wanted: _Wanted, at: IntArray) -> None:
        for path, *_ in self._without_facts(wanted, at)[:_MOST_REMEMBERED]:
            self._in_vain[path] = None
        for path in list(self._in_vain)[: max(len(self._in_vain) - _MOST_REMEMBERED, 0)]:
            del self._in_vain[path]


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
