"""The crash rows of the scenarios, by real processes: C4, C5, C6, C6b, Z6. Of zombies:
`test_zombies_on_disk.py`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.crash.crash_table import FIRST, CrashTable, after_foreign, expected
from support.crash.killed import ProcessStarters, Tables
from support.crash.processes import Strike
from tandem.operations.machine.events import Point


def data_files(table: CrashTable) -> dict[str, int]:
    """Data files of ours, by their times: what was written again has another."""
    paths = [p for p in table.path.glob("*-*/part-*.parquet") if not p.name.startswith("_")]
    return {p.relative_to(table.path).as_posix(): p.stat().st_mtime_ns for p in paths}


def test_C4_update_dies_after_writing_its_segment(
    starters: ProcessStarters, tables: Tables
) -> None:
    """The new segment is written, no commit names it: the restart removes it and starts again."""
    starter, table = starters[0], tables()
    assert starter.run(table.order("update", strike=Strike("job:written"))).killed
    written = data_files(table)
    assert len(written) == 1
    assert table.shown() == FIRST
    assert not written.keys() & table.named()

    end = starter.run(table.order("update"))
    assert end.phase == "Succeeded"
    assert end.status["attempt"] == 2
    assert not written.keys() & table.files().keys()
    assert table.shown() == expected("update", FIRST)
    assert table.unreachable() == set()


@pytest.mark.part(3)
@pytest.mark.parametrize(
    "strike",
    [Strike("job:published"), Strike(Point.WRITE_SIDECARS, after=True), Strike(Point.PUT_COMMIT)],
    ids=str,
)
def test_C5_compaction_dies_before_its_commit(
    starters: ProcessStarters, tables: Tables, strike: Strike
) -> None:
    """All its files are there: readers see nothing of them, and the restart commits just these
    instead of writing them again."""
    starter, table = starters[0], tables()
    assert starter.run(table.order("compaction", strike=strike)).killed
    written = data_files(table)
    assert written
    assert table.shown() == FIRST
    assert table.version == 3

    end = starter.run(table.order("compaction"))
    assert end.phase == "Succeeded"
    assert end.status["attempt"] == 1
    assert Point.ADOPT_ATTEMPT in end.points
    assert Point.START_JOB not in end.points
    assert data_files(table) == written
    assert table.shown() == FIRST
    assert table.unreachable() == set()


@pytest.mark.part(6)
@pytest.mark.parametrize("kind", ["compaction", "update"])
@pytest.mark.parametrize(
    "strike",
    [
        Strike(Point.RECONCILE, after=True, nth=2),
        Strike(Point.WRITE_SIDECARS, after=True, nth=2),
        Strike(Point.PUT_COMMIT, nth=2),
    ],
    ids=str,
)
def test_C6_replay_killed_half_way(
    starters: ProcessStarters, tables: Tables, kind: str, strike: Strike
) -> None:
    """A foreign update came between; what was decided about its rows is decided again, and
    never half visible."""
    starter, table = starters[0], tables()
    between = after_foreign("update", FIRST)
    assert starter.run(table.order(kind, strike=strike, meanwhile="update")).killed
    assert table.shown() == between
    end = starter.run(table.order(kind))
    assert end.phase == "Succeeded"
    assert set(table.history()) == {FIRST, between, expected(kind, between)}
    assert table.shown() == expected(kind, between)
    assert table.unreachable() == set()


def test_C6_a_round_asked_for_is_not_lost(starters: ProcessStarters, tables: Tables) -> None:
    """Killed after the request of a second evaluation: no driver serves it any more, so that the
    attempt is given up and the statement starts again."""
    starter, table = starters[0], tables()
    strike = Strike(Point.REQUEST_ROUND, after=True)
    assert starter.run(table.order("update", strike=strike, meanwhile="append")).killed
    end = starter.run(table.order("update"))
    assert end.phase == "Succeeded"
    assert table.shown() == expected("update", after_foreign("append", FIRST))
    assert table.unreachable() == set()


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", ["compaction", "sort"])
@pytest.mark.parametrize("damage", ["cut off", "flipped", "gone"])
def test_C6b_the_row_map_of_an_operation_in_flight_is_lost(
    starters: ProcessStarters, tables: Tables, kind: str, damage: str
) -> None:
    """The job is done again: where rows went is never guessed."""
    starter, table = starters[0], tables()
    assert starter.run(table.order(kind, strike=Strike("job:published"))).killed
    [row_map] = table.path.glob("_tandem/operations/*/attempts/1/rounds/0/rowmap-*")
    spoil(row_map, damage)
    end = starter.run(table.order(kind))
    assert end.phase == "Succeeded"
    assert end.status["attempt"] == 2
    assert Point.END_ATTEMPT in end.points
    assert table.shown() == FIRST
    assert table.unreachable() == set()


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "cut off":
            path.write_bytes(data[: len(data) // 2])
        case "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "gone":
            path.unlink()


# Two at once -------------------------------------------------------------------------------


def test_Z6_the_same_resource_runs_already_on_this_host(
    starters: ProcessStarters, tables: Tables
) -> None:
    """The second process sees that the first one lives, touches nothing, and says so."""
    first, second = starters
    table = tables()
    stop = Strike(Point.PUT_COMMIT, signal=signal.SIGSTOP)
    pid = first.start(table.order("update", strike=stop, answer="first"))
    first.stopped()
    files = table.files()
    end = second.run(table.order("update", answer="second"))
    assert end.phase == "Failed"
    assert end.condition["reason"] == "AlreadyRunning"
    assert f"process {pid}" in end.condition["message"]
    assert table.files() == files
    first.go_on()
    assert first.end().phase == "Succeeded"
    assert table.shown() == expected("update", FIRST)
    assert table.unreachable() == set()


@pytest.mark.parametrize(
    ("meanwhile", "met"),
    [
        ("append", [{"rowsEvaluated": 5}, {"executedAgain": True}]),
        ("update", [{"rowsEvaluated": 20, "rowsLost": 3}]),
    ],
)
def test_C6_an_undisturbed_merge_has_a_round_on_a_part(
    starters: ProcessStarters, tables: Tables, meanwhile: str, met: list[dict[str, int]]
) -> None:
    """What the others here die in. The append has the first match of a row of the source, the
    update leaves all matches as they were."""
    table = tables()
    end = starters[0].run(table.order("merge", meanwhile=meanwhile))
    assert end.phase == "Succeeded"
    assert table.shown() == expected("merge", after_foreign(meanwhile, FIRST))
    reported = [
        {key: each[key] for key in each if key in ("rowsEvaluated", "rowsLost", "executedAgain")}
        for each in end.status["result"]["reconciled"]["met"]
    ]
    assert reported == met
