"""The order in which sorted rows are written, and the task that writes each: pure, on Arrow arrays.

Both strategies cut a bin into parts by a sample of its rows. A cut is a whole sort key, including
the row's original position: so parts have about the same size, however often a value occurs, and
adjacent parts have at most one value in common.

For `ZOrder` each column's values are numbered by quantiles of the sample, spread over all bits
that a column has, and the bits of all columns are interleaved. So columns of any type, range
and distribution have equal weight, also one with few distinct values
(`docs/decisions/0080-sorted-rows.md`). Null comes last, Arrow's default, and NaN immediately before
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Z_BITS = 60
"""Bits of a z-value: it is a positive 64-bit integer."""
COLUMN_BITS = 10
"""Maximum bits of one column: 1,024 quantiles."""

Integers = npt.NDArray[np.int64]


def bits_of(columns: int) -> int:
    """Bits of each column in a z-value of this many columns; at least one."""
    return max(1, min(COLUMN_BITS, Z_BITS // columns))


def quantiles(values: Any, count: int) -> Any:
    """At most `count - 1` ascending distinct values that cut a sample into `count` buckets of
    about the same size; fewer if it has fewer distinct ones."""
    known = values.drop_null()
    if pa.types.is_floating(known.type):
        known = known.filter(pc.invert(pc.is_nan(known)))
    if not len(known):
        return known
    in_order = known.take(pc.array_sort_indices(known))
    chosen = np.unique(np.arange(1, count) * len(known) // count)
    # Each value is a bound once, and the least is none: nothing is less. Found by comparison, since
    # 0.0 and -0.0 count as distinct values otherwise.
    picked = in_order.take(pa.array(np.concatenate(([0], chosen))))
    return picked.slice(1).filter(pc.not_equal(picked.slice(1), picked.slice(0, len(picked) - 1)))


def buckets(values: Any, bounds: Any) -> Integers:
    """How many of the ascending `bounds` are no greater than each value; all for null and NaN."""
    return _counted(
        pc.array_sort_indices(pa.concat_arrays([bounds, values])),
        len(bounds),
    )


def z_values(columns: Sequence[Any], bounds: Sequence[Any]) -> Integers:
    """The interleaved bits of all columns' buckets, the first column's highest bit first."""
    bits = bits_of(len(columns))
    found = np.zeros(len(columns[0]), dtype=np.int64)
    numbers = [_numbered(v, b, bits) for v, b in zip(columns, bounds, strict=True)]
    for bit in reversed(range(bits)):
        for number in numbers:
            found = (found << 1) | ((number >> bit) & 1)
    return found


def _numbered(values: Any, bounds: Any, bits: int) -> Integers:
    """Buckets, plus a separate one for null, spread over all numbers of this many bits: otherwise
    the few buckets of a column with few values would matter only where all other columns are
    equal."""
    found = buckets(values, bounds)
    last = len(bounds)
    if values.null_count:
        last += 1
        found[np.asarray(values.is_null())] = last
    return spread(found, last, bits)


def spread(numbers: Integers, last: int, bits: int) -> Integers:
    """Numbers from 0 to `last`, spread over those of this many bits."""
    return numbers * ((1 << bits) - 1) // last if last else numbers


def cuts(sample: pa.Table, parts: int) -> pa.Table:
    """The sampled keys at which the second, third, … of this many parts begin."""
    chosen = np.unique(np.arange(1, parts) * sample.num_rows // parts)
    if not sample.num_rows or parts < 2:
        return sample.slice(0, 0)
    return sample.take(_sorted(sample)).take(pa.array(chosen))


def part_of(keys: pa.Table, bounds: pa.Table) -> Integers:
    """The part of each row: how many of the cuts are no greater than its key."""
    if not bounds.num_rows:
        return np.zeros(keys.num_rows, dtype=np.int64)
    return _counted(_sorted(pa.concat_tables([bounds, keys])), bounds.num_rows)


def _sorted(table: pa.Table) -> Any:
    return pc.sort_indices(
        table.combine_chunks(),
        sort_keys=[(name, "ascending") for name in table.column_names],
    )


def _counted(order: Any, bounds: int) -> Integers:
    """For the elements after the first `bounds` ones of the unsorted input: how many bounds precede
    each of them in sorted order. The sort is stable, so a bound precedes elements equal to it."""
    places = order.to_numpy().astype(np.int64)
    before = np.cumsum(places < bounds)
    found = np.empty(len(places), dtype=np.int64)
    found[places] = before
    return found[bounds:]
