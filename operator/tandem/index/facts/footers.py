"""What Parquet files say of themselves: the parts of their footers that facts are made of. Of any
writer; a footer that is not believed is not read again.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import structlog

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.thrift import BYTES, FLAG, INT
from tandem.delta.datafiles.times import DAY_US, RebaseBoundaries
from tandem.delta.stats import MOST_ROWS
from tandem.distinct import IntArray
from tandem.errors import FactsRefused, StorageError
from tandem.index.facts.row_groups import (
    LONGEST_DECIMAL,
    TYPE,
    UNKNOWN,
    ColumnFacts,
    ColumnKey,
    FileFacts,
    StoredType,
    ValueKind,
    stored_type,
)
from tandem.storage.paths import object_path
from tandem.storage.store import Store

# Requests to a store, several at once.


AT_ONCE: Final = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


def each_in_threads(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """What a function returns for each item, in their order."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), "tandem-facts") as pool:
        return list(pool.map(function, items))


# The parts of a Parquet footer that facts are made of.
#
# Not read by pyarrow: a bound of the wrong length ends its process (26.0), and a footer of a few
# megabytes can take gigabytes there. Here a footer that is not as it must be is a ValueError,
# IndexError, KeyError or RecursionError, and what is kept is in proportion to its bytes. Source:
# `parquet.thrift` of apache/parquet-format. Pure.


MOST_GROUPS: Final = 100_000
MOST_CHUNKS: Final = 1_000_000
"""Columns times row groups of a footer that is read."""
MOST_DEPTH: Final = 100
"""Groups within groups; no reader of today opens a file with more."""
FIRST_PAGE: Final = 4
"""Pages come after the magic."""

# Fields, by the struct that has them
_SCHEMA, _ROWS, _GROUPS, _PROPERTIES, _ORDERS, _ENCRYPTION = 2, 3, 4, 5, 7, 8
_REPETITION, _NAME, _CHILDREN, _FIELD_ID = 3, 4, 5, 9
_COLUMNS, _GROUP_ROWS = 1, 3
_OTHER_FILE, _METADATA, _CHUNK_ENCRYPTION = 1, 3, 8
_CHUNK_TYPE, _VALUES, _SIZE, _DATA_PAGE, _DICTIONARY_PAGE = 1, 5, 7, 9, 11
_STATISTICS, _FILTER_START, _FILTER_BYTES = 12, 14, 15
_NULLS, _MAX, _MIN = 3, 5, 6

_ELEMENT: Final[thrift.Wanted] = {
    TYPE: INT, 2: INT, _REPETITION: INT, _NAME: BYTES, _CHILDREN: INT, 6: INT, 7: INT, 8: INT,
    _FIELD_ID: INT,
    10: {1: {}, 5: {1: INT, 2: INT}, 6: {}, 8: {1: FLAG, 2: {1: {}, 2: {}, 3: {}}}, 10: {2: FLAG}},
}  # fmt: skip
_PAGES: Final = {_SIZE: INT, _DATA_PAGE: INT, _DICTIONARY_PAGE: INT}
_DETAILS: Final = {
    **_PAGES, _CHUNK_TYPE: INT, _VALUES: INT, _STATISTICS: {_NULLS: INT, _MAX: BYTES, _MIN: BYTES},
    _FILTER_START: INT, _FILTER_BYTES: INT,
}  # fmt: skip
"""The older `min` and `max` are left out: they have no order for texts."""
_REPEATED: Final = 2


@dataclass(frozen=True, slots=True)
class Leaf:
    """A top-level column whose statistics are used; `index` counts all leaves."""

    index: int
    name: str
    field_id: int | None
    type: StoredType


@dataclass(slots=True)
class Chunks:
    """What the footer says of a column, by row group; as encoded, unchecked but for numbers of
    rows and places in the file."""

    low: list[bytes | None] = field(default_factory=list)
    high: list[bytes | None] = field(default_factory=list)
    nulls: list[int] = field(default_factory=list)
    filter_start: list[int] = field(default_factory=list)
    filter_bytes: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Footer:
    """A footer's facts. `properties` is its key-value metadata."""

    rows: int
    columns: Sequence[tuple[Leaf, Chunks]]
    properties: Mapping[bytes, bytes]
    group_rows: list[int] = field(default_factory=list)


