"""Which blocks a log compaction stitches: consecutive ones, of about the same size, that no other
operation has taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.mergelog.runs import BALANCE, BlockRun, all_blocks, applicable, small_runs
from tandem.mergelog.state.versions import Block, BlockLogState, Group, in_order

GROUPS: tuple[Group, ...] = ((("p", None),), (("p", ""),), (("p", "x"),))


def state(blocks: Sequence[Block]) -> BlockLogState:
    return BlockLogState("base", 0, live={block.path: block for block in blocks})


def blocks_of(*sizes: int, group: Group = ()) -> list[Block]:
    return [
        Block(f"b{at}", first=at, last=at, size=size, group=group) for at, size in enumerate(sizes)
    ]


def paths(runs: Sequence[BlockRun]) -> list[list[str]]:
    return [[block.path for block in run.blocks] for run in runs]


@st.composite
def states(draw: st.DrawFn) -> tuple[BlockLogState, frozenset[str]]:
    """A log with stitched blocks and gaps between instants, and paths that are taken."""
    blocks = []
    for number, group in enumerate(GROUPS):
        instant = 0
        for size in draw(st.lists(st.integers(0, 40), max_size=12)):
            first = instant + draw(st.integers(0, 2))
            last = first + draw(st.integers(0, 3))
            blocks.append(Block(f"{number}-{first}", first, last, size, 0, group))
            instant = last + 1
    shuffled = draw(st.permutations(blocks))
    taken = draw(st.sets(st.sampled_from([block.path for block in blocks]))) if blocks else set()
    return state(shuffled), frozenset(taken)


def assert_runs_are_valid(
    log: BlockLogState, found: Sequence[BlockRun], taken: frozenset[str]
) -> None:
    used = [block.path for run in found for block in run.blocks]
    assert len(set(used)) == len(used), "the runs are disjoint"
    assert not taken.intersection(used)
    for run in found:
        (group,) = {block.group for block in run.blocks}
        mine = [block for block in in_order(log.live.values()) if block.group == group]
        start = mine.index(run.blocks[0])
        assert list(run.blocks) == mine[start : start + len(run.blocks)], "consecutive"
        assert all(one.last < other.first for one, other in pairwise(run.blocks))
        assert (run.first, run.last) == (run.blocks[0].first, run.blocks[-1].last)
        assert run.size == sum(block.size for block in run.blocks)


@given(states())
def test_all_blocks_takes_every_stretch_of_two_or_more(
    given_: tuple[BlockLogState, frozenset[str]],
) -> None:
    log, taken = given_
    found = all_blocks(log, taken)
    assert_runs_are_valid(log, found, taken)
    used = {block.path for run in found for block in run.blocks}
    free = [block for block in in_order(log.live.values()) if block.path not in taken]
    for one, other in pairwise(in_order(log.live.values())):
        if one.group == other.group and one in free and other in free:
            assert {one.path, other.path} <= used


@given(states(), st.integers(2, 5), st.integers(1, 45))
def test_small_runs_are_long_enough_small_and_balanced(
    given_: tuple[BlockLogState, frozenset[str]], least: int, limit: int
) -> None:
    log, taken = given_
    found = small_runs(log, min_blocks=least, max_bytes=limit, taken=taken)
    assert_runs_are_valid(log, found, taken)
    for run in found:
        assert len(run.blocks) >= least
        assert all(block.size < limit for block in run.blocks)
        sizes = sorted(block.size for block in run.blocks)
        assert sizes[-1] <= BALANCE * sum(sizes[:-1]) / (len(sizes) - 1)


@given(st.integers(2, 30), st.integers(2, 5), st.integers(1, 100))
def test_blocks_of_one_size_are_one_run(count: int, least: int, size: int) -> None:
    found = small_runs(state(blocks_of(*[size] * count)), min_blocks=least, max_bytes=size + 1)
    assert [len(run.blocks) for run in found] == ([count] if count >= least else [])


@given(states(), st.sets(st.integers(0, 40)))
def test_a_run_applies_if_all_its_blocks_are_live(
    given_: tuple[BlockLogState, frozenset[str]], gone: set[int]
) -> None:
    log, taken = given_
    planned = all_blocks(log, taken)
    left = {path: b for at, (path, b) in enumerate(log.live.items()) if at not in gone}
    now = BlockLogState("base", 0, live=left)
    expected = [run for run in planned if all(block.path in left for block in run.blocks)]
    found = applicable(now, paths(planned), -1)
    assert [planned[at] for at in sorted(found.applicable)] == expected
    lost = {path for at, path in enumerate(log.live) if at in gone}
    assert found.gone == lost.intersection(path for run in paths(planned) for path in run)


def test_no_run_is_committed_after_a_restore_took_a_merge_back() -> None:
    """The job left out the records that the base table held, and holds them no longer."""
    blocks = blocks_of(1, 1)
    planned = paths(all_blocks(state(blocks)))
    for mark, committed in ((7, [0]), (8, [0]), (6, []), (-1, [])):
        now = replace(state(blocks), mark=mark)
        assert sorted(applicable(now, planned, 7).applicable) == committed


# Scenarios of RFC-48 (numbers of the list of scenarios)


def test_L6_I38_a_live_block_between_two_others_is_in_their_run() -> None:
    blocks = blocks_of(1, 1, 1)
    (run,) = small_runs(state(blocks), min_blocks=2, max_bytes=10)
    assert paths([run]) == [["b0", "b1", "b2"]]
    assert not small_runs(state(blocks), min_blocks=2, max_bytes=10, taken={"b1"})
    assert not all_blocks(state(blocks), {"b1"})


def test_L8_I45_runs_of_at_least_the_threshold_are_stitched_and_large_blocks_left_out() -> None:
    large, small = 300, 1
    log = state(blocks_of(large, small, small, large, *[small] * 5))
    found = small_runs(log, min_blocks=3, max_bytes=256)
    assert paths(found) == [["b4", "b5", "b6", "b7", "b8"]]
    found = small_runs(log, min_blocks=2, max_bytes=256)
    assert paths(found) == [["b1", "b2"], ["b4", "b5", "b6", "b7", "b8"]]


def test_L8_a_stitched_block_waits_until_its_neighbours_amount_to_half_of_it() -> None:
    grown = [40, 1, 1, 1, 1, 1]
    assert paths(small_runs(state(blocks_of(*grown)), min_blocks=5, max_bytes=256)) == [
        ["b1", "b2", "b3", "b4", "b5"]
    ]
    levels = [40, 10, 10, 10, 10]
    assert not small_runs(state(blocks_of(*levels)), min_blocks=5, max_bytes=256)
    ripe = [20, 10, 10, 10, 10]
    assert paths(small_runs(state(blocks_of(*ripe)), min_blocks=5, max_bytes=256)) == [
        ["b0", "b1", "b2", "b3", "b4"]
    ]


def test_L9_E12_taken_blocks_are_excluded_and_newer_ones_allowed() -> None:
    log = state(blocks_of(*[1] * 9))
    taken = {"b0", "b1", "b2", "b3"}
    assert paths(small_runs(log, min_blocks=5, max_bytes=10, taken=taken)) == [
        ["b4", "b5", "b6", "b7", "b8"]
    ]


def test_L8_groups_are_stitched_apart() -> None:
    blocks = []
    for number, group in enumerate(GROUPS):
        blocks += [Block(f"{number}-{at}", at, at, 1, 0, group) for at in range(2 + number)]
    found = small_runs(state(blocks), min_blocks=3, max_bytes=10)
    assert paths(found) == [["1-0", "1-1", "1-2"], ["2-0", "2-1", "2-2", "2-3"]]


# Cost


class Counted(int):
    """A size that counts how often it is compared."""

    comparisons = 0

    def __ge__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) >= other  # type: ignore[operator]


@pytest.mark.parametrize(
    "sizes",
    [
        [1] * 10_000,
        list(range(1, 10_001)),
        list(range(10_000, 0, -1)),
        [2 ** min(at, 60) for at in range(10_000)],
        [(20_000 - at) * (at % 2) for at in range(10_000)],
        [(at * 7919) % 10_007 + 1 for at in range(10_000)],
    ],
    ids=["equal", "ascending", "descending", "doubling", "isolated", "random"],
)
def test_ten_thousand_blocks_are_split_with_bounded_work(sizes: list[int]) -> None:
    log = state(blocks_of(*map(Counted, sizes)))
    Counted.comparisons = 0
    found = small_runs(log, min_blocks=5, max_bytes=2**62)
    assert Counted.comparisons <= 40 * len(sizes)
    used = [block.path for run in found for block in run.blocks]
    assert len(set(used)) == len(used)


@given(st.lists(st.integers(0, 50), max_size=25), st.integers(2, 5))
def test_small_runs_are_those_of_the_plain_algorithm(sizes: list[int], least: int) -> None:
    found = small_runs(state(blocks_of(*sizes)), min_blocks=least, max_bytes=100)
    expected = plainly([(f"b{at}", size) for at, size in enumerate(sizes)], least)
    assert paths(found) == expected


def plainly(part: list[tuple[str, int]], least: int) -> list[list[str]]:
    """The paths of the runs, by the words of the docstring."""
    if len(part) < least:
        return []
    sizes = [size for _, size in part]
    if max(sizes) * (len(part) - 1) <= BALANCE * (sum(sizes) - max(sizes)):
        return [[path for path, _ in part]]
    largest = sizes.index(max(sizes))
    start, end = largest, largest + 1
    while start and sizes[start - 1] * 2 >= max(sizes):
        start -= 1
    while end < len(part) and sizes[end] * 2 >= max(sizes):
        end += 1
    if end - start < least:
        return plainly(part[:largest], least) + plainly(part[largest + 1 :], least)
    taken = [path for path, _ in part[start:end]]
    return [*plainly(part[:start], least), taken, *plainly(part[end:], least)]


def test_the_order_of_blocks_does_not_depend_on_how_the_log_was_read() -> None:
    """Winners are numbered by it: in the job of a merge, and in the process that commits it."""
    files = [replace(block, first=1, last=1) for block in blocks_of(1, 1, 1)]
    assert in_order(files) == in_order(reversed(files))
