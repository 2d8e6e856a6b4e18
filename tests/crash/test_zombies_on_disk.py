"""Who was declared dead comes back: real processes, stopped by a real SIGSTOP, whose work others
do or whose files they clean, or both. `matrix_zombies_on_disk.py` has all of it."""

from __future__ import annotations

import pytest

from support.cases import EDITORS, PLAIN
from support.crash.killed import ProcessStarters, Tables
from support.crash.zombies import FEW, KINDS, Stop, Takeover, resumes, stops_around_edits
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
