"""Bounds and NULLs of a column in many files at once, one entry per file.

Statistics have these limits (Delta protocol, "Per-file Statistics"):

- they bound the values, and need not be values: strings are truncated, deletion vectors hide rows;
- floats: NaN may be missing from them, and is the greatest value in Spark; so there is no upper
  bound, and a NaN as a bound means nothing;
- decimals of more than 15 digits: delta-rs writes them as doubles, rounded in either direction,
  and whole ones as 64-bit integers, limited to the largest; hence widened, or unknown if so large;
- timestamps are truncated to milliseconds, hence widened by one on both sides;
- the number of NULLs is used if it is 0 or all rows, and no deletion vector hides rows.

Partition values are exact. An unknown value is never an error, and never excludes a file.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.pruning import scope
from tandem.statements import tree
from tandem.statements.coercion import parse_date, parse_timestamp
from tandem.statements.types import MAX_PRECISION, SqlType, as_decimal

# Values to compare bounds with: constants of a condition, and partition values.
#
# Numbers are int, float or Decimal; texts are bytes of UTF-8 (unsigned, as Spark compares them);
# times are date or datetime (with a zone for timestamp). None stands for a value whose order is
# not certain.


INTEGRAL = frozenset({"byte", "short", "integer", "long"})
FLOATING = frozenset({"float", "double"})
MOMENTS = frozenset({"timestamp", "timestamp_ntz"})


def usable(value: Any, data_type: SqlType) -> Any:
    """A value of a column if it has the right type, else None."""
    name = data_type.name
    if name in INTEGRAL:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if name in FLOATING:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number and math.isfinite(value) else None
    if name in MOMENTS:
        moment = isinstance(value, dt.datetime)
        return value if moment and (value.tzinfo is not None) == (name == "timestamp") else None
    match name:
        case "decimal":
            return value if isinstance(value, Decimal) and value.is_finite() else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return value.encode() if isinstance(value, str) else None
        case "date":
            is_date = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
            return value if is_date else None
        case _:
            return None


def comparable_constant(literal: tree.Literal, target: SqlType) -> Any:
    """The constant as a value of the column's type, if Spark compares the two as Python does.

    None if it does not, or if their order is not clear.
    """
    value = literal.value
    if target.name in INTEGRAL or target.name == "decimal":
        return _exact_number(literal, target)
    if target.name in FLOATING:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return None
        if literal.type.name == "float":
            return None
        number = float(value)
        # Decimals and long integers are rounded to a double by Spark's own rules.
        return number if math.isfinite(number) and number == value else None
    if target.name in MOMENTS:
        return _moment(literal, zoned=target.name == "timestamp")
    match target.name:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "string":
            return value.encode() if isinstance(value, str) else None
        case "date":
            if isinstance(value, str):
                return parse_date(value)
            return value if literal.type == target else None
        case _:
            return None


def _exact_number(literal: tree.Literal, target: SqlType) -> Any:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    if literal.type.name not in INTEGRAL and literal.type.name != "decimal":
        return None
    if target.is_integral and literal.type.is_integral:
        return value
    a, b = as_decimal(literal.type), as_decimal(target)
    # Beyond the widest decimal, Spark drops digits.
    scale = max(a.scale, b.scale)
    if max(a.precision - a.scale, b.precision - b.scale) + scale > MAX_PRECISION:
        return None
    return Decimal(value)


def _moment(literal: tree.Literal, *, zoned: bool) -> dt.datetime | None:
    value = literal.value
    if isinstance(value, dt.datetime):
        return value if (value.tzinfo is not None) == zoned else None
    if isinstance(value, dt.date):
        zone = dt.UTC if zoned else None
        return dt.datetime.combine(value, dt.time(), tzinfo=zone)
    return parse_timestamp(value, zoned=zoned) if isinstance(value, str) else None


CUT_STRING: Final = 32
"""Delta truncates strings to this length. Writers should raise a maximum that they truncate, but
not all do: one of this length or more is no bound."""

EXACT_DIGITS: Final = 15
"""Decimals of so many digits are unchanged after they were written as a double."""

_DECIMAL_ERROR: Final = 1.1e-14
"""Relative error of a decimal that was written as a double: 1e-14, plus the error of comparing two
of our doubles."""

_KEY_BYTES: Final = 8
_GREATEST: Final = 2**64 - 1
_KNOWN: Final = 1_024
"""Comparisons of partition values that are kept."""

_LONG_MAX: Final = float(2**63 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_MILLISECOND: Final = 1_000
_WIDE: Final = Context(prec=120)


class SortedKeys:
    """Ascending values, one of which a matching row must have; if not `complete`, a value between
    the first and the last of them."""

    def __init__(self, values: Sequence[Any], complete: bool) -> None:
        self.values, self.complete = values, complete
        self._floors: dict[tuple[SqlType, pa.DataType], pa.Array] = {}

    def floors(self, type_: SqlType, bound: pa.DataType) -> pa.Array:
        """The values in the form of a column's bounds, computed once."""
        key = (type_, bound)
        if key not in self._floors:
            whole = type_.name in INTEGRAL and all(type(value) is int for value in self.values)
            floors = self.values if whole else [_neighbours(v, type_)[0] for v in self.values]
            self._floors[key] = pa.array(floors, bound)
        return self._floors[key]


