"""INT96 timestamps, Spark's default, as exact microseconds.

An INT96 is a nanosecond of a day (int64) and a Julian day number (int32), both of which writers
treat as signed. pyarrow treats both as unsigned and wraps around silently: times before the year
-4713, and times that Spark wrote near the end of its range (where its own arithmetic wraps), are
read as other times. Footers have no bounds of INT96 columns, so only the twelve bytes show that.
pyarrow returns the bytes if the footer declares the column as fixed-length bytes; so the footer
is changed in memory, and the bytes are converted here as Spark converts them
(`DateTimeUtils.fromJulianDay`). Source: apache/parquet-format, "parquet.thrift", and Thrift's
compact protocol. No I/O.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta.datafiles.schema_mismatch import SchemaMismatch
from tandem.errors import UnsupportedFeature

RAW = pa.binary(12)
EPOCH_DAY = 2_440_588
"""The Julian day number of 1970-01-01."""
DAY_US = 86_400_000_000
LAST_DAY = (1 << 63) // DAY_US
"""The last whole day whose microseconds fit 64 bits, counted from any day. Spark's day numbers are
within as many days around zero."""

_RECORD = np.dtype([("nanos", "<i8"), ("day", "<i4")])
_INT96, _FIXED = 3, 7
_I32 = 5


def to_micros(array: Any, zone: str | None, *, resource: str, column: str) -> Any:
    """The microseconds since 1970 of INT96 values.

    Args:
        array: of type `RAW`.
        zone: of the Arrow type to give.
        resource, column: for messages.
    Raises: UnsupportedFeature for a time whose microseconds do not fit 64 bits.
    """
    rows = len(array)
    target = pa.timestamp("us", tz=zone)
    data = array.buffers()[1]
    if data is None or not rows:
        return pa.nulls(rows, target)
    raw = np.frombuffer(data, dtype=_RECORD, count=array.offset + rows)[array.offset :]
    valid = np.asarray(array.is_valid()) if array.null_count else None
    days, nanos = raw["day"].astype(np.int64), raw["nanos"].copy()
    part = nanos // 1000
    if nanos.min() < 0:
        # As Java divides: towards zero.
        part += (nanos < 0) & (part * 1000 != nanos)
    found = (days - EPOCH_DAY) * DAY_US + part  # wraps as Spark's does
    if valid is not None:
        found[~valid] = 0
    if days.min() < -LAST_DAY or days.max() > LAST_DAY or np.abs(part).max() >= DAY_US:
        _refuse_out_of_range(days, nanos, found, valid, resource, column)
    return pa.array(found, mask=None if valid is None else ~valid).cast(target)


def require_whole_int96_micros(array: Any, *, column: str) -> None:
    """Raises: SchemaMismatch if an INT96 value is not a whole number of microseconds."""
    valid = array.drop_null()
    data = valid.buffers()[1]
    if data is None:
        return
    raw = np.frombuffer(data, dtype=_RECORD, count=valid.offset + len(valid))[valid.offset :]
    cut = raw["nanos"][raw["nanos"] % 1000 != 0]
    if len(cut):
        raise SchemaMismatch(
            column, f"nanosecond {cut[0]} of a day", "whole number of microseconds"
        )


def _refuse_out_of_range(
    days: Any, nanos: Any, found: Any, valid: Any, resource: str, column: str
) -> None:
    # Spark's own numbers of days wrap near the end of its range, and back when it reads them.
    in_range = (np.abs(days) <= LAST_DAY) & (np.abs(nanos // 1000) <= DAY_US)
    exact = (days - EPOCH_DAY).astype(np.float64) * DAY_US + nanos / 1000
    wrong = ~(in_range | (np.abs(exact - found) < DAY_US))
    if valid is not None:
        wrong &= valid
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UnsupportedFeature(
            "a data file holds an INT96 timestamp that no engine can show",
            resource=resource,
            field=column,
            found=f"Julian day {int(days[first])}, nanosecond {int(nanos[first])}",
            expected="a moment whose microseconds since 1970 fit into 64 bits",
            remedy="Correct or delete the row with the engine that wrote it",
        )


def with_bytes(metadata: Any) -> Any:
    """The same footer (`pq.FileMetaData`), with INT96 columns declared as twelve bytes each. Both
    types are stored alike, in every encoding."""
    sink = io.BytesIO()
    metadata.write_metadata_file(sink)
    file = sink.getvalue()
    footer = file[4:-8]
    changed = _splice(footer, sorted(_edits(footer)))
    whole = b"PAR1" + changed + len(changed).to_bytes(4, "little") + b"PAR1"
    return pq.read_metadata(pa.BufferReader(whole))


_Edit = tuple[int, int, bytes]
"""(start, end, replacement)."""


def _splice(data: bytes, edits: list[_Edit]) -> bytes:
    parts, at = [], 0
    for start, end, new in edits:
        parts += [data[at:start], new]
        at = end
    return b"".join([*parts, data[at:]])


def _edits(footer: bytes) -> Iterator[_Edit]:
    """FileMetaData: 2 is the list of SchemaElement, 4 that of RowGroup."""
    cursor = _Cursor(footer)
    for field, _type, _start in cursor.fields():
        if field == 2:
            for _ in range(cursor.list_length()):
                yield from _schema_element(cursor)
        elif field == 4:
            for _ in range(cursor.list_length()):
                yield from _row_group(cursor)


def _schema_element(cursor: _Cursor) -> Iterator[_Edit]:
    """1 is the type, 2 the length of fixed bytes. A field's header holds the difference of its
    number from the previous one's, so the field after an inserted one changes, too."""
    int96 = False
    for field, _type, start in cursor.fields():
        if field == 1:
            value = cursor.at
            int96 = cursor.integer() == _INT96
            if int96:
                yield value, cursor.at, bytes([_FIXED << 1])
        elif int96:
            int96 = False
            length = bytes([12 << 1])
            if field == 2:
                value = cursor.at
                cursor.integer()
                yield value, cursor.at, length
            else:
                header = cursor.data[start]
                yield start, start, bytes([1 << 4 | _I32]) + length
                if header >> 4:
                    yield start, start + 1, bytes([header - (1 << 4)])


