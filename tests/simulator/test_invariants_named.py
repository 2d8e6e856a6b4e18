"""`invariants.md` names a check for every invariant, and every check that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PROMISED = {
    *(f"I-{number}" for number in (*range(1, 8), 9, 10, *range(13, 24), 26, 27, 28)),
    *(f"R-{number}" for number in (*range(1, 11), 12)),
}


def test_every_invariant_is_checked_where_the_page_says() -> None:
    page = (Path(__file__).parent / "invariants.md").read_text()
    rows = dict(re.findall(r"^\| ([IR]-\d+) \|(.*)$", page, re.MULTILINE))
    assert rows.keys() == PROMISED
    for name, row in rows.items():
        checks = re.findall(r"`(tests/[\w/]+\.py)` `(\w+)`", row)
        assert checks, f"{name} is checked nowhere"
        for path, check in checks:
            text = (REPOSITORY / path).read_text()
            assert re.search(rf"(def|class) {check}\b", text), f"{name}: {path} has no {check}"
