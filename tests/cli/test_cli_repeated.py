"""Running a file again tells the truth: what an earlier run did, when, and that this one did
nothing.

Jobs are done without Spark (`support.jobs.quick_jobs`); all else is as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cli.invoke import Tandem
from tandem.cli import report
from tandem.cli.report import RepeatCommands
from tandem.operations import attempt_files
from tandem.spec import OperationStatus, ResourceOutcome, TableCompaction, parse
from tandem.spec.status import OperationResult, Phase

RESOURCES = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: t}}
spec: {{location: "{location}", enableDeletionVectors: true}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: more}}
spec: {{tableRef: {{name: t}}, update: {{where: "id = 1", set: {{n: "n + 1"}}}}}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: none}}
spec: {{tableRef: {{name: t}}, delete: {{where: "id = 77"}}}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: wrong}}
spec: {{tableRef: {{name: t}}, delete: {{where: "idd = 1"}}}}
"""


@pytest.fixture
def file(tmp_path: Path, quick_jobs: None) -> Path:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "n": [1, 2]}))
    found = tmp_path / "my files.yaml"
    found.write_text(RESOURCES.format(location=(tmp_path / "t").as_uri()))
    return found


def statuses(text: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item["status"] for item in json.loads(text)[1:]}


def test_the_status_of_a_second_run_says_that_it_repeats_the_first(
    tandem: Tandem, file: Path
) -> None:
    first = statuses(tandem("run", "-f", file, "-o", "json").stdout)
    assert not any(status.get("result", {}).get("repeated") for status in first.values())
    result = tandem("run", "-f", file, "-o", "json")
    second = statuses(result.stdout)
    for name, status in second.items():
        assert status["result"] == {**first[name].get("result", {}), "repeated": True}
        assert status["phase"] == first[name]["phase"]
        assert status["startTime"] <= status["completionTime"] <= first[name]["completionTime"]
    planned = statuses(tandem("plan", "-f", file, "-o", "json").stdout)
    assert planned["more"]["result"]["repeated"] is True


def test_the_row_and_the_last_line_say_so_and_what_to_type(
    tandem: Tandem, file: Path, tmp_path: Path
) -> None:
    tandem("run", "-f", file)
    version = DeltaTable(tmp_path / "t").version()
    result = tandem("run", "-f", file, "-q")
    row = next(line for line in result.stdout.splitlines() if "TableUpdate/more" in line)
    assert re.search(rf"already done at version {version}, \d+ \w+ ago; nothing was done now", row)
    row = next(line for line in result.stdout.splitlines() if "TableUpdate/wrong" in line)
    assert re.search(r"failed \d+ \w+ ago; nothing was done now; see below", row)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("3 operations have ended before, and nothing was done now.")
    command = shlex.split(last.partition("For a new run: ")[2])
    assert command[:4] == ["tandem", "run", "-f", str(file)]
    assert DeltaTable(tmp_path / "t").version() == version
    typed = tandem(*command[1:], "-q")
    assert "ended before" not in typed.stderr
    assert DeltaTable(tmp_path / "t").version() == version + 1


def test_a_commit_whose_record_is_gone_is_an_earlier_one_too(
    tandem: Tandem, file: Path, tmp_path: Path
) -> None:
    """Cleaning removes records; the log says what was done for as long as it has the commit."""
    first = statuses(tandem("run", "-f", file, "-o", "json").stdout)["more"]
    (tmp_path / "t" / attempt_files.result(first["operationId"])).unlink()
    second = statuses(tandem("run", "-f", file, "-o", "json").stdout)["more"]
    assert second["result"] == {**first["result"], "repeated": True}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7_199, "1 h ago"),
        (172_799, "47 h ago"), (172_800, "2 days ago"),
    ],
)  # fmt: skip
def test_an_age_has_one_unit(seconds: int, said: str) -> None:
    resource = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableCompaction",
            "metadata": {"name": "c"},
            "spec": {"tableRef": {"name": "t"}, "type": "Minor"},
        }
    )
    assert isinstance(resource, TableCompaction)
    status = OperationStatus(
        phase=Phase.SUCCEEDED,
        completion_time="1970-01-01T00:01:00Z",
        result=OperationResult(version=3, repeated=True),
    )
    outcomes = [ResourceOutcome(resource, status)]
    table = report.results(
        outcomes, RepeatCommands("a", "b"), now_ms=60_000 + 1000 * seconds, width=200
    )
    cells = list(table.renderables[0].columns[-1].cells)  # type: ignore[union-attr]
    assert str(cells[0]) == f"already done at version 3, {said}; nothing was done now"
