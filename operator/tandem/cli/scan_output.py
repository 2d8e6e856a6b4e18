"""The output formats of `tandem scan`."""

from __future__ import annotations

from enum import StrEnum


class ScanOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    ARROW = "arrow"
