"""The index of a timeline against a list of pieces that is searched from end to end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.timeline import working_set as index_
from tandem.timeline.working_set import Piece, TimelineIndex

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 366 * DAY

Parts = dict[str, IntervalSet]


def hours(start: int, end: int) -> TimeInterval:
    return TimeInterval(start * HOUR, end * HOUR)


def names(pieces: tuple[Piece, ...]) -> list[str]:
    return [piece.part for piece in pieces]


class Model:
    """Every question is answered by looking at all pieces."""

    def __init__(self) -> None:
        self.parts: Parts = {}

    def pieces(self) -> list[Piece]:
        return sorted(
            Piece(each.start_ms, each.end_ms, name)
            for name, visible in self.parts.items()
            for each in visible
        )

    def apply(self, adds: Parts, removes: list[str]) -> set[TimeInterval]:
        before = self.parts
        self.parts = {k: v for k, v in self.parts.items() if k not in removes} | adds
        return {
            each
            for name in {*adds, *removes}
            for parts in (before, self.parts)
            for each in parts.get(name, IntervalSet())
        }

    def lookup(self, interval: TimeInterval) -> tuple[Piece, ...]:
        if interval.start_ms >= interval.end_ms:
            return ()
        return tuple(piece for piece in self.pieces() if piece.interval.overlaps(interval))

    def holes(self) -> tuple[TimeInterval, ...]:
        known = IntervalSet(p.interval for p in self.pieces() if p.interval != ALWAYS)
        return (IntervalSet([known.hull] if known.hull else []) - known).pieces


BORDERS = st.one_of(
    st.integers(-40, 40),
    st.integers(-40, 40).map(lambda n: n * HOUR),
    st.integers(-40, 40).map(lambda n: n * YEAR // 7),
    # The borders of buckets, and next to them.
    st.builds(
        lambda n, shift, by: (n << shift) + by,
        st.integers(-2, 2),
        st.sampled_from([4, 20, 32, 36]),
        st.integers(-1, 1),
    ),
)
INTERVALS = st.builds(TimeInterval, BORDERS, BORDERS)
VISIBLE = st.one_of(
    st.lists(INTERVALS, max_size=4).map(IntervalSet), st.just(IntervalSet([ALWAYS]))
)
NAMES = st.sampled_from([f"s{n}" for n in range(24)])
STEPS = st.lists(
    st.tuples(st.dictionaries(NAMES, VISIBLE, max_size=8), st.lists(NAMES, max_size=6)),
    max_size=12,
)


@pytest.mark.parametrize("most", [2, 24])
@given(steps=STEPS, asked=st.lists(INTERVALS, max_size=6))
def test_an_index_answers_as_a_list_does(
    most: int, steps: list[tuple[Parts, list[str]]], asked: list[TimeInterval]
) -> None:
    found, model = TimelineIndex(), Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_, "_MOST", most)
        for adds, removes in steps:
            changed = found.apply(adds, removes)
            assert list(changed) == sorted(model.apply(adds, removes))
            for interval in [*asked, *changed, ALWAYS]:
                assert found.lookup(interval) == model.lookup(interval)
            assert found.holes() == model.holes()
            assert len(found) == len(model.parts)
            assert set(found.chunks) == {piece.interval for piece in model.pieces()}
        for name in list(model.parts):
            assert found.pieces_of(name) == tuple(p for p in model.pieces() if p.part == name)
            found.apply({}, [name])
    # Nothing is left of what is gone.
    assert (len(found), found.hull, found.lookup(ALWAYS)) == (0, None, ())
    assert (found._buckets, found._long, found._chunks) == ({}, {}, {})


@given(steps=STEPS, asked=st.lists(INTERVALS, max_size=6))
def test_the_answers_depend_on_the_parts_and_not_on_the_way_to_them(
    steps: list[tuple[Parts, list[str]]], asked: list[TimeInterval]
) -> None:
    walked = TimelineIndex()
    model = Model()
    for adds, removes in steps:
        walked.apply(adds, removes)
        model.apply(adds, removes)
    at_once = TimelineIndex()
    at_once.apply(model.parts)
    for interval in asked:
        assert walked.lookup(interval) == at_once.lookup(interval)
    assert (walked.holes(), walked.hull) == (at_once.holes(), at_once.hull)


def test_D41_a_day_replaced_by_24_hours() -> None:
    found = TimelineIndex()
    day = hours(0, 24)
    found.apply({"s1": IntervalSet([day])})
    by_hour = {f"sr{hour:02}": IntervalSet([hours(hour, hour + 1)]) for hour in range(24)}

    changed = found.apply(by_hour, ["s1"])

    assert set(changed) == {day, *(hours(hour, hour + 1) for hour in range(24))}
    assert names(found.lookup(day)) == sorted(by_hour)
    assert names(found.lookup(hours(22, 23))) == ["sr22"]
    assert found.holes() == ()


@pytest.mark.parametrize("tombstone", [False, True])
def test_D42_three_hours_replaced_one_of_them_by_nothing(tombstone: bool) -> None:
    found = TimelineIndex()
    day = IntervalSet([hours(0, 24)])
    found.apply({"s1": day})
    masked = [hours(21, 24)] if tombstone else [hours(21, 22), hours(23, 24)]

    found.apply({
        "s1": day - IntervalSet(masked),
        "sr21": IntervalSet([hours(21, 22)]),
        "sr23": IntervalSet([hours(23, 24)]),
    })  # fmt: skip

    assert names(found.lookup(hours(22, 23))) == ([] if tombstone else ["s1"])
    assert found.holes() == ((hours(22, 23),) if tombstone else ())
    assert names(found.lookup(hours(20, 21))) == ["s1"]
    assert names(found.lookup(hours(21, 22))) == ["sr21"]


def test_D58_two_masks_over_a_day_leave_three_pieces() -> None:
    found = TimelineIndex()
    day = IntervalSet([hours(0, 24)])
    found.apply({"s1": day})
    first = day - IntervalSet([hours(6, 8)])
    found.apply({"s1": first})

    found.apply({"s1": first - IntervalSet([hours(12, 15)])})

    pieces = found.lookup(hours(0, 24))
    assert [piece.interval for piece in pieces] == [hours(0, 6), hours(8, 12), hours(15, 24)]
    assert names(pieces) == ["s1"] * 3
    assert found.holes() == (hours(6, 8), hours(12, 15))
    assert found.lookup(hours(12, 15)) == ()


def test_D59_a_long_part_over_many_chunks_while_a_bucket_splits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same answers before and after the split."""
    parts = {f"h{hour:03}": IntervalSet([hours(hour, hour + 1)]) for hour in range(100)}
    parts["long"] = IntervalSet([hours(-500, 500)])
    parts["days"] = IntervalSet([hours(-3, 50)])

    def answers(found: TimelineIndex) -> list[tuple[Piece, ...]]:
        asked = [hours(at, at + width) for at in range(-520, 520, 7) for width in (1, 5, 60)]
        return [found.lookup(interval) for interval in [*asked, ALWAYS]]

    monkeypatch.setattr(index_, "_MOST", len(parts))
    whole = TimelineIndex()
    whole.apply(parts)
    assert all(bucket.children is None for bucket in whole._buckets.values())
    before = answers(whole)

    whole.apply({"one more": IntervalSet([hours(7, 8)])})
    monkeypatch.setattr(index_, "_MOST", 16)
    split = TimelineIndex()
    split.apply(parts)
    assert any(bucket.children for bucket in split._buckets.values())
    assert answers(split) == before
    split.apply({"one more": IntervalSet([hours(7, 8)])})
    assert answers(split) == answers(whole)


