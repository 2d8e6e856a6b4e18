"""LIKE over Arrow strings, for patterns that `statements.parsing.patterns` accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.statements.local.kernels import characters


def like(pattern: str, escape: str) -> Callable[[Any], Any]:
    """A test of strings with the semantics of Spark's LIKE: % matches any text, including line
    breaks, _ any single character, and both match themselves after the escape character. The test
    raises pa.ArrowInvalid for bytes that are not UTF-8 if characters matter."""
    parts = _parts(pattern, escape)
    if "_" not in [part for part, literal in parts if not literal]:
        wild = [not literal for _, literal in parts]
        text = "".join(part for part, literal in parts if literal)
        if not any(wild):
            return lambda value: pc.equal(value, pa.scalar(text))
        if wild == [False, True]:
            return lambda value: pc.starts_with(value, text)
        if wild == [True, False]:
            return lambda value: pc.ends_with(value, text)
        if wild == [True, False, True]:
            return lambda value: pc.match_substring(value, text)
    regex = "".join(_quoted(part) if literal else _WILD[part] for part, literal in parts)
    whole = rf"(?s)\A(?:{regex})\z"
    return lambda value: pc.match_substring_regex(characters(value), whole)


_WILD = {"%": ".*", "_": "."}


def _parts(pattern: str, escape: str) -> list[tuple[str, bool]]:
    """Each wildcard separately, and the literal texts between them (True)."""
    parts: list[tuple[str, bool]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        literal = char == escape or char not in _WILD
        if char == escape:
            at += 1
            char = pattern[at]
        if literal and parts and parts[-1][1]:
            parts[-1] = (parts[-1][0] + char, True)
        else:
            parts.append((char, literal))
        at += 1
    return parts


def _quoted(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):X}}}" for c in text)
