"""Converts Arrow arrays as read from a data file to arrays of the table's logical types.

Handles schema evolution and the differences between writers: columns added later (nulls), columns
renamed and reordered under column mapping, widened types, INT96 and nanosecond timestamps, large
strings, lists whose element is called `item` or `array`. Pure; no I/O.

Also the errors for data files: one that a version refers to and the store does not have, or that
cannot be read, and types and values that its column cannot hold, found before they are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

FIELD_ID = b"PARQUET:field_id"


class FieldIndex:
    """The fields of a file, or of a struct in it, indexed by id and by name: tables may have
    thousands of columns."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = fields
        self._exact: dict[str, list[int]] = {}
        self._folded: dict[str, list[int]] = {}
        self._ids: dict[bytes, int] = {}
        for index, field in enumerate(fields):
            self._exact.setdefault(field.name, []).append(index)
            self._folded.setdefault(field.name.lower(), []).append(index)
            id_ = (field.metadata or {}).get(FIELD_ID)
            if id_ is not None:
                self._ids.setdefault(id_, index)

    def find(self, field: Field, *, by_id: bool) -> int | None:
        """The index of the field that holds `field`, None if the file was written without it.

        By field id if the table maps by id and the file has ids, otherwise by physical name
        (exact, or else the only one that differs in case, as in Spark).

        Raises: pa.ArrowInvalid if several are spelled as in the table, as Spark does, or if several
            differ only in case, and none is spelled so.
        """
        if by_id and field.field_id is not None and self._ids:
            return self._ids.get(str(field.field_id).encode())
        name = field.physical_name
        same = self._exact.get(name) or self._folded.get(name.lower(), [])
        if len(same) > 1:
            names = ", ".join(self._fields[i].name for i in same)
            raise pa.ArrowInvalid(f"column {name} may be any of {names}")
        return same[0] if same else None


def conform(array: Any, type_: DataType, *, by_id: bool = False, dictionaries: bool = False) -> Any:
    """Convert `array` to the logical type.

    Args:
        dictionaries: leave dictionary-encoded strings as they are.
    Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError if the values do not fit the type.

    The kinds must fit (`conform.require_fit`).
    """
    target = to_arrow_type(type_)
    if array.type.equals(target):
        return array
    if pa.types.is_null(array.type):
        return nulls(len(array), type_)
    if pa.types.is_dictionary(array.type):
        if dictionaries and array.type.value_type.equals(target):
            return array
        return conform(array.cast(array.type.value_type), type_, by_id=by_id)
    match type_:
        case StructType():
            return _struct(array, type_, target, by_id)
        case ArrayType():
            return _list(array, type_, target, by_id)
        case MapType():
            return _map(array, type_, target, by_id)
        case _:
            if (
                pa.types.is_timestamp(target)
                and pa.types.is_timestamp(array.type)
                and array.type.unit == "ns"
            ):
                array = _micros(array)
            return array.cast(target)


def _micros(array: Any) -> Any:
    """Nanoseconds rounded down to the protocol's microseconds, as INT96 is read and as Spark
    rounds. A cast would round towards 1970, and so give one instant before it two values."""
    nanos = array.view(pa.int64())
    micros = pc.divide(nanos, 1_000)
    below = pc.less(nanos, pc.multiply(micros, 1_000)).cast(pa.int64())
    return pc.subtract(micros, below).view(pa.timestamp("us", tz=array.type.tz))


def nulls(rows: int, type_: DataType) -> Any:
    return pa.nulls(rows, to_arrow_type(type_))


def is_array(type_: Any) -> bool:
    """Whether an Arrow type is a list of any layout."""
    is_ = pa.types
    tests = (
        is_.is_list,
        is_.is_large_list,
        is_.is_fixed_size_list,
        is_.is_list_view,
        is_.is_large_list_view,
    )
    return any(test(type_) for test in tests)


def plain_list(array: Any) -> Any:
    """The same lists in the layout that has offsets."""
    if pa.types.is_list(array.type):
        return array
    type_ = pa.list_(array.type.value_field)
    if pa.types.is_large_list(array.type):
        return array.cast(type_)
    # Not Arrow's cast: it takes the offsets of a view for those of a list.
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()])).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, array.flatten(), type=type_, mask=_mask(array))


