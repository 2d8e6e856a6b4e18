"""SIGKILL before and after every named point of the engine, then a restart (issue, point 6).

Each case: a process is killed; the table shows the state before or after the operation and
nothing else; the same resource in a fresh process brings it to the serial result; once more
changes nothing; no file is left that no version names.
"""

from __future__ import annotations

import pytest

from support.cases import APPENDS, EDIT_ALONE, OTHERS, PLAIN, TAKE_ROUNDS
from support.crash.killed import (
    COMMIT_LOOP,
    CROWDED,
    EDITED_BESIDE,
    SECOND_DEATH,
    STRAIGHT,
    ProcessStarters,
    Tables,
    answers_are_lost,
    append_before_and_after,
    around_edits,
    before_and_after,
    circumstances,
    die_and_recover,
)
from support.crash.processes import Strike
from support.crash.zombies import KINDS, ROUNDS
from tandem.operations.machine.events import Point

POINTS = (*STRAIGHT, *SECOND_DEATH, Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT)
"""What every kind of operation reaches, alone or in some circumstances."""
IN_A_JOB = ("job:written", "job:published")


def test_every_point_is_covered() -> None:
    assert {*POINTS, *CROWDED} == set(Point)


@pytest.mark.part(27)
@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    """Also while it picks up after a crash, waits for locks, or asks what became of its put."""
    before_and_after(starters, tables, kind, point, **circumstances(point))


@pytest.mark.part(19)
@pytest.mark.parametrize("meanwhile", ["append", "update"])
@pytest.mark.parametrize("point", COMMIT_LOOP)
@pytest.mark.parametrize("kind", [*PLAIN, *TAKE_ROUNDS])
def test_C6_killed_in_the_second_round_of_the_commit_loop(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point, meanwhile: str
) -> None:
    """A foreign commit won the race for the first version: masks, remapped rows, new evaluations
    are on the way to the log."""
    before_and_after(starters, tables, kind, point, nth=2, meanwhile=meanwhile)


@pytest.mark.part(11)
@pytest.mark.parametrize("at", [Point.REQUEST_ROUND, Point.READ_RESULT, *COMMIT_LOOP, *IN_A_JOB])
@pytest.mark.parametrize("kind", ROUNDS)
def test_C6_killed_in_a_round_of_evaluation(
    starters: ProcessStarters, tables: Tables, kind: str, at: str
) -> None:
    """The rows of the append are evaluated; a merge is executed again then, since one of them is
    the first match of a row of its source."""
    in_a_round(starters, tables, kind, at, 1 if at == Point.REQUEST_ROUND else 2, "append")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("at", "nth", "meanwhile"),
    [
        (Point.REQUEST_ROUND, 2, "append"),
        (Point.RECONCILE, 4, "append"),
        *((at, 3, "append") for at in (Point.READ_RESULT, *IN_A_JOB)),
        *((at, 2, "update") for at in (Point.READ_RESULT, *IN_A_JOB)),
    ],
)
def test_C6_killed_in_a_later_round_of_a_merge(
    starters: ProcessStarters, tables: Tables, at: str, nth: int, meanwhile: str
) -> None:
    """While it is executed again after the append, and where a part is enough after the update."""
    in_a_round(starters, tables, "merge", at, nth, meanwhile)


def in_a_round(
    starters: ProcessStarters, tables: Tables, kind: str, at: str, nth: int, meanwhile: str
) -> None:
    if at in IN_A_JOB:  # has no other side
        die_and_recover(starters[0], tables(), kind, Strike(at, nth=nth), meanwhile=meanwhile)
    else:
        before_and_after(starters, tables, kind, at, nth=nth, meanwhile=meanwhile)


@pytest.mark.matrix
@pytest.mark.parametrize("point", Point)
@pytest.mark.parametrize("kind", KINDS)
def test_Z20_the_answer_of_every_point_is_lost(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    if point is Point.REQUEST_ROUND and kind not in ROUNDS:
        assert point not in starters[0].run(tables().order(kind, meanwhile="append")).points
        return
    answers_are_lost(starters[0], tables(), kind, point)


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
    before_and_after(
        starters, plain_tables, kind, at, nth=nth, meanwhile=meanwhile, edited_by_job=True
    )


@pytest.mark.matrix
@pytest.mark.parametrize("point", STRAIGHT)
@pytest.mark.parametrize("kind", EDIT_ALONE)
def test_N15_Z20_the_answer_of_every_point_is_lost(
    starters: ProcessStarters, plain_tables: Tables, kind: str, point: Point
) -> None:
    answers_are_lost(starters[0], plain_tables(), kind, point)


# Appends by key -----------------------------------------------------------------------------


@pytest.mark.part(38)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", APPENDS)
def test_an_append_by_key_that_is_killed_counts_once(
    starters: ProcessStarters, tables: Tables, point: Point, kind: str
) -> None:
    """A log writer appends between the death and the restart, and after it."""
    append_before_and_after(starters, tables, kind, point, **circumstances(point))


@pytest.mark.part(18)
@pytest.mark.parametrize("point", COMMIT_LOOP[:0:-1])
@pytest.mark.parametrize("kind", APPENDS)
@pytest.mark.parametrize("meanwhile", ["update", "append"])
def test_an_append_by_key_that_is_killed_comes_after_a_writer_that_was_faster(
    starters: ProcessStarters, tables: Tables, point: Point, kind: str, meanwhile: str
) -> None:
    """Just before its reconciliation a log writer commits, with keys of its."""
    append_before_and_after(starters, tables, kind, point, meanwhile=meanwhile)
