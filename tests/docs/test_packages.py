"""The packages: small enough to know, and each docstring says what it is for, what it must not do,
and which modules it has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "operator" / "tandem"
PACKAGES = sorted(p.parent for p in PACKAGE.rglob("__init__.py"))
MOST_MODULES = 24
LIMIT = re.compile(r"\b(not|never|no|none|nothing|neither|nor|only|pure)\b", re.IGNORECASE)


def docstring(package: Path) -> str:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False)
    assert text is not None
    return text


def in_package(package: Path) -> str:
    return package.relative_to(PACKAGE.parent).as_posix()


@pytest.mark.parametrize("package", PACKAGES, ids=in_package)
def test_a_package_is_small_and_lists_its_modules(package: Path) -> None:
    modules = {p.stem for p in package.glob("*.py")} - {"__init__"}
    assert len(modules) <= MOST_MODULES
    listed = {
        line.split()[0]
        for line in docstring(package).splitlines()
        if line.startswith("    ") and line[4] != " "
    }
    assert listed == modules | {p.parent.name for p in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", PACKAGES, ids=in_package)
def test_a_package_says_what_it_must_not_do(package: Path) -> None:
    """In a sentence of its own, after the one that says what the package is for."""
    prose = [line for line in docstring(package).splitlines() if not line.startswith("    ")]
    _, *others = re.split(r"\.\s", " ".join(prose) + " ")
    assert any(LIMIT.search(sentence) for sentence in others), others


def test_one_word_for_one_thing() -> None:
    """No two modules have a public class of the same name."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(in_package(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
