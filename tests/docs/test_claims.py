"""Every claim about failures and attacks names the test that tries it, and the test is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FAILURES = (REPOSITORY / "docs" / "failure-modes.md").read_text()
ATTACKS = (REPOSITORY / "docs" / "security.md").read_text()
_FILE = re.compile(r"tests/[\w/]+\.py")


def claims(page: str, last: str) -> list[str]:
    """The rows of the tables whose last column has this title."""
    rows, wanted = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            wanted = False
        elif line.rstrip("| ").endswith(f"| {last}"):
            wanted = True
        elif wanted and not line.startswith("|---"):
            rows.append(line)
    return rows


CLAIMS = [*claims(FAILURES, "measured by"), *claims(ATTACKS, "test")]


@cache
def defined() -> frozenset[str]:
    found: set[str] = set()
    for file in (REPOSITORY / "tests").rglob("*.py"):
        found |= set(re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE))
    return frozenset(found)


def test_all_tables_of_both_pages_are_read() -> None:
    assert len(claims(FAILURES, "measured by")) > 100
    assert len(claims(ATTACKS, "test")) > 40


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_a_claim_names_a_test_that_is_there(row: str) -> None:
    proof = row.rstrip("| ").rsplit("|", 1)[1]
    tests, files = set(re.findall(r"`(test_\w+)`", proof)), _FILE.findall(proof)
    assert tests or files, f"no test is named: {row}"
    assert tests <= defined(), tests - defined()
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []
