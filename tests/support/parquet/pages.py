"""The pages of a Parquet file, one bit of which can be flipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tandem.delta.datafiles.pages import CRC, DICTIONARY, SIZE, TYPE, headers


@dataclass(frozen=True)
class Page:
    """A page of a column; `start` is where its bytes begin, after its header."""

    column: str
    header: Mapping[int, Any]
    start: int

    @property
    def is_dictionary(self) -> bool:
        return bool(self.header[TYPE] == DICTIONARY)

    @property
    def size(self) -> int:
        return int(self.header[SIZE])

    @property
    def has_checksum(self) -> bool:
        return CRC in self.header


def pages(path: Path) -> list[Page]:
    """All pages, in the order of row groups and columns."""
    data = path.read_bytes()
    metadata = pq.read_metadata(path)
    found = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            end = start + chunk.total_compressed_size
            walk = headers(lambda at, size: data[at : at + size], start, end)
            found += [Page(chunk.path_in_schema, header, at) for header, at in walk]
    return found


def page_of(path: Path, column: str, *, dictionary: bool = False) -> Page:
    """The last data page of a column, or its first dictionary."""
    mine = [each for each in pages(path) if each.column == column]
    if dictionary:
        return next(each for each in mine if each.is_dictionary)
    return [each for each in mine if not each.is_dictionary][-1]


def flip(path: Path, page: Page) -> None:
    """Flip a bit of the last byte of a page: of a value, whatever encodes it."""
    data = bytearray(path.read_bytes())
    data[page.start + page.size - 1] ^= 1
    path.write_bytes(data)
