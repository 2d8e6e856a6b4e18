"""The facts and bloom filters of one table's files, as far as questions have needed them, within a
limit of memory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tandem.delta.schema import Field, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.errors import FactsRefused, ObjectNotFound, StorageError
from tandem.index.facts.bloom_filters import (
    BloomFilter,
    FilteredBounds,
    FilterPlace,
    LoadFilters,
    Probe,
    equalities,
    read_filter,
)
from tandem.index.facts.files import WORTH_STORED, FactsListing, StoredFacts
from tandem.index.facts.footers import File, Footers, each_in_threads
from tandem.index.facts.row_groups import UNKNOWN, FileFacts, concat, group_column
from tandem.pruning.bounds import ColumnBounds, HeldBounds
from tandem.pruning.predicate import FileBounds, columns_of, may_match, must_match
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType
from tandem.storage.paths import object_path
from tandem.storage.store import Store

# The row groups that a condition needs, and those on all of whose rows it is true.
#
# Statistics decide for all row groups at once, with the evaluator that decides for files. Of what
# is left open, bloom filters are asked, if they can exclude anything. A column of which nothing is
# known excludes nothing.


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What a condition can be on some row groups.

    Attributes:
        may: False only where it is true on no row.
        must: True only where it is true on every row.
    """

    may: BoolArray
    must: BoolArray


class RowGroups:
    """The row groups of the files of some facts. Thread-safe; columns are decoded when a condition
    first names them."""

    def __init__(self, facts: FileFacts) -> None:
        self.facts = facts
        self._columns: dict[tuple[str, int | None, SqlType], HeldBounds | None] = {}
        self._lock = threading.Lock()

    def narrow(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray | None = None,
        *,
        by_id: bool = False,
        known: Mapping[str, HeldBounds] | None = None,
        load: LoadFilters | None = None,
    ) -> Narrowed:
        """Decide by statistics, and what these leave open by bloom filters.

        Args:
            schema: of the columns that files hold: readers take partition columns from the log.
            groups: which row groups; None for all.
            by_id: the table maps columns by field id.
            known: bounds of partition columns in these row groups, by name.
            load: reads filters; None for statistics alone. Only filters that can exclude a row
                group are loaded, column by column.
        """
        known = known or {}
        bounds = self._bounds(where, schema, groups, by_id, known)
        groups = np.arange(bounds.count) if groups is None else groups
        may, must = may_match(where, bounds), must_match(where, bounds)
        if load is not None:
            open_ = np.flatnonzero(may & ~must)
            chosen = {name: column.take(open_) for name, column in known.items()}
            may[open_] = self._by_filters(where, schema, groups[open_], by_id, chosen, load)
        return Narrowed(may, must)

    def _by_filters(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray,
        by_id: bool,
        known: Mapping[str, HeldBounds],
        load: LoadFilters,
    ) -> BoolArray:
        """Whether a condition may be true on a row of some row groups."""
        bounds = self._bounds(where, schema, groups, by_id, known)
        probes = [
            probe
            for name, constants in equalities(where).items()
            if name in bounds.columns
            and name not in known
            and (
                probe := Probe(
                    self.facts, groups, schema[name], bounds.columns[name], constants, by_id=by_id
                )
            )
        ]
        columns = dict(bounds.columns) | {
            probe.name: FilteredBounds(bounds.columns[probe.name], probe) for probe in probes
        }
        filtered = FileBounds(bounds.count, columns, bounds.empty)
        for probe in probes:
            # Where no answer of the filters that are left changes anything, none is asked.
            possible = may_match(where, filtered)
            _assume(probes, True)
            certain = may_match(where, filtered)
            _assume(probes, False)
            probe.ask(np.flatnonzero(certain & ~possible), load)
        _assume(probes, True)
        return may_match(where, filtered) if probes else np.ones(bounds.count, bool)

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        columns = [column for column in list(self._columns.values()) if column is not None]
        return self.facts.nbytes + sum(column.nbytes for column in columns)

    def _bounds(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray | None,
        by_id: bool,
        known: Mapping[str, HeldBounds],
    ) -> FileBounds:
        columns: dict[str, ColumnBounds] = dict(known)
        for name, type_ in columns_of(where):
            field = schema.get(name)
            if field is None or name in columns:
                continue
            column = self._column(field, type_, by_id)
            if column is not None:
                columns[name] = column if groups is None else column.take(groups)
        rows = self.facts.group_rows if groups is None else self.facts.group_rows[groups]
        return FileBounds(len(rows), columns, rows == 0)

    def _column(self, field: Field, type_: SqlType, by_id: bool) -> HeldBounds | None:
        key = (field.physical_name, field.field_id if by_id else None, type_)
        with self._lock:
            if key not in self._columns:
                self._columns[key] = group_column(self.facts, field, type_, by_id=by_id)
            return self._columns[key]


