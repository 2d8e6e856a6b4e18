"""A short description of a resource's spec, without its table, for a plan. Pure.

Made from the spec as typed, or as the API server has it: `tandem plan` and `kubectl tandem plan`
print the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tandem.spec.common import OPERATIONS

_CLAUSE = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`| (?=WHEN (?:NOT )?MATCHED)", re.DOTALL)


def lines_of(kind: str, spec: Mapping[str, Any], *, source_now: str = "") -> list[tuple[str, str]]:
    """Names and values: what the kind prints of its spec, and the source. `source_now` is a
    summary of the source as it is now, "" if there is none."""
    model = OPERATIONS[kind]
    _, source = model.source_in(spec)
    if not source:
        return model.plan_lines(spec)
    now = f"; {source_now}" if source_now else ""
    return [*model.plan_lines(spec), ("source", f"{_source(source)}{now}")]


def clause_by_clause(statement: str) -> str:
    """A canonical statement with every clause of a merge on a line of its own."""
    return _CLAUSE.sub(lambda found: "\n" if found[0] == " " else found[0], statement)


def _source(source: Mapping[str, Any]) -> str:
    summary = f"{source.get('format')} {source.get('location')}"
    if source.get("format") != "Delta":
        return summary
    version = source.get("version")
    which = f"version {version}" if version is not None else "its latest version"
    return f"{summary}, {which}"
