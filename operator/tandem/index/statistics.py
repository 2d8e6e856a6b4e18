"""What the log says of the rows of many files: held compressed, and decoded by column. Pure: no
file is read here.

The least or the greatest values of a column in many files, as numbers in the order of the
values: exact ones, and ones that only bound them.

Pure. Exact (Delta protocol, "Per-file Statistics", and what writers make of it): integers, dates,
booleans, decimals of at most 15 digits, and partition values. Not exact: texts (cut), floats (NaN
is missing), times (cut to milliseconds), wide decimals (rounded).
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.schema import PrimitiveType, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.index.packed import PackedSection
from tandem.pruning.bounds import (
    EXACT_DIGITS,
    FLOATING,
    INTEGRAL,
    HeldBounds,
    NumberBounds,
    PartitionBounds,
    TextBounds,
    concatenated,
    statistics_type,
)
from tandem.pruning.predicate import stated_bounds
from tandem.pruning.scope import FIRST, LAST
from tandem.statements.types import SqlType, as_decimal, type_named

# Texts of many entries that are seldom read: few as they are, many compressed in runs. Pure.


_PLAIN: Final = 8_192
"""So few texts are kept as they are."""
_RUN: Final = 65_536
"""Texts that are compressed together, and decoded in one go."""


@dataclass(frozen=True, slots=True)
class PackedTexts:
    """An array of texts, null where there is none."""

    count: int
    section: PackedSection

    @classmethod
    def of(cls, texts: pa.Array) -> PackedTexts:
        return cls(len(texts), PackedSection.of(texts))

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return len(self.section.frame)

    def texts(self) -> pa.Array:
        """Raises: ValueError, OSError if they are none."""
        [texts] = self.section.opened([pa.string()], self.count)
        return texts


Run: TypeAlias = "pa.Array | PackedTexts"


def _texts(run: Run) -> pa.Array:
    return run.texts() if isinstance(run, PackedTexts) else run


def _packed(runs: Iterable[Run]) -> Iterator[Run]:
    """The same texts, of which few are in memory together."""
    few: list[pa.Array] = []
    for run in runs:
        if not isinstance(run, PackedTexts) and len(run) <= _PLAIN:
            few.append(run)
            if sum(map(len, few)) <= _PLAIN:
                continue
            run = pa.concat_arrays(few)
        elif few:
            yield pa.concat_arrays(few)
        few = []
        if isinstance(run, PackedTexts):
            yield run
        else:
            for start in range(0, len(run), _RUN):
                yield PackedTexts.of(run.slice(start, _RUN))
    if few:
        yield pa.concat_arrays(few)


# The statistics of many files: JSON texts, decoded by column when a condition first names one.
#
# Pure. Decoded a piece at a time and in several threads, so that it takes little memory beside the
# result. Thread-safe.


ColumnName = tuple[str, SqlType]
"""A column's physical name, by which a renamed one is the same, and its type."""

_T = TypeVar("_T")

UNKNOWN: Final = -1
"""A number of rows that is not known."""

_FEW_TEXTS: Final = 64
"""So few are parsed one by one for their numbers of rows, since Arrow takes longer to begin."""
_FEW: Final = 4
"""If a table has no more columns with statistics, all are decoded at once: parsing the texts takes
as long as two of them."""


