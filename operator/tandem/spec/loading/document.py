"""A document of a file of resources. Must not know YAML, whose import takes a while."""

from __future__ import annotations

from typing import Any

from tandem.spec.problems import FieldPath


class Document:
    """One YAML document: its data, and where in which file every path of it stands."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.data: Any = None
        self.lines: dict[FieldPath, str] = {}
