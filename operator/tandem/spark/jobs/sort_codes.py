"""The order of rows by columns, found on integers: pure, on Arrow and numpy arrays.

Each value becomes a *code*: an integer that is less, equal or greater as the value is. Codes of all
columns are parts of one long number per row, the first column's part the highest. Rows are ordered
by its words, the lowest first, and each word has the row's place below it: so every word is
distinct, numpy's fast sort of integers is also a stable one, and no comparison calls a function.
Null comes last, NaN before it, and 0.0 equals -0.0, as in Spark's sort.

For a z-order each column's values are numbered by quantiles of a sample, spread over all bits that
a column has, and the bits of all columns are interleaved, or give a place on a Hilbert curve. So
columns of any type, range and distribution have equal weight, also one with few distinct values
(`docs/decisions/0080-sorted-rows.md`).
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
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.uint32]
"""Numbers of rows."""

Z_BITS: Final = 60
"""Bits of a z-value: it is a positive 64-bit integer."""
COLUMN_BITS: Final = 10
"""Maximum bits of one column: 1,024 quantiles."""
WORD: Final = 64
_SIGN: Final = 1 << (WORD - 1)
SAMPLE: Final = 1 << 18
"""Rows from which the quantiles of a z-order are taken, if there are more."""
_AT_ONCE: Final = 1 << 20
"""Rows whose places on a Hilbert curve are found at once."""
_TABLE: Final = 1 << 20
"""Codes below this are looked up in a table."""
_SHORT_DECIMAL: Final = 18
"""Digits of a decimal that has 64 bits."""


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of a column's rows: up to `known` those of values, then that of NaN, and then that
    of null, each if there is one. `top` is the greatest of all, -1 without rows."""

    values: Words
    known: int
    top: int
    has_null: bool = False

    @property
    def bits(self) -> int:
        """Bits of the greatest code."""
        return max(self.top, 0).bit_length()


