"""Reads the API server's JSON at any depth.

A user who may create an object in one namespace may nest it ten thousand levels deep where its
schema is open (`sparkTemplate`, a pod's template). Python's JSON decoder fails at a thousand: then
a watch ends, and the operator stops working for all namespaces. Values below any plausible depth
are cut off here, so that no later code has to walk them; the spec's model refuses the rest.

The text is cut before it is decoded. A decoder that runs into the limit of recursion, or runs with
a higher one, may end the process: what the garbage collector calls meanwhile cannot recover.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np

MOST_LEVELS: Final = 150
"""Deeper than any known object, including schemas."""
CUT: Final = "(cut off: nested too deeply)"

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_OPEN, _BRACKETS = b"{[", b"{}[]"
_ALL_ELSE = bytes(sorted({*range(256)} - {*_BRACKETS}))


def loads(text: str | bytes, most: int = MOST_LEVELS) -> Any:
    """Like `json.loads`, with `CUT` in place of objects and arrays on more than `most` levels."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"{") + data.count(b"[") > most and _levels(data) > most:
        return json.loads(_cut(data, most))
    return json.loads(text)


def _levels(data: bytes) -> int:
    brackets = np.frombuffer(_STRINGS.sub(b"", data).translate(None, _ALL_ELSE), np.uint8)
    opens = (brackets == _OPEN[0]) | (brackets == _OPEN[1])
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))


def _cut(data: bytes, most: int) -> bytes:
    parts: list[bytes] = []
    level = begin = 0
    for token in _TOKENS.finditer(data):
        if token[0] in (b"{", b"["):
            level += 1
            if level == most + 1:
                parts.append(data[begin : token.start()])
        elif token[0] in (b"}", b"]"):
            level -= 1
            if level == most:
                parts.append(json.dumps(CUT).encode())
                begin = token.end()
    if level <= most:  # else it ends within what was cut off, and is no JSON
        parts.append(data[begin:])
    return b"".join(parts)