def _row_group(cursor: _Cursor) -> Iterator[_Edit]:
    """RowGroup: 1 is the list of ColumnChunk, whose 3 is ColumnMetaData, whose 1 is the type."""
    for field, _type, _start in cursor.fields():
        if field != 1:
            continue
        for _ in range(cursor.list_length()):
            for inner, _type, _start in cursor.fields():
                if inner != 3:
                    continue
                for innermost, _type, _start in cursor.fields():
                    if innermost == 1:
                        value = cursor.at
                        if cursor.integer() == _INT96:
                            yield value, cursor.at, bytes([_FIXED << 1])


class _Cursor:
    """A place in data of Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int, int]]:
        """(number, type, where its header starts) of each field of a struct. A value that the
        caller does not read is skipped."""
        number = 0
        while True:
            start = self.at
            header = self.data[start]
            self.at += 1
            if header == 0:
                return
            number = number + (header >> 4) if header >> 4 else self.integer()
            value = self.at
            yield number, header & 15, start
            if self.at == value:
                self._skip(header & 15)

    def list_length(self) -> int:
        return self._list()[0]

    def integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def _list(self) -> tuple[int, int]:
        header = self.data[self.at]
        self.at += 1
        count = header >> 4
        return (self._varint() if count == 15 else count), header & 15

    def _skip(self, type_: int) -> None:
        match type_:
            case 1 | 2:  # booleans lie in the header
                pass
            case 3:
                self.at += 1
            case 4 | 5 | 6:
                self._varint()
            case 7:
                self.at += 8
            case 8:
                length = self._varint()
                self.at += length
            case 9 | 10:
                count, of = self._list()
                for _ in range(count):
                    # Booleans in a list have a byte each.
                    self._skip(3 if of in (1, 2) else of)
            case 12:
                for _ in self.fields():
                    pass
            case _:
                raise pa.ArrowInvalid(f"a footer with a field of Thrift type {type_}")
