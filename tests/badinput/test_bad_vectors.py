"""Deletion vectors that lie: every reader of ours refuses them; a wrong one would bring rows back
or lose them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner

from badinput.bad_input import BadLake, assert_mentions, compaction, delete, edit_commit, update
from support.jobs.quick_jobs import QuickJobs
from tandem.cli.app import app
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.storage import open_store

Spoil = Callable[[DeletionVector, Path], DeletionVector]
OPERATIONS = {"compaction": compaction(), "update": update(), "delete": delete("k = 3")}


def attach(lake: BadLake, rows: list[int], spoil: Spoil) -> Path:
    """Give the file of the second load a deletion vector in a file, then spoil either."""
    [vector] = dv.write_file(open_store(str(lake.path)), "_tandem/dv/other", [BitMap64(rows)])
    file = lake.path / dv.file_path(vector)
    wrong = spoil(vector, file)

    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["deletionVector"] = {
                "storageType": wrong.storage,
                "pathOrInlineDv": wrong.path_or_inline,
                "offset": wrong.offset,
                "sizeInBytes": wrong.size,
                "cardinality": wrong.cardinality,
            }
            stats = json.loads(action["add"]["stats"])
            action["add"]["stats"] = json.dumps({**stats, "tightBounds": False})
        return action

    edit_commit(lake.commit_file(1), change)
    return file


def nothing(vector: DeletionVector, _file: Path) -> DeletionVector:
    return vector


def wrong_checksum(vector: DeletionVector, file: Path) -> DeletionVector:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return vector


def wrong_content(vector: DeletionVector, file: Path) -> DeletionVector:
    data = file.read_bytes()
    file.write_bytes(data[:-6] + bytes([data[-6] ^ 2]) + data[-5:])
    return vector


def wrong_cardinality(vector: DeletionVector, _file: Path) -> DeletionVector:
    return replace(vector, cardinality=vector.cardinality + 1)


def cut_off(vector: DeletionVector, file: Path) -> DeletionVector:
    file.write_bytes(file.read_bytes()[:-9])
    return vector


def absent(vector: DeletionVector, file: Path) -> DeletionVector:
    file.unlink()
    return vector


def wrong_size(vector: DeletionVector, _file: Path) -> DeletionVector:
    return replace(vector, size=vector.size + 8)


BAD: dict[str, tuple[list[int], Spoil, list[str]]] = {
    "checksum": ([1, 3], wrong_checksum, ["deletion_vector_", "found:", "expected:"]),
    "content": ([1, 3], wrong_content, ["deletion_vector_", "found:", "expected:"]),
    "cardinality": ([1, 3], wrong_cardinality, ["cardinality", "2", "3"]),
    "position beyond the file": ([1, 10], nothing, ["part-", "found: 10", "positions below 10"]),
    "cut off": ([1, 3], cut_off, ["deletion_vector_", "expected:"]),
    "absent": ([1, 3], absent, ["deletion_vector_"]),
    "size": ([1, 3], wrong_size, ["found:", "expected:"]),
}


def _reason(what: str) -> str:
    return "DataFileMissing" if what == "absent" else "CorruptDeletionVector"


@pytest.mark.part(3)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("what", BAD)
def test_operations_refuse(what: str, operation: str, lake: BadLake, jobs: QuickJobs) -> None:
    rows, spoil, parts = BAD[what]
    file = attach(lake, rows, spoil)
    spoiled = file.read_bytes() if file.exists() else None
    ended = lake.run(OPERATIONS[operation])
    assert ended.code == 1
    condition = ended.condition(OPERATIONS[operation]["kind"])
    assert condition["reason"] == _reason(what)
    assert_mentions(condition["message"], *parts, "estore")
    # The log holds no more than that an attempt died, and the damage is as it was.
    for commit in sorted(lake.log.glob("*.json"))[4:]:
        for line in commit.read_text().splitlines():
            assert set(json.loads(line)) <= {"commitInfo", "txn"}
    assert (file.read_bytes() if file.exists() else None) == spoiled
    assert lake.unreachable() <= {file.relative_to(lake.path).as_posix()}


@pytest.mark.parametrize("what", BAD)
def test_scans_refuse(what: str, lake: BadLake) -> None:
    rows, spoil, parts = BAD[what]
    attach(lake, rows, spoil)
    with lake.untouched():
        found = CliRunner().invoke(app, ["scan", str(lake.path), "-o", "json"])
    assert found.exit_code == 1
    assert_mentions(found.stderr, _reason(what), *parts, "remedy:")


def test_an_intact_vector_is_accepted(lake: BadLake, jobs: QuickJobs) -> None:
    """The same route without damage: so it is the damage that the others refuse."""
    attach(lake, [1, 3], nothing)
    assert len(lake.shown()) == 38
    ended = lake.run(compaction())
    assert ended.code == 0
    assert len(lake.shown()) == 38
