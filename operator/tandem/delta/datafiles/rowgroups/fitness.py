"""Whether the row groups of a file can be copied into another file, and if not, why.

Copying is a decision: row groups of a thousand rows make a joined file larger, and more than twice
as slow to read, as one that is encoded again; at 100,000 rows there is no difference. A file that
does not fit is decoded and encoded, which is always right. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.rowgroups.footer import ColumnChunk, FileFooter
from tandem.delta.datafiles.rowgroups.schema import fits, written_by_us
from tandem.delta.datafiles.stats import counted_leaves, listed_leaves
from tandem.delta.datafiles.times import RebaseBoundaries
from tandem.delta.datafiles.writer import codec_of

GROUP_ROWS: Final = 64_000
GROUP_BYTES: Final = 4 << 20
"""By default a row group is large enough to be copied with so many rows, or so many bytes; on
average in its file."""
DELETED_SHARE: Final = 0.05
"""A file with a larger share of deleted rows is encoded again, without them."""

CODECS: Final = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""By Parquet's numbers, without those that our writer does not write: 5, for one, is an LZ4 that
each writer framed in its own way."""
_BYTE_ARRAY: Final = 6
_OLD_WRITER: Final = re.compile(rb"parquet-mr version (0|1)\.\d\.|parquet-cpp version ")
"""parquet-mr before 1.10 and the first parquet-cpp, some of which wrote wrong statistics or sizes
(PARQUET-251, PARQUET-816); readers know them by this text, which a joined file may not keep."""


class Unfit(StrEnum):
    """Why the row groups of a file are not copied, in words that follow "files"."""

    SMALL = "with small row groups"
    DELETED = "with many deleted rows"
    COLUMNS = "with other columns or types than the table"
    CODEC = "with another codec than new files"
    STATISTICS = "with incomplete statistics"
    CALENDAR = "with times of another calendar"
    FILTERS = "without the bloom filters of the table"
    WRITER = "of an old writer"
    FOOTER = "with a footer that cannot be copied"


@dataclass(frozen=True, slots=True)
class Demands:
    """What row groups must be like to be copied into files of a table.

    `ours` is the footer that our writer gives a file of the table; `codec` the one that it would
    use: rows are encoded into it once, and copied from then on; `filters` the indexes of the
    Parquet columns that must have bloom filters; `bounded` those that must have bounds; `counted`
    those that must count nulls. `group_rows` is `minRowGroupRows`, None for the default.
    """

    table: TableFormat
    ours: FileFooter
    codec: str
    filters: frozenset[int]
    bounded: frozenset[int]
    counted: frozenset[int]
    group_rows: int | None = None

    @classmethod
    def of(cls, table: TableFormat, group_rows: int | None = None) -> Demands:
        """Raises: UnsupportedFeature if the table sets a codec that Tandem does not write."""
        leaves = counted_leaves(table.data_schema)
        return cls(
            table=table,
            ours=written_by_us(table),
            codec=codec_of(table.configuration),
            filters=frozenset(i for i, leaf in leaves.items() if leaf.column in table.filters),
            bounded=frozenset(i for i, leaf in leaves.items() if leaf.bounded),
            counted=frozenset(leaves),
            group_rows=group_rows,
        )


def is_small(rows: int, size: int, group_rows: int | None) -> bool:
    """Whether a row group of so many rows and bytes is small; of a whole file, whether its row
    groups are, however it is divided.

    Args:
        group_rows: `minRowGroupRows`, with which bytes do not count; None for the default.
    """
    if group_rows is not None:
        return rows < group_rows
    return rows < GROUP_ROWS and size < GROUP_BYTES


def unfit(footer: FileFooter, demands: Demands, *, deleted: int = 0) -> Unfit | None:
    """Why the row groups of a file are not copied, None if they are.

    Args:
        deleted: rows of the file that are deleted, and are copied with the others.
    """
    found = foreign(footer, demands.table, demands.ours)
    if found is not None:
        return found
    if deleted > DELETED_SHARE * footer.rows:
        return Unfit.DELETED
    groups = [group for group in footer.groups if group.rows]
    size = sum(group.size for group in groups)
    if groups and is_small(footer.rows // len(groups), size // len(groups), demands.group_rows):
        return Unfit.SMALL
    for group in groups:
        for index, chunk in enumerate(group.chunks):
            found = _unfit_chunk(chunk, index, demands)
            if found is not None:
                return found
    return None


def foreign(
    footer: FileFooter, table: TableFormat, ours: FileFooter, *, any_spelling: bool = False
) -> Unfit | None:
    """Why no file of a table may have row groups of a file as they are, None if one may; one with
    its schema, if elements of lists and maps may have any spelling."""
    if _OLD_WRITER.match(footer.creator):
        return Unfit.WRITER
    if not footer.orders or not fits(footer, table, ours, any_spelling=any_spelling):
        return Unfit.COLUMNS
    pairs = {key: value or b"" for key, value in footer.pairs.items()}
    return None if RebaseBoundaries.of(pairs).always else Unfit.CALENDAR


def cannot_be_edited(footer: FileFooter, table: TableFormat, ours: FileFooter) -> Unfit | None:
    """Why an edit of a file cannot keep its row groups, None if it can. Whatever their size and
    codec: the file is there already. Statistics must not become fewer than encoding would make
    them; it makes no bounds of long values either, and none that the log does not list."""
    found = foreign(footer, table, ours, any_spelling=True)
    if found is not None:
        return found
    listed = listed_leaves(table.data_schema, table.configuration)
    for group in footer.groups:
        for index, chunk in enumerate(group.chunks):
            if chunk.codec not in CODECS:
                return Unfit.CODEC
            leaf = listed.get(index)
            if leaf is None or not group.rows:
                continue
            wide = leaf.bounded and not chunk.has_bounds and chunk.nulls != chunk.values
            if chunk.nulls is None or (wide and chunk.type != _BYTE_ARRAY):
                return Unfit.STATISTICS
    return None


def _unfit_chunk(chunk: ColumnChunk, index: int, demands: Demands) -> Unfit | None:
    if CODECS.get(chunk.codec) != demands.codec:
        return Unfit.CODEC
    if index in demands.filters and chunk.filter is None:
        return Unfit.FILTERS
    if index in demands.counted and chunk.nulls is None:
        return Unfit.STATISTICS
    if index in demands.bounded and not chunk.has_bounds and chunk.nulls != chunk.values:
        return Unfit.STATISTICS
    return None


def counted_reasons(reasons: Mapping[Unfit, int]) -> tuple[str, ...]:
    """`3 files with small row groups`, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{count} file{'s' if count != 1 else ''} {why}" for why, count in ordered)
