"""SIGKILL before and after every named point of the engine, then a restart (issue, point 6).

Each case: a process is killed; the table shows the state before or after the operation and
nothing else; the same resource in a fresh process brings it to the serial result; once more
changes nothing; no file is left that no version names.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.cases import APPENDS, OTHERS, PLAIN, TAKE_ROUNDS
from support.crash.killed import (
    COMMIT_LOOP,
    CROWDED,
    EDITED_BESIDE,
    SECOND_DEATH,
    STRAIGHT,
    ProcessStarters,
    Tables,
    append_before_and_after,
    around_edits,
    before_and_after,
    circumstances,
    side_by_side,
)
from support.some import some
from tandem.operations.machine.events import Point


def test_every_point_is_covered() -> None:
    assert {*STRAIGHT, *SECOND_DEATH, *CROWDED} == set(Point)


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("kind", "point"), some([(k, p) for k in PLAIN for p in STRAIGHT], every=9)
)
def test_killed_without_concurrent_commits(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    before_and_after(starters, tables, kind, point)


@pytest.mark.part(6)
@pytest.mark.parametrize(("kind", "point"), some([(k, p) for p in SECOND_DEATH for k in PLAIN], 2))
def test_killed_twice(starters: ProcessStarters, tables: Tables, kind: str, point: Point) -> None:
    """The process that picks up after a crash dies too."""
    before_and_after(starters, tables, kind, point, **circumstances(point))


@pytest.mark.part(6)
@pytest.mark.parametrize(
    ("kind", "point"),
    [(k, p) for k in PLAIN for p in (Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT)]
    + [("update", Point.REQUEST_ROUND), ("delete", Point.REQUEST_ROUND)],
)
def test_killed_among_concurrent_commits(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    before_and_after(starters, tables, kind, point, **CROWDED[point])


@pytest.mark.part(3)
@pytest.mark.parametrize(("kind", "point"), some([(k, p) for k in PLAIN for p in COMMIT_LOOP]))
def test_killed_in_the_second_round_of_the_commit_loop(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    """A foreign update won the race for the first version: masks, remapped rows, new
    evaluations are on the way to the log."""
    before_and_after(starters, tables, kind, point, nth=2, meanwhile="update")


def of_two(points: Sequence[Point], kinds: Sequence[str]) -> list[tuple[Point, str, str]]:
    """Two of the kinds for each point, one on each side of it, in turn."""
    count = len(kinds)
    return [
        (point, kinds[n % count], kinds[(n + count // 2) % count]) for n, point in enumerate(points)
    ]


@pytest.mark.part(6)
@pytest.mark.parametrize(
    ("point", "before", "after"),
    [
        *of_two([*STRAIGHT, *SECOND_DEATH, Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT], OTHERS),
        (Point.REQUEST_ROUND, "merge", "merge"),
    ],
)
def test_killed_while_doing_something_else(
    starters: ProcessStarters, tables: Tables, point: Point, before: str, after: str
) -> None:
    """A part of `matrix_killed.py`."""
    more = circumstances(point)
    side_by_side(starters, tables, (before, after), point, **more)


@pytest.mark.part(4)
@pytest.mark.parametrize(("point", "before", "after"), of_two(COMMIT_LOOP, TAKE_ROUNDS))
def test_killed_while_doing_something_else_in_the_second_round(
    starters: ProcessStarters, tables: Tables, point: Point, before: str, after: str
) -> None:
    side_by_side(starters, tables, (before, after), point, nth=2, meanwhile="update")


# Without deletion vectors ---------------------------------------------------------------------


@pytest.mark.part(12)
@pytest.mark.parametrize(
    ("kind", "meanwhile", "at", "nth"),
    [(*beside, *place) for beside in EDITED_BESIDE for place in around_edits(beside[0])],
)
def test_N15_killed_around_an_edit(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str, at: str, nth: int
) -> None:
    """Edits are there, or half of them, that the next process does not know of."""
    before_and_after(starters, plain_tables, kind, at, nth=nth, meanwhile=meanwhile)


@pytest.mark.part(21)
@pytest.mark.parametrize(
    ("kind", "meanwhile"), [beside for beside in EDITED_BESIDE if beside[0] != "log merge"]
)
@pytest.mark.parametrize(
    ("at", "nth"), [("edit", 1), (Point.REQUEST_ROUND, 1), (Point.READ_RESULT, 2)]
)
def test_N15_killed_around_an_edit_of_its_job(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str, at: str, nth: int
) -> None:
    more = {"meanwhile": meanwhile, "edited_by_job": True}
    before_and_after(starters, plain_tables, kind, at, nth=nth, **more)


# Appends by key -----------------------------------------------------------------------------


@pytest.mark.part(6)
@pytest.mark.parametrize(
    ("point", "kind"),
    some(
        [
            (point, kind)
            for point in (*STRAIGHT, *SECOND_DEATH, Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT)
            for kind in APPENDS
        ],
        every=7,
    ),
)
def test_an_append_by_key_that_is_killed_counts_once(
    starters: ProcessStarters, tables: Tables, point: Point, kind: str
) -> None:
    """A log writer appends between the death and the restart, and after it."""
    append_before_and_after(starters, tables, kind, point, **circumstances(point))


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("point", "kind"),
    some([(point, kind) for point in COMMIT_LOOP[:0:-1] for kind in APPENDS], every=4),
)
@pytest.mark.parametrize("meanwhile", some(["update", "append"]))
def test_an_append_by_key_that_is_killed_comes_after_a_writer_that_was_faster(
    starters: ProcessStarters, tables: Tables, point: Point, kind: str, meanwhile: str
) -> None:
    """Just before its reconciliation a log writer commits, with keys of its."""
    append_before_and_after(starters, tables, kind, point, meanwhile=meanwhile)
