"""Keeps a status small, and such that the API server returns it unchanged: an object in a cluster
is sent to all of its watchers.

A plan over ten thousand segments would be a megabyte in every event, and more than etcd takes.
What is left out is under the table's `_tandem/`, and `tandem plan` prints it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST_LIST = 40
"""A list holds at most so many names, and then the number of the others."""
_OMITTED = ("steps", "locks")
"""Fields of a plan: how its runs were found, and its locks, which repeat the segments."""
_MOST = 2**63 - 1


def truncated_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` with lists of names cut, and without what repeats them. The writers of a table's
    log choose names and numbers, so those are limited to what JSON and int64 can hold."""
    short = dict(status)
    if isinstance(plan := short.get("plan"), Mapping):
        short["plan"] = {k: _cut(v) for k, v in plan.items() if k not in _OMITTED}
    if isinstance(result := short.get("result"), Mapping):
        result = {key: _cut(value) for key, value in result.items()}
        if isinstance(reconciled := result.get("reconciled"), Mapping):
            result["reconciled"] = {key: _cut(value) for key, value in reconciled.items()}
        short["result"] = result
    return {key: _representable(value) for key, value in short.items()}


def _representable(value: Any) -> Any:
    kind = type(value)  # every status comes through here: the common kinds first
    if kind is dict:
        return {_representable(key): _representable(item) for key, item in value.items()}
    if kind is bool or value is None:
        return value
    if isinstance(value, str):
        # Half a surrogate pair would come back as another character.
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MOST, min(value, _MOST))
    if isinstance(value, Mapping):
        return {_representable(key): _representable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_representable(item) for item in value]
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return [*value[:LONGEST_LIST], f"… and {len(value) - LONGEST_LIST} more"]
    if isinstance(value, Mapping) and len(value) > LONGEST_LIST:
        # Segment → count: keep the largest.
        largest = sorted(value, key=lambda key: (-value[key], key))[:LONGEST_LIST]
        return {key: value[key] for key in largest}
    return value