def codes_of(values: Any) -> Codes:
    """The codes of an array: numbers, booleans, dates, times, texts or bytes; texts also as a
    dictionary."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        return _of_dictionary(values)
    if pa.types.is_floating(type_):
        return _of_floats(values)
    numbers = _integers(values)
    if numbers is None:
        return _of_ranks(values)
    valid = _valid(values)
    known = numbers if valid is None else numbers[valid]
    span = int(known.max()) - int(known.min()) if len(known) else 0
    if span + 2 > 1 << WORD:
        return _of_ranks(values)  # no code is left for null
    unsigned = numbers.astype(np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    return _coded(unsigned, valid)


def one_array(chunks: Sequence[Any]) -> Any:
    """The chunks of a column as one array. Some may have a dictionary."""
    if any(pa.types.is_dictionary(chunk.type) for chunk in chunks):
        # Files of one table may differ in whether a column has a dictionary.
        type_ = pa.dictionary(pa.int32(), pa.string())
        encoded = [
            each if pa.types.is_dictionary(each.type) else each.dictionary_encode()
            for each in chunks
        ]
        chunked = pa.chunked_array([each.cast(type_) for each in encoded], type_)
        return chunked.unify_dictionaries().combine_chunks()
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def in_order(keys: Sequence[Codes], rows: int) -> Rows:
    """The numbers of the rows in the order of these keys; equal ones stay as they are. There are
    less than 2³² rows."""
    place_bits = max(rows - 1, 0).bit_length()
    order: Rows | None = None
    word = np.zeros(rows, dtype=np.uint64)
    filled = 0
    for key in reversed(keys):
        values, left = key.values, key.bits
        while left:
            taken = min(left, WORD - place_bits - filled)
            part = values if taken == left else values & _ones(taken)
            word |= part << np.uint64(place_bits + filled)
            left -= taken
            filled += taken
            if left:
                values = values >> np.uint64(taken)
            if filled + place_bits == WORD:
                order = _by_word(order, word)
                word = np.zeros(rows, dtype=np.uint64)
                filled = 0
    if filled:
        order = _by_word(order, word)
    return np.arange(rows, dtype=np.uint32) if order is None else order


def _by_word(order: Rows | None, word: Words) -> Rows:
    """Rows in this order, stably sorted by a word whose lower bits are zero, where places go."""
    rows = len(word)
    found = word if order is None else word[order]
    found |= np.arange(rows, dtype=np.uint64)
    found.sort()
    places = (found & _ones(max(rows - 1, 0).bit_length())).astype(np.uint32)
    return places if order is None else order[places]


def z_codes(keys: Sequence[Codes], *, hilbert: bool = False) -> Codes:
    """The z-values of all rows of a bin by these columns."""
    chosen = sampled_rows(len(keys[0].values))
    samples = [replace(key, values=key.values[chosen]) for key in keys]
    bits = bits_of(len(keys))
    bounds = [each.values[quantiles(each, 1 << bits)] for each in samples]
    values = z_values(keys, bounds, [key.has_null for key in keys], hilbert=hilbert)
    return Codes(values, (1 << bits * len(keys)) - 1, (1 << bits * len(keys)) - 1)


def bits_of(columns: int) -> int:
    """Bits of each column in a z-value of this many columns; at least one."""
    return max(1, min(COLUMN_BITS, Z_BITS // columns))


def sampled_rows(rows: int) -> Rows:
    """Which rows of so many are a sample of them, ascending; all if they are few."""
    if rows <= SAMPLE:
        return np.arange(rows, dtype=np.uint32)
    # Not at regular intervals, which may coincide with a pattern in the rows; but the same rows
    # each time, so that two drivers write the same files.
    chosen = np.random.default_rng(rows).choice(rows, SAMPLE, replace=False)
    return np.sort(chosen).astype(np.uint32)


def quantiles(sample: Codes, count: int) -> npt.NDArray[np.int64]:
    """The rows of a sample whose values cut it into `count` buckets of about the same size, in
    ascending order: at most `count - 1`, fewer if it has fewer distinct values."""
    if sample.known < 0:
        return np.empty(0, dtype=np.int64)
    order = np.argsort(sample.values, kind="stable").astype(np.int64)
    known = order[: np.count_nonzero(sample.values <= np.uint64(sample.known))]
    if not len(known):
        return known
    places = np.unique(np.arange(1, count) * len(known) // count)
    # Each value is a bound once, and the least is none: nothing is less.
    picked = known[np.concatenate(([0], places))]
    values = sample.values[picked]
    distinct: npt.NDArray[np.int64] = picked[1:][values[1:] != values[:-1]]
    return distinct


def z_values(
    keys: Sequence[Codes],
    bounds: Sequence[Words],
    nulls: Sequence[bool],
    *,
    hilbert: bool = False,
) -> Words:
    """The z-values of some rows of a bin, or their places on a Hilbert curve.

    Args:
        bounds: the codes of each column's quantiles, ascending.
        nulls: for each column, whether any row of the bin is null there.
    """
    bits = bits_of(len(keys))
    found = np.zeros(len(keys[0].values), dtype=np.uint64)
    axes = []
    for number, (key, cuts, has_null) in enumerate(zip(keys, bounds, nulls, strict=True)):
        # Null has a bucket of its own.
        last = len(cuts) + has_null
        buckets = np.arange(last + 1, dtype=np.int64)
        # Spread over all numbers of this many bits: otherwise the few buckets of a column with few
        # values would matter only where all other columns are equal.
        spread = buckets * ((1 << bits) - 1) // last if last else buckets
        if hilbert:
            axes.append(_by_bucket(key, cuts, spread.astype(np.uint16)))
            continue
        # The bits of this column, where they are in a z-value, for each of its buckets.
        placed = np.zeros(last + 1, dtype=np.uint64)
        for bit in range(bits):
            place = bit * len(keys) + len(keys) - 1 - number
            placed |= ((spread >> bit) & 1).astype(np.uint64) << np.uint64(place)
        found |= _by_bucket(key, cuts, placed)
    for start in range(0, len(found) if hilbert else 0, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        found[part] = hilbert_places([axis[part].astype(np.uint64) for axis in axes], bits)
    return found


def hilbert_places(axes: Sequence[Words], bits: int) -> Words:
    """The places on a Hilbert curve of points whose coordinates have so many bits, which change
    (J. Skilling, "Programming the Hilbert curve", 2004)."""
    first, zero = axes[0], np.uint64(0)
    for bit in range(bits - 1, 0, -1):
        below = _ones(bit)
        for axis in axes:
            swapped = (first ^ axis) & below
            is_set = axis >> np.uint64(bit) & np.uint64(1) != zero
            first ^= np.where(is_set, below, swapped)
            axis ^= np.where(is_set, zero, swapped)
    for before, axis in pairwise(axes):
        axis ^= before
    flips = np.zeros(len(first), dtype=np.uint64)
    for bit in range(bits - 1, 0, -1):
        is_set = axes[-1] >> np.uint64(bit) & np.uint64(1) != zero
        flips ^= np.where(is_set, _ones(bit), zero)
    found = np.zeros(len(first), dtype=np.uint64)
    for number, axis in enumerate(axes):
        axis ^= flips
        for bit in range(bits):
            place = bit * len(axes) + len(axes) - 1 - number
            found |= (axis >> np.uint64(bit) & np.uint64(1)) << np.uint64(place)
    return found


def _by_bucket(key: Codes, bounds: Words, placed: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What `placed` says of the bucket of each row. Null has the last one."""
    if key.top < _TABLE:
        every = np.arange(key.top + 1, dtype=np.uint64)
        table = placed[np.searchsorted(bounds, every, side="right")]
        if key.has_null:
            table[key.top] = placed[-1]
        return table[key.values]
    found = placed[np.searchsorted(bounds, key.values, side="right")]
    if key.has_null:
        found[key.values == np.uint64(key.top)] = placed[-1]
    return found


