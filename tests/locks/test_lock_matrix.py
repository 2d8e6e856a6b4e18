"""The matrix of the design, cell by cell, and what overlaps with what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.locks.conflicts import Grant, Wait, conflict, decide
from tandem.locks.model import (
    WHOLE_TABLE,
    EntryState,
    LockEntry,
    LockInterval,
    LockRequest,
    LockResource,
    Mode,
    segment,
)

# Copied by hand from design.md, section 3, "Locks in etcd": requested → held that it may join.
MAY_STAND_BESIDE = {
    Mode.APPEND: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE, Mode.REPLACE},
    Mode.UPDATE: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE},
    Mode.REWRITE: {Mode.APPEND, Mode.UPDATE},
    Mode.REPLACE: {Mode.APPEND, Mode.REWRITE},
    Mode.EXCLUSIVE: set(),
}


def asked(operation: str, mode: Mode, *resources: LockResource, **fields: object) -> LockRequest:
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
    assert conflict(first, second) == segment("0")
    assert conflict(second, first) == segment("0")


def test_S29_overlapping_intervals_conflict_and_others_do_not() -> None:
    day = LockResource(interval=LockInterval("2013-02-01", "2013-02-02"))
    hour = LockResource(interval=LockInterval("2013-02-01T05", "2013-02-01T06"))
    later = LockResource(interval=LockInterval("2013-02-02", "2013-02-03"))
    assert conflict(asked("a", Mode.REPLACE, day), asked("b", Mode.REPLACE, hour)) == hour
    assert conflict(asked("a", Mode.REPLACE, day), asked("b", Mode.REPLACE, later)) is None


def test_a_segment_of_unknown_interval_overlaps_every_interval() -> None:
    day = LockResource(interval=LockInterval("2013-02-01", "2013-02-02"))
    assert segment("7").overlaps(day)
    assert day.overlaps(segment("7"))
    inside = segment("7", LockInterval("2013-02-03", "2013-02-04"))
    assert not inside.overlaps(day)


def test_the_whole_table_overlaps_everything() -> None:
    assert WHOLE_TABLE.overlaps(segment("0"))
    assert WHOLE_TABLE.overlaps(LockResource(interval=LockInterval("a", "b")))


_SEGMENTS = st.lists(st.sampled_from("01234"), min_size=1, max_size=3, unique=True)
_ENTRIES = st.lists(
    st.tuples(st.sampled_from(list(Mode)), _SEGMENTS, st.integers(0, 2), st.booleans()),
    max_size=6,
)


@given(
    mode=st.sampled_from(list(Mode)),
    segments=_SEGMENTS,
    priority=st.integers(0, 2),
    others=_ENTRIES,
)
def test_I24_a_grant_leaves_no_conflicting_holder_and_revokes_only_lower_priorities(
    mode: Mode,
    segments: list[str],
    priority: int,
    others: list[tuple[Mode, list[str], int, bool]],
) -> None:
    mine = asked("mine", mode, *map(segment, segments), priority=priority)
    entries = [
        LockEntry(
            asked(f"op{n}", m, *map(segment, s), priority=p),
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
