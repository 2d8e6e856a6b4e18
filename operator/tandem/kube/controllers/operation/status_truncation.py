"""Keeps a status small, and such that the API server gives back what it was given: an object in
a cluster is sent to everybody who watches it.

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
_MOST = 2**63 - 1


def truncated_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` with lists of names cut, and without what repeats them. Whoever writes a table's
    log decides on names and numbers: of those no more is told than JSON and int64 can hold."""
    short = dict(status)
    if isinstance(plan := short.get("plan"), Mapping):
        short["plan"] = {k: _cut(v) for k, v in plan.items() if k not in _OMITTED}
    if isinstance(result := short.get("result"), Mapping):
        result = {key: _cut(value) for key, value in result.items()}
        if isinstance(reconciled := result.get("reconciled"), Mapping):
            result["reconciled"] = {key: _cut(value) for key, value in reconciled.items()}
        short["result"] = result
    return {key: _sayable(value) for key, value in short.items()}


def _sayable(value: Any) -> Any:
    kind = type(value)
    if kind is dict:  # what nearly everything is, asked first: every status comes through here
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, str):
        # Half a surrogate pair would come back as another character.
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MOST, min(value, _MOST))
    if isinstance(value, Mapping):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in value]
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return [*value[:LONGEST_LIST], f"… and {len(value) - LONGEST_LIST} more"]
    if isinstance(value, Mapping) and len(value) > LONGEST_LIST:
        # Segment → count: the largest say most.
        largest = sorted(value, key=lambda key: (-value[key], key))[:LONGEST_LIST]
        return {key: value[key] for key in largest}
    return value
