"""Schema strings ⇄ the tree ⇄ Arrow."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from support.lake.arrow_schema import to_arrow
from tandem.delta.schema import (
    ArrayType,
    Field,
    MapType,
    PrimitiveType,
    StructType,
    parse,
    to_delta_json,
)
from tandem.errors import CorruptLog

_PRIMITIVES = ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary",
               "date", "timestamp", "timestamp_ntz", "decimal(12,3)", "decimal(38,18)")  # fmt: skip
_NAMES = st.text("abcXYZ _-é", min_size=1, max_size=4)


def _structs(types: st.SearchStrategy[Any]) -> st.SearchStrategy[StructType]:
    fields = st.lists(
        st.builds(Field, _NAMES, types, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda f: f.name.lower(),
    )
    return fields.map(lambda f: StructType(tuple(f)))


_types: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(_PRIMITIVES).map(PrimitiveType),
    lambda inner: st.one_of(
        st.builds(ArrayType, inner, st.booleans()),
        st.builds(MapType, inner, inner, st.booleans()),
        _structs(inner),
    ),
    max_leaves=6,
)
schemas = _structs(_types)


@given(schemas)
def test_round_trip(schema: StructType) -> None:
    assert parse(to_delta_json(schema)) == schema


@given(schemas)
def test_arrow_schema_equals_that_of_deltalake(schema: StructType) -> None:
    theirs = pa.schema(Schema.from_json(to_delta_json(schema)).to_arrow())
    ours = to_arrow(schema)
    assert ours.names == theirs.names
    assert [f.nullable for f in ours] == [f.nullable for f in theirs]
    # Inner field names of lists and maps differ between writers and mean nothing.
    assert [_plain(f.type) for f in ours] == [_plain(f.type) for f in theirs]


def _plain(type_: pa.DataType) -> Any:
    if pa.types.is_list(type_):
        return ["list", _plain(type_.value_type)]
    if pa.types.is_map(type_):
        return ["map", _plain(type_.key_type), _plain(type_.item_type)]
    if pa.types.is_struct(type_):
        return {f.name: (_plain(f.type), f.nullable) for f in type_}
    return str(type_)


def _mapped() -> StructType:
    def column(name: str, physical: str, number: int, type_: Any) -> dict[str, Any]:
        metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
        return {"name": name, "type": type_, "nullable": True, "metadata": metadata}

    inner = {"type": "struct", "fields": [column("d", "col-2", 5, "integer")]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    return parse(json.dumps({"type": "struct", "fields": [column("e", "col-1", 4, array)]}))


def test_physical_names_and_ids_reach_nested_fields() -> None:
    field = to_arrow(_mapped(), physical=True).field("col-1")
    assert field.metadata == {b"PARQUET:field_id": b"4"}
    nested = field.type.value_type.field("col-2")
    assert nested.metadata == {b"PARQUET:field_id": b"5"}
    assert to_arrow(_mapped()).field("e").type.value_type.field("d").type == pa.int32()


def test_lookup_ignores_case_unless_that_is_ambiguous() -> None:
    schema = StructType((Field("Id", PrimitiveType("long")), Field("x", PrimitiveType("long"))))
    assert schema["id"].name == "Id"
    assert schema.get("nope") is None
    with pytest.raises(KeyError):
        schema["nope"]


@pytest.mark.parametrize("text", ["", "{", "[]", '"long"', '{"type":"struct"}', '{"type":"set"}'])
def test_an_invalid_schema_is_a_corrupt_log(text: str) -> None:
    with pytest.raises(CorruptLog) as caught:
        parse(text, resource="t")
    error = caught.value
    assert all((error.resource, error.field, error.expected, error.remedy))
