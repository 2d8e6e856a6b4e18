"""Fills columns that a source lacks, over Arrow: with defaults, and with what generates them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tandem.statements.local.expression import compile_expression
from tandem.statements.local.kernels import NeedsSpark
from tandem.statements.statement import absent_values


def filled(
    rows: pa.Table, schema_string: str, given: Iterable[str], *, sparse: bool = False
) -> pa.Table:
    """Rows with the columns of a table, of which a source gave some and the others are NULL, with
    the values of these; `sparse` is as in `absent_values`.

    Raises: InvalidStatement; NeedsSpark if only Spark evaluates a value.
    """
    values = absent_values(schema_string, rows.column_names, given, sparse=sparse)
    for name, value in values.items():
        compiled = compile_expression(value)
        if compiled is None:
            raise NeedsSpark(f"{name}: an expression that only Spark evaluates")
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(at)
        found = compiled.evaluate(rows).cast(field.type)
        rows = rows.set_column(at, field, pc.coalesce(rows.column(at), found))
    return rows
