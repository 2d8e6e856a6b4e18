"""Which files have rows in some intervals and partitions: all of their rows, none, or perhaps some.

Strict: a file counts as a whole only if it is known that each row has a time, and that each time
lies in the intervals. Statistics cut times to milliseconds, so a file's last time lies before the
millisecond that follows its greatest one.

Times of many files as columns: texts of statistics and partition values as microseconds since
1970 in UTC. A text that is not a date or timestamp is null.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import PrimitiveType
from tandem.distinct import BoolArray, IntArray
from tandem.errors import CorruptLog
from tandem.intervals import ALWAYS, IntervalSet

# Partition values of many files, by column.


MISSING = -1


def partition_codes(
    column: pa.ChunkedArray, physical: str
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """A partition column as codes and distinct texts; `MISSING` if a file does not have it."""
    codes = np.full(len(column), MISSING, np.int64)
    found: list[Any] = []
    start = 0
    for chunk in column.chunks:
        at = np.flatnonzero(pc.equal(chunk.keys, physical).to_numpy(zero_copy_only=False))
        row = np.searchsorted(chunk.offsets.to_numpy(), at, side="right") - 1
        mine = (row >= 0) & (row < len(chunk))
        found.append((row[mine] + start, chunk.items.take(pa.array(at[mine]))))
        start += len(chunk)
    if not found:
        return codes, []
    texts = pa.concat_arrays([items for _, items in found]).dictionary_encode("encode")
    codes[np.concatenate([rows for rows, _ in found])] = texts.indices.to_numpy()
    return codes, texts.dictionary.to_pylist()


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY = 86_400_000_000


def micros(moment: dt.datetime | dt.date) -> int:
    """A moment, or the start of a day, in microseconds since 1970; in UTC if it has no zone."""
    if not isinstance(moment, dt.datetime):
        moment = dt.datetime.combine(moment, dt.time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND


FIRST = micros(dt.datetime.min.replace(tzinfo=dt.UTC))
LAST = micros(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The end of Python's calendar: later times are unknown."""


def moments(texts: pa.Array, type_: str) -> pa.Array:
    """The texts in statistics of a column of `type_` (date, timestamp or timestamp_ntz) as int64.

    A timestamp without a zone is in UTC. One with a zone other than UTC is not a timestamp_ntz.
    """
    found = _read(texts, type_)
    within = pc.and_(pc.greater_equal(found, FIRST), pc.less_equal(found, LAST))
    return pc.if_else(within, found, pa.scalar(None, pa.int64()))


def _read(texts: pa.Array, type_: str) -> pa.Array:
    for form in _FORMS[type_]:
        try:
            return texts.cast(form).cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    distinct = texts.dictionary_encode()
    values = [_moment(text, type_) for text in distinct.dictionary.to_pylist()]
    return pa.array(values, pa.int64()).take(distinct.indices)


