"""Where the rows of a bin are cut into ranges of its order: pure, on Arrow and numpy arrays.

A bound is a whole key of a sampled row, with the row's place among the live rows of its bin as the
last part. So ranges have about the same size, however often a value occurs, and adjacent ranges
have at most one value in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import or_
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tandem.spark.jobs.rewrite.codes import codes_of, in_order, one_array

PLACE: Final = "__tandem_place"
"""Column of the rows' places, unsigned and of 32 bits."""
_MIXED: Final = np.uint64(0x9E3779B97F4A7C15)

Ranges = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Of some rows of a bin: how much memory they take by the footers of their files, in bytes;
    whether some are null in each column of the order; and a sample: these columns and `PLACE`."""

    size: int
    nulls: tuple[bool, ...]
    rows: pa.Table


@dataclass(slots=True)
class Sample:
    """What was sampled of a bin, of which rows are left out evenly if they take more than `most`
    bytes. Which ones does not depend on what is added first."""

    most: int
    size: int = 0
    nulls: tuple[bool, ...] = ()
    _rows: list[pa.Table] = field(default_factory=list)
    _every: int = 1

    def add(self, more: Sampled) -> None:
        self.size += more.size
        self.nulls = tuple(map(or_, self.nulls, more.nulls)) if self.nulls else more.nulls
        self._rows.append(self._thin(more.rows))
        while sum(rows.nbytes for rows in self._rows) > self.most and self.rows.num_rows > 1:
            self._every *= 2
            self._rows = [self._thin(rows) for rows in self._rows]

    @property
    def rows(self) -> pa.Table:
        """The sample, by place."""
        return pa.concat_tables(self._rows).sort_by(PLACE)

    def _thin(self, rows: pa.Table) -> pa.Table:
        if self._every == 1:
            return rows
        mixed = rows[PLACE].to_numpy().astype(np.uint64) * _MIXED >> np.uint64(32)
        return rows.filter(pa.array(mixed % np.uint64(self._every) == 0))


@dataclass(frozen=True, slots=True)
class Cuts:
    """How the rows of large bin `number` are cut: each part into so many ranges, at these bounds.
    For a z-order, `quantiles` has those of each column, and `nulls` whether any row is null."""

    number: int
    ranges: int
    bounds: pa.Table
    quantiles: tuple[Any, ...] = ()
    nulls: tuple[bool, ...] = ()


def bounds_of(sample: pa.Table, keys: Sequence[str], ranges: int) -> pa.Table:
    """The sampled rows at which the second, third, … of this many ranges begin, in their order.

    Args:
        sample: the columns of the keys and `PLACE`, by which its rows ascend.
        keys: the columns of the order.
        ranges: at least one. Some are empty if the sample has fewer rows.
    """
    rows = sample.num_rows
    sample = sample.select([*keys, PLACE])
    if not rows:
        return sample
    order = in_order([codes_of(sample[name].combine_chunks()) for name in keys], rows)
    return sample.take(pa.array(order[np.arange(1, ranges) * rows // ranges]))


def ranges_of(columns: Mapping[str, Any], keys: Sequence[str], bounds: pa.Table) -> Ranges:
    """The range of each row: how many of the bounds are no greater.

    Args:
        columns: those of the keys and `PLACE`, in which no place occurs twice.
    """
    count = bounds.num_rows
    rows = len(columns[PLACE])
    if not count:
        return np.zeros(rows, dtype=np.uint32)
    places = np.concatenate((bounds[PLACE].to_numpy(), columns[PLACE].to_numpy()))
    # Equal keys keep their order, and a bound precedes the row of its own place.
    mixed = np.argsort(places, kind="stable")
    found = [codes_of(one_array([*bounds[name].chunks, columns[name]])) for name in keys]
    moved = [replace(each, values=each.values[mixed]) for each in found]
    order = mixed[in_order(moved, count + rows)]
    below = np.empty(count + rows, dtype=np.uint32)
    below[order] = np.cumsum(order < count)
    return below[count:]


def divided(
    columns: Mapping[str, Any], keys: Sequence[str], bounds: pa.Table, most: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(range, rows of it), in order, of about `most` bytes each."""
    ranges = ranges_of(columns, keys, bounds)
    if bounds.num_rows < 1 << 16:
        ranges = ranges.astype(np.uint16)  # which numpy sorts several times faster
    order = np.argsort(ranges, kind="stable")
    ends = np.searchsorted(ranges[order], np.arange(bounds.num_rows + 2)).tolist()
    size = sum(column.nbytes for column in columns.values())
    step = max(1, most * len(ranges) // max(size, 1))
    for range_, (start, end) in enumerate(pairwise(ends)):
        for first in range(start, end, step):
            places = pa.array(order[first : min(first + step, end)])
            arrays = [_without_waste(column.take(places)) for column in columns.values()]
            yield range_, pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _without_waste(column: Any) -> Any:
    """Without a dictionary that is larger than what it saves."""
    if pa.types.is_dictionary(column.type) and 4 * len(column.dictionary) > len(column):
        return column.dictionary_decode()
    return column
