"""One release leaves an operation half-way, and the other one goes on with it.

The release before ours is the commit in `previous.txt`: its engine runs from its own tree, in real
processes that die by a real SIGKILL at a named point (`support.crash.processes` of both trees).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cases import CASES, JOBLESS
from support.crash.crash_table import FIRST, CrashTable, expected
from support.crash.processes import End, ProcessStarter, Strike
from tandem.operations.machine.events import Point

Tables = Callable[[], CrashTable]

KINDS = tuple(case for cases in CASES.values() for case in cases)
AT_THE_JOB = (Point.START_JOB, "job:written", "job:published")
"""Before it has done anything, while it works, and when its result is there."""
STRIKES = (
    Strike(Point.CLAIM_ATTEMPT, after=True),
    Strike(Point.PERSIST_PLAN, after=True),
    *(Strike(place, after=place is Point.START_JOB) for place in AT_THE_JOB),
    Strike(Point.READ_RESULT, after=True),
    Strike(Point.RECONCILE, after=True),
    Strike(Point.WRITE_SIDECARS, after=True),
    Strike(Point.PUT_COMMIT),
    Strike(Point.PUT_COMMIT, after=True),
    Strike(Point.RECORD_RESULT),
    Strike(Point.RECORD_RESULT, after=True),
)
CASES_OF_STRIKES = [
    pytest.param(kind, strike, id=f"{kind}-{strike}")
    for kind in KINDS
    for strike in STRIKES
    if kind not in JOBLESS or strike.at not in AT_THE_JOB
]


def assert_done_once(table: CrashTable, kind: str) -> None:
    """The rows of the serial result, by one commit that counts, and no file that nothing names."""
    assert table.shown() == expected(kind, FIRST)
    assert set(table.history()) <= {FIRST, expected(kind, FIRST)}
    assert table.successes() == 1
    assert table.unreachable() == set()


def assert_again_changes_nothing(
    starter: ProcessStarter, table: CrashTable, kind: str, end: End
) -> None:
    version, files = table.version, table.files()
    again = starter.run(table.order(kind))
    assert again.signal == 0
    assert again.phase == "Succeeded"
    assert again.status["result"]["version"] == end.status["result"]["version"]
    assert (table.version, table.files()) == (version, files)


def assert_ends_once(starter: ProcessStarter, table: CrashTable, kind: str) -> None:
    end = starter.run(table.order(kind))
    assert end.signal == 0
    assert end.phase == "Succeeded", end.condition
    assert_done_once(table, kind)
    assert_again_changes_nothing(starter, table, kind, end)


@pytest.mark.parametrize(("kind", "strike"), CASES_OF_STRIKES)
def test_what_the_release_before_left_half_way_ends_once(
    previous: ProcessStarter, ours: ProcessStarter, tables: Tables, kind: str, strike: Strike
) -> None:
    table = tables()
    assert previous.run(table.order(kind, strike=strike)).killed
    assert table.shown() in (FIRST, expected(kind, FIRST))
    assert_ends_once(ours, table, kind)


@pytest.mark.parametrize(("kind", "strike"), CASES_OF_STRIKES)
def test_what_we_leave_half_way_ends_once_after_a_downgrade(
    previous: ProcessStarter, ours: ProcessStarter, tables: Tables, kind: str, strike: Strike
) -> None:
    table = tables()
    assert ours.run(table.order(kind, strike=strike)).killed
    assert_ends_once(previous, table, kind)
