"""The table of mutants in tests/mutants/mutants.md: read, and written again by `make mutants`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mutants.catalogue import MUTANTS

PAGE = "tests/mutants/mutants.md"
_BEGIN = "<!-- mutants: written by `make mutants` -->\n"
_END = "<!-- end of mutants -->\n"
_ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| .* \| (?P<check>[^|`]+?)(?:: `(?P<test>[^`]+)`)? \|$")


@dataclass(frozen=True)
class Caught:
    """Which check noticed, and by which test, where it is made of tests."""

    check: str
    test: str = ""

    def __str__(self) -> str:
        return f"{self.check}: `{self.test}`" if self.test else self.check


def read(path: Path) -> dict[str, Caught]:
    """Mutant → who caught it, as the page says."""
    found = {}
    for line in _table(path.read_text()).splitlines():
        row = _ROW.match(line)
        if row is not None and row["check"] != "no check yet":
            found[row["name"]] = Caught(row["check"], row["test"] or "")
    return found


def write(path: Path, caught: Mapping[str, Caught]) -> None:
    """Write the table; a mutant that no check caught says so."""
    lines = ["| planted bug | breaks | as shipped by | caught by |", "|---|---|---|---|"]
    for mutant in MUTANTS:
        by = caught.get(mutant.name, "no check yet")
        lines.append(f"| `{mutant.name}` | {mutant.breaks} | {mutant.precedent or '–'} | {by} |")
    before, begin, rest = path.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    path.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def _table(text: str) -> str:
    return text.partition(_BEGIN)[2].partition(_END)[0]
