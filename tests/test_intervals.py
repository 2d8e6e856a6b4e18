"""Sets of intervals, compared with sets of single moments."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval

BORDERS = st.integers(-12, 12)
ENDS = st.one_of(BORDERS, st.sampled_from([ALWAYS.start_ms, ALWAYS.end_ms]))
INTERVALS = st.builds(TimeInterval, BORDERS, BORDERS)
SETS = st.lists(INTERVALS, max_size=6).map(IntervalSet)


def moments(found: IntervalSet | TimeInterval) -> set[int]:
    pieces = [found] if isinstance(found, TimeInterval) else found.pieces
    return {moment for each in pieces for moment in range(each.start_ms, each.end_ms)}


@given(st.lists(INTERVALS, max_size=6))
def test_a_set_has_the_moments_of_its_intervals_in_the_fewest_pieces(
    given_: list[TimeInterval],
) -> None:
    found = IntervalSet(given_)
    assert moments(found) == set().union(*map(moments, given_), set())
    for one, next_ in zip(found.pieces, found.pieces[1:], strict=False):
        assert one.end_ms < next_.start_ms
    assert all(each.start_ms < each.end_ms for each in found)


@given(SETS, SETS)
def test_union_intersection_and_difference(one: IntervalSet, other: IntervalSet) -> None:
    assert moments(one | other) == moments(one) | moments(other)
    assert moments(one & other) == moments(one) & moments(other)
    assert moments(one - other) == moments(one) - moments(other)
    assert (one == other) == (moments(one) == moments(other))
    assert one & other == other & one
    assert hash((one - other) | (one & other)) == hash(one)


@given(SETS, INTERVALS)
def test_questions_about_an_interval(found: IntervalSet, interval: TimeInterval) -> None:
    all_, asked = moments(found), moments(interval)
    assert found.overlaps(interval) == bool(all_ & asked)
    assert found.covers(interval) == (asked <= all_)
    assert set(found.meeting(interval)) == {each for each in found if moments(each) & asked}
    hull = found.hull
    assert bool(found) == (hull is not None)
    assert hull is None or moments(hull) == set(range(min(all_), max(all_) + 1))


@given(SETS, SETS)
def test_questions_about_another_set(one: IntervalSet, other: IntervalSet) -> None:
    assert one.includes(other) == (moments(other) <= moments(one))
    met = [each for each in one if moments(each) & moments(other)]
    assert one.first_meeting(other) == (met[0] if met else None)


@given(SETS, st.integers(1, 4))
def test_a_coalesced_set_only_grows_and_fills_the_smallest_gaps(
    found: IntervalSet, most: int
) -> None:
    fewer = found.coalesced(most)
    assert len(fewer) == min(len(found), most)
    assert moments(fewer) >= moments(found)
    assert fewer.hull == found.hull
    filled = [len(moments(gap)) for gap in fewer - found]
    left = [b.start_ms - a.end_ms for a, b in zip(fewer, fewer.pieces[1:], strict=False)]
    assert max(filled, default=0) <= min(left, default=99)
    assert fewer.coalesced(most) == fewer


@given(st.lists(st.builds(TimeInterval, ENDS, ENDS), max_size=5).map(IntervalSet))
def test_sets_in_json_have_null_for_an_open_side(found: IntervalSet) -> None:
    text = json.dumps(found.to_json())
    assert IntervalSet.from_json(json.loads(text)) == found
    assert ("null" in text) == any(
        each.start_ms == ALWAYS.start_ms or each.end_ms == ALWAYS.end_ms for each in found
    )
    assert EVERYWHERE.to_json() == [[None, None]]


def test_intervals_as_text() -> None:
    day = TimeInterval(0, 86_400_000)
    assert str(day) == "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z"
    assert str(TimeInterval(1, 1_000)) == "1970-01-01T00:00:00.001Z/1970-01-01T00:00:01Z"
    assert str(IntervalSet([ALWAYS])) == "all"
    assert str(IntervalSet([TimeInterval(0, 1 << 61), TimeInterval(-5, -1 << 61)])) == (
        "1970-01-01T00:00:00Z/+"
    )
    assert str(IntervalSet()) == "never"