def parse(data: bytes, end: int, wanted: Collection[str] | None = None) -> Footer:
    """Read a footer.

    Args:
        end: where it begins in its file: pages and filters lie before.
        wanted: names of the columns to read; None for all.
    Raises: ValueError, IndexError, KeyError, RecursionError.
    """
    return _Parser(data, end, wanted).footer()


class _Parser:
    def __init__(self, data: bytes, end: int, wanted: Collection[str] | None) -> None:
        self._data, self._end, self._wanted = data, end, wanted
        self._leaves: list[int] = []
        self._read: dict[int, tuple[Leaf, Chunks]] = {}
        self._result = Footer(0, (), {})

    def footer(self) -> Footer:
        shape = {
            _SCHEMA: self._schema, _ROWS: INT, _GROUPS: self._groups,
            _PROPERTIES: [{1: BYTES, 2: BYTES}], _ORDERS: [{1: {}}], _ENCRYPTION: {},
        }  # fmt: skip
        found, _ = thrift.read(self._data, 0, shape)
        if _ENCRYPTION in found:
            raise ValueError("encrypted columns")
        result = self._result
        result.rows = found[_ROWS]
        if found[_GROUPS] != result.rows or result.rows > MOST_ROWS:
            raise ValueError(f"row groups of {found[_GROUPS]} rows in a file of {result.rows}")
        result.columns = self._ordered(found.get(_ORDERS, []))
        result.properties = {each[1]: each.get(2, b"") for each in found.get(_PROPERTIES, ())}
        return result

    def _schema(self, data: bytes, at: int, type_: int) -> tuple[None, int]:
        """The leaves, and which of them are read: a column is one that no other is called like."""
        found, at = thrift.structs(data, at, type_, _ELEMENT)
        names: Counter[str] = Counter()
        ids: Counter[int | None] = Counter()
        open_ = [1]
        top: list[Leaf] = []
        for element in found:
            if not open_:
                raise ValueError("a schema of several roots")
            open_[-1] -= 1
            depth = len(open_) - 1
            if depth == 1:
                names[element[_NAME].decode().lower()] += 1
                ids[element.get(_FIELD_ID)] += 1
            if TYPE in element:
                if depth == 1 and element.get(_REPETITION) != _REPEATED:
                    stored = stored_type(element)
                    if stored is not None:
                        name, id_ = element[_NAME].decode(), element.get(_FIELD_ID)
                        top.append(Leaf(len(self._leaves), name, id_, stored))
                self._leaves.append(element[TYPE])
            else:
                children = element.get(_CHILDREN, 0)
                if children < 0 or depth == MOST_DEPTH:
                    raise ValueError(f"{children} fields of a group at depth {depth}")
                open_.append(children)
            while open_ and not open_[-1]:
                open_.pop()
        if open_:
            raise ValueError("a schema that lacks fields")
        for leaf in top:
            unique = names[leaf.name.lower()] == 1 and (
                leaf.field_id is None or ids[leaf.field_id] == 1
            )
            if unique and (self._wanted is None or leaf.name in self._wanted):
                self._read[leaf.index] = (leaf, Chunks())
        return None, at

    def _groups(self, data: bytes, at: int, type_: int) -> tuple[int, int]:
        """The number of rows of all row groups."""
        count, at = thrift.struct_list_head(data, at, type_)
        if count > MOST_GROUPS or count * len(self._leaves) > MOST_CHUNKS:
            raise ValueError(f"{count} row groups of {len(self._leaves)} columns")
        result = self._result
        for _ in range(count):
            group, at = thrift.read(data, at, {_COLUMNS: self._chunks, _GROUP_ROWS: INT})
            rows, values = group[_GROUP_ROWS], group[_COLUMNS]
            if not 0 <= rows <= MOST_ROWS or any(number != rows for number in values):
                raise ValueError(f"a row group of {rows} rows with columns of {values[:5]} values")
            if any(chunks.nulls[-1] > rows for _, chunks in self._read.values()):
                raise ValueError(f"more NULLs than the {rows} rows of a row group")
            result.group_rows.append(rows)
        return sum(result.group_rows), at

    def _chunks(self, data: bytes, at: int, type_: int) -> tuple[list[int], int]:
        """The number of values of the columns that are read."""
        count, at = thrift.struct_list_head(data, at, type_)
        if count != len(self._leaves):
            raise ValueError(f"a row group of {count} columns, expected {len(self._leaves)}")
        values = []
        for index in range(count):
            read = self._read.get(index)
            shape = {
                _OTHER_FILE: BYTES, _CHUNK_ENCRYPTION: {},
                _METADATA: _PAGES if read is None else _DETAILS,
            }  # fmt: skip
            chunk, at = thrift.read(data, at, shape)
            if _OTHER_FILE in chunk or _CHUNK_ENCRYPTION in chunk:
                raise ValueError("a column that is encrypted or in another file")
            meta = chunk[_METADATA]
            self._check_pages(meta)
            if read is not None:
                if meta[_CHUNK_TYPE] != self._leaves[index]:
                    raise ValueError(
                        f"a column of type {meta[_CHUNK_TYPE]} in the schema of another"
                    )
                values.append(meta[_VALUES])
                self._add(meta, read[1])
        return values, at

    def _check_pages(self, meta: Mapping[int, Any]) -> None:
        """Raises: ValueError if pages do not lie before the footer."""
        size = meta[_SIZE]
        if not size:
            return
        # Some writers say 0 for no page of the kind.
        pages = (meta[_DATA_PAGE], meta.get(_DICTIONARY_PAGE, 0))
        start = min((page for page in pages if page), default=0)
        if size < 0 or start < FIRST_PAGE or start + size > self._end:
            raise ValueError(f"{size} bytes of pages at byte {start} of {self._end}")

    def _add(self, meta: Mapping[int, Any], chunks: Chunks) -> None:
        statistics = meta.get(_STATISTICS, {})
        nulls = statistics.get(_NULLS, UNKNOWN)
        if nulls < UNKNOWN:
            raise ValueError(f"{nulls} NULLs")
        chunks.low.append(statistics.get(_MIN))
        chunks.high.append(statistics.get(_MAX))
        chunks.nulls.append(nulls)
        start, size = meta.get(_FILTER_START, UNKNOWN), meta.get(_FILTER_BYTES, UNKNOWN)
        inside = start >= FIRST_PAGE and start + max(size, 1) <= self._end
        chunks.filter_start.append(start if inside else UNKNOWN)
        chunks.filter_bytes.append(max(size, UNKNOWN) if inside else UNKNOWN)

    def _ordered(self, orders: Sequence[Mapping[int, Any]]) -> list[tuple[Leaf, Chunks]]:
        """The columns, without bounds where no order of the values is named, or a newer one."""
        for leaf, chunks in self._read.values():
            if leaf.index >= len(orders) or 1 not in orders[leaf.index]:
                chunks.low = [None] * len(chunks.low)
                chunks.high = [None] * len(chunks.high)
        return list(self._read.values())


