"""The chunks of all files at once are those of each file alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import add_file, segments
from tandem.intervals import TimeInterval
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn, chunk_of, is_one_chunk
from tandem.timeline.segments import output_tags

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
