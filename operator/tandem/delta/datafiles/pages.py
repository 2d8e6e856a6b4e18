"""How much the pages of a Parquet file hold, by their headers.

A footer may say anything about the size of a column. Readers allocate what the header of a page
says, which is read here before. Source: `parquet.thrift` of apache/parquet-format, `PageHeader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from tandem.delta.budget import FOOTER_FACTOR, Account
from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.rowgroups.footer import (
    TAIL,
    ByteRange,
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    parse,
    read_footer,
)

MOST_PAGES: Final = 100_000
"""Of a file. A page has a megabyte, or 20,000 rows, with any writer's defaults."""
_DICTIONARY_PAGE: Final = 2
_DELTA_BYTE_ARRAY: Final = 7
_BYTE_ARRAY: Final = 6
_BLOCK: Final = 64 << 10
_MOST_HEADER: Final = 16 << 20
"""Bytes of a header, as in Arrow."""
_HEADER: Final = {
    1: thrift.INT,
    2: thrift.INT,
    3: thrift.INT,
    5: {1: thrift.INT, 2: thrift.INT},
    7: {1: thrift.INT, 2: thrift.INT},
    8: {1: thrift.INT, 4: thrift.INT},
}


@dataclass(frozen=True, slots=True)
class PagesOfColumn:
    """The pages of a column in one row group.

    Attributes:
        path: the names from the root, joined by dots.
        raw: bytes of all pages, decompressed.
        largest: of one page.
        values: with nulls.
        is_text: whether values have a length of their own.
        has_dictionary: whether a value may be longer than its bytes in the pages.
        shares_prefixes: the same, for values that repeat the beginning of the one before.
    """

    path: str
    raw: int
    largest: int
    values: int
    is_text: bool
    has_dictionary: bool
    shares_prefixes: bool


def footer_of(source: BinaryIO, account: Account) -> FileFooter:
    """The footer of a file. Raises: FooterInvalid, TooLarge, OSError."""
    data = read_footer(source)
    account.spend(FOOTER_FACTOR * len(data), f"a footer of {len(data):,} bytes")
    return parse(data, source.seek(0, 2))


def require_footer(source: BinaryIO, account: Account) -> None:
    """That a footer is not too large to be decoded; what is no footer is left to the reader.

    Raises: TooLarge, OSError.
    """
    if not account.limited:
        return
    end = source.seek(0, 2)
    source.seek(max(0, end - TAIL))
    # A length that lies is not more than the file, which readers check, too.
    length = min(int.from_bytes(source.read(TAIL)[:4], "little"), end)
    account.require(FOOTER_FACTOR * length, f"a footer of {length:,} bytes")
    source.seek(0)


def pages_of(
    source: BinaryIO, footer: FileFooter, leaves: Sequence[str], wanted: Callable[[str], bool]
) -> list[list[PagesOfColumn]]:
    """The wanted columns of each row group.

    Args:
        leaves: the paths of the columns in their order, by the schema: what a column says of its
            own path is not what readers go by.
    Raises: FooterInvalid, OSError.
    """
    found: list[list[PagesOfColumn]] = []
    left = MOST_PAGES
    for group in footer.groups:
        if len(group.chunks) != len(leaves):
            raise FooterInvalid(f"a row group of {len(group.chunks)} columns, of {len(leaves)}")
        columns: list[PagesOfColumn] = []
        for path, chunk in zip(leaves, group.chunks, strict=True):
            if wanted(path):
                column, pages = _column(source, chunk, path, left)
                left -= pages
                columns.append(column)
        found.append(columns)
    return found


def _column(
    source: BinaryIO, chunk: ColumnChunk, path: str, most: int
) -> tuple[PagesOfColumn, int]:
    raw = largest = values = pages = 0
    dictionary = shares = False
    for header in _headers(source, chunk.data):
        pages += 1
        if pages > most:
            raise FooterInvalid(f"more than {MOST_PAGES} pages")
        data = header.get(5) or header.get(8) or {}
        raw += header[2]
        largest = max(largest, header[2])
        values += data.get(1, 0)
        dictionary = dictionary or header[1] == _DICTIONARY_PAGE
        encoding = data.get(2) if 5 in header else data.get(4)
        shares = shares or encoding == _DELTA_BYTE_ARRAY
    text = chunk.type == _BYTE_ARRAY
    found = PagesOfColumn(
        path, raw, largest, max(values, chunk.values), text, dictionary and text, shares and text
    )
    return found, pages


def _headers(source: BinaryIO, place: ByteRange) -> Iterator[Mapping[int, Any]]:
    """The headers of the pages in a range of a file."""
    at, block, start = place.start, b"", place.start
    while at < place.end:
        size = _BLOCK
        while True:
            try:
                header, end = thrift.read(block, at - start, _HEADER)
                break
            except (ValueError, IndexError, RecursionError) as error:
                whole = start == at and (len(block) >= _MOST_HEADER or at + len(block) >= place.end)
                if whole:
                    raise FooterInvalid(f"the header of the page at byte {at}: {error}") from error
            size = min(size, _MOST_HEADER, place.end - at)
            source.seek(at)
            block, start = bytes(source.read(size)), at
            if len(block) < size:
                raise FooterInvalid(f"the file ends at byte {at + len(block)}")
            size *= 16  # for a header with long bounds
        if not all(0 <= header.get(field, -1) < 1 << 31 for field in (1, 2, 3)):
            raise FooterInvalid(f"the header of the page at byte {at} has no sizes")
        at = start + end + header[3]
        if at > place.end:
            raise FooterInvalid(f"a page ends at byte {at}, its column at byte {place.end}")
        yield header
