"""`tandem run` with everything real: files, table, engine, and Spark for the update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

RESOURCES = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: t}}
spec: {{location: "{location}"}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableCompaction
metadata: {{name: tidy}}
spec: {{tableRef: {{name: t}}, type: Minor}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: more}}
spec:
  tableRef: {{name: t}}
  update: {{where: "id >= 4", set: {{n: "greatest(n, n) + 15"}}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    for load in range(4):
        ids = pa.array([load * 2, load * 2 + 1], pa.int64())
        write_deltalake(
            str(folder),
            pa.table({"id": ids, "n": ids}),
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"} if load == 0 else None,
        )
    return folder


def tandem(*words: str | Path) -> tuple[int, Any, str]:
    # As in a shell in which no other Python is set for Spark, and that on PATH is not ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    env["PATH"] = os.pathsep.join(p for p in env["PATH"].split(os.pathsep) if "venv" not in p)
    found = subprocess.run(
        [sys.executable, "-m", "tandem.cli.main", *map(str, words), "-o", "json"],
        capture_output=True,
        text=True,
        env=env,
        timeout=240,
        check=False,
    )
    return found.returncode, json.loads(found.stdout) if found.stdout else None, found.stderr


def rows(folder: Path) -> dict[int, int]:
    return {row["id"]: row["n"] for row in pa.table(DeltaTable(str(folder)).scan()).to_pylist()}


def test_a_file_runs_once_however_often_it_is_given(folder: Path, tmp_path: Path) -> None:
    """The second run reports the first result and changes nothing: +15 happens once."""
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES.format(location=folder.as_uri()))

    code, planned, errors = tandem("plan", "-f", file)
    assert code == 0, errors
    assert planned[1]["status"]["plan"]["inputs"] == 4
    assert DeltaTable(str(folder)).version() == 3

    code, first, errors = tandem("run", "-f", file)
    assert code == 0, errors
    assert [item["status"]["phase"] for item in first] == ["Succeeded"] * 3
    expected = {n: n + 15 if n >= 4 else n for n in range(8)}
    assert rows(folder) == expected
    version = DeltaTable(str(folder)).version()

    code, second, errors = tandem("run", "-f", file)
    assert code == 0, errors
    assert [item["status"].get("result") for item in second[1:]] == [
        {**item["status"]["result"], "repeated": True} for item in first[1:]
    ]
    assert DeltaTable(str(folder)).version() == version
    assert rows(folder) == expected


def test_a_table_that_is_not_there_fails_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    missing = tmp_path / "missing"
    file.write_text(RESOURCES.format(location=missing.as_uri()))
    code, found, _ = tandem("run", "-f", file)
    assert code == 1
    assert [item["status"]["phase"] for item in found] == ["Failed"] * 3
    assert found[0]["status"]["conditions"][-1]["reason"] == "TableNotFound"
    assert not missing.exists()