@dataclass(frozen=True, slots=True)
class RangeComparison:
    """How a file's values can compare with a constant; several may be true. Each is computed when
    it is called."""

    below: Callable[[], BoolArray]
    touches: Callable[[], BoolArray]
    above: Callable[[], BoolArray]


class ColumnBounds(ABC):
    """The bounds of one column in all files."""

    type: SqlType

    def __init__(self, some_null: BoolArray, some_value: BoolArray) -> None:
        self.some_null = some_null
        """Whether the column can be NULL in a row of the file."""
        self.some_value = some_value

    @abstractmethod
    def place(self, value: Any) -> RangeComparison:
        """Compare with a constant in the form of `constants.comparable_constant`."""

    @abstractmethod
    def may_begin(self, prefix: bytes) -> BoolArray:
        """Whether a text in the file can begin with `prefix`."""

    @abstractmethod
    def may_equal(self, keys: SortedKeys) -> BoolArray:
        """Whether one of the values can lie within the bounds."""


class HeldBounds(ColumnBounds):
    """Bounds of many files, as numpy arrays: a comparison with a million of them takes the time to
    read them. Groups of neighbours have bounds of their own (`zones`), which are wider, so that a
    group is excluded only if each of its files is."""

    @abstractmethod
    def take(self, rows: IntArray | slice) -> HeldBounds:
        """Some entries; those of a slice without a copy."""

    @abstractmethod
    def zones(self, starts: IntArray) -> HeldBounds | None:
        """Bounds of the groups of entries that begin at `starts`; None if they are not known."""

    @property
    @abstractmethod
    def nbytes(self) -> int: ...


def statistics_bounds(
    type_: SqlType, low: pa.Array, high: pa.Array, some_null: BoolArray, some_value: BoolArray
) -> NumberBounds | TextBounds:
    """From statistics: `low` and `high` are int64, double or binary, null if unknown."""
    form = TextBounds if low.type == pa.binary() else NumberBounds
    return form.of(type_, low, high, (some_null, some_value))


