"""Reads the API server's JSON at any depth.

A user who may create an object in one namespace may nest it ten thousand levels deep where its
schema is open (`sparkTemplate`, a pod's template). Python's JSON decoder fails at a thousand: then
a watch ends, and the operator stops working for all namespaces. Values below any plausible depth
are cut off here, so that no later code has to walk them; the spec's model refuses the rest.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

MOST_LEVELS: Final = 150
"""Deeper than any known object, including schemas."""
CUT: Final = "(cut off: nested too deeply)"
_API_SERVERS_LEVELS = 11_000
"""The API server accepts 10,000; a watch and a list add a few."""


def loads(text: str | bytes) -> Any:
    """Like `json.loads`, with `CUT` in place of values deeper than `MOST_LEVELS`."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = _loads_deep(text)
    if _openings(text) <= MOST_LEVELS:
        return found
    level = [found]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return found
    for outer in level:
        for key, inner in list(outer.items() if isinstance(outer, dict) else enumerate(outer)):
            if isinstance(inner, dict | list):
                outer[key] = CUT
    return found


def _openings(text: str | bytes) -> int:
    """An upper bound of the number of levels."""
    if isinstance(text, str):
        return text.count("{") + text.count("[")
    return text.count(b"{") + text.count(b"[")


def _inside(outer: Any) -> list[Any]:
    values = outer.values() if type(outer) is dict else outer if type(outer) is list else ()
    return [value for value in values if type(value) is dict or type(value) is list]


def _loads_deep(text: str | bytes) -> Any:
    # No other thread runs meanwhile: the decoder is in C and holds the GIL. If it were permanent,
    # such a limit would turn errors into crashes.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _API_SERVERS_LEVELS))
    try:
        return json.loads(text)
    finally:
        sys.setrecursionlimit(limit)
