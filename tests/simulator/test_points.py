"""Every named point is one where some crash test kills every kind of operation that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.crashing import ALL_KINDS, ROUNDS
from simulator.points import BEGIN, END, When, table, when
from support.crash import killed
from support.crash.zombies import stops
from tandem.operations.machine.events import Point

PAGE = Path(__file__).resolve().parent / "points.md"


@pytest.mark.part(6)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_reaches_every_point_that_it_can_have(kind: str) -> None:
    missed = {point for point in Point if when(kind, point) is When.NEVER}
    assert missed == (set() if kind in ROUNDS else {Point.REQUEST_ROUND})


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_real_processes_are_killed_at_the_same_points(kind: str) -> None:
    """By SIGKILL and SIGSTOP, `tests/crash`."""
    seen = {point for point in Point if when(kind, point) is not When.NEVER}
    ways = {
        When.ALWAYS: set(killed.STRAIGHT),
        When.RESTART: set(killed.SECOND_DEATH),
        When.OTHERS: set(killed.CROWDED),
    }
    for way, points in ways.items():
        assert {p for p in seen if when(kind, p) is way} == points & seen
    if kind != "serializable":  # there all statements are
        stopped = {Point(stop.strike.at) for stop in stops(kind) if stop.strike.at in set(Point)}
        assert stopped == seen


def test_the_page_lists_the_points() -> None:
    """`python -m simulator.points` says what belongs there."""
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0] == "\n" + table() + "\n"
