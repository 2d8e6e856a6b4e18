#!/usr/bin/env python3
"""Code lines and modules by package, against the budget in `size_budget.toml`.

    tools/size_budget.py [--lower]

Writes a table, and exits with 1 if a package has outgrown its budget. A code line is one that
holds more than a comment or a part of a docstring. With --lower, budgets shrink to what is there,
in steps of 100 lines; to raise one, edit the file, and say why in the commit.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = Path(__file__).with_name("size_budget.toml")
TREES = {"tandem": ROOT / "operator" / "tandem", "tests": ROOT / "tests"}
"""What is counted by package; `tests` as a whole."""
_STEP = 100
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines of `source` that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that is a statement: a docstring, also one below a constant.
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            assert node.end_lineno is not None
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def count() -> dict[str, tuple[int, int]]:
    """Code lines and modules by package: "tandem", each "tandem.name", and "tests"."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for tree, folder in TREES.items():
        for path in folder.rglob("*.py"):
            below = path.relative_to(folder).parts
            parts = {tree}
            if tree == "tandem" and len(below) > 1:
                parts.add(f"{tree}.{below[0]}")
            size = code_lines(path.read_text(encoding="utf-8"))
            for package in parts:
                lines[package] += size
                modules[package] += 1
    return {package: (lines[package], modules[package]) for package in sorted(lines)}


def outgrown(found: dict[str, tuple[int, int]], budget: dict[str, tuple[int, int]]) -> list[str]:
    """What is larger than its budget allows, or has none, in words."""
    problems = []
    for package, sizes in found.items():
        if package not in budget:
            problems.append(f"{package}: no budget in {BUDGET.name}")
            continue
        for size, allowed, what in zip(
            sizes, budget[package], ("code lines", "modules"), strict=True
        ):
            if size > allowed:
                problems.append(f"{package}: {size:,} {what}, {allowed:,} allowed")
    problems += [
        f"{package}: has a budget, and is not there" for package in budget.keys() - found.keys()
    ]
    return sorted(problems)


def read_budget() -> dict[str, tuple[int, int]]:
    """Allowed code lines and modules by package, as in `count`."""
    tables = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["packages"]
    return {package: (entry[0], entry[1]) for package, entry in tables.items()}


def written(budget: dict[str, tuple[int, int]]) -> str:
    """The budget as a file."""
    head = "# Code lines and modules that a package may have: tools/size_budget.py.\n[packages]\n"
    return head + "".join(
        f'"{name}" = [{size}, {count}]\n' for name, (size, count) in budget.items()
    )


def main(arguments: list[str]) -> int:
    found = count()
    if "--lower" in arguments:
        budget = read_budget()
        lowered = {}
        for package, (lines, modules) in found.items():
            rounded = -(-lines // _STEP) * _STEP
            allowed = budget.get(package, (rounded, modules))
            lowered[package] = (min(rounded, allowed[0]), min(modules, allowed[1]))
        BUDGET.write_text(written(lowered), encoding="utf-8")
    budget = read_budget()
    out = sys.stdout.write
    out(f"{'package':24}{'code lines':>12}{'allowed':>10}{'modules':>10}{'allowed':>10}\n")
    for package, (lines, modules) in found.items():
        most = budget.get(package, (0, 0))
        out(f"{package:24}{lines:12,}{most[0]:10,}{modules:10,}{most[1]:10,}\n")
    problems = outgrown(found, budget)
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
