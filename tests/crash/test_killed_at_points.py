"""SIGKILL before and after every named point of the engine, then a restart (issue, point 6).

Each case: a process is killed; the table shows the state before or after the operation and
nothing else; the same resource in a fresh process brings it to the serial result; once more
changes nothing; no file is left that no version names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.crash import Nursery, Strike
from support.crash_table import FIRST, KINDS, CrashTable, after_foreign, expected
from tandem.operations.effects import Point

Tables = Callable[[], CrashTable]
Nurseries = tuple[Nursery, Nursery]

STRAIGHT = (
    Point.READ_TABLE,
    Point.CHECK_EARLIER_OUTCOME,
    Point.PLAN,
    Point.CLAIM_ATTEMPT,
    Point.ACQUIRE_LOCKS,
    Point.PERSIST_PLAN,
    Point.START_JOB,
    Point.POLL_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.ENTER_COMMIT,
    Point.PUT_COMMIT,
    Point.FINISH_JOB,
    Point.STOP_JOB,
    Point.RELEASE_LOCKS,
    Point.CLEAN_UNUSED,
    Point.RECORD_RESULT,
    Point.MAINTAIN,
)
"""Every operation comes by these."""

SECOND_DEATH = {
    Point.FIND_COMMIT: Strike(Point.PUT_COMMIT, after=True),
    Point.ADOPT_ATTEMPT: Strike(Point.READ_RESULT, after=True),
    Point.ABANDON_ATTEMPT: Strike(Point.START_JOB),
    Point.CLEAN_ATTEMPT: Strike(Point.START_JOB),
}
"""Only a restart comes by these; so its predecessor is killed first, there."""

CROWDED: Mapping[Point, Mapping[str, Any]] = {
    Point.AWAIT_LOCKS: {"blocked": True},
    Point.LOOK_UP_COMMIT: {"lost_answer": True},
    Point.REQUEST_ROUND: {"meanwhile": "append"},
}
"""These need somebody else, or a store that loses an answer."""


def test_every_point_is_covered() -> None:
    assert {*STRAIGHT, *SECOND_DEATH, *CROWDED} == set(Point)


def die_and_recover(
    nursery: Nursery,
    table: CrashTable,
    kind: str,
    strike: Strike,
    *,
    first: Strike | None = None,
    **circumstances: Any,
) -> None:
    """Kill, look, restart, look, run once more, look."""
    if first is not None:
        assert nursery.run(table.order(kind, strike=first)).killed
    assert nursery.run(table.order(kind, strike=strike, **circumstances)).killed, strike

    meanwhile = str(circumstances.get("meanwhile", ""))
    begun = {FIRST, after_foreign(meanwhile, FIRST)}
    final = expected(kind, after_foreign(meanwhile, FIRST))
    assert table.shown() in {*begun, final}

    end = nursery.run(table.order(kind))
    assert end.signal == 0
    assert end.phase == "Succeeded", end.condition
    assert table.shown() == final
    # No version in between was mixed either.
    assert set(table.history()) <= {*begun, final}
    assert table.unreachable() == set()

    version, files = table.version, table.files()
    again = nursery.run(table.order(kind))
    assert again.status["result"] == end.status["result"]
    assert (table.version, table.files()) == (version, files)


def before_and_after(
    nurseries: Nurseries, tables: Tables, kind: str, point: Point, *, nth: int = 1, **more: Any
) -> None:
    """Both sides of a point, in two processes at once."""
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(die_and_recover, nursery, tables(), kind, Strike(point, after, nth), **more)
            for nursery, after in zip(nurseries, (False, True), strict=True)
        ]
    for future in futures:
        future.result()


@pytest.mark.parametrize("point", STRAIGHT)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_on_the_straight_way(
    nurseries: Nurseries, tables: Tables, kind: str, point: Point
) -> None:
    before_and_after(nurseries, tables, kind, point)


@pytest.mark.parametrize("point", SECOND_DEATH)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_twice(nurseries: Nurseries, tables: Tables, kind: str, point: Point) -> None:
    """The process that picks up after a crash dies too."""
    before_and_after(nurseries, tables, kind, point, first=SECOND_DEATH[point])


@pytest.mark.parametrize(
    ("kind", "point"),
    [(k, p) for k in KINDS for p in (Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT)]
    + [("update", Point.REQUEST_ROUND), ("delete", Point.REQUEST_ROUND)],
)
def test_killed_in_a_crowd(nurseries: Nurseries, tables: Tables, kind: str, point: Point) -> None:
    before_and_after(nurseries, tables, kind, point, **CROWDED[point])


@pytest.mark.parametrize(
    "point", [Point.RECONCILE, Point.WRITE_SIDECARS, Point.ENTER_COMMIT, Point.PUT_COMMIT]
)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_the_second_round_of_the_commit_loop(
    nurseries: Nurseries, tables: Tables, kind: str, point: Point
) -> None:
    """A foreign update won the race for the first version: masks, remapped rows, new
    evaluations are on the way to the log."""
    before_and_after(nurseries, tables, kind, point, nth=2, meanwhile="update")
