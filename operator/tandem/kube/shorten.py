"""Keeps a status small: an object in a cluster is sent to everybody who watches it.

A plan over ten thousand segments would be a megabyte in every event, and more than etcd takes.
What is left out is under the table's `_tandem/`, and `tandem plan` prints it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST_LIST = 40
"""So many names are told; then how many more there are."""
_OMITTED = ("steps", "locks")
"""Of a plan: how its runs came about, and what it locks, which are the segments once more."""


def shortened(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` with lists of names cut, and without what repeats them."""
    short = dict(status)
    if isinstance(plan := short.get("plan"), Mapping):
        short["plan"] = {k: _cut(v) for k, v in plan.items() if k not in _OMITTED}
    if isinstance(result := short.get("result"), Mapping):
        result = {key: _cut(value) for key, value in result.items()}
        if isinstance(reconciled := result.get("reconciled"), Mapping):
            result["reconciled"] = {key: _cut(value) for key, value in reconciled.items()}
        short["result"] = result
    return short


def _cut(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return [*value[:LONGEST_LIST], f"… and {len(value) - LONGEST_LIST} more"]
    if isinstance(value, Mapping) and len(value) > LONGEST_LIST:
        # Segment → count: the largest say most.
        largest = sorted(value, key=lambda key: (-value[key], key))[:LONGEST_LIST]
        return {key: value[key] for key in largest}
    return value
