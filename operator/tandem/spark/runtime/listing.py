"""The files at a source's location, and their partition columns: `year=2024/month=01/x.csv`.

The rules for columns in names of folders are Spark's (`PartitioningUtils.parsePartitions`): folders
below the location are columns of all files, and what a file has under such a name is not read.
Unlike Spark, which reads no folder of the location itself, a column that the table has and a file
lacks is taken from there, so that `…/year=2024` and `…` give the same rows. A value has the type of
the table's column; a text that is no value of it is refused.

Of Parquet files of a source, footers are read for their schemas, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta.datafiles.conform import SchemaMismatch, is_array
from tandem.delta.datafiles.pages import PageDamaged
from tandem.delta.partitions import NULL_PARTITION, partition_texts, to_scalar
from tandem.delta.schema import PrimitiveType
from tandem.errors import (
    CorruptLog,
    InvalidSpec,
    ObjectNotFound,
    SourceUnreadable,
    StatementFailed,
    StorageError,
)
from tandem.storage import ObjectInfo, Store, open_store
from tandem.storage.paths import canonical_location, split_location

_NEVER_EMPTY = (".parquet", ".gz", ".bz2", ".zst")
STRING: Final = "string"
"""The type of a column that the table lacks, as in a CSV file."""

_DAY = r"[+-]?\d{4,6}-\d{1,2}-\d{1,2}"
_CLOCK = r"[ T]\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?"
_EXACT: Final[Mapping[str, str]] = {
    "date": rf"{_DAY}([ T]00:00(:00(\.0+)?)?)?",
    "timestamp": rf"{_DAY}({_CLOCK}(Z|[+-]\d\d:?\d\d)?)?",
    "timestamp_ntz": rf"{_DAY}({_CLOCK})?",
}
"""Texts of which nothing is dropped."""


@dataclass(frozen=True)
class FolderColumn:
    """A column in names of folders. `type` is Delta's name of its type, or the body of a nested
    one; `texts` are of the files, in their order, None for NULL. `overrides`: whatever the files
    have under this name, which is only so for folders below the location."""

    name: str
    type: Any
    texts: tuple[str | None, ...]
    overrides: bool

    def text(self, file: int, path: str) -> str | None:
        """The value of a file as the log of a table has it. Raises: StatementFailed if it is none
        of the column's type."""
        text = self.texts[file]
        if text is None or self.type == STRING:
            return text
        try:
            if not re.fullmatch(_EXACT.get(self.type, ".*"), text, re.DOTALL):
                raise ValueError(text)
            value = to_scalar(text, PrimitiveType(self.type))
            return partition_texts(pa.repeat(value, 1))[0]
        except (CorruptLog, TypeError, ValueError, KeyError, pa.ArrowException) as error:
            raise StatementFailed(
                "the name of a folder is no value of its column",
                resource=path,
                field=self.name,
                found=text[:100],
                expected=f"a value of type {self.type}",
                remedy="Rename the folder, or change the type of the column",
            ) from error


@dataclass(frozen=True)
class HiveFolders:
    """`names` are those of folders below the location, the same for all files, and `values` theirs
    by file; `above` are the folders of the location itself."""

    names: tuple[str, ...] = ()
    values: tuple[tuple[str | None, ...], ...] = ()
    above: Mapping[str, str | None] = field(default_factory=dict)

    def columns(self, table: Mapping[str, Any], files: int) -> tuple[FolderColumn, ...]:
        """The columns of so many files.

        Args:
            table: the columns that rows are for, with their types as `FolderColumn.type`.
        """
        known = {name.lower(): (name, type_) for name, type_ in table.items()}
        below = [
            FolderColumn(*known.get(name.lower(), (name, STRING)), texts, overrides=True)
            for name, texts in zip(self.names, zip(*self.values, strict=True), strict=True)
        ]
        taken = {name.lower() for name in self.names}
        above = [
            FolderColumn(*known[name.lower()], (text,) * files, overrides=False)
            for name, text in self.above.items()
            if name.lower() in known and name.lower() not in taken
        ]
        return (*below, *above)


def types_in(schema_string: str) -> dict[str, Any]:
    """Column → type, as `FolderColumn.type`, of a schema as Delta or Spark writes it."""
    return {each["name"]: each["type"] for each in json.loads(schema_string)["fields"]}


def lacking(columns: Iterable[FolderColumn], names: Collection[str]) -> list[FolderColumn]:
    """Those that a file takes from its folders, if it has columns of these names itself."""
    own = {name.lower() for name in names}
    return [c for c in columns if c.overrides or c.name.lower() not in own]


