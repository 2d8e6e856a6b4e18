"""`invariants.md` names a check for every invariant, and every check that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PROMISED = (*range(1, 8), 9, 10, *range(13, 24), 26, 27, 28)


def test_every_invariant_is_checked_where_the_page_says() -> None:
    page = (Path(__file__).parent / "invariants.md").read_text()
    rows = dict(re.findall(r"^\| I-(\d+) \|(.*)$", page, re.MULTILINE))
    assert {int(number) for number in rows} == set(PROMISED)
    for number, row in rows.items():
        checks = re.findall(r"`(tests/[\w/]+\.py)` `(\w+)`", row)
        assert checks, f"I-{number} is checked nowhere"
        for path, name in checks:
            text = (REPOSITORY / path).read_text()
            assert re.search(rf"(def|class) {name}\b", text), f"I-{number}: {path} has no {name}"
