"""Which files a condition may concern, from statistics and partition values.

Brings files into the shape that `tandem.statements.prune` decides by. Knows nothing for sure:
whatever cannot be read here is unknown, and an unknown file is never skipped.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from tandem.delta.actions import AddFile
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.partition_text import to_scalar
from tandem.delta.schema import Field, PrimitiveType
from tandem.errors import CorruptLog
from tandem.operations.model import Table
from tandem.statements.prune import ColumnRange, FileRange, Keys, may_match
from tandem.statements.statement import parse_where
from tandem.statements.tree import Expr
from tandem.storage import paths

Selects = Callable[[AddFile], bool]


def files_where(where: str, snapshot: Snapshot, *, resource: str, field: str) -> Selects:
    """A test for files, from the text of a condition. Raises: InvalidStatement."""
    text = snapshot.metadata.schema_string
    return files_of(parse_where(where, text, resource=resource, field=field), snapshot)


def files_of(
    where: Expr | None, snapshot: Snapshot, *, relation: str = "", keys: Sequence[Keys] = ()
) -> Selects:
    """A test for files: False only if the condition is true on no row of the file. `relation` is
    the table's name in a condition over several; `keys` are what its columns must equal."""
    columns = [f for f in snapshot.schema.fields if isinstance(f.type, PrimitiveType)]

    def selects(add: AddFile) -> bool:
        file = _range(add, columns).named(relation)
        return may_match(where, file) and all(key.may_occur(file) for key in keys)

    return selects if where is not None else lambda _add: True


def require_inside(table: Table, adds: Iterable[AddFile]) -> None:
    """That the log's paths of these files stay in the table or below an allowed prefix, so that
    no job is started that would be refused them one by one.

    Raises: LocationNotAllowed.
    """
    allowed = tuple(
        paths.canonical_prefix(prefix, field="allowedPrefixes") for prefix in table.allowed_prefixes
    )
    for add in adds:
        paths.resolve(add.path, table.location, allowed)


def _range(add: AddFile, columns: list[Field]) -> FileRange:
    stats = _parsed(add.stats)
    minimum, maximum, nulls = (
        _object(stats, name) for name in ("minValues", "maxValues", "nullCount")
    )
    tight = stats.get("tightBounds", True) is not False
    ranges: dict[tuple[str, ...], ColumnRange] = {}
    partitions: dict[str, Any] = {}
    for column in columns:
        name = column.physical_name
        if name in add.partition_values:
            known, value = _partition(add.partition_values[name], column)
            if known:
                partitions[column.name] = value
            continue
        count = nulls.get(name)
        ranges[column.name,] = ColumnRange(
            _value(minimum.get(name), column),
            _value(maximum.get(name), column),
            count if isinstance(count, int) and tight else None,
        )
    rows = stats.get("numRecords")
    return FileRange.of(ranges, partitions, rows if isinstance(rows, int) else None)


def _parsed(stats: str | None) -> dict[str, Any]:
    if not stats:
        return {}
    try:
        found = json.loads(stats, parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _object(stats: dict[str, Any], name: str) -> dict[str, Any]:
    found = stats.get(name)
    return found if isinstance(found, dict) else {}


def _partition(text: str | None, column: Field) -> tuple[bool, Any]:
    try:
        return True, to_scalar(text, column.type).as_py()
    except (CorruptLog, ValueError, OverflowError):  # also what Python's calendar lacks
        return False, None


def _value(value: Any, column: Field) -> Any:
    """A bound as the Python value of the column's type, None where it is none."""
    assert isinstance(column.type, PrimitiveType)
    name = column.type.name
    try:
        if value is None or isinstance(value, bool) != (name == "boolean"):
            return None
        if name in ("long", "integer", "short", "byte"):
            return value if isinstance(value, int) else None
        if name in ("float", "double"):
            return float(value) if isinstance(value, int | Decimal) else None
        if column.type.decimal is not None:
            return Decimal(value) if isinstance(value, int | Decimal) else None
        if not isinstance(value, str):
            return value if name == "boolean" else None
        if name == "string":
            return value
        if name == "date":
            return dt.date.fromisoformat(value)
        if name in ("timestamp", "timestamp_ntz"):
            moment = dt.datetime.fromisoformat(value)
            if name == "timestamp":
                return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
            return moment.replace(tzinfo=None)
    except (ValueError, InvalidOperation):
        return None
    return None
