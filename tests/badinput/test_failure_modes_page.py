"""The page on failures names tests that exist, and every class of tests that belongs there."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.errors import Reason

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "failure-modes.md").read_text()


def defined(*folders: str) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        for file in (REPOSITORY / "tests" / folder).glob("*_*.py"):
            found |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    return found


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    folders = ["badinput", "crash", "kube", "spark", "tables", "attack", "chart", "security", "e2e"]
    folders += ["upgrade", "index", "crds", "storage", "rowgroups", "locks", "operations"]
    folders += ["simulator"]
    assert named <= defined(*folders), named - defined(*folders)


def test_every_reason_that_the_page_names_exists() -> None:
    words = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", PAGE))
    fields = {"KINDS"}
    assert words - fields <= {reason.value for reason in Reason}
