"""Stitching merges sorted blocks as streams: the same rows, in the same order, as with all of them
in memory, however little of it there is."""

from __future__ import annotations

from collections.abc import Iterator
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
from tandem.mergelog.rows import stitch as stitch_
from tandem.mergelog.rows.blocks import BlockReader, read_block, records_of
from tandem.mergelog.rows.by_key import key_at
from tandem.mergelog.rows.records import kept_by_stitching
from tandem.mergelog.rows.stitch import Stitched, StitchRequest, stitch
from tandem.mergelog.runs import BlockRun, all_blocks
from tandem.mergelog.state.log_table import block_format, settings_of, state_of
from tandem.mergelog.state.versions import DELETES, Block

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
