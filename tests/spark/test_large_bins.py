"""Bins that take more memory than a task has: the rows, files and row maps of a sort in memory."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from spark.local_exchange import LocalExchange
from spark.sorted_tables import FILES, ROWS, a_job, content, rows, some_dead
from support.sort_order import sort_key
from tandem.errors import CountMismatch, ManifestInvalid
from tandem.jobs.results import SideFileRef
from tandem.spark.jobs import large_bins, sort_codes
from tandem.spark.jobs.bins import MEMORY, BinResult
from tandem.spark.jobs.large_bins import LargeSort, sort_large
from tandem.spark.jobs.sort_codes import PLACE, Sample, Sampled, bounds_of, ranges_of
from tandem.spark.jobs.sorted_bins import sort_bin
from tandem.spark.runtime import frames as blocks
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import BlockFile, KeptBlock, RowBlock, sized

TINY = 60_000
"""Bytes in which only a few dozen of the rows fit."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "t"
    for start in range(0, FILES * ROWS, ROWS):
        write_deltalake(str(path), rows(start, ROWS), mode="append")
    return path


def written(job: Control, result: BinResult) -> list[str]:
    return [row for f in result.files for row in content(job, f.path, f.partition_values)]


def do(job: Control, memory: int, exchange: LocalExchange | None = None) -> BinResult:
    """Sort the only bin the large way; all is as if it was sorted in memory."""
    small = sort_bin(job.store, job.spec, 0)
    assert isinstance(small, BinResult)
    [large] = sort_large(job, [0], memory, exchange or LocalExchange())
    assert written(job, large) == written(job, small)
    assert np.array_equal(large.ranks, small.ranks)  # type: ignore[arg-type]
    assert large.rows_read == small.rows_read
    return large


@pytest.mark.part(3)
@pytest.mark.parametrize("memory", [TINY, MEMORY], ids=["cut", "whole"])
@pytest.mark.parametrize(
    ("strategy", "columns"),
    [
        ("Sort", ("name",)),
        ("Sort", ("other",)),
        ("Sort", ("share", "price")),
        ("Sort", ("yes", "day", "at")),
        ("Sort", ("void", "sum")),
        ("ZOrder", ("name", "price", "share")),
        ("ZOrder", ("raw", "yes")),
        ("ZOrder", ("day", "void")),
        ("Clustering", ("name", "price", "share")),
        ("Clustering", ("name",)),
        ("Clustering", ("box.`n.m`",)),
        ("Clustering", ("day", "box.`n.m`")),
    ],
)
def test_rows_are_where_a_sort_in_memory_has_them(
    table: Path,
    strategy: Literal["Sort", "ZOrder", "Clustering"],
    columns: tuple[str, ...],
    memory: int,
) -> None:
    large = do(a_job(table, strategy, columns, parts=4, dead=some_dead()), memory)
    assert sum(f.rows for f in large.files) == large.rows_read


def test_files_have_the_sizes_that_a_sort_in_memory_gives_them(table: Path) -> None:
    job = a_job(table, "Sort", ["price"], parts=4)
    small = sort_bin(job.store, job.spec, 0)
    assert isinstance(small, BinResult)
    large = do(job, 2 << 20)
    assert [f.rows for f in large.files] == [f.rows for f in small.files]


def test_ranges_fit_into_memory_and_those_that_do_not_are_cut_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    whole = LargeSort._loaded

    def seen(self: LargeSort, file: BlockFile, found: Sequence[KeptBlock]) -> dict[str, Any]:
        sizes = [each.block.size for each in found]
        largest = sum(each.block.largest for each in found)
        loaded.append(self._needed(sum(e.block.rows for e in found), sum(sizes), largest))
        return whole(self, file, found)

    monkeypatch.setattr(LargeSort, "_loaded", seen)
    do(a_job(table, "Sort", ["name"]), TINY)
    assert len(loaded) >= 4
    assert max(loaded) <= TINY


@pytest.mark.parametrize("strategy", ["Sort", "ZOrder"])
def test_a_value_that_all_rows_have_makes_no_range_larger(
    tmp_path: Path, strategy: Literal["Sort", "ZOrder"]
) -> None:
    for start in range(0, 2000, 1000):
        content_ = {"id": range(start, start + 1000), "a": ["same"] * 1000, "b": [math.nan] * 1000}
        write_deltalake(str(tmp_path), pa.table(content_), mode="append")
    exchange = LocalExchange()
    large = do(a_job(tmp_path, strategy, ["a", "b"], parts=4), 200_000, exchange)
    assert [f.rows for f in large.files] == [500] * 4
    assert exchange.sent[1] > 8


