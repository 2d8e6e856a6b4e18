"""Which record wins, against slow and obvious models: all types of keys and of ordering columns."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.values.kinds import KINDS, Kind
from tandem.mergelog.by_key import (
    KeyIndex,
    Overlay,
    Records,
    concatenate,
    in_force,
    kept_by_stitching,
    number_keys,
    rank,
    winners,
)

Key = tuple[Any, ...]
PLAIN = [kind for kind in KINDS if not pa.types.is_struct(kind.arrow)]
KEYS = [kind for kind in PLAIN if not pa.types.is_floating(kind.arrow)]
LONG = next(kind for kind in KINDS if kind.name == "i64")


def values(kind: Kind) -> st.SearchStrategy[Any]:
    return st.sampled_from([*kind.extremes, kind.ordinary])


def weight(value: Any) -> tuple[int, Any]:
    """The place of a value in Spark's order: NULL first, NaN last, one zero, texts by bytes."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


@dataclass(frozen=True)
class Case:
    """Records as Python values: `(key, instant)` is unique."""

    kinds: tuple[Kind, ...]
    order_kind: Kind | None
    keys: tuple[Key, ...]
    instants: tuple[int, ...]
    deleted: tuple[bool, ...]
    orders: tuple[Any, ...]

    @property
    def records(self) -> Records:
        return Records(
            key_columns(self.kinds, self.keys),
            None if self.order_kind is None else self.order_kind.array(self.orders),
            np.array(self.instants, np.int64),
            np.array(self.deleted, bool),
        )

    def beats(self, one: int, other: int) -> bool:
        """Whether a record wins against another one of its key."""
        mine, its = self.place(one), self.place(other)
        return mine > its

    def place(self, at: int) -> tuple[tuple[int, Any], int]:
        order = weight(self.orders[at]) if self.order_kind is not None else (0, 0)
        return (order, self.instants[at])

    def winners(self, among: Sequence[int]) -> list[int]:
        return [
            at
            for at in among
            if not any(self.keys[at] == self.keys[o] and self.beats(o, at) for o in among)
        ]

    def in_force(self, mark: int) -> list[int]:
        return [
            at
            for at, instant in enumerate(self.instants)
            if instant > mark or (self.order_kind is not None and self.deleted[at])
        ]


def key_columns(kinds: Sequence[Kind], keys: Sequence[Key]) -> tuple[pa.Array, ...]:
    return tuple(kind.array([key[at] for key in keys]) for at, kind in enumerate(kinds))


@st.composite
def cases(draw: st.DrawFn, ordered: bool | None = None) -> Case:
    kinds = tuple(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)))
    is_ordered = draw(st.booleans()) if ordered is None else ordered
    order_kind = draw(st.sampled_from(PLAIN)) if is_ordered else None
    # Few keys, so that most records have a rival.
    known = draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=4, unique_by=repr))
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(known), st.integers(0, 9)),
            max_size=14,
            unique_by=lambda pair: (repr(pair[0]), pair[1]),
        )
    )
    size = len(pairs)
    orders: tuple[Any, ...] = (None,) * size
    if order_kind is not None:
        one = st.none() | values(order_kind)
        orders = tuple(draw(st.lists(one, min_size=size, max_size=size)))
    return Case(
        kinds,
        order_kind,
        tuple(key for key, _ in pairs),
        tuple(instant for _, instant in pairs),
        tuple(draw(st.lists(st.booleans(), min_size=size, max_size=size))),
        orders,
    )


@given(cases())
def test_the_winner_of_a_key_is_beaten_by_no_record(case: Case) -> None:
    assert winners(case.records).tolist() == case.winners(range(len(case.keys)))


@given(cases(), st.integers(-1, 10))
def test_deletes_stay_in_force_after_the_mark_with_an_ordering_column(
    case: Case, mark: int
) -> None:
    assert in_force(case.records, mark).tolist() == case.in_force(mark)


