"""Files that are no resources, and resources that contradict themselves: exit code 2, nothing
is started, nothing is written, and the error says where, what, and how to mend it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from badinput.bad_input import BadLake, assert_mentions, compaction, tandem, update
from support.jobs.quick_jobs import QuickJobs

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

BAD_FILES = {
    "alias bomb": (BOMB, ["resources.yaml", "too many values", "aliases that multiply"]),
    **{
        what: (bad["text"], bad["says"])
        for what, bad in tomllib.loads(
            Path(__file__).with_name("bad_files.toml").read_text(encoding="utf-8")
        ).items()
    },
}
"""What is wrong → the text, and what its refusal mentions."""


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
