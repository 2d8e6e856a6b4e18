"""Schemas of tables, and files that do not fit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from support.foreign.tables import column, struct, write
from support.lake.arrow_schema import to_arrow
from tandem.cli.app import app
from tandem.delta.datafiles.conform import SchemaMismatch, require_utf8, require_whole_micros
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.delta.schema import (
    ArrayType,
    Field,
    MapType,
    PrimitiveType,
    StructType,
    parse,
    to_delta_json,
)
from tandem.errors import CorruptLog, SourceUnreadable, StorageError
from tandem.spark.runtime.listing import decoding_error
from tandem.storage import open_store

# Schema strings ⇄ the tree ⇄ Arrow.


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
def test_a_schema_that_is_written_reads_back_the_same(schema: StructType) -> None:
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


# Data files whose columns have other types than the table's: read as Spark reads them, or refused
# with file, column, found and expected type. Nothing becomes null or shorter in silence.


UTC = pa.timestamp("us", tz="UTC")
INSIDE = struct(column("a"))


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def map_(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def read(root: Path, type_: Any, found: pa.Array) -> list[Any]:
    write(root, column("x", type_), rows=pa.table({"x": found}))
    log = DeltaLog(open_store(root.as_uri()))
    rows: list[Any] = scan(log.snapshot(), log.store).read_all()["x"].to_pylist()
    return rows


@pytest.mark.parametrize(
    ("type_", "found", "where", "shown", "expected"),
    # Spark 4 refuses each of them.
    [
        (INSIDE, pa.array(["x"]), "x", "string", "struct"),
        (INSIDE, pa.array([[1]]), "x", "list", "struct"),
        (array("long"), pa.array([{"a": 1}]), "x", "struct", "array"),
        (array("long"), pa.array(["x"]), "x", "string", "array"),
        (map_("string", "long"), pa.array([{"a": 1}]), "x", "struct", "map"),
        (map_("string", "long"), pa.array([[1]]), "x", "list", "map"),
        (
            array(INSIDE),
            pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "x",
            "map",
            "array",
        ),
        ("string", pa.array([{"a": 1}]), "x", "struct", "string"),
        (array(INSIDE), pa.array([[1]]), "x.element", "int64", "struct"),
        (struct(column("a", INSIDE)), pa.array([{"a": "x"}]), "x.a", "string", "struct"),
        ("date", pa.array([86_400_000_001], UTC), "x", "timestamp", "date"),
        (array("date"), pa.array([[1]], pa.list_(UTC)), "x.element", "timestamp", "date"),
        ("string", pa.array([7], pa.time64("us")), "x", "time64", "string"),
        ("string", pa.array([7], pa.duration("us")), "x", "duration", "string"),
        ("boolean", pa.array([2]), "x", "int64", "boolean"),
        ("float", pa.array([0.1]), "x", "double", "float"),
        ("long", pa.array(["01"]), "x", "string", "long"),
    ],
)
def test_another_type_is_refused_by_name(
    type_: Any, found: pa.Array, where: str, shown: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(StorageError) as caught:
        read(tmp_path / "t", type_, found)
    error = caught.value
    assert error.resource.endswith("part-0.parquet")
    assert (error.field, error.expected) == (where, expected)
    assert error.found.startswith(shown)


LISTS = [pa.list_(pa.int64(), 2), pa.list_view(pa.int64()), pa.large_list(pa.int64())]


@pytest.mark.parametrize("layout", LISTS)
def test_lists_of_other_layouts_are_read(layout: pa.DataType, tmp_path: Path) -> None:
    rows = [None, [1, 2], None, [3, 4]]
    assert read(tmp_path / "t", array("long"), pa.array(rows, layout)) == rows


def test_times_and_durations_are_the_numbers_that_the_file_holds(tmp_path: Path) -> None:
    """As Spark reads them."""
    kinds = [pa.time64("us"), pa.time64("ns"), pa.duration("us"), pa.timestamp("ns", tz="UTC")]
    for number, kind in enumerate(kinds):
        assert read(tmp_path / str(number), "long", pa.array([7_001], kind)) == [7_001]


def test_a_struct_without_fields_keeps_its_nulls(tmp_path: Path) -> None:
    assert read(tmp_path / "t", struct(), pa.array([{"a": 1}, None])) == [{}, None]


def test_nulls_without_a_type_are_nulls(tmp_path: Path) -> None:
    for number, type_ in enumerate(("long", INSIDE, array(INSIDE), map_("string", INSIDE))):
        assert read(tmp_path / str(number), type_, pa.nulls(2)) == [None, None]


BAD = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])),
                     pa.py_buffer(b"\xff\xfea")]
)  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_is_not_utf8_is_shown_with_its_bytes(nested: bool, tmp_path: Path) -> None:
    found = pa.ListArray.from_arrays([0, 1, 2], BAD) if nested else BAD
    type_ = array("string") if nested else "string"
    write(tmp_path / "t", column("x", type_), rows=pa.table({"x": found}))
    printed = CliRunner().invoke(app, ["scan", str(tmp_path / "t"), "-o", "json"])
    assert printed.exit_code == 0, printed.output
    shown = [json.loads(line)["x"] for line in printed.stdout.splitlines()]
    assert shown == ([["\\xff\\xfe"], ["a"]] if nested else ["\\xff\\xfe", "a"])
    printed = CliRunner().invoke(app, ["scan", str(tmp_path / "t"), "-o", "table"])
    assert printed.exit_code == 0, printed.output
    assert "xff" in printed.stdout


NANOS = pa.timestamp("ns")
LIST = pa.list_(NANOS)


@pytest.mark.parametrize(
    ("found", "where"),
    [
        (pa.array([None, 1_000, 1_001], NANOS), "x"),
        (pa.array([-1], NANOS), "x"),
        (pa.array([{"t": 1_001}], pa.struct([("t", NANOS)])), "x.t"),
        (pa.array([[], [1_001]], pa.list_(NANOS)), "x.element"),
        (pa.array([None, [("k", 1_001)]], pa.map_(pa.string(), NANOS)), "x.value"),
    ],
)
def test_a_time_that_is_no_whole_microsecond(found: pa.Array, where: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        require_whole_micros(found, "x")
    assert caught.value.column == where


def test_whole_microseconds_pass() -> None:
    require_whole_micros(pa.array([None, 1_000, -1_000, -(2**63) + 808], NANOS), "x")
    hidden = pa.StructArray.from_arrays(
        [pa.array([1_001], NANOS)], names=["t"], mask=pa.array([True])
    )
    require_whole_micros(hidden, "x")
    require_whole_micros(pa.array([{"a": [1]}, None]), "x")


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_source_is_read_exactly_or_refused(old: bool, nested: bool, tmp_path: Path) -> None:
    """Files of the table are rounded down, sources are not."""
    values = [None, 1_001_000, 1_234_567_891]
    type_: Any = array("timestamp_ntz") if nested else "timestamp_ntz"
    found = pa.array([[v] for v in values] if nested else values, LIST if nested else NANOS)
    table = TableFormat(parse(json.dumps(struct(column("x", type_)))))
    store = open_store(tmp_path.as_uri())

    def rows(name: str, held: pa.Array, exact: bool) -> int:
        at = tmp_path / name
        pq.write_table(pa.table({"x": held}), at, use_deprecated_int96_timestamps=old)
        with DataFileReader(store, name, table, exact=exact) as reader:
            return sum(batch.num_rows for batch in reader.batches())

    assert rows("table", found, exact=False) == 3
    assert rows("whole", found.slice(0, 2), exact=True) == 2
    with pytest.raises(StorageError) as caught:
        rows("cut", found, exact=True)
    error = decoding_error(caught.value)
    assert isinstance(error, SourceUnreadable)
    assert error.resource == "cut"
    assert error.field == ("x.element" if nested else "x")
    assert "567891" in error.found


@pytest.mark.parametrize(
    ("found", "where"),
    [
        (BAD, "x"),
        (BAD.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()), "x"),
        (pa.StructArray.from_arrays([BAD], names=["s"]), "x.s"),
        (pa.ListArray.from_arrays([0, 1, 2], BAD), "x.element"),
        (pa.MapArray.from_arrays([0, 2], pa.array([1, 2]), BAD), "x.value"),
        (pa.MapArray.from_arrays([0, 2], BAD, pa.array([1, 2])), "x.key"),
    ],
)
def test_texts_that_are_not_utf8(found: pa.Array, where: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        require_utf8(found, "x")
    assert (caught.value.column, caught.value.found) == (where, "X'fffe'")


def test_texts_that_are_not_shown_do_not_count() -> None:
    hidden = pa.StructArray.from_arrays([BAD], names=["s"], mask=pa.array([True, False]))
    for array_ in (BAD.slice(1), hidden, BAD.cast(pa.binary()), pa.array([1]), pa.nulls(1)):
        require_utf8(array_, "x")
