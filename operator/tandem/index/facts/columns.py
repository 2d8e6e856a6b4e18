"""One column's bounds in many row groups, as values of the column's type.

Pure. A column of a table may be stored in several types: it was widened, or writers differ. Bounds
are used where every reader converts the values alike; elsewhere they are unknown.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import Field, PrimitiveType
from tandem.index.columns import EntryColumn, entry_column
from tandem.index.facts.model import UNKNOWN, ColumnFacts, ColumnKey, FileFacts
from tandem.index.facts.stored import StoredType, ValueKind
from tandem.pruning.bounds import StatisticsBounds, held
from tandem.pruning.constants import INTEGRAL
from tandem.statements.types import SqlType, as_decimal

_SAME = {
    "boolean": ValueKind.BOOLEAN,
    "string": ValueKind.TEXT,
    "date": ValueKind.DATE,
    "timestamp": ValueKind.TIMESTAMP,
    "float": ValueKind.FLOAT,
}


def column_keys(facts: FileFacts, field: Field, *, by_id: bool) -> list[ColumnKey]:
    """The columns of files that readers take for a column of the table.

    Args:
        by_id: the table maps columns by field id. Columns without one are mapped by name.
    """
    return [
        key
        for key in facts.columns
        if key.name == field.physical_name
        and (not by_id or key.field_id is None or key.field_id == field.field_id)
    ]


def group_column(
    facts: FileFacts, field: Field, type_: SqlType, *, by_id: bool
) -> EntryColumn | None:
    """The bounds of a column in all row groups, None if nothing is known of it.

    Args:
        type_: the column's type in the condition.
    """
    if not isinstance(field.type, PrimitiveType):
        return None
    count = len(facts.group_rows)
    low: pa.Array | None = None
    nulls = np.full(count, UNKNOWN)
    for key in column_keys(facts, field, by_id=by_id):
        column = facts.columns[key]
        nulls = np.where(column.nulls == UNKNOWN, nulls, column.nulls)
        found = values(column, key.type, type_)
        if found is None:
            continue
        if low is None:
            low, high = found
        else:
            low, high = pc.coalesce(low, found[0]), pc.coalesce(high, found[1])
    if low is None:
        return None
    bounds = StatisticsBounds(
        type_,
        low,
        high,
        some_null=nulls != 0,
        some_value=nulls != facts.group_rows,
    )
    return entry_column(bounds)


def values(
    column: ColumnFacts, stored: StoredType, type_: SqlType
) -> tuple[pa.Array, pa.Array] | None:
    """Bounds as `StatisticsBounds` has them of a type; None if values of the stored type are not
    read as such."""
    if not reads_as(stored, type_):
        return None
    low, high = column.low, column.high
    if type_.name in ("float", "double", "decimal"):
        # As for statistics in the log: no NaN as a bound, and decimals of many digits are wider.
        return held(low.cast(pa.float64(), safe=False), high.cast(pa.float64(), safe=False), type_)
    return low, high


def reads_as(stored: StoredType, type_: SqlType) -> bool:
    """Whether values of a stored type are read as values of a column's type, in the same order
    (protocol, "Type Widening")."""
    kind = stored.kind
    if type_.name in INTEGRAL:
        return kind is ValueKind.INTEGER
    match type_.name:
        case "double":
            return kind in (ValueKind.FLOAT, ValueKind.DOUBLE) or (
                stored.physical == "INT32" and (kind is ValueKind.INTEGER)
            )
        case "decimal":
            wanted = as_decimal(type_)
            return kind is ValueKind.INTEGER or (
                kind is ValueKind.DECIMAL
                and stored.scale <= wanted.scale
                and stored.precision - stored.scale <= wanted.precision - wanted.scale
            )
        case "timestamp_ntz":
            return kind in (ValueKind.TIMESTAMP_NTZ, ValueKind.DATE)
        case _:
            return type_.name in _SAME and kind is _SAME[type_.name]
