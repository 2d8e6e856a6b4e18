"""Entries: logical files with the versions at which they came and went.

Pure. Entries never change, but for `died`: a version that removes one writes its
number there, which no reader of an earlier version sees. Statistics are decoded by column, when a
condition first names it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.delta.log.codec import decode_deletion_vector
from tandem.delta.log.files import FileKey
from tandem.delta.schema import StructType
from tandem.distinct import BoolArray, IntArray
from tandem.index.statistics import UNKNOWN, ColumnName, HeldStatistics
from tandem.pruning.bounds import ColumnBounds, HeldBounds, PartitionBounds
from tandem.pruning.predicate import FileBounds, columns_of, may_match, must_match, partition_bounds
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType
from tandem.timeline.names import SegmentNames, name_files
from tandem.timeline.segments import TAG_SEGMENT

ZONE = 1_024
"""Entries of a zone: neighbours whose bounds are looked at together first."""
_PIECE = 128 * ZONE
"""Entries that are looked at in one go: enough to outweigh what a condition costs apart from them,
and few enough to stop early where none is left."""
_SMALL = 1_024
"""So few entries are found by their paths in a dictionary."""
_GAP = 16
"""So many zones between two that may match are looked at, too, rather than in two goes."""

FOREVER = np.iinfo(np.int64).max
"""`died` of an entry that is live."""

UNKNOWN_ROWS = UNKNOWN

_HELD = (
    *("path", "partition_values", "size", "modified_ms", "tags", "deletion_vector"),
    *("base_row_id", "default_row_commit_version"),
)
"""What readers need of a file beside its statistics."""


class Entries:
    """Entries in the order of `files` (columns as `Snapshot.files`).

    Args:
        born: the version that added each entry, or one before which no version is asked for.
        died: the first version without it.
        statistics: those of `files`, if they are held already.
    """

    def __init__(
        self,
        files: pa.Table,
        born: IntArray,
        died: IntArray,
        statistics: HeldStatistics | None = None,
    ) -> None:
        # Of a column that has nothing, nothing is kept.
        there = [name for name in _HELD if name in files.column_names]
        held = [name for name in there if files[name].null_count < len(born)]
        self._files = files.select(held).combine_chunks()
        self.born, self.died = born, died
        if statistics is None:
            statistics = HeldStatistics(files["stats"].chunks)
        self.statistics = statistics
        self._last_born = int(born.max(initial=0))
        self._first_died = int(died.min(initial=FOREVER))
        self._removed = int((died != FOREVER).sum())
        self._columns: dict[ColumnName, _Known | None] = {}
        self._lock = threading.Lock()

    @classmethod
    def live_since(cls, files: pa.Table, version: int) -> Entries:
        """Entries that are live at a version, and were not asked for before it."""
        count = files.num_rows
        return cls(files, np.full(count, version), np.full(count, FOREVER))

    @classmethod
    def added(cls, adds: Sequence[AddFile], version: int) -> Entries:
        """The files that a version adds."""
        found = cls.live_since(files_.from_adds(adds), version)
        if len(adds) <= _SMALL:
            found._rows_by_path = _by_path([add.logged_path for add in adds])
        return found

    def __len__(self) -> int:
        return len(self.born)

    def _column(self, name: str) -> pa.ChunkedArray:
        if name in self._files.column_names:
            return self._files[name]
        return pa.chunked_array([pa.nulls(len(self), files_.SCHEMA.field(name).type)])

    @property
    def files(self) -> pa.Table:
        """The files, as in `Snapshot.files` but without statistics."""
        return _whole(self._files)

    def take(self, rows: IntArray) -> pa.Table:
        """Some of the files, as in `Snapshot.files` but without statistics."""
        return _whole(self._files.take(pa.array(rows)))

    def keep(self, keep: BoolArray) -> Entries:
        """The entries where `keep` is true."""
        files = self._files.filter(pa.array(keep))
        return Entries(files, self.born[keep], self.died[keep], self.statistics.keep(keep))

    @classmethod
    def together(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of all parts."""
        return cls(
            pa.concat_tables([entries._files for entries in parts], promote_options="default"),
            np.concatenate([entries.born for entries in parts]),
            np.concatenate([entries.died for entries in parts]),
            HeldStatistics.together([entries.statistics for entries in parts]),
        )

    def columns_at(self, rows: IntArray, names: Sequence[str]) -> pa.Table:
        """Some columns of some of the files, as in `Snapshot.files`."""
        wanted = pa.array(rows)
        return pa.table({name: self._column(name).take(wanted) for name in names})

    def paths_at(self, rows: IntArray) -> pa.ChunkedArray:
        """The logged paths of some of the files."""
        paths = self._column("path")
        return paths if len(rows) == len(self) else paths.take(pa.array(rows))

    def live(self, rows: IntArray) -> IntArray:
        """The live rows of some entries, `UNKNOWN_ROWS` if they are unknown."""
        physical = self.rows[rows]
        return np.where(physical == UNKNOWN_ROWS, UNKNOWN_ROWS, physical - self.dead[rows])

    @cached_property
    def rows(self) -> IntArray:
        """Physical rows of each file, `UNKNOWN_ROWS` if they are unknown, or fewer than are
        deleted."""
        found = self.statistics.rows
        wrong = found < self.dead
        return np.where(wrong, UNKNOWN_ROWS, found) if wrong.any() else found

    @cached_property
    def dead(self) -> IntArray:
        """Rows that each entry's deletion vector hides."""
        if "deletion_vector" not in self._files.column_names:
            return np.broadcast_to(np.int64(0), len(self))
        cardinality = pc.struct_field(self._files["deletion_vector"], "cardinality")
        dead: IntArray = pc.fill_null(cardinality, 0).to_numpy().astype(np.int64)
        return dead

    @cached_property
    def tight(self) -> BoolArray:
        """Whether the statistics of each file are those of its rows, and not merely bound them."""
        if not self.dead.any():
            return self.statistics.tight
        tight: BoolArray = self.statistics.tight & (self.dead == 0)
        return tight

    def mostly_gone(self, version: int) -> bool:
        """Whether half of them have died by a version."""
        # What was removed is counted, so that most commits look at none.
        return 2 * self._removed > len(self) and 2 * int((self.died <= version).sum()) > len(self)

    def first_removal(self, version: int) -> int:
        """The first version without one of the files of this one; `FOREVER` if there is none."""
        return int(self.died[self.visible(version)].min(initial=FOREVER))

    def visible(self, version: int) -> BoolArray:
        """Which entries a version has."""
        if self._has_all(version):
            return np.ones(len(self), bool)
        found: BoolArray = (self.born <= version) & (version < self.died)
        return found

    def remove(self, keys: set[FileKey], version: int) -> IntArray:
        """Note that a version removes entries; returns those that are here and were live, and takes
        their keys out of `keys`."""
        found: IntArray = self._with_paths(keys)
        found = found[self.died[found] == FOREVER]
        if not len(found):
            return found
        here = self._keys(found)
        removed: IntArray = found[np.array([key in keys for key in here])]
        keys.difference_update(here)
        if len(removed):
            self.died[removed] = version
            self._first_died = min(self._first_died, version)
            self._removed += len(removed)
        return removed

    def survivors(self, where: Expr | None, version: int, schema: StructType,
                  partition_columns: Iterable[str]) -> IntArray:  # fmt: skip
        """The entries of a version on whose rows a condition may be true, ascending."""
        if where is None:
            return np.flatnonzero(self.visible(version))
        columns = self._wanted(where, schema, partition_columns)
        found = [np.zeros(0, np.int64)]
        for start, stop in self._runs(where, columns):
            mask = may_match(where, self._part(columns, start, stop))
            if not self._has_all(version):
                mask &= self.born[start:stop] <= version
                mask &= self.died[start:stop] > version
            found.append(np.flatnonzero(mask) + start)
        return np.concatenate(found)

    def certain(self, where: Expr, rows: IntArray, schema: StructType,
                partition_columns: Iterable[str]) -> BoolArray:  # fmt: skip
        """For each of the entries, whether the condition is true on all its rows."""
        if not len(rows):
            return np.zeros(0, bool)
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
        codes, known = self.segments
        found: BoolArray = known.among(names)[codes]
        return found

    def segments_at(self, rows: IntArray) -> set[str]:
        """The names of the segments that some entries belong to."""
        codes, known = self.segments
        return set(known.take(np.unique(codes[rows])).to_pylist())

    def column(self, name: str, type_: SqlType, schema: StructType,
               partition_columns: Iterable[str]) -> HeldBounds | None:  # fmt: skip
        """A column's bounds; None if nothing is known of it."""
        known = self._known({name: type_}, schema, partition_columns).get(name)
        return None if known is None else known.column

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        made = [self.__dict__.get(name) for name in ("dead", "_empty")]
        by_path, segments = self.__dict__.get("_by_path", ()), self.__dict__.get("segments", ())
        # Of one value for all files, nothing is held.
        own = [each for each in made if each is not None and each.strides != (0,)]
        held = [self._files, self.statistics, self.born, self.died, *own, *by_path, *segments]
        known = [each for each in list(self._columns.values()) if each is not None]
        return sum(int(each.nbytes) for each in (*held, *known))

    # Internals

    def _wanted(
        self, where: Expr, schema: StructType, partition_columns: Iterable[str]
    ) -> Mapping[str, _Known]:
        found = self._known(dict(columns_of(where)), schema, partition_columns)
        return {name: known for name, known in found.items() if known is not None}

    def _known(
        self, wanted: Mapping[str, SqlType], schema: StructType, partition_columns: Iterable[str]
    ) -> Mapping[str, _Known | None]:
        """The columns, of which those that no condition has named yet are decoded together."""
        # By physical name: a renamed column is the same one.
        keys = {
            name: (field.physical_name, type_)
            for name, type_ in wanted.items()
            if (field := schema.get(name)) is not None
        }
        with self._lock:
            new = {name: wanted[name] for name, key in keys.items() if key not in self._columns}
            if new:
                values = self._column("partition_values")
                mine = partition_bounds(values, schema, partition_columns, new)
                others = {name: type_ for name, type_ in new.items() if name not in mine}
                stated = self.statistics.columns(others, schema, partition_columns)
                for name in new:
                    if name in mine:
                        known: HeldBounds | None = mine[name]
                    else:
                        known = stated[name]
                    found = None if known is None else _Known(known, self._zone_starts)
                    self._columns[keys[name]] = found
            return {name: self._columns[key] for name, key in keys.items()}

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
        breaks = np.flatnonzero(np.diff(chosen) > _GAP) + 1
        for run in np.split(chosen, breaks):
            yield from _pieces(int(run[0]) * ZONE, min((int(run[-1]) + 1) * ZONE, len(self)))

    def _part(self, columns: Mapping[str, _Known], start: int, stop: int) -> FileBounds:
        rows = slice(start, stop)
        parts = {name: known.column.take(rows) for name, known in columns.items()}
        return FileBounds(stop - start, parts, self._empty[rows])

    @cached_property
    def segments(self) -> tuple[IntArray, SegmentNames]:
        """For each entry the code of its segment, and the names of the codes."""
        tags = files_.tag(self.files, TAG_SEGMENT)
        codes, names, _ = name_files(tags, self._column("path").combine_chunks())
        return codes, names

    @cached_property
    def _empty(self) -> BoolArray:
        empty: BoolArray = self.rows == 0
        return empty

    @cached_property
    def _zone_starts(self) -> IntArray:
        return np.arange(0, len(self), ZONE)

    def _with_paths(self, keys: Collection[FileKey]) -> IntArray:
        """The entries at the paths of keys, and perhaps others."""
        if len(self) <= _SMALL:
            there = self._rows_by_path
            rows = [row for path in {path for path, _ in keys} for row in there.get(path, ())]
            return np.array(rows, np.int64)
        hashes, by_hash = self._by_path
        wanted = np.array(list({hash(path) for path, _ in keys}), np.int64)
        first = np.searchsorted(hashes, wanted, "left")
        last = np.searchsorted(hashes, wanted, "right")
        runs = [by_hash[first[at] : last[at]] for at in np.flatnonzero(last > first).tolist()]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    @cached_property
    def _rows_by_path(self) -> Mapping[str, Sequence[int]]:
        return _by_path(self._column("path").to_pylist())

    @cached_property
    def _by_path(self) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """Hashes of the logged paths, ascending, and the entry of each."""
        hashes = _hashes(self._column("path"))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order.astype(np.int32)

    def _keys(self, rows: IntArray) -> list[FileKey]:
        found = self._column("path").take(pa.array(rows)).to_pylist()
        if "deletion_vector" not in self._files.column_names:
            return [(path, None) for path in found]
        vectors = self.columns_at(rows, ("deletion_vector",))["deletion_vector"].to_pylist()
        return [
            (path, decode_deletion_vector(vector).unique_id if vector else None)
            for path, vector in zip(found, vectors, strict=True)
        ]

    def _has_all(self, version: int) -> bool:
        return self._last_born <= version < self._first_died


