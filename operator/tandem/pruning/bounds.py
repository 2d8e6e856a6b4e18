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
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.pruning import times
from tandem.statements import tree
from tandem.statements.literals import parse_date, parse_timestamp
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
            floors = self.values if whole else [neighbours(v, type_)[0] for v in self.values]
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


class StatisticsBounds(ColumnBounds):
    """From statistics: `low` and `high` are int64, double or binary, null if unknown."""

    def __init__(
        self,
        type_: SqlType,
        low: pa.Array,
        high: pa.Array,
        some_null: BoolArray,
        some_value: BoolArray,
    ) -> None:
        super().__init__(some_null, some_value)
        self.type = type_
        self.low, self.high = low, high

    def place(self, value: Any) -> RangeComparison:
        if self.type.name in INTEGRAL and not is_long(value):
            return beyond_long(value, lambda: _is_null(self.low), lambda: _is_null(self.high))
        floor, ceiling = neighbours(value, self.type)
        return RangeComparison(
            below=lambda: _known(pc.less, self.low, ceiling),
            touches=lambda: (
                _known(pc.less_equal, self.low, floor)
                & _known(pc.greater_equal, self.high, ceiling)
            ),
            above=lambda: _known(pc.greater, self.high, floor),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        # Truncated to the prefix, a bound compares like the values that begin with it.
        size = len(prefix)
        return _known(pc.less_equal, pc.binary_slice(self.low, 0, size), prefix) & _known(
            pc.greater_equal, pc.binary_slice(self.high, 0, size), prefix
        )

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        floors = keys.floors(self.type, self.low.type)
        if not len(floors):
            return np.zeros(len(self.low), bool)
        first = _bisect_left(floors, self.low)
        left = first < len(floors)
        nearest = floors.take(pa.array(np.minimum(first, len(floors) - 1)))
        least = nearest if keys.complete else floors[0]
        return left & _known(pc.less_equal, least, self.high)


class PartitionBounds(ColumnBounds):
    """From partition values: `codes` are indexes into the distinct `values` (exact, None if
    unknown), -1 if nothing is known."""

    def __init__(
        self, type_: SqlType, codes: IntArray, values: Sequence[Any], null: int | None
    ) -> None:
        some_null = codes == -1 if null is None else (codes == -1) | (codes == null)
        some_value = np.ones(len(codes), bool) if null is None else codes != null
        super().__init__(some_null, some_value)
        self.type = type_
        self.codes, self._values, self._null = codes, values, null

    def of_files(self, rows: IntArray | slice) -> PartitionBounds:
        """The bounds of some of the files."""
        return PartitionBounds(self.type, self.codes[rows], self._values, self._null)

    def of_each_value(self) -> PartitionBounds:
        """The bounds of one file for each distinct value, and of one of which nothing is known: by
        `codes`, what is found for them holds for all files."""
        codes = np.append(np.arange(len(self._values)), -1)
        return PartitionBounds(self.type, codes, self._values, self._null)

    def each_value(self) -> list[Any]:
        """The value of each file; None if it is NULL or unknown."""
        values = [*self._values, None]  # the last entry is for code -1
        return [values[code] for code in self.codes.tolist()]

    def place(self, value: Any) -> RangeComparison:
        return RangeComparison(
            below=lambda: self._each(lambda low, _: low < value),
            touches=lambda: self._each(lambda low, high: low <= value <= high),
            above=lambda: self._each(lambda _, high: high > value),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        return self._each(lambda low, _: low.startswith(prefix))

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        values, complete = keys.values, keys.complete

        def equals(low: Any, high: Any) -> bool:
            first = bisect_left(values, low)
            return first < len(values) and values[first if complete else 0] <= high

        return self._each(equals) if values else np.zeros(len(self.codes), bool)

    def _each(self, test: Callable[[Any, Any], bool]) -> BoolArray:
        """`test` on the bounds of each distinct value, by file; true if unknown."""
        found = np.ones(len(self._values) + 1, bool)  # the last entry is for code -1
        for number, value in enumerate(self._values):
            if value is not None:
                found[number] = test(*_exact(value, self.type))
        return found[self.codes]


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
    """Reliable bounds from those that were read, in the form of `StatisticsBounds`. A least value
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
        low, high = times.moments(low, type_.name), times.moments(high, type_.name)
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


def beyond_long(
    value: int, no_low: Callable[[], BoolArray], no_high: Callable[[], BoolArray]
) -> RangeComparison:
    """Compare with an integer that 64 bits do not hold.

    Args:
        no_low, no_high: where the least and the greatest value are unknown.
    """
    if value > 0:
        return RangeComparison(lambda: np.ones_like(no_high()), no_high, no_high)
    return RangeComparison(no_low, no_low, lambda: np.ones_like(no_low()))


def _is_null(bound: pa.Array) -> BoolArray:
    return np.asarray(bound.is_null())


def is_long(value: int) -> bool:
    return _INT64[0] <= value <= _INT64[1]


def _exact(value: Any, type_: SqlType) -> tuple[Any, Any]:
    """The bounds of a partition value, in the form of `constants.usable`."""
    if type_.name == "float":
        by = abs(value) * 1e-6 + 1e-44
        return value - by, value + by
    return value, value


def neighbours(value: Any, type_: SqlType) -> tuple[Any, Any]:
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
        return times.micros(value), times.micros(value)
    return value, value


def _known(test: Callable[..., Any], left: Any, right: Any) -> BoolArray:
    """The test by file; true if a bound is unknown."""
    found: BoolArray = pc.fill_null(test(left, right), True).to_numpy(zero_copy_only=False)
    return found


def _bisect_left(keys: pa.Array, bounds: pa.Array) -> npt.NDArray[np.int64]:
    """How many of the ascending keys are less than each bound; 0 if it is null."""
    unknown = np.asarray(bounds.is_null())
    if pa.types.is_primitive(bounds.type):
        known = pc.fill_null(bounds, keys[0]).to_numpy()
        return np.where(unknown, 0, np.searchsorted(keys.to_numpy(), known))
    both = pa.concat_arrays([bounds, keys])
    # Stable: a bound comes before a key that equals it. Nulls come last.
    order = pc.array_sort_indices(both).to_numpy()
    place = np.empty(len(both), np.int64)
    place[order] = np.cumsum(order >= len(bounds))
    return np.where(unknown, 0, place[: len(bounds)])
