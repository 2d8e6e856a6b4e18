"""`make matrix`: every kind of operation stands still at every point, on both sides of it, and
at every change of the file system; others do its work, clean its files, or both. What
`test_zombies_on_disk.py` has a part of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.crash.killed import MOST, ProcessStarters, Tables
from support.crash.zombies import KINDS, Stop, Takeover, at, resumes, stops

TAKEOVERS = tuple(Takeover)
CLEANED = tuple(takeover for takeover in Takeover if takeover is not Takeover.REPLACED)


def cases() -> Iterator[tuple[str, Stop, Takeover]]:
    """Each stop of each kind with a successor alone, and with one of the cleanings: each point
    meets them all, by another kind or on another side."""
    for number, kind in enumerate(KINDS):
        for nth, stop in enumerate(stops(kind)):
            yield kind, stop, Takeover.REPLACED
            yield kind, stop, CLEANED[(number + nth) % len(CLEANED)]


@pytest.mark.parametrize(("kind", "stop", "takeover"), list(cases()), ids=str)
def test_Z1_Z6_Z14_a_zombie_of_every_point(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop, takeover: Takeover
) -> None:
    assert resumes(starters, tables(), kind, stop, takeover)


@pytest.mark.parametrize("takeover", TAKEOVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z14_a_zombie_of_every_change_of_the_file_system(
    starters: ProcessStarters, tables: Tables, kind: str, takeover: Takeover
) -> None:
    """Its files stand there half written. Each takeover has every fourth change."""
    numbers = range(1 + TAKEOVERS.index(takeover), MOST, len(TAKEOVERS))
    for struck, number in enumerate(numbers):
        if not resumes(starters, tables(), kind, at("disk", nth=number), takeover):
            assert struck > 2
            return
    raise AssertionError(f"more than {MOST} changes: raise MOST")
