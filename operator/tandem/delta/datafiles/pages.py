"""The pages of a column in one row group of a Parquet file: their headers, and whether their bytes
match their checksums.

Arrow verifies what it decodes, but does not say in which column: `damaged_page` finds that. Bytes
that are copied are never decoded: `require_pages` verifies them. Only pages tell whether they have
checksums, no footer does. Writers give one to each page of a file or to none, but a file may have
columns of several writers: the first page of a column tells it for the others.

Source: `parquet.thrift` of apache/parquet-format, `PageHeader`. Its `crc` is the CRC-32, as of
gzip, of what follows the header: all bytes of the page as they are stored, with levels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final

from tandem.delta.datafiles import thrift
from tandem.storage.store import READ_AHEAD, is_distant, read_at, read_each, side_by_side

TYPE, RAW_SIZE, SIZE, CRC = range(1, 5)
"""Fields of a header."""
DICTIONARY: Final = 2
"""The type of a page that is a dictionary."""
_HEADER: Final = dict.fromkeys((TYPE, RAW_SIZE, SIZE, CRC), thrift.INT)
_BLOCK: Final = 64 << 10
_MOST_HEADER: Final = 16 << 20
"""Bytes of a header, as in Arrow."""
_FIRST: Final = 64
"""Bytes of a header that have its first four fields, of up to six bytes each."""
_NEAR: Final = 128 << 10
_FAR: Final = 8 << 20
"""Bytes that are read at once of a column: what a processor's cache holds, or what is worth a
request."""
_COLUMNS: Final = 4
"""Columns that are read at once of an object store."""
_MISMATCH: Final = "CRC checksum verification failed"
"""A part of Arrow's message."""

Read = Callable[[int, int], bytes]
"""(where it begins, bytes) → the bytes; fewer only where the file ends."""


class PageInvalid(OSError):
    """A header that is none, or that contradicts its column."""


class PageDamaged(OSError):
    """A page whose bytes do not match its checksum.

    Attributes:
        column: its path in the file, joined by dots.
        page: which one, and where, in words. Numbers begin at 0.
        found: the checksum of its bytes; `expected`: the one in its header.
    """

    def __init__(self, column: str, page: str, found: int, expected: int) -> None:
        super().__init__(f"column {column}, {page}: CRC-32 {found:08x}, expected {expected:08x}")
        self.column, self.page = column, page
        self.found, self.expected = f"{found:08x}", f"{expected:08x}"


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """Where the pages of a column are in one row group; `column` is its path, joined by dots."""

    column: str
    start: int
    end: int


def headers(read: Read, start: int, end: int) -> Iterator[tuple[Mapping[int, Any], int]]:
    """(the fields of its header, where its bytes begin) of each page in a range of a file.

    Raises: PageInvalid, OSError.
    """
    at, block, begin = start, b"", start
    while at < end:
        size = _BLOCK
        while True:
            try:
                header, after = thrift.read(block, at - begin, _HEADER)
                break
            except (ValueError, IndexError, RecursionError) as error:
                whole = begin == at and (len(block) >= _MOST_HEADER or at + len(block) >= end)
                if whole:
                    raise PageInvalid(f"the header of the page at byte {at}: {error}") from error
            size = min(size, _MOST_HEADER, end - at)
            block, begin = bytes(read(at, size)), at
            if len(block) < size:
                raise PageInvalid(f"the file ends at byte {at + len(block)}")
            size *= 16  # for a header with long bounds
        if not all(0 <= header.get(field, -1) < 1 << 31 for field in (TYPE, RAW_SIZE, SIZE)):
            raise PageInvalid(f"the header of the page at byte {at} has no sizes")
        data = begin + after
        at = data + header[SIZE]
        if at > end:
            raise PageInvalid(f"a page ends at byte {at}, its column at byte {end}")
        yield header, data