# The values in the statistics of a column chunk.
#
# Source: `parquet.thrift` of apache/parquet-format for their form and order, `RebaseBoundaries`
# for the calendar. Pure.


TEXT_BYTES: Final = 64
"""Bytes of a text that are kept of a bound."""
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_LAST_DAY: Final = (1 << 63) // DAY_US - 1
_EXACT: Final = Context(prec=60)


def bounds(
    low: bytes | None, high: bytes | None, type_: StoredType, calendar: RebaseBoundaries
) -> tuple[Any, Any]:
    """The least and the greatest value of a row group in the form of `StoredType.bounds`, from what
    its statistics hold; None if unknown.

    Both are unknown if they contradict each other, or if Spark may rebase a date or a time between
    them.
    """
    if type_.kind is ValueKind.TEXT:
        if low is not None and high is not None and low > high:
            return None, None
        return None if low is None else low[:TEXT_BYTES], _raised(high)
    least = None if low is None else _number(low, type_)
    most = None if high is None else _number(high, type_)
    if least is not None and most is not None and least > most:
        return None, None
    first = _first(type_, calendar)
    if first is not None and (least is None or least < first):
        return None, None
    return _held(least, type_, 0), _held(most, type_, 1)


def may_be_rebased(type_: StoredType, calendar: RebaseBoundaries) -> bool:
    """Whether some stored values mean others to Spark."""
    return _first(type_, calendar) is not None


