"""Narrows files to the row groups that a condition needs, by facts of their footers.

Facts are read when a question first needs them, of files that are large enough to have several row
groups, and kept. A file whose facts are not there, or not believed, is needed as a whole: knowing
less loses no row (X-b). No data page is read here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tandem.delta.schema import column_mapping_mode
from tandem.distinct import BoolArray, IntArray
from tandem.errors import FactsRefused, StorageError
from tandem.index.columns import EntryColumn
from tandem.index.facts.bloom import BloomFilter, FilterPlace, filters_of
from tandem.index.facts.footer import read_facts
from tandem.index.facts.model import UNKNOWN, FileFacts, concat
from tandem.index.facts.narrow import RowGroups
from tandem.index.window import Chosen, Head
from tandem.pruning.predicate import columns_of
from tandem.statements.tree import Expr
from tandem.storage.store import Store

GROUPS = pa.list_(pa.int32())
"""The row groups of a file that are needed; null for all."""

_FILTERS = 128
"""Filters that are held; most have up to a mebibyte."""

_log = structlog.get_logger("tandem.index.row_groups")


@dataclass(frozen=True)
class NeededGroups:
    """What is left of some entries.

    Attributes:
        needed: of which a row may match.
        certain: on all of whose needed row groups the condition is true.
        groups: the needed row groups of each, as `GROUPS`.
        certain_rows: live rows that match for sure, of entries without deleted rows; in `rest` are
            the row groups that are left then.
        rest: as `groups`, without those that were counted.
        open: which entries have a `rest`.
    """

    needed: BoolArray
    certain: BoolArray
    groups: pa.Array
    certain_rows: int
    rest: pa.Array
    open: BoolArray


class FactsCache:
    """The facts of one table's files. Thread-safe.

    Args:
        worth_bytes: files of fewer bytes are not looked at: they hardly have two row groups.
        most: so many footers are read for one question.
    """

    def __init__(self, store: Store, *, worth_bytes: int = 8 << 20, most: int = 1_000) -> None:
        self._store = store
        self._worth, self._most = worth_bytes, most
        self._lock = threading.Lock()
        self._known: RowGroups | None = None
        self._refused: set[tuple[str, int]] = set()
        self._filters: dict[tuple[str, int], BloomFilter | None] = {}
        self._read_filters = filters_of(store, Counter())

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        filters = list(self._filters.values())
        held = sum(each.nbytes for each in filters if each is not None)
        return held + (0 if self._known is None else self._known.nbytes)

    def of(self, files: pa.Table, rows: IntArray) -> tuple[RowGroups | None, IntArray]:
        """The facts of files, and for each file its index in them, `UNKNOWN` if there are none.

        Args:
            files: `path` and `size` as in `Snapshot.files`.
            rows: physical rows, `UNKNOWN` where the log does not say.
        """
        paths, sizes = files["path"].combine_chunks(), files["size"].to_numpy()
        with self._lock:
            at = self._believed(paths, sizes, rows)
            wanted = np.flatnonzero((at == UNKNOWN) & (sizes >= self._worth))[: self._most]
            missing = [
                (path, size, count)
                for path, size, count in zip(
                    paths.take(pa.array(wanted)).to_pylist(),
                    sizes[wanted].tolist(),
                    rows[wanted].tolist(),
                    strict=True,
                )
                if (path, size) not in self._refused
            ]
            if missing:
                self._add(self._read(missing))
                at = self._believed(paths, sizes, rows)
            return self._known, at

    def filters(self, places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
        """Filters, of which those that were asked for lately are held."""
        found = []
        for place in places:
            key = (place.path, place.start)
            if key not in self._filters:
                if len(self._filters) >= _FILTERS:
                    self._filters.clear()
                try:
                    (self._filters[key],) = self._read_filters([place])
                except StorageError as error:
                    _log.info("a filter is not used", path=place.path, problem=str(error))
                    self._filters[key] = None
            found.append(self._filters.get(key))
        return found

    def _believed(self, paths: pa.Array, sizes: IntArray, rows: IntArray) -> IntArray:
        if self._known is None:
            return np.full(len(paths), UNKNOWN)
        return self._known.facts.believed(paths, sizes, rows)

    def _add(self, new: Sequence[FileFacts]) -> None:
        if not new:
            return
        known = () if self._known is None else (self._known.facts,)
        paths = pa.array([path for facts in new for path in facts.paths.to_pylist()])
        # Of two files of one name the later one is there.
        kept = [
            facts.take(np.flatnonzero(~np.asarray(pc.is_in(facts.paths, value_set=paths))))
            for facts in known
        ]
        self._known = RowGroups(concat([*kept, *new]))

    def _read(self, missing: Sequence[tuple[str, int, int]]) -> list[FileFacts]:
        def read(file: tuple[str, int, int]) -> FileFacts | None:
            path, size, rows = file
            try:
                return read_facts(self._store, path, size, rows=None if rows < 0 else rows)
            except FactsRefused as error:
                # What is wrong with the file, its reader says.
                _log.info("a footer is not used", path=path, problem=str(error))
                self._refused.add((path, size))
            except StorageError as error:
                _log.info("a footer cannot be read now", path=path, problem=str(error))
            return None

        with ThreadPoolExecutor(min(8, len(missing))) as pool:
            return [facts for facts in pool.map(read, missing) if facts is not None]


def narrowed(head: Head, part: Chosen, where: Expr, cache: FactsCache) -> NeededGroups:
    """The row groups that a condition needs of some entries. Entries that are certain are needed as
    a whole."""
    entries, count = part.entries, len(part.rows)
    open_ = np.flatnonzero(~part.certain)
    files = entries.take(part.rows[open_]).select(["path", "size"])
    known, at = cache.of(files, entries.rows[part.rows[open_]])
    there = open_[at != UNKNOWN]
    at = at[at != UNKNOWN]
    needed, certain = np.ones(count, bool), part.certain.copy()
    if known is None or not len(there):
        every = pa.nulls(count, GROUPS)
        return NeededGroups(needed, certain, every, 0, every, ~certain)
    facts = known.facts
    counts = facts.groups[at]
    schema = head.schema.without(head.metadata.partition_columns)
    by_id = column_mapping_mode(head.metadata.configuration) == "id"
    owner = np.repeat(np.arange(len(at)), counts)
    partitions = _partitions(head, part, where, there[owner])
    groups = facts.groups_of(at)
    found = known.narrow(where, schema, groups, by_id=by_id, known=partitions)
    found = known.narrow_by_filters(
        where, schema, found, cache.filters, by_id=by_id, known=partitions
    )
    may, must = found.may, found.must & found.may
    needed[there] = np.bincount(owner[may], minlength=len(at)) > 0
    certain[there] = np.bincount(owner[may & ~must], minlength=len(at)) == 0
    # Which rows of a row group a vector hides is in the vector.
    counted = must & (entries.dead[part.rows[there]] == 0)[owner]
    left = may & ~counted
    rest_of = np.bincount(owner[left], minlength=len(at)) > 0
    is_open = ~certain
    is_open[there] = rest_of
    local = groups - facts.first_group[at][owner]
    return NeededGroups(
        needed,
        certain,
        _lists(count, there, counts, owner, local, may),
        int(facts.group_rows[groups][counted].sum()),
        _lists(count, there, counts, owner, local, left),
        is_open,
    )


def _partitions(head: Head, part: Chosen, where: Expr, owners: IntArray) -> dict[str, EntryColumn]:
    """The partition columns of a condition, for each row group."""
    partitions = head.metadata.partition_columns
    found = {}
    for name, type_ in columns_of(where):
        if name in partitions:
            column = part.entries.column(name, type_, head.schema, partitions)
            if column is not None:
                found[name] = column.take(part.rows[owners])
    return found


def _lists(
    count: int, there: IntArray, counts: IntArray, owner: IntArray, local: IntArray,
    chosen: BoolArray,
) -> pa.Array:  # fmt: skip
    """The chosen row groups of each of `count` entries; null if they are all, or not known."""
    numbers = np.zeros(count, np.int64)
    numbers[there] = np.bincount(owner[chosen], minlength=len(there))
    whole = np.ones(count, bool)
    whole[there] = numbers[there] == counts
    # Values of lists that are null are left out, too.
    values = local[chosen & ~whole[there][owner]]
    lengths = np.where(whole, 0, numbers)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values.astype(np.int32)), mask=pa.array(whole)
    )
