"""The error for a file that a version refers to and the store does not have. No I/O."""

from __future__ import annotations

from tandem.errors import DataFileMissing


def missing(
    path: str, message: str = "a data file listed in the log does not exist", *, field: str = ""
) -> DataFileMissing:
    """The error for a data file that is gone. A vacuum may have deleted a file of an older
    version: an attempt that plans again, with the latest version, may not need it."""
    return DataFileMissing(
        message,
        resource=path,
        field=field,
        found="no such object",
        expected="the file: a version refers to it",
        remedy="Was the table vacuumed with too short a retention? Restore the file, or restore "
        "the table to a version that does not need it",
    )
