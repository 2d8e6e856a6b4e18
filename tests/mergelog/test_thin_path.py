"""The log by the command line: appends, a log compaction and a merge, with real Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from support.jobs.quick_jobs import QuickJobs
from support.some import some
from tandem import mergelog
from tandem.cli.app import app
from tandem.delta.scan import scan
from tandem.mergelog.log_table import state_of
from tandem.operations import runner
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs

RESOURCES = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: orders}}
spec: {{location: "{location}"}}
---
apiVersion: tandem.dev/v1alpha1
kind: {kind}
metadata: {{name: {name}}}
spec: {{tableRef: {{name: orders}}, {spec}}}
"""


@pytest.fixture
def log(request: pytest.FixtureRequest, tmp_path: Path) -> mergelog.MergeLog:
    """Ten rows, and three blocks; a parameter is the ordering column."""
    ordering = getattr(request, "param", "")
    location = str(tmp_path / "orders")
    write_deltalake(
        location, _rows(range(10), "base"), configuration={"delta.enableDeletionVectors": "true"}
    )
    log = mergelog.open_log(location)
    settings = mergelog.LogSettings(("id",), ordering)
    mergelog.ensure_log(log, settings, now_ms=0, nonce="made once")
    with mergelog.LogWriter(log, "shop", pause=lambda _: None) as writer:
        writer.append(_rows(range(2, 5), "first"), batch=0)
        writer.append(_rows(range(4, 12), "second"), batch=1)
        deletes = pa.table({"id": [0, 4], "value": ["the last"] * 2})
        writer.append(deletes=deletes.select(list(settings.columns)), batch=2)
    return log


def _rows(ids: range, value: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": [value] * len(ids)})


MERGE = "type: LogMerge"


def _run(tmp_path: Path, command: str, name: str, spec: str, *words: str) -> Result:
    file = tmp_path / f"{name}.yaml"
    location = (tmp_path / "orders").as_uri()
    kind = "TableCompaction" if spec == MERGE else "LogCompaction"
    if kind == "LogCompaction":
        spec = f"strategy: {spec}, minBlocks: 3"
    file.write_text(RESOURCES.format(location=location, name=name, kind=kind, spec=spec))
    return CliRunner().invoke(app, [command, "-f", str(file), *words], catch_exceptions=False)


def _view(log: mergelog.MergeLog) -> list[tuple[int, str]]:
    found = mergelog.MergedView.open(log).scan().read_all()
    return sorted(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


@pytest.mark.matrix
@pytest.mark.parametrize("log", some(["value", ""]), indirect=True)
def test_blocks_are_stitched_and_merged_and_no_view_changes(
    tmp_path: Path, log: mergelog.MergeLog
) -> None:
    before = _view(log)
    planned = _run(tmp_path, "plan", "all", "AllBlocks")
    assert planned.exit_code == 0, planned.output
    assert "1-3" in planned.output
    assert len(state_of(log.snapshot()).live) == 3
    run = _run(tmp_path, "run", "all", "AllBlocks", "-o", "json")
    assert run.exit_code == 0, run.output
    status = json.loads(run.stdout)[1]["status"]
    assert (status["phase"], status["result"]["instants"]) == ("Succeeded", ["1-3"])
    assert (status["result"]["blocksIn"], status["result"]["blocksOut"]) == (3, 1)
    (block,) = state_of(log.snapshot()).live.values()
    assert (block.first, block.last, block.deletes) == (1, 3, 2)
    assert _view(log) == before
    with mergelog.LogWriter(log, "shop") as writer:
        writer.append(_rows(range(4, 5), "the third"), batch=3)
    # It is greater than the delete, too.
    assert dict(_view(log))[4] == "the third"
    ordered = mergelog.MergedView.open(log).settings.ordered
    # The base table has not changed, and others read the log as a table of records.
    assert DeltaTable(str(tmp_path / "orders")).version() == 0
    again = _run(tmp_path, "run", "all", "AllBlocks", "-o", "json")
    found = json.loads(again.stdout)[1]["status"]["result"]
    assert found == {**status["result"], "repeated": True}
    expected = _view(log)
    merged = _run(tmp_path, "run", "merge", MERGE, "-o", "json")
    assert merged.exit_code == 0, merged.output
    assert _view(log) == expected
    base = scan(log.base.snapshot(), log.base.store).read_all()
    assert sorted(zip(base["id"].to_pylist(), base["value"].to_pylist(), strict=True)) == expected
    # With an ordering column a merged delete stays in force.
    assert bool(mergelog.MergedView.open(log).state.live) is ordered


def test_without_a_run_of_blocks_nothing_is_to_do(
    tmp_path: Path, log: mergelog.MergeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))
    with mergelog.LogWriter(log, "shop") as writer:
        writer.append(_rows(range(20_000), "a large block"), batch=3)
    assert _run(tmp_path, "run", "three", "SmallRuns").exit_code == 0
    version = log.snapshot().version
    run = _run(tmp_path, "run", "again", "SmallRuns", "-o", "json")
    reasons = [c["reason"] for c in json.loads(run.stdout)[1]["status"]["conditions"]]
    assert "NothingToDo" in reasons
    assert log.snapshot().version == version


@pytest.mark.parametrize("spec", ["AllBlocks", MERGE])
def test_a_table_without_a_log_is_refused_by_name(tmp_path: Path, spec: str) -> None:
    write_deltalake(str(tmp_path / "orders"), _rows(range(3), "base"))
    run = _run(tmp_path, "run", "none", spec, "-o", "json")
    assert run.exit_code == 1
    assert "NotMergeOnRead" in run.stdout