class HeldStatistics:
    """Statistics in the order of entries.

    Args:
        texts: as in `Snapshot.files`, in runs.
        rows, tight, columns: what is known of them without looking.
    """

    def __init__(
        self,
        texts: Iterable[Run],
        *,
        rows: IntArray | None = None,
        tight: BoolArray | None = None,
        columns: Mapping[ColumnName, HeldBounds | None] | None = None,
    ) -> None:
        self._runs = list(_packed(texts))
        self._count = sum(map(len, self._runs))
        self._rows, self._tight = rows, tight
        self._columns = dict(columns or {})
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def packed(self) -> list[PackedTexts]:
        """The texts, in runs."""
        return [run if isinstance(run, PackedTexts) else PackedTexts.of(run) for run in self._runs]

    def texts(self) -> Iterator[pa.Array]:
        """All texts, some at a time."""
        return map(_texts, self._runs)

    @property
    def rows(self) -> IntArray:
        """Physical rows of each file, -1 if unknown."""
        with self._lock:
            if self._rows is None:
                self._rows = self._counted()
            return self._rows

    @property
    def tight(self) -> BoolArray:
        """Whether they are those of each file's rows, and not merely bound them."""
        with self._lock:
            if self._tight is None:
                self._decode({}, StructType(()))
            assert self._tight is not None
            return self._tight

    def columns(
        self, wanted: Mapping[str, SqlType], schema: StructType, partition_columns: Iterable[str]
    ) -> dict[str, HeldBounds | None]:
        """The bounds of columns by their names; None where nothing is known. Those that are not
        known yet are decoded together."""
        keys = {name: (schema[name].physical_name, type_) for name, type_ in wanted.items()}
        with self._lock:
            new = {name: wanted[name] for name, key in keys.items() if key not in self._columns}
            if new:
                self._decode(self._with_few(new, schema, partition_columns), schema)
            return {name: self._columns[key] for name, key in keys.items()}

    @property
    def decoded(self) -> dict[ColumnName, HeldBounds | None]:
        """The columns that have been decoded."""
        with self._lock:
            return dict(self._columns)

    @property
    def nbytes(self) -> int:
        held = [*self._runs, self._rows, self._tight, *list(self._columns.values())]
        return sum(int(each.nbytes) for each in held if each is not None)

    def keep(self, keep: BoolArray) -> HeldStatistics:
        """Those of the entries where `keep` is true."""
        at = np.flatnonzero(keep)
        masks = np.split(keep, np.cumsum([len(run) for run in self._runs])[:-1])
        pairs = zip(self._runs, masks, strict=False)
        return HeldStatistics(
            (run if mask.all() else _texts(run).filter(pa.array(mask)) for run, mask in pairs),
            rows=None if self._rows is None else self._rows[at],
            tight=None if self._tight is None else self._tight[at],
            columns={
                key: None if column is None else column.take(at)
                for key, column in self.decoded.items()
            },
        )

    @classmethod
    def together(cls, parts: Sequence[HeldStatistics]) -> HeldStatistics:
        """The statistics of several runs of entries, with what all of them have decoded."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.decoded for part in parts]
        shared: dict[ColumnName, HeldBounds | None] = {}
        for key in columns[0]:
            found = [each.get(key) for each in columns]
            known = [column for column in found if column is not None]
            if len(known) == len(parts):
                shared[key] = concatenated(known)
        return cls(
            (run for part in parts for run in part._runs),
            rows=_concatenated([part._rows for part in parts]),
            tight=_concatenated([part._tight for part in parts]),
            columns=shared,
        )

    # Internals: with the lock

    def _with_few(
        self, new: Mapping[str, SqlType], schema: StructType, partition_columns: Iterable[str]
    ) -> Mapping[str, SqlType]:
        if self._columns or len(self) <= _PLAIN:
            return new
        partitions = set(partition_columns)
        fields = [field for field in schema if field.name not in partitions]
        if len(fields) > _FEW:
            return new
        others = {
            field.name: type_
            for field in fields
            if isinstance(field.type, PrimitiveType)
            and statistics_type(type_ := type_named(field.type.name)) is not None
        }
        return {**others, **new}

    def _counted(self) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *self._each(_numbers)])

    def _decode(self, wanted: Mapping[str, SqlType], schema: StructType) -> None:
        found = self._each(lambda texts: stated_bounds(texts, schema, wanted))
        self._rows = np.concatenate([np.zeros(0, np.int64), *(each.rows for each in found)])
        self._tight = np.concatenate([np.zeros(0, bool), *(each.tight for each in found)])
        for name, type_ in wanted.items():
            parts = [each.columns[name] for each in found if name in each.columns]
            key = schema[name].physical_name, type_
            self._columns[key] = concatenated(parts) if parts else None

    def _each(self, function: Callable[[pa.ChunkedArray], _T]) -> list[_T]:
        """What a function returns for each run of the texts."""

        def of(run: Run) -> _T:
            return function(pa.chunked_array([_texts(run)]))

        if len(self._runs) < 2:
            return [of(run) for run in self._runs]
        with ThreadPoolExecutor(min(_threads(), len(self._runs)), "tandem-statistics") as pool:
            return list(pool.map(of, self._runs))


def _threads() -> int:
    return min(os.cpu_count() or 1, 8)


def _numbers(texts: pa.ChunkedArray) -> IntArray:
    if len(texts) <= _FEW_TEXTS:
        with suppress(UnicodeDecodeError):  # Arrow looks at less of them
            found = [stats_.num_records_of(text) for text in texts.to_pylist()]
            return np.array([UNKNOWN if number is None else number for number in found], np.int64)
    numbers: IntArray = pc.fill_null(stats_.num_records(texts), UNKNOWN).to_numpy()
    return numbers.astype(np.int64)


def _concatenated(arrays: Sequence[Any]) -> Any:
    """All of them as one; None if one is not known."""
    known = [each for each in arrays if each is not None]
    return np.concatenate(known) if known and len(known) == len(arrays) else None


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
            return _extreme_numbers(columns, counts, type_, side)
        case TextBounds() | PartitionBounds():
            return _ranked(columns, counts, side, exact=isinstance(first, PartitionBounds))
        case _:
            count = sum(counts)
            none = np.zeros(count, bool)
            return BoundArray(np.zeros(count, np.int64), none, False, False, lambda _: None)


def _extreme_numbers(
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
