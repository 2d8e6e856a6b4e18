"""The matrix of the design, cell by cell, and what overlaps with what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.locks.rules import (
    MOST_INTERVALS,
    MOST_NAMED,
    NOTHING,
    WHOLE_TABLE,
    EntryState,
    Grant,
    LockEntry,
    LockRequest,
    LockResource,
    LockResources,
    Mode,
    Wait,
    conflict,
    decide,
    named,
    named_or_within,
    segment,
    within,
)

# Copied by hand from design.md, section 3, "Locks in etcd": requested → held that it may join.
MAY_STAND_BESIDE = {
    Mode.APPEND: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE, Mode.REPLACE},
    Mode.UPDATE: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE},
    Mode.REWRITE: {Mode.APPEND, Mode.UPDATE},
    Mode.REPLACE: {Mode.APPEND, Mode.REWRITE},
    Mode.EXCLUSIVE: set(),
}


def asked(operation: str, mode: Mode, resources: LockResources, **fields: object) -> LockRequest:
    return LockRequest("t", operation, mode, resources, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("requested", "held"), list(itertools.product(Mode, Mode)))
def test_matrix(requested: Mode, held: Mode) -> None:
    first, second = asked("a", requested, segment("0")), asked("b", held, segment("0"))
    assert (conflict(first, second) is None) == (held in MAY_STAND_BESIDE[requested])


@pytest.mark.parametrize(("requested", "held"), list(itertools.product(Mode, Mode)))
def test_disjoint_segments_never_conflict(requested: Mode, held: Mode) -> None:
    assert conflict(asked("a", requested, segment("0")), asked("b", held, segment("1"))) is None


def test_updates_of_one_segment_exclude_each_other_where_asked() -> None:
    first = asked("a", Mode.UPDATE, segment("0"), row_concurrency=False)
    second = asked("b", Mode.UPDATE, segment("0"))
    assert conflict(first, second) == LockResource("0")
    assert conflict(second, first) == LockResource("0")


def between(*borders: tuple[int, int]) -> IntervalSet:
    return IntervalSet(TimeInterval(start, end) for start, end in borders)


def test_S29_overlapping_intervals_conflict_and_others_do_not() -> None:
    day, hour, later = (within(between(each)) for each in ((0, 24), (5, 6), (24, 48)))
    both = conflict(asked("a", Mode.REPLACE, day), asked("b", Mode.REPLACE, hour))
    assert both == LockResource(interval=TimeInterval(5, 6))
    assert conflict(asked("a", Mode.REPLACE, day), asked("b", Mode.REPLACE, later)) is None


def test_a_segment_of_unknown_interval_meets_every_interval() -> None:
    day = within(between((0, 24)))
    assert segment("7").common(day) == LockResource(interval=TimeInterval(0, 24))
    assert day.common(segment("7")) == LockResource("7")
    assert segment("7", between((48, 72))).common(day) is None
    assert segment("7", IntervalSet()) == segment("7")


def test_the_whole_table_meets_everything_but_nothing() -> None:
    assert WHOLE_TABLE.common(segment("0")) == LockResource("0")
    assert WHOLE_TABLE.common(within(between((0, 1)))) is not None
    for one in (WHOLE_TABLE, segment("0"), NOTHING):
        assert NOTHING.common(one) is None
        assert one.common(NOTHING) is None
    assert named([]) == NOTHING
    assert [str(each) for each in (LockResource(), *segment("7"))] == ["the table", "segment 7"]


def test_over_a_thousand_segments_are_the_intervals_in_which_they_lie() -> None:
    names = [str(number) for number in range(MOST_NAMED)]
    some = named_or_within([*names, *names], between((0, 24)))
    assert (some.names, some.intervals) == (tuple(names), between((0, 24)))
    assert named_or_within([*names, "x"], between((0, 24))) == within(between((0, 24)))
    assert named_or_within([*names, "x"]) == WHOLE_TABLE
    assert len(named([*names, "x"])) == MOST_NAMED + 1


_MOMENTS = st.integers(0, 20)
_TIMES = st.one_of(
    st.just(EVERYWHERE),
    st.lists(st.builds(TimeInterval, _MOMENTS, _MOMENTS), max_size=4).map(IntervalSet),
)
_RESOURCES = st.builds(
    LockResources, st.lists(st.sampled_from("0123"), max_size=3, unique=True).map(tuple), _TIMES
)


def moments(found: IntervalSet) -> set[int]:
    """Slow and obvious; moments beyond 0–20 are alike."""
    return {at for at in range(-1, 22) if any(p.start_ms <= at < p.end_ms for p in found.pieces)}


@given(_RESOURCES, _RESOURCES)
def test_names_meet_names_and_all_else_meets_by_time(
    one: LockResources, other: LockResources
) -> None:
    if one.names and other.names:
        meets = bool(set(one.names) & set(other.names))
    else:
        meets = bool(moments(one.intervals) & moments(other.intervals))
    assert (one.common(other) is not None) == (other.common(one) is not None) == meets
    met = one.common(other)
    assert met is None or met.segment in {"", *other.names}
    assert met is None or met.segment or met.interval in other.intervals.pieces


@given(_RESOURCES, _RESOURCES, _RESOURCES)
def test_who_holds_both_meets_all_that_either_meets(
    one: LockResources, other: LockResources, third: LockResources
) -> None:
    both = one | other
    assert both.covers(one)
    assert both.covers(other)
    # Names with times that contradict each other are not of one table.
    named = [each for each in (one, other, third) if each.names]
    if all(each.intervals == EVERYWHERE for each in named):
        for each in (one, other):
            assert each.common(third) is None or both.common(third) is not None


@given(_RESOURCES, _RESOURCES)
def test_who_covers_another_needs_nothing_for_it(one: LockResources, other: LockResources) -> None:
    if one.covers(other):
        assert one | other == one or (other.names and one | other == within(one.intervals))
    assert one.covers(one)
    assert one.covers(NOTHING)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 9)), max_size=200))
def test_more_intervals_than_an_entry_holds_only_grow(found: list[tuple[int, int]]) -> None:
    asked_for = between(*((start, start + length) for start, length in found))
    held = within(asked_for).intervals
    assert len(held) <= MOST_INTERVALS
    assert held.includes(asked_for)
    assert held == asked_for or len(held) == MOST_INTERVALS


def test_intervals_at_the_ends_of_time() -> None:
    assert ALWAYS in EVERYWHERE.pieces
    assert within(EVERYWHERE) == WHOLE_TABLE
    last = TimeInterval(253_402_300_800_000, ALWAYS.end_ms)  # from the year 10000 on
    assert str(LockResource(interval=last)) == "interval …/…"
    first = TimeInterval(253_402_214_400_000, 253_402_300_800_000)
    assert within(IntervalSet([first])).common(within(IntervalSet([last]))) is None


_SEGMENTS = st.lists(st.sampled_from("01234"), min_size=1, max_size=3, unique=True)
_ENTRIES = st.lists(
    st.tuples(st.sampled_from(list(Mode)), _SEGMENTS, st.integers(0, 2), st.booleans()),
    max_size=6,
)


@given(
    mode=st.sampled_from(list(Mode)),
    names=_SEGMENTS,
    priority=st.integers(0, 2),
    others=_ENTRIES,
)
def test_I24_a_grant_leaves_no_conflicting_holder_and_revokes_only_lower_priorities(
    mode: Mode,
    names: list[str],
    priority: int,
    others: list[tuple[Mode, list[str], int, bool]],
) -> None:
    mine = asked("mine", mode, named(names), priority=priority)
    entries = [
        LockEntry(
            asked(f"op{n}", m, named(s), priority=p),
            EntryState.COMMITTING if committing else EntryState.HELD,
            order=n,
        )
        for n, (m, s, p, committing) in enumerate(others)
    ]
    decision = decide(mine, entries, order=100)
    stands = [e for e in entries if conflict(mine, e.request) is not None]
    if isinstance(decision, Grant):
        assert {e.request.operation for e in stands} == set(decision.revoke)
        assert all(e.state is EntryState.HELD and e.request.priority < priority for e in stands)
    else:
        assert isinstance(decision, Wait)
        assert any(
            e.state is EntryState.COMMITTING or e.request.priority >= priority for e in stands
        )
