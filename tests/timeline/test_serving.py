"""Which parts a loader shows: the example of Druid's segment locking (S1 to S14), every subset of
it, arbitrary parts against a model made of sets, and histories of compactions with their rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import (
    Part,
    Partial,
    PartState,
    RootRange,
    ServingTimeline,
    StateChange,
)

from support.some import few
from tandem.timeline.names import MAX_MINOR, MAX_NUMBER

ONE, TWO, THREE = (Part(str(n), n - 1, n) for n in (1, 2, 3))
FIVE = Part("5", 3, 4)
FOUR = Part("4", 1, 3, minor=1)
SIX, SEVEN = (Part(name, 1, 4, minor=2, group_size=2) for name in "67")
EIGHT = Part("8", 4, 5)
EIGHT_PARTS = (ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT)
ROWS = {"1": "a", "2": "b", "3": "c", "5": "d", "8": "e", "4": "bc", "6": "b", "7": "cd"}
"""Rows of each part, for one row a load."""


def available(names: str, partial: Partial = Partial.NEVER) -> ServingTimeline:
    """A timeline after single announcements."""
    found = ServingTimeline(partial)
    for part in EIGHT_PARTS:
        if part.name in names:
            found.announce(part)
    return found


def shown(timeline: ServingTimeline) -> tuple[str, str, str]:
    """The names of visible parts, of those on standby and of hidden ones."""
    states = (PartState.VISIBLE, PartState.STANDBY, PartState.HIDDEN)
    by_state = tuple(
        "".join(sorted(part.name for part in timeline.in_state(state))) for state in states
    )
    assert sorted(part.name for part in timeline.visible()) == sorted(by_state[0])
    visible, standby, hidden = by_state
    return visible, standby, hidden


def changes(change: StateChange) -> tuple[str, str, str]:
    visible, standby, hidden = ("".join(sorted(p.name for p in each)) for each in change)
    return visible, standby, hidden


def missing(timeline: ServingTimeline) -> list[tuple[int, int]]:
    return [(each.first, each.end) for each in timeline.missing()]


def test_S1_S2_loads_are_visible() -> None:
    assert shown(available("123")) == ("123", "", "")
    assert shown(available("1235")) == ("1235", "", "")


def test_S3_a_compaction_of_two_loads_hides_them() -> None:
    timeline = available("1235")
    assert changes(timeline.announce(FOUR)) == ("4", "", "23")
    assert shown(timeline) == ("145", "", "23")


def test_S4_S5_half_of_a_group_is_on_standby() -> None:
    timeline = available("12345")
    assert changes(timeline.announce(SIX)) == ("", "6", "")
    assert shown(timeline) == ("145", "6", "23")
    assert changes(timeline.announce(EIGHT)) == ("8", "", "")
    assert shown(timeline) == ("1458", "6", "23")
    assert missing(timeline) == []


@pytest.mark.parametrize("partial", Partial)
def test_S6_a_full_group_appears_at_once(partial: Partial) -> None:
    timeline = available("1234568", partial)
    assert changes(timeline.announce(SEVEN)) == ("67", "", "45")
    assert shown(timeline) == ("1678", "", "2345")


@pytest.mark.parametrize("partial", Partial)
def test_S7_without_a_member_the_older_generation_is_shown(partial: Partial) -> None:
    timeline = available("12345678", partial)
    assert changes(timeline.withdraw(SEVEN)) == ("45", "6", "")
    assert shown(timeline) == ("1458", "6", "23")


@pytest.mark.parametrize("partial", Partial)
def test_S8_and_without_that_one_the_oldest(partial: Partial) -> None:
    timeline = available("1234568", partial)
    assert changes(timeline.withdraw(FOUR)) == ("23", "", "")
    assert shown(timeline) == ("12358", "6", "")


def test_S9_no_full_cover_and_the_partial_group_is_not_shown() -> None:
    timeline = available("1234568")
    assert changes(timeline.withdraw(FIVE)) == ("", "", "")
    assert shown(timeline) == ("148", "6", "23")
    assert missing(timeline) == [(3, 4)]


def test_S9_no_full_cover_and_the_partial_group_is_shown_on_request() -> None:
    timeline = available("1234568", Partial.SHOW)
    assert changes(timeline.withdraw(FIVE)) == ("6", "", "4")
    assert shown(timeline) == ("168", "", "234")
    assert missing(timeline) == [(1, 4)]


@pytest.mark.parametrize("partial", Partial)
def test_S10_without_the_partial_group_what_is_there(partial: Partial) -> None:
    timeline = available("123468", partial)
    timeline.withdraw(SIX)
    assert shown(timeline) == ("148", "", "23")
    # Nothing that is available tells of load 3; the table's segments do.
    assert missing(timeline) == []
    assert timeline.missing([RootRange("", 0, 5)]) == (RootRange("", 3, 4),)


def test_S11_the_older_generations_are_gone() -> None:
    timeline = available("1678")
    assert changes(timeline.withdraw(SEVEN)) == ("", "6", "")
    assert shown(timeline) == ("18", "6", "")
    assert missing(timeline) == [(1, 4)]
    showing = available("1678", Partial.SHOW)
    assert changes(showing.withdraw(SEVEN)) == ("", "", "")
    assert shown(showing) == ("168", "", "")


@pytest.mark.parametrize("partial", Partial)
@pytest.mark.parametrize("without", ["", "5", "2345"])
def test_S12_the_member_comes_back(partial: Partial, without: str) -> None:
    timeline = available("".join(set("1234568") - set(without)), partial)
    timeline.announce(SEVEN)
    assert shown(timeline) == ("1678", "", "".join(sorted(set("2345") - set(without))))


def test_S13_every_order_of_announcements_ends_the_same() -> None:
    ends = set()
    for order in permutations(EIGHT_PARTS):
        timeline = ServingTimeline()
        for part in order:
            timeline.announce(part)
        ends.add(frozenset(part.name for part in timeline.visible()))
    assert ends == {frozenset("1678")}
    assert shown(timeline) == ("1678", "", "2345")


def test_S14_announced_twice_or_by_a_second_server() -> None:
    timeline = available("12345678")
    before = shown(timeline)
    for holder in ("", "second", "second"):
        assert timeline.announce(SEVEN, holder) == StateChange()
    assert timeline.holders("7") == ("", "second")
    # The hand-off: the first one lets go.
    assert timeline.withdraw(SEVEN) == StateChange()
    assert shown(timeline) == before
    assert timeline.withdraw(SEVEN) == timeline.withdraw(SEVEN, "third") == StateChange()
    timeline.load(EIGHT_PARTS, "fourth")
    assert timeline.withdraw(SEVEN, "second") == StateChange()
    assert shown(timeline) == before
    timeline.withdraw(SEVEN, "fourth")
    assert shown(timeline)[0] == "1458"
    assert timeline.holders("7") == ()


def test_S23_limits_have_clear_errors() -> None:
    Part("last", MAX_NUMBER, MAX_NUMBER + 1, minor=MAX_MINOR)
    with pytest.raises(ValueError, match="part x: the root range"):
        Part("x", MAX_NUMBER, MAX_NUMBER + 2)
    with pytest.raises(ValueError, match="part x: the root range"):
        Part("x", 3, 3)
    with pytest.raises(ValueError, match="part x: the minor version 2147483648"):
        Part("x", 0, 1, minor=MAX_MINOR + 1)
    with pytest.raises(ValueError, match="a group of 0 parts"):
        Part("x", 0, 1, group_size=0)


def subsets(parts: Iterable[Part]) -> Iterable[tuple[Part, ...]]:
    parts = list(parts)
    return chain.from_iterable(combinations(parts, n) for n in range(len(parts) + 1))


@pytest.mark.parametrize("partial", Partial)
def test_in_all_256_subsets_no_row_is_shown_twice(partial: Partial) -> None:
    for parts in subsets(EIGHT_PARTS):
        loaded = ServingTimeline(partial)
        loaded.load(parts)
        rows = "".join(ROWS[part.name] for part in loaded.visible())
        assert len(rows) == len(set(rows)), parts
        singly = available("".join(part.name for part in parts), partial)
        assert shown(singly) == shown(loaded)
        left = loaded.missing([RootRange("", 0, 5)])
        lost = {"abcde"[load] for each in left for load in range(each.first, each.end)}
        if partial is Partial.NEVER:
            assert set(rows) | lost == set("abcde")
            assert not set(rows) & lost, "what is shown are rows of one version"
        else:
            assert set(rows) | lost == set("abcde")


def test_chunks_do_not_meet() -> None:
    timeline = ServingTimeline()
    timeline.load(
        [Part("a", 0, 1, chunk="x"), Part("b", 1, 2, chunk="y"), Part("c", 2, 3, chunk="x")]
    )
    # A compaction of loads 0 and 2, between which chunk x has no other.
    change = timeline.announce(Part("d", 0, 3, minor=1, chunk="x"))
    assert changes(change) == ("d", "", "ac")
    assert {part.name for part in timeline.visible()} == {"b", "d"}
    timeline.withdraw(Part("d", 0, 3, minor=1, chunk="x"))
    assert timeline.missing([RootRange("x", 0, 3), RootRange("z", 7, 9)]) == (
        RootRange("x", 1, 2),
        RootRange("z", 7, 9),
    )


def test_two_parts_of_one_name_are_refused() -> None:
    timeline = ServingTimeline()
    timeline.announce(ONE)
    other = Part("1", 5, 6)
    with pytest.raises(ValueError, match="two parts are named 1"):
        timeline.announce(other)
    with pytest.raises(ValueError, match="two parts are named 1"):
        timeline.load([TWO, other])
    with pytest.raises(ValueError, match="two parts are named 2"):
        timeline.load([TWO, Part("2", 5, 6)])
    assert (len(timeline), "2" in timeline, timeline.state_of("1")) == (1, False, PartState.VISIBLE)
    timeline.load([TWO, TWO, ONE])
    assert len(timeline) == 2


def test_a_group_with_more_parts_than_it_has_is_not_shown() -> None:
    """Which of them hold which rows is unknown."""
    for timeline in (available("23"), available("235")):
        timeline.announce(FOUR)
        more = Part("4'", 1, 3, minor=1)
        assert changes(timeline.announce(more))[:2] == ("23", "44'")
        assert changes(timeline.withdraw(FOUR)) == ("4'", "", "23")


def test_few_parts_loaded_into_many_keep_the_index() -> None:
    timeline = ServingTimeline()
    timeline.load(Part(f"{n}", n, n + 1) for n in range(100))
    assert timeline.state_of("7") is PartState.VISIBLE
    timeline.load([Part("c0", 0, 50, 1, 2)])
    assert timeline.state_of("c0") is PartState.STANDBY
    timeline.load([Part("c1", 0, 50, 1, 2)])
    assert timeline.state_of("7") is PartState.HIDDEN
    timeline.load(Part(f"{n}", n, n + 1) for n in range(100, 200))
    assert len(timeline.visible()) == 152


# Arbitrary parts: also such as no history of compactions makes.

NUMBERS = st.integers(0, 6)


@st.composite
def some_parts(draw: st.DrawFn) -> Part:
    first = draw(NUMBERS)
    end = draw(st.integers(first + 1, 8))
    minor, size = draw(st.integers(0, 2)), draw(st.sampled_from([1, 1, 1, 2]))
    number = draw(st.sampled_from([*range(size), *range(size), size]))
    return Part(f"{first}-{end}.{minor}/{size}#{number}", first, end, minor, size)


STEPS = st.lists(st.tuples(st.sampled_from([True, True, False]), some_parts()), max_size=40)


def model(parts: set[Part]) -> dict[Part, PartState]:
    """The rule, with sets of loads."""
    groups: dict[tuple[int, int, int, int], set[Part]] = {}
    for part in parts:
        groups.setdefault(part.order, set()).add(part)
    covered: set[int] = set()
    found: dict[Part, PartState] = {}
    for order in sorted(groups):
        members = groups[order]
        some = next(iter(members))
        if some.first in covered:
            state = PartState.HIDDEN
        elif len(members) == some.group_size:
            state = PartState.VISIBLE
            covered |= set(range(some.first, some.end))
        else:
            state = PartState.STANDBY
        found |= dict.fromkeys(members, state)
    return found


def by_name(part: Part) -> str:
    return part.name


def states(timeline: ServingTimeline) -> dict[Part, PartState]:
    return {part: state for state in PartState for part in timeline.in_state(state)}


@settings(max_examples=few(50, 400))
@given(STEPS, st.data())
def test_announcements_and_withdrawals_follow_the_model(
    steps: list[tuple[bool, Part]], data: st.DataObject
) -> None:
    timeline = ServingTimeline()
    parts: set[Part] = set()
    for add, part in steps:
        before = model(parts)
        if add:
            change = timeline.announce(part)
            parts.add(part)
        else:
            part = data.draw(st.sampled_from(sorted(parts, key=by_name))) if parts else part
            change = timeline.withdraw(part)
            parts.discard(part)
        after = model(parts)
        assert states(timeline) == after
        reported = dict(zip(PartState, change, strict=True))
        became = {
            state: {p for p, now in after.items() if now is state and before.get(p) is not state}
            for state in PartState
        }
        assert {state: set(each) for state, each in reported.items()} == became
        assert all(len(each) == len(set(each)) for each in change)
    loaded = ServingTimeline()
    half = len(parts) // 2
    ordered = sorted(parts, key=by_name)
    loaded.load(ordered[:half])
    if data.draw(st.booleans()):
        states(loaded)
    loaded.load(ordered[half:])
    assert set(loaded.visible()) == {p for p, s in model(parts).items() if s is PartState.VISIBLE}
    assert states(loaded) == states(timeline)
    assert loaded.missing() == timeline.missing()


@given(st.permutations(range(10)), st.lists(some_parts(), min_size=10, max_size=10, unique=True))
def test_whatever_tags_claim_no_range_is_shown_twice(order: list[int], parts: list[Part]) -> None:
    loaded, singly = ServingTimeline(Partial.SHOW), ServingTimeline(Partial.SHOW)
    loaded.load(parts)
    for at in order:
        singly.announce(parts[at])
    assert states(loaded) == states(singly)
    ranges = sorted({(part.first, part.end) for part in loaded.visible()})
    assert all(one[1] <= next_[0] for one, next_ in pairwise(ranges))


@given(st.lists(some_parts(), max_size=12), st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
def test_missing_is_what_no_full_visible_group_covers(
    parts: list[Part], wanted: list[tuple[int, int]]
) -> None:
    timeline = ServingTimeline()
    timeline.load(parts)
    complete = {load for p in timeline.visible() for load in range(p.first, p.end)}

    def loads(ranges: Iterable[RootRange]) -> set[int]:
        return {load for each in ranges for load in range(each.first, each.end)}

    known = {load for part in parts for load in range(part.first, part.end)}
    assert loads(timeline.missing()) == known - complete
    expected = [RootRange("", *each) for each in wanted if each[0] < each[1]]
    found = timeline.missing(expected)
    assert loads(found) == loads(expected) - complete
    assert list(found) == sorted(found)
    assert all(one.end < next_.first for one, next_ in pairwise(found))


# Histories of compactions, with the rows of each part.


@st.composite
def histories(draw: st.DrawFn) -> dict[Part, frozenset[int]]:
    """All parts that there have ever been, and their rows: row `10 * load + n`."""
    loads = draw(st.integers(1, 7))
    live: list[list[Part]] = []
    rows: dict[Part, frozenset[int]] = {}

    def write(first: int, end: int, minor: int, of: Iterable[int]) -> list[Part]:
        size = draw(st.integers(1, 3))
        split: list[set[int]] = [set() for _ in range(size)]
        for row in of:
            split[draw(st.integers(0, size - 1))].add(row)
        group = [Part(f"{first}-{end}.{minor}#{n}", first, end, minor, size) for n in range(size)]
        rows.update(zip(group, map(frozenset, split), strict=True))
        return group

    for load in range(loads):
        live.append(write(load, load + 1, 0, range(10 * load, 10 * load + 3)))
    for _ in range(draw(st.integers(0, 5))):
        low = draw(st.integers(0, len(live) - 1))
        high = draw(st.integers(low + 1, len(live)))
        inputs = [part for group in live[low:high] for part in group]
        minor = 1 + max(part.minor for part in inputs)
        first, end = inputs[0].first, inputs[-1].end
        live[low:high] = [write(first, end, minor, set().union(*(rows[p] for p in inputs)))]
    return rows


@given(histories(), st.sampled_from(Partial), st.data())
def test_I58_what_is_shown_are_rows_of_one_version_or_their_range_is_reported(
    rows: dict[Part, frozenset[int]], partial: Partial, data: st.DataObject
) -> None:
    """Also I-34: a group is shown when it is full, a partial one only where no older ones tile."""
    parts = sorted(rows, key=by_name)
    there = data.draw(st.sets(st.sampled_from(parts)))
    timeline = ServingTimeline(partial)
    for part in data.draw(st.permutations(sorted(there, key=by_name))):
        timeline.announce(part)
    others = data.draw(st.lists(st.sampled_from(parts), max_size=4))
    for part in others:  # come and go
        if part not in there:
            timeline.announce(part)
    for part in others:
        if part not in there:
            timeline.withdraw(part)

    seen = [row for part in timeline.visible() for row in rows[part]]
    assert len(seen) == len(set(seen)), "a row is shown twice"
    loads = max(part.end for part in parts)
    left = {
        load
        for each in timeline.missing([RootRange("", 0, loads)])
        for load in range(each.first, each.end)
    }
    every = set().union(*rows.values())
    assert {row for row in every if row // 10 not in left} <= set(seen)
    if partial is Partial.NEVER:
        assert not {row // 10 for row in seen} & left
    full = {p for p in there if sum(q.order == p.order for q in there) == p.group_size}
    for part in timeline.visible():
        if part not in full:
            assert partial is Partial.SHOW
            assert not tiled(part, full)
    if partial is Partial.NEVER:
        hidden_by = {p for p in full if any(overshadows(q, p) for q in full)}
        assert set(timeline.visible()) == full - hidden_by


def overshadows(a: Part, b: Part) -> bool:
    """I-31."""
    return a.first <= b.first and b.end <= a.end and a.minor > b.minor


def tiled(part: Part, full: set[Part]) -> bool:
    reached = {part.first}
    for load in range(part.first, part.end):
        if load in reached:
            reached |= {p.end for p in full if p.first == load and overshadows(part, p)}
    return part.end in reached


@given(histories(), st.data())
def test_with_partial_groups_the_state_is_a_function_of_the_set_too(
    rows: dict[Part, frozenset[int]], data: st.DataObject
) -> None:
    there = data.draw(st.sets(st.sampled_from(sorted(rows, key=by_name))))
    loaded = ServingTimeline(Partial.SHOW)
    loaded.load(there)
    singly = ServingTimeline(Partial.SHOW)
    reported: dict[Part, PartState] = {}
    for part in data.draw(st.permutations(sorted(rows, key=by_name))):
        reported |= said(singly.announce(part))
    for part in data.draw(st.permutations(sorted(set(rows) - there, key=by_name))):
        reported |= said(singly.withdraw(part))
        reported.pop(part)
    assert states(singly) == states(loaded) == reported
    for part in there:
        singly.withdraw(part)
    assert (len(singly), singly.visible(), singly.missing()) == (0, [], ())
    assert not singly._chunks


def said(change: StateChange) -> dict[Part, PartState]:
    return {part: state for state, each in zip(PartState, change, strict=True) for part in each}
