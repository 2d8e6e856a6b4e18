"""What a reader of a log lists, reads and holds."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from mergelog import peak
from mergelog.aged import KEEP, TestClock
from mergelog.lake import Merged, in_memory, made, table
from mergelog.test_base_history import commit
from support.lake.memory_store import Call, MemoryStore
from support.some import EVERY_CASE
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog import log_table, winners
from tandem.mergelog.by_key import parts_of_keys
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.clean_log import clean_with_log
from tandem.operations.model import Table
from tandem.storage import open_store
from tandem.storage.local import LocalStore
from tandem.storage.store import ObjectInfo

# A log of many instants: what a reader lists and reads is bounded by the checkpoint interval.


LOG = "_tandem/log/_delta_log"
TRUE_SIZE = (10_000, log_table.CHECKPOINT_INTERVAL)
SIZES = [TRUE_SIZE] if os.environ.get(EVERY_CASE) else [(120, 4)]


class CountingStore:
    """Counts what a store lists and reads of the log's versions."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed, self.read = 0, 0
        self._list = store.list
        monkeypatch.setattr(store, "list", self.list)
        store.fault = self.see

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for found in self._list(prefix, start_after=start_after):
            self.listed += found.path.startswith(LOG)
            yield found

    def see(self, call: Call) -> None:
        if call.when == "before" and call.name == "get" and call.path.startswith(LOG):
            self.read += 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("instants", "interval"), SIZES)
def test_a_reader_lists_and_reads_what_follows_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch, instants: int, interval: int
) -> None:
    monkeypatch.setattr(log_table, "CHECKPOINT_INTERVAL", interval)
    clock = TestClock()
    store = in_memory(clock=lambda: clock.now)
    merged = Merged(store)
    writer = LogWriter(merged.log, "w", now_ms=clock.now_ms, pause=lambda _: None)
    with writer:
        for number in range(instants):
            clock.pass_days(1)
            if number % 50 == 49:  # or reading the view would take the time of all blocks
                commit(merged, merged.log.base.snapshot().version + 1, "TRUNCATE")
            writer.append(table((number % 7, str(number), None)), batch=number)
    before = merged.rows()
    with monkeypatch.context() as patch:
        counted = CountingStore(store, patch)
        assert merged.rows() == before
        store.fault = None
    # A checkpoint that is due is written beside the next appends: one interval more at most. Two
    # files at the checkpoint itself, and its hint.
    assert counted.listed <= 2 * interval + 3
    assert counted.read <= 2 * interval + 3
    # A day passes between two instants, and the log keeps a month.
    base = Table(store, DeltaLog(store), "LakeTable/long")
    assert not clean_with_log(base, KEEP, CleaningDependencies(clock=clock)).problem
    assert len(list(store.list(LOG))) <= 2 * (31 + 2 * interval)
    assert merged.rows() == before
    with LogWriter(merged.log, "w", now_ms=clock.now_ms) as again:
        assert again.append(table((0, "again", None)), batch=instants - 1).repeated
        assert not again.append(table((0, "next", None)), batch=instants).repeated


# A log that exceeds the memory is read in several passes, and gives the same rows. Stitching,
# merging and reading hold a small part of it.


@pytest.mark.part(3)
@pytest.mark.parametrize("memory", [1 << 10, 1 << 13, 1 << 16, 1 << 28])
@pytest.mark.parametrize("ordering", ["", "at"])
def test_rows_do_not_depend_on_the_memory(tmp_path: Path, memory: int, ordering: str) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, _rows(range(400), "base"), configuration=VECTORS)
    log = MergeLog(DeltaLog(open_store(path)))
    settings = LogSettings(("id", "name"), ordering)
    ensure_log(log, settings, now_ms=0, nonce="made once")
    with LogWriter(log, "w", pause=lambda _: None) as writer:
        writer.append(_rows(range(300, 600), "upsert", at=7), batch=0)
        deletes = _rows(range(100), "", at=9).select(["id", "name", "at"])
        writer.append(None, deletes if ordering else deletes.drop_columns(["at"]), batch=1)
        writer.append(_rows(range(50, 60), "late", at=3), batch=2)
    found = MergedView.open(log).scan(memory=memory).read_all().sort_by("id")
    late = [] if ordering else [(at, "late") for at in range(50, 60)]
    base = [(at, "base") for at in range(100, 300)]
    upserts = [(at, "upsert") for at in range(300, 600)]
    assert list(zip(*(found[c].to_pylist() for c in ("id", "value")), strict=True)) == [
        *late,
        *base,
        *upserts,
    ]


