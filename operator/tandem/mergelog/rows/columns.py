"""Checks the columns of an append, and converts them to the types of the table. Pure.

A value is stored as it is, or refused: Arrow would also cast 5 to true, or a moment to its day.
Only texts of a CHAR or VARCHAR are padded or cut, as Spark does it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from tandem.delta.char_types import fitted
from tandem.delta.datafiles.conform import conform, forbidden_null, is_array
from tandem.delta.datafiles.schema_mismatch import (
    SchemaMismatch,
    require_fit,
    require_utf8,
    require_whole_micros,
)
from tandem.delta.schema import ArrayType, DataType, Field, MapType, StructType, to_arrow_type


def converted(column: pa.ChunkedArray, field: Field) -> pa.Array:
    """The column in the type of the table's field.

    Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError if a value does not fit.
    """
    array = column.combine_chunks()
    wanted = to_arrow_type(field.type)
    if not array.type.equals(wanted):
        # Under column mapping, nested fields have other names in data files.
        logical = Field(field.name, _without_metadata(field.type))
        require_fit(array.type, logical, by_id=False)
        _require_same_kind(array.type, wanted, field.name)
        require_whole_micros(array, field.name)
        array = conform(array, logical.type)
    require_utf8(array, field.name)
    return fitted(array, field)


def _without_metadata(type_: DataType) -> DataType:
    match type_:
        case StructType():
            return StructType(
                tuple(Field(f.name, _without_metadata(f.type), f.nullable) for f in type_)
            )
        case ArrayType():
            return replace(type_, element=_without_metadata(type_.element))
        case MapType():
            return replace(
                type_, key=_without_metadata(type_.key), value=_without_metadata(type_.value)
            )
        case _:
            return type_


def null_in(column: pa.Array, field: Field) -> str | None:
    """The path of the column, or of a nested one, that has a NULL although it must not."""
    return forbidden_null(field, column)


def _require_same_kind(found: Any, wanted: Any, column: str) -> None:
    """Raises: SchemaMismatch if a value could change, or a field of a struct get lost."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found) or found.equals(wanted):
        return
    if pa.types.is_struct(wanted):
        names = [part.name for part in found]
        for part in found:
            if names.count(part.name) > 1:
                raise SchemaMismatch(f"{column}.{part.name}", "a field twice", "field once")
            at = wanted.get_field_index(part.name)
            if at < 0:
                raise SchemaMismatch(f"{column}.{part.name}", "a field", "field of the table")
            _require_same_kind(part.type, wanted.field(at).type, f"{column}.{part.name}")
    elif is_array(wanted):
        _require_same_kind(found.value_type, wanted.value_type, f"{column}.element")
    elif pa.types.is_map(wanted):
        _require_same_kind(found.key_type, wanted.key_type, f"{column}.key")
        _require_same_kind(found.item_type, wanted.item_type, f"{column}.value")
    elif _kind(wanted) not in _CONVERSIONS.get(_kind(found), {_kind(found)}):
        raise SchemaMismatch(column, str(found), str(wanted))


_CONVERSIONS = {"integer": {"integer", "decimal", "float"}}
"""Conversions to another kind. Values that do not fit are refused one by one."""


def _kind(type_: Any) -> str:
    is_ = pa.types
    if is_.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    tests = {
        "integer": is_.is_integer,
        "float": is_.is_floating,
        "decimal": is_.is_decimal,
        "boolean": is_.is_boolean,
        "date": is_.is_date,
    }
    for kind, test in tests.items():
        if test(type_):
            return kind
    if is_.is_string(type_) or is_.is_large_string(type_) or is_.is_string_view(type_):
        return "string"
    binary = (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary)
    return "binary" if any(test(type_) for test in binary) else str(type_)
