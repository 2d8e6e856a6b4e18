"""The columns of live files, from which `segment_files` takes single ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.actions import AddFile
from tandem.delta.clustering import CUBE_COLUMNS, CUBE_ID, PROVIDER, is_by
from tandem.delta.log import files as files_
from tandem.distinct import BoolArray, IntArray, number_rows
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.pruning.scope import FIRST, LAST, bounds_in, bounds_schema, covered, time_bounds
from tandem.spec.fields import Granularity
from tandem.timeline.chunks import TimeColumn, is_one_chunk, parse_interval
from tandem.timeline.lineage import Roots, read_roots
from tandem.timeline.names import SegmentNames

TAG_CHUNK = "tandem.chunk"
TAG_LAYOUT = "tandem.layout"
"""The order in which a compaction wrote its segment: `segments.layout_label`."""

_MOST = np.iinfo(np.int64).max

PartitionValues = Mapping[str, str | None]
Partition = tuple[tuple[str, str | None], ...]


class FileColumns:
    """Files of `table` (as `Snapshot.files`) in the order of their segments and paths.

    Args:
        order: for each place the index of its row in `table`.
        segments: for each place its segment, as an index into `names`; ascending.
        names: those of the segments, in their order.
    """

    def __init__(
        self, table: pa.Table, order: IntArray, segments: IntArray, names: SegmentNames,
        time: TimeColumn | None,
    ) -> None:  # fmt: skip
        self._table, self._order, self._time = table, order, time
        self.segments, self.names = segments, names
        self._adds: dict[int, AddFile] = {}
        self._among: tuple[frozenset[str], BoolArray] | None = None
        self._have_layout: dict[str, BoolArray] = {}
        self._cubes: dict[tuple[str, ...], IntArray] = {}

    def ordered(self, name: str) -> IntArray:
        """A column of numbers, in the order of places."""
        found: IntArray = self._table[name].to_numpy()[self._order]
        return found

    @cached_property
    def paths(self) -> list[str]:
        return self.paths_at(np.arange(len(self._order)))

    def paths_at(self, places: IntArray) -> list[str]:
        return list(self._table["path"].take(pa.array(self._order[places])).to_pylist())

    @cached_property
    def size(self) -> IntArray:
        return self.ordered("size")

    @cached_property
    def deleted(self) -> IntArray:
        """Rows in deletion vectors."""
        found = pc.fill_null(pc.struct_field(self._table["deletion_vector"], "cardinality"), 0)
        deleted: IntArray = found.to_numpy()[self._order]
        return deleted

    @cached_property
    def row_counts(self) -> IntArray:
        """Physical rows, -1 if the log does not record them."""
        known = (
            stats_.num_records(self._table["stats"])
            if self._statistics is None
            else stats_.valid_counts(self._statistics["numRecords"])
        )
        counts: IntArray = pc.fill_null(known, -1).to_numpy()[self._order]
        return counts

    @cached_property
    def _statistics(self) -> pa.Table | None:
        """Row counts and bounds of the times, read at once: parsing costs most of a plan. None if
        no time is to be read from statistics."""
        time = self._time
        if time is None or time.partition or time.granularity is Granularity.ALL:
            return None
        wanted = bounds_schema(time.path).insert(0, pa.field("numRecords", pa.int64()))
        return stats_.read(self._table["stats"], wanted)

    @cached_property
    def rows(self) -> list[int | None]:
        """Physical rows, None if the log does not record them."""
        return [None if count < 0 else count for count in self.row_counts.tolist()]

    @cached_property
    def live_bytes(self) -> IntArray:
        """Estimated bytes of the rows that are not deleted."""
        found = self.size.copy()
        at, rows = self._marked
        at, rows = at[rows > 0], rows[rows > 0]
        size = found[at]
        live = np.maximum(rows - self.deleted[at], 0)
        if np.all(size <= _MOST // np.maximum(live, 1)):
            found[at] = size * live // rows
        else:
            found[at] = (size.astype(object) * live // rows).astype(np.int64)
        return found

    @cached_property
    def deleted_shares(self) -> npt.NDArray[np.float64]:
        """The share of deleted rows, 0 to 1; 1 if some are deleted of an unknown number."""
        found = np.zeros(len(self.deleted), np.float64)
        at, rows = self._marked
        shares = np.minimum(1.0, self.deleted[at] / np.maximum(rows, 1))
        found[at] = np.where(rows > 0, shares, 1.0)
        return found

    @cached_property
    def _marked(self) -> tuple[IntArray, IntArray]:
        """The files with deleted rows, and their `row_counts`: if they are few, the statistics of
        others are not parsed for it."""
        at = np.flatnonzero(self.deleted)
        if self._statistics is not None or 2 * len(at) > len(self.deleted):
            return at, self.row_counts[at]
        stats = self._table["stats"].take(pa.array(self._order[at]))
        return at, pc.fill_null(stats_.num_records(stats), -1).to_numpy()

    @cached_property
    def sizes(self) -> list[int]:
        return list(self.size.tolist())

    @cached_property
    def deletions(self) -> list[int]:
        return list(self.deleted.tolist())

    @cached_property
    def _intervals(self) -> FileIntervals | None:
        if self._time is None:
            return None
        bounds = None
        if self._statistics is not None:
            bounds = bounds_in(self._statistics, self._time.path, self._time.type)
        found = file_intervals(self._table, self._time, TAG_CHUNK, bounds)
        return FileIntervals(found.codes[self._order], found.distinct, found.spans[self._order])

    @cached_property
    def interval_codes(self) -> IntArray:
        """For each file the index of its interval in `intervals`; -1 if it has none."""
        found = self._intervals
        return found.codes if found is not None else np.full(len(self._order), -1, np.int64)

    @cached_property
    def intervals(self) -> tuple[TimeInterval | None, ...]:
        """The distinct intervals, and None at the end, for code -1."""
        return (*(self._intervals.distinct if self._intervals is not None else ()), None)

    @cached_property
    def codes(self) -> list[int]:
        return list(self.interval_codes.tolist())

    @cached_property
    def spans(self) -> BoolArray:
        found = self._intervals
        return found.spans if found is not None else np.zeros(len(self._order), np.bool_)

    @cached_property
    def layouts(self) -> pa.Array:
        """For each file the tag that records the order of its rows, or null."""
        return self.tags(TAG_LAYOUT)

    def have_layout(self, label: str) -> BoolArray:
        """Which of the files have their rows in this order."""
        if label not in self._have_layout:
            same = pc.fill_null(pc.equal(self.layouts, label), False)
            self._have_layout[label] = same.to_numpy(zero_copy_only=False)
        return self._have_layout[label]

    def cubes(self, columns: tuple[str, ...]) -> IntArray:
        """For each file the number of the Z-cube, by these clustering columns, that it is in: 0 if
        it was not clustered, -1 if it is in order of other columns, or another clustering
        implementation's."""
        if columns not in self._cubes:
            by, ids = self.tags(CUBE_COLUMNS), self.tags(CUBE_ID)
            ours = [each for each in by.unique().to_pylist() if each and is_by(each, columns)]
            same = np.asarray(pc.is_in(by, pa.array(ours, pa.string())))
            tagged = np.asarray(pc.and_(pc.is_valid(by), pc.is_valid(ids)))
            provider = self._table["clustering_provider"].take(pa.array(self._order))
            free = np.asarray(pc.is_in(provider, pa.array([None, PROVIDER], pa.string())))
            numbers = np.asarray(pc.fill_null(ids.dictionary_encode().indices, -1)) + 1
            found = np.where(free & (same | ~tagged), np.where(tagged, numbers, 0), -1)
            self._cubes[columns] = found.astype(np.int64)
        return self._cubes[columns]

    def tags(self, key: str) -> pa.Array:
        """For each file the value of a tag, or null."""
        return files_.tag(self._table, key).take(pa.array(self._order))

    @cached_property
    def roots(self) -> Roots:
        """The loads that each file was made from, as its tags claim."""
        return read_roots(self._table).take(self._order)

    @cached_property
    def partition_codes(self) -> IntArray:
        """For each file the index of its values in `partitions`."""
        codes: IntArray = self._partitions[0][self._order]
        return codes

    @cached_property
    def partition_numbers(self) -> list[int]:
        return list(self.partition_codes.tolist())

    @cached_property
    def partitions(self) -> list[PartitionValues]:
        """The distinct partition values, as logged."""
        return self._partitions[1]

    @cached_property
    def by_partition(self) -> tuple[IntArray, list[Partition]]:
        """For each file the index of its partition, and the partitions; values that differ only
        in the order of columns are the same."""
        numbers: dict[Partition, int] = {}
        same = [
            numbers.setdefault(tuple(sorted(values.items())), len(numbers))
            for values in self.partitions
        ]
        return np.array(same, np.int64)[self.partition_codes], list(numbers)

    @cached_property
    def _partitions(self) -> tuple[IntArray, list[PartitionValues]]:
        maps = self._table["partition_values"].combine_chunks()
        offsets = maps.offsets.to_numpy()
        widths = np.diff(offsets)
        if not len(widths):
            return widths.astype(np.int64), []
        first, last = int(offsets[0]), int(offsets[-1])
        keys, values = (
            each.slice(first, last - first).dictionary_encode("encode")
            for each in (maps.keys, maps.items)
        )
        entries = keys.indices.to_numpy() * np.int64(len(values.dictionary) or 1)
        entries += values.indices.to_numpy()
        width = max(1, int(widths.max()))
        # One row per file, padded for files with fewer values.
        table = np.full((len(widths), width), -1, np.int64)
        table[np.arange(width) < widths[:, None]] = entries
        codes, at = number_rows([*table.T])
        found = maps.take(pa.array(at)).to_pylist(maps_as_pydicts="lossy")
        return codes, [each or {} for each in found]

    def among(self, paths: frozenset[str]) -> BoolArray:
        """Which of the files have one of the logged paths."""
        if self._among is None or self._among[0] is not paths:
            found = files_.have_paths(self._table, paths)
            self._among = (paths, np.asarray(found)[self._order])
        return self._among[1]

    def add(self, at: int) -> AddFile:
        found = self._adds.get(at)
        if found is None:
            self.decode([at])
            found = self._adds[at]
        return found

    def decode(self, places: Iterable[int]) -> None:
        """Decode these `add` actions together, which is faster than one by one."""
        missing = [at for at in places if at not in self._adds]
        rows = self._table.take(pa.array(self._order[np.array(missing, np.int64)]))
        self._adds.update(zip(missing, files_.to_adds(rows), strict=True))


