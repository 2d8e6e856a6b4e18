"""How much the pages of a Parquet file hold, by their headers.

A footer may say anything about the size of a column. Readers allocate what the header of a page
says, which is read here before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from tandem.delta.budget import FOOTER_FACTOR, Account
from tandem.delta.datafiles import page_walk
from tandem.delta.datafiles.rowgroups.footer import (
    TAIL,
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    parse,
    read_footer,
)

MOST_PAGES: Final = 100_000
"""Of a file. A page has a megabyte, or 20,000 rows, with any writer's defaults."""
_DELTA_BYTE_ARRAY: Final = 7
_BYTE_ARRAY: Final = 6


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
    Raises: FooterInvalid, PageInvalid, OSError.
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
    def read(at: int, size: int) -> bytes:
        source.seek(at)
        return source.read(size)

    raw = largest = values = pages = 0
    dictionary = shares = False
    for header, _ in page_walk.headers(read, chunk.data.start, chunk.data.end):
        pages += 1
        if pages > most:
            raise FooterInvalid(f"more than {MOST_PAGES} pages")
        first = header.get(page_walk.DATA_PAGE)
        data = first or header.get(page_walk.DATA_PAGE_V2) or {}
        raw += header[page_walk.RAW_SIZE]
        largest = max(largest, header[page_walk.RAW_SIZE])
        values += data.get(1, 0)
        dictionary = dictionary or header[page_walk.TYPE] == page_walk.DICTIONARY
        encoding = data.get(2 if first is not None else 4)
        shares = shares or encoding == _DELTA_BYTE_ARRAY
    text = chunk.type == _BYTE_ARRAY
    found = PagesOfColumn(
        path, raw, largest, max(values, chunk.values), text, dictionary and text, shares and text
    )
    return found, pages
