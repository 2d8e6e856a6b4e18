"""The package's rooms: small enough to know, and each says what is in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "tandem"
ROOMS = sorted(p.parent for p in PACKAGE.rglob("__init__.py") if p.parent != PACKAGE)
MOST_MODULES = 14


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(PACKAGE).as_posix())
def test_a_package_is_small_and_lists_its_modules(room: Path) -> None:
    modules = {p.stem for p in room.glob("*.py")} - {"__init__"}
    assert len(modules) <= MOST_MODULES
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text()), clean=False)
    assert text is not None
    listed = {
        line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4] != " "
    }
    assert listed == modules | {p.parent.name for p in room.glob("*/__init__.py")}
