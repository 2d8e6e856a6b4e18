"""The rows of a table's files that are in the scope of a replace.

Statistics and partition values decide most files; of the others the times are read, once: a file
never changes. Must not know what becomes of these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.partitions import NULL_PARTITION, to_scalar
from tandem.delta.scan import table_format
from tandem.delta.schema import PrimitiveType
from tandem.delta.stats import num_records_of
from tandem.errors import CorruptLog, CountMismatch, InvalidSpec
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.jobs.formats import RowScope
from tandem.operations.kinds.time_column import time_column
from tandem.operations.model import OutputFileChange
from tandem.pruning.scope import Coverage, TimeScope, Values, parts_in_scope, timed_bounds
from tandem.rowmap.run_table import to_array, to_bitmap
from tandem.spec.fields import Granularity
from tandem.spec.table import LakeTable
from tandem.storage.store import Store
from tandem.timeline.chunks import (
    TAG_MASKED,
    TimeColumn,
    format_masked,
    parse_any_interval,
    parse_masked,
)
from tandem.timeline.file_columns import NO_NUMBER, chunk_numbers, row_chunk_numbers, rows_within

MOST_NUMBERS = 16 << 20
"""Rows whose chunks are kept in memory, with four bytes each."""


def files_in_scope(
    files: pa.Table, time: TimeScope | None, partitions: Sequence[Values]
) -> dict[str, Coverage]:
    """Those of the files (as `Snapshot.files`) that have rows in scope, or may have some: logged
    path → how much of it is."""
    found = parts_in_scope(files, time, partitions)
    chosen = np.flatnonzero(found)
    paths = files["path"].take(pa.array(chosen)).to_pylist()
    return dict(zip(paths, map(Coverage, found[chosen].tolist()), strict=True))


class ScopedRows:
    """Reads which rows of files are in scope, and in which chunks they are. Not thread-safe.

    Args:
        time: None if all rows are in scope.
        rows: by path the rows in scope that are known already; those that are read are added.
        granularity: of the chunks; None if they do not matter.
    """

    def __init__(
        self,
        store: Store,
        time_name: str,
        time: TimeScope | None,
        rows: dict[str, BitMap64],
        granularity: Granularity | None = None,
    ) -> None:
        self._store = store
        self._time_name, self._time, self._granularity = time_name, time, granularity
        self._rows = rows
        self._numbers: dict[str, npt.NDArray[np.int32]] = {}
        self._numbered = 0

    def read(self, snapshot: Snapshot, adds: Iterable[AddFile]) -> None:
        """Read the times of these files. Raises: DataFileMissing, CountMismatch, StorageError."""
        assert self._time is not None
        table = table_format(snapshot)
        for add in adds:
            if add.logged_path not in self._rows:
                rows = self._read(table, add, self._time.intervals)
                assert rows is not None
                self._rows[add.logged_path] = rows

    def numbers(self, snapshot: Snapshot, add: AddFile) -> npt.NDArray[np.int32] | None:
        """The numbers of the chunks (`row_chunk_numbers`) of all rows of a file, live or not. Reads
        the file if that has not been done; None if there are too many rows, or a job has read it.
        Raises: DataFileMissing, CountMismatch, StorageError."""
        if add.logged_path not in self._numbers and add.logged_path not in self._rows:
            self._read(table_format(snapshot), add, None)
        return self._numbers.get(add.logged_path)

    def _read(
        self, table: TableFormat, add: AddFile, intervals: IntervalSet | None
    ) -> BitMap64 | None:
        """The rows in these intervals, if any are given; notes the chunks of all rows, unless these
        are too many."""
        chosen: list[npt.NDArray[np.int64]] = []
        numbers: list[npt.NDArray[np.int32]] = []
        start = 0
        with DataFileReader(
            self._store,
            add.path,
            table,
            partition_values=add.partition_values,
            columns=[self._time_name],
        ) as reader:
            _require_rows(add, reader.num_rows)
            granularity = self._granularity
            if granularity is not None and self._numbered + reader.num_rows > MOST_NUMBERS:
                granularity = None
            if granularity is None and intervals is None:
                return None
            for batch in reader.batches():
                times = batch.column(0)
                if intervals is not None:
                    chosen.append(np.flatnonzero(rows_within(times, intervals)) + start)
                if granularity is not None:
                    numbers.append(row_chunk_numbers(times, granularity))
                start += batch.num_rows
        if granularity is not None:
            self._numbers[add.logged_path] = np.concatenate([*numbers, np.empty(0, np.int32)])
            self._numbered += start
        return to_bitmap(np.concatenate(chosen)) if chosen else BitMap64()


def _require_rows(add: AddFile, found: int) -> None:
    """Check the number of a file's rows: whether all of them go is decided by that in the log.

    Raises: CountMismatch.
    """
    logged = num_records_of(add.stats)
    if logged not in (None, found):
        raise CountMismatch(
            "a data file has another number of rows than the log says",
            resource=add.path,
            found=f"{found} rows",
            expected=f"{logged} rows",
            remedy="Nothing was published; find out which writer logged this file",
        )


def with_mask(file: OutputFileChange, intervals: IntervalSet) -> OutputFileChange:
    """A file of which all rows in these intervals are deleted, with the hint that says so (D58)."""
    if ALWAYS in intervals.pieces:
        return file  # rows of segments or partitions: the hint is about times
    add, vector = file.add, file.add.deletion_vector
    known = parse_masked(add.tags.get(TAG_MASKED, ""), vector.cardinality if vector else 0)
    text = format_masked(known | intervals, len(file.dead or ()))
    return OutputFileChange(add, file.rows, file.dead, {**add.tags, TAG_MASKED: text})


def intervals_of(texts: Sequence[str], *, resource: str) -> IntervalSet:
    """The intervals that a spec names. Raises: InvalidSpec."""
    found: list[TimeInterval] = []
    for at, text in enumerate(texts):
        interval = parse_any_interval(text)
        if interval is None:
            raise InvalidSpec(
                "this is not an interval of time",
                resource=resource,
                field=f"spec.replace.intervals[{at}]",
                found=text,
                expected="2013, 2013-Q1, 2013-04, 2013-W05, 2013-04-01, 2013-04-01T05, all, or "
                "start/end with the end after the start, both at whole milliseconds in the years 1 "
                "to 9999",
                remedy="Write start/end as in 2013-03-02/2013-03-05T06:00:00Z",
            )
        found.append(interval)
    return IntervalSet(found)


def time_scope(
    lake: LakeTable | None, snapshot: Snapshot, intervals: IntervalSet, *, resource: str
) -> TimeScope | None:
    """Where the times of rows are; None if the intervals are `all`. Raises: InvalidSpec."""
    if ALWAYS in intervals.pieces:
        return None
    column = time_column(lake, snapshot)
    if column is None:
        raise InvalidSpec(
            "intervals need the table's time column",
            resource=resource,
            field="spec.replace.intervals",
            found=str(intervals),
            expected="a LakeTable with spec.time",
            remedy="Set spec.time of the LakeTable, or replace partitions or segments",
        )
    return TimeScope(intervals, column.path, column.type, column.partition)


def partitions_of(
    wanted: Sequence[Mapping[str, str]], snapshot: Snapshot, *, resource: str
) -> tuple[Values, ...]:
    """The partitions that a spec names, by physical name of their columns. Raises: InvalidSpec."""
    names = {name.lower(): name for name in snapshot.partition_columns}
    found: list[Values] = []
    for at, partition in enumerate(wanted):
        values: dict[str, tuple[PrimitiveType, str | None]] = {}
        for column, text in partition.items():
            field = f"spec.replace.partitions[{at}].{column}"
            name = names.get(column.lower())
            if name is None:
                raise InvalidSpec(
                    "the table is not partitioned by this column",
                    resource=resource,
                    field=field,
                    found=column,
                    expected=", ".join(snapshot.partition_columns) or "a partitioned table",
                    remedy="Name partition columns; replace intervals by the time column",
                )
            of_table = snapshot.schema[name]
            if of_table.physical_name in values:
                raise InvalidSpec(
                    "the partition names a column twice",
                    resource=resource,
                    field=field,
                    found=", ".join(each for each in partition if each.lower() == name.lower()),
                    expected=f"one value of {name}",
                    remedy="Name each column once, or write a partition for each value",
                )
            assert isinstance(of_table.type, PrimitiveType)
            try:
                to_scalar(None if text == NULL_PARTITION else text, of_table.type)
            except CorruptLog:
                raise InvalidSpec(
                    "the value has not the type of the partition column",
                    resource=resource,
                    field=field,
                    found=text,
                    expected=f"a value of type {of_table.type.name}",
                    remedy="Write the value as the log of the table does",
                ) from None
            values[of_table.physical_name] = (
                of_table.type,
                None if text == NULL_PARTITION else text,
            )
        found.append(values)
    return tuple(found)


def scope_of_job(
    time_name: str, intervals: IntervalSet, partitions: Sequence[Mapping[str, str]]
) -> RowScope:
    """The scope as a job checks it on the rows of a source."""
    pieces = () if ALWAYS in intervals.pieces else intervals.pieces
    return RowScope(
        time_column=time_name if pieces else "",
        intervals=tuple((piece.start_ms, piece.end_ms) for piece in pieces),
        partitions=tuple(
            {column: None if text == NULL_PARTITION else text for column, text in partition.items()}
            for partition in partitions
        ),
    )


# How many chunks of a table's time a replace leaves empty.
#
# A chunk is left empty if a row in scope is removed from it, and none is there afterwards: neither
# one that stays nor one of the source. Statistics decide where a file lies within one chunk; the
# times of others are read, if the answer depends on them. Must not know why a row is removed.


Hull = tuple[int, int]
"""The numbers of the first and the last chunk that a file may have rows in."""


class TooManyRows(Exception):
    """The answer takes more rows than are read for it."""


class EmptyChunks:
    """Counts them, in every round of an operation. Not thread-safe."""

    def __init__(self, rows: ScopedRows, time: TimeColumn) -> None:
        self._rows, self._time = rows, time
        self._hulls: dict[str, Hull | None] = {}
        self._occupied: dict[str, tuple[BitMap64 | None, frozenset[int]]] = {}

    def count(
        self,
        snapshot: Snapshot,
        removed: Mapping[str, BitMap64],
        kept: Mapping[str, BitMap64],
        outputs: Iterable[AddFile],
    ) -> int | None:
        """The number of chunks that are left empty, None if it is too much to read.

        Args:
            removed: the rows in scope that go, by file of the snapshot.
            kept: those that stay.
            outputs: files that the commit adds, all of whose rows are in scope.

        Raises: DataFileMissing, StorageError.
        """
        new = {add.logged_path: add for add in outputs}
        live = files_.with_paths(snapshot.files, {*removed, *kept} - self._hulls.keys())
        for table in (live, files_.from_adds([a for p, a in new.items() if p not in self._hulls])):
            if table.num_rows:
                self._hulls.update(self._hulls_of(table))
        stays: dict[str, BitMap64 | None] = {**kept, **dict.fromkeys(new)}
        try:
            return len(self._empty(snapshot, removed, stays, new))
        except TooManyRows:
            return None

    def _empty(
        self,
        snapshot: Snapshot,
        removed: Mapping[str, BitMap64],
        stays: Mapping[str, BitMap64 | None],
        new: Mapping[str, AddFile],
    ) -> set[int]:
        """Raises: TooManyRows, DataFileMissing, StorageError."""
        filled = {hull[0] for path in stays if (hull := self._one_chunk(path))}
        empty = {hull[0] for path in removed if (hull := self._one_chunk(path))}
        for path, gone in removed.items():
            if not self._one_chunk(path) and not _covers(filled, self._hulls[path]):
                empty |= self._chunks(snapshot, path, gone, new)
        empty -= filled
        for path, rows in stays.items():
            if not empty:
                break
            if not self._one_chunk(path) and _meets(empty, self._hulls[path]):
                empty -= self._chunks(snapshot, path, rows, new)
        return empty

    def _one_chunk(self, path: str) -> Hull | None:
        hull = self._hulls[path]
        return hull if hull is not None and hull[0] == hull[1] else None

    def _chunks(
        self,
        snapshot: Snapshot,
        path: str,
        rows: BitMap64 | None,
        new: Mapping[str, AddFile],
    ) -> frozenset[int]:
        """The chunks of rows of a file; None: of all. Raises as `_empty`."""
        known = self._occupied.get(path)
        if known is not None and known[0] == rows:
            return known[1]
        add = new[path] if path in new else snapshot.files_by_path([path])[path]
        numbers = self._rows.numbers(snapshot, add)
        if numbers is None:
            raise TooManyRows
        found = np.unique(numbers if rows is None else numbers[to_array(rows)]).tolist()
        chunks = frozenset(found) - {NO_NUMBER}
        self._occupied[path] = rows, chunks
        return chunks

    def _hulls_of(self, files: pa.Table) -> Mapping[str, Hull | None]:
        """None: a row may have no time, or a time that is unknown."""
        time = self._time
        low, high, timed = timed_bounds(files, time.path, time.type, partition=time.partition)
        known = np.asarray(pc.fill_null(pc.less_equal(low, high), False))
        first, last = (
            chunk_numbers(np.asarray(pc.fill_null(each, 0)), time.granularity).tolist()
            for each in (low, high)
        )
        found = zip(files["path"].to_pylist(), (known & timed).tolist(), first, last, strict=True)
        return {path: (one, other) if is_timed else None for path, is_timed, one, other in found}


def _covers(chunks: set[int], hull: Hull | None) -> bool:
    """Whether these are all chunks of a hull."""
    if hull is None or hull[1] - hull[0] >= len(chunks):
        return False
    return all(number in chunks for number in range(hull[0], hull[1] + 1))


def _meets(chunks: set[int], hull: Hull | None) -> bool:
    return hull is None or any(hull[0] <= number <= hull[1] for number in chunks)
