"""The rows on which a local expression is evaluated, and the error if Spark must evaluate them.

Columns are read lazily and once: an expression on the pairs of a join takes from either side only
the columns that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import PrimitiveType, to_arrow_type
from tandem.statements.types import SqlType

COLLATED = "__COLLATIONS"
"""Metadata of a text column whose collation decides which values are equal, not their bytes."""
NOT_OURS = ("__CHAR_VARCHAR_TYPE_STRING", COLLATED)
"""Metadata of columns whose comparisons or checks only Spark performs."""


class NeedsSpark(Exception):
    """These rows cannot be evaluated here.

    Either Spark would raise on one of them (an overflow, a division by zero, a value that does not
    fit its column) and has the better message, or it might in one order of evaluation, or the rows
    have a form that is not covered. Spark determines the result.
    """


def arrow_type(data_type: SqlType) -> Any:
    """The Arrow type of a statement's type in tables. Raises: KeyError for a type that is not
    atomic."""
    if data_type.name == "null":
        return pa.null()
    if data_type.name == "decimal":
        return pa.decimal128(data_type.precision, data_type.scale)
    return to_arrow_type(PrimitiveType(data_type.name))


class LocalRows:
    """Rows of one table, or of the pairs of a join.

    `sides` has the tables by the name of their relation ("" for a statement on one table), each
    with the indexes of its rows; None for all. A missing relation has no rows here, such as the
    table in a clause on source rows without a match.
    """

    def __init__(self, sides: Mapping[str, tuple[pa.Table, Any]], length: int) -> None:
        self.length = length
        self._sides = sides
        self._read: dict[tuple[str, tuple[str, ...]], Any] = {}

    @classmethod
    def of(cls, table: pa.Table, relation: str = "") -> LocalRows:
        """All rows of a table."""
        return cls({relation: (table, None)}, table.num_rows)

    def take(self, indices: Any) -> LocalRows:
        """Some of these rows, by their indexes here (an Arrow array or numpy array)."""
        chosen = pa.array(indices, pa.int64())
        sides = {
            name: (table, chosen if before is None else pc.take(before, chosen))
            for name, (table, before) in self._sides.items()
        }
        return LocalRows(sides, len(chosen))

    def column(self, relation: str, path: tuple[str, ...]) -> Any:
        """A column, or a field inside struct columns, as one Arrow array.

        Raises: NeedsSpark if it is too large to be one array.
        """
        key = (relation, path)
        if key not in self._read:
            self._read[key] = self._column(relation, path)
        return self._read[key]

    def _column(self, relation: str, path: tuple[str, ...]) -> Any:
        if len(path) > 1:
            # A field of a NULL struct is NULL.
            above = self.column(relation, path[:-1])
            index = above.type.get_field_index(path[-1])
            if index < 0:
                raise NeedsSpark(f"several fields, or none, are called {path[-1]}")
            # By position: Arrow takes a name that begins with a dot for a path.
            return pc.struct_field(above, [index])
        table, indices = self._sides[relation]
        column = table.column(path[0]).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            if column.num_chunks > 1:
                raise NeedsSpark(f"{path[0]} is too large to be one array")
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        return column if indices is None else column.take(indices)
