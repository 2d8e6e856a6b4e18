"""Every scenario that is due is a test whose name begins with its id (`scenarios.md`).

Ids are looked for in the names of test functions: `test_D17_compaction_first_…`, also several
in one name (`test_D6_D7_D8_…`). A row may have many tests, none may have none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_ID = re.compile(r"([A-Z]\d{1,2}[a-d]?|X[a-f])(?=_|$)")

COMPACTION_AND_UPDATE = ("C2", "C2b", "C2c", "C2d", "C3", "C3b", "C3c", "C3d")
INGEST_AND_COMPACTION = (
    *(f"D{number}" for number in range(1, 9)),
    *(f"D{number}" for number in range(10, 21)),
)
BOTH_WAYS = (*COMPACTION_AND_UPDATE, *INGEST_AND_COMPACTION, "Z2", "Z11", "D56", "I57")
"""Asked for as pure tests and on real tables."""

PLANS = ("C1a", "C1b", "C11", "C11b", "C12", "C12b", "C13", "C14")
PURE_PLANS = (
    *("C11", "C11b", "C12", "C12b", "C13", "C14", "Z16"),
    *("S15", "S16", "S17", "S18", "D41", "S21", "S29", "Z17"),
)
"""Asked for as pure plans."""
CRASHES = ("C4", "C5", "C6", "C6b", "Z6")
"""Asked for with real processes that die on a real disk."""
FAILURES = ("C4", "C5", "C6b", "C15", "D9", "D23", "Z5", "Z6", "Z13", "Z14", "Z16", "Z20")
FOREIGN = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W10")
REPLACES = (
    *(f"D{number}" for number in (*range(25, 45), *range(47, 52))),
    *("D53", "D56", "D58", "D60"),
)
CUTS = ("D41", "D56", "S21", "S29", "Z17", "I57")
VERSIONS = ("D45", "D46", "D52", "D54", "D55", "C8", "C9", "C16", "W9", "Z8", "Z9", "Z10", "Z19")
EXCLUSIVE = ("D21", "D22", "D57", "A6")
ON_TABLES = (*BOTH_WAYS, *PLANS, *FAILURES, *REPLACES, *VERSIONS, *EXCLUSIVE, *CUTS)
"""Asked for on real tables, read by other engines."""

ON_LOGS = (
    *("L0", "L1", "L2", "L2b", "L2c", *(f"L{number}" for number in range(3, 16))),
    *("E12", "E13", "Z15", "Z18", *(f"I{number}" for number in range(37, 47))),
)
"""Asked for on logs of blocks; their automation is pure."""

ON_TIMELINES = (
    *("D41", "D42", *(f"D{number}" for number in range(48, 55)), "D58", "D59"),
    *(f"S{number}" for number in (*range(1, 15), 22, 23)),
)
"""Asked for as pure functions of versions, time and loaded parts."""

IN_A_CLUSTER = (
    *("C1a", "C1b", "C2", "C3", "C10", "C14", "D11", "D12", "D15", "D16", "D17", "D18"),
    *("Z1", "Z6", "Z7", "Z12", "A1", "A2", "A3", "A4", "A5"),
    *("L1", "L2", "L4", "L9", "L10", "L12"),
    *("D29", "D32", "D35", "D38", "D43", "D57", "D60"),
)
"""Asked for through API server, etcd and Spark."""

OF_ASSIGNMENT = (
    *(f"X{number}" for number in (*range(1, 8), 14, 15)),
    *("I47", "I48", "I49", "E17", "E18"),
)
"""Asked for as pure functions of shards and executors."""

OF_INDEX = (
    *(f"X{number}" for number in (9, 11, 12, 13, 16, 17, 20, 21, 22)),
    *("I50", "I51", "I52", "Xa", "Xb", "Xc", "Xd", "Xe", "Xf"),
)
"""Asked for on real tables and over real Flight."""

OF_EXECUTORS = (
    *(f"X{number}" for number in (*range(1, 11), *range(13, 17), 18, 19, 21)),
    *("I47", "I49", "I50", "Xa"),
)
"""Asked for with executors over real Flight."""

ON_SPARK_EXECUTORS = ("X2", "X6", "X8", "X13", "X20", "X21")

OF_LOCKS = ("C10", "C14", "S19", "S20", *(f"S{number}" for number in range(24, 30)), "Z17")
"""Asked for in the contract of locks, which each store keeps."""


ALL = "test_*.py"


@cache
def _named(folder: str, pattern: str) -> dict[str, list[str]]:
    """Scenario id → tests below a folder of `tests` whose names begin with it."""
    found: dict[str, list[str]] = {}
    for path in sorted((TESTS / folder).rglob(pattern)):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for scenario in _ids(node.name):
                    found.setdefault(scenario, []).append(f"{path.name}::{node.name}")
    return found


def _ids(name: str) -> list[str]:
    """The ids at the beginning of a test's name, after `test_`."""
    ids = []
    for part in name.removeprefix("test_").split("_"):
        if not _ID.fullmatch(part):
            break
        ids.append(part)
    return ids


def test_ids_are_read_from_names() -> None:
    assert _ids("test_D17_compaction_first") == ["D17"]
    assert _ids("test_D6_D7_D8_one_dies") == ["D6", "D7", "D8"]
    assert _ids("test_C2b_C_is_no_id") == ["C2b"]
    assert _ids("test_X20_Xd_counts") == ["X20", "Xd"]
    assert _ids("test_plain") == []


Places = tuple[tuple[str, str], ...]
"""Folders of `tests`, and patterns of files in them."""
ASKED: tuple[tuple[str, Sequence[str], Places], ...] = (
    ("on a real table", ON_TABLES, (("tables", ALL),)),
    ("with real processes", CRASHES, (("crash", ALL),)),
    ("on a log", ON_LOGS, (("mergelog", ALL), ("planning", ALL))),
    ("in a cluster", IN_A_CLUSTER, (("kube", ALL),)),
    ("in every store of locks", OF_LOCKS, (("locks", "lock_contract*.py"),)),
    ("as an assignment", OF_ASSIGNMENT, (("index", "test_assignment*.py"),)),
    ("in the index", OF_INDEX, (("index", ALL),)),
    (
        "with executors",
        OF_EXECUTORS,
        (("index", "test_spread_*.py"), ("index", "test_table_shards.py")),
    ),
    ("with executors on Spark", ON_SPARK_EXECUTORS, (("index", "matrix_*.py"),)),
    ("as a pure function", BOTH_WAYS, (("reconcile", ALL),)),
    ("on the machine alone", ("D22", "A6"), (("operations", ALL),)),
    ("as a pure plan", PURE_PLANS, (("planning", ALL), ("timeline", ALL))),
    ("as a function of versions and time", ON_TIMELINES, (("timeline", ALL),)),
)


@pytest.mark.parametrize(
    ("scenario", "places"),
    [
        pytest.param(scenario, places, id=f"{scenario} {how}")
        for how, scenarios, places in ASKED
        for scenario in scenarios
    ],
)
def test_every_scenario_is_tested_where_it_is_asked_for(scenario: str, places: Places) -> None:
    assert any(_named(*place).get(scenario) for place in places), (
        f"no test in {places} begins with test_{scenario}_"
    )


@pytest.mark.parametrize("row", FOREIGN)
def test_foreign_writer_is_among_those_tested(row: str) -> None:
    """The matrix of foreign writers names its rows as parameters."""
    source = (TESTS / "support" / "matrix" / "foreign.py").read_text()
    assert re.search(rf'"{row}-[a-z-]+": Foreign\(', source)
