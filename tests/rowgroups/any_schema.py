"""Tables of any schema, and rows of them, for Hypothesis."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.schema import (
    COLUMN_ID,
    PHYSICAL_NAME,
    ArrayType,
    DataType,
    Field,
    MapType,
    PrimitiveType,
    StructType,
)

NAMES = st.sampled_from(["a", "b.c", "`", "ü", "x y", "element", "list", "key", "A1", ""]).map(
    lambda name: name or "empty"
)
SIMPLE: Mapping[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "byte": st.integers(-128, 127),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "string": st.text(st.characters(codec="utf-8"), max_size=50),
    "binary": st.binary(max_size=5),
    "decimal(9,2)": st.decimals(-(10**6), 10**6, places=2, allow_nan=False),
    "decimal(18,4)": st.decimals(-(10**13), 10**13, places=4, allow_nan=False),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10, allow_nan=False),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
}


def types(depth: int = 2) -> st.SearchStrategy[tuple[DataType, st.SearchStrategy[Any]]]:
    """A type, and its values."""
    simple = st.sampled_from(sorted(SIMPLE)).map(lambda n: (PrimitiveType(n), SIMPLE[n]))
    if not depth:
        return simple
    inner = types(depth - 1)
    return st.one_of(
        simple,
        inner.map(lambda t: (ArrayType(t[0], True), st.lists(t[1] | st.none(), max_size=3))),
        inner.map(
            lambda t: (
                MapType(PrimitiveType("string"), t[0], True),
                st.dictionaries(st.sampled_from("kl"), t[1] | st.none()).map(
                    lambda found: list(found.items())
                ),
            )
        ),
        st.dictionaries(NAMES, inner, min_size=1, max_size=2).map(
            lambda fields: (
                StructType(tuple(Field(n, t[0], nullable=True) for n, t in fields.items())),
                st.fixed_dictionaries({n: t[1] | st.none() for n, t in fields.items()}),
            )
        ),
    )


@st.composite
def tables(
    draw: st.DrawFn, sizes: tuple[tuple[int, int], ...] = ((1, 6), (1, 6))
) -> tuple[TableFormat, list[list[dict[str, Any]]]]:
    """A table, and rows of it: lists of the least and the greatest size."""
    columns = draw(st.dictionaries(NAMES, types(), min_size=1, max_size=4))
    row = st.fixed_dictionaries({n: t[1] | st.none() for n, t in columns.items()})
    lists = [draw(st.lists(row, min_size=least, max_size=most)) for least, most in sizes]
    schema = StructType(tuple(Field(n, t[0], nullable=True) for n, t in columns.items()))
    return TableFormat(schema), lists


def mapped(table: TableFormat, mode: str) -> TableFormat:
    """The table with column mapping: every field has an id, and another name in files."""
    count = 0

    def renamed(type_: DataType) -> DataType:
        nonlocal count
        match type_:
            case StructType():
                found = []
                for field in type_.fields:
                    count += 1
                    ids = {COLUMN_ID: count, PHYSICAL_NAME: f"col-{count}"}
                    found.append(replace(field, type=renamed(field.type), metadata=ids))
                return StructType(tuple(found))
            case ArrayType():
                return replace(type_, element=renamed(type_.element))
            case MapType():
                return replace(type_, value=renamed(type_.value))
            case _:
                return type_

    schema = renamed(table.schema)
    assert isinstance(schema, StructType)
    return replace(table, schema=schema, configuration={"delta.columnMapping.mode": mode})
