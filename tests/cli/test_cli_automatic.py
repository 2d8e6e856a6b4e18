"""`tandem plan` of a LakeTable says what an operator would do by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.jobs import quick_lake
from tandem.cli.main import app

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