@pytest.mark.parametrize("length", [(1 << 36) - 1, 1 << 36, (1 << 36) + 1])
@pytest.mark.parametrize("start", [-1, 0, 1])
def test_the_widest_bucket_and_what_is_longer(start: int, length: int) -> None:
    found = TimelineIndex()
    piece = Piece(start, start + length, "s1")
    found.apply({"s1": IntervalSet([piece.interval])})
    assert found.lookup(TimeInterval(start, start + 1)) == (piece,)
    assert found.lookup(TimeInterval(piece.end_ms - 1, piece.end_ms)) == (piece,)
    assert found.lookup(ALWAYS) == (piece,)
    assert found.lookup(TimeInterval(piece.end_ms, piece.end_ms + 1)) == ()
    assert found.apply({}, ["s1"]) == (piece.interval,)
    assert found.lookup(ALWAYS) == ()


def test_a_part_that_is_hidden_is_known_but_found_nowhere() -> None:
    found = TimelineIndex()
    found.apply({"s1": IntervalSet([hours(0, 1)])})
    assert found.apply({"s1": IntervalSet()}) == (hours(0, 1),)
    assert ("s1" in found, found.pieces_of("s1"), found.lookup(ALWAYS)) == (True, (), ())
    assert found.apply({}, ["s1", "never there"]) == ()
    assert "s1" not in found


def test_a_part_of_unknown_time_is_in_every_answer_and_closes_no_hole() -> None:
    found = TimelineIndex()
    found.apply({"s?": IntervalSet([ALWAYS])})
    assert (found.hull, found.holes()) == (None, ())
    found.apply({"s1": IntervalSet([hours(0, 1)]), "s2": IntervalSet([hours(5, 6)])})
    assert names(found.lookup(hours(3, 4))) == ["s?"]
    assert found.hull == hours(0, 6)
    assert found.holes() == (hours(1, 5),)
    assert found.lookup(hours(4, 4)) == ()


def shifted(count: int) -> Iterator[tuple[str, IntervalSet]]:
    """Parts of 24 hours, each a minute later."""
    for n in range(count):
        yield f"s{n}", IntervalSet([TimeInterval(n * MINUTE, n * MINUTE + DAY)])


def test_parts_of_a_day_each_a_minute_later_are_withdrawn_singly() -> None:
    """Druid's timeline took minutes for a thousand of them (issue 8846)."""
    found = TimelineIndex()
    parts = dict(shifted(5_000))
    found.apply(parts)
    at = TimeInterval(2_000 * MINUTE, 2_001 * MINUTE)
    assert len(found.lookup(at)) == DAY // MINUTE
    started = time.process_time()
    for name in parts:
        found.apply({}, [name])
    assert time.process_time() - started < 5
    assert len(found) == 0
