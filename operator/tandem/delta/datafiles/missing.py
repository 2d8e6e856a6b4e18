"""The errors for a file that a version refers to and the store does not have, or that cannot be
read. No I/O."""

from __future__ import annotations

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


def unreadable(path: str, error: Exception) -> StorageError:
    """The error for a data file that pyarrow refuses, by its error."""
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
