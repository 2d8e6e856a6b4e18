"""What a resource asks for beside its table, in words for a plan. Pure.

Read from the spec as it was typed, or as the API server has it: `tandem plan` and
`kubectl tandem plan` say the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_CLAUSE = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`| (?=WHEN (?:NOT )?MATCHED)", re.DOTALL)


def lines_of(kind: str, spec: Mapping[str, Any], *, source_now: str = "") -> list[tuple[str, str]]:
    """Names and values: the layout of a compaction, what a SegmentRewrite does to files, the
    source of a merge or an ingest. `source_now` is what was seen of the source, "" if nobody
    looked."""
    if kind == "TableCompaction":
        return [("layout", _layout(spec.get("layout") or {}))]
    if kind == "SegmentRewrite":
        return [("rewrite", _rewrite(spec.get("rewrite") or {}))]
    _, source = source_of(spec)
    if not source:
        return []
    now = f"; {source_now}" if source_now else ""
    return [("source", f"{_source(source)}{now}")]


def source_of(spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Where the source of a merge or an ingest stands, and the source; {} for none."""
    if spec.get("merge"):
        return "spec.merge.source", spec["merge"].get("source") or {}
    return "spec.source", spec.get("source") or {}


def clause_by_clause(statement: str) -> str:
    """A canonical statement with every clause of a merge on a line of its own."""
    return _CLAUSE.sub(lambda found: "\n" if found[0] == " " else found[0], statement)


def _layout(layout: Mapping[str, Any]) -> str:
    strategy = layout.get("strategy") or "BinPack"
    if strategy == "BinPack":
        return "BinPack: rows keep their order"
    return f"{strategy} by {_listed(layout.get('columns') or ())}"


def _rewrite(wish: Mapping[str, Any]) -> str:
    found = []
    if wish.get("purgeDeleted"):
        found.append("purge deleted rows")
    if recompress := wish.get("recompress"):
        level = recompress.get("level")
        at = f", level {level}" if level is not None else ""
        found.append(f"recompress with {recompress.get('codec')}{at}")
    if wish.get("sortBy"):
        found.append(f"sort by {_listed(wish['sortBy'])}")
    return "; ".join(found)


def _source(source: Mapping[str, Any]) -> str:
    told = f"{source.get('format')} {source.get('location')}"
    if source.get("format") != "Delta":
        return told
    version = source.get("version")
    return f"{told}, version {version}" if version is not None else f"{told}, its latest version"


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names))
