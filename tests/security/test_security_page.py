"""docs/security.md names tests that there are, and every kind of escape has one."""

from __future__ import annotations

import re

from cluster_processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "security.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    there = set()
    for file in (REPOSITORY / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - there == set()
    assert len(named) > 20


def test_no_escape_is_without_a_test() -> None:
    rows = [
        line.split("|")
        for line in PAGE[PAGE.index("## Attacks, and") : PAGE.index("## Allowing")].splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| escape"))
    ]
    assert len(rows) > 20
    assert [row for row in rows if "test" not in row[3]] == []
