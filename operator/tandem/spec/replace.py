"""`TableReplace`: replace intervals, partitions or segments of a table from a source, or drop
them."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    AT_START = "AtStart"
    AT_COMMIT = "AtCommit"
