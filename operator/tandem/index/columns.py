"""One column's bounds in many entries, as numpy arrays: what a comparison over a million entries
takes is then the time to read them.

Pure. The same answers as `tandem.pruning.bounds` gives, from which they are made. A run of entries
is a view of the arrays (`part`), and groups of neighbours have bounds of their own (`zones`): these
are wider, so that a group is excluded only if each of its entries is.

Texts compare by their first eight bytes as a number, which keeps their order. Where that is equal,
the texts themselves decide.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.pruning.bounds import (
    EXACT_DIGITS,
    FLOATING,
    INTEGRAL,
    ColumnBounds,
    PartitionBounds,
    RangeComparison,
    SortedKeys,
    StatisticsBounds,
    beyond_long,
    is_long,
    neighbours,
)
from tandem.pruning.times import FIRST, LAST
from tandem.statements.types import SqlType, as_decimal

# The least or the greatest values of a column in many files, as numbers in the order of the
# values: exact ones, and ones that only bound them.
#
# Pure. Exact (Delta protocol, "Per-file Statistics", and what writers make of it): integers,
# dates, booleans, decimals of at most 15 digits, and partition values. Not exact: texts (cut),
# floats (NaN is missing), times (cut to milliseconds), wide decimals (rounded).


_ZONED = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH = _ZONED.replace(tzinfo=None)


class Side(IntEnum):
    LOW = 0
    HIGH = 1


@dataclass(frozen=True)
class BoundArray:
    """One side's bound of each file.

    Attributes:
        numbers: in the order of the values; anything where not `known`.
        exact: whether such a bound is a value of the column, if no row of its file is deleted.
        constant: whether it is one even then.
        value: the bound of a file as a value; None where it is not known.
    """

    numbers: npt.NDArray[Any]
    known: BoolArray
    exact: bool
    constant: bool
    value: Callable[[int], Any]


def side_of(
    columns: Sequence[EntryColumn | None], counts: Sequence[int], type_: SqlType, side: Side
) -> BoundArray:
    """One side of a column that consists of several parts.

    Args:
        columns: the parts; None if nothing is known of one.
        counts: the number of files in each.
    """
    first = next((column for column in columns if column is not None), None)
    match first:
        case NumberColumn():
            return _numbers(columns, counts, type_, side)
        case TextColumn():
            return _texts(columns, counts, side)
        case PartitionColumn():
            return _partitions(columns, counts)
        case _:
            count = sum(counts)
            none = np.zeros(count, bool)
            return BoundArray(np.zeros(count, np.int64), none, False, False, lambda _: None)


def _numbers(
    columns: Sequence[EntryColumn | None], counts: Sequence[int], type_: SqlType, side: Side
) -> BoundArray:
    numbers, known = [], []
    for column, count in zip(columns, counts, strict=True):
        # Statistics of floats do not count NaN, which is the greatest.
        if not isinstance(column, NumberColumn) or (side is Side.HIGH and _has_nan(type_)):
            numbers.append(np.zeros(count, np.int64))
            known.append(np.zeros(count, bool))
            continue
        numbers.append(column.high if side is Side.HIGH else column.low)
        missing = column.no_high if side is Side.HIGH else column.no_low
        known.append(np.ones(count, bool) if missing is None else ~missing)
    whole, there = np.concatenate(numbers), np.concatenate(known)
    return BoundArray(
        whole,
        there,
        _is_exact(type_),
        False,
        lambda at: _as_value(whole[at], type_) if there[at] else None,
    )


def _texts(columns: Sequence[EntryColumn | None], counts: Sequence[int], side: Side) -> BoundArray:
    parts = [
        column.texts[side]
        if isinstance(column, TextColumn) and column.texts is not None
        else pa.nulls(count, pa.binary())
        for column, count in zip(columns, counts, strict=True)
    ]
    texts = pa.chunked_array(parts, pa.binary()).combine_chunks()
    return _ranked(texts, lambda at: _text(texts[at].as_py()), exact=False)


def _partitions(columns: Sequence[EntryColumn | None], counts: Sequence[int]) -> BoundArray:
    values: list[Any] = []
    for column, count in zip(columns, counts, strict=True):
        values += column.values if isinstance(column, PartitionColumn) else [None] * count
    distinct = sorted({value for value in values if value is not None})
    places = {value: place for place, value in enumerate(distinct)}
    numbers = np.array([places.get(value, 0) for value in values], np.int64)
    known = np.array([value is not None for value in values], bool)
    return BoundArray(
        numbers, known, True, True, lambda at: _text(values[at]) if known[at] else None
    )


def _ranked(texts: pa.Array, value: Callable[[int], Any], *, exact: bool) -> BoundArray:
    known = np.asarray(texts.is_valid())
    encoded = texts.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    codes = pc.fill_null(encoded.indices, 0).to_numpy()
    numbers = ranks[codes] if len(order) else np.zeros(len(texts), np.int64)
    return BoundArray(numbers, known, exact, False, value)


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _has_nan(type_: SqlType) -> bool:
    return type_.name in FLOATING


def _is_exact(type_: SqlType) -> bool:
    if type_.name == "decimal":
        return as_decimal(type_).precision <= EXACT_DIGITS
    return type_.name in INTEGRAL or type_.name in ("date", "boolean")


def _as_value(number: Any, type_: SqlType) -> Any:
    """A bound as `NumberColumn` keeps it as a value of the type."""
    match type_.name:
        case "date":
            return (_EPOCH + dt.timedelta(microseconds=int(number))).date()
        case "timestamp" | "timestamp_ntz":
            # A bound is wider than the times, and Python's calendar ends.
            moment = dt.timedelta(microseconds=int(min(max(number, FIRST), LAST)))
            return (_ZONED if type_.name == "timestamp" else _EPOCH) + moment
        case "boolean":
            return bool(number)
        case "decimal" if _is_exact(type_):
            scale = as_decimal(type_).scale
            return Decimal(round(float(number) * 10**scale)).scaleb(-scale)
        case "decimal" | "float" | "double":
            return float(number)
        case _:
            return int(number)


_KEY_BYTES = 8
_GREATEST = 2**64 - 1
_KNOWN = 1_024
"""Comparisons of partition values that are kept."""


class EntryColumn(ColumnBounds):
    """A column's bounds, of which parts can be taken."""

    @abstractmethod
    def part(self, start: int, stop: int) -> EntryColumn:
        """Entries `start` to `stop` (excluded), without a copy."""

    @abstractmethod
    def take(self, rows: IntArray) -> EntryColumn: ...

    @abstractmethod
    def zones(self, starts: IntArray) -> EntryColumn | None:
        """Bounds of the groups of entries that begin at `starts`; None if they are not known."""

    @property
    @abstractmethod
    def nbytes(self) -> int: ...


