"""Tables and deletion vectors with contents that cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyroaring import BitMap64
from typer.testing import CliRunner

from badinput.bad_input import BadLake, assert_mentions, compaction, delete, edit_commit, update
from support.jobs.quick_jobs import QuickJobs
from support.parquet import go_parquet
from tandem.cli.app import app
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.storage import open_store

# Tables that are missing, damaged or beyond us: exit code 1, one condition that says it all, and
# not a byte is written.


Damage = Callable[[BadLake], None]


def gone(lake: BadLake) -> None:
    shutil.rmtree(lake.path)
    lake.path.mkdir()


def cut_off_commit(lake: BadLake) -> None:
    text = lake.commit_file(2).read_text()
    lake.commit_file(2).write_text(text[: len(text) * 2 // 3])


def binary_commit(lake: BadLake) -> None:
    lake.commit_file(2).write_bytes(b"\x00\xff" * 40)


def empty_commit(lake: BadLake) -> None:
    lake.commit_file(2).write_text('{"add": {"size": 7}}\n')


def gap(lake: BadLake) -> None:
    lake.commit_file(2).unlink()


def cut_off_checkpoint(lake: BadLake) -> None:
    """And the commits that it stands for are cleaned up, as they are in life."""
    DeltaTable(str(lake.path)).create_checkpoint()
    [checkpoint] = lake.log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    for version in range(3):
        lake.commit_file(version).unlink()


def feature(*, reader: bool) -> Damage:
    def damage(lake: BadLake) -> None:
        def change(action: dict[str, Any]) -> dict[str, Any]:
            if "protocol" in action:
                names = ["deletionVectors"]
                action["protocol"] = {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": [*names, "quantumRows"] if reader else names,
                    "writerFeatures": [*names, "quantumRows"],
                }
            return action

        edit_commit(lake.commit_file(0), change)

    return damage


def future_versions(lake: BadLake) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 9, "minWriterVersion": 9}
        return action

    edit_commit(lake.commit_file(0), change)


def broken_schema(lake: BadLake) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "metaData" in action:
            action["metaData"]["schemaString"] = '{"type": "struct"'
        return action

    edit_commit(lake.commit_file(0), change)


BROKEN: dict[str, tuple[Damage, str, list[str]]] = {
    "missing table": (
        gone, "TableNotFound",
        ["LakeTable/lake.spec.location", "found: file://", "expected: a Delta table", "Correct"],
    ),
    "corrupt commit: cut off": (
        cut_off_commit, "CorruptLog",
        ["00000000000000000002.json.line", "found:", "expected: one JSON object", "Restore"],
    ),
    "corrupt commit: binary": (
        binary_commit, "CorruptLog",
        ["00000000000000000002.json", "found:", "expected:", "Restore"],
    ),
    "corrupt commit: an action without its fields": (
        empty_commit, "CorruptLog",
        ["00000000000000000002.json", "path", "expected:", "Restore"],
    ),
    "gap in the log": (
        gap, "CorruptLog",
        ["00000000000000000002.json", "a commit is missing", "found: no such object",
         "expected: every version", "Restore the missing file"],
    ),
    "truncated checkpoint": (
        cut_off_checkpoint, "CorruptLog",
        ["00000000000000000003.checkpoint.parquet", "found:", "expected: a whole", "Delete the"],
    ),
    "unsupported reader feature": (
        feature(reader=True), "UnsupportedFeature",
        ["protocol", "found: quantumRows", "expected:", "docs/features.md"],
    ),
    "unsupported writer feature": (
        feature(reader=False), "UnsupportedFeature",
        ["protocol", "found: quantumRows", "expected:", "docs/features.md"],
    ),
    "protocol of the future": (
        future_versions, "UnsupportedFeature", ["protocol", "found:", "9", "expected:"],
    ),
    "unreadable schema": (
        broken_schema, "CorruptLog", ["schemaString", "found:", "expected:"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("operation", [compaction(), update(), delete("k = 3")], ids=str)
@pytest.mark.parametrize("what", BROKEN)
def test_tables_that_are_refused(
    what: str, operation: dict[str, Any], lake: BadLake, jobs: QuickJobs
) -> None:
    damage, reason, parts = BROKEN[what]
    damage(lake)
    with lake.untouched():
        ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition("LakeTable")
    assert condition["reason"] == reason
    assert_mentions(condition["message"], *parts)
    follower = ended.condition(operation["kind"])
    assert follower["reason"] == "WaitingForDependency"
    assert_mentions(follower["message"], "LakeTable/lake")
    assert jobs.started == []


def test_a_truncated_checkpoint_is_not_needed_while_the_commits_are_there(
    lake: BadLake, jobs: QuickJobs
) -> None:
    DeltaTable(str(lake.path)).create_checkpoint()
    [checkpoint] = lake.log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    ended = lake.run(compaction())
    assert ended.code == 0
    assert ended.status("TableCompaction")["result"]["filesRemoved"] == 4


def test_reading_a_missing_table_does_not_create_it(lake: BadLake, jobs: QuickJobs) -> None:
    shutil.rmtree(lake.path)
    assert lake.run(compaction()).code == 1
    assert not lake.path.exists()


# What the log names ------------------------------------------------------------------------

OUTSIDE = {
    "steps out": ("../outside.parquet", "leaves its folder", "stays below"),
    "steps out, encoded": ("%2e%2e/outside.parquet", "leaves its folder", "stays below"),
    "absolute": ("/etc/passwd", "absolute path outside", "shallow clone"),
    "absolute URL": ("file:///etc/passwd", "absolute path outside", "shallow clone"),
    "another store": ("s3://other/x.parquet", "absolute path outside", "shallow clone"),
    "a percent sign that hides a step": (
        "a%2f..%2f..%2foutside.parquet", "leaves its folder", "stays below",
    ),
}  # fmt: skip


@pytest.mark.part(3)
@pytest.mark.parametrize("operation", [compaction(), update()], ids=["compaction", "update"])
@pytest.mark.parametrize("what", OUTSIDE)
def test_paths_of_the_log_that_leave_the_table(
    what: str, operation: dict[str, Any], lake: BadLake, jobs: QuickJobs
) -> None:
    path, problem, remedy = OUTSIDE[what]
    secret = lake.folder / "outside.parquet"
    shutil.copy(next(lake.path.glob("part-*")), secret)
    before = secret.read_bytes()
    rename(lake, 1, path)
    version = DeltaTable(str(lake.path)).version()
    ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition(operation["kind"])
    assert condition["reason"] == "LocationNotAllowed"
    assert_mentions(
        condition["message"], lake.path.as_uri(), problem, "found:", "expected:", remedy
    )
    # The plan finds out: no job is started, and nothing has to be given up in the log.
    assert jobs.started == []
    assert DeltaTable(str(lake.path)).version() == version
    assert secret.read_bytes() == before


def test_a_link_that_leads_out_of_the_table(lake: BadLake, jobs: QuickJobs) -> None:
    file = data_file(lake, 1)
    outside = lake.folder / "outside.parquet"
    file.rename(outside)
    file.symlink_to(outside)
    ended = lake.run(compaction())
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert condition["reason"] == "LocationNotAllowed"
    assert_mentions(
        condition["message"], "a link leads out", "outside.parquet", "expected:", "Adopt"
    )
    assert_only_abandonments(lake)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [(compaction(), "TableCompaction"), (update(), "TableUpdate")],
    ids=["compaction", "update"],
)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "without statistics"])
def test_a_listed_file_is_absent(
    operation: dict[str, Any], kind: str, counted: bool, lake: BadLake, jobs: QuickJobs
) -> None:
    file = data_file(lake, 1)
    if not counted:
        without_statistics(lake, file)
    file.unlink()
    operation["spec"]["backoffLimit"] = 0  # else it is planned again a few times, which may help
    ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition(kind)
    assert condition["reason"] == "DataFileMissing"
    assert_mentions(
        condition["message"], file.name, "found: no such object", "expected: the file", "vacuum"
    )
    assert_only_abandonments(lake)


def test_a_listed_file_is_not_parquet(lake: BadLake, jobs: QuickJobs) -> None:
    file = data_file(lake, 1)
    file.write_bytes(b"PAR1" + b"\0" * 200)
    ended = lake.run(compaction(backoffLimit=0))
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert_mentions(
        condition["message"], file.name, "found:", "expected: a Parquet file", "Restore"
    )
    assert_only_abandonments(lake)


def without_statistics(lake: BadLake, file: Path) -> None:
    """As its writer would have logged the file as it is, without statistics."""

    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action and action["add"]["path"] == file.name:
            action["add"].pop("stats")
            action["add"]["size"] = file.stat().st_size
        return action

    edit_commit(lake.commit_file(1), change)


@pytest.mark.part(3)  # a file that cannot be read is tried again for 15 s
@pytest.mark.parametrize("operation", [compaction(), update()], ids=["compaction", "update"])
@pytest.mark.parametrize(
    ("encrypted", "reason", "says"),
    [
        (None, "StorageError", "a data file cannot be read"),
        ("footer", "UnsupportedFeature", "a data file is encrypted"),
        ("pages", "UnsupportedFeature", "a data file is encrypted"),
    ],
)
def test_a_file_without_statistics_is_damaged_or_encrypted(
    operation: dict[str, Any],
    encrypted: Literal["footer", "pages"] | None,
    reason: str,
    says: str,
    lake: BadLake,
    jobs: QuickJobs,
) -> None:
    """The log has no number of rows, so that plans ask the footer for it."""
    operation["spec"]["backoffLimit"] = 0
    file = data_file(lake, 1)
    if encrypted:
        go_parquet.write(file, pq.read_table(file), encrypted=encrypted)
    else:
        file.write_bytes(b"PAR1" + b"\0" * 200)
    without_statistics(lake, file)
    ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition(operation["kind"])
    assert condition["reason"] == reason
    assert_mentions(condition["message"], file.name, says, "found:", "to a version without")
    assert_only_abandonments(lake)


def test_a_file_with_other_rows_than_the_log_says(lake: BadLake, jobs: QuickJobs) -> None:
    """A compaction that trusted either number would lose rows or make them up."""
    other = data_file(lake, 0)
    pq.write_table(pq.read_table(other).slice(0, 7), other)

    def resize(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["size"] = other.stat().st_size
        return action

    edit_commit(lake.commit_file(0), resize)
    with lake.unharmed():
        ended = lake.run(compaction(backoffLimit=0))
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert condition["reason"] == "CountMismatch"
    assert_mentions(condition["message"], other.name, "found: 7", "expected: 10", "Restore")


# Nothing to do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        compaction(type="Custom", custom={"where": "k = 99"}),
        compaction(minor={"thresholds": [9, 9]}),
        compaction(type="Major", major={"targetSegmentSize": "1Ki"}),
        update("k = 99"),
        delete("k = 99"),
    ],
    ids=["no file matches", "too few segments", "all are large", "no update", "no delete"],
)
def test_nothing_to_do_is_a_success_with_its_own_reason(
    operation: dict[str, Any], lake: BadLake, jobs: QuickJobs
) -> None:
    version = DeltaTable(str(lake.path)).version()
    with lake.unharmed():
        ended = lake.run(operation)
    assert ended.code == 0
    condition = ended.condition(operation["kind"])
    assert condition["reason"] == "NothingToDo"
    assert condition["message"]
    assert DeltaTable(str(lake.path)).version() == version
    assert jobs.started == []


def test_an_unknown_segment(lake: BadLake, jobs: QuickJobs) -> None:
    with lake.unharmed():
        ended = lake.run(compaction(type="Custom", custom={"segments": ["77"]}))
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert condition["reason"] == "UnknownSegment"
    assert_mentions(
        condition["message"], "TableCompaction/tidy.spec.custom.segments", "found: 77",
        "expected: live segments", "tandem table segments",
    )  # fmt: skip


# Looking at what is broken ------------------------------------------------------------------


@pytest.mark.parametrize("what", [w for w in BROKEN if "writer" not in w])
@pytest.mark.parametrize(
    "command",
    [("scan",), ("table", "show"), ("table", "segments"), ("index", "count"), ("index", "splits")],
    ids=str,
)
def test_read_only_commands_fail_as_clearly(
    what: str, command: tuple[str, ...], lake: BadLake
) -> None:
    damage, reason, _ = BROKEN[what]
    damage(lake)
    with lake.untouched():
        found = CliRunner().invoke(app, [*command, str(lake.path)])
    assert found.exit_code == 1
    assert_mentions(found.stderr, reason, "expected:")
    assert "Traceback" not in found.stderr


def data_file(lake: BadLake, version: int) -> Any:
    [path] = [
        json.loads(line)["add"]["path"]
        for line in lake.commit_file(version).read_text().splitlines()
        if line.startswith('{"add"')
    ]
    return lake.path / path


def rename(lake: BadLake, version: int, path: str) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["path"] = path
        return action

    edit_commit(lake.commit_file(version), change)


def assert_only_abandonments(lake: BadLake) -> None:
    """Where deltalake cannot read the rows either: the log grew by nothing that changes them."""
    for file in sorted(lake.log.glob("*.json"))[4:]:
        for line in file.read_text().splitlines():
            assert set(json.loads(line)) <= {"commitInfo", "txn"}, line
    assert lake.unreachable() == set()


# Deletion vectors that lie: every reader of ours refuses them; a wrong one would bring rows back
# or lose them.


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
def test_operations_refuse_a_bad_vector_and_leave_it_as_it_was(
    what: str, operation: str, lake: BadLake, jobs: QuickJobs
) -> None:
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
def test_scans_refuse_a_bad_vector(what: str, lake: BadLake) -> None:
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