def require_pages(
    source: BinaryIO, columns: Sequence[ColumnPages], *, one_writer: bool = False
) -> None:
    """That the pages of a row group match their checksums, as far as they have some. Reads 64 bytes
    of a column whose first page has none, and all bytes of the others.

    Args:
        one_writer: who wrote a column wrote them all. In a store far away the first column then
            tells for the others: a request for each takes longer than to have the store copy them.
    Raises: PageDamaged, PageInvalid, OSError.
    """
    start = min((each.start for each in columns), default=0)
    size = max((each.end for each in columns), default=0) - start
    distant = is_distant(source)
    read: Read = partial(read_at, source)
    if size <= READ_AHEAD:
        read, distant = partial(_part, read(start, size), start), False
    told = columns[:1] if distant and one_writer else columns
    begins = [(each.start, min(_FIRST, each.end - each.start)) for each in told]
    firsts = read_each(source, begins) if distant else [read(*each) for each in begins]
    checked = [c for c, first in zip(told, firsts, strict=True) if has_checksum(first)]
    if checked and len(told) < len(columns):
        checked = list(columns)
    if checked and distant and size <= _FAR:
        read, distant = partial(_part, read(start, size), start), False
    ahead = _FAR if distant else _NEAR
    side_by_side([partial(_require, read, c, ahead) for c in checked], _COLUMNS if distant else 1)


def damaged_page(
    error: Exception, source: BinaryIO, columns: Iterable[ColumnPages]
) -> PageDamaged | None:
    """The page that Arrow's error is about; None for another error, and if all pages match by
    now."""
    if _MISMATCH not in str(error):
        return None
    try:
        for each in columns:
            _require(partial(read_at, source), each, _FAR if is_distant(source) else _NEAR)
    except PageDamaged as found:
        return found
    except OSError:
        return None  # Arrow's error is the one to report
    return None


def has_checksum(header: bytes) -> bool:
    """Whether a page has one, by the first bytes of its header."""
    at = number = 0
    try:
        while number < CRC and header[at]:
            number, type_, at = thrift.field_head(header, at, number)
            if number < CRC:
                at = thrift.after_field(header, at, type_)
    except (ValueError, IndexError, RecursionError):
        return False  # no header: who decodes the page says what it is
    return number == CRC


def _require(read: Read, pages: ColumnPages, ahead: int) -> None:
    window = _Window(read, pages.end, ahead)
    data_pages = 0
    for header, start in headers(window.read, pages.start, pages.end):
        is_dictionary = header[TYPE] == DICTIONARY
        if CRC in header:
            found = window.checksum(start, header[SIZE])
            expected = header[CRC] & 0xFFFFFFFF
            if found != expected:
                name = "the dictionary" if is_dictionary else f"data page {data_pages}"
                place = f"{name} of its row group, {header[SIZE]} bytes from byte {start}"
                raise PageDamaged(pages.column, place, found, expected)
        data_pages += not is_dictionary


class _Window:
    """Reads a range of a file from its start to its end, many bytes at once."""

    def __init__(self, read: Read, end: int, ahead: int) -> None:
        self._read, self._end, self._ahead = read, end, ahead
        self._held = memoryview(b"")
        self._start = 0

    def read(self, start: int, size: int) -> bytes:
        offset = start - self._start
        if not 0 <= offset <= len(self._held) - size:
            self._fill(start, size)
            offset = 0
        return bytes(self._held[offset : offset + size])

    def checksum(self, start: int, size: int) -> int:
        """The CRC-32 of bytes of the file. Raises: PageInvalid if it ends before."""
        found, end = 0, start + size
        while start < end:
            offset = start - self._start
            if not 0 <= offset < len(self._held):
                self._fill(start, 1)
                offset = 0
                if not self._held:
                    raise PageInvalid(f"the file ends at byte {start}")
            piece = self._held[offset : offset + end - start]
            found = zlib.crc32(piece, found)
            start += len(piece)
        return found

    def _fill(self, start: int, least: int) -> None:
        size = min(max(self._ahead, least), self._end - start)
        self._held, self._start = memoryview(self._read(start, size)), start


def _part(data: bytes, begin: int, start: int, size: int) -> bytes:
    return data[start - begin : start - begin + size]
