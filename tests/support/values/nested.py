"""Columns with lists, maps and structs in each other, under names that engines quote: null, empty
and full at each depth."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

_ENTRY = pa.struct([("d", pa.decimal128(38, 10)), ("t", pa.timestamp("us"))])
_STRUCT = pa.struct([("x y", pa.int8()), ("a.b", pa.string()), ("l", pa.list_(_ENTRY))])
_FULL = [
    None,
    {"d": None, "t": None},
    {"d": Decimal(10**28 - 1), "t": -62_135_596_800_000_000},
    {"d": Decimal("-1E-10"), "t": 253_402_300_799_999_999},
]
_STRUCTS = [
    None,
    {"x y": None, "a.b": None, "l": None},
    {"x y": -128, "a.b": "", "l": []},
    {"x y": 127, "a.b": "\U0010ffff", "l": _FULL},
]

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a.list": (pa.list_(pa.int32()), [None, [], [None], [1, None, -(2**31)], [2**31 - 1]]),
    "lists": (
        pa.list_(pa.list_(pa.string())),
        [None, [], [None], [[]], [[], None, ["", None, "ü"]]],
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [None, [], [("", None)], [("a", -(2**63)), ("b", None)]],
    ),
    "map of lists": (
        pa.map_(pa.string(), pa.list_(pa.float64())),
        [None, [], [("k", None)], [("k", []), ("l", [None, math.nan, -0.0, math.inf])]],
    ),
    '`ü" x': (_STRUCT, _STRUCTS),
    "structs": (pa.list_(_STRUCT), [None, [], [None], _STRUCTS]),
}
"""By name, the type and its values."""


def with_nested(rows: pa.Table, turn: int = 0) -> pa.Table:
    """The rows with these columns, whose values take turns."""
    for step, (name, (type_, values)) in enumerate(COLUMNS.items()):
        chosen = [values[(turn + n + step) % len(values)] for n in range(rows.num_rows)]
        rows = rows.append_column(name, pa.array(chosen, type_))
    return rows
