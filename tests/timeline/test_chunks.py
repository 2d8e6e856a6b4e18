"""Time chunks against the calendar of the standard library."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import add_file, segments
from tandem.delta.actions import AddFile
from tandem.errors import InvalidSpec
from tandem.intervals import ALWAYS, TimeInterval
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
