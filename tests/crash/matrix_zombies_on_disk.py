"""`make matrix`: every kind of operation stands still at every point, on both sides of it, and
at every change of the file system; others do its work, clean its files, or both. What
`test_zombies_on_disk.py` has a part of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cases import OTHERS, PLAIN
from support.crash.killed import MOST, Nurseries, Tables
from support.crash.zombies import Funeral, Stop, at, comes_back, stops

ALL_KINDS = (*PLAIN, *OTHERS)
FUNERALS = tuple(Funeral)
CLEANED = tuple(funeral for funeral in Funeral if funeral is not Funeral.REPLACED)


def cases() -> Iterator[tuple[str, Stop, Funeral]]:
    """Each stop of each kind with a successor alone, and with one of the cleanings: each point
    meets them all, by another kind or on another side."""
    for number, kind in enumerate(ALL_KINDS):
        for nth, stop in enumerate(stops(kind)):
            yield kind, stop, Funeral.REPLACED
            yield kind, stop, CLEANED[(number + nth) % len(CLEANED)]


@pytest.mark.parametrize(("kind", "stop", "funeral"), list(cases()), ids=str)
def test_Z1_Z6_Z14_a_zombie_of_every_point(
    nurseries: Nurseries, tables: Tables, kind: str, stop: Stop, funeral: Funeral
) -> None:
    assert comes_back(nurseries, tables(), kind, stop, funeral)


@pytest.mark.parametrize("funeral", FUNERALS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_Z1_Z14_a_zombie_of_every_change_of_the_file_system(
    nurseries: Nurseries, tables: Tables, kind: str, funeral: Funeral
) -> None:
    """Its files stand there half written. Each of the funerals has every fourth change."""
    numbers = range(1 + FUNERALS.index(funeral), MOST, len(FUNERALS))
    for struck, number in enumerate(numbers):
        if not comes_back(nurseries, tables(), kind, at("disk", nth=number), funeral):
            assert struck > 2
            return
    raise AssertionError(f"more than {MOST} changes: raise MOST")
