"""Chunks of files and of rows."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import add_file, segments
from tandem.delta.actions import AddFile
from tandem.errors import InvalidSpec
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.spec.table import Granularity
from tandem.timeline.chunks import (
    TimeColumn,
    chunk_of,
    components,
    is_one_chunk,
    label,
    parse_any_interval,
    parse_chunk,
    parse_interval,
)
from tandem.timeline.file_columns import NO_CHUNK, chunk_starts, rows_within
from tandem.timeline.segments import output_tags

# Time chunks against the calendar of the standard library.


moments = st.datetimes(datetime(1, 2, 1), datetime(9998, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
granularities = st.sampled_from(Granularity)


def file_interval(add: AddFile, time: TimeColumn) -> TimeInterval | None:
    (segment,) = segments([add], time)
    return segment.files[0].interval


MONTHS = TimeColumn(("t",), Granularity.MONTH)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@given(moments, granularities)
def test_chunk_holds_its_moment_and_its_label_means_it(
    moment: datetime, granularity: Granularity
) -> None:
    chunk = chunk_of(moment, granularity)
    at = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

    assert chunk.start_ms <= at < chunk.end_ms
    assert is_one_chunk(chunk, granularity)
    assert parse_chunk(label(chunk, granularity), granularity) == chunk
    if granularity is not Granularity.ALL:
        assert parse_interval(str(chunk)) == chunk


@given(st.lists(moments, min_size=2, max_size=2).map(sorted), granularities)
def test_chunks_tile_time(pair: list[datetime], granularity: Granularity) -> None:
    first, second = (chunk_of(moment, granularity) for moment in pair)
    assert first == second or first.end_ms <= second.start_ms


@pytest.mark.parametrize(
    ("text", "granularity", "start", "end"),
    [
        ("2013-02", Granularity.MONTH, "2013-02-01", "2013-03-01"),
        ("2013-02", Granularity.DAY, "2013-02-01", "2013-03-01"),
        ("2013-Q4", Granularity.QUARTER, "2013-10-01", "2014-01-01"),
        ("2012-12-31", Granularity.DAY, "2012-12-31", "2013-01-01"),
        ("2013-W01", Granularity.WEEK, "2012-12-31", "2013-01-07"),
        ("2013-02-01T23", Granularity.HOUR, "2013-02-01T23:00", "2013-02-02"),
        ("2013-02-01T00:00:00Z/2013-04-01", Granularity.MONTH, "2013-02-01", "2013-04-01"),
    ],
)
def test_labels(text: str, granularity: Granularity, start: str, end: str) -> None:
    assert parse_chunk(text, granularity) == TimeInterval(ms(start), ms(end))


@pytest.mark.parametrize(
    ("text", "granularity"),
    [
        ("2013-13", Granularity.MONTH),
        ("2013-W60", Granularity.WEEK),
        ("2013-02", Granularity.YEAR),
        ("2013-02", Granularity.WEEK),
        ("2013-02", Granularity.ALL),
        ("2013-03-01/2013-02-01", Granularity.MONTH),
        ("1; DROP", Granularity.MONTH),
        ("", Granularity.MONTH),
    ],
)
def test_labels_that_mean_no_whole_chunks(text: str, granularity: Granularity) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_chunk(text, granularity, resource="TableCompaction/march")
    assert caught.value.found == text
    assert (caught.value.resource, caught.value.field) == (
        "TableCompaction/march",
        "spec.semiMajor.chunks",
    )
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "2013-03-02T00:00:00.0005Z/2013-03-03",
        "2013-03-02/2013-03-02T00:00:00.000001",
        "2013-03-02T00:00:00.0001Z/2013-03-02T00:00:00.0002Z",
        "2013-03-02/2013-03-03T00:00:00,000000001",
    ],
)
def test_an_interval_that_is_finer_than_milliseconds_is_none(text: str) -> None:
    """To cut its borders would move them over rows, or leave nothing between them."""
    assert parse_any_interval(text) is None


def test_an_interval_may_be_one_millisecond_long() -> None:
    found = parse_any_interval("2013-03-02T23:59:59.999000Z/2013-03-03")
    assert found == TimeInterval(ms("2013-03-03") - 1, ms("2013-03-03"))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (("2013-02-03", "2013-02-28"), "2013-02"),
        (("2013-02-01T00:00:00.000Z", "2013-02-28T23:59:59.999Z"), "2013-02"),
        (("2013-02-01T01:00:00.000+02:00", "2013-02-01T00:00:00Z"),
         "2013-01-01T00:00:00Z/2013-03-01T00:00:00Z"),
        (("2013-02-01 00:00:00", "2013-04-01 00:00:00.123456"),
         "2013-02-01T00:00:00Z/2013-05-01T00:00:00Z"),
    ],
)  # fmt: skip
def test_file_covers_the_chunks_of_its_statistics(times: tuple[str, str], expected: str) -> None:
    interval = file_interval(add_file("a", times=times), MONTHS)
    assert interval is not None
    assert label(interval, Granularity.MONTH) == expected


@pytest.mark.parametrize(
    "times", [None, ("soon", "later"), ("2013-02-01", "2013-01-01"), ("9999-12-01", "9999-12-31")]
)
def test_a_file_without_statistics_has_no_interval(times: tuple[str, str] | None) -> None:
    assert file_interval(add_file("a", times=times), MONTHS) is None


@pytest.mark.parametrize("stats", ["", "[", "[]", '{"minValues": 3}', '{"minValues": {"t": 5}}'])
def test_broken_statistics_count_as_absent(stats: str) -> None:
    assert file_interval(replace(add_file("a"), stats=stats), MONTHS) is None


def test_partition_value_and_nested_column() -> None:
    by_day = TimeColumn(("day",), Granularity.DAY, partition=True)
    interval = file_interval(add_file("a", partition={"day": "2013-02-01"}), by_day)
    assert interval == TimeInterval(ms("2013-02-01"), ms("2013-02-02"))
    assert file_interval(add_file("a", partition={"day": None}), by_day) is None

    stats = '{"minValues":{"e":{"at":"2013-02-01"}},"maxValues":{"e":{"at":"2013-02-02"}}}'
    nested = TimeColumn(("e", "at"), Granularity.MONTH)
    assert file_interval(replace(add_file("a"), stats=stats), nested) is not None
    assert file_interval(add_file("a"), TimeColumn(("t",), Granularity.ALL)) == ALWAYS


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=12))
def test_components_are_the_closure_of_overlaps(pairs: list[tuple[int, int]]) -> None:
    intervals = {TimeInterval(start, start + length) for start, length in pairs}

    hulls = components(intervals)

    assert set(hulls) == intervals
    # The slow way: grow groups until nothing changes.
    for interval in intervals:
        group = {interval}
        while more := {o for o in intervals - group if any(o.overlaps(g) for g in group)}:
            group |= more
        low, high = min(g.start_ms for g in group), max(g.end_ms for g in group)
        assert hulls[interval] == TimeInterval(low, high)


# The chunk of each row, beside the calendar.


MOMENTS = st.datetimes(timezones=st.just(dt.UTC)).filter(lambda at: 1 < at.year < 9999)
SHORTER = [granularity for granularity in Granularity if granularity is not Granularity.ALL]


@pytest.mark.parametrize("granularity", SHORTER)
@given(st.lists(st.none() | MOMENTS, max_size=5))
def test_rows_lie_in_the_chunks_of_the_calendar(
    granularity: Granularity, times: list[dt.datetime | None]
) -> None:
    wanted = [
        NO_CHUNK if time is None else chunk_of(time, granularity).start_ms * 1_000 for time in times
    ]
    for zone in (None, "UTC"):
        column = pa.array(times, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
        assert chunk_starts(column, granularity).tolist() == wanted
    days = [None if time is None else time.date() for time in times]
    if granularity is not Granularity.HOUR:
        assert chunk_starts(pa.array(days, pa.date32()), granularity).tolist() == wanted


def test_intervals_end_before_their_end() -> None:
    """A moment between two milliseconds lies in the earlier one."""
    column = pa.array([-1, 0, 1_999, 2_000, 2_999, 3_000, None], pa.timestamp("us"))
    found = rows_within(column, IntervalSet([TimeInterval(0, 1), TimeInterval(2, 3)]))
    assert found.tolist() == [False, True, False, True, True, False, False]


def test_days_that_64_bits_do_not_hold_as_microseconds_are_in_no_interval() -> None:
    """2013-03-02, and the days that wrapped around to it."""
    wraps = [15_766 + turn * (1 << 64) // 86_400_000_000 for turn in range(-10, 11)]
    column = pa.array([*wraps, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    found = rows_within(column, IntervalSet([TimeInterval(1_362_000_000_000, 1_363_000_000_000)]))
    assert found.tolist() == [turn == 0 for turn in range(-10, 11)] + [False, False]


# The chunks of all files at once are those of each file alone.


TEXTS = st.datetimes().map(datetime.isoformat) | st.sampled_from(
    ["2013-01-01", "2013-01-31 23:59:59.999999", "2013-02-01T00:00:00Z", "2013-03-01T00:00+02:00",
     "1969-12-31", "1969-12-29T00:00:00.001Z", "9999-12-31", "0001-01-01", "soon", ""]
)  # fmt: skip


def alone(times: tuple[str, str], granularity: Granularity) -> TimeInterval | None:
    try:
        low, high = map(datetime.fromisoformat, times)
        low, high = (t.astimezone(UTC) if t.tzinfo else t.replace(tzinfo=UTC) for t in (low, high))
        if high < low:
            return None
        first, last = chunk_of(low, granularity), chunk_of(high, granularity)
    except (ValueError, OverflowError):
        return None
    return TimeInterval(first.start_ms, last.end_ms)


@given(
    st.lists(st.tuples(TEXTS, TEXTS) | TEXTS.map(lambda t: (t, t)), min_size=1, max_size=12),
    st.sampled_from([g for g in Granularity if g is not Granularity.ALL]),
)
def test_chunks_are_those_of_each_file(
    times: list[tuple[str, str]], granularity: Granularity
) -> None:
    adds = [add_file(f"{n:02}", segment="0", times=each) for n, each in enumerate(times)]

    (segment,) = segments(adds, TimeColumn(("t",), granularity))

    expected = [alone(each, granularity) for each in times]
    assert [file.interval for file in segment.files] == expected
    one = [time is not None and is_one_chunk(time, granularity) for time in expected]
    assert [not file.spans for file in segment.files] == one


@pytest.mark.parametrize("tag", ["9999-12-01/9999-12-31", "0001-01-01/0001-01-02", "x/y", "/"])
def test_no_tag_of_a_chunk_makes_a_table_unreadable(tag: str) -> None:
    tags = output_tags("1", 5) | {"tandem.chunk": tag}
    (segment,) = segments(
        [add_file("a", tags=tags, rows=None)], TimeColumn(("t",), Granularity.MONTH)
    )
    assert segment.files[0].spans