VECTORS = {"delta.enableDeletionVectors": "true"}


def _rows(ids: range, value: str, at: int = 5) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"name {i % 7}" * (i % 3) for i in ids],
            "at": pa.array([at] * len(ids), pa.int64()),
            "value": [value] * len(ids),
        }
    )


VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3).map(Decimal),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}


@given(st.data(), st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
def test_equal_keys_are_in_one_part(data: st.DataObject, types: list[pa.DataType]) -> None:
    row = st.tuples(*(VALUES[type_] for type_ in types))
    rows = data.draw(st.lists(row, min_size=1, max_size=20))
    columns = [
        pa.array(column, type_)
        for column, type_ in zip(zip(*rows, strict=True), types, strict=True)
    ]
    together = parts_of_keys(columns, 7).tolist()
    apart = [int(parts_of_keys([c.slice(at, 1) for c in columns], 7)[0]) for at in range(len(rows))]
    assert together == apart
    assert all(0 <= part < 7 for part in together)


def test_parts_are_about_as_large() -> None:
    counts = [0] * 8
    for part in parts_of_keys([pa.array(range(8_000), pa.int64())], 8).tolist():
        counts[part] += 1
    assert min(counts) > 800


BLOCKS, ROWS, WIDTH = 4, 32_000, 1_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Merged:
    """A log of wide rows, half of their keys in two blocks, beside a base of five partitions."""

    def rows(first: int, count: int) -> pa.Table:
        keys = range(first, first + count)
        return pa.table(
            {
                "id": pa.array(keys, pa.int64()),
                "p": [f"p{key % 5}" for key in keys],
                "wide": pa.array([os.urandom(WIDTH) for _ in keys], pa.binary()),
            }
        )

    folder = tmp_path_factory.mktemp("wide") / "t"
    merged = made(folder, rows(0, 1), keys=("id",), partition_by=["p"])
    for number in range(BLOCKS):
        merged.append(rows(number * ROWS // 2, ROWS))
    return merged


@pytest.mark.matrix
@pytest.mark.parametrize("service", ["stitch", "merge", "read"])
def test_a_service_holds_a_small_part_of_the_rows(
    tmp_path: Path, wide: Merged, service: str
) -> None:
    size = sum(block.size for block in wide.open().state.live.values())
    assert size > BLOCKS * ROWS * WIDTH * 0.9
    folder = tmp_path / "t"
    shutil.copytree(wide.store.location.removeprefix("file://"), folder)
    assert peak.of(service, folder) < size / 2


# The keys of a log are looked up in those files of the base table only that can hold them.


class CountingStoreReads(LocalStore):
    """Counts how often each data file is opened."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.opened: dict[str, int] = {}

    def open_input(self, path: str) -> BinaryIO:
        self.opened[path] = self.opened.get(path, 0) + 1
        return super().open_input(path)


def write_base(folder: Path) -> None:
    """Four files of a hundred keys each."""
    for start in range(0, 400, 100):
        rows = pa.table({"id": pa.array(range(start, start + 100)), "v": ["base"] * 100})
        write_deltalake(
            str(folder),
            rows,
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"},
        )


def test_files_without_a_key_of_the_log_are_read_once(tmp_path: Path) -> None:
    write_base(tmp_path)
    store = CountingStoreReads(tmp_path.as_uri())
    log = MergeLog(DeltaLog(store))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "w") as writer:
        writer.append(pa.table({"id": [150, 999], "v": ["new", "new"]}), batch=0)
    store.opened.clear()
    found = MergedView.open(log).scan().read_all()
    assert found.num_rows == 401
    assert sorted(found.filter(pa.compute.equal(found["v"], "new"))["id"].to_pylist()) == [150, 999]
    base = {path: times for path, times in store.opened.items() if not path.startswith("_tandem")}
    assert sorted(base.values()) == [1, 1, 1, 2]


def test_of_very_many_keys_a_file_between_the_extremes_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winners, "MOST_KEYS", 2)
    write_base(tmp_path)
    log = MergeLog(DeltaLog(LocalStore(tmp_path.as_uri())))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "w") as writer:
        writer.append(pa.table({"id": [50, 250, 350], "v": ["new"] * 3}), batch=0)
    found = MergedView.open(log).scan().read_all()
    assert found.num_rows == 400
    new = found.filter(pa.compute.equal(found["v"], "new"))
    assert sorted(new["id"].to_pylist()) == [50, 250, 350]
