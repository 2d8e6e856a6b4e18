"""The time chunks that each file of a working set covers, computed for all files at once.

A file covers the chunks from its smallest to its largest time, by its statistics or its
partition value. Wide bounds (`tightBounds: false`, after deletes) can only make a file appear to
span more chunks, never fewer, so a plan that respects chunks stays correct. Statistics truncate
times to milliseconds; chunk borders are whole hours, so a truncated maximum lies in the same
chunk as the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log import files as files_
from tandem.distinct import IntArray, number_rows
from tandem.intervals import ALWAYS, TimeInterval
from tandem.pruning.times import FIRST, LAST, time_bounds
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn, is_one_chunk, parse_interval

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
