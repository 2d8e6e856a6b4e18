"""The parts of a Parquet footer that facts are made of.

Not read by pyarrow: a bound of the wrong length ends its process (26.0), and a footer of a few
megabytes can take gigabytes there. Here a footer that is not as it must be is a ValueError,
IndexError, KeyError or RecursionError, and what is kept is in proportion to its bytes.
Source: `parquet.thrift` of apache/parquet-format. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.thrift import BYTES, FLAG, INT
from tandem.delta.stats import MOST_ROWS
from tandem.index.facts.model import UNKNOWN
from tandem.index.facts.stored import TYPE, StoredType, stored_type

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
    group_start: list[int] = field(default_factory=list)
    group_bytes: list[int] = field(default_factory=list)


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
            self._start, self._stop = self._end, FIRST_PAGE
            group, at = thrift.read(data, at, {_COLUMNS: self._chunks, _GROUP_ROWS: INT})
            rows, values = group[_GROUP_ROWS], group[_COLUMNS]
            if not 0 <= rows <= MOST_ROWS or any(number != rows for number in values):
                raise ValueError(f"a row group of {rows} rows with columns of {values[:5]} values")
            if any(chunks.nulls[-1] > rows for _, chunks in self._read.values()):
                raise ValueError(f"more NULLs than the {rows} rows of a row group")
            result.group_rows.append(rows)
            result.group_start.append(self._start)
            result.group_bytes.append(max(self._stop - self._start, 0))
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
            self._locate(meta)
            if read is not None:
                if meta[_CHUNK_TYPE] != self._leaves[index]:
                    raise ValueError(
                        f"a column of type {meta[_CHUNK_TYPE]} in the schema of another"
                    )
                values.append(meta[_VALUES])
                self._add(meta, read[1])
        return values, at

    def _locate(self, meta: Mapping[int, Any]) -> None:
        size = meta[_SIZE]
        if not size:
            return
        # Some writers say 0 for no page of the kind.
        pages = (meta[_DATA_PAGE], meta.get(_DICTIONARY_PAGE, 0))
        start = min((page for page in pages if page), default=0)
        if size < 0 or start < FIRST_PAGE or start + size > self._end:
            raise ValueError(f"{size} bytes of pages at byte {start} of {self._end}")
        self._start = min(self._start, start)
        self._stop = max(self._stop, start + size)

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
