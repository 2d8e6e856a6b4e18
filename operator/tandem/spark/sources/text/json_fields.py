"""The fields of JSON lines and their types, where reading them without Spark leaves no doubt. Pure.

It must not guess: what it says decides whether a job is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

Inferred = Literal["boolean", "long", "double", "string", ""]
"""The type that Spark infers for a field; "": in doubt."""
_MOST_CHARACTERS = 8 << 20


def fields_of(texts: Iterable[str]) -> dict[str, Inferred] | None:
    """The fields of all objects, one a line; none if there is no object.

    Args:
        texts: whole lines.
    Returns:
        None if this cannot be said: the text is large, a line is no object or is malformed (which
        is for the job to report, with its place), or an object has a field twice.
    """
    found: dict[str, set[str]] = {}
    length = 0
    for text in texts:
        length += len(text)
        if length > _MOST_CHARACTERS:
            return None
        for line in text.split("\n"):
            if not line.strip():
                continue
            try:
                value = json.loads(line, object_pairs_hook=_once, parse_constant=_refuse)
            except (ValueError, RecursionError):
                return None
            if not isinstance(value, dict):
                return None
            for name, of in value.items():
                found.setdefault(name, set()).add(_kind(of))
    return {name: _type(kinds) for name, kinds in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len({name.lower() for name in value}) < len(pairs):
        raise ValueError("a field twice")
    return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "long" if -(1 << 63) <= value < 1 << 63 else "other"
        case float():
            return "double"
        case str():
            return "string"
        case _:
            return "other"


def _type(kinds: set[str]) -> Inferred:
    match sorted(kinds - {"null"}):
        case ["boolean"]:
            return "boolean"
        case ["long"]:
            return "long"
        case ["double"] | ["double", "long"]:
            return "double"
        case ["string"]:
            return "string"
        case _:
            return ""
