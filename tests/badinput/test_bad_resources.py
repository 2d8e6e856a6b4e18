"""Files that are no resources, and resources that contradict themselves: exit code 2, nothing
is started, nothing is written, and the error says where, what, and how to mend it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from badinput.bad_input import BadLake, assert_mentions, compaction, tandem, update
from support.jobs.quick_jobs import QuickJobs

HEAD = "apiVersion: tandem.dev/v1alpha1\n"
LAKE = HEAD + "kind: LakeTable\nmetadata: {name: lake}\nspec: {location: 'file:///t'}\n"
TIDY = (
    HEAD + "kind: TableCompaction\nmetadata: {name: tidy}\n"
    "spec: {tableRef: {name: lake}, type: Minor}\n"
)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

BAD_FILES = {
    "syntax error": ("kind: [LakeTable\n", ["resources.yaml:2", "not valid YAML"]),
    "duplicate key": (
        TIDY.replace("kind:", "kind: LakeTable\nkind:", 1),
        ["resources.yaml:3", "'kind' occurs twice", "a second value", "the first is at"],
    ),
    "alias bomb": (BOMB, ["resources.yaml", "too many values", "aliases that multiply"]),
    "a tag": (
        "kind: !!python/object/apply:os.system [id]\n",
        ["tags are not supported", "os.system", "Remove the tag"],
    ),
    "no mapping": ("- 1\n- 2\n", ["not a resource", "a mapping"]),
    "unknown kind": (
        TIDY.replace("TableCompaction", "TableCompactoin"),
        ["TableCompactoin/tidy.kind", "unknown kind", "Did you mean TableCompaction?"],
    ),
    "no kind": (HEAD + "metadata: {name: x}\n", ["kind", "required, but missing"]),
    "unknown field": (
        TIDY.replace("type: Minor", "type: Minor, targetFilesize: 1Gi"),
        ["TableCompaction/tidy.spec.targetFilesize", "unknown field", "Did you mean targetFile"],
    ),
    "wrong apiVersion": (
        TIDY.replace("v1alpha1", "v7"),
        ["TableCompaction/tidy.apiVersion", "v7", "tandem.dev/v1alpha1"],
    ),
    "two of one name": (
        LAKE + "---\n" + TIDY + "---\n" + TIDY,
        ["TableCompaction/tidy.metadata.name", "two resources have this name", "Rename or remove"],
    ),
    "a circle": (
        LAKE
        + "---\n"
        + TIDY.replace("Minor}", "Minor, dependsOn: [{kind: TableUpdate, name: more}]}")
        + "---\n"
        + HEAD
        + "kind: TableUpdate\nmetadata: {name: more}\nspec:\n  tableRef: {name: lake}\n"
        "  delete: {where: 'k = 1'}\n  dependsOn: [{kind: TableCompaction, name: tidy}]\n",
        ["spec.dependsOn", "wait for each other", "→", "no cycle", "Remove one"],
    ),
    "a reference to nothing": (
        TIDY,
        ["TableCompaction/tidy.spec.tableRef", "no LakeTable of this name", "lake", "-f"],
    ),
    "contradictory: a block of another type": (
        LAKE + "---\n" + TIDY.replace("type: Minor", "type: Major, minor: {thresholds: [4, 3]}"),
        ["TableCompaction/tidy.spec", "minor only goes with type Minor", "Set type: Minor"],
    ),
    "contradictory: update and delete": (
        LAKE + "---\n" + HEAD + "kind: TableUpdate\nmetadata: {name: more}\nspec:\n"
        "  tableRef: {name: lake}\n  delete: {where: 'k = 1'}\n"
        "  update: {where: 'k = 1', set: {v: '1'}}\n",
        ["TableUpdate/more.spec", "exactly one of"],
    ),
    "contradictory: custom without a choice": (
        LAKE + "---\n" + TIDY.replace("Minor", "Custom"),
        ["TableCompaction/tidy.spec", "custom.segments or custom.where"],
    ),
    "location of no scheme that we know": (
        LAKE.replace("file:///t", "ftp://host/t"),
        ["LakeTable/lake.spec.location", "ftp"],
    ),
    "location that steps out": (
        LAKE.replace("file:///t", "file:///data/../etc"),
        ["LakeTable/lake.spec.location", ".."],
    ),
    "nothing in it": ("# only words\n", ["no resources found", "apiVersion"]),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_files_that_are_refused(what: str, lake: BadLake, jobs: QuickJobs) -> None:
    text, parts = BAD_FILES[what]
    file = lake.folder / "resources.yaml"
    file.write_text(text.replace("file:///t'", f"{lake.path.as_uri()}'"))
    with lake.untouched():
        ended = tandem("run", "-f", file)
    assert ended.code == 2
    assert ended.documents == []
    assert_mentions(ended.stderr, "InvalidSpec" if "no LakeTable" not in parts[1] else "Reference")
    assert_mentions(ended.stderr, *parts)
    assert_mentions(ended.stderr, "expected:") if "is not" in parts[0] else None
    assert "Traceback" not in ended.stderr
    assert jobs.started == []


@pytest.mark.parametrize("what", BAD_FILES)
def test_every_refusal_names_a_remedy(what: str, lake: BadLake) -> None:
    text, _ = BAD_FILES[what]
    file = lake.folder / "resources.yaml"
    file.write_text(text)
    assert_mentions(tandem("plan", "-f", file).stderr, "remedy:")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ["cannot be read", "No such file", "a YAML file", "Correct the path"]),
        (b"\xff\xfe\x00binary", ["not UTF-8 text", "0xff at 0", "text in UTF-8", "Save it"]),
        (b"x" * (17 << 20), ["too large", "bytes", "at most", "Is this the file"]),
    ],
    ids=["absent", "not text", "huge"],
)
def test_unreadable_files(
    content: bytes | None, parts: list[str], lake: BadLake, jobs: QuickJobs
) -> None:
    file = lake.folder / "resources.yaml"
    if content is not None:
        file.write_bytes(content)
    ended = tandem("run", "-f", file)
    assert ended.code == 2
    assert_mentions(ended.stderr, str(file), *parts)
    assert jobs.started == []


def test_a_folder_without_resources_and_a_file_that_never_ends(tmp_path: Path) -> None:
    ended = tandem("run", "-f", tmp_path)
    assert ended.code == 2
    assert_mentions(
        ended.stderr, str(tmp_path), "no YAML files in this folder", ".yaml", "Name the"
    )


def test_a_path_that_the_system_rejects() -> None:
    """It says so when it is asked for the file's kind, as where a folder may not be entered."""
    name = "x" * 300
    ended = tandem("run", "-f", name)
    assert ended.code == 2
    assert_mentions(ended.stderr, name, "cannot be read", "File name too long", "Correct the path")


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Reading it would wait for ever; it is refused like a folder without resources."""
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub" / "resources.yaml")
    ended = tandem("run", "-f", tmp_path / "sub")
    assert ended.code == 2
    assert_mentions(ended.stderr, "no YAML files in this folder")


def test_one_wrong_resource_stops_all(lake: BadLake, jobs: QuickJobs) -> None:
    """A good compaction does not start when the update beside it is wrong."""
    wrong = update()
    wrong["spec"]["isolation"] = "ReadCommitted"
    with lake.untouched():
        ended = lake.run(compaction(), wrong)
    assert ended.code == 2
    assert_mentions(
        ended.stderr, "TableUpdate/more.spec.isolation", "ReadCommitted", "one of", "Serializable"
    )
    assert jobs.started == []