# Codes of each kind of values


def _integers(values: Any) -> npt.NDArray[Any] | None:
    """The values as integers of at most 64 bits, anything for null; None if they are no such."""
    type_ = values.type
    if pa.types.is_decimal128(type_) and type_.precision <= _SHORT_DECIMAL:
        # Of 16 bytes, the lower 8: the others only repeat the sign.
        start = 2 * values.offset
        both = np.frombuffer(values.buffers()[1], dtype=np.int64)
        return both[start : start + 2 * len(values) : 2]
    if pa.types.is_boolean(type_):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(type_):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(type_):
        values = values.view(pa.int64())
    elif not pa.types.is_signed_integer(type_):
        return None
    if values.null_count:
        values = values.fill_null(0)
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _of_floats(values: Any) -> Codes:
    """Their bits as an integer, of which those of negative numbers are inverted."""
    valid = _valid(values)
    if values.null_count:
        values = values.fill_null(0)
    numbers = values.cast(pa.float64()).to_numpy() + 0.0  # of -0.0, this is 0.0
    bits = numbers.view(np.uint64)
    codes = np.where(bits >= np.uint64(_SIGN), ~bits, bits | np.uint64(_SIGN))
    return _coded(codes, valid, np.isnan(numbers))


def _of_dictionary(values: Any) -> Codes:
    """Those of the dictionary, by index."""
    inner = codes_of(values.dictionary)
    indices = values.indices.fill_null(0) if values.indices.null_count else values.indices
    if not len(values.dictionary):
        return _coded(np.zeros(len(values), dtype=np.uint64), _valid(values.indices))
    return _coded(inner.values[indices.to_numpy()], _valid(values.indices))


def _of_ranks(values: Any) -> Codes:
    """Their ranks: for texts, bytes, and decimals of many digits."""
    ranks = pc.rank(values, tiebreaker="dense")  # null is last
    return _coded(ranks.to_numpy().astype(np.uint64), _valid(values))


def _coded(
    codes: Words, valid: npt.NDArray[np.bool_] | None, nan: npt.NDArray[np.bool_] | None = None
) -> Codes:
    """Codes from 0 on, with those of NaN and null above; what they are before does not matter."""
    special = [
        each for each in (_and(nan, valid), None if valid is None else ~valid) if each is not None
    ]
    is_value = np.logical_not(np.logical_or.reduce(special)) if special else None
    known = codes if is_value is None else codes[is_value]
    low = known.min() if len(known) else np.uint64(0)
    greatest = int(known.max() - low) if len(known) else -1
    values = codes - low
    top = greatest
    for each in special:
        if bool(each.any()):
            top += 1
            values[each] = top
    return Codes(values, greatest, top, valid is not None)


def _and(
    one: npt.NDArray[np.bool_] | None, other: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_] | None:
    return one if one is None or other is None else one & other


def _valid(values: Any) -> npt.NDArray[np.bool_] | None:
    """Which values are not null; None if all."""
    if not values.null_count:
        return None
    found: npt.NDArray[np.bool_] = np.asarray(values.is_valid())
    return found


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


# Where the rows of a bin are cut into ranges of its order: pure, on Arrow and numpy arrays.
#
# A bound is a whole key of a sampled row, with the row's place among the live rows of its bin as
# the last part. So ranges have about the same size, however often a value occurs, and adjacent
# ranges have at most one value in common.


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


def cut_into_ranges(
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