def exact_sum(numbers: IntArray) -> int:
    """The sum of numbers of rows, also if 64 bits do not hold it."""
    if len(numbers) and int(numbers.max()) > FOREVER // len(numbers):
        return sum(numbers.tolist())
    return int(numbers.sum())


class _Known:
    """A column with the bounds of its zones."""

    def __init__(self, column: HeldBounds, starts: IntArray) -> None:
        self.column = column
        self.zones = column.zones(starts) if len(starts) > 1 else None

    @property
    def nbytes(self) -> int:
        # A column by statistics is held there.
        own = self.column.nbytes if isinstance(self.column, PartitionBounds) else 0
        return own + (0 if self.zones is None else self.zones.nbytes)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, _PIECE):
        yield at, min(at + _PIECE, stop)


def _by_path(paths: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row, path in enumerate(paths):
        found.setdefault(path, []).append(row)
    return found


def _hashes(paths: pa.ChunkedArray) -> IntArray:
    return np.fromiter(map(hash, paths.to_pylist()), np.int64, len(paths))


def _whole(files: pa.Table) -> pa.Table:
    """With the columns that are not held."""
    count = len(files)
    columns = [
        files[field.name] if field.name in files.column_names else _nothing(count, field.type)
        for field in files_.SCHEMA
    ]
    return pa.table(columns, schema=files_.SCHEMA)


def _nothing(count: int, type_: pa.DataType) -> pa.Array:
    if count > _SMALL:
        return pa.nulls(count, type_)
    return _nulls(type_).slice(0, count)


@cache
def _nulls(type_: pa.DataType) -> pa.Array:
    return pa.nulls(_SMALL, type_)
