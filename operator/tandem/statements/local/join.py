"""Finds the rows of two sides with equal keys: a hash join on codes.

The values of a key on both sides are numbered together, equal values with the same code, by
Spark's equality: NaN equals NaN, -0.0 equals 0.0. NULL equals nothing, except by `<=>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import number_rows
from tandem.statements.local.rows import NeedsSpark

# Finds the rows whose key is among some values, much faster than a join. Pure.
#
# Equality is that of Arrow, so floating point keys are not looked for: -0.0 equals 0.0 in Spark.


_MULTIPLIER: Final = np.array([0x9E3779B97F4A7C15], np.uint64)
_MARKS_PER_VALUE: Final = 16
_MOST_BITS: Final = 24
"""Marks take a byte each."""


class SoughtValues:
    """The distinct values of one key; with NULL among them, NULL is found, too."""

    def __init__(self, values: Any) -> None:
        self._values = values
        self._marks: Any = None
        if pa.types.is_signed_integer(values.type) and not values.null_count:
            wanted = max(1, len(values)) * _MARKS_PER_VALUE
            self._bits = min(wanted.bit_length(), _MOST_BITS)
            self._marks = np.zeros(1 << self._bits, bool)
            self._marks[self._places(values)] = True

    def rows(self, column: Any) -> Places:
        """The indexes of the rows that have one of the values, ascending."""
        if self._marks is None:
            return np.flatnonzero(np.asarray(pc.is_in(column, self._values)))
        # Nearly all others are left out by one look at a small array.
        marked = np.flatnonzero(self._marks[self._places(pc.fill_null(column, 0))])
        found = pc.is_in(column.take(pa.array(marked)), self._values)
        return marked[np.flatnonzero(np.asarray(found))]

    def _places(self, column: Any) -> Any:
        words = np.asarray(column.cast(pa.int64())).view(np.uint64)
        return (words * _MULTIPLIER) >> np.uint64(64 - self._bits)


Places = npt.NDArray[np.int64]

MAX_PAIRS = 5_000_000
"""Larger joins are left to Spark, which need not hold all pairs in memory."""


@dataclass(frozen=True)
class RowPairs:
    """Pairs of rows, by their indexes on either side; ascending by `target`, then `source`."""

    target: Places
    source: Places

    def __len__(self) -> int:
        return len(self.target)

    def take(self, places: Any) -> RowPairs:
        """Some of the pairs; `places` ascending."""
        chosen = np.asarray(places, dtype=np.int64)
        return RowPairs(self.target[chosen], self.source[chosen])

    def doubled(self) -> Places:
        """Rows of the target in more than one pair, without duplicates, ascending."""
        again = self.target[1:][self.target[1:] == self.target[:-1]]
        return np.unique(again)


@dataclass(frozen=True)
class KeyValues:
    """The values of one key on both sides, as arrays of one type."""

    target: Any
    source: Any
    null_safe: bool = False


def equal_pairs(keys: Sequence[KeyValues], *, most: int = MAX_PAIRS) -> RowPairs:
    """The pairs whose values are equal for every key (at least one).

    Raises: NeedsSpark if there are more than `most`; pa.ArrowException for values that cannot be
    hashed.
    """
    target, source = _codes(keys)
    # Source rows by code: those of code c are order[start[c] : start[c + 1]].
    order = np.argsort(source, kind="stable")
    order = order[np.searchsorted(source[order], 0) :]
    highest = int(max(target.max(initial=-1), source.max(initial=-1)))
    counts = np.bincount(source[order], minlength=highest + 1)
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1] if len(counts) else counts
    found = np.flatnonzero(target >= 0)
    codes = target[found]
    each = counts[codes]
    total = int(each.sum())
    if total > most:
        raise NeedsSpark(f"{total} pairs of rows have equal keys")
    targets = np.repeat(found, each)
    # The position of each pair within its target row.
    within = np.arange(total) - np.repeat(np.cumsum(each) - each, each)
    sources = order[np.repeat(starts[codes], each) + within]
    return RowPairs(targets.astype(np.int64), sources.astype(np.int64))


def _codes(keys: Sequence[KeyValues]) -> tuple[Places, Places]:
    """A number for each row, equal for equal keys; -1 for a row whose key equals nothing."""
    columns = [_numbered(key) for key in keys]
    codes = columns[0]
    if len(columns) > 1:
        codes, _ = number_rows(columns)
        codes[np.any([column < 0 for column in columns], axis=0)] = -1
    split = len(keys[0].target)
    return codes[:split], codes[split:]


def _numbered(key: KeyValues) -> Places:
    values = pa.concat_arrays([key.target, key.source])
    if pa.types.is_floating(values.type):
        zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
        values = pc.if_else(pc.equal(values, zero), zero, values)
        values = pc.if_else(pc.is_nan(values), nan, values)
    nulls = "encode" if key.null_safe else "mask"
    if pa.types.is_null(values.type):
        return np.full(len(values), 0 if key.null_safe else -1, dtype=np.int64)
    indices = values.dictionary_encode(null_encoding=nulls).indices
    return np.asarray(pc.fill_null(indices, -1).cast(pa.int64()))
