"""The files that a condition may affect. A file whose statistics cannot be read is unknown, and
never left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log.snapshot import Snapshot
from tandem.distinct import BoolArray
from tandem.pruning.bounds import SortedKeys
from tandem.pruning.predicate import FileBounds, bounds_of, columns_of, may_match
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType

# The values that a column must have for a row to match: the keys of a merge's source.


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


class Selection:
    """A test of files, for one table's schema; without a condition it selects all files.

    Args:
        relation: the table's name in a condition over several relations.
        keys: the values that its columns must have.
    """

    def __init__(
        self, where: Expr | None, snapshot: Snapshot, *, relation: str = "",
        keys: Sequence[Keys] = (),
    ) -> None:  # fmt: skip
        self._where, self._relation = where, relation
        self._keys = tuple(keys) if where is not None else ()
        self._schema, self._partition_columns = snapshot.schema, snapshot.partition_columns

    def mask(self, files: pa.Table) -> BoolArray:
        """One entry per row of `files` (as `Snapshot.files`); False only if the condition is true
        on no row of the file."""
        if self._where is None or not files.num_rows:
            return np.ones(files.num_rows, bool)
        wanted = dict(columns_of(self._where, self._relation))
        wanted |= {key.column: key.type for key in self._keys}
        known = bounds_of(files, self._schema, self._partition_columns, wanted)
        found = may_match(self._where, known, self._relation)
        for key in self._keys:
            found &= key.may_occur(known)
        return found

    def of(self, files: pa.Table) -> pa.Table:
        """The rows of the selected files."""
        return files if self._where is None else files.filter(pa.array(self.mask(files)))

    def paths(self, files: pa.Table) -> frozenset[str]:
        """The logged paths of the selected files."""
        return frozenset(self.of(files.select(_READ))["path"].to_pylist())


_READ = ["path", "partition_values", "stats"]