# The time chunks that each file of a working set covers, computed for all files at once.
#
# A file covers the chunks from its smallest to its largest time, by its statistics or its
# partition value. Wide bounds (`tightBounds: false`, after deletes) can only make a file appear to
# span more chunks, never fewer, so a plan that respects chunks stays correct. Statistics truncate
# times to milliseconds; chunk borders are whole hours, so a truncated maximum lies in the same
# chunk as the exact one.


_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_MONTHS = {Granularity.MONTH: 1, Granularity.QUARTER: 3, Granularity.YEAR: 12}
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class FileIntervals:
    """`codes`: for each file an index into `distinct`, -1 if its interval is unknown. `spans`:
    whether a file covers several chunks, or unknown ones."""

    codes: IntArray
    distinct: tuple[TimeInterval, ...]
    spans: npt.NDArray[np.bool_]


def file_intervals(
    files: pa.Table,
    time: TimeColumn,
    chunk_tag: str,
    bounds: tuple[pa.Array, pa.Array] | None = None,
) -> FileIntervals:
    """The chunks that each file covers, by its times (`bounds`, if these have been read); if they
    are unknown, by the interval in its tag `chunk_tag`."""
    count = files.num_rows
    if time.granularity is Granularity.ALL:
        return FileIntervals(np.zeros(count, np.int64), (ALWAYS,), np.zeros(count, np.bool_))
    if bounds is None:
        bounds = time_bounds(files, time.path, time.type, partition=time.partition)
    low, high = bounds
    known = np.asarray(pc.fill_null(pc.less_equal(low, high), False))
    first, first_end = chunk_borders(np.asarray(pc.fill_null(low, 0)), time.granularity)
    _, end = chunk_borders(np.asarray(pc.fill_null(high, 0)), time.granularity)
    # Times outside the calendar's range of years count as unknown.
    known &= (first >= FIRST) & (end <= LAST)
    spans = ~known | (first_end != end)
    codes, distinct = _encoded(first // 1_000, end // 1_000)
    codes = np.where(known, codes, _UNKNOWN)
    if not known.all():
        _by_tag(files, time.granularity, chunk_tag, codes, spans, distinct)
    return FileIntervals(codes, tuple(distinct), spans)


def _by_tag(
    files: pa.Table,
    granularity: Granularity,
    chunk_tag: str,
    codes: IntArray,
    spans: npt.NDArray[np.bool_],
    distinct: list[TimeInterval],
) -> None:
    """Fill in the intervals of files with unknown times that have the tag."""
    rows = np.flatnonzero(codes == _UNKNOWN)
    tags = files_.tag(files.take(pa.array(rows)), chunk_tag)
    texts = tags.dictionary_encode("encode")
    numbers = {interval: code for code, interval in enumerate(distinct)}
    for code, text in enumerate(texts.dictionary.to_pylist()):
        interval = parse_interval(text) if text is not None else None
        if interval is None:
            continue
        chosen = rows[texts.indices.to_numpy() == code]
        if interval not in numbers:
            numbers[interval] = len(distinct)
            distinct.append(interval)
        codes[chosen] = numbers[interval]
        spans[chosen] = not is_one_chunk(interval, granularity)


def _encoded(starts: IntArray, ends: IntArray) -> tuple[IntArray, list[TimeInterval]]:
    """Intervals in milliseconds as codes and distinct ones."""
    codes, at = number_rows((starts, ends))
    distinct = zip(starts[at].tolist(), ends[at].tolist(), strict=True)
    return codes, [TimeInterval(start, end) for start, end in distinct]


def chunk_numbers(micros: IntArray, granularity: Granularity) -> IntArray:
    """The chunks of these moments, in microseconds since 1970, numbered in the order of time: the
    numbers of adjacent chunks differ by one."""
    if granularity is Granularity.ALL:
        return np.zeros(len(micros), np.int64)
    if granularity is Granularity.HOUR:
        return micros // _HOUR
    if granularity is Granularity.DAY:
        return micros // _DAY
    if granularity is Granularity.WEEK:
        return (micros // _DAY + 3) // 7
    months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    found: IntArray = months // _MONTHS[granularity]
    return found


def chunk_borders(micros: IntArray, granularity: Granularity) -> tuple[IntArray, IntArray]:
    """Start and end of the chunk that contains each moment, in microseconds since 1970."""
    if granularity is Granularity.HOUR:
        start = micros // _HOUR * _HOUR
        return start, start + _HOUR
    if granularity is Granularity.DAY:
        start = micros // _DAY * _DAY
        return start, start + _DAY
    if granularity is Granularity.WEEK:
        days = micros // _DAY
        start = (days - (days + 3) % 7) * _DAY  # 1970 began on a Thursday
        return start, start + 7 * _DAY
    size = _MONTHS[granularity]
    months = micros.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    first = months // size * size
    return _month_start(first), _month_start(first + size)


def _month_start(months: IntArray) -> IntArray:
    return months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)


# The time chunk of each row, by its value of the time column. Reads no file.
#
# Rows without a time are in no chunk of a calendar, and in no interval.


NO_CHUNK = int(np.iinfo(np.int64).min)
"""In place of the start of a chunk, for rows without a time."""
NO_NUMBER = int(np.iinfo(np.int32).min)
"""In place of the number of a chunk."""

_DAY_US = 86_400_000_000
_MOST_DAYS = int(np.iinfo(np.int64).max) // _DAY_US
"""Of days that 64 bits hold as microseconds. Others are far outside of the years of intervals."""


def chunk_starts(times: pa.Array, granularity: Granularity) -> IntArray:
    """For each row the start of its chunk, in microseconds since 1970."""
    starts, _ = chunk_borders(_micros(times), granularity)
    return np.where(np.asarray(pc.is_valid(times)), starts, NO_CHUNK)


def row_chunk_numbers(times: pa.Array, granularity: Granularity) -> npt.NDArray[np.int32]:
    """For each row the number of its chunk (`chunk_numbers`), `NO_NUMBER` without a time."""
    numbers = chunk_numbers(_micros(times), granularity)
    return np.where(np.asarray(pc.is_valid(times)), numbers, NO_NUMBER).astype(np.int32)


def rows_within(times: pa.Array, intervals: IntervalSet) -> BoolArray:
    """Which rows have a time that lies in one of the intervals."""
    moments = _micros(times) // 1_000
    return np.asarray(pc.is_valid(times)) & covered(intervals, moments, moments + 1)


def _micros(times: pa.Array) -> IntArray:
    if pa.types.is_date(times.type):
        days = np.asarray(pc.fill_null(times.cast(pa.int32()), 0), np.int64)
        return np.clip(days, -_MOST_DAYS, _MOST_DAYS) * _DAY_US
    micros = times.cast(pa.timestamp("us", tz=times.type.tz), safe=False)
    return np.asarray(pc.fill_null(micros.cast(pa.int64()), 0))