def entry_column(bounds: ColumnBounds) -> EntryColumn:
    """The column of `tandem.pruning.files.bounds_of`, as entries keep it."""
    match bounds:
        case StatisticsBounds() if bounds.low.type == pa.binary():
            return TextColumn.of(bounds)
        case StatisticsBounds():
            return NumberColumn.of(bounds)
        case PartitionBounds():
            return PartitionColumn(bounds)
        case _:
            raise TypeError(type(bounds).__name__)


def joined(parts: Sequence[EntryColumn]) -> EntryColumn:
    """The bounds of one column by statistics in several runs of entries, at least one, as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    nulls = (
        np.concatenate([part.some_null for part in parts]),
        np.concatenate([part.some_value for part in parts]),
    )
    if isinstance(first, NumberColumn):
        numbers = [part for part in parts if isinstance(part, NumberColumn)]
        return NumberColumn(
            first,
            np.concatenate([part.low for part in numbers]),
            np.concatenate([part.high for part in numbers]),
            _either([part.no_low for part in numbers], numbers),
            _either([part.no_high for part in numbers], numbers),
            nulls,
        )
    texts = [part.texts for part in parts if isinstance(part, TextColumn) and part.texts]
    low, high = (pa.concat_arrays([each[side] for each in texts]) for side in (0, 1))
    bounds = StatisticsBounds(first.type, low, high, *nulls)
    return TextColumn.of(bounds)


class NumberColumn(EntryColumn):
    """Numbers and times: `low` and `high` are int64 or float64; `no_low` and `no_high` say where
    they are unknown, None for nowhere."""

    def __init__(
        self,
        like: ColumnBounds,
        low: npt.NDArray[Any],
        high: npt.NDArray[Any],
        no_low: BoolArray | None,
        no_high: BoolArray | None,
        nulls: tuple[BoolArray, BoolArray],
    ) -> None:
        super().__init__(*nulls)
        self.type = like.type
        self.low, self.high, self.no_low, self.no_high = low, high, no_low, no_high

    @classmethod
    def of(cls, bounds: StatisticsBounds) -> Self:
        least, most = _ends(bounds.low.type)
        # What is unknown is wide, for zones.
        low, high = pc.fill_null(bounds.low, least), pc.fill_null(bounds.high, most)
        unknown = (_unknown(bounds.low), _unknown(bounds.high))
        nulls = (bounds.some_null, bounds.some_value)
        return cls(bounds, low.to_numpy(), high.to_numpy(), *unknown, nulls)

    def place(self, value: Any) -> RangeComparison:
        if self.type.name in INTEGRAL and not is_long(value):
            return beyond_long(value, lambda: self._or(self.no_low), lambda: self._or(self.no_high))
        floor, ceiling = neighbours(value, self.type)
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
        return self._arrow().may_equal(keys)

    def part(self, start: int, stop: int) -> NumberColumn:
        return self._each(lambda values: values[start:stop])

    def take(self, rows: IntArray) -> NumberColumn:
        return self._each(lambda values: values[rows])

    def zones(self, starts: IntArray) -> NumberColumn:
        def any_of(mask: BoolArray) -> BoolArray:
            return np.logical_or.reduceat(mask, starts)

        return NumberColumn(
            self,
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

    def _each(self, change: Callable[[Any], Any]) -> NumberColumn:
        low, high = change(self.low), change(self.high)
        no_low = None if self.no_low is None else change(self.no_low)
        no_high = None if self.no_high is None else change(self.no_high)
        nulls = (change(self.some_null), change(self.some_value))
        return NumberColumn(self, low, high, no_low, no_high, nulls)

    def _arrow(self) -> StatisticsBounds:
        low = pa.array(self.low, mask=self.no_low)
        high = pa.array(self.high, mask=self.no_high)
        return StatisticsBounds(self.type, low, high, self.some_null, self.some_value)


class TextColumn(EntryColumn):
    """Texts: binary arrays, null if unknown, and the numbers of their first bytes. Zones have no
    texts: where the numbers are equal, every comparison is possible."""

    def __init__(
        self,
        like: ColumnBounds,
        keys: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
        texts: tuple[pa.Array, pa.Array] | None,
        nulls: tuple[BoolArray, BoolArray],
    ) -> None:
        super().__init__(*nulls)
        self.type = like.type
        self._low, self._high = keys
        self.texts = texts
        """The bounds themselves; none for zones."""

    @classmethod
    def of(cls, bounds: StatisticsBounds) -> Self:
        low, high = _first_bytes(bounds.low, 0), _first_bytes(bounds.high, _GREATEST)
        nulls = (bounds.some_null, bounds.some_value)
        return cls(bounds, (low, high), (bounds.low, bounds.high), nulls)

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
        bounds = StatisticsBounds(self.type, *self.texts, self.some_null, self.some_value)
        return bounds.may_equal(keys)

    def part(self, start: int, stop: int) -> TextColumn:
        return self._each(
            lambda values: values[start:stop], lambda texts: texts.slice(start, stop - start)
        )

    def take(self, rows: IntArray) -> TextColumn:
        return self._each(lambda values: values[rows], lambda texts: texts.take(pa.array(rows)))

    def zones(self, starts: IntArray) -> TextColumn:
        keys = (np.minimum.reduceat(self._low, starts), np.maximum.reduceat(self._high, starts))
        some_null, some_value = (
            np.logical_or.reduceat(mask, starts) for mask in (self.some_null, self.some_value)
        )
        return TextColumn(self, keys, None, (some_null, some_value))

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

    def _each(
        self, change: Callable[[Any], Any], of_texts: Callable[[pa.Array], pa.Array]
    ) -> TextColumn:
        texts = self.texts and (of_texts(self.texts[0]), of_texts(self.texts[1]))
        nulls = (change(self.some_null), change(self.some_value))
        return TextColumn(self, (change(self._low), change(self._high)), texts, nulls)


class PartitionColumn(EntryColumn):
    """Partition values. What a comparison says of each distinct value is computed once, for all
    parts."""

    def __init__(self, bounds: PartitionBounds, known: dict[Any, BoolArray] | None = None) -> None:
        super().__init__(bounds.some_null, bounds.some_value)
        self.type = bounds.type
        self._bounds = bounds
        self._known = {} if known is None else known

    def place(self, value: Any) -> RangeComparison:
        place = self._bounds.of_each_value().place(value)
        return RangeComparison(
            below=lambda: self._spread(("<", value), place.below),
            touches=lambda: self._spread(("=", value), place.touches),
            above=lambda: self._spread((">", value), place.above),
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        return self._spread(
            ("begins", prefix), lambda: self._bounds.of_each_value().may_begin(prefix)
        )

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        return self._bounds.may_equal(keys)

    def part(self, start: int, stop: int) -> PartitionColumn:
        return self.take(slice(start, stop))

    def take(self, rows: IntArray | slice) -> PartitionColumn:
        return PartitionColumn(self._bounds.of_files(rows), self._known)

    def zones(self, starts: IntArray) -> None:
        """Neighbours may have any values."""

    @property
    def values(self) -> list[Any]:
        """The value of each entry, in the form of `pruning.constants.usable`; None if it is NULL or
        unknown."""
        return self._bounds.each_value()

    @property
    def nbytes(self) -> int:
        return self._bounds.codes.nbytes + self.some_null.nbytes + self.some_value.nbytes

    def _spread(self, name: tuple[str, Any], test: Callable[[], BoolArray]) -> BoolArray:
        if name not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[name] = test()
        found: BoolArray = self._known[name][self._bounds.codes]
        return found


def _either(masks: Sequence[BoolArray | None], parts: Sequence[EntryColumn]) -> BoolArray | None:
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
