"""Tables that `deltalake` made, at every version, against what `deltalake` says of them; and
`deltalake` reading the checkpoints and commits that we write."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.lake.arrow_schema import to_arrow
from tandem.delta.actions import Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import commit_info
from tandem.storage import open_store

WITH_VECTORS = {"delta.enableDeletionVectors": "true"}


def _rows(start: int, count: int = 20) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "part": [f"a b/{i % 3}%" if i % 7 else None for i in ids],
            "value": [float(i) for i in ids],
        }
    )


def _log(root: Path) -> DeltaLog:
    return DeltaLog(open_store(root.as_uri()))


def _compare(root: Path, version: int) -> None:
    theirs = DeltaTable(root, version=version)
    actions = pa.table(theirs.get_add_actions())
    ours = _log(root).snapshot(version)
    assert sorted(unquote(p) for p in ours.files["path"].to_pylist()) == sorted(
        unquote(p) for p in actions["path"].to_pylist()
    )
    rows = {unquote(r["path"]): r for r in actions.to_pylist()}
    for add in ours.adds():
        row = rows[add.path]
        assert add.size == row["size_bytes"]
        assert add.modified_ms == row["modification_time"]
    assert sum(ours.num_records.to_pylist()) == sum(actions["num_records"].to_pylist())
    assert ours.metadata.id == str(theirs.metadata().id)
    assert dict(ours.configuration) == theirs.metadata().configuration
    assert list(ours.partition_columns) == theirs.metadata().partition_columns
    assert ours.protocol.min_reader == theirs.protocol().min_reader_version
    assert to_arrow(ours.schema).names == [f.name for f in theirs.schema().fields]
    assert len(theirs.file_uris()) == ours.num_files


Step = Callable[[Path, int], object]
STEPS: dict[str, Step] = {
    "append": lambda root, n: write_deltalake(
        root, _rows(n * 20), mode="append", schema_mode="merge"
    ),
    "delete": lambda root, n: DeltaTable(root).delete(f"id % {n + 3} = 0"),
    "update": lambda root, n: DeltaTable(root).update(
        updates={"value": "value + 1"}, predicate=f"id < {n * 9}"
    ),
    "merge": lambda root, n: (
        DeltaTable(root)
        .merge(_rows(n * 15), "s.id = t.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    ),
    "optimize": lambda root, _: DeltaTable(root).optimize.compact(),
    "checkpoint": lambda root, _: DeltaTable(root).create_checkpoint(),
    "our checkpoint": lambda root, _: write_checkpoint(_log(root), _log(root).snapshot(), now_ms=0),
    "vacuum": lambda root, _: DeltaTable(root).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False
    ),
    "restore": lambda root, _: DeltaTable(root).restore(DeltaTable(root).version() // 2),
    "new column": lambda root, n: write_deltalake(
        root,
        _rows(n * 20).append_column(f"extra{n}", pa.array([n] * 20, pa.int64())),
        mode="append",
        schema_mode="merge",
    ),
    "overwrite": lambda root, n: write_deltalake(
        root, _rows(n), mode="overwrite", schema_mode="merge"
    ),
}
SCRIPTED = ["append", "append", "delete", "update", "checkpoint", "merge", "append", "optimize",
            "our checkpoint", "new column", "restore", "append", "overwrite", "vacuum"]  # fmt: skip


@pytest.mark.parametrize("partitions", [[], ["part"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("settings", [{}, WITH_VECTORS], ids=["1/2", "vectors"])
def test_every_version_of_a_scripted_table(
    tmp_path: Path, settings: dict[str, str], partitions: list[str]
) -> None:
    write_deltalake(tmp_path, _rows(0), partition_by=partitions, configuration=settings)
    incremental = _log(tmp_path).snapshot()
    for number, step in enumerate(SCRIPTED, start=1):
        STEPS[step](tmp_path, number)
        incremental = _log(tmp_path).update(incremental)
        fresh = _log(tmp_path).snapshot()
        assert (
            incremental.files["path"].to_pylist().sort() == fresh.files["path"].to_pylist().sort()
        )
        assert incremental.version == DeltaTable(tmp_path).version()
    for version in range(incremental.version + 1):
        _compare(tmp_path, version)


@pytest.mark.parametrize("seed", range(4))
def test_every_version_of_a_random_table(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    write_deltalake(
        tmp_path,
        _rows(0),
        partition_by=dice.choice([[], ["part"]]),
        configuration=dice.choice([{}, WITH_VECTORS]),
    )
    steps = [s for s in STEPS if s not in ("vacuum", "restore")]
    for number in range(1, 10):
        STEPS[dice.choice(steps)](tmp_path, number)
    for version in range(DeltaTable(tmp_path).version() + 1):
        _compare(tmp_path, version)


def test_deltalake_reads_a_table_from_our_checkpoint_alone(tmp_path: Path) -> None:
    write_deltalake(tmp_path, _rows(0), partition_by=["part"], configuration=WITH_VECTORS)
    for number in range(1, 4):
        write_deltalake(tmp_path, _rows(number * 20), mode="append")
    DeltaTable(tmp_path).delete("id < 5")
    log = _log(tmp_path)
    snapshot = log.snapshot()
    info = commit_info("WRITE", {}, now_ms=1, previous=snapshot, blind_append=False)
    log.put_commit(snapshot.version + 1, [info, Txn("tandem.segments", 12)], token="token")
    snapshot = log.snapshot()
    expected = sorted(DeltaTable(tmp_path).file_uris())
    write_checkpoint(log, snapshot, now_ms=0)
    log.store.delete(f"_delta_log/{v:020d}.json" for v in range(snapshot.version))
    table = DeltaTable(tmp_path)
    assert table.version() == snapshot.version
    assert sorted(table.file_uris()) == expected
    assert table.transaction_version("tandem.segments") == 12
    scanned = pa.table(table.scan())
    assert sorted(scanned["id"].to_pylist()) == list(range(5, 80))
    # And they go on from it.
    write_deltalake(tmp_path, _rows(80), mode="append")
    _compare(tmp_path, snapshot.version + 1)


def test_statistics_of_deltalake_are_understood(tmp_path: Path) -> None:
    from tandem.pruning.selection import Selection
    from tandem.statements import parse_where

    for start in (0, 100, 200):
        write_deltalake(tmp_path, _rows(start), mode="append")
    snapshot = _log(tmp_path).snapshot()
    for text, files in (("id >= 110 AND id <= 205", 2), ("id = 19", 1), ("id = 20", 0)):
        where = parse_where(text, snapshot.metadata.schema_string)
        assert Selection(where, snapshot).mask(snapshot.files).sum() == files
