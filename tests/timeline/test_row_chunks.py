"""The chunk of each row, beside the calendar."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.intervals import IntervalSet, TimeInterval
from tandem.spec.fields import Granularity
from tandem.timeline.chunks import chunk_of
from tandem.timeline.file_columns import NO_CHUNK, chunk_starts, rows_within

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
