"""Resources of a merge-on-read table: `mergeOnRead` makes the log, statements see it, and rows are
appended by key.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from support.jobs.quick_jobs import QuickJobs
from tandem import mergelog
from tandem.cli.app import app
from tandem.mergelog.log_table import settings_of
from tandem.operations import runner
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs

TABLE = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: orders}}
spec: {{location: "{location}"{spec}}}
"""
UPDATE = """---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {name: fix}
spec: {tableRef: {name: orders}, update: {where: "id = 2", set: {value: "'fixed'"}}}
"""
BY_ID = ", mergeOnRead: {keys: [ID], orderingColumn: at, deletesKept: 24h}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = pa.table({"id": [1, 2], "at": [1, 1], "value": ["a", "b"], "share": [0.5, 0.5]})
    vectors = {"delta.enableDeletionVectors": "true"}
    write_deltalake(str(tmp_path / "orders"), rows, configuration=vectors)
    return tmp_path / "orders"


def run(table: Path, spec: str, more: str = "", command: str = "run") -> Result:
    file = table.parent / "resources.yaml"
    file.write_text(TABLE.format(location=table.as_uri(), spec=spec) + more)
    return CliRunner().invoke(app, [command, "-f", str(file), "-o", "json"], catch_exceptions=False)


ON_LOG = """---
apiVersion: tandem.dev/v1alpha1
kind: LogCompaction
metadata: {name: stitch}
spec: {tableRef: {name: orders}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableCompaction
metadata: {name: merge}
spec: {tableRef: {name: orders}, type: LogMerge}
"""


def test_a_plan_knows_that_the_log_would_be_made_first(table: Path) -> None:
    planned = run(table, BY_ID, ON_LOG, command="plan")
    assert planned.exit_code == 0, planned.output
    assert planned.stdout.count("the log would be created first") >= 2
    without = run(table, "", ON_LOG, command="plan")
    assert without.exit_code == 1
    assert without.stdout.count("NotMergeOnRead") >= 2


def test_merge_on_read_makes_a_log_once(table: Path) -> None:
    log = mergelog.open_log(str(table))
    planned = run(table, BY_ID, command="plan")
    assert planned.exit_code == 0, planned.output
    assert "would create the log" in planned.stdout
    assert not log.exists()
    for _ in range(2):
        assert run(table, BY_ID).exit_code == 0
    found = settings_of(log.snapshot())
    # In the spelling of the table: names are case-insensitive.
    assert (found.keys, found.ordering_column) == (("id",), "at")
    assert log.snapshot().version == 0
    assert log.base.snapshot().version == 0


def test_the_keys_of_a_log_cannot_be_changed(table: Path) -> None:
    assert run(table, BY_ID).exit_code == 0
    changed = run(table, ", mergeOnRead: {keys: [value], orderingColumn: at}")
    assert changed.exit_code == 1
    assert "cannot be changed" in changed.stdout
    assert run(table, "").exit_code == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("keys: [nope]", "keys"),
        ("keys: [share]", "no float"),
        ("keys: [id], orderingColumn: nope", "orderingColumn"),
        ("keys: [id], orderingColumn: id", "which is a key"),
        ("keys: [id, ID]", "twice"),
        ("keys: []", "keys"),
        ("keys: [id], deletesKept: 1h", "deletesKept only goes with orderingColumn"),
    ],
)
def test_a_log_that_cannot_be_is_refused_and_nothing_is_written(
    table: Path, spec: str, message: str
) -> None:
    refused = run(table, f", mergeOnRead: {{{spec}}}")
    assert refused.exit_code != 0
    assert message in refused.output
    assert not mergelog.open_log(str(table)).exists()


def test_a_table_without_deletion_vectors_gets_a_log_unless_nothing_else_is_allowed(
    tmp_path: Path,
) -> None:
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": [1], "at": [1]}))
    table = tmp_path / "orders"
    only = BY_ID + ", vectors: Only"
    refused = run(table, only)
    assert refused.exit_code == 1
    assert "DeletionVectorsDisabled" in refused.stdout
    assert "spec.mergeOnRead" in refused.stdout
    assert not mergelog.open_log(str(table)).exists()
    assert run(table, BY_ID).exit_code == 0
    assert mergelog.open_log(str(table)).exists()
    assert DeltaTable(str(table)).version() == 0
    # It is there: that its records cannot be merged now is said by those that would merge them.
    assert run(table, only).exit_code == 0
    assert run(table, only + ", enableDeletionVectors: true").exit_code == 0


