"""The files at a source's location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from tandem.delta.datafiles.page_walk import PageDamaged
from tandem.delta.datafiles.schema_mismatch import SchemaMismatch
from tandem.errors import InvalidSpec, ObjectNotFound, SourceUnreadable, StorageError
from tandem.spark.runtime.hive_folders import FolderColumn, HiveFolders, hive_folders
from tandem.storage import ObjectInfo, Store, open_store
from tandem.storage.paths import canonical_location, split_location

_NEVER_EMPTY = (".parquet", ".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class ListedSource:
    """An opened source: its files at the time of listing, in order of path, and the columns in the
    names of their folders."""

    store: Store
    options: Mapping[str, str]
    files: tuple[ObjectInfo, ...]
    folders: HiveFolders = field(default_factory=HiveFolders)

    def folder_columns(self, table: Mapping[str, Any]) -> tuple[FolderColumn, ...]:
        """See `HiveFolders.columns`."""
        return self.folders.columns(table, len(self.files))


def list_source(location: str, options: Mapping[str, str], *, field: str) -> ListedSource:
    """List the files at a location, which is a file or a folder. Names that begin with `_` or `.`
    are left out, except folders such as `_p=1`, as in Spark.

    Args:
        options: options of the source's store.
        field: the field of the resource that has the location.
    Raises: InvalidSpec if there is nothing, or folders of partitions that do not agree;
        SourceUnreadable; StorageError.
    """
    root, source = canonical_location(location, field=field), field.removesuffix(".location")
    parent, _, name = root.rpartition("/")
    if name and urlsplit(root).path.strip("/"):
        # The root of a local disk is not a URL that ends in a slash.
        store = open_store(parent if not parent.endswith("//") else f"{parent}/", options)
        above, _, decoded = split_location(root)[2].rpartition("/")
        try:
            found = store.head(decoded)
        except ObjectNotFound:
            pass  # it is a folder
        else:
            folders = hive_folders([decoded], above, location=location, field=source)
            return ListedSource(store, options, (found,), folders)
    store = open_store(root, options)
    shown = [
        meta
        for meta in store.list("")
        if not any(
            part.startswith(".") or (part.startswith("_") and "=" not in part)
            for part in meta.path.split("/")
        )
    ]
    for meta in shown:
        if not meta.size and meta.path.endswith(_NEVER_EMPTY):
            raise SourceUnreadable(
                "a file of the source is empty, which is not valid in its format",
                resource=meta.path,
                found="0 bytes",
                expected="a whole file",
                remedy="Write the file again, or remove it",
            )
    files = tuple(meta for meta in shown if meta.size)
    if not files:
        raise InvalidSpec(
            "the source does not exist or is empty",
            field=field,
            found=f"no files at {location}",
            expected="a file, or a folder of files",
            remedy="Correct the location",
        )
    paths = [meta.path for meta in files]
    folders = hive_folders(paths, split_location(root)[2], location=location, field=source)
    return ListedSource(store, options, files, folders)


def check_unique_names(names: Sequence[str], location: str) -> None:
    """Check that no two columns differ only in case. Raises: InvalidSpec."""
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        raise InvalidSpec(
            "a column occurs twice in the source",
            resource=location,
            found=", ".join(twice),
            expected="names that differ in more than their case",
        )


def decoding_error(error: StorageError) -> SourceUnreadable | None:
    """The error for a source's file that cannot be decoded; None if the store failed, where a
    retry may succeed."""
    if isinstance(error.__cause__, SchemaMismatch):
        return SourceUnreadable(
            "a column of the source cannot be read exactly",
            resource=error.resource,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy="Correct the column in the source",
        )
    if isinstance(error.__cause__, PageDamaged):
        return SourceUnreadable(
            "a page of a file of the source does not match its checksum",
            resource=error.resource,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy="Write the file again",
        )
    if not isinstance(error.__cause__, pa.ArrowInvalid | pa.ArrowNotImplementedError | OSError):
        return None
    return SourceUnreadable(
        "a file of the source is damaged, truncated, or not a Parquet file",
        resource=error.resource,
        found=" ".join(error.found.split()),
        expected="a whole Parquet file",
        remedy="Write the file again",
    )
