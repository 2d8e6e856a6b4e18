"""The picture of the layers in docs/architecture.md shows the imports of the code, and no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "tandem"


def drawn() -> dict[str, set[str]]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = page.split("```mermaid", 1)[1].split("```", 1)[0]
    arrows: dict[str, set[str]] = {}
    for above, below in re.findall(r"^ *(\w+)(?:\[.*?\])? --> (\w+)", picture, re.MULTILINE):
        arrows.setdefault(above, set()).add(below)
        arrows.setdefault(below, set())
    return arrows


def imported(file: Path) -> Iterator[str]:
    """The parts of the package that a module imports, at its top or in a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition(".")
            if package == "tandem":
                yield from [rest.split(".")[0]] if rest else [name.name for name in node.names]


def in_code() -> dict[str, set[str]]:
    parts = {p.stem for p in PACKAGE.iterdir() if p.name != "__pycache__"} - {"__init__", "py"}
    found: dict[str, set[str]] = {part: set() for part in parts}
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in parts:
            found[part] |= set(imported(file)) & parts - {part}
    return found


def below(arrows: dict[str, set[str]], part: str) -> set[str]:
    found = set(arrows[part])
    for each in arrows[part]:
        found |= below(arrows, each)
    return found


def test_the_picture_shows_the_imports_of_the_code() -> None:
    arrows, imports = drawn(), in_code()
    assert arrows.keys() == imports.keys()
    for part, names in imports.items():
        assert names <= below(arrows, part), part
        assert arrows[part] <= names, part


def named_in_tables() -> list[tuple[str, str, str]]:
    """(row, files, names) of the tables that tell where to look."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    return [
        (row[-3].strip(), row[-2], row[-1])
        for row in rows
        if row[-1].strip() not in ("name", "functions, in order", "---")
    ]


@pytest.mark.parametrize(("row", "files", "names"), named_in_tables())
def test_a_table_names_what_is_there(row: str, files: str, names: str) -> None:
    defined: set[str] = set()
    for file in re.findall(r"`([^`]+)`", files):
        for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                defined.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined.add(node.target.id)
    wanted = re.findall(r"`([^`]+)`", names)
    assert wanted, row
    assert set(wanted) <= defined, f"{row}: {set(wanted) - defined}"


def test_every_path_on_the_page_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in set(re.findall(r"`([a-z][\w./]*(?:\.py|/))`", page)):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path