def _assume(probes: Sequence[Probe], present: bool) -> None:
    for probe in probes:
        probe.assume(present)


# Facts that are held, within a limit of memory. Pure; not thread-safe.


_CELL: Final = 40
"""Bytes of a column in a row group at least: two bounds, three numbers."""
_SHARES: Final = (0.75, 0.5, 0.25, 0.0)
"""What is kept of the limit once it is exceeded: less, until it fits."""


class HeldFacts:
    """The facts of files.

    Args:
        limit: bytes at most. `add` and `fit` keep it; columns that a condition has decoded since
            then come on top.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._question = 0
        self._used: IntArray = np.zeros(0, np.int64)
        """By file, the last question that needed it."""
        self._gave_up = False
        self.groups: RowGroups | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._used.nbytes + (0 if self.groups is None else self.groups.nbytes)

    def drop(self) -> None:
        """Hold nothing."""
        self.groups, self._used, self._gave_up = None, np.zeros(0, np.int64), False

    def has(self, paths: pa.Array) -> BoolArray:
        """Which files have facts, right or not."""
        if self.groups is None:
            return np.zeros(len(paths), bool)
        found: BoolArray = self.groups.facts.index_of(paths) != UNKNOWN
        return found

    @property
    def has_room(self) -> bool:
        """Whether nothing had to be given up yet."""
        return not self._gave_up

    def at(self, paths: pa.Array, sizes: IntArray, rows: IntArray) -> IntArray:
        """For each file the index of its facts, as `FileFacts.believed`."""
        if self.groups is None:
            return np.full(len(paths), UNKNOWN)
        return self.groups.facts.believed(paths, sizes, rows)

    def needed(self, at: IntArray) -> IntArray:
        """The same indexes, of the files of a question."""
        self._question += 1
        self._used[at[at != UNKNOWN]] = self._question
        return at

    def add(self, new: Sequence[FileFacts]) -> bool:
        """Hold more facts; of two files of one name the later one is there. False if some do not
        fit beside those that the last question needed."""
        chosen = self._that_fit(new)
        needed = self._needed()
        if chosen:
            paths = pa.concat_arrays([facts.paths for facts in chosen])
            last = _last_of_each(paths)
            added = concat(chosen)
            if len(last) < len(paths):
                added = added.take(last)
            needed += len(added)
            parts, used = [added], [np.full(len(added), self._question)]
            if self.groups is not None:
                known = self.groups.facts
                others = np.flatnonzero(added.index_of(known.paths) == UNKNOWN)
                fitting = self._with_room(known, others, added)
                self._gave_up |= len(fitting) < len(others)
                others = fitting
                parts.insert(0, known.take(others))
                used.insert(0, self._used[others])
            self._hold(concat(parts), np.concatenate(used))
        self._gave_up |= len(chosen) < len(new)
        self.fit()
        return len(chosen) == len(new) and self._needed() == needed

    def _needed(self) -> int:
        """How many files the last question needs."""
        return int((self._used == self._question).sum())

    def fit(self) -> bool:
        """Keep the limit: facts that were used least recently go. Whether some did."""
        before = len(self._used)
        for share in _SHARES:
            if self.groups is None or self.nbytes <= self._limit:
                break
            facts = self.groups.facts
            newest = np.argsort(-self._used, kind="stable")
            # A file has its share of the bytes by its row groups.
            bytes_ = facts.nbytes * np.cumsum(facts.groups[newest] + 1) / (facts.groups + 1).sum()
            keep = np.sort(newest[bytes_ <= share * self._limit])
            self._hold(facts.take(keep), self._used[keep])
        gave_up = len(self._used) < before
        self._gave_up |= gave_up
        return gave_up

    def _hold(self, facts: FileFacts, used: IntArray) -> None:
        self.groups, self._used = RowGroups(facts) if len(facts) else None, used

    def _that_fit(self, new: Sequence[FileFacts]) -> list[FileFacts]:
        """The first of them, as long as their columns times their row groups fit: facts of files
        that have nothing in common take much more together than each alone."""
        chosen: list[FileFacts] = []
        keys: set[object] = set()
        groups = 0
        for facts in new:
            keys |= facts.columns.keys()
            groups += len(facts.group_rows)
            if len(keys) * groups * _CELL > self._limit:
                break
            chosen.append(facts)
        return chosen

    def _with_room(self, known: FileFacts, files: IntArray, added: FileFacts) -> IntArray:
        """Those of the known files that can be held together with new ones, newest first."""
        columns = max(len(known.columns.keys() | added.columns.keys()), 1)
        room = self._limit // (columns * _CELL) - len(added.group_rows)
        newest = files[np.argsort(-self._used[files], kind="stable")]
        return np.sort(newest[np.cumsum(known.groups[newest]) <= room])


def _last_of_each(paths: pa.Array) -> IntArray:
    """The last place of each path, in order."""
    encoded = paths.dictionary_encode()
    codes = np.asarray(encoded.indices)
    last = np.zeros(len(encoded.dictionary), np.int64)
    last[codes] = np.arange(len(codes))
    return np.sort(last)


# Bloom filters that are held. Thread-safe.


_MOST: Final = 10_000
"""Filters that are held at most, with those that are known to be none."""

_log = structlog.get_logger("tandem.index.facts")

Key = tuple[str, int, int]


class HeldFilters:
    """The filters of a table's files that were asked for lately."""

    def __init__(self, store: Store) -> None:
        self._store = store
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
            return read_filter(self._store, object_path(place.path), place), True
        except (FactsRefused, ObjectNotFound):
            return None, True
        except StorageError as error:
            _log.info("a filter cannot be read now", path=place.path, problem=str(error))
            return None, False