def _raised(text: bytes | None) -> bytes | None:
    """A text that is no less, and not long. Bounds compare as bytes, and need not be UTF-8."""
    if text is None or len(text) <= TEXT_BYTES:
        return text
    kept = text[:TEXT_BYTES].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _number(data: bytes, type_: StoredType) -> Any:
    """A value as it is stored: a number, of decimals the unscaled one."""
    if type_.physical == "BYTE_ARRAY":
        return (
            int.from_bytes(data, "big", signed=True) if 0 < len(data) <= LONGEST_DECIMAL else None
        )
    if len(data) != (_WIDTHS.get(type_.physical) or type_.length):
        return None
    match type_.physical:
        case "FLOAT":
            return struct.unpack("<f", data)[0]
        case "DOUBLE":
            return struct.unpack("<d", data)[0]
        case "FIXED_LEN_BYTE_ARRAY":
            return int.from_bytes(data, "big", signed=True)
        case _:
            return int.from_bytes(data, "little", signed=type_.kind is not ValueKind.BOOLEAN)


def _first(type_: StoredType, calendar: RebaseBoundaries) -> int | None:
    """The least stored value that means the same to every reader; None for all."""
    if type_.kind is ValueKind.DATE:
        return calendar.date_from
    if (
        type_.kind in (ValueKind.TIMESTAMP, ValueKind.TIMESTAMP_NTZ)
        and calendar.timestamp_from is not None
    ):
        return _of_micros(calendar.timestamp_from, type_.unit)
    return None


