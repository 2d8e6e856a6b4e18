"""The order of rows by columns, found on integers: pure, on Arrow and numpy arrays.

Each value becomes a *code*: an integer that is less, equal or greater as the value is. Codes of all
columns are parts of one long number per row, the first column's part the highest. Rows are ordered
by its words, the lowest first, and each word has the row's place below it: so every word is
distinct, numpy's fast sort of integers is also a stable one, and no comparison calls a function.
Null comes last, NaN before it, and 0.0 equals -0.0, as in Spark's sort (`ordering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.spark.jobs.rewrite.ordering import bits_of, spread

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.uint32]
"""Numbers of rows."""

WORD: Final = 64
_SIGN: Final = 1 << (WORD - 1)
SAMPLE: Final = 1 << 18
"""Rows from which the quantiles of a z-order are taken, if there are more."""
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


def z_codes(keys: Sequence[Codes]) -> Codes:
    """The z-values of rows by these columns (`ordering`)."""
    rows = len(keys[0].values)
    bits = bits_of(len(keys))
    chosen: Any = slice(None)
    if rows > SAMPLE:
        # Not at regular intervals, which may coincide with a pattern in the rows; but the same
        # rows each time, so that two drivers write the same files.
        chosen = np.sort(np.random.default_rng(rows).choice(rows, SAMPLE, replace=False))
    found = np.zeros(rows, dtype=np.uint64)
    for number, key in enumerate(keys):
        bounds = _quantiles(key, chosen, 1 << bits)
        last = len(bounds) + key.has_null
        # The bits of this column, where they are in a z-value, for each of its buckets.
        spreads = spread(np.arange(last + 1, dtype=np.int64), last, bits)
        placed = np.zeros(last + 1, dtype=np.uint64)
        for bit in range(bits):
            place = bit * len(keys) + len(keys) - 1 - number
            placed |= ((spreads >> bit) & 1).astype(np.uint64) << np.uint64(place)
        found |= _by_bucket(key, bounds, placed)
    return Codes(found, (1 << bits * len(keys)) - 1, (1 << bits * len(keys)) - 1)


def _quantiles(key: Codes, chosen: Any, count: int) -> Words:
    """As `ordering.quantiles`, of codes."""
    sample = key.values[chosen]
    known = (
        np.sort(sample[sample <= np.uint64(max(key.known, 0))]) if key.known >= 0 else sample[:0]
    )
    if not len(known):
        return known
    places = np.unique(np.arange(1, count) * len(known) // count)
    picked: Words = known[np.concatenate(([0], places))]
    distinct: Words = picked[1:][picked[1:] != picked[:-1]]
    return distinct


def _by_bucket(key: Codes, bounds: Words, placed: Words) -> Words:
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
