"""Questions that few ask: conditions that name no column, columns that are named twice, versions of
a table that has been replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tandem import index
from tandem.cli.commands.index import matching_in
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import UnsupportedFeature
from tandem.index import Query, TableIndex
from tandem.index.library import MERGE_LOG_S
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.statements import parse_where
from tandem.storage import open_store


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = str(tmp_path / "t")
    for start in (0, 3):
        ids = pa.array(range(start, start + 3), pa.int64())
        write_deltalake(folder, pa.table({"id": ids, "s": ["a", None, "b"]}), mode="append")
    return folder


@pytest.mark.parametrize(("where", "rows"), [("1 = 1", 6), ("1 = 2", 0), ("1 + 1 = 2", 6)])
def test_a_condition_that_names_no_column(root: str, where: str, rows: int) -> None:
    assert index.count(root, where) == rows
    assert index.reader(root, where).read_all().num_rows == rows
    assert index.bounds(root, ["id"], where) == {"id": (0, 5) if rows else (None, None)}


def test_rows_without_a_column(root: str) -> None:
    for where, rows in (("", 6), ("id < 4", 4), ("s = 'a'", 2), ("1 = 1", 6)):
        batches = list(index.reader(root, where, []))
        assert sum(batch.num_rows for batch in batches) == rows
        assert all(batch.num_columns == 0 for batch in batches)


def test_a_column_that_is_named_twice(root: str) -> None:
    found = index.reader(root, "id > 3", ["id", "s", "ID"]).read_all()
    assert found.column_names == ["id", "s", "id"]
    assert found.column(0).to_pylist() == found.column(2).to_pylist() == [4, 5]


def test_a_version_that_was_held_is_that_of_a_table_in_its_place(root: str) -> None:
    held = index.open_index(root)
    assert held.count() == 6
    assert held.count(Query(version=1)) == 6
    shutil.rmtree(root)
    for _ in range(3):
        write_deltalake(root, pa.table({"other": [1.5]}), mode="append")
    assert held.count(Query("other > 1", version=1)) == 2
    assert held.count(Query(version=1)) == 2
    assert held.count() == 3


def test_a_column_of_a_merged_view_that_is_named_twice() -> None:
    whole = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})

    def read(names: Sequence[str] | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        chosen = whole.select(list(names or ()))
        return chosen.schema, chosen.to_batches()

    fields = [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]
    where = parse_where("id > 1", json.dumps({"type": "struct", "fields": fields}))
    schema, batches = matching_in(read, whole.column_names, where, ["id", "s", "id"])
    found = pa.Table.from_batches(batches, schema)
    assert found.column_names == ["id", "s", "id"]
    assert found.column(0).to_pylist() == found.column(2).to_pylist() == [2, 3]


def test_a_table_that_becomes_merge_on_read_is_refused_within_seconds(tmp_path: Path) -> None:
    root = tmp_path / "orders"
    rows = pa.table({"id": [1, 2, 3]})
    write_deltalake(root, rows, configuration={"delta.enableDeletionVectors": "true"})
    clock = [0.0]
    log = DeltaLog(open_store(root.as_uri()))
    held, base = (TableIndex(log, base=base, now=lambda: clock[0]) for base in (False, True))
    assert held.count() == base.count() == 3
    ensure_log(MergeLog(log), LogSettings(("id",)), now_ms=0, nonce="n")
    clock[0] = MERGE_LOG_S
    with pytest.raises(UnsupportedFeature, match="merge-on-read"):
        held.count()
    assert base.count() == 3
