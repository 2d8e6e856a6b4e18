"""All planted bugs, from the TOML files beside this module. A table of a file is one bug, its key
the bug's name; a newline after an opening `'''` is not part of the text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutants.model import Check, Mutant

FOLDER = Path(__file__).parent
FILES = (
    *("rules", "replaces", "serving", "engine", "edits", "batches", "blocks", "automatic"),
    *("assignment", "index", "spread", "in_process", "children", "controllers", "row_ids"),
    *("catalog", "feed", "clustering", "identity", "statements"),
)
"""In the order of the page."""


def _tables(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def _mutants() -> Iterator[Mutant]:
    for file in FILES:
        for name, bug in _tables(file).items():
            checks = tuple(CHECKS[check] for check in bug.pop("checks"))
            yield Mutant(name, checks=checks, **bug)


CHECKS = {name: Check(name, **check) for name, check in _tables("checks").items()}
MUTANTS = tuple(_mutants())
