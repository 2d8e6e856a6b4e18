"""Who was declared dead comes back: real processes, stopped by a real SIGSTOP, whose work others
do or whose files they clean, or both. `matrix_zombies_on_disk.py` has all of it."""

from __future__ import annotations

import pytest

from support.cases import OTHERS, PLAIN
from support.crash.killed import Nurseries, Tables
from support.crash.zombies import FEW, Funeral, Stop, comes_back

CLEANED = (Funeral.CLEANED, Funeral.CLEANED_REPLACED, Funeral.REPLACED_CLEANED)


def sample() -> list[tuple[str, Stop, Funeral]]:
    """Of each kind two stops, with what the others do in turn; all stops of `FEW` are there."""
    kinds = (*PLAIN, *OTHERS)
    found = []
    for number in range(2 * len(kinds) + 2):
        stop, funeral = FEW[number % len(FEW)], CLEANED[(number + number // 9) % len(CLEANED)]
        found.append((kinds[number % len(kinds)], stop, funeral))
    return found


@pytest.mark.parametrize("stop", FEW, ids=str)
@pytest.mark.parametrize("kind", PLAIN)
def test_Z6_a_zombie_publishes_nothing(
    nurseries: Nurseries, tables: Tables, kind: str, stop: Stop
) -> None:
    assert comes_back(nurseries, tables(), kind, stop, Funeral.REPLACED)


@pytest.mark.parametrize(("kind", "stop", "funeral"), sample(), ids=str)
def test_Z1_Z14_a_zombie_whose_files_were_cleaned(
    nurseries: Nurseries, tables: Tables, kind: str, stop: Stop, funeral: Funeral
) -> None:
    assert comes_back(nurseries, tables(), kind, stop, funeral)