def hive_folders(paths: Sequence[str], above: str, *, location: str, field: str) -> HiveFolders:
    """The partition columns of the files of a source.

    Args:
        paths: below the location.
        above: the path of the location, or of the folder that it is a file of.
        field: the field of the resource that describes the source.
    Raises: InvalidSpec for folders that Spark refuses, too, or of which it reads only some.
    """

    def refused(found: str, expected: str) -> InvalidSpec:
        return InvalidSpec(
            "the folders of the source do not agree on their partition columns",
            field=field,
            found=f"{found} in {location}",
            expected=expected,
            remedy="Move the files that do not belong to it out of the folder",
        )

    first: tuple[str, tuple[str, ...]] | None = None
    values: list[tuple[str | None, ...]] = []
    for path in paths:
        base, found = _split(path.split("/")[:-1])
        names = tuple(name for name, _ in found)
        if "=" in base or any("" in folder for folder in found):
            raise refused(path, "folders NAME=VALUE in UTF-8, one below the other")
        if len({name.lower() for name in names}) < len(names):
            raise refused(path, "each name once")
        first = first or (base, names)
        if first != (base, names):
            expected = "/".join(filter(None, (first[0], *(f"{name}=…" for name in first[1]))))
            raise refused(path, f"as in {paths[0]}: {expected or 'no such folder'}")
        values.append(tuple(text for _, text in found))
    own = dict(folder for folder in _split(above.split("/"))[1] if "" not in folder)
    return HiveFolders(first[1] if first else (), tuple(values), own)


def _split(folders: Sequence[str]) -> tuple[str, list[tuple[str, str | None]]]:
    """What is above the partition folders of a file, and their names and values; "" for what is no
    text. Folders below them do not count."""
    end = len(folders)
    while end and "=" not in folders[end - 1]:
        end -= 1
    start = end
    while start and "=" in folders[start - 1]:
        start -= 1
    if start == end:
        return "", []
    found = []
    for folder in folders[start:end]:
        name, _, text = folder.partition("=")
        found.append((_unescaped(name), None if text == NULL_PARTITION else _unescaped(text)))
    return "/".join(folders[:start]), found


def _unescaped(text: str) -> str:
    """Escapes are of UTF-8, as other writers have them; Spark escapes ASCII only."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return ""


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


def parquet_schema(store: Store, path: str) -> tuple[pa.Schema, int]:
    """The schema of a file, and the number of its rows. Raises: SourceUnreadable, StorageError."""
    try:
        with (
            store.open_input(path) as f,
            pq.ParquetFile(f, coerce_int96_timestamp_unit="us") as file,
        ):
            return file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceUnreadable(
            "a file of the source is damaged, truncated, or not a Parquet file",
            resource=path,
            found=" ".join(str(error).split())[:300],
            expected="a whole Parquet file",
            remedy="Write the file again",
        ) from error


def schema_string(schema: pa.Schema, outside: Iterable[FolderColumn] = ()) -> str:
    """A Parquet file's schema as a Delta schema, all nullable, with the columns `outside` in place
    of its own of these names. Raises: InvalidSpec for a type that Delta lacks."""
    check_unique_names(schema.names, "the source")
    types = {column.name: column.type for column in outside}
    names = {name.lower() for name in types}
    fields = [_field(field) for field in schema if field.name.lower() not in names]
    fields += [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _type(field.type, field.name),
        "nullable": True,
        "metadata": {},
    }


def _type(type_: Any, column: str) -> Any:
    is_ = pa.types
    if is_.is_dictionary(type_):
        return _type(type_.value_type, column)
    if is_.is_struct(type_):
        return {"type": "struct", "fields": [_field(child) for child in type_]}
    if is_array(type_):
        element = _type(type_.value_type, column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if is_.is_map(type_):
        return {
            "type": "map",
            "keyType": _type(type_.key_type, column),
            "valueType": _type(type_.item_type, column),
            "valueContainsNull": True,
        }
    if is_.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if is_.is_decimal(type_) and type_.precision <= 38:
        return f"decimal({type_.precision},{type_.scale})"
    names: tuple[tuple[Any, str], ...] = (
        (is_.is_boolean, "boolean"),
        (is_.is_int8, "byte"),
        (lambda t: is_.is_int16(t) or is_.is_uint8(t), "short"),
        (lambda t: is_.is_int32(t) or is_.is_uint16(t), "integer"),
        (lambda t: is_.is_int64(t) or is_.is_uint32(t), "long"),
        (is_.is_uint64, "decimal(20,0)"),
        (lambda t: is_.is_float32(t) or is_.is_float16(t), "float"),
        (is_.is_float64, "double"),
        (lambda t: is_.is_string(t) or is_.is_large_string(t) or is_.is_string_view(t), "string"),
        (lambda t: is_.is_binary(t) or is_.is_large_binary(t) or is_.is_binary_view(t), "binary"),
        (is_.is_fixed_size_binary, "binary"),
        (is_.is_date, "date"),
        (is_.is_null, "string"),
    )
    for test, name in names:
        if test(type_):
            return name
    raise InvalidSpec(
        "a column of the source has a type that a table cannot have",
        resource="the source",
        field=column,
        found=str(type_),
        remedy="Cast the column in the source",
    )
