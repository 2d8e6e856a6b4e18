"""`tandem plan` of a LakeTable says what an operator would do by itself."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from support.jobs import quick_lake
from support.lake.log_blocks import LogBlocks
from support.lake.rows import rows
from tandem.cli.app import app

TABLE = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: flights}}
spec:
  location: {location}
  compaction:
    minor: {{thresholds: [4, 3]}}
    schedules: [{{cron: "0 3 * * *", template: {{type: SemiMajor}}}}]
"""


@pytest.mark.parametrize(("loads", "what"), [(3, "SemiMajor by schedule"), (4, "Minor of segm")])
def test_plan_shows_the_automatic_compactions_of_an_operator(
    tmp_path: Path, loads: int, what: str
) -> None:
    lake = quick_lake.make(tmp_path, loads)
    file = tmp_path / "table.yaml"
    file.write_text(TABLE.format(location=lake.location))

    printed = CliRunner().invoke(app, ["plan", "-f", str(file)])
    assert printed.exit_code == 0
    assert "an operator would do" in printed.stdout
    assert what in printed.stdout
    assert ("None of 3 segments" in printed.stdout) is (loads == 3)

    found = CliRunner().invoke(app, ["plan", "-f", str(file), "-o", "json"])
    (resource,) = json.loads(found.stdout)
    status = resource["status"]
    assert status["nextCompaction"]["what"].startswith(what)
    assert lake.version == lake.first_version


DIVIDED = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: visits}}
spec:
  location: {location}
  enableDeletionVectors: {enabled}
  vectors: Only
  time: {{column: at, granularity: Day}}
  retention: {{rows: 24h}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableCompaction
metadata: {{name: cut}}
spec:
  tableRef: {{name: visits}}
  type: SemiMajor
  semiMajor: {{chunks: ["2013-03-01"], spanning: Cut}}
"""


def test_plan_counts_on_the_deletion_vectors_that_a_run_would_enable(tmp_path: Path) -> None:
    """A file with old rows and others, on a table without vectors that may be changed by no other
    means."""
    times = [dt.datetime(year, 3, 1, 12, tzinfo=dt.UTC) for year in (2013, 2999)]
    rows_ = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))})
    for _ in range(2):
        write_deltalake(tmp_path / "visits", rows_, mode="append")
    file = tmp_path / "table.yaml"

    def planned(enabled: str) -> tuple[str, str]:
        location = (tmp_path / "visits").as_uri()
        file.write_text(DIVIDED.format(location=location, enabled=enabled))
        found = CliRunner().invoke(app, ["plan", "-f", str(file), "-o", "json"])
        table, compaction = (each["status"] for each in json.loads(found.stdout))
        assert "spec.retention.rows is for the operator" in found.stderr
        return table["nextDrop"].get("what", "").partition("T")[0], compaction["phase"]

    assert planned("false") == ("", "Failed")
    assert planned("true") == ("Drop of 2013-03-01", "Succeeded")


LOGGED = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: orders}}
spec:
  location: {location}
  mergeOnRead: {{keys: [id], logCompaction: {{minBlocks: 3}}, merge: {{maxAge: 9000h}}}}
"""


@pytest.mark.parametrize(
    ("instants", "what"), [(2, "LogMerge of 2 blocks"), (3, "LogCompaction of 3 blocks")]
)
def test_plan_and_show_print_the_log_and_what_an_operator_would_do(
    tmp_path: Path, instants: int, what: str
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    file = tmp_path / "table.yaml"
    file.write_text(LOGGED.format(location=lake.location))
    log = LogBlocks(lake.location, "shop", made=True)
    for number in range(instants):
        log.upsert(rows([number]))

    printed = CliRunner().invoke(app, ["plan", "-f", str(file)])
    assert printed.exit_code == 0, printed.output
    (line,) = [line for line in printed.stdout.splitlines() if what in line]
    assert line.split(what)[0].split() == ["an", "operator", "would", "do"]
    found = CliRunner().invoke(app, ["run", "-f", str(file), "-o", "json"])
    (resource,) = json.loads(found.stdout)
    shown = resource["status"]["log"]
    assert "next" not in shown
    assert (shown["blocks"], shown["newestInstant"], shown["deadPercent"]) == (
        instants,
        instants,
        0,
    )
    asked = ["table", "show", "orders", "-f", str(file), "-o", "json"]
    table = json.loads(CliRunner().invoke(app, asked).stdout)
    assert table["log"]["next"]["what"] == what
    assert {key: table["log"][key] for key in shown} == shown
    plain = json.loads(
        CliRunner().invoke(app, ["table", "show", str(lake.path), "-o", "json"]).stdout
    )
    assert "next" not in plain["log"]
    assert log.version == instants
