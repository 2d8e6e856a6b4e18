"""The values that a column must have for a row to match: the keys of a merge's source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tandem.pruning.bounds import BoolArray, SortedKeys
from tandem.pruning.files import FileBounds
from tandem.statements.types import SqlType


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
