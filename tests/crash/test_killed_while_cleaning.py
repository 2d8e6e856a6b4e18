"""Cleaning on a disk: processes that left something, SIGKILL at changes of the file system, and
a process that was stopped for so long that everything of its was cleaned."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.crash.crash_table import FIRST, STAGED, CrashTable, expected
from support.crash.killed import ProcessStarters, Tables, cleaning
from support.crash.processes import ProcessStarter, Strike
from tandem.operations.machine.events import Point

UPDATED = expected("update", FIRST)


def littered(starter: ProcessStarter, table: CrashTable) -> None:
    """A compaction that ended well, and an update and an ingest whose processes are dead."""
    assert starter.run(table.order("compaction")).phase == "Succeeded"
    assert starter.run(table.order("update", strike=Strike(Point.PUT_COMMIT))).killed
    assert starter.run(table.order("ingest", strike=Strike("job:written"))).killed


def assert_clean(table: CrashTable) -> None:
    assert table.shown() == FIRST
    assert table.unreachable() == set()
    left = [path for path in table.files() if not path.startswith("_delta_log/")]
    [_data] = [path for path in left if path.endswith(".parquet")]
    assert not [path for path in left if STAGED in path]
    assert not [path for path in left if "/rounds/" in path or path.startswith("_tandem/rowmaps")]


def test_Z14_cleaning_is_killed_at_changes_of_the_disk_and_done_again(
    starters: ProcessStarters, tables: Tables, tmp_path: Path
) -> None:
    starter = starters[0]
    first = tables()
    littered(starter, first)
    for number in range(1, 200, 14):
        table = CrashTable.copy(first.folder, tmp_path / f"killed-{number}")
        end = starter.run(cleaning(table, Strike("disk", nth=number)))
        assert table.shown() == FIRST
        if not end.killed:
            assert end.phase == "Succeeded"
            assert number > 25
            assert_clean(table)
            break
        assert starter.run(cleaning(table)).phase == "Succeeded"
        assert_clean(table)
    else:
        raise AssertionError("it never came to its end")
    # An abandoned attempt is planned again; one that had committed is reported.
    assert starter.run(table.order("update")).phase == "Succeeded"
    assert table.shown() == UPDATED
    version = table.version
    assert starter.run(table.order("compaction")).phase == "Succeeded"
    assert table.version == version


@pytest.mark.parametrize("kind", ["compaction", "update", "ingest"])
def test_Z1_Z14_stopped_for_so_long_that_its_files_were_cleaned(
    starters: ProcessStarters, tables: Tables, kind: str
) -> None:
    """It wakes up just before its put, and on the host where it is looked for it does not run."""
    stopped, starter = starters
    table = tables()
    strike = Strike(Point.PUT_COMMIT, signal=int(signal.SIGSTOP))
    stopped.start(table.order(kind, strike=strike, answer="stopped"))
    stopped.stopped()
    written = table.unreachable()
    assert written
    assert starter.run(cleaning(table)).points == ()  # it lives
    assert table.unreachable() == written
    table.move_claims_to_another_host()
    assert set(starter.run(cleaning(table)).points) >= written
    assert table.unreachable() == set()
    stopped.go_on()
    late = stopped.end()
    assert (late.phase, late.condition["reason"]) == ("Failed", "Abandoned"), late
    assert table.shown() == FIRST
    assert table.unreachable() == set()
    again = starter.run(table.order(kind))
    assert again.phase == "Succeeded"
    assert again.status["attempt"] == 2
    assert table.shown() == expected(kind, FIRST)
    assert set(table.history()) <= {FIRST, expected(kind, FIRST)}