def _of_micros(micros: int, unit: str) -> int:
    return -(-micros // 1_000) if unit == "ms" else micros * (1_000 if unit == "ns" else 1)


def _held(number: Any, type_: StoredType, high: int) -> Any:
    if number is None:
        return None
    match type_.kind:
        case ValueKind.DECIMAL:
            return float(Decimal(number).scaleb(-type_.scale, _EXACT))
        case ValueKind.DATE:
            return number * DAY_US if abs(number) <= _LAST_DAY else None
        case ValueKind.TIMESTAMP | ValueKind.TIMESTAMP_NTZ:
            # Readers round nanoseconds down, some perhaps otherwise.
            micros = {"ms": number * 1_000, "us": number, "ns": number // 1_000 + high}[type_.unit]
            return micros if -(1 << 63) <= micros < 1 << 63 else None
        case _:
            return number


# Takes the facts of one file from its footer, in one or two requests to the store.


TAIL: Final = 64 << 10
"""Bytes that are read first: most footers are shorter."""
LIMIT: Final = 64 << 20
"""Bytes of a footer at most."""
_MAGIC: Final = b"PAR1"
_END: Final = 8
"""Bytes after a footer: its length and the magic."""


def read_facts(
    store: Store,
    logged_path: str,
    size: int,
    *,
    rows: int | None = None,
    columns: Collection[str] | None = None,
    tail: int = TAIL,
    limit: int = LIMIT,
) -> FileFacts:
    """The facts of one file.

    Args:
        size: in bytes, as logged.
        rows: physical rows, None if the log does not say.
        columns: physical names of the columns that are wanted; None for all.
        tail: bytes that are read first.
        limit: bytes of a footer at most.
    Raises: FactsRefused if the file is not what the log says, or no Parquet, or its footer does not
        fit; ObjectNotFound, AccessDenied, StorageError of the store.
    """
    path = object_path(logged_path)
    data, start = _footer(store, path, size, tail, limit)
    try:
        footer = parse(data, start, columns)
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        raise _refused(path, "footer", f"{type(error).__name__}: {error}"[:200]) from error
    if rows is not None and rows != footer.rows:
        raise _refused(path, "num_rows", footer.rows, f"{rows}, as logged")
    return _facts(logged_path, size, footer)


def facts_of(logged_path: str, size: int, footer: bytes) -> FileFacts:
    """The facts of a file whose footer is at hand.

    Args:
        size: of the file, in bytes.
    Raises: ValueError, IndexError, KeyError, RecursionError for a footer that is none.
    """
    return _facts(logged_path, size, parse(footer, size - _END - len(footer)))


def _footer(store: Store, path: str, size: int, tail: int, limit: int) -> tuple[bytes, int]:
    """The footer, and where it begins."""
    if size < len(_MAGIC) + _END:
        raise _refused(path, "size", size)
    first = _range(store, path, size - min(size, tail), min(size, tail))
    if first[-len(_MAGIC) :] != _MAGIC:
        raise _refused(path, "magic", first[-len(_MAGIC) :].hex(), _MAGIC.hex())
    length = int.from_bytes(first[-_END : -len(_MAGIC)], "little")
    most = min(limit, size - _END - len(_MAGIC))
    if not 0 < length <= most:
        raise _refused(path, "footer length", length, f"1 to {most} bytes")
    start = size - _END - length
    missing = length + _END - len(first)
    if missing > 0:
        first = _range(store, path, start, missing) + first
    return first[-length - _END : -_END], start


def _range(store: Store, path: str, start: int, length: int) -> bytes:
    data = store.get_range(path, start, length)
    if len(data) != length:
        raise _refused(path, "size", start + len(data), f"{start + length} at least, as logged")
    return data


def _facts(logged_path: str, size: int, footer: Footer) -> FileFacts:
    calendar = RebaseBoundaries.of(footer.properties)
    groups = len(footer.group_rows)
    return FileFacts(
        pa.array([logged_path], pa.string()), _ints([size]), _ints([footer.rows]), _ints([groups]),
        _ints(footer.group_rows),
        {
            ColumnKey(leaf.name, leaf.type, leaf.field_id): _column(leaf, chunks, calendar)
            for leaf, chunks in footer.columns
        },
    )  # fmt: skip


def _column(leaf: Leaf, chunks: Chunks, calendar: RebaseBoundaries) -> ColumnFacts:
    found = [
        bounds(low, high, leaf.type, calendar)
        for low, high in zip(chunks.low, chunks.high, strict=True)
    ]
    type_ = leaf.type.bounds
    low = pa.array([low for low, _ in found], type_)
    starts = _ints(chunks.filter_start)
    if may_be_rebased(leaf.type, calendar):
        # Its filter may hold other values than readers see.
        starts[np.asarray(low.is_null())] = UNKNOWN
    return ColumnFacts(
        low, pa.array([high for _, high in found], type_),
        _ints(chunks.nulls), starts, _ints(chunks.filter_bytes),
    )  # fmt: skip


def _ints(numbers: list[int]) -> IntArray:
    return np.array(numbers, np.int64)


def _refused(path: str, field: str, found: object, expected: str = "") -> FactsRefused:
    return FactsRefused(
        "the footer of a data file is not believed",
        resource=path,
        field=field,
        found=found,
        expected=expected or "a Parquet file that is as logged",
        remedy="The file is read without it. Check it with its writer",
    )


# Reads the footers of many files. One that is not believed is not read again.


File = tuple[str, int, int]
"""Path as logged, bytes, rows (`UNKNOWN` where the log does not say)."""

_MOST: Final = 10_000
"""Files that are remembered as refused at most."""

_log = structlog.get_logger("tandem.index.facts")


class Footers:
    """The footers of a table's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._refused: set[tuple[str, int]] = set()

    def worth(self, files: Sequence[File]) -> list[File]:
        """Those that were not refused."""
        return [file for file in files if file[:2] not in self._refused]

    def read(self, files: Sequence[File], columns: Collection[str] | None) -> list[FileFacts]:
        """The facts of files, of those whose footers can be read and are believed."""
        found = each_in_threads(lambda file: self._one(file, columns), files)
        return [facts for facts in found if facts is not None]

    def _one(self, file: File, columns: Collection[str] | None) -> FileFacts | None:
        path, size, rows = file
        known = None if rows == UNKNOWN else rows
        try:
            return read_facts(self._store, path, size, rows=known, columns=columns)
        except FactsRefused as error:
            # What is wrong with the file, its reader says.
            _log.info("a footer is not used", path=path, problem=str(error))
            if len(self._refused) >= _MOST:
                self._refused.clear()
            self._refused.add((path, size))
        except StorageError as error:
            _log.info("a footer cannot be read now", path=path, problem=str(error))
        return None
