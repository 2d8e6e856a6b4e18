"""The change data feed of a table: what a change file is (protocol, "Add CDC File" and "Change Data
Files").

A change file holds rows that a commit removed or added, in full, each with the type of its change.
If a commit names any, readers take its changes from these alone. Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tandem.delta.schema import Field, PrimitiveType

FOLDER: Final = "_change_data"
"""Of the change files of all writers."""
CHANGE_TYPE: Final = Field("_change_type", PrimitiveType("string"))
"""The column of change files after those of the table."""
RESERVED: Final = frozenset({CHANGE_TYPE.name, "_commit_version", "_commit_timestamp"})
"""Columns of a feed, in lower case, that its table cannot have."""


class ChangeType(StrEnum):
    """What became of the rows of a change file. An update has both images of each row."""

    DELETE = "delete"
    INSERT = "insert"
    BEFORE = "update_preimage"
    AFTER = "update_postimage"


def folder_of(data_prefix: str) -> str:
    """The folder of the change files of an attempt whose data files are below a folder."""
    return f"{FOLDER}/tandem-{data_prefix}"
