"""A table's schema as a small typed tree (protocol, "Schema Serialization Format").

Names here are logical unless said otherwise; under column mapping the physical name and the
field id come from the field's metadata. No I/O.

Four places go from one to the other: `datafiles.conform.FieldIndex.find` finds the column of a
field when a file is read, `to_arrow_field(physical=True)` names it when one is written, and
`datafiles.stats.from_footer` in its statistics; `spark.runtime.row_files` names the partition
values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tandem.errors import CorruptLog

PHYSICAL_NAME = "delta.columnMapping.physicalName"
COLUMN_ID = "delta.columnMapping.id"
NESTED_IDS = "delta.columnMapping.nested.ids"
"""The ids of elements, keys and values within a column, by their paths from its physical name."""
COLLATIONS = "__COLLATIONS"
"""Metadata of a text column whose collation decides which values are equal, not their bytes."""
_NO_IDS: Mapping[str, Any] = {}

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
# Primitive type → Arrow type. `timestamp` is an instant, adjusted to UTC.
_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_ALIASES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """`name` as the log spells it: `long`, `decimal(10,2)`, `variant`, …"""

    name: str

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale, None for other types."""
        if self.name == "decimal":
            return (10, 0)
        match = _DECIMAL.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: DataType
    contains_null: bool = True


@dataclass(frozen=True, slots=True)
class MapType:
    key: DataType
    value: DataType
    value_contains_null: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a struct's field. `metadata` is the log's, as it is."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def physical_name(self) -> str:
        """The name in data files, statistics and partition values under column mapping; the
        logical name in a table without."""
        return str(self.metadata.get(PHYSICAL_NAME, self.name))

    @property
    def field_id(self) -> int | None:
        value = self.metadata.get(COLUMN_ID)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[Field, ...] = ()

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def get(self, name: str) -> Field | None:
        """The field of this name: exact first, else the only one that differs in case (names
        are case-insensitive to Delta)."""
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        same = [f for f in self.fields if f.name.lower() == name.lower()]
        return same[0] if len(same) == 1 else None

    def __getitem__(self, name: str) -> Field:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def without(self, names: tuple[str, ...]) -> StructType:
        """The fields that are not among `names`, e.g. those that data files hold."""
        return StructType(tuple(f for f in self.fields if f.name not in names))


DataType = PrimitiveType | ArrayType | MapType | StructType

MAX_PRECISION = 38
"""Digits of the widest decimal, in Delta as in Arrow's 128 bits."""


def has_arrow_form(type_: PrimitiveType) -> bool:
    """Whether values of this type can be read and written. Variants, intervals, geometries and
    types of later versions of the protocol cannot."""
    decimal = type_.decimal
    if decimal is not None:
        return 1 <= decimal[0] <= MAX_PRECISION and 0 <= decimal[1] <= decimal[0]
    return type_.name in _ARROW