_FORMS = {
    "date": (pa.date32(),),
    "timestamp": (pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
    "timestamp_ntz": (pa.timestamp("us"),),
}


def time_bounds(
    files: pa.Table, path: Sequence[str], type_: str, *, partition: bool
) -> tuple[pa.Array, pa.Array]:
    """The least and the greatest time in each file as logged, possibly truncated to milliseconds.

    Args:
        path: the column's physical name, one part per level of nesting.
        type_: its type: date, timestamp or timestamp_ntz.
        partition: whether it is a partition column.
    """
    if partition:
        codes, texts = partition_codes(files["partition_values"], path[0])
        values = [_partition_moment(text, PrimitiveType(type_)) for text in texts]
        # Code -1, of files without the value, is the null at the end.
        times = pa.array([*values, None], pa.int64()).take(pa.array(codes % (len(values) + 1)))
        return times, times
    return bounds_in(stats_.read(files["stats"], bounds_schema(path)), path, type_)


def bounds_schema(path: Sequence[str]) -> pa.Schema:
    """The statistics that `bounds_in` needs, for `delta.stats.read`."""
    field = pa.field(path[-1], pa.string())
    for part in reversed(path[:-1]):
        field = pa.field(part, pa.struct([field]))
    bounds = pa.struct([field])
    return pa.schema([("minValues", bounds), ("maxValues", bounds)])


def bounds_in(statistics: pa.Table, path: Sequence[str], type_: str) -> tuple[pa.Array, pa.Array]:
    """As `time_bounds`, from statistics that have been read."""
    # By index: Arrow parses a name that begins with a dot as a path.
    low, high = (
        pc.struct_field(statistics[name].combine_chunks(), [0] * len(path))
        for name in ("minValues", "maxValues")
    )
    return moments(low, type_), moments(high, type_)


def _partition_moment(text: str | None, type_: PrimitiveType) -> int | None:
    try:
        value = to_scalar(text, type_)
    except (CorruptLog, ValueError, OverflowError):
        return None
    if not value.is_valid:
        return None
    found = int(value.value) * (_DAY if type_.name == "date" else 1)
    return found if FIRST <= found <= LAST else None


def _moment(text: str | None, type_: str) -> int | None:
    """One text, parsed as ISO 8601 by Python, which accepts more forms than Arrow."""
    if text is None:
        return None
    try:
        if type_ == "date":
            return micros(dt.date.fromisoformat(text))
        moment = dt.datetime.fromisoformat(text)
        return None if type_ == "timestamp_ntz" and moment.utcoffset() else micros(moment)
    except (ValueError, OverflowError):
        return None


Values = Mapping[str, tuple[PrimitiveType, str | None]]
"""A partition: physical name of a column → its type, and the value as text."""


class Coverage(IntEnum):
    """How many rows of a file are in scope."""

    NONE = 0
    SOME = 1
    """Perhaps none or all: its times have to be read."""
    ALL = 2


@dataclass(frozen=True, slots=True)
class TimeScope:
    """Intervals of a column: `path`, `type` and `partition` as in `scope.time_bounds`."""

    intervals: IntervalSet
    path: tuple[str, ...]
    type: str
    partition: bool = False


def parts_in_scope(
    files: pa.Table, time: TimeScope | None, partitions: Sequence[Values] = ()
) -> npt.NDArray[np.int8]:
    """A `Coverage` for each row of `files` (as `Snapshot.files`).

    Args:
        time: None for any time, and for none.
        partitions: rows of one of them; empty for all.
    """
    found = np.full(files.num_rows, Coverage.ALL, np.int8)
    if partitions:
        found[~_of_partitions(files, partitions)] = Coverage.NONE
    if time is not None and ALWAYS not in time.intervals.pieces:
        found = np.minimum(found, _of_times(files, time))
    return found


def _of_partitions(files: pa.Table, partitions: Sequence[Values]) -> BoolArray:
    found = np.zeros(files.num_rows, bool)
    columns: dict[str, _PartitionColumn] = {}
    for partition in partitions:
        all_of_it = np.ones(files.num_rows, bool)
        for name, (type_, text) in partition.items():
            if name not in columns:
                columns[name] = _PartitionColumn(files, name, type_)
            all_of_it &= columns[name].has(text)
        found |= all_of_it
    return found


class _PartitionColumn:
    """A partition column, read once for all partitions that are looked for."""

    def __init__(self, files: pa.Table, physical: str, type_: PrimitiveType) -> None:
        self._type = type_
        self._codes, texts = partition_codes(files["partition_values"], physical)
        self._found: dict[object, list[int]] = {None: [MISSING]}
        for code, text in enumerate(texts):
            try:
                self._found.setdefault(_value(text, type_), []).append(code)
            except (CorruptLog, ValueError, OverflowError):
                continue

    def has(self, text: str | None) -> BoolArray:
        """Which files have this value. Raises: CorruptLog if it is none of the type."""
        found: BoolArray = np.isin(self._codes, self._found.get(_value(text, self._type), []))
        return found


def _value(text: str | None, type_: PrimitiveType) -> object:
    """Equal for the texts that are equal to Spark, which compares the rows of a source: NaN is one
    value, and so are both zeros."""
    value = to_scalar(text, type_)
    if pa.types.is_temporal(value.type):
        return value.value  # Python's calendar may end before it
    found = value.as_py()
    return "NaN" if isinstance(found, float) and math.isnan(found) else found


def _of_times(files: pa.Table, time: TimeScope) -> npt.NDArray[np.int8]:
    low, high, timed = timed_bounds(files, time.path, time.type, partition=time.partition)
    known = np.asarray(pc.and_(pc.is_valid(low), pc.is_valid(high)))
    first = np.asarray(pc.fill_null(low, 0)) // 1_000
    end = np.asarray(pc.fill_null(high, 0)) // 1_000 + 1
    found = np.full(files.num_rows, Coverage.SOME if time.intervals else Coverage.NONE, np.int8)
    found[known & ~_met(time.intervals, first, end)] = Coverage.NONE
    inside = known & covered(time.intervals, first, end)
    found[inside & timed] = Coverage.ALL
    if time.partition:
        # A row without a time is in no interval.
        codes, texts = partition_codes(files["partition_values"], time.path[0])
        empty = np.array([*(not text for text in texts), True])[codes]
        found[empty] = Coverage.NONE
    return found


def covered(intervals: IntervalSet, starts: IntArray, ends: IntArray) -> BoolArray:
    """Which of the spans `[start, end)`, in milliseconds, lie in one piece each."""
    piece_starts, piece_ends = _borders(intervals)
    # Of the last piece that starts no later.
    before = np.searchsorted(piece_starts, starts, "right") - 1
    return (before >= 0) & (ends <= np.append(piece_ends, 0)[before])


def _met(intervals: IntervalSet, starts: IntArray, ends: IntArray) -> BoolArray:
    """Which of the spans have a moment in common with a piece."""
    piece_starts, piece_ends = _borders(intervals)
    # Of the first piece that ends later.
    after = np.searchsorted(piece_ends, starts, "right")
    return (after < len(intervals)) & (np.append(piece_starts, 0)[after] < ends)


def _borders(intervals: IntervalSet) -> tuple[IntArray, IntArray]:
    starts = np.array([piece.start_ms for piece in intervals], np.int64)
    return starts, np.array([piece.end_ms for piece in intervals], np.int64)


def all_null(files: pa.Table, path: Sequence[str]) -> BoolArray:
    """Which files are known to have no value in any row of a column that is not a partition
    column."""
    counts = _null_counts(stats_.read(files["stats"], _counts_schema(path)), path)
    rows = stats_.num_records(files["stats"]).combine_chunks()
    return np.asarray(pc.fill_null(pc.equal(counts, rows), False)).astype(bool)


def timed_bounds(
    files: pa.Table, path: Sequence[str], type_: str, *, partition: bool
) -> tuple[pa.Array, pa.Array, BoolArray]:
    """As `scope.time_bounds`, and which files have a time in each row."""
    if partition:
        low, high = time_bounds(files, path, type_, partition=True)
        return low, high, np.ones(files.num_rows, bool)
    wanted = pa.schema([*bounds_schema(path), *_counts_schema(path)])
    found = stats_.read(files["stats"], wanted)
    timed = pc.fill_null(pc.equal(_null_counts(found, path), 0), False)
    return *bounds_in(found, path, type_), np.asarray(timed).astype(bool)


def _counts_schema(path: Sequence[str]) -> pa.Schema:
    field = pa.field(path[-1], pa.int64())
    for part in reversed(path[:-1]):
        field = pa.field(part, pa.struct([field]))
    return pa.schema([("nullCount", pa.struct([field]))])


def _null_counts(statistics: pa.Table, path: Sequence[str]) -> pa.Array:
    # By index: Arrow parses a name that begins with a dot as a path.
    return pc.struct_field(statistics["nullCount"].combine_chunks(), [0] * len(path))
