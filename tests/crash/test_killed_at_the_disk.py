"""SIGKILL at every single change of the file system, not only between effects.

A file appears by a link or a rename and vanishes by an unlink. A process that dies at any one of
them, with its files half in place, is followed by a fresh one that finishes the work.
"""

from __future__ import annotations

import pytest

from support.crash.killed import (
    EDITED_BESIDE,
    ProcessStarters,
    Tables,
    at_every_change,
    die_while_clearing,
)
from support.crash.zombies import KINDS


@pytest.mark.part(14)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_change_of_the_file_system(
    starters: ProcessStarters, tables: Tables, kind: str
) -> None:
    # Plan, job, data, answer, commit, and the tidying of staged names: more than a handful.
    assert at_every_change(starters, tables, kind) > 10


@pytest.mark.part(14)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_between_two_changes_of_the_clean_up(
    starters: ProcessStarters, tables: Tables, kind: str
) -> None:
    """The restart itself dies while it clears away what the first process left."""
    die_while_clearing(starters[0], tables, kind)


@pytest.mark.matrix
@pytest.mark.parametrize("by_job", [False, True], ids=["here", "by its job"])
@pytest.mark.parametrize(("kind", "meanwhile"), EDITED_BESIDE)
def test_N15_killed_at_every_edit(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str, by_job: bool
) -> None:
    more = {"meanwhile": meanwhile, "edited_by_job": by_job}
    assert at_every_change(starters, plain_tables, kind, "edit", **more) > 0


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "meanwhile"), EDITED_BESIDE)
def test_N15_killed_at_every_change_of_the_file_system(
    starters: ProcessStarters, plain_tables: Tables, kind: str, meanwhile: str
) -> None:
    assert at_every_change(starters, plain_tables, kind, meanwhile=meanwhile) > 10