def parse(schema_string: str, *, resource: str = "metaData") -> StructType:
    """The tree of a `schemaString`. Raises: CorruptLog."""
    try:
        body = json.loads(schema_string)
        parsed = _type(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(
            "the table's schema cannot be read",
            resource=resource,
            field="metaData.schemaString",
            found=f"{schema_string[:200]} ({type(error).__name__}: {error})",
            expected="a struct in the protocol's schema format",
            remedy="Restore the table to a version with a valid schema",
        ) from error
    if not isinstance(parsed, StructType):
        raise CorruptLog(
            "the table's schema is not a struct",
            resource=resource,
            field="metaData.schemaString",
            found=schema_string[:200],
            expected='{"type": "struct", "fields": […]}',
            remedy="Restore the table to a version with a valid schema",
        )
    return parsed


def check_names(schema: StructType, partition_columns: Sequence[str], *, resource: str) -> None:
    """Check that every name identifies one column: a partition column in another spelling would be
    searched in the data files, and read as nulls. Raises: CorruptLog."""
    names = schema.names
    twice = (
        sorted({name for name in names if names.count(name) > 1}) if _has_duplicates(names) else []
    )
    absent = [name for name in partition_columns if name not in names]
    for found, field_, expected in (
        (twice, "metaData.schemaString", "each name once"),
        (absent, "metaData.partitionColumns", "names of columns, spelled as in the schema"),
    ):
        if found:
            raise CorruptLog(
                "the table's metadata contradicts itself",
                resource=resource,
                field=field_,
                found=", ".join(found),
                expected=expected,
                remedy="Restore the table to a version with valid metadata",
            )


def _has_duplicates(names: Sequence[str]) -> bool:
    return len(set(names)) < len(names)


def _type(body: Any) -> DataType:
    if isinstance(body, str):
        return PrimitiveType(_ALIASES.get(body, body))
    match body["type"]:
        case "struct":
            return StructType(tuple(_field(f) for f in body["fields"]))
        case "array":
            return ArrayType(_type(body["elementType"]), bool(body.get("containsNull", True)))
        case "map":
            return MapType(
                _type(body["keyType"]),
                _type(body["valueType"]),
                bool(body.get("valueContainsNull", True)),
            )
        case other:
            raise ValueError(f"unknown type {other!r}")


def _field(body: Any) -> Field:
    return Field(
        str(body["name"]),
        _type(body["type"]),
        bool(body.get("nullable", True)),
        dict(body.get("metadata") or {}),
    )


def to_delta_json(schema: StructType) -> str:
    """The `schemaString` of a schema; `parse` of it gives the same tree."""
    return json.dumps(_to_json(schema), ensure_ascii=False, separators=(",", ":"))


def _to_json(type_: DataType) -> Any:
    match type_:
        case PrimitiveType():
            return type_.name
        case ArrayType():
            return {
                "type": "array",
                "elementType": _to_json(type_.element),
                "containsNull": type_.contains_null,
            }
        case MapType():
            return {
                "type": "map",
                "keyType": _to_json(type_.key),
                "valueType": _to_json(type_.value),
                "valueContainsNull": type_.value_contains_null,
            }
        case StructType():
            return {
                "type": "struct",
                "fields": [
                    {
                        "name": f.name,
                        "type": _to_json(f.type),
                        "nullable": f.nullable,
                        "metadata": dict(f.metadata),
                    }
                    for f in type_.fields
                ],
            }


def to_arrow_type(
    type_: DataType,
    *,
    physical: bool = False,
    ids: Mapping[str, Any] = _NO_IDS,
    path: str = "",
) -> pa.DataType:
    """The Arrow type. `physical` names nested fields as data files do and gives them their
    Parquet field ids; `ids` are those of elements, keys and values in the column at `path`. Raises:
    KeyError for a type that has no Arrow form (variant, interval)."""

    def part(name: str, inner: DataType, nullable: bool) -> pa.Field:
        own = f"{path}.{name}"
        arrow = to_arrow_type(inner, physical=physical, ids=ids, path=own)
        return pa.field(name, arrow, nullable, metadata=_id_metadata(ids.get(own)))

    match type_:
        case PrimitiveType():
            decimal = type_.decimal
            return pa.decimal128(*decimal) if decimal else _ARROW[type_.name]
        case ArrayType():
            return pa.list_(part("element", type_.element, type_.contains_null))
        case MapType():
            return pa.map_(
                part("key", type_.key, False),
                part("value", type_.value, type_.value_contains_null),
            )
        case StructType():
            return pa.struct([to_arrow_field(f, physical=physical) for f in type_.fields])


def to_arrow_field(field_: Field, *, physical: bool = False) -> pa.Field:
    name = field_.physical_name if physical else field_.name
    ids = field_.metadata.get(NESTED_IDS, _NO_IDS) if physical else _NO_IDS
    type_ = to_arrow_type(field_.type, physical=physical, ids=ids, path=name)
    metadata = _id_metadata(field_.field_id) if physical else None
    return pa.field(name, type_, field_.nullable, metadata=metadata)


def _id_metadata(id_: int | None) -> dict[str, str] | None:
    return None if id_ is None else {"PARQUET:field_id": str(id_)}


def fields_of(type_: DataType) -> Iterator[Field]:
    """Every field in a type, outermost first, through structs, arrays and maps."""
    if isinstance(type_, StructType):
        for field_ in type_.fields:
            yield field_
            yield from fields_of(field_.type)
    else:
        for inner in _types_in(type_):
            yield from fields_of(inner)


def nested_paths(field_: Field) -> Iterator[str]:
    """The keys in `NESTED_IDS` of all elements, keys and values of which the field is the nearest
    one."""

    def walk(type_: DataType, path: str) -> Iterator[str]:
        parts = {
            ArrayType: (("element", 0),),
            MapType: (("key", 0), ("value", 1)),
        }.get(type(type_), ())
        for name, at in parts:
            yield f"{path}.{name}"
            yield from walk(_types_in(type_)[at], f"{path}.{name}")

    return walk(field_.type, field_.physical_name)


def types_of(type_: DataType) -> Iterator[DataType]:
    """The type itself and every type within."""
    yield type_
    for inner in _types_in(type_):
        yield from types_of(inner)


def _types_in(type_: DataType) -> tuple[DataType, ...]:
    """The types that a type is made of."""
    match type_:
        case StructType():
            return tuple(field_.type for field_ in type_.fields)
        case ArrayType():
            return (type_.element,)
        case MapType():
            return (type_.key, type_.value)
        case PrimitiveType():
            return ()


def column_mapping_mode(configuration: Mapping[str, str]) -> str:
    """`none`, `name` or `id`."""
    return configuration.get("delta.columnMapping.mode", "none").lower()
