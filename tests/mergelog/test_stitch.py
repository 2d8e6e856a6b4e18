"""Which blocks are stitched, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergelog.lake import Merged, in_memory
from support.some import few
from support.values.kinds import KINDS, Kind
from tandem.delta.actions import AddFile
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import CorruptLog, StorageError
from tandem.mergelog import stitch as stitch_
from tandem.mergelog.blocks import BlockReader, read_block, records_of
from tandem.mergelog.by_key import kept_by_stitching, key_at
from tandem.mergelog.log_table import block_format, settings_of, state_of
from tandem.mergelog.stitch import Stitched, StitchRequest, stitch
from tandem.mergelog.versions import (
    BALANCE,
    DELETES,
    Block,
    BlockLogState,
    BlockRun,
    Group,
    all_blocks,
    applicable,
    in_order,
    small_runs,
)

# Stitching merges sorted blocks as streams: the same rows, in the same order, as with all of them
# in memory, however little of it there is.


KEYS = [
    kind
    for kind in KINDS
    if not pa.types.is_floating(kind.arrow) and not pa.types.is_struct(kind.arrow)
]
SCHEMA = StructType(
    tuple(
        Field(name, PrimitiveType(type_))
        for name, type_ in (("k", "string"), ("n", "long"), ("o", "double"), ("v", "string"))
    )
)


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.name)
def test_keys_are_in_the_order_in_which_blocks_are_sorted(kind: Kind) -> None:
    values = kind.array(list(dict.fromkeys([kind.ordinary, *kind.extremes])))
    rows = pa.table({"a.b": values}).rename_columns(["k"]).sort_by("k").rename_columns(["a.b"])
    found = [key_at(rows, ["a.b"], at) for at in range(rows.num_rows)]
    assert found == sorted(set(found))


Row = tuple[str, int, float | None, bool]


def logged(appends: list[list[Row]], ordering: str) -> Merged:
    merged = Merged(in_memory(schema=SCHEMA), keys=("k", "n"), ordering=ordering)
    for number, rows in enumerate(appends):
        parts = []
        for deleted in (False, True):
            chosen = [row for row in rows if row[3] is deleted]
            columns = {
                "k": pa.array([row[0] for row in chosen], pa.string()),
                "n": pa.array([row[1] for row in chosen], pa.int64()),
                "o": pa.array([row[2] for row in chosen], pa.float64()),
                "v": pa.array([f"v{number}"] * len(chosen), pa.string()),
            }
            wanted = ["k", "n", *([ordering] if ordering else [])] if deleted else list(columns)
            parts.append(pa.table(columns).select(wanted))
        merged.append(*parts)
    merged.writer.close()
    return merged


def run_of(merged: Merged) -> BlockRun:
    (run,) = all_blocks(state_of(merged.log.snapshot()))
    return run


def stitched(merged: Merged, run: BlockRun, request: StitchRequest) -> Stitched:
    table = block_format(merged.log.base.snapshot(), settings_of(merged.log.snapshot()))
    found = settings_of(merged.log.snapshot())
    return stitch(merged.log.store, run, request, table, found, prefix="new", task=0)


def contents(merged: Merged, adds: tuple[AddFile, ...]) -> list[pa.Table]:
    table = block_format(merged.log.base.snapshot(), settings_of(merged.log.snapshot()))
    blocks = [Block(add.path, 0, 0, add.size) for add in adds]
    return [read_block(merged.log.store, block, table, SCHEMA.names) for block in blocks]


def expected(merged: Merged, run: BlockRun, request: StitchRequest) -> pa.Table:
    """All rows in memory at once."""
    snapshot = merged.log.snapshot()
    found = settings_of(snapshot)
    table = block_format(merged.log.base.snapshot(), found)
    parts = [read_block(merged.log.store, block, table, SCHEMA.names) for block in run.blocks]
    rows = pa.concat_tables(parts)
    kept = kept_by_stitching(records_of(rows, table, found), request.mark, request.expired)
    order = [(name, "ascending") for name in ("k", "n", "__tandem_instant")]
    return rows.take(pa.array(kept)).sort_by(order)


ONE = st.tuples(
    st.sampled_from(["", "a", "a\0", "ab", "b", "é", "\U0010ffff"]),
    st.integers(-2, 2),
    st.none() | st.sampled_from([-1.0, 0.0, 2.0]),
    st.booleans(),
)
APPENDS = st.lists(
    st.lists(ONE, min_size=1, max_size=12, unique_by=lambda row: row[:2]), min_size=2, max_size=7
)


@pytest.mark.matrix
@settings(max_examples=few(30, 600))
@given(
    APPENDS,
    st.sampled_from(["", "o"]),
    st.integers(1, 2_000),
    st.integers(2, 8),
    st.integers(-1, 4),
    st.integers(1, 60),
)
def test_the_rows_do_not_depend_on_the_memory(
    appends: list[list[Row]], ordering: str, memory: int, most_open: int, mark: int, most: int
) -> None:
    merged = logged(appends, ordering)
    run = run_of(merged)
    size, total = sum(block.size for block in run.blocks), sum(map(len, appends))
    request = StitchRequest(mark, -1, max_bytes=-(-most * size // total))
    whole = expected(merged, run, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stitch_, "MEMORY", memory)
        patch.setattr(stitch_, "MOST_OPEN", most_open)
        found = stitched(merged, run, request)
    assert (found.records_in, found.records_out) == (total, whole.num_rows)
    parts = contents(merged, found.adds)
    assert pa.concat_tables([whole.slice(0, 0), *parts]).equals(whole)
    assert [part.num_rows for part in parts] == list(found.rows)
    ends = [[key_at(part, ["k", "n"], at) for at in (0, part.num_rows - 1)] for part in parts]
    flat = [key for pair in ends for key in pair]
    assert flat == sorted(flat)
    assert all(one[1] < other[0] for one, other in pairwise(ends))
    deletes = [sum(part["__tandem_deleted"].to_pylist()) for part in parts]
    assert [int(add.tags[DELETES]) for add in found.adds] == deletes
    # Nothing else is left in its folder.
    paths = [path for path in merged.store.paths() if "/new/" in path]  # type: ignore[attr-defined]
    assert len(paths) == len(parts)


def test_many_blocks_with_large_pages_are_stitched_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[Row] = [(f"k{at}", at, None, False) for at in range(9)]
    merged = logged([[row] for row in rows] + [rows], "")
    run = run_of(merged)
    request = StitchRequest(-1, -1, 1 << 30)
    whole = expected(merged, run, request)
    steps: list[int] = []
    write = stitch_._Stitcher.write

    def counted(self: stitch_._Stitcher, blocks: tuple[Block, ...], most: int) -> Stitched:
        steps.append(len(blocks))
        return write(self, blocks, most)

    monkeypatch.setattr(stitch_._Stitcher, "write", counted)
    monkeypatch.setattr(stitch_, "PAGES", 3 * max(block.size for block in run.blocks))
    (part,) = contents(merged, stitched(merged, run, request).adds)
    assert part.equals(whole)
    assert steps[:4] == [3, 3, 3, 1]
    assert len(steps) > 5


def test_a_block_that_is_not_sorted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of all writers are: the rows of a key would be in two parts."""
    merged = logged([[(key, 0, None, False) for key in "abcdef"]] * 2, "")
    batches = BlockReader.batches

    def unsorted(self: BlockReader) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches(self))
        yield from rows.take(pa.array([3, 4, 5, 0, 1, 2])).to_batches(max_chunksize=1)

    monkeypatch.setattr(BlockReader, "batches", unsorted)
    monkeypatch.setattr(stitch_, "MEMORY", 1)
    with pytest.raises(StorageError, match="not sorted by key"):
        stitched(merged, run_of(merged), StitchRequest(-1, -1, 1 << 30))


def test_a_record_without_a_key_is_an_error_that_names_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merged = logged([[(key, 0, None, False) for key in "abc"]] * 2, "")
    run = run_of(merged)
    batches = BlockReader.batches

    def without(self: BlockReader) -> Iterator[pa.RecordBatch]:
        for batch in batches(self):
            yield batch.set_column(1, "n", pa.nulls(batch.num_rows, pa.int64()))

    monkeypatch.setattr(BlockReader, "batches", without)
    with pytest.raises(CorruptLog, match="has no key") as caught:
        stitched(merged, run, StitchRequest(-1, -1, 1 << 30))
    assert (caught.value.resource, caught.value.field) == (run.blocks[0].path, "n")


# Which blocks a log compaction stitches: consecutive ones, of about the same size, that no other
# operation has taken.


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