def test_z_values_are_those_of_a_sample_of_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whether a column has nulls is known of all rows, not of those that a task reads."""
    chance = random.Random(3)
    for start in range(3):
        numbers = [chance.randrange(5000) for _ in range(400)]
        some = [None if start == 1 and n % 50 == 0 else n for n in numbers[::-1]]
        write_deltalake(str(tmp_path), pa.table({"x": numbers, "y": some}), mode="append")
    for module in (sort_codes, large_bins):
        monkeypatch.setattr(module, "SAMPLE", 300)
    do(a_job(tmp_path, "ZOrder", ["x", "y"], parts=3), TINY)


def test_rows_that_each_take_more_than_the_memory(tmp_path: Path) -> None:
    texts = [f"{n % 7}{'x' * 20_000}" for n in range(40)]
    write_deltalake(str(tmp_path), pa.table({"name": texts, "n": range(40)}))
    do(a_job(tmp_path, "Sort", ["name"], parts=2), 10_000)


def test_blocks_beyond_what_is_held_are_read_from_a_file(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "HELD", 1000)
    do(a_job(table, "Sort", ["day"]), TINY)


def test_bins_of_partitions_stay_apart(tmp_path: Path) -> None:
    for start in (0, 60):
        part = rows(start, 60).append_column(
            "p", pa.array([["a/b", None, "é 1"][i % 3] for i in range(60)])
        )
        write_deltalake(str(tmp_path), part, mode="append", partition_by=["p"])
    job = a_job(tmp_path, "Sort", ["name"])
    found = sort_large(job, [0, 2], TINY, LocalExchange())
    assert [each.index for each in found] == [0, 2]
    for each in found:
        small = sort_bin(job.store, job.spec, each.index)
        assert isinstance(small, BinResult)
        assert written(job, each) == written(job, small)
        [values] = {tuple(f.partition_values.items()) for f in each.files}
        assert dict(values) == job.spec.job.bins[each.index].partition_values  # type: ignore[union-attr]


def test_a_bin_of_deleted_rows_leaves_no_file(table: Path) -> None:
    job = a_job(table, "ZOrder", ["name", "id"], dead=[BitMap64(range(ROWS))] * FILES)
    [found] = sort_large(job, [0], TINY, LocalExchange())
    assert (found.files, found.rows_read) == ((), 0)


class _Losing(LocalExchange):
    def __call__(self, senders: int, send: Any, parts: int, receive: Any) -> list[Any]:
        if not self.sent:
            return super().__call__(senders, send, parts, receive)
        return super().__call__(senders, lambda n: islice(send(n), 1, None), parts, receive)


class _Doubling(LocalExchange):
    def __call__(self, senders: int, send: Any, parts: int, receive: Any) -> list[Any]:
        if not self.sent:
            return super().__call__(senders, send, parts, receive)
        return super().__call__(senders, lambda n: chain(send(n), send(n)), parts, receive)


@pytest.mark.parametrize("exchange", [_Losing, _Doubling])
def test_rows_that_are_lost_or_doubled_on_their_way_fail_the_job(
    table: Path, exchange: type[LocalExchange]
) -> None:
    job = a_job(table, "Sort", ["name"], parts=2)
    with pytest.raises(CountMismatch, match="every row"):
        sort_large(job, [0], TINY, exchange())


def test_places_that_another_writer_has_changed_are_refused(table: Path) -> None:
    job = a_job(table, "Sort", ["name"])
    ref = job.side_file(1, "places", b"1234")
    assert job.read_side_file(ref) == b"1234"
    job.store.put(ref.path, b"1235")
    with pytest.raises(ManifestInvalid):
        job.read_side_file(SideFileRef(path=ref.path, size=4, sha256=ref.sha256))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 3), st.none() | st.floats(), st.text(max_size=2)),
        max_size=40,
    ),
    st.integers(1, 6),
    st.randoms(),
)
def test_ranges_are_of_one_size_and_in_order(
    found: list[tuple[int | None, float | None, str]], count: int, chance: random.Random
) -> None:
    columns: dict[str, Any] = {
        "a": pa.array([a for a, _, _ in found], pa.int64()),
        "b": pa.array([b for _, b, _ in found], pa.float64()),
        "c": pa.array([c for _, _, c in found], pa.string()),
        PLACE: pa.array(range(len(found)), pa.uint32()),
    }
    bounds = bounds_of(pa.table(columns), ["a", "b", "c"], count)
    if chance.random() < 0.5:
        columns["c"] = columns["c"].dictionary_encode()
    ranges = ranges_of(columns, ["a", "b", "c"], bounds).tolist()
    keys = [[sort_key(value) for value in row] for row in found]
    in_order = sorted(range(len(found)), key=lambda row: keys[row])
    assert [ranges[row] for row in in_order] == sorted(ranges)
    sizes = [ranges.count(range_) for range_ in range(count)]
    if len(found) >= count:
        assert max(sizes) - min(sizes) <= 1


def test_a_sample_of_long_keys_is_thinned_the_same_way_in_any_order() -> None:
    parts = [
        Sampled(
            10,
            (n == 3, False),
            pa.table(
                {
                    "k": ["x" * 1000] * 50,
                    PLACE: pa.array(range(n * 50, n * 50 + 50), pa.uint32()),
                }
            ),
        )
        for n in range(8)
    ]
    kept = []
    for order in (parts, parts[::-1]):
        sample = Sample(100_000)
        for part in order:
            sample.add(part)
        assert (sample.size, sample.nulls) == (80, (True, False))
        kept.append(sample.rows[PLACE].to_pylist())
    assert kept[0] == kept[1] == sorted(kept[0])
    assert 20 < len(kept[0]) < 100


def test_a_block_is_what_was_sent() -> None:
    batch = pa.record_batch({"a": pa.array(["x", None]).dictionary_encode(), "b": [[1], None]})
    block = sized(2, 3, 4, batch)
    assert (block.part, block.range_) == (2, 3)
    with BlockFile() as file:
        first, second = file.add(block), file.add(RowBlock(0, data=block.data))
        assert file.rows(second).equals(batch)
        assert file.rows(first).equals(batch)
