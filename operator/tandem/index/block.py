"""A block of entries: logical files with the versions at which they came and went.

Pure. The entries of a block never change, but for `died`: a version that removes one writes its
number there, which no reader of an earlier version sees. Statistics are decoded by column, when a
condition first names it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.delta.log.replay import FileKey
from tandem.delta.schema import StructType
from tandem.distinct import BoolArray, IntArray
from tandem.index.columns import EntryColumn, entry_column
from tandem.pruning.bounds import ColumnBounds
from tandem.pruning.files import FileBounds, bounds_of
from tandem.pruning.predicate import columns_of, may_match, must_match
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType
from tandem.timeline.name_columns import SegmentNames, name_files
from tandem.timeline.segments import TAG_SEGMENT

ZONE = 1_024
"""Entries of a zone: neighbours whose bounds are looked at together first."""
_PIECE = 32 * ZONE
"""Entries that are looked at in one go: their columns stay in the processor's cache."""

FOREVER = np.iinfo(np.int64).max
"""`died` of an entry that is live."""

UNKNOWN_ROWS = -1


class Block:
    """Entries in the order of `files` (columns as `Snapshot.files`).

    Args:
        born: the version that added each entry, or one before which no version is asked for.
        died: the first version without it.
    """

    def __init__(self, files: pa.Table, born: IntArray, died: IntArray) -> None:
        self.files = files.combine_chunks()
        self.born, self.died = born, died
        self._columns: dict[tuple[str, SqlType], _Known | None] = {}
        self._lock = threading.Lock()

    @classmethod
    def live_since(cls, files: pa.Table, version: int) -> Block:
        """Entries that are live at a version, and were not asked for before it."""
        count = files.num_rows
        return cls(files, np.full(count, version), np.full(count, FOREVER))

    def __len__(self) -> int:
        return len(self.born)

    @cached_property
    def rows(self) -> IntArray:
        """Physical rows of each file, `UNKNOWN_ROWS` if they are unknown, or fewer than are
        deleted."""
        found = pc.fill_null(stats_.num_records(self.files["stats"]), UNKNOWN_ROWS)
        rows: IntArray = found.to_numpy().astype(np.int64)
        rows[rows < self.dead] = UNKNOWN_ROWS
        return rows

    @cached_property
    def dead(self) -> IntArray:
        """Rows that each entry's deletion vector hides."""
        cardinality = pc.struct_field(self.files["deletion_vector"], "cardinality")
        dead: IntArray = pc.fill_null(cardinality, 0).to_numpy().astype(np.int64)
        return dead

    @cached_property
    def tight(self) -> BoolArray:
        """Whether the statistics of each file are those of its rows, and not merely bound them."""
        wanted = pa.schema([("tightBounds", pa.bool_())])
        found = stats_.read(self.files["stats"], wanted)["tightBounds"]
        tight: BoolArray = pc.fill_null(found, True).to_numpy().astype(bool)
        return tight & (self.dead == 0)

    def visible(self, version: int) -> BoolArray:
        """Which entries a version has."""
        found: BoolArray = (self.born <= version) & (version < self.died)
        return found

    def remove(self, keys: Iterable[FileKey], version: int) -> set[FileKey]:
        """Note that a version removes these entries; returns those that are here and live."""
        found: set[FileKey] = set()
        for key in keys:
            for row in self._rows_of(key):
                if self.died[row] == FOREVER:
                    self.died[row] = version
                    found.add(key)
        return found

    def survivors(self, where: Expr | None, version: int, schema: StructType,
                  partition_columns: Iterable[str]) -> IntArray:  # fmt: skip
        """The entries of a version on whose rows a condition may be true, ascending."""
        if where is None:
            return np.flatnonzero(self.visible(version))
        columns = self._wanted(where, schema, partition_columns)
        found = [np.zeros(0, np.int64)]
        for start, stop in self._runs(where, columns):
            mask = may_match(where, self._part(columns, start, stop))
            mask &= self.born[start:stop] <= version
            mask &= self.died[start:stop] > version
            found.append(np.flatnonzero(mask) + start)
        return np.concatenate(found)

    def certain(self, where: Expr, rows: IntArray, schema: StructType,
                partition_columns: Iterable[str]) -> BoolArray:  # fmt: skip
        """For each of the entries, whether the condition is true on all its rows."""
        columns = self._wanted(where, schema, partition_columns)
        found = [np.zeros(0, bool)]
        for start in range(0, len(rows), _PIECE):
            chosen = rows[start : start + _PIECE]
            taken = {name: known.column.take(chosen) for name, known in columns.items()}
            bounds = FileBounds(len(chosen), taken, self.rows[chosen] == 0)
            found.append(must_match(where, bounds))
        return np.concatenate(found)

    def of_segments(self, names: Collection[str]) -> BoolArray:
        """Which entries belong to segments of these names."""
        codes, known = self._segments
        found: BoolArray = known.among(names)[codes]
        return found

    def segments_at(self, rows: IntArray) -> set[str]:
        """The names of the segments that some entries belong to."""
        codes, known = self._segments
        return set(known.take(np.unique(codes[rows])).to_pylist())

    def column(self, name: str, type_: SqlType, schema: StructType,
               partition_columns: Iterable[str]) -> EntryColumn | None:  # fmt: skip
        """A column's bounds; None if nothing is known of it."""
        known = self._known(name, type_, schema, partition_columns)
        return None if known is None else known.column

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        arrays = (self.__dict__.get(name) for name in ("rows", "dead", "tight"))
        total = int(self.born.nbytes + self.died.nbytes + self.files.nbytes)
        total += sum(array.nbytes for array in arrays if array is not None)
        return total + sum(k.nbytes for k in list(self._columns.values()) if k is not None)

    # Internals

    def _wanted(
        self, where: Expr, schema: StructType, partition_columns: Iterable[str]
    ) -> Mapping[str, _Known]:
        found = {}
        for name, type_ in columns_of(where):
            known = self._known(name, type_, schema, partition_columns)
            if known is not None:
                found[name] = known
        return found

    def _known(
        self, name: str, type_: SqlType, schema: StructType, partition_columns: Iterable[str]
    ) -> _Known | None:
        field = schema.get(name)
        if field is None:
            return None
        # By physical name: a renamed column is the same one.
        key = (field.physical_name, type_)
        with self._lock:
            if key not in self._columns:
                bounds = bounds_of(self.files, schema, partition_columns, {name: type_})
                self._columns[key] = _known_of(bounds.columns.get(name), self._zone_starts)
            return self._columns[key]

    def _runs(self, where: Expr, columns: Mapping[str, _Known]) -> Iterator[tuple[int, int]]:
        """Consecutive entries whose zones may match, a piece at a time."""
        starts = self._zone_starts
        if not len(starts):
            return
        coarse: dict[str, ColumnBounds] = {
            name: known.zones for name, known in columns.items() if known.zones is not None
        }
        if not coarse:
            yield from _pieces(0, len(self))
            return
        empty = np.zeros(len(starts), bool)
        chosen = np.flatnonzero(may_match(where, FileBounds(len(starts), coarse, empty)))
        if not len(chosen):
            return
        breaks = np.flatnonzero(np.diff(chosen) > 1) + 1
        for run in np.split(chosen, breaks):
            yield from _pieces(int(run[0]) * ZONE, min((int(run[-1]) + 1) * ZONE, len(self)))

    def _part(self, columns: Mapping[str, _Known], start: int, stop: int) -> FileBounds:
        parts = {name: known.column.part(start, stop) for name, known in columns.items()}
        return FileBounds(stop - start, parts, self._empty[start:stop])

    @cached_property
    def _segments(self) -> tuple[IntArray, SegmentNames]:
        tags = files_.tag(self.files, TAG_SEGMENT)
        codes, names, _ = name_files(tags, self.files["path"].combine_chunks())
        return codes, names

    @cached_property
    def _empty(self) -> BoolArray:
        empty: BoolArray = self.rows == 0
        return empty

    @cached_property
    def _zone_starts(self) -> IntArray:
        return np.arange(0, len(self), ZONE)

    @cached_property
    def _by_path(self) -> tuple[IntArray, IntArray]:
        """Hashes of the logged paths, ascending, and the entry of each."""
        hashes = _hashes(self.files["path"])
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def _rows_of(self, key: FileKey) -> Iterator[int]:
        hashes, rows = self._by_path
        wanted = hash(key[0])
        first, last = (
            np.searchsorted(hashes, wanted, "left"),
            np.searchsorted(hashes, wanted, "right"),
        )
        for row in rows[first:last]:
            add = self._add(int(row))
            if add.key == key:
                yield int(row)

    def _add(self, row: int) -> AddFile:
        return next(iter(files_.to_adds(self.files.slice(row, 1))))


class _Known:
    """A column with the bounds of its zones."""

    def __init__(self, column: EntryColumn, starts: IntArray) -> None:
        self.column = column
        self.zones = column.zones(starts) if len(starts) > 1 else None

    @property
    def nbytes(self) -> int:
        return self.column.nbytes + (0 if self.zones is None else self.zones.nbytes)


def _known_of(bounds: ColumnBounds | None, starts: IntArray) -> _Known | None:
    return None if bounds is None else _Known(entry_column(bounds), starts)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, _PIECE):
        yield at, min(at + _PIECE, stop)


def _hashes(paths: pa.ChunkedArray) -> IntArray:
    return np.fromiter(map(hash, paths.to_pylist()), np.int64, len(paths))
