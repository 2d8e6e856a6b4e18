"""The values that a column must have for a row to match: the keys of a merge's source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray
from tandem.pruning.bounds import SortedKeys
from tandem.pruning.files import FileBounds
from tandem.statements.types import SqlType

KEY_TYPES: Final = frozenset(
    {
        "byte",
        "short",
        "integer",
        "long",
        "string",
        "date",
        "timestamp",
        "timestamp_ntz",
        "decimal",
    }
)
"""Types whose values Python orders as Spark does. Not float: NaN lies within no bounds."""


@dataclass(frozen=True)
class Keys:
    """A column of the table must equal one of `values` for a row to match.

    `values` are ascending, in the form of bounds (text as bytes of UTF-8); all of them if
    `complete`, else the least and the greatest. `column` is a name as in the schema.
    """

    column: str
    type: SqlType
    values: tuple[Any, ...]
    complete: bool

    def may_occur(self, files: FileBounds) -> BoolArray:
        """False only for files that have no row with one of the values."""
        if not self.values:
            return np.zeros(files.count, bool)
        known = files.columns.get(self.column)
        if known is None:
            return np.ones(files.count, bool)
        return known.some_value & known.may_equal(self._sorted)

    @cached_property
    def _sorted(self) -> SortedKeys:
        # Cached, since each round of a merge tests other files with the same keys.
        return SortedKeys(self.values, self.complete)


def keys_of(
    column: str, type_: SqlType, found: pa.Array | pa.ChunkedArray, *, complete: bool
) -> Keys | None:
    """The values that a column of the table must have, from the values that it is compared with.

    NULL equals nothing. None if the values have no order here: by their type, or since Python
    lacks them (years beyond 9999).
    """
    if type_.name not in KEY_TYPES:
        return None
    try:
        values = pc.unique(found.drop_null()).to_pylist()
    except (ValueError, OverflowError):
        return None
    if type_.name == "string":
        values = [value.encode() for value in values]
    return Keys(column, type_, tuple(sorted(values)), complete)
