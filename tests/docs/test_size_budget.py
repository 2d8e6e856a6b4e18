"""The budget of code lines (tools/size_budget.py)."""

from __future__ import annotations

import size_budget

SOURCE = '''"""A docstring
of two lines."""

# A comment.
LIMIT = 3  # counts once
"""What it is."""


def f(
    x: int,
) -> str:
    """Docstring."""
    text = """two
lines"""
    return text
'''


def test_comments_docstrings_and_blanks_are_no_code() -> None:
    assert size_budget.code_lines(SOURCE) == 7
    assert size_budget.code_lines("") == 0


def test_a_package_that_outgrew_its_budget_is_named() -> None:
    found = {"tandem": (10, 2), "tandem.a": (4, 2), "tandem.b": (6, 1)}
    budget = {"tandem": (10, 2), "tandem.a": (3, 1), "tandem.gone": (1, 1)}
    assert size_budget.outgrown(found, budget) == [
        "tandem.a: 2 modules, 1 allowed",
        "tandem.a: 4 code lines, 3 allowed",
        "tandem.b: no budget in size_budget.toml",
        "tandem.gone: has a budget, and is not there",
    ]


def test_the_file_is_read_as_it_is_written() -> None:
    assert size_budget.BUDGET.read_text() == size_budget.written(size_budget.read_budget())
    assert {"tandem", "tandem.delta", "tests"} <= size_budget.read_budget().keys()