# The facts of one table's files, as far as questions have needed them, within a limit of memory.
#
# Facts are taken from what is stored beside the table (`files`), else from footers, when a
# question first needs them. What is not there, not believed or does not fit is unknown: a reader
# then reads more, never less (X-b, X-c). No data page is read here.


LIMIT: Final = 256 << 20
"""Bytes of facts and filters at most, by default."""
WORTH: Final = 8 << 20
"""Files of fewer bytes hardly have two row groups: their footers are not read."""
_FOOTERS: Final = 64
"""Footers that are read before it is looked at whether their facts fit."""
_TOGETHER: Final = 1_024
"""Files whose facts are stored together by `warm`."""


class FactsCache:
    """The facts of one table's files. Thread-safe.

    Args:
        listing: of the store's facts, if others share it.
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
        listing: FactsListing | None = None,
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
        self._listing = listing
        self._stored = self._nothing_stored()
        self._footers = Footers(store)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._held.nbytes + self._filters.nbytes

    @property
    def filter_bytes(self) -> int:
        """Bytes of these that are bloom filters."""
        return self._filters.nbytes

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
        self, files: pa.Table, rows: IntArray, stop: Callable[[], bool], *, table_id: str
    ) -> int:
        """Read the footers of files without facts in the background, hold what fits, and store it
        beside the table where that is allowed.

        Args:
            files, rows: as for `of`.
            stop: asked before every few footers, and ends it.
        Returns: of how many files facts were read.
        """
        wanted = _Wanted(files, rows, None)
        with self._lock:
            self._be_of(table_id)
            at = self._at(wanted)
            while self._held.has_room and self._add_stored(wanted, at):
                at = self._at(wanted)
            missing = self._without_facts(wanted, at)
            footers = self._footers
        done: list[FileFacts] = []
        count = size = 0
        for begin in range(0, len(missing), _FOOTERS):
            # What is not held would be read again the next time.
            if stop() or not self._held.has_room:
                break
            done += (read := footers.read(missing[begin : begin + _FOOTERS], None))
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
        self._stored = self._nothing_stored()
        self._footers = Footers(self._store)

    def _nothing_stored(self) -> StoredFacts:
        listing = self._listing or FactsListing(self._store, now=self._now)
        return StoredFacts(self._store, listing)

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