def _whole(array: Any) -> Any:
    """The same values without an offset into shared buffers, which `from_arrays` refuses."""
    if array.offset == 0:
        return array
    return pc.take(array, pa.array(range(len(array)), pa.int64()))


def _mask(array: Any) -> Any:
    return array.is_null() if array.null_count else None


def _struct(array: Any, type_: StructType, target: Any, by_id: bool) -> Any:
    array = _whole(array)
    candidates = FieldIndex([array.type.field(i) for i in range(array.type.num_fields)])
    children = []
    for field in type_.fields:
        index = candidates.find(field, by_id=by_id)
        children.append(
            nulls(len(array), field.type)
            if index is None
            else conform(array.field(index), field.type, by_id=by_id)
        )
    if not children:
        return pa.array([{} if valid else None for valid in array.is_valid().to_pylist()], target)
    return pa.StructArray.from_arrays(children, fields=list(target), mask=_mask(array))


def _list(array: Any, type_: ArrayType, target: Any, by_id: bool) -> Any:
    array = _whole(plain_list(array))
    values = conform(array.values, type_.element, by_id=by_id)
    return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=_mask(array))


def _map(array: Any, type_: MapType, target: Any, by_id: bool) -> Any:
    array = _whole(array)
    keys = conform(array.keys, type_.key, by_id=by_id)
    items = conform(array.items, type_.value, by_id=by_id)
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=_mask(array))


def forbidden_null(field: Field, array: Any) -> str | None:
    """The path of a column in `array` (of the field's shape) that holds a null although the schema
    forbids it; None if there is none. As in Delta, a field below a null struct is null
    (`Constraints.NotNull`), unless that struct is in an array or map: there Delta has no rule."""
    return _forbidden(field, array, inside=False)


def _forbidden(field: Field, array: Any, *, inside: bool) -> str | None:
    if not field.nullable and array.null_count:
        return field.name
    below = _null_below(field.type, array, inside=inside)
    return None if below is None else f"{field.name}.{below}"


def _null_below(type_: DataType, array: Any, *, inside: bool) -> str | None:
    """`inside` an array or map."""
    match type_:
        case StructType():
            if inside and array.null_count:
                array = array.drop_null()
            children = zip(type_.fields, array.flatten(), strict=True)
            below = (_forbidden(f, c, inside=inside) for f, c in children)
            return next(filter(None, below), None)
        case ArrayType():
            element = Field("element", type_.element, type_.contains_null)
            return _forbidden(element, array.flatten(), inside=True)
        case MapType():
            entries = array.drop_null() if array.null_count else array
            start, end = entries.offsets[0].as_py(), entries.offsets[-1].as_py()
            values = entries.items.slice(start, end - start)
            value = Field("value", type_.value, type_.value_contains_null)
            return _forbidden(value, values, inside=True)
        case _:
            return None


def all_nullable(schema: StructType) -> StructType:
    """The same schema with every field nullable, at any level."""

    def loose(type_: DataType) -> DataType:
        match type_:
            case StructType():
                return all_nullable(type_)
            case ArrayType():
                return replace(type_, element=loose(type_.element), contains_null=True)
            case MapType():
                return replace(
                    type_,
                    key=loose(type_.key),
                    value=loose(type_.value),
                    value_contains_null=True,
                )
            case _:
                return type_

    fields = tuple(replace(f, type=loose(f.type), nullable=True) for f in schema.fields)
    return replace(schema, fields=fields)


def relabel(array: Any, target: Any) -> Any:
    """The same values under the names of `target`: a type of the same shape, by position.

    Used for writing: in data files, nested fields have physical names.
    """
    if array.type.equals(target):
        return array
    if pa.types.is_struct(target):
        array = _whole(array)
        children = [relabel(array.field(i), target.field(i).type) for i in range(target.num_fields)]
        if not children:
            return array
        return pa.StructArray.from_arrays(children, fields=list(target), mask=_mask(array))
    if pa.types.is_map(target):
        array = _whole(array)
        return pa.MapArray.from_arrays(
            array.offsets,
            relabel(array.keys, target.key_type),
            relabel(array.items, target.item_type),
            type=target,
            mask=_mask(array),
        )
    if pa.types.is_list(target):
        array = _whole(array)
        values = relabel(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=_mask(array))
    return array.cast(target)


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
