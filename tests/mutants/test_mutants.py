"""The planted bugs fit the code, and each has been caught. To catch them again: `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.catalogue import FILES, FOLDER, MUTANTS
from mutants.model import Mutant
from mutants.page import PAGE, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_still_applies_to_the_code(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    broken = mutant.applied(text)
    assert broken != text
    compile(broken, mutant.path, "exec")


def test_the_page_names_the_check_that_caught_each() -> None:
    assert set(read(ROOT / PAGE)) == {mutant.name for mutant in MUTANTS}
    text = (ROOT / PAGE).read_text()
    assert all(f"| `{mutant.name}` | {mutant.breaks} |" in text for mutant in MUTANTS)


def test_every_file_of_bugs_is_read() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*FILES, "checks"}


def test_no_two_bugs_have_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
