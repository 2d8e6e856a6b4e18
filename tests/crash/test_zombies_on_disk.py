"""Who was declared dead comes back: real processes, stopped by a real SIGSTOP, whose work others
do or whose files they clean, or both. `matrix_zombies_on_disk.py` has all of it."""

from __future__ import annotations

import pytest

from support.cases import PLAIN
from support.crash.killed import ProcessStarters, Tables
from support.crash.zombies import FEW, KINDS, Stop, Takeover, resumes
from support.some import some

CLEANED = (Takeover.CLEANED, Takeover.CLEANED_REPLACED, Takeover.REPLACED_CLEANED)


def sample() -> list[tuple[str, Stop, Takeover]]:
    """Of each kind two stops, with what the others do in turn; all stops of `FEW` are there."""
    found = []
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
