"""Parquet files of several writers, the facts that are taken of them, and DuckDB, which evaluates
conditions on their rows: the truth about what facts may exclude and what they make certain."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import WriterProperties, write_deltalake
from hypothesis import strategies as st

from support.lake.memory_store import MemoryStore
from support.values.kinds import KINDS, Kind, for_duckdb
from tandem.delta import schema as schema_
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.delta.schema import StructType
from tandem.index.facts.footers import read_facts
from tandem.index.facts.row_groups import FileFacts
from tandem.statements import tree
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, Schema, SqlType

TYPES: Final = {
    "f64": "double", "f32": "float", "i8": "byte", "i16": "short", "i32": "integer",
    "i64": "long", "flag": "boolean", "text": "string", "dec9": "decimal(9,2)",
    "dec18": "decimal(18,4)", "dec38": "decimal(38,10)", "whole38": "decimal(38,0)", "day": "date",
    "moment": "timestamp", "local": "timestamp_ntz", "a.b": "long",
}  # fmt: skip
DOTTED: Final = Kind("a.b", pa.int64(), 3, (-5, 2**40))
USED: Final = (*(kind for kind in KINDS if kind.name in TYPES), DOTTED)

SCHEMA_JSON: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in TYPES.items()
        ],
    }
)
SCHEMA: Final[StructType] = schema_.parse(SCHEMA_JSON)
SQL_TYPES: Final = {column.name: column.type for column in Schema.from_json(SCHEMA_JSON).columns}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Condition:
    """One condition, for Tandem and for DuckDB."""

    where: Expr
    sql: str


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 12) -> pa.Table:
    """Rows of all columns: each value one of a few of its column, so that row groups with one value
    only, with NULL only, and with all extremes occur."""
    rows = draw(st.integers(0, most_rows))
    columns = {}
    for kind in USED:
        values = [None, kind.ordinary, *kind.extremes]
        few = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        chosen = draw(st.lists(st.sampled_from(few), min_size=rows, max_size=rows))
        columns[kind.name] = kind.array(chosen)
    return pa.table(columns)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> Condition:
    """Comparisons of columns with constants, combined."""
    if depth and draw(st.booleans()):
        return _combined(draw, depth)
    kind = draw(st.sampled_from(USED))
    column = tree.ColumnRef(parts=(kind.name,), type=SQL_TYPES[kind.name])
    name = f'"{kind.name}"'
    shape = draw(st.sampled_from(["compare"] * 6 + ["in", "null", "like"]))
    if shape == "null":
        negated = draw(st.booleans())
        where: Expr = tree.IsTest(value=column, what="NULL", negated=negated, type=BOOLEAN)
        return Condition(where, f"{name} IS {'NOT ' * negated}NULL")
    if shape == "like" and kind.name == "text":
        prefix = draw(st.sampled_from(["", "m", "a" * 33, "é", "\uffff", "z"]))
        where = tree.Match(op="LIKE", value=column, pattern=prefix + "%", type=BOOLEAN)
        return Condition(where, f"starts_with({name}, '{prefix}')")
    if shape == "in":
        items = draw(st.lists(_constant(kind), min_size=1, max_size=4))
        negated = draw(st.booleans())
        where = tree.InList(
            value=column, items=tuple(item for item, _ in items), negated=negated, type=BOOLEAN
        )
        listed = ", ".join(sql for _, sql in items)
        return Condition(where, f"{name} {'NOT ' * negated}IN ({listed})")
    op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]))
    literal, sql = draw(_constant(kind))
    where = tree.Binary(op=op, left=column, right=literal, type=BOOLEAN)
    return Condition(where, f"{name} {'IS NOT DISTINCT FROM' if op == '<=>' else op} {sql}")


def _combined(draw: st.DrawFn, depth: int) -> Condition:
    left = draw(conditions(depth - 1))
    match draw(st.sampled_from(["AND", "OR", "NOT", "TRUE"])):
        case "NOT":
            where: Expr = tree.Unary(op="NOT", operand=left.where, type=BOOLEAN)
            return Condition(where, f"NOT ({left.sql})")
        case "TRUE":
            where = tree.IsTest(value=left.where, what="TRUE", type=BOOLEAN)
            return Condition(where, f"(({left.sql}) IS TRUE)")
        case op:
            right = draw(conditions(depth - 1))
            where = tree.Logical(op=op, operands=(left.where, right.where), type=BOOLEAN)
            return Condition(where, f"({left.sql}) {op} ({right.sql})")


def constants(kind: Kind) -> list[tuple[tree.Literal, str]]:
    """The values of a column that a statement can name, for Tandem and for DuckDB."""
    values = ((value, _literal(kind, value)) for value in (kind.ordinary, *kind.extremes))
    return [(literal, _spelt(kind, value)) for value, literal in values if literal is not None]


def _constant(kind: Kind) -> st.SearchStrategy[tuple[tree.Literal, str]]:
    return st.sampled_from(constants(kind))


def _spelt(kind: Kind, value: Any) -> str:
    # A float is compared with a double, as a literal of a statement is.
    return for_duckdb(pa.float64() if kind.name == "f32" else kind.leaf, value)


def _literal(kind: Kind, value: Any) -> tree.Literal | None:
    """None for a value that is no constant in a statement: beyond the calendar."""
    type_ = SQL_TYPES[kind.name]
    if type_.name in ("float", "double"):
        return tree.Literal(value=value, type=SqlType("double"))
    if type_.name == "date":
        return tree.Literal(value=(_EPOCH + dt.timedelta(days=value)).date(), type=type_)
    if type_.name in ("timestamp", "timestamp_ntz"):
        try:
            moment = _EPOCH + dt.timedelta(microseconds=value)
        except OverflowError:
            return None
        zone = dt.UTC if type_.name == "timestamp" else None
        return tree.Literal(value=moment.replace(tzinfo=zone), type=type_)
    return tree.Literal(value=value, type=type_)


def truth(
    engine: duckdb.DuckDBPyConnection, rows: pa.Table, conditions: Sequence[str]
) -> list[list[bool | None]]:
    """What each condition is on each row."""
    if not rows.num_rows:
        return [[] for _ in conditions]
    types = pa.schema([(kind.name, kind.arrow) for kind in USED])
    names = [name for name in rows.column_names if name in types.names]
    # Some files hold times in other units.
    rows = rows.select(names).cast(pa.schema([types.field(name) for name in names]))
    columns = ", ".join(f"({sql}) AS c{n}" for n, sql in enumerate(conditions))
    engine.register("t", rows)
    found = engine.sql(f"SELECT {columns} FROM t").to_arrow_table()
    return [found[f"c{n}"].to_pylist() for n in range(len(conditions))]


def by_pyarrow(rows: pa.Table, group_rows: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=group_rows, **options)
    return sink.getvalue()


def by_us(rows: pa.Table) -> bytes:
    """As our jobs write: one row group."""
    store = MemoryStore()
    with ParquetDataWriter(store, "d", TableFormat(SCHEMA, (), {})) as writer:
        for batch in rows.combine_chunks().to_batches():
            writer.write(batch)
    [file] = writer.files
    return store.get(file.path)


def by_duckdb(rows: pa.Table, path: Path, options: str = "") -> bytes:
    with duckdb.connect() as engine:
        engine.register("t", rows)
        engine.sql(f"COPY (SELECT * FROM t) TO '{path}' (FORMAT parquet{options})")
    return path.read_bytes()


def by_deltalake(rows: pa.Table, folder: Path, group_rows: int) -> bytes:
    properties = WriterProperties(max_row_group_size=group_rows)
    write_deltalake(str(folder), rows, writer_properties=properties)
    [file] = folder.glob("*.parquet")
    return file.read_bytes()


def facts_of(data: bytes, **options: Any) -> FileFacts:
    store = MemoryStore()
    store.put("f.parquet", data)
    return read_facts(store, "f.parquet", len(data), **options)


def rows_by_group(data: bytes) -> list[pa.Table]:
    file = pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us")
    return [file.read_row_group(number) for number in range(file.num_row_groups)]
