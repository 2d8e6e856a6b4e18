"""The errors for data files: one that a version refers to and the store does not have, or that
cannot be read, and types and values that its column cannot hold, found before they are
converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import FieldIndex, is_array
from tandem.delta.datafiles.pages import PageDamaged
from tandem.delta.schema import (
    ArrayType,
    DataType,
    Field,
    MapType,
    StructType,
    to_arrow_type,
)
from tandem.errors import DataFileEncrypted, DataFileMissing, StorageError

# The errors for a file that a version refers to and the store does not have, or that cannot be
# read. No I/O.


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


# Types and values of a data file that its column cannot hold, found before they are converted.
#
# A wrong conversion would silently lose data: a text read as a struct is a struct of nulls, a
# timestamp read as a date has lost its time of day. Spark refuses to read such files. No I/O.


SHOWN = 30
"""Bytes of a value that an error shows."""


class SchemaMismatch(pa.ArrowInvalid):  # type: ignore[misc]
    """A column of a file that does not fit the table's. `column` is its path."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(f"column {column}: {found} is no {expected}")
        self.column = column
        self.found = found
        self.expected = expected


def require_fit(found: Any, wanted: Field, *, by_id: bool, above: str = "") -> None:
    """Raises: SchemaMismatch if the Arrow type `found` must not be read as the column `wanted`, or
    one inside it; pa.ArrowInvalid if a field is ambiguous."""
    column = f"{above}{wanted.name}"
    type_ = wanted.type
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found) or found.equals(to_arrow_type(type_)):
        return
    inner: list[tuple[Any, Field]] = []
    fits = True
    match type_:
        case StructType():
            fits = pa.types.is_struct(found)
            if fits:
                there = [found.field(i) for i in range(found.num_fields)]
                candidates = FieldIndex(there)
                for part in type_.fields:
                    index = candidates.find(part, by_id=by_id)
                    if index is not None:
                        inner.append((there[index].type, part))
        case ArrayType():
            fits = is_array(found)
            if fits:
                inner.append((found.value_type, Field("element", type_.element)))
        case MapType():
            fits = pa.types.is_map(found)
            if fits:
                inner.append((found.key_type, Field("key", type_.key)))
                inner.append((found.item_type, Field("value", type_.value)))
        case _:
            fits = not pa.types.is_nested(found) and not _loses(found, to_arrow_type(type_))
    if not fits:
        raise SchemaMismatch(column, str(found), _name(type_))
    for there_type, part in inner:
        require_fit(there_type, part, by_id=by_id, above=f"{column}.")


def _loses(found: Any, wanted: Any) -> bool:
    """Whether Arrow would cast with a loss that it does not report, or take one kind of value for
    another."""
    is_ = pa.types
    if is_.is_time(found) or is_.is_duration(found):
        # As the number that the file holds, which is what Spark reads.
        return not is_.is_integer(wanted)
    if is_.is_date(wanted):
        return bool(is_.is_timestamp(found) or _is_text(found))
    if is_.is_boolean(wanted):
        return not is_.is_boolean(found)
    if is_.is_float32(wanted) and is_.is_float64(found):
        return True
    if is_.is_floating(wanted) and is_.is_decimal(found):
        return True
    return _is_text(found) and not (is_.is_string(wanted) or is_.is_binary(wanted))


def _is_text(type_: Any) -> bool:
    is_ = pa.types
    tests = (is_.is_string, is_.is_large_string, is_.is_string_view)
    return any(test(type_) for test in tests)


def _name(type_: DataType) -> str:
    match type_:
        case StructType():
            return "struct"
        case ArrayType():
            return "array"
        case MapType():
            return "map"
        case _:
            return str(getattr(type_, "name", type_))


def require_whole_micros(array: Any, column: str) -> None:
    """Raises: SchemaMismatch if a timestamp of `array`, at any depth, is not a whole number of
    microseconds: a source is read exactly, or refused."""
    for path, values in leaf_values(array, column, _is_nanos):
        nanos = values.view(pa.int64())
        whole = pc.multiply(pc.divide(nanos, 1_000), 1_000)
        cut = values.filter(pc.not_equal(nanos, whole))
        if len(cut):
            shown = str(cut.slice(0, 1).cast(pa.string())[0].as_py())
            raise SchemaMismatch(path, shown, "whole number of microseconds")


def _is_nanos(type_: Any) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.unit == "ns")


def require_utf8(array: Any, column: str) -> None:
    """Raises: SchemaMismatch if a text of `array`, at any depth, is not UTF-8."""
    if not any_leaf(array.type, _is_text):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        # Values below a null do not count.
        for path, values in leaf_values(array, column, _is_text):
            for value in values.drop_null().cast(pa.large_binary()):
                data = value.as_py()
                try:
                    data.decode()
                except UnicodeDecodeError as error:
                    cut = "" if len(data) <= SHOWN else "…"
                    shown = f"X'{data[:SHOWN].hex()}'{cut}"
                    raise SchemaMismatch(path, shown, "text of UTF-8") from error


def any_leaf(type_: Any, test: Callable[[Any], bool]) -> bool:
    """Whether `test` holds for a type, or for one inside it."""
    if pa.types.is_nested(type_):
        return any(any_leaf(type_.field(i).type, test) for i in range(type_.num_fields))
    return test(type_)


def leaf_values(array: Any, path: str, test: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """The values of the types that `test` holds for, with their paths; without values below a null
    or outside of `array`'s slice."""
    type_ = array.type
    if not any_leaf(type_, test):
        return
    if pa.types.is_struct(type_):
        for field, part in zip(type_, array.flatten(), strict=True):
            yield from leaf_values(part, f"{path}.{field.name}", test)
    elif is_array(type_):
        yield from leaf_values(array.flatten(), f"{path}.element", test)
    elif pa.types.is_map(type_):
        entries = array.drop_null() if array.null_count else array
        first, last = (entries.offsets[i].as_py() for i in (0, -1))
        for name, part in (("key", entries.keys), ("value", entries.items)):
            yield from leaf_values(part.slice(first, last - first), f"{path}.{name}", test)
    else:
        yield path, array
