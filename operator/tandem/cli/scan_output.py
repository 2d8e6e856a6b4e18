"""The forms in which `tandem scan` prints rows."""

from __future__ import annotations

from enum import StrEnum


class ScanOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    ARROW = "arrow"
