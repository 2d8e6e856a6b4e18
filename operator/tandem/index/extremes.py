"""The least or the greatest values of a column in many files, as numbers in the order of the
values: exact ones, and ones that only bound them.

Pure. Exact (Delta protocol, "Per-file Statistics", and what writers make of it): integers, dates,
booleans, decimals of at most 15 digits, and partition values. Not exact: texts (cut), floats (NaN
is missing), times (cut to milliseconds), wide decimals (rounded).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray
from tandem.pruning.bounds import (
    EXACT_DIGITS,
    FLOATING,
    INTEGRAL,
    HeldBounds,
    NumberBounds,
    PartitionBounds,
    TextBounds,
)
from tandem.pruning.times import FIRST, LAST
from tandem.statements.types import SqlType, as_decimal

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
    columns: Sequence[HeldBounds | None], counts: Sequence[int], type_: SqlType, side: Side
) -> BoundArray:
    """One side of a column that consists of several parts.

    Args:
        columns: the parts; None if nothing is known of one.
        counts: the number of files in each.
    """
    first = next((column for column in columns if column is not None), None)
    match first:
        case NumberBounds():
            return _numbers(columns, counts, type_, side)
        case TextBounds() | PartitionBounds():
            return _ranked(columns, counts, side, exact=isinstance(first, PartitionBounds))
        case _:
            count = sum(counts)
            none = np.zeros(count, bool)
            return BoundArray(np.zeros(count, np.int64), none, False, False, lambda _: None)


def _numbers(
    columns: Sequence[HeldBounds | None], counts: Sequence[int], type_: SqlType, side: Side
) -> BoundArray:
    numbers, known = [], []
    for column, count in zip(columns, counts, strict=True):
        # Statistics of floats do not count NaN, which is the greatest.
        if not isinstance(column, NumberBounds) or (side is Side.HIGH and _has_nan(type_)):
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


def _ranked(
    columns: Sequence[HeldBounds | None], counts: Sequence[int], side: Side, *, exact: bool
) -> BoundArray:
    values: list[Any] = []
    for column, count in zip(columns, counts, strict=True):
        match column:
            case TextBounds() if column.texts is not None:
                values += column.texts[side].to_pylist()
            case PartitionBounds():
                values += column.values
            case _:
                values += [None] * count
    array = pa.array(values)
    known = np.asarray(array.is_valid())
    numbers = np.zeros(len(values), np.int64)
    if known.any():
        encoded = array.dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary).to_numpy()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        numbers = ranks[pc.fill_null(encoded.indices, 0).to_numpy()]
    return BoundArray(numbers, known, exact, exact, lambda at: _text(values[at]))


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _has_nan(type_: SqlType) -> bool:
    return type_.name in FLOATING


def _is_exact(type_: SqlType) -> bool:
    if type_.name == "decimal":
        return as_decimal(type_).precision <= EXACT_DIGITS
    return type_.name in INTEGRAL or type_.name in ("date", "boolean")


def _as_value(number: Any, type_: SqlType) -> Any:
    """A bound as `NumberBounds` keeps it as a value of the type."""
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
