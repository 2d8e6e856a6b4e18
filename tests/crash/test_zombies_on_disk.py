"""Who was declared dead comes back: real processes, stopped by a real SIGSTOP, whose work others
do or whose files they clean, or both. `matrix_zombies_on_disk.py` has all of it."""

from __future__ import annotations

import pytest

from support.cases import OTHERS, PLAIN
from support.crash.killed import ProcessStarters, Tables
from support.crash.zombies import FEW, Stop, Takeover, resumes

CLEANED = (Takeover.CLEANED, Takeover.CLEANED_REPLACED, Takeover.REPLACED_CLEANED)


def sample() -> list[tuple[str, Stop, Takeover]]:
    """Of each kind two stops, with what the others do in turn; all stops of `FEW` are there."""
    kinds = (*PLAIN, *OTHERS)
    found = []
    for number in range(2 * len(kinds) + 2):
        stop, takeover = FEW[number % len(FEW)], CLEANED[(number + number // 9) % len(CLEANED)]
        found.append((kinds[number % len(kinds)], stop, takeover))
    return found


@pytest.mark.parametrize("stop", FEW, ids=str)
@pytest.mark.parametrize("kind", PLAIN)
def test_Z6_a_zombie_publishes_nothing(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop
) -> None:
    assert resumes(starters, tables(), kind, stop, Takeover.REPLACED)


@pytest.mark.parametrize(("kind", "stop", "takeover"), sample(), ids=str)
def test_Z1_Z14_a_zombie_whose_files_were_cleaned(
    starters: ProcessStarters, tables: Tables, kind: str, stop: Stop, takeover: Takeover
) -> None:
    assert resumes(starters, tables(), kind, stop, takeover)
