"""Locks: their bytes, their mirror, and which of them conflict."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import LocksUnavailable
from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.locks import codec
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

# How locks are written: what is read is what was written, for every name and state.


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_NAMES = st.one_of(_TEXT, st.sampled_from(["0", "0.1", "f-12ab", "\\u0000", "\\", '"', "a\0b"]))
_MOMENTS = st.one_of(
    st.integers(-(2**55), 2**55), st.sampled_from([ALWAYS.start_ms, ALWAYS.end_ms])
)
_TIMES = st.one_of(
    st.just(EVERYWHERE),
    st.lists(st.builds(TimeInterval, _MOMENTS, _MOMENTS), max_size=5).map(IntervalSet),
)
_RESOURCES = st.builds(
    LockResources, st.lists(_NAMES.filter(bool), max_size=5, unique=True).map(tuple), _TIMES
)
_ENTRIES = st.builds(
    LockEntry,
    st.builds(
        LockRequest,
        table=_TEXT,
        operation=_TEXT,
        mode=st.sampled_from(Mode),
        resources=_RESOURCES,
        owner=_TEXT,
        priority=st.integers(-5, 5),
        display=_TEXT,
        row_concurrency=st.booleans(),
    ),
    st.sampled_from(EntryState),
    order=st.just(codec.order(7, 3)),
    token=st.integers(1, 2**62),
    revoked_by=_TEXT,
)


@given(entry=_ENTRIES)
def test_values_round_trip(entry: LockEntry) -> None:
    if entry.state is EntryState.WAITING:
        entry = replace(entry, token=0)
    value = codec.encode(entry, 3)
    assert codec.decode(value, created=7, modified=9) == (entry, 3)


@given(entry=_ENTRIES)
def test_any_json_library_reads_the_segments(entry: LockEntry) -> None:
    found = json.loads(codec.encode(entry))
    resources = entry.request.resources
    if resources.names:
        assert tuple(found["resources"]) == resources.names
    pairs = found.get("intervals", [[None, None]])
    assert len(pairs) == len(resources.intervals)
    assert found["table"] == entry.request.table


def test_the_token_of_a_grant_is_its_revision() -> None:
    entry = LockEntry(LockRequest("t", "a", Mode.REWRITE, segment("0")), EntryState.HELD, 0)
    read, _ = codec.decode(codec.encode(entry), created=5, modified=9)
    assert read.token == 9
    again, _ = codec.decode(codec.encode(read), created=5, modified=12)
    assert again.token == 9


def test_a_thousand_segments_are_a_small_value() -> None:
    hours = (
        TimeInterval(n * 3_600_000, n * 3_600_000 + 1_800_000) for n in range(380_000, 380_200)
    )
    resources = named((str(number) for number in range(1000)), IntervalSet(hours))
    assert len(resources.intervals) == 64
    entry = LockEntry(LockRequest("t", "a", Mode.REWRITE, resources), EntryState.HELD, 0)
    value = codec.encode(entry)
    assert len(value) < 8000
    assert codec.decode(value, created=1, modified=1)[0].request.resources == resources


@given(table=_TEXT, operation=_TEXT)
def test_keys_are_within_their_table_and_name_the_operation(table: str, operation: str) -> None:
    keys = codec.LockKeys("/tandem/v1/").table(table)
    key = keys.of(operation)
    assert keys.start < keys.head < keys.end
    assert keys.operations <= key < keys.operations_end
    assert keys.operation(key) == operation
    assert keys.operation(keys.head) is None
    assert codec.LockKeys("/tandem/v1").id_of(key) == codec.table_id(table)


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b'"x"', b"{}", b'{"version":1}', b"\xff", b'{"version":1,"mode":"?"}'],
)
def test_foreign_values_are_refused(value: bytes) -> None:
    with pytest.raises(LocksUnavailable, match="cannot be read"):
        codec.decode(value, created=1, modified=1)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(LocksUnavailable, match="later version"):
        codec.decode(b'{"version":2,"mode":"New"}', created=1, modified=1)


def of_before(operation: str, *resources: object, **more: object) -> bytes:
    """A value as the version before wrote it: intervals are text."""
    fields = {"version": 1, "table": "t", "operation": operation, "display": "", "owner": "w"}
    state = {"mode": "Replace", "state": "held", "priority": 0, **more}
    return json.dumps({**fields, **state, "resources": resources}).encode()


def read_before(*resources: object, **more: object) -> LockResources:
    value = of_before("o", *resources, **more)
    return codec.decode(value, created=1, modified=1)[0].request.resources


def iso(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_entries_of_the_version_before_are_understood() -> None:
    assert read_before("0", "0.1") == named(["0", "0.1"])
    assert read_before(["", "", ""]) == WHOLE_TABLE
    assert read_before() == NOTHING
    day = TimeInterval(iso("2013-02-01T00:00:00Z"), iso("2013-02-02T00:00:00Z"))
    assert read_before(["", "2013-02-01", "2013-02-02T00:00:00.000Z"]) == within(IntervalSet([day]))
    assert read_before(["7", "2013-02-01T01:00+01:00", "2013-02-02"]) == segment(
        "7", IntervalSet([day])
    )
    after = TimeInterval(day.start_ms, ALWAYS.end_ms)
    assert read_before(["", "2013-02-01", ""]) == within(IntervalSet([after]))
    # Together they are intervals; one that cannot be read, or has no moment, is all of time.
    two = [["7", "2013-02-01", "2013-02-02"], ["", "2013-02-02", "2013-02-03"]]
    assert len(read_before(*two)) == 1
    assert read_before(*two).names == ()
    assert read_before("7", ["", "2013-02-02", "2013-02-03"]) == WHOLE_TABLE
    for odd in (["", "gestern", "morgen"], ["", "2013-02-02", "2013-02-01"]):
        assert read_before(odd) == WHOLE_TABLE
    # Half a millisecond is in the interval, too.
    assert read_before(["", "1970-01-01", "1970-01-01T00:00:00.0005Z"]) == within(
        IntervalSet([TimeInterval(0, 1)])
    )


@pytest.mark.parametrize(
    ("held", "wanted", "meet"),
    [
        # As text, "01:00:00.000Z" sorts before "01:00:00Z".
        (("2013-01-01T00:00:00Z", "2013-01-01T01:00:00Z"),
         ("2013-01-01T01:00:00.000Z", "2013-01-01T02:00:00Z"), False),
        (("2013-01-01T01:00:00Z", "2013-01-01T02:00:00Z"),
         ("2013-01-01T00:00:00Z", "2013-01-01T01:00:00.001Z"), True),
        # And the year 10000 before the year 9999.
        (("9999-01-01T00:00:00Z", ""), ("9998-01-01T00:00:00Z", "10000-01-01T00:00:00Z"), True),
        # And an offset counts.
        (("2013-01-01T00:00:00Z", "2013-01-01T01:00:00Z"),
         ("2013-01-01T02:30:00+02:00", "2013-01-01T04:00:00+02:00"), True),
    ],
)  # fmt: skip
def test_intervals_are_compared_as_times_not_as_text(
    held: tuple[str, str], wanted: tuple[str, str], meet: bool
) -> None:
    one, other = (
        codec.decode(of_before(name, ["", *each]), created=1, modified=1)[0].request
        for name, each in (("one", held), ("other", wanted))
    )
    assert (conflict(one, other) is not None) == meet
    assert (conflict(other, one) is not None) == meet


def test_the_years_9999_and_10000_are_in_order() -> None:
    last = TimeInterval(iso("9999-01-01T00:00:00Z"), iso("9999-12-31T00:00:00Z") + 86_400_000)
    next_ = TimeInterval(last.end_ms, last.end_ms + 86_400_000)
    for one, other in ((last, next_), (next_, last)):
        entries = (
            LockEntry(
                LockRequest("t", str(each), Mode.REPLACE, within(IntervalSet([each]))),
                EntryState.HELD,
                0,
            )
            for each in (one, other)
        )
        read = [codec.decode(codec.encode(e), created=1, modified=1)[0].request for e in entries]
        assert conflict(*read) is None


@given(entry=_ENTRIES)
def test_the_version_before_reads_what_is_written_as_no_less(entry: LockEntry) -> None:
    """It knows neither `intervals` nor which fields there are; it looked at these."""
    found = json.loads(codec.encode(entry))
    assert found["version"] == 1
    resources = entry.request.resources
    for each in found["resources"]:
        assert each in resources.names if isinstance(each, str) else each == ["", "", ""]
    if resources.names:
        assert len(found["resources"]) == len(resources.names)  # each of unknown time
    else:
        assert bool(found["resources"]) == bool(resources)


@pytest.mark.parametrize(
    "wrong", [5, {}, [1], [[1]], [[1, "2"]], [[2, 1]], [[True, 2]], [[1, 2, 3]], [[1.5, 2]]]
)
def test_intervals_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(LocksUnavailable, match="cannot be read"):
        read_before("0", intervals=wrong)


@pytest.mark.parametrize("wrong", [[5], [["0", "a"]], [[0, "", ""]], [["0", 1, ""]], 5, [None]])
def test_resources_that_are_none_are_refused(wrong: object) -> None:
    value = json.dumps({**json.loads(of_before("o")), "resources": wrong}).encode()
    with pytest.raises(LocksUnavailable, match="cannot be read"):
        codec.decode(value, created=1, modified=1)


# The matrix of docs/locks.md, cell by cell, and what overlaps with what.


# Written by hand, not read from the rules: requested → held that it may join.
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
def test_modes_join_as_the_design_says(requested: Mode, held: Mode) -> None:
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


_FEW_MOMENTS = st.integers(0, 20)
_FEW_TIMES = st.one_of(
    st.just(EVERYWHERE),
    st.lists(st.builds(TimeInterval, _FEW_MOMENTS, _FEW_MOMENTS), max_size=4).map(IntervalSet),
)
_FEW_RESOURCES = st.builds(
    LockResources,
    st.lists(st.sampled_from("0123"), max_size=3, unique=True).map(tuple),
    _FEW_TIMES,
)


def moments(found: IntervalSet) -> set[int]:
    """Slow and obvious; moments beyond 0–20 are alike."""
    return {at for at in range(-1, 22) if any(p.start_ms <= at < p.end_ms for p in found.pieces)}


@given(_FEW_RESOURCES, _FEW_RESOURCES)
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


@given(_FEW_RESOURCES, _FEW_RESOURCES, _FEW_RESOURCES)
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


@given(_FEW_RESOURCES, _FEW_RESOURCES)
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
_FEW_ENTRIES = st.lists(
    st.tuples(st.sampled_from(list(Mode)), _SEGMENTS, st.integers(0, 2), st.booleans()),
    max_size=6,
)


@given(
    mode=st.sampled_from(list(Mode)),
    names=_SEGMENTS,
    priority=st.integers(0, 2),
    others=_FEW_ENTRIES,
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
