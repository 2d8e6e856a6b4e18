"""What people see of a run: lines that fit a terminal, and files that are marked.

Jobs are done without Spark (`support.jobs.quick_jobs`); all else is as it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from rich.console import Console

from cli.invoke import Tandem
from tandem.cli import report
from tandem.cli.report import RepeatCommands
from tandem.spec import OperationStatus, ResourceOutcome, parse
from tandem.spec.resources import AnyResource, IndexServer
from tandem.spec.status import OperationResult, Phase, RowsAffected

NAME = "late-flights-of-united-airlines-in-march"


@pytest.fixture
def lake(tmp_path: Path, quick_jobs: None) -> Path:
    folder = tmp_path / "lake"
    vectors = {"delta.enableDeletionVectors": "true"}
    for load in range(3):
        ids = pa.array([load * 2, load * 2 + 1], pa.int64())
        rows = pa.table({"id": ids, "at": pa.array([{"day": [1]}] * 2)})
        write_deltalake(folder, rows, mode="append", configuration=None if load else vectors)
    return folder


def resource() -> AnyResource:
    found = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableUpdate",
            "metadata": {"name": NAME},
            "spec": {"tableRef": {"name": "t"}, "delete": {"where": "true"}},
        }
    )
    assert not isinstance(found, IndexServer)
    return found


def printed(width: int, result: Mapping[str, Any]) -> list[str]:
    """The lines of a result on a terminal."""
    status = OperationStatus(phase=Phase.SUCCEEDED, result=OperationResult(**result))
    outcomes: Sequence[ResourceOutcome] = [ResourceOutcome(resource(), status)]
    console = Console(file=io.StringIO(), width=width)
    console.print(report.results(outcomes, RepeatCommands("", ""), now_ms=0, width=width))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_a_summary_fits_80_columns_and_breaks_no_name() -> None:
    result = {
        "version": 12, "files_added": 31, "files_removed": 364, "files_marked": 3,
        "bytes_added": 10**9, "bytes_removed": 10**9,
        "rows_affected": RowsAffected(updated=4971, deleted=12), "segments": ("0.2", "1.2"),
    }  # fmt: skip
    narrow = printed(80, result)
    assert narrow[0] == f"TableUpdate/{NAME}: Succeeded"
    assert all(len(line) <= 80 for line in narrow)
    assert "  files     -364 (953.7 MiB) +31 (953.7 MiB) 3 marked" in narrow
    wide = printed(240, result)
    assert any(line.startswith(f" TableUpdate/{NAME}  Succeeded") for line in wide)


def test_files_that_are_marked_are_counted(tandem: Tandem, lake: Path) -> None:
    deleted = tandem("delete", lake, "--where", "id IN (0, 2)")
    row = next(line for line in deleted.stdout.splitlines() if "TableUpdate/" in line)
    assert "2 marked" in row
    assert "-0 (" not in row
    assert deleted.stderr.count("\n") == 1, "one line for the operation"
    updated = tandem("delete", lake, "--where", "id = 4", "-o", "json")
    assert json.loads(updated.stdout)[1]["status"]["result"]["filesMarked"] == 1


def test_history_counts_what_it_shows_and_labels_ingests(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    source = tmp_path / "more.parquet"
    pq.write_table(pa.table({"id": [9], "at": [{"day": [1]}]}), source)
    tandem("delete", lake, "--where", "id = 0")
    tandem("ingest", lake, "--from", source)
    shown = tandem("history", lake).stdout
    assert "WRITE (ingest)" in shown
    ingest, delete, *_ = json.loads(tandem("history", lake, "-o", "json").stdout)
    files = ("filesAdded", "filesRemoved", "filesMarked")
    assert [delete[name] for name in files] == [0, 0, 1]
    assert [ingest[name] for name in files] == [1, 0, 0]
    assert ingest["operation"] == "WRITE"


def test_table_show_prints_types_as_sql_does(tandem: Tandem, lake: Path) -> None:
    shown = " ".join(tandem("table", "show", lake).stdout.split())
    assert "id: BIGINT at: STRUCT<day: ARRAY<BIGINT>>" in shown
    facts = json.loads(tandem("table", "show", lake, "-o", "json").stdout)
    assert facts["columns"]["id"] == "long"


def test_a_plan_says_once_what_is_the_same(tandem: Tandem, lake: Path) -> None:
    shown = tandem("compact", lake, "--dry-run").stdout
    [locks] = [line for line in shown.splitlines() if line.split()[:1] == ["locks"]]
    assert locks.split()[1:3] == ["Rewrite", "segments"]
    assert locks.count("Rewrite") == 1
    assert report.shortened_names(["(new number).2"] * 30 + ["x"]) == "(new number).2 (×30), x"