REFUSED = {
    "no such key": ", mergeOnRead: {keys: [nope]}",
    "float as key": ", mergeOnRead: {keys: [share]}",
    "nested ordering column": ", mergeOnRead: {keys: [id], orderingColumn: parts}",
}


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_log_that_cannot_be_is_refused_before_deletion_vectors_are_enabled(
    tmp_path: Path, case: str, command: str
) -> None:
    table = tmp_path / "orders"
    write_deltalake(str(table), pa.table({"id": [1], "share": [0.5], "parts": [[1]]}))
    spec = REFUSED[case] + ", enableDeletionVectors: true"
    refused = run(table, spec, command=command)
    assert refused.exit_code == 1
    assert "spec.mergeOnRead" in refused.stdout
    assert DeltaTable(str(table)).version() == 0


def test_a_base_table_that_refuses_merges_is_not_changed_for_its_log(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    only = {"delta.appendOnly": "true"}
    write_deltalake(str(table), pa.table({"id": [1], "at": [1]}), configuration=only)
    for command in ("plan", "run"):
        refused = run(table, BY_ID + ", enableDeletionVectors: true", command=command)
        assert refused.exit_code == 1
        assert "appendOnly" in refused.stdout
    assert DeltaTable(str(table)).version() == 0


CREATE = ", create: {columns: [{name: id, type: long}, {name: share, type: double}]}"
VECTORS = ", enableDeletionVectors: true"


@pytest.mark.parametrize(
    ("spec", "message"),
    [(VECTORS + case, "spec.mergeOnRead") for case in list(REFUSED.values())[:2]]
    + [(", mergeOnRead: {keys: [id]}, vectors: Only", "DeletionVectorsDisabled")],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_table_is_not_created_if_its_log_cannot_be(
    tmp_path: Path, spec: str, message: str, command: str
) -> None:
    table = tmp_path / "orders"
    refused = run(table, CREATE + spec, command=command)
    assert refused.exit_code == 1
    assert message in refused.stdout
    assert not list(table.glob("**/*.json"))
    assert run(table, CREATE + VECTORS + ", mergeOnRead: {keys: [id]}").exit_code == 0
    assert mergelog.open_log(str(table)).exists()


def test_a_statement_sees_the_log_without_a_merge_of_its_own(table: Path) -> None:
    assert run(table, BY_ID).exit_code == 0
    log = mergelog.open_log(str(table))
    with mergelog.LogWriter(log, "shop") as writer:
        writer.append(pa.table({"id": [2], "at": [2], "value": ["new"]}), batch=0)
    updated = run(table, BY_ID, UPDATE)
    assert updated.exit_code == 0, updated.output
    # The merge, and the update; a log has no part in what others see of the table.
    assert json.loads(updated.stdout)[1]["status"]["result"]["version"] == 2
    rows = mergelog.scan(str(table)).read_all().sort_by("id")
    assert rows.select(["at", "value"]).to_pylist() == [
        {"at": 1, "value": "a"},
        {"at": 2, "value": "fixed"},
    ]


@pytest.mark.parametrize("statement", ["upsert", "deleteKeys"])
def test_rows_by_key_need_a_log(table: Path, statement: str) -> None:
    pq.write_table(pa.table({"id": [2], "at": [2]}), table.parent / "source.parquet")
    source = f"{{format: Parquet, location: {(table.parent / 'source.parquet').as_uri()}}}"
    appends = f"""---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: rows}}
spec: {{tableRef: {{name: orders}}, {statement}: {{source: {source}}}}}
"""
    refused = run(table, "", appends)
    assert refused.exit_code == 1
    assert "NotMergeOnRead" in refused.stdout
    done = run(table, BY_ID, appends)
    assert done.exit_code == 0, done.output
    rows = mergelog.scan(str(table)).read_all().sort_by("id").to_pylist()
    expected = [{"id": 1, "at": 1, "value": "a", "share": 0.5}]
    if statement == "upsert":
        expected += [{"id": 2, "at": 2, "value": None, "share": None}]
    assert rows == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("upsert: {source: S, where: 'id = 1'}", "where"),
        ("upsert: {source: S}, deleteKeys: {source: S}", "exactly one of"),
        ("upsert: {}", "source"),
        ("deleteKeys: {keys: [1]}", "keys"),
    ],
)
def test_rows_by_key_that_cannot_be_are_refused(table: Path, spec: str, message: str) -> None:
    spec = spec.replace("S", "{format: Parquet, location: file:///tmp/none}")
    resource = UPDATE.replace('update: {where: "id = 2", set: {value: "\'fixed\'"}}', spec)
    assert spec in resource
    refused = run(table, BY_ID, resource)
    assert refused.exit_code != 0
    assert message in refused.output
