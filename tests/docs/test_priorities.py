"""The priorities that the page of resources names are those of the kinds."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.spec.common import OPERATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resources.md"
REWRITES = 25


def test_default_priorities_are_those_of_the_kinds() -> None:
    [row] = re.findall(r"^\| `spec\.priority` .*Without it: (.*)\. \|$", PAGE.read_text(), re.M)
    named = {
        kind: int(part.split()[0])
        for part in row.split(", ")
        for kind in re.findall(r"\bTable\w+", part)
    }
    assert f"{REWRITES} for compactions and rewrites" in row
    assert {
        kind: model.default_priority
        for kind, model in OPERATIONS.items()
        if model.default_priority != REWRITES
    } == named
