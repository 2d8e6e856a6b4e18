"""Whether the columns of two Parquet files are the same, and those that our writer gives a file.

Two files whose schemas are *equal* can share an output. A file whose schema *fits* has the table's
columns as our writer would write them, but for what no reader of a Delta table looks at: whether a
column is required, the name of the root, older annotations beside newer ones, the length of a type
that has but one, and how a decimal is stored. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.rowgroups.footer import TAIL, FileFooter, parse
from tandem.delta.schema import to_arrow_field

_TYPE, _LENGTH, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _SCALE, _PRECISION, _ID, _LOGICAL = (
    range(1, 11)
)
_OPTIONAL: Final = b"\x02"
_REPEATED: Final = b"\x04"
_DECIMAL: Final = b"\x0a"
_FIXED: Final = b"\x0e"
"""Repetitions, a converted type and a physical type, in Thrift's encoding of numbers."""

_LOGICAL_OF: Final = {
    bytes([2 * converted]): logical
    for converted, logical in {
        0: b"\x1c\x00\x00",  # UTF8, STRING
        1: b"\x2c\x00\x00",  # MAP
        3: b"\x3c\x00\x00",  # LIST
        6: b"\x6c\x00\x00",  # DATE
        10: b"\x8c\x11\x1c\x2c\x00\x00\x00\x00",  # TIMESTAMP_MICROS, in UTC
        15: b"\xac\x13\x08\x11\x00\x00",  # INT_8
        16: b"\xac\x13\x10\x11\x00\x00",  # INT_16
        17: b"\xac\x13\x20\x11\x00\x00",  # INT_32
        18: b"\xac\x13\x40\x11\x00\x00",  # INT_64
    }.items()
}
"""Logical types by the older annotations that mean the same, both as Thrift encodes them."""
_WHOLE: Final = frozenset({_LOGICAL_OF[b"\x22"], _LOGICAL_OF[b"\x24"]})
"""What says of a column of 32 or 64 bits no more than its physical type."""

Element = dict[int, bytes]
Key = tuple[tuple[tuple[int, bytes], ...], ...]


def key_of(footer: FileFooter) -> Key:
    """Equal for files whose row groups may be in one file: their schemas are equal but for the
    root's name, and so is what they say of the order of values."""
    elements = [tuple(sorted(_element(each).items())) for each in footer.schema[1:]]
    return (*elements, ((0, footer.orders),))


def written_by_us(table: TableFormat) -> FileFooter:
    """The footer of a file without rows that our writer writes for a table."""
    columns = all_nullable(table.data_schema)
    fields = [to_arrow_field(each, physical=True).with_nullable(True) for each in columns]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, pa.schema(fields), store_schema=False, store_decimal_as_integer=True
    ):
        pass
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-TAIL : -TAIL + 4], "little")
    return parse(data[-TAIL - length : -TAIL], len(data))


def fits(footer: FileFooter, table: TableFormat, ours: FileFooter) -> bool:
    """Whether a file has the columns of a table, in its order, as in `ours`, which our writer wrote
    for it."""
    ids = table.mapping != "none"
    return _loose(footer.schema[1:], ids=ids) == _loose(ours.schema[1:], ids=ids)


def _loose(schema: Sequence[bytes], *, ids: bool) -> list[tuple[bytes | None, ...]]:
    found: list[tuple[bytes | None, ...]] = []
    for each in schema:
        element = _element(each)
        repeated = _REPEATED if element.get(_REPETITION) == _REPEATED else _OPTIONAL
        same = (
            element.get(_NAME),
            element.get(_CHILDREN),
            repeated,
            element.get(_ID) if ids else None,
        )
        if element.get(_CONVERTED) == _DECIMAL:
            found.append((*same, element.get(_SCALE), element.get(_PRECISION)))
            continue
        # parquet-go gives each column a length, in bits where the type is a number.
        length = element.get(_LENGTH) if element.get(_TYPE) == _FIXED else None
        found.append((*same, element.get(_TYPE), length, _meaning(element)))
    return found


def _meaning(element: Element) -> bytes | None:
    """The logical type; that of the older annotation where a writer gives no other."""
    converted = element.get(_CONVERTED, b"")
    logical = element.get(_LOGICAL, _LOGICAL_OF.get(converted, converted))
    return None if logical in _WHOLE else logical or None


def _element(data: bytes) -> Element:
    return {field.id: field.value for field in thrift.fields(data, 0)[0]}
