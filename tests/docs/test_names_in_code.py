"""Comments and docstrings name modules, and names in modules, that are there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "tandem"
TREES = (PACKAGE, ROOT / "spark_apps", ROOT / "tools")
PATHS = [path.as_posix() for tree in ("operator", "spark_apps", "tools", "tests", "benchmarks",
         "examples") for path in (ROOT / tree).rglob("*.py")]  # fmt: skip
_QUOTED = re.compile(r"`([\w./]+)`")
_OTHERS = re.compile(
    r"spec\.|.*\.[a-z]+[A-Z]\w*$|delta\.parquet\."
    r"|spark\.(local|driver|executor|sql|kubernetes)\.|spark\.files$|tandem\.(parents|masked|segments)$"
)
"""What begins like a package of ours, but is a field, a setting of Spark or Delta, or a tag."""


def texts(source: str) -> list[str]:
    """The comments and strings of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING)]


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines; of a package, also what it imports and exports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.alias() if path.name == "__init__.py":
                found.add(node.asname or node.name)
            case ast.Constant(value=str(text)) if path.name == "__init__.py":
                found.add(text)
    return frozenset(found)


def resolves(parts: list[str], folder: Path) -> bool:
    """Whether a dotted path below a package leads to a module, or to a name in one."""
    for number, part in enumerate(parts):
        if (folder / part).is_dir():
            folder /= part
            continue
        file = folder / f"{part}.py"
        if file.exists():
            return set(parts[number + 1 :]) <= names_in(file)
        return set(parts[number:]) <= names_in(folder / "__init__.py")
    return True


def missing(path: Path) -> list[str]:
    found = []
    for text in texts(path.read_text()):
        for name in _QUOTED.findall(text):
            parts = name.split(".")
            if name.endswith(".py"):
                good = any(each.endswith(f"/{name}") for each in PATHS)
            elif "/" in name or _OTHERS.match(name):
                continue
            elif parts[0] == "tandem" and len(parts) > 1:
                good = resolves(parts[1:], PACKAGE)
            elif len(parts) > 1 and (PACKAGE / parts[0]).is_dir():
                good = resolves(parts, PACKAGE) or (path.parent / parts[0]).exists()
            else:
                continue
            if not good:
                found.append(name)
    return found


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_a_name_in_backticks_is_there(tree: Path) -> None:
    stale = {
        path.relative_to(ROOT).as_posix(): names
        for path in sorted(tree.rglob("*.py"))
        if (names := missing(path))
    }
    assert not stale
