"""`examples/follow.py`: a local copy shows exactly the rows of one version at every moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import follow
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.lake.rows import Rows
from tandem.operations.clean import clean
from tandem.planning.cleaning import CleaningRules
from tandem.timeline.lineage import TAG_GROUP, TAG_MINOR, TAG_ROOT

ROOT = Path(follow.__file__).parents[1]
BY_V = {"strategy": "Sort", "columns": ["v"]}
SMALL = 300
"""Bytes of a piece: a file of a few rows takes several."""


def rows_of(table: pa.Table) -> Rows:
    return tuple(sorted(zip(*(table[name].to_pylist() for name in ("id", "k", "v")), strict=True)))


def check(lake: QuickLake, folder: Path) -> int:
    """The rows that the copy shows are those that deltalake reads of its version."""
    version, found = follow.read(folder)
    assert rows_of(found) == tuple(sorted(lake.by_deltalake(version)))
    return version


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    lake = quick_lake.make(tmp_path, 0)
    lake.load(*(batch(number) for number in range(4)))
    return lake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def steps(follower: follow.Follower, lake: QuickLake, folder: Path) -> Iterator[int]:
    """Step until all is copied; after each step the version that is shown."""
    while follower.step():
        if (folder / follow.SHOWN).exists():
            yield check(lake, folder)


def test_I58_every_step_shows_the_rows_of_one_version(lake: QuickLake, folder: Path) -> None:
    follower = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(follower, lake, folder)][-1] == lake.version
    for act in (
        lambda: lake.do(lake.compaction("Major")),
        lambda: lake.do(lake.delete("k = 1")),
        lambda: lake.do(lake.update("k = 2", v="v + 1")),
        lambda: lake.append(batch(7)),
        lambda: DeltaTable(lake.location).optimize.compact(),
        lambda: lake.do(lake.compaction("Custom", custom={"where": "id >= 0"}, layout=BY_V)),
        lambda: lake.do(lake.delete("id < 20")),
        lambda: DeltaTable(lake.location).restore(lake.first_version + 5),
    ):
        act()
        assert [*steps(follower, lake, folder)][-1] == lake.version
    parts = {file.name for file in (folder / follow.PARTS).iterdir()}
    assert parts == {follower._file(add.logged_path).name for add in lake.log.snapshot().adds()}


def test_an_append_is_shown_before_the_output_of_a_compaction(
    lake: QuickLake, folder: Path
) -> None:
    follower = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(follower, lake, folder)]
    lake.do(lake.compaction("Major"))
    [output] = lake.log.snapshot().adds()
    lake.do(lake.delete("k = 1"))
    lake.append(batch(9, 1))
    shown = []
    for version in steps(follower, lake, folder):
        shown.append(version)
        if version == lake.version:
            break
    assert not follower._file(output.logged_path).exists(), "it is still being copied"
    assert rows_of(follow.read(folder)[1]) == tuple(sorted(lake.by_deltalake()))
    assert shown == sorted(shown)
    # Another process continues from what is there, with the same stand-ins.
    again = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(again, lake, folder)][-1] == lake.version
    assert follower._file(output.logged_path).exists()


@pytest.mark.part(3)
@pytest.mark.parametrize(
    "tags",
    [
        {TAG_ROOT: "0-99", TAG_MINOR: "7", TAG_GROUP: "1"},
        {TAG_ROOT: "0", TAG_MINOR: "0", TAG_GROUP: "999999"},
        {TAG_ROOT: "9" * 30, TAG_MINOR: "-1", TAG_GROUP: "x"},
    ],
)
def test_I56_forged_root_tags_hide_no_row(
    lake: QuickLake, folder: Path, tags: dict[str, str]
) -> None:
    follower = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(follower, lake, folder)]
    lake.log_again(tags=tags)
    lake.do(lake.delete("k = 1"))
    lake.append(batch(9))
    assert [*steps(follower, lake, folder)][-1] == lake.version
    lake.do(lake.compaction("Major"))
    assert [*steps(follower, lake, folder)][-1] == lake.version


@pytest.mark.parametrize("restarted", [True, False])
def test_what_was_cleaned_between_two_looks_is_not_needed(
    lake: QuickLake, folder: Path, restarted: bool
) -> None:
    """Deletion vectors of versions that the copy has not shown, with their files and row maps."""
    follower = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(follower, lake, folder)]
    lake.do(lake.delete("k = 1"))
    assert restarted or follower.step()  # what it wants to show is about to be cleaned
    lake.do(lake.compaction("Major"))
    lake.do(lake.delete("k = 2"))
    lake.do(lake.compaction("Major"))
    lake.append(batch(9))
    clean(lake.table(), CleaningRules(0, row_maps_ms=0, staging_ms=0))
    if restarted:
        follower = follow.Follower(lake.location, folder, piece=SMALL)
    while follower.step():
        pass
    assert check(lake, folder) == lake.version


KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv.pop(1))
def counted(call):
    def instead(*args, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **more)
        return result
    return instead
os.fsync = counted(os.fsync)
Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
import follow
sys.exit(follow.main())
"""
"""The program, killed at a write: before a piece is durable, before a rename, before a removal."""


def run_killed(lake: QuickLake, folder: Path, at: int) -> int:
    command = [sys.executable, "-c", KILLED, str(at), lake.location, str(folder)]
    path = os.pathsep.join(map(str, (ROOT / "operator", ROOT / "examples")))
    ran = subprocess.run(
        [*command, "--once", "--piece", str(SMALL)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr.decode()
    return ran.returncode


def test_killed_anywhere_the_copy_shows_one_version_and_is_continued(
    lake: QuickLake, folder: Path
) -> None:
    follower = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(follower, lake, folder)]
    acts: list[Callable[[], object]] = [
        lambda: lake.do(lake.compaction("Major")),
        lambda: lake.do(lake.delete("k = 1")),
        lambda: lake.append(batch(9)),
        lambda: lake.do(lake.compaction("Major")),
    ]
    killed = 0
    for at in (1, 2, 3, 5, 8):
        if acts:
            acts.pop(0)()
        before = check(lake, folder)
        killed += run_killed(lake, folder, at) != 0
        assert check(lake, folder) >= before
    assert killed >= 4
    last = follow.Follower(lake.location, folder, piece=SMALL)
    assert [*steps(last, lake, folder)][-1] == lake.version
    assert not [*(folder / follow.PARTS).glob(f"*{follow.UNFINISHED}")]
