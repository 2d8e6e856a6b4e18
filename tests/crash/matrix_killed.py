"""`make matrix`: what `test_killed_at_points.py`, `test_killed_at_the_disk.py` and
`test_crash_scenarios.py` have for some kinds of operations or only a part of, for all."""

from __future__ import annotations

import pytest

from support.cases import APPENDS, EDIT_ALONE, OTHERS, PLAIN, TAKE_ROUNDS
from support.crash.killed import (
    COMMIT_LOOP,
    EDITED_BESIDE,
    SECOND_DEATH,
    STRAIGHT,
    ProcessStarters,
    Tables,
    answers_are_lost,
    at_every_change,
    before_and_after,
    circumstances,
    die_and_recover,
    die_while_clearing,
    side_by_side,
)
from support.crash.processes import Strike
from support.crash.zombies import ROUNDS
from tandem.operations.machine.events import Point

IN_A_JOB = ("job:written", "job:published")
IN_A_ROUND = (Point.READ_RESULT, *COMMIT_LOOP, *IN_A_JOB)
POINTS = (*STRAIGHT, *SECOND_DEATH, Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", OTHERS)
def test_killed_at_every_point(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    before_and_after(starters, tables, kind, point, **circumstances(point))


@pytest.mark.parametrize("meanwhile", ["append", "update"])
@pytest.mark.parametrize("point", COMMIT_LOOP)
@pytest.mark.parametrize("kind", [*PLAIN, *TAKE_ROUNDS])
def test_C6_killed_in_the_second_round_of_the_commit_loop(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point, meanwhile: str
) -> None:
    before_and_after(starters, tables, kind, point, nth=2, meanwhile=meanwhile)


@pytest.mark.parametrize("at", [Point.REQUEST_ROUND, *IN_A_ROUND])
@pytest.mark.parametrize("kind", ROUNDS)
def test_C6_killed_in_a_round_of_evaluation(
    starters: ProcessStarters, tables: Tables, kind: str, at: str
) -> None:
    """The rows of the append are evaluated; a merge is executed again then, since one of them is
    the first match of a row of its source."""
    nth = 1 if at == Point.REQUEST_ROUND else 2
    if at.startswith("job:"):  # has no other side
        die_and_recover(starters[0], tables(), kind, Strike(at, nth=nth), meanwhile="append")
    else:
        side_by_side(starters, tables, (kind, kind), at, nth=nth, meanwhile="append")


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
    if at in IN_A_JOB:
        strike = Strike(at, nth=nth)
        die_and_recover(starters[0], tables(), "merge", strike, meanwhile=meanwhile)
    else:
        side_by_side(starters, tables, ("merge", "merge"), at, nth=nth, meanwhile=meanwhile)


@pytest.mark.parametrize("kind", [*OTHERS, *APPENDS])
def test_killed_at_every_change_of_the_file_system(
    starters: ProcessStarters, tables: Tables, kind: str
) -> None:
    assert at_every_change(starters, tables, kind) > 10


@pytest.mark.parametrize("kind", [*OTHERS, *APPENDS])
def test_killed_between_two_changes_of_the_clean_up(
    starters: ProcessStarters, tables: Tables, kind: str
) -> None:
    die_while_clearing(starters[0], tables, kind)


@pytest.mark.parametrize("point", Point)
@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS, *APPENDS])
def test_Z20_the_answer_of_every_point_is_lost(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point
) -> None:
    if point is Point.REQUEST_ROUND and kind not in ROUNDS:
        assert point not in starters[0].run(tables().order(kind, meanwhile="append")).points
        return
    answers_are_lost(starters[0], tables(), kind, point)


# Without deletion vectors ---------------------------------------------------------------------


@pytest.mark.parametrize("by_job", [False, True], ids=["here", "by its job"])
@pytest.mark.parametrize(("kind", "meanwhile"), EDITED_BESIDE)
def test_N15_killed_at_every_edit(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str, by_job: bool
) -> None:
    more = {"meanwhile": meanwhile, "edited_by_job": by_job}
    assert at_every_change(starters, plain_tables, kind, "edit", **more) > 0


@pytest.mark.parametrize(("kind", "meanwhile"), EDITED_BESIDE)
def test_N15_killed_at_every_change_of_the_file_system(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str
) -> None:
    assert at_every_change(starters, plain_tables, kind, meanwhile=meanwhile) > 10


@pytest.mark.parametrize("point", STRAIGHT)
@pytest.mark.parametrize("kind", EDIT_ALONE)
def test_N15_Z20_the_answer_of_every_point_is_lost(
    starters: ProcessStarters, plain_tables: Tables, kind: str, point: Point
) -> None:
    answers_are_lost(starters[0], plain_tables(), kind, point)
