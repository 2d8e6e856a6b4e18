"""`tandem log`: shows the blocks of a log, and ends an uncertainty about its base table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cli.invoke import Tandem
from mergelog.orders import MERGE, STITCH, Orders, make
from mergelog.orders import rows as order_rows
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from tandem.delta.actions import CommitInfo
from tandem.delta.log.delta_log import DeltaLog
from tandem.json_types import Json
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.writer import LogWriter
from tandem.operations.machine.events import Point
from tandem.spec.status import Phase
from tandem.storage import open_store


@pytest.fixture
def log(tmp_path: Path) -> MergeLog:
    """A table of three rows; its log has an upsert of two keys, and a delete."""
    path = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    write_deltalake(path, rows, configuration={"delta.enableDeletionVectors": "true"})
    log = MergeLog(DeltaLog(open_store(path)))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "orders") as writer:
        writer.append(pa.table({"id": [2, 4], "v": ["B", "D"]}), batch=0)
        writer.append(deletes=pa.table({"id": [1]}), batch=1)
    return log


def rows(tandem: Tandem, table: Path) -> list[tuple[int, str]]:
    found = tandem("scan", table, "-o", "json").stdout.splitlines()
    return sorted((row["id"], row["v"]) for row in map(json.loads, found))


def test_clean_says_why_the_log_was_not_cleaned(
    tandem: Tandem, log: MergeLog, tmp_path: Path
) -> None:
    """The commits of the table that decide which records are valid are gone."""
    path = tmp_path / "t"
    for number in range(2):
        write_deltalake(str(path), pa.table({"id": [10 + number], "v": ["x"]}), mode="append")
    DeltaTable(str(path)).create_checkpoint()
    (path / "_delta_log" / f"{1:020d}.json").unlink()
    cleaned = tandem("clean", path)
    assert cleaned.exit_code == 1
    assert "The log of blocks was not cleaned" in cleaned.stderr, cleaned.stderr
    assert "tandem log resolve" in cleaned.stderr
    assert json.loads(tandem("clean", path, "-o", "json").stdout) == []


def test_show_lists_the_blocks_in_order(tandem: Tandem, log: MergeLog, tmp_path: Path) -> None:
    shown = json.loads(tandem("log", "show", tmp_path / "t", "-o", "json").stdout)
    assert [(b["first"], b["last"], b["deletes"]) for b in shown["blocks"]] == [
        (1, 1, 0),
        (2, 2, 1),
    ]
    assert (shown["version"], shown["baseVersion"], shown["mark"]) == (2, 0, None)
    result = tandem("log", "show", tmp_path / "t")
    assert "2 live blocks, 2 not merged" in result.stderr
    assert result.stdout.count("appended") == 2


def test_show_names_the_merge_that_is_pending_and_marks_its_blocks(
    tandem: Tandem, tmp_path: Path
) -> None:
    orders = Orders(make(tmp_path / "orders", "at"))
    orders.run(STITCH, name="stitch-orders")
    with pytest.raises(ProcessDied):
        orders.run(MERGE, StrikeOnce(Point.START_JOB, Fault.DIE_BEFORE), name="merge-orders")
    orders.append(order_rows(range(3), "new", 9))
    shown = json.loads(tandem("log", "show", orders.location, "-o", "json").stdout)
    name = "TableCompaction/merge-orders"
    assert [(b["stitched"], b["pendingMerge"]) for b in shown["blocks"]] == [
        (True, name),
        (False, None),
    ]
    result = tandem("log", "show", orders.location)
    assert f"Pending: {name} merges 1 of them" in result.stderr
    assert [line.split()[2:4] for line in result.stdout.splitlines()[3:5]] == [
        ["stitched", "pending"],
        ["appended", "no"],
    ]
    assert orders.run(MERGE, name="merge-orders").phase is Phase.SUCCEEDED
    # Deletes stay in force.
    result = tandem("log", "show", orders.location)
    assert "Pending" not in result.stderr
    assert result.stdout.splitlines()[3].split()[2:4] == ["stitched", "yes"]


def test_a_log_without_blocks_and_the_plan_of_a_merge(tandem: Tandem, tmp_path: Path) -> None:
    orders = Orders(make(tmp_path / "orders", ""))
    file = tmp_path / "merge.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: orders}\n"
        f"spec: {{location: {orders.folder.as_uri()}}}\n---\n"
        "apiVersion: tandem.dev/v1alpha1\nkind: TableCompaction\nmetadata: {name: merge}\n"
        "spec: {tableRef: {name: orders}, type: LogMerge}\n"
    )
    planned = " ".join(tandem("plan", "-f", file).stdout.split())
    assert "TableCompaction/merge: Planned merges the log into the table" in planned
    assert "layout" not in planned
    orders.run(MERGE)
    result = tandem("log", "show", orders.location)
    assert result.stdout == ""
    assert "0 live blocks, 0 not merged" in result.stderr


def test_resolve_says_which_records_are_given_up(
    tandem: Tandem, log: MergeLog, tmp_path: Path
) -> None:
    block = next((tmp_path / "t" / "_tandem" / "log" / "blocks").glob("*/1/*.parquet"))
    block.unlink()
    refused = tandem("scan", tmp_path / "t")
    assert refused.exit_code == 1
    assert "instant 1, does not exist" in refused.stderr
    kept = tandem("log", "resolve", tmp_path / "t", "--keep")
    assert kept.exit_code == 1
    assert "cannot be kept" in kept.stderr
    given_up = tandem("log", "resolve", tmp_path / "t", "--discard")
    assert given_up.exit_code == 0
    assert "1 block without a file dropped: the records of instant 1 are" in given_up.stderr
    assert "1 live block left" in given_up.stderr
    assert rows(tandem, tmp_path / "t") == [(2, "b"), (3, "c")]
    again = tandem("log", "resolve", tmp_path / "t", "--discard")
    assert "there is nothing to decide" in again.stderr


def test_clean_shows_both_tables(tandem: Tandem, log: MergeLog, tmp_path: Path) -> None:
    """A writer died two days ago, between its upload and its commit."""
    with LogWriter(log, "dead") as writer:
        (add,) = writer._upload(writer._arrange(pa.table({"id": [9], "v": ["never"]}), None))
    path = f"_tandem/log/{add.path}"
    past = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / "t" / path, (past, past))
    before = rows(tandem, tmp_path / "t")
    dry = tandem("clean", tmp_path / "t", "--dry-run")
    assert path in dry.stdout
    assert "Would remove 1 file" in dry.stderr
    assert "1 in the log of blocks: 1 its writer never committed it" in dry.stderr
    assert "would be rolled back" in dry.stderr
    assert (tmp_path / "t" / path).exists()
    done = json.loads(tandem("clean", tmp_path / "t", "-o", "json").stdout)
    assert [(each["path"], each["reason"]) for each in done] == [(path, "RolledBack")]
    assert not (tmp_path / "t" / path).exists()
    assert rows(tandem, tmp_path / "t") == before


def test_a_table_without_a_log_is_refused(tandem: Tandem, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))
    result = tandem("log", "show", tmp_path / "t")
    assert result.exit_code == 1
    assert "the table has no log of blocks" in result.stderr


@pytest.mark.parametrize(
    ("answer", "expected"), [("--keep", [(2, "B"), (4, "D")]), ("--discard", [])]
)
def test_resolve_keeps_or_discards_unmerged_records(
    tandem: Tandem,
    log: MergeLog,
    tmp_path: Path,
    answer: str,
    expected: list[tuple[int, str]],
) -> None:
    _remove_every_file(log.base)
    refused = tandem("scan", tmp_path / "t", "-o", "json")
    assert "BaseReplaced" in refused.stderr or "is unclear" in refused.stderr
    assert tandem("log", "resolve", tmp_path / "t", answer).exit_code == 0
    assert rows(tandem, tmp_path / "t") == expected


def _remove_every_file(base: DeltaLog) -> None:
    """An operation that Tandem does not know."""
    from tandem.delta.log.snapshot import remove_of

    snapshot = base.snapshot()
    body: Json = {"timestamp": 0, "operation": "SWAP", "operationParameters": {}}
    removes = [remove_of(add, deletion_ms=0, data_change=True) for add in snapshot.adds()]
    base.put_commit(snapshot.version + 1, [CommitInfo(body), *removes], token="foreign")


def test_cleaning_removes_files_of_the_table_and_void_blocks_of_its_log(
    tandem: Tandem, log: MergeLog, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [7], "v": ["z"]}), mode="overwrite")
    for file in path.rglob("*"):
        os.utime(file, (0, 0))
    lake = tmp_path / "lake.yaml"
    lake.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: lake}\n"
        f"spec: {{location: '{path.as_uri()}', retention: {{files: 0s}}}}\n"
    )
    cleaned = tandem("clean", "lake", "-f", lake)
    assert "Removed 3 files" in cleaned.stderr, cleaned.stderr
    assert "2 in the log of blocks" in cleaned.stderr, cleaned.stderr
    assert rows(tandem, path) == [(7, "z")]
