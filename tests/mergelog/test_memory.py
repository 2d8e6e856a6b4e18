"""A log that exceeds the memory is read in several passes, and gives the same rows. Stitching,
merging and reading hold a small part of it."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from mergelog import peak
from mergelog.lake import Merged, made
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.create import ensure_log
from tandem.mergelog.rows.by_key import parts_of_keys
from tandem.mergelog.state.log_table import LogSettings, MergeLog
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter
from tandem.storage import open_store


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