class NumberBounds(HeldBounds):
    """Numbers and times: `low` and `high` are int64 or float64; `no_low` and `no_high` say where
    they are unknown, None for nowhere."""

    def __init__(
        self,
        type_: SqlType,
        low: npt.NDArray[Any],
        high: npt.NDArray[Any],
        no_low: BoolArray | None,
        no_high: BoolArray | None,
        nulls: tuple[BoolArray, BoolArray],
    ) -> None:
        super().__init__(*nulls)
        self.type = type_
        self.low, self.high, self.no_low, self.no_high = low, high, no_low, no_high

    @classmethod
    def of(
        cls, type_: SqlType, low: pa.Array, high: pa.Array, nulls: tuple[BoolArray, BoolArray]
    ) -> Self:
        least, most = _ends(low.type)
        # What is unknown is wide, for zones.
        numbers = (pc.fill_null(low, least).to_numpy(), pc.fill_null(high, most).to_numpy())
        return cls(type_, *numbers, _unknown(low), _unknown(high), nulls)

    def place(self, value: Any) -> RangeComparison:
        if self.type.name in INTEGRAL and not _is_long(value):
            return _beyond_long(
                value, lambda: self._or(self.no_low), lambda: self._or(self.no_high)
            )
        floor, ceiling = _neighbours(value, self.type)
        return RangeComparison(
            below=lambda: self._or(self.no_low, self.low < ceiling),
            touches=lambda: (
                self._or(self.no_low, self.low <= floor)
                & self._or(self.no_high, self.high >= ceiling)
            ),
            above=lambda: self._or(self.no_high, self.high > floor),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        raise TypeError(f"no {self.type} begins with {prefix!r}")

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        floors = keys.floors(self.type, pa.from_numpy_dtype(self.low.dtype)).to_numpy()
        return _between(floors, np.searchsorted(floors, self.low), self.high, keys.complete)

    def take(self, rows: IntArray | slice) -> NumberBounds:
        return NumberBounds(
            self.type,
            self.low[rows],
            self.high[rows],
            None if self.no_low is None else self.no_low[rows],
            None if self.no_high is None else self.no_high[rows],
            (self.some_null[rows], self.some_value[rows]),
        )

    def zones(self, starts: IntArray) -> NumberBounds:
        def any_of(mask: BoolArray) -> BoolArray:
            return np.logical_or.reduceat(mask, starts)

        return NumberBounds(
            self.type,
            np.minimum.reduceat(self.low, starts),
            np.maximum.reduceat(self.high, starts),
            None if self.no_low is None else any_of(self.no_low),
            None if self.no_high is None else any_of(self.no_high),
            (any_of(self.some_null), any_of(self.some_value)),
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.low, self.high, self.no_low, self.no_high, self.some_null, self.some_value)
        return sum(each.nbytes for each in arrays if each is not None)

    def _or(self, unknown: BoolArray | None, found: BoolArray | None = None) -> BoolArray:
        if found is None:
            return np.zeros(len(self.low), bool) if unknown is None else unknown
        return found if unknown is None else found | unknown

    def arrow(self) -> tuple[pa.Array, pa.Array]:
        return pa.array(self.low, mask=self.no_low), pa.array(self.high, mask=self.no_high)


class TextBounds(HeldBounds):
    """Texts: binary arrays, null if unknown, and the numbers of their first bytes. Zones have no
    texts: where the numbers are equal, every comparison is possible."""

    def __init__(
        self,
        type_: SqlType,
        keys: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
        texts: tuple[pa.Array, pa.Array] | None,
        nulls: tuple[BoolArray, BoolArray],
    ) -> None:
        super().__init__(*nulls)
        self.type = type_
        self._low, self._high = keys
        self.texts = texts
        """The bounds themselves; none for zones."""

    @classmethod
    def of(
        cls, type_: SqlType, low: pa.Array, high: pa.Array, nulls: tuple[BoolArray, BoolArray]
    ) -> Self:
        keys = (_first_bytes(low, 0), _first_bytes(high, _GREATEST))
        return cls(type_, keys, (low, high), nulls)

    def place(self, value: bytes) -> RangeComparison:
        return RangeComparison(
            below=lambda: self._compare(np.less, pc.less, 0, value),
            touches=lambda: (
                self._compare(np.less, pc.less_equal, 0, value)
                & self._compare(np.greater, pc.greater_equal, 1, value)
            ),
            above=lambda: self._compare(np.greater, pc.greater, 1, value),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        size = len(prefix)
        return self._compare(np.less, pc.less_equal, 0, prefix, size) & self._compare(
            np.greater, pc.greater_equal, 1, prefix, size
        )

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        if self.texts is None:
            return np.ones(len(self._low), bool)
        floors = keys.floors(self.type, pa.binary())
        low, high = self.texts
        if not len(floors):
            return np.zeros(len(low), bool)
        first = _bisect_left(floors, low)
        nearest = floors.take(pa.array(np.minimum(first, len(floors) - 1)))
        least = nearest if keys.complete else floors[0]
        no_more: BoolArray = pc.fill_null(pc.greater(least, high), False).to_numpy(False)
        return (first < len(floors)) & ~no_more

    def arrow(self) -> tuple[pa.Array, pa.Array]:
        assert self.texts is not None
        return self.texts

    def take(self, rows: IntArray | slice) -> TextBounds:
        def chosen(texts: pa.Array) -> pa.Array:
            return texts[rows] if isinstance(rows, slice) else texts.take(pa.array(rows))

        keys = (self._low[rows], self._high[rows])
        texts = self.texts and (chosen(self.texts[0]), chosen(self.texts[1]))
        return TextBounds(self.type, keys, texts, (self.some_null[rows], self.some_value[rows]))

    def zones(self, starts: IntArray) -> TextBounds:
        keys = (np.minimum.reduceat(self._low, starts), np.maximum.reduceat(self._high, starts))
        some_null, some_value = (
            np.logical_or.reduceat(mask, starts) for mask in (self.some_null, self.some_value)
        )
        return TextBounds(self.type, keys, None, (some_null, some_value))

    @property
    def nbytes(self) -> int:
        own = (self._low, self._high, self.some_null, self.some_value)
        return sum(each.nbytes for each in (*own, *(self.texts or ())))

    def _compare(
        self, numbers: Any, texts: Any, side: int, value: bytes, size: int | None = None
    ) -> BoolArray:
        """Compare the bounds of one side; of their first `size` bytes only, if given."""
        keys = self._high if side else self._low
        wanted = np.uint64(_number(value))
        if size is not None and size < _KEY_BYTES:
            shift = np.uint64(8 * (_KEY_BYTES - size))
            keys, wanted = keys >> shift, wanted >> shift
        found: BoolArray = numbers(keys, wanted)
        ties = np.flatnonzero(keys == wanted)
        if len(ties):
            found[ties] = self._of_texts(texts, side, ties, value, size)
        return found

    def _of_texts(
        self, test: Any, side: int, rows: IntArray, value: bytes, size: int | None
    ) -> BoolArray | bool:
        if self.texts is None:
            return True
        chosen = self.texts[side].take(pa.array(rows))
        if size is not None:
            chosen = pc.binary_slice(chosen, 0, size)
        known: BoolArray = pc.fill_null(test(chosen, value), True).to_numpy(zero_copy_only=False)
        return known


class PartitionBounds(HeldBounds):
    """From partition values: `codes` are indexes into the distinct `values` (exact, None if
    unknown), -1 if nothing is known. What a comparison says of each distinct value is computed
    once, for all parts."""

    def __init__(
        self,
        type_: SqlType,
        codes: IntArray,
        values: Sequence[Any],
        null: int | None,
        known: dict[tuple[str, Any], BoolArray] | None = None,
    ) -> None:
        some_null = codes == -1 if null is None else (codes == -1) | (codes == null)
        some_value = np.ones(len(codes), bool) if null is None else codes != null
        super().__init__(some_null, some_value)
        self.type = type_
        self._codes, self._values, self._null = codes, values, null
        self._known = {} if known is None else known

    def place(self, value: Any) -> RangeComparison:
        return RangeComparison(
            below=lambda: self._once("<", value, lambda low, _: low < value),
            touches=lambda: self._once("=", value, lambda low, high: low <= value <= high),
            above=lambda: self._once(">", value, lambda _, high: high > value),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        return self._once("begins", prefix, lambda low, _: low.startswith(prefix))

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        values, complete = keys.values, keys.complete

        def equals(low: Any, high: Any) -> bool:
            first = bisect_left(values, low)
            return first < len(values) and values[first if complete else 0] <= high

        return self._of_values(equals)[self._codes] if values else np.zeros(len(self._codes), bool)

    def take(self, rows: IntArray | slice) -> PartitionBounds:
        return PartitionBounds(self.type, self._codes[rows], self._values, self._null, self._known)

    def zones(self, starts: IntArray) -> None:
        """Neighbours may have any values."""

    @property
    def values(self) -> list[Any]:
        """The value of each file, in the form of `usable`; None if it is NULL or unknown."""
        values = [*self._values, None]  # the last entry is for code -1
        return [values[code] for code in self._codes.tolist()]

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self.some_null.nbytes + self.some_value.nbytes

    def _once(self, what: str, value: Any, test: Callable[[Any, Any], bool]) -> BoolArray:
        name = what, value
        if name not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[name] = self._of_values(test)
        found: BoolArray = self._known[name][self._codes]
        return found

    def _of_values(self, test: Callable[[Any, Any], bool]) -> BoolArray:
        """`test` on the bounds of each distinct value, and of code -1; true if unknown."""
        found = np.ones(len(self._values) + 1, bool)
        for number, value in enumerate(self._values):
            if value is not None:
                found[number] = test(*_exact(value, self.type))
        return found


def concatenated(parts: Sequence[HeldBounds]) -> HeldBounds:
    """The bounds of one column by statistics in several runs of entries, at least one, as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    nulls = (
        np.concatenate([part.some_null for part in parts]),
        np.concatenate([part.some_value for part in parts]),
    )
    if isinstance(first, NumberBounds):
        numbers = [part for part in parts if isinstance(part, NumberBounds)]
        return NumberBounds(
            first.type,
            np.concatenate([part.low for part in numbers]),
            np.concatenate([part.high for part in numbers]),
            _either([part.no_low for part in numbers], numbers),
            _either([part.no_high for part in numbers], numbers),
            nulls,
        )
    texts = [part.arrow() for part in parts if isinstance(part, TextBounds)]
    low, high = (pa.concat_arrays([each[side] for each in texts]) for side in (0, 1))
    return TextBounds.of(first.type, low, high, nulls)


def statistics_type(type_: SqlType) -> pa.DataType | None:
    """The type as which a column's bounds are read; None if they are not usable."""
    if type_.name in INTEGRAL:
        return pa.int64()
    if type_.name in FLOATING or type_.name == "decimal":
        return pa.float64()
    if type_.name in ("string", "date") or type_.name in MOMENTS:
        return pa.string()
    return pa.bool_() if type_.name == "boolean" else None


def held(low: pa.Array, high: pa.Array, type_: SqlType) -> tuple[pa.Array, pa.Array]:
    """Reliable bounds from those that were read, in the form of `statistics_bounds`. A least value
    above the greatest one says that both are wrong."""
    low, high = _held(low, high, type_)
    crossed = pc.fill_null(pc.greater(low, high), False)
    if pc.any(crossed).as_py():
        low, high = (pc.if_else(crossed, None, bound) for bound in (low, high))
    return low, high


def _held(low: pa.Array, high: pa.Array, type_: SqlType) -> tuple[pa.Array, pa.Array]:
    if type_.name == "boolean":
        return low.cast(pa.int64()), high.cast(pa.int64())
    if type_.name in FLOATING or type_.name == "decimal":
        return _held_numbers(low, -1, type_), _held_numbers(high, 1, type_)
    if type_.name == "string":
        high = pc.if_else(pc.less(pc.binary_length(high), CUT_STRING), high, None)
        return low.cast(pa.binary()), high.cast(pa.binary())
    if type_.name == "date" or type_.name in MOMENTS:
        wider = _MILLISECOND if type_.name in MOMENTS else 0
        low, high = scope.moments(low, type_.name), scope.moments(high, type_.name)
        return pc.subtract(low, wider), pc.add(high, wider)
    return low, high


def _held_numbers(bound: pa.Array, towards: int, type_: SqlType) -> pa.Array:
    usable = pc.is_finite(bound)
    if type_.name == "float":
        # A float 1.1 may have been written as the double 1.1, which is less.
        bound = _moved(bound, towards, 1e-6, 1e-44)
    if type_.name == "decimal" and as_decimal(type_).precision > EXACT_DIGITS:
        # Whole ones are limited to the largest long.
        usable = pc.and_(usable, pc.less(pc.abs(bound), _LONG_MAX))
        bound = _moved(bound, towards, _DECIMAL_ERROR, 0.0)
    return pc.if_else(usable, bound, None)


def _moved(bound: pa.Array, towards: int, share: float, least: float) -> pa.Array:
    by = pc.add(pc.multiply(pc.abs(bound), share), least)
    return pc.add(bound, by) if towards > 0 else pc.subtract(bound, by)


def _beyond_long(
    value: int, no_low: Callable[[], BoolArray], no_high: Callable[[], BoolArray]
) -> RangeComparison:
    """Compare with an integer that 64 bits do not hold.

    Args:
        no_low, no_high: where the least and the greatest value are unknown.
    """
    if value > 0:
        return RangeComparison(lambda: np.ones_like(no_high()), no_high, no_high)
    return RangeComparison(no_low, no_low, lambda: np.ones_like(no_low()))


def _is_long(value: int) -> bool:
    return _INT64[0] <= value <= _INT64[1]


def _exact(value: Any, type_: SqlType) -> tuple[Any, Any]:
    """The bounds of a partition value, in the form of `constants.usable`."""
    if type_.name == "float":
        by = abs(value) * 1e-6 + 1e-44
        return value - by, value + by
    return value, value


def _neighbours(value: Any, type_: SqlType) -> tuple[Any, Any]:
    """The greatest value up to a constant and the least one from it on among those that bounds
    can be compared with; the constant itself twice if it is one."""
    if type_.name in INTEGRAL:
        return math.floor(value), math.ceil(value)
    if type_.name == "boolean":
        return int(value), int(value)
    if type_.name == "decimal":
        one = Decimal(1).scaleb(-as_decimal(type_).scale)
        floor, ceiling = (
            Decimal(value).quantize(one, rounding, _WIDE)
            for rounding in (ROUND_FLOOR, ROUND_CEILING)
        )
        return float(floor), float(ceiling)
    if type_.name == "date" or type_.name in MOMENTS:
        return scope.micros(value), scope.micros(value)
    return value, value


def _between(
    floors: npt.NDArray[Any], first: npt.NDArray[np.int64], high: npt.NDArray[Any], complete: bool
) -> BoolArray:
    """Whether a key lies within bounds, of which `first` keys are less than the least value."""
    if not len(floors):
        return np.zeros(len(high), bool)
    least = floors[np.minimum(first, len(floors) - 1)] if complete else floors[0]
    found: BoolArray = (first < len(floors)) & (least <= high)
    return found


def _bisect_left(keys: pa.Array, bounds: pa.Array) -> npt.NDArray[np.int64]:
    """How many of the ascending keys are less than each bound; 0 if it is null."""
    both = pa.concat_arrays([bounds, keys])
    # Stable: a bound comes before a key that equals it. Nulls come last.
    order = pc.array_sort_indices(both).to_numpy()
    place = np.empty(len(both), np.int64)
    place[order] = np.cumsum(order >= len(bounds))
    return np.where(np.asarray(bounds.is_null()), 0, place[: len(bounds)])


def _either(masks: Sequence[BoolArray | None], parts: Sequence[HeldBounds]) -> BoolArray | None:
    """What is unknown in some runs of entries; None for nothing."""
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [
            np.zeros(len(part.some_null), bool) if mask is None else mask
            for mask, part in zip(masks, parts, strict=True)
        ]
    )


def _ends(type_: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_floating(type_):
        return -np.inf, np.inf
    return np.iinfo(np.int64).min, np.iinfo(np.int64).max


def _unknown(bound: pa.Array) -> BoolArray | None:
    return np.asarray(bound.is_null()) if bound.null_count else None


def _number(text: bytes) -> int:
    return int.from_bytes(text[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0"), "big")


def _first_bytes(texts: pa.Array, unknown: int) -> npt.NDArray[np.uint64]:
    """The first bytes of each text as a number; `unknown` for null. In the order of the texts, but
    for those that begin alike."""
    padded = pc.binary_join_element_wise(
        pc.binary_slice(texts, 0, _KEY_BYTES), pa.scalar(bytes(_KEY_BYTES)), pa.scalar(b"")
    )
    fixed = pc.fill_null(pc.binary_slice(padded, 0, _KEY_BYTES), bytes(_KEY_BYTES))
    start, size = _KEY_BYTES * fixed.offset, _KEY_BYTES * len(texts)
    data = fixed.buffers()[2]
    numbers = np.frombuffer(data.slice(start, size) if size else b"", ">u8")
    found = numbers.astype(np.uint64)
    if texts.null_count:
        found[np.asarray(texts.is_null())] = unknown
    return found
