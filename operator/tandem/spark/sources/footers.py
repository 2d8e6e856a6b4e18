"""Schemas of Parquet files of a source. Reads footers only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta.datafiles.conform import is_array
from tandem.errors import InvalidSpec, SourceUnreadable
from tandem.spark.runtime.listing import FolderColumn, check_unique_names
from tandem.storage import Store


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
