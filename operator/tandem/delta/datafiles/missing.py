"""The errors for a file that a version refers to and the store does not have, or that cannot be
read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.delta.datafiles.page_walk import PageDamaged
from tandem.errors import DataFileEncrypted, DataFileMissing, StorageError


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


def unreadable(path: str, error: Exception, names: Mapping[str, str] | None = None) -> StorageError:
    """The error for a data file that pyarrow refuses, by its error.

    Args:
        names: the columns' names in the table by those in the file, where they differ.
    """
    if isinstance(error, PageDamaged):
        column, *inner = error.column.split(".")
        return StorageError(
            "a page of a data file does not match its checksum",
            resource=path,
            field=".".join([(names or {}).get(column, column), *inner]),
            found=f"{error.page}: CRC-32 {error.found}",
            expected=f"{error.expected}, as its header says",
            remedy="Restore the file from a copy of the store, or the table to a version without "
            "it",
        )
    found = " ".join(str(error).split())[:300]
    if "encrypted" in found:
        return DataFileEncrypted(
            "a data file is encrypted, and Tandem has no keys",
            resource=path,
            found=found,
            expected="a Parquet file without encryption",
            remedy="Write the rows again without encryption, or restore the table to a version "
            "without the file",
        )
    return StorageError(
        "a data file cannot be read",
        resource=path,
        found=found,
        expected="a Parquet file that fits the table's schema",
        remedy="Restore the file, or the table to a version without it",
    )