@given(cases(), st.integers(-1, 10), st.integers(-1, 10))
def test_stitching_keeps_a_record_unless_a_later_one_of_its_key_beats_it(
    case: Case, mark: int, expired: int
) -> None:
    def kept(at: int) -> bool:
        later = [
            other
            for other, key in enumerate(case.keys)
            if key == case.keys[at] and case.instants[other] > case.instants[at]
        ]
        if case.order_kind is None:
            return not later and case.instants[at] > mark
        if case.deleted[at]:
            later = [other for other in later if case.deleted[other]]
        least = min(mark, expired) if case.deleted[at] else mark
        return case.instants[at] > least and not any(case.beats(other, at) for other in later)

    expected = [at for at in range(len(case.keys)) if kept(at)]
    assert kept_by_stitching(case.records, mark, expired).tolist() == expected


@given(cases(), st.integers(-1, 10))
def test_a_stitched_block_is_right_for_every_later_mark(case: Case, mark: int) -> None:
    kept = kept_by_stitching(case.records, mark).tolist()
    for later in range(mark, 11):
        in_force_now = case.in_force(later)
        stitched = case.winners([at for at in in_force_now if at in kept])
        assert stitched == case.winners(in_force_now)


def coarse(case: Case) -> Case:
    """Several records of a key at one instant, as tasks of one batch write them: never with equal
    values of the ordering column."""
    instants = [instant // 4 for instant in case.instants]
    places = [
        (key, instant, weight(order))
        for key, instant, order in zip(case.keys, instants, case.orders, strict=True)
    ]
    used = [at for at, place in enumerate(places) if place not in places[:at]]
    return Case(
        case.kinds,
        case.order_kind,
        tuple(case.keys[at] for at in used),
        tuple(instants[at] for at in used),
        tuple(case.deleted[at] for at in used),
        tuple(case.orders[at] for at in used),
    )


@given(cases(ordered=True).map(coarse), st.integers(-1, 3))
def test_an_instant_may_have_several_records_of_a_key_that_differ_in_order(
    case: Case, mark: int
) -> None:
    assert winners(case.records).tolist() == case.winners(range(len(case.keys)))
    kept = kept_by_stitching(case.records, mark).tolist()
    for later in range(mark, 4):
        in_force_now = case.in_force(later)
        stitched = case.winners([at for at in in_force_now if at in kept])
        assert stitched == case.winners(in_force_now)


@given(cases(), st.integers(0, 14))
def test_records_are_concatenated_in_order(case: Case, cut: int) -> None:
    records = case.records
    at = np.arange(len(records))
    assert_same(concatenate([records.take(at[:cut]), records.take(at[cut:])]), records)


def assert_same(found: Records, expected: Records) -> None:
    for one, other in zip(found.keys, expected.keys, strict=True):
        assert one.equals(other)
    if expected.order is None:
        assert found.order is None
    else:
        assert found.order is not None
        assert rank(found.order).tolist() == rank(expected.order).tolist()
    assert found.instants.tolist() == expected.instants.tolist()
    assert found.deleted.tolist() == expected.deleted.tolist()


# Keys


@given(cases())
def test_equal_keys_and_only_they_have_equal_numbers(case: Case) -> None:
    numbers = number_keys(case.records.keys).tolist()
    for one, first in enumerate(case.keys):
        for other, second in enumerate(case.keys):
            assert (numbers[one] == numbers[other]) == (first == second)


@given(st.data())
def test_a_key_index_finds_the_places_of_its_keys_and_no_others(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    key = st.tuples(*map(values, kinds))
    known = data.draw(st.lists(key, max_size=8, unique_by=repr))
    wanted = data.draw(st.lists(st.tuples(*[st.none() | values(kind) for kind in kinds])))
    wanted += known
    index = KeyIndex(key_columns(kinds, known))
    expected = [known.index(one) if one in known else -1 for one in wanted]
    assert index.find(key_columns(kinds, wanted)).tolist() == expected


def test_a_key_index_has_many_columns_with_many_values() -> None:
    """Codes of pairs are multiplied in each step: they must not overflow."""
    rng = np.random.default_rng(1)
    columns = [rng.permutation(100_000) for _ in range(5)]
    arrays = [pa.array(column) for column in columns]
    index = KeyIndex(arrays)
    places = rng.permutation(100_000)
    found = index.find([array.take(pa.array(places)) for array in arrays])
    assert (found == places).all()
    shifted = [*arrays[:4], pa.array(np.roll(columns[4], 1))]
    assert (index.find(shifted) == -1).all()


# Order


@given(st.data())
def test_ranks_have_the_order_of_spark(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(PLAIN))
    found = data.draw(st.lists(st.none() | values(kind), max_size=12))
    ranks = rank(kind.array(found)).tolist()
    for one, first in zip(ranks, found, strict=True):
        assert (one == -1) == (first is None)
        for other, second in zip(ranks, found, strict=True):
            assert (one < other) == (weight(first) < weight(second))


@given(st.lists(st.none() | st.floats(), max_size=12))
@example([struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (2**63 - 1, 0x7FF8 << 48)])
@example([-0.0, 0.0])
def test_each_nan_is_the_same_greatest_value_and_each_zero_the_same(
    found: list[float | None],
) -> None:
    ranks = rank(pa.array(found, pa.float64())).tolist()
    for one, first in zip(ranks, found, strict=True):
        for other, second in zip(ranks, found, strict=True):
            assert (one < other) == (weight(first) < weight(second))


@given(st.lists(st.text(max_size=3), max_size=12))
def test_texts_are_in_order_of_their_bytes(found: list[str]) -> None:
    ranks = rank(pa.array(found, pa.string())).tolist()
    distinct = sorted({text.encode() for text in found})
    assert ranks == [distinct.index(text.encode()) for text in found]


# Overlay


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_an_overlay_hides_and_shows_as_section_5_says(ordered: bool) -> None:
    @given(cases(ordered), st.integers(-1, 10), st.data())
    def check(case: Case, mark: int, data: st.DataObject) -> None:
        used = case.in_force(mark)
        won = case.winners(used)
        key = st.tuples(*[st.none() | values(kind) for kind in case.kinds])
        known = [st.sampled_from(case.keys)] if case.keys else []
        base = data.draw(st.lists(st.one_of(key, *known), max_size=10))
        order_kind = case.order_kind or LONG
        one = st.none() | values(order_kind)
        orders = data.draw(st.lists(one, min_size=len(base), max_size=len(base)))

        overlay = Overlay.of(case.records.take(np.array(won, np.int64)), mark)
        cut = data.draw(st.integers(0, len(base)))
        found: list[int] = []
        for start, end in ((0, cut), (cut, len(base))):
            compared = overlay.compare(
                key_columns(case.kinds, base[start:end]),
                order_kind.array(orders[start:end]) if ordered else None,
            )
            overlay.beaten[compared.winners[compared.greater]] = True
            found += (compared.rows[compared.hidden] + start).tolist()
        assert found == hidden_rows(case, won, mark, base, orders)
        shown = [won[at] for at in overlay.shown.tolist()]
        assert shown == shown_winners(case, won, base, orders)

    check()


def hidden_rows(
    case: Case, won: list[int], mark: int, base: list[Key], orders: list[Any]
) -> list[int]:
    found = []
    for row, (key, order) in enumerate(zip(base, orders, strict=True)):
        for winner in won:
            if case.keys[winner] != key:
                continue
            mine, its = weight(order), weight(case.orders[winner])
            newer = case.instants[winner] > mark
            if case.order_kind is None or mine < its or (mine == its and newer):
                found.append(row)
    return found


def shown_winners(case: Case, won: list[int], base: list[Key], orders: list[Any]) -> list[int]:
    def beaten(winner: int) -> bool:
        return case.order_kind is not None and any(
            key == case.keys[winner] and weight(order) > weight(case.orders[winner])
            for key, order in zip(base, orders, strict=True)
        )

    return [winner for winner in won if not case.deleted[winner] and not beaten(winner)]
