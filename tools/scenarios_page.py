"""`tests/scenarios.md`: the tests of each numbered scenario, read from the tests' names.

A test belongs to a scenario if its name begins with the scenario's id, or with several:
`test_D6_D7_D8_one_dies`. Rows of the matrix of foreign writers are named by their parameters.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "D": "Loads, compactions and rewrites in every order (from the Druid analysis)",
    "C": "Compaction alongside updates (from CarbonData)",
    "Z": "Failures known from other systems",
    "W": "Foreign writers",
    "A": "When compaction is started",
    "L": "Log blocks (from RFC-48)",
    "S": "Segments and locks (from Druid's segment locking)",
    "X": "The index server (from CarbonData)",
    "F": "Tables that a catalog manages",
    "E": "Where the source documents leave something open",
    "I": "Invariants that a test names",
    "X-": "Invariants of the index server",
}
_ID = re.compile(r"([A-Z])(\d{1,2})([a-d]?)(?=_|$)")
_OF_INDEX = re.compile(r"X([a-f])")
_ROW = re.compile(r'"(W\d{1,2})-([a-z0-9-]+)"')


@dataclass(frozen=True, order=True)
class Scenario:
    """`C2b` is family C, number 2, letter b; `X-a` has no number."""

    family: str
    number: int
    letter: str

    def __str__(self) -> str:
        number = "" if self.family.endswith("-") else self.number
        return f"{self.family}{number}{self.letter}"


@dataclass(frozen=True, order=True)
class Case:
    """A test: its file below the repository, and the words of its name."""

    file: str
    words: str


def ids(name: str) -> tuple[list[Scenario], str]:
    """The ids at the beginning of a test's name, and the rest of it as words."""
    parts = name.removeprefix("test_").split("_")
    found = []
    for part in parts:
        if of_index := _OF_INDEX.fullmatch(part):
            found.append(Scenario("X-", 0, of_index[1]))
            continue
        match = _ID.fullmatch(part)
        if match is None or match[1] not in FAMILIES:
            break
        found.append(Scenario(match[1], int(match[2]), match[3]))
    return found, " ".join(parts[len(found) :])


def collect() -> dict[Scenario, list[Case]]:
    """Every scenario that a test names, with its tests in the order of files and names."""
    found: dict[Scenario, set[Case]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for scenario, words in _in(path):
            found[scenario].add(Case(str(path.relative_to(ROOT)), words))
    return {scenario: sorted(found[scenario]) for scenario in sorted(found)}


def _in(path: Path) -> Iterator[tuple[Scenario, str]]:
    text = path.read_text()
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            scenarios, words = ids(node.name)
            yield from ((scenario, words) for scenario in scenarios)
    if path.parent.name in ("tables", "matrix"):
        for row, words in _ROW.findall(text):
            yield Scenario("W", int(row[1:]), ""), words.replace("-", " ")


def scenarios(note: str) -> str:
    """The page."""
    text = (
        "# Scenarios\n\n"
        + note
        + "Each numbered scenario is a test whose name begins with its number: "
        "`pytest -k D17` runs one.\n"
    )
    found = collect()
    for family, title in FAMILIES.items():
        rows = {s: cases for s, cases in found.items() if s.family == family}
        if not rows:
            continue
        text += f"\n## {title}\n\n| scenario | tests | files |\n|---|---|---|\n"
        for scenario, cases in rows.items():
            words = "; ".join(dict.fromkeys(case.words for case in cases))
            files = ", ".join(dict.fromkeys(_link(case.file) for case in cases))
            text += f"| {scenario} | {words} | {files} |\n"
    return text


def _link(file: str) -> str:
    """A link to a test file, which its folder and name identify."""
    path = Path(file)
    shown = f"{path.parent.name}/{path.stem.removeprefix('test_')}"
    return f"[{shown}]({path.relative_to('tests')})"
