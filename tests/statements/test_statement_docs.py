"""docs/statements.md and the tables in the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.statements.rows import SCHEMA
from tandem.errors import InvalidStatement
from tandem.spark.runtime.session import session_conf
from tandem.statements import coercion, parse_expression
from tandem.statements.functions import ALIASES, FUNCTIONS, KINDS
from tandem.statements.types import CAST_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "statements.md").read_text(encoding="utf-8")


def function_rows() -> list[str]:
    """The rows of the table of functions, as the page must have them."""
    rows = []
    for name, row in FUNCTIONS.items():
        kinds = [KINDS[kind].about for kind in row.takes]
        if row.most > len(kinds):
            kinds[-1] += " …"
        optional = f" (the last {row.most - row.least} optional)" if _has_optional(name) else ""
        others = ", ".join(f"`{alias}`" for alias, of in ALIASES.items() if of == name)
        answer = row.about if row.deterministic else f"{row.about}; not deterministic"
        rows.append(f"| `{name}` | {'; '.join(kinds)}{optional} | {answer} | {others} |")
    return rows


def _has_optional(name: str) -> bool:
    row = FUNCTIONS[name]
    return row.least < row.most == len(row.takes)


def test_the_page_lists_the_functions() -> None:
    found = [line for line in PAGE.splitlines() if line.startswith("| `")]
    expected = function_rows()
    assert [line for line in found if line in set(expected)] == expected


def test_the_page_lists_types_limits_and_settings() -> None:
    for name in (*CAST_NAMES, "decimal(p, s)"):
        assert f"`{name}`" in PAGE
    for key, value in session_conf().items():
        assert f"`{key}={value}`" in PAGE
    for limit in (coercion.MAX_TEXT, coercion.MAX_NODES, coercion.MAX_NESTING, coercion.MAX_DEPTH,
                  coercion.MAX_IN_LIST, coercion.MAX_STRING, coercion.MAX_PATTERN):  # fmt: skip
        assert f"{limit:,}" in PAGE


def _examples(title: str) -> list[str]:
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    block = re.findall(r"```sql\n(.*?)```", section, re.S)
    return [line for text in block for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("text", _examples("Accepted"))
def test_examples_are_accepted(text: str) -> None:
    parse_expression(text, SCHEMA, resource="docs", field="example")


@pytest.mark.parametrize("text", _examples("Refused"))
def test_counter_examples_are_refused(text: str) -> None:
    with pytest.raises(InvalidStatement):
        parse_expression(text, SCHEMA, resource="docs", field="example")
