"""Which executor holds which shard: CarbonData's scenarios of assignment and of dead executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import numpy as np
import pytest

from tandem.index.server.shards import Executor, Load, Shard, ShardMapping

A, B, C = (Executor(slot, f"host_{slot}_0_exec_{slot}") for slot in range(3))
THREE = (A, B, C)
GIB = 2**30


def shards(*sizes: int | None, table: str = "t") -> list[Shard]:
    return [Shard(table, f"{at:03}", size) for at, size in enumerate(sizes)]


def assigned(
    wanted: Sequence[Shard], executors: Sequence[Executor] = THREE, now: ShardMapping | None = None
) -> ShardMapping:
    """After a request for shards, while these executors live."""
    found = deepcopy(now or ShardMapping())
    for dead in set(found.executors) - set(executors):
        found.remove(dead)
    for each in executors:
        found.join(each)
    found.route(wanted)
    return found


def report(now: ShardMapping, executor: Executor, sizes: Mapping[Shard, int]) -> ShardMapping:
    found = deepcopy(now)
    found.report(executor, sizes)
    return found


def joined(now: ShardMapping, executor: Executor) -> ShardMapping:
    found = deepcopy(now)
    found.join(executor)
    return found


def without(now: ShardMapping, executor: Executor) -> ShardMapping:
    found = deepcopy(now)
    found.remove(executor)
    return found


def owners(wanted: Sequence[Shard], now: ShardMapping) -> list[Executor | None]:
    return [now.owners.get(shard) for shard in wanted]


def sizes(now: ShardMapping) -> list[int]:
    return [load.bytes for load in now.loads().values()]


def test_X1_E17_new_shards_go_largest_first_to_idle_executors_then_to_the_least_loaded() -> None:
    six = shards(10, 60, 30, 50, 20, 40)
    now = assigned(six)
    # 60 A, 50 B, 40 C; 30 C (40), 20 B (50), 10 A (60 before 70 and 70).
    assert owners(six, now) == [A, A, C, B, B, C]
    assert sizes(now) == [70, 70, 70]


def test_X1_E17_ties_go_by_name_and_slot_in_whatever_order_all_are_listed() -> None:
    same = shards(5, 5, 5, 5)
    expected = [A, B, C, A]
    assert owners(same, assigned(same)) == expected
    assert owners(same, assigned(same[::-1], (C, A, B, A))) == expected
    # Of one slot, as a new process beside one whose death is not known yet: by id.
    old, new = Executor(0, "b"), Executor(0, "a")
    assert owners(same[:2], assigned(same[:2], (old, new))) == [new, old]


def test_I48_an_executor_whose_shards_are_of_unknown_or_no_size_has_load() -> None:
    unknown, empty, third = Shard("t", "a"), Shard("t", "b", 0), Shard("t", "c", 1)
    now = assigned([unknown], (A,))
    now = assigned([empty], (A, B), now)
    now = assigned([third], (A, B, C), now)
    assert owners([unknown, empty, third], now) == [A, B, C]
    assert now.loads() == {A: Load(1, 0), B: Load(1, 0), C: Load(1, 1)}


def test_X2_I47_a_second_query_of_the_same_shards_goes_to_the_same_executors() -> None:
    six = shards(10, 60, 30, 50, 20, 40)
    now = assigned(six)
    again = assigned(six[::-1], THREE[::-1], now)
    assert again == now
    # Nor do others that come move them, however uneven the load becomes.
    more = shards(1, 900, table="u")
    later = assigned([*more, *six], now=now)
    assert owners(six, later) == owners(six, now)


def test_I47_a_shard_that_grows_stays_and_counts_with_its_new_size() -> None:
    first, second = shards(10, 9)
    now = assigned([first, second], (A, B))
    now = assigned([Shard("t", second.key, 50)], (A, B), now)
    assert owners([first, second], now) == [A, B]
    assert sizes(now) == [10, 50]
    # Without a new estimate the last one stays.
    assert assigned([Shard("t", second.key)], (A, B), now) == now


def test_X3_a_query_that_is_restricted_to_segments_maps_only_those() -> None:
    six = shards(10, 60, 30, 50, 20, 40)
    now = assigned(six[:2])
    assert set(now.owners) == set(six[:2])
    assert set(now.sizes) == set(six[:2])
    later = assigned(six[1:3], now=now)
    assert later.route(six[1:3]) == {A: [six[1]], C: [six[2]]}
    assert set(later.owners) == set(six[:3])


def test_a_route_names_each_shard_once_in_the_order_of_the_request() -> None:
    one, two, three, four = shards(4, 3, 2, 1)
    now = assigned([one, two, three], (A, B))
    assert now.route([three, four, one, three, two]) == {B: [three, two], A: [four, one]}


def test_X4_I48_a_reported_size_replaces_the_estimate_and_changes_the_next_assignment() -> None:
    big, small = shards(100, 10)
    now = assigned([big, small], (A, B))
    reported = report(now, B, {small: 500})
    assert owners([big, small], reported) == [A, B]
    assert sizes(reported) == [100, 500]
    new = Shard("t", "new", 5)
    assert owners([new], assigned([new], (A, B), now)) == [B]
    assert owners([new], assigned([new], (A, B), reported)) == [A]
    # An estimate that comes later does not replace it.
    assert sizes(assigned([Shard("t", small.key, 11)], (A, B), reported)) == [100, 500]
    # A later report does.
    assert sizes(report(reported, B, {small: 0})) == [100, 0]


def test_X4_a_report_moves_no_shard_and_of_another_executor_says_nothing() -> None:
    first, second = shards(2, 1)
    now = assigned([first, second], (A, B))
    assert report(now, B, {first: 999, Shard("t", "never heard of"): 7}) == now
    mixed = report(now, B, {first: 999, second: 5})
    assert owners([first, second], mixed) == [A, B]
    assert sizes(mixed) == [2, 5]
    # The report of one that died comes after its shard has moved.
    moved = assigned([first], (B,), now)
    late = report(moved, A, {first: 999})
    assert owners([first, second], late) == [B, B]
    assert sizes(late) == [3]


def test_X5_an_evicted_shard_is_still_routed_where_it_was_and_keeps_its_size() -> None:
    first, second, third = shards(3, 2, 1)
    now = assigned([first, second, third], (A, B))
    now = report(now, B, {second: 20, third: 10})
    evicted = report(now, B, {third: 10})
    assert assigned([first, second, third], (A, B), evicted) == now
    assert evicted.route([second]) == {B: [second]}
    assert sizes(evicted) == [3, 30]


def test_X6_I49_E18_shards_of_a_dead_executor_go_one_by_one_by_the_same_rule() -> None:
    many = shards(80, 60, 50, 7, 6, 5, 4)
    now = ShardMapping([*THREE], {**dict.fromkeys(many[:1] + many[3:], A), many[1]: B, many[2]: C})
    now = assigned(many, now=now)
    assert sizes(now) == [102, 60, 50]
    after = assigned(many, (B, C), without(now, A))
    # 80 C, 7 B, 6 B, 5 B, 4 B: others stay.
    assert owners(many, after) == [C, B, C, B, B, B, B]
    assert sizes(after) == [82, 130]
    # The death is noticed by the list of executors, too.
    assert assigned(many, (B, C), now) == after


def test_X6_E18_what_the_dead_executor_reported_counts_where_its_shards_go() -> None:
    first, second, third = shards(9, 8, 7)
    now = assigned([first, second, third])
    now = report(now, A, {first: 1})
    now = report(now, B, {second: 100})
    after = assigned([first, second, third], (C, B), without(now, A))
    assert owners([first], after) == [C]
    assert sizes(after) == [100, 8]


def test_X6_I49_shards_that_are_not_asked_for_leave_the_dead_executor_as_well() -> None:
    first, second, third = shards(3, 2, 1)
    now = assigned([first, second, third])
    after = assigned([second], (B, C), now)
    assert owners([first, second, third], after) == [None, B, C]
    assert after.executors == [B, C]


def test_X6_a_host_dies_with_two_executors() -> None:
    six = shards(10, 60, 30, 50, 20, 40)
    after = assigned(six, (C,), without(without(assigned(six), A), B))
    assert owners(six, after) == [C] * 6
    assert after.shards_of(C) == six


def test_X6_all_executors_die_and_no_shard_has_one() -> None:
    six = shards(10, 60, None, 50, 20, 40)
    now = assigned(six)
    unowned = assigned(six, (), now)
    assert not unowned.owners
    assert unowned.route(six) == {}
    # So it is if there never was one.
    assert assigned(six, ()).route(six) == {}
    # The first that comes gets all of them.
    assert owners(six, assigned(six, (B,), unowned)) == [B] * 6


def test_X7_an_executor_that_returns_is_without_load_and_gets_the_next_new_shard() -> None:
    six = shards(10, 60, 30, 50, 20, 40)
    now = assigned(six, (B, C), without(assigned(six), A))
    back = joined(now, A)
    assert back.loads()[A] == Load(0, 0)
    new = shards(1, 2, table="u")
    after = assigned(new, back.executors, back)
    assert owners(new, after) == [A, A]
    assert owners(six, after) == owners(six, now)


@pytest.mark.parametrize("size", [5, None])
def test_X7_of_any_size_the_next_shard_goes_to_the_executor_that_returned(size: int | None) -> None:
    # It is not the turn of C in the round.
    now = assigned(shards(None, None, None, None))
    now = joined(without(now, C), C)
    new = Shard("u", "0", size)
    assert owners([new], assigned([new], now=now)) == [C]


def test_joining_twice_keeps_what_the_executor_holds() -> None:
    now = assigned(shards(3, 2, 1))
    assert joined(now, B) == now


def test_X15_shards_of_unknown_size_go_round() -> None:
    seven = shards(*[None] * 7)
    now = assigned(seven)
    assert owners(seven, now) == [A, B, C, A, B, C, A]
    # The round goes on with the next request, whatever was reported meanwhile.
    now = report(now, B, {seven[1]: 0})
    more = shards(None, None, None, table="u")
    for shard, expected in zip(more, (B, C, A), strict=True):
        now = assigned([shard], now=now)
        assert owners([shard], now) == [expected]


def test_X15_known_sizes_come_before_unknown_ones() -> None:
    mixed = shards(None, 10, None, 30, None)
    now = assigned(mixed)
    # 30 A, 10 B; then C is idle, and the round begins behind it.
    assert owners(mixed, now) == [C, B, A, A, B]


def test_X15_the_round_goes_on_behind_an_executor_that_died() -> None:
    now = assigned(shards(None, None))
    assert now.turn == B
    now = assigned(shards(5, table="c"), now=now)
    new = Shard("u", "0")
    assert owners([new], assigned([new], (A, C), without(now, B))) == [C]


def test_X15_once_its_size_is_known_a_shard_counts_by_bytes() -> None:
    legacy = shards(None, None)
    now = assigned(legacy, (A, B))
    new = Shard("t", "new", 5)
    assert owners([new], assigned([new], (A, B), now)) == [A]
    upgraded = assigned(shards(100, 10), (A, B), now)
    assert owners(legacy, upgraded) == [A, B]
    assert sizes(upgraded) == [100, 10]
    assert owners([new], assigned([new], (A, B), upgraded)) == [B]


def test_I49_ids_of_executors_are_never_parsed() -> None:
    """CarbonData split host and executor at each `_`: a host with one was another."""
    odd = [Executor(slot, id_) for slot, id_ in enumerate(["a_b_1", "a", "a_b", "_", "", "a_b_1 "])]
    many = shards(*range(60, 0, -10))
    now = assigned(many, odd)
    assert owners(many, now) == odd
    after = assigned(many, [e for e in odd if e.id != "a_b"], without(now, odd[2]))
    assert owners(many[:2] + many[3:], after) == odd[:2] + odd[3:]
    assert owners(many[2:3], after) == [odd[5]]


@pytest.mark.parametrize("as_given", [int, np.int32, np.int64])
def test_I48_loads_of_more_than_2_gib_are_summed_in_full(as_given: Callable[[int], int]) -> None:
    """CarbonData summed them in 32 bits: the fullest executor looked empty."""
    huge = [Shard("t", f"{at}", as_given(2**31 - 1)) for at in range(6)]
    now = assigned(huge, (A, B))
    assert sizes(now) == [3 * (2**31 - 1)] * 2
    now = report(now, A, {shard: as_given(2**31 - 2) for shard in now.shards_of(A)})
    assert sizes(now) == [3 * (2**31 - 2), 3 * (2**31 - 1)]
    many = [Shard("u", f"{at}", 2**62) for at in range(6)]
    after = assigned(many, (A, B), now)
    assert sum(sizes(after)) == 6 * 2**62 + sum(sizes(now))
    new = Shard("t", "new", GIB)
    assert owners([new], assigned([new], (A, B), after)) == [A]


def test_a_shard_that_is_named_twice_counts_once() -> None:
    now = assigned([Shard("t", "0", 7), Shard("t", "0", 7), Shard("t", "0")], (A, B))
    assert now.loads() == {A: Load(1, 7), B: Load(0, 0)}


def test_a_negative_size_is_refused_with_the_name_of_the_shard() -> None:
    with pytest.raises(ValueError, match=r"shard 0\.1 of table t: -1 bytes, expected >= 0"):
        Shard("t", "0.1", -1)
    [one] = shards(1)
    with pytest.raises(ValueError, match="-5 bytes"):
        report(assigned([one]), A, {one: -5})


@pytest.mark.parametrize("gone", ["table", "shards"])
def test_what_is_dropped_leaves_nothing_and_others_stay(gone: str) -> None:
    old, other = shards(5, 4, 3), shards(9, 8, table="u")
    now = assigned([*old, *other], (A, B))
    for executor in (A, B):
        now = report(now, executor, dict.fromkeys(now.shards_of(executor), 50))
    # Of one that waits for an executor the size goes, too.
    now = without(now, A)
    after = deepcopy(now)
    after.drop("t", () if gone == "table" else [shard.key for shard in old])
    for before, left in ((now.owners, after.owners), (now.sizes, after.sizes)):
        assert left
        assert left == {shard: value for shard, value in before.items() if shard not in old}
    assert after.reported == set(other)
