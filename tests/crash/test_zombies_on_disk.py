"""Who was declared dead comes back: real processes, stopped by a real SIGSTOP, whose work others
do or whose files they clean, or both. Every kind of operation stands still at every point, on both
sides of it, and at every change of the file system: all of it in `make matrix`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cases import EDITORS, PLAIN
from support.crash.killed import MOST, ProcessStarters, Tables
from support.crash.zombies import (
    FEW,
    KINDS,
    Stop,
    Takeover,
    at,
    resumes,
    stops,
    stops_around_edits,
)
from support.some import some

TAKEOVERS = tuple(Takeover)
CLEANED = tuple(takeover for takeover in Takeover if takeover is not Takeover.REPLACED)


def sample() -> list[tuple[str, Stop, Takeover]]:
    """Of each kind two stops, with what the others do in turn; all stops of `FEW` are there."""
    found: list[tuple[str, Stop, Takeover]] = []
    for number in range(2 * len(KINDS) + 2):
        stop, takeover = FEW[number % len(FEW)], CLEANED[(number + number // 9) % len(CLEANED)]
        found.append((KINDS[number % len(KINDS)], stop, takeover))
    return found


@pytest.mark.part(6)
@pytest.mark.parametrize(
    ("kind", "stop"), some([(kind, stop) for stop in FEW for kind in PLAIN]), ids=str
)
def test_Z6_a_zombie_publishes_nothing(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop
) -> None:
    assert resumes(starters, tables(), kind, stop, Takeover.REPLACED)


@pytest.mark.part(6)
@pytest.mark.parametrize(("kind", "stop", "takeover"), sample(), ids=str)
def test_Z1_Z14_a_zombie_whose_files_were_cleaned(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop, takeover: Takeover
) -> None:
    assert resumes(starters, tables(), kind, stop, takeover)


@pytest.mark.part(77)
@pytest.mark.parametrize(
    ("kind", "stop", "takeover"),
    [
        (k, stop, takeover)
        for k in EDITORS
        for stop in stops_around_edits(k)
        for takeover in Takeover
    ],
    ids=str,
)
def test_N15_Z1_Z6_a_zombie_around_its_edits(
    starters: ProcessStarters, plain_tables: Tables, kind: str, stop: Stop, takeover: Takeover
) -> None:
    """Two processes make edits of one attempt, or one whose files were cleaned comes back."""
    assert resumes(starters, plain_tables(), kind, stop, takeover)


# Everywhere ---------------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Stop, Takeover]]:
    """Each stop of each kind, with what the others do in turn: each point meets them all, by
    another kind or on another side. The simulator has each with each."""
    for number, kind in enumerate(KINDS):
        for nth, stop in enumerate(stops(kind)):
            yield kind, stop, TAKEOVERS[(number + nth) % len(TAKEOVERS)]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "stop", "takeover"), list(cases()), ids=str)
def test_Z1_Z6_Z14_a_zombie_of_every_point(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop, takeover: Takeover
) -> None:
    assert resumes(starters, tables(), kind, stop, takeover)


@pytest.mark.matrix
@pytest.mark.parametrize("takeover", Takeover)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z14_a_zombie_of_every_change_of_the_file_system(
    starters: ProcessStarters, tables: Tables, kind: str, takeover: Takeover
) -> None:
    """Its files stand there half written. Each takeover has every fourth change."""
    numbers = range(1 + list(Takeover).index(takeover), MOST, len(Takeover))
    for struck, number in enumerate(numbers):
        if not resumes(starters, tables(), kind, at("disk", nth=number), takeover):
            assert struck > 2
            return
    raise AssertionError(f"more than {MOST} changes: raise MOST")
