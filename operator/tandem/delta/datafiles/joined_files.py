"""Writes one data file of row groups of other files, and reads it back. The columns of a row group
may be in several files.

The bytes of a column go from file to file as they are, inside of the kernel where both are local.
Page indexes follow all row groups, as readers expect them; a bloom filter follows its row group.
Floats are decoded for their bounds alone: those of other writers may hide NaN
(`stats.FloatBounds`). So may their column indexes, and filters may hide one of the two zeros:
floats get neither.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, BinaryIO, Final, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta.datafiles import footer as footers
from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.conform import missing, unreadable
from tandem.delta.datafiles.footer import (
    MAGIC,
    TAIL,
    ByteRange,
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    RowGroup,
    parse,
    read_footer,
)
from tandem.delta.datafiles.footer_edit import (
    Placed,
    footer_bytes,
    group_at,
    group_of,
    offset_index_at,
    with_floats,
)
from tandem.delta.datafiles.pages import ColumnPages, PageDamaged, require_pages
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema, read_whole
from tandem.delta.datafiles.stats import (
    FloatBounds,
    FloatStatistics,
    from_footer,
    has_float,
    leaves_of,
    summaries,
)
from tandem.delta.datafiles.writer import Describe, WrittenFile, logged, new_path
from tandem.errors import DataFileMissing, ObjectNotFound, StorageError
from tandem.storage.store import Store, append_range, read_ahead, version_of

# A data file whose row groups are copied: what is read of it beside the bytes that are copied.


FOOTER: Final = 64 << 10
"""Bytes that are read at a file's end: most footers are shorter."""
_LONG_FOOTER: Final = 1 << 20
_SMALL: Final = 1 << 20
"""Files of fewer bytes are read in one request."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A data file, and the version of it of which `footer` is the footer; None if that cannot be
    parsed. `data` is the content of a small file."""

    store: Store
    path: str
    footer: FileFooter | None
    version: str | None = None
    data: bytes | None = None

    @classmethod
    def read(cls, store: Store, path: str, size: int = 0) -> CopySource:
        """Read its footer; all of a small file, if `size` says how many bytes it has. Then, a long
        footer that is most of the file is not parsed: its rows are sooner decoded. Raises:
        DataFileMissing, StorageError, OSError."""
        data = read_whole(store, path, size) if 0 < size < _SMALL else None
        with opened(store, path, data) as source:
            read_ahead(source, FOOTER)
            version = version_of(source)
            footer = None
            with suppress(FooterInvalid):  # decoding says what is wrong, if anything is
                found = read_footer(source)
                rows_are_less = 0 < size < 2 * len(found)
                if len(found) < _LONG_FOOTER or not rows_are_less:
                    footer = parse(found, source.seek(0, 2))
        return cls(store, path, footer, version, data)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file, to copy ranges of it. Raises: DataFileMissing; FooterInvalid if another object
        took its place."""
        with opened(self.store, self.path, self.data) as source:
            if version_of(source) != self.version:
                raise FooterInvalid("the file was replaced after its footer was read")
            yield source


@contextmanager
def opened(store: Store, path: str, data: bytes | None = None) -> Iterator[BinaryIO]:
    """A file of which ranges are read; `data` is the content of a small one. Raises:
    DataFileMissing, StorageError."""
    try:
        source = store.open_input(path) if data is None else cast(BinaryIO, pa.BufferReader(data))
    except ObjectNotFound as error:
        raise missing(path) from error
    with source:
        read_ahead(source, 1)
        yield source


@contextmanager
def copying(path: str, table: TableFormat) -> Iterator[None]:
    """Raises StorageError for what is wrong with the bytes of a file that are copied."""
    try:
        yield
    except PageDamaged as error:
        names = {each.physical_name: each.name for each in table.data_schema}
        raise unreadable(path, error, names) from error
    except (FooterInvalid, OSError) as error:
        raise StorageError(
            "the row groups of a data file cannot be copied",
            resource=path,
            found=str(error)[:300],
            expected="the bytes that its footer names",
            remedy="Restore the file, or the table to a version without it",
        ) from error


def share_of_columns(store: Store, path: str, size: int, names: Collection[str]) -> float | None:
    """The share of a file's pages that belongs to the top-level columns with these physical names,
    by its footer; None where that cannot be read."""
    try:
        footer = CopySource.read(store, path, size).footer
    except (DataFileMissing, StorageError, OSError):  # what needs the file says so
        return None
    every = 0 if footer is None else sum(group.size for group in footer.groups)
    if footer is None or not every:
        return None
    chunks = (chunk for group in footer.groups for chunk in group.chunks)
    belongs = tuple(f"{name}." for name in names)
    return sum(c.data.size for c in chunks if f"{c.path}.".startswith(belongs)) / every


class FloatColumns:
    """The statistics of the floats of a file's row groups, by Parquet column.

    Args:
        columns: the logical names of the columns to decode; None for all that have floats.
        data: the content of a small file.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        table: TableFormat,
        *,
        columns: Collection[str] | None = None,
        data: bytes | None = None,
    ) -> None:
        schema = arrow_schema(table, table.file_schema.names)
        # Those of partitions are as the file has them.
        table = replace(table, partition_columns=())
        starts = accumulate((leaves_of(each.type) for each in schema), initial=0)
        wanted = {
            each.name: start
            for each, start in zip(schema, starts, strict=False)
            if has_float(each.type) and (columns is None or each.name in columns)
        }
        self._starts = [*wanted.values()]
        self._reader = (
            DataFileReader(store, path, table, columns=[*wanted], data=data) if wanted else None
        )

    def summaries(self, group: int) -> Mapping[int, FloatStatistics]:
        """Of the row group with this number."""
        found: dict[int, FloatStatistics] = {}
        for batch in self._batches(group):
            columns = zip(self._starts, map(pa.chunked_array, zip(batch.columns)), strict=True)
            part = summaries(columns)
            found = {n: found[n].joined(each) if n in found else each for n, each in part.items()}
        return found

    def _batches(self, group: int) -> Iterator[pa.RecordBatch]:
        if self._reader is not None:
            yield from self._reader.batches(row_groups=range(group, group + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()


MOST_GROUPS: Final = 30_000
"""Row groups of a file: their numbers have 16 bits."""
MOST_FOOTER: Final = 16 << 20
"""Bytes of a footer with page indexes, about: every reader of a file reads it first."""
MOST_KEPT: Final = footers.MOST_KEPT // 2
"""Fields and structs of a footer: the next compaction, which copies the row groups again, must be
able to keep them."""
_CREATOR: Final = b"tandem version 1.0.0 (build )"
"""Of files that have row groups of several writers; in the form that parquet-java parses."""
_PER_FILE: Final = frozenset({b"pandas"})
"""Key-value metadata that describes the rows of one file."""
_FLOATS: Final = frozenset({4, 5})
"""FLOAT and DOUBLE, by Parquet's numbers."""
_PAGE_TYPES: Final = frozenset({0, 2, 3})
"""Data pages of both versions, and dictionaries."""
_PAGE_HEADER: Final = 1 << 10
_LONGEST_PAGE_HEADER: Final = 64 << 10
"""Bytes of a page's header: usually, and with statistics at most."""
_GAP: Final = 16 << 10
"""Bytes between two columns that are copied with them: some writers leave a description of each
column there, which no reader needs."""
_TOGETHER: Final = 64 << 10
"""Bytes between page indexes that are read with them."""


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """Columns of a row group that are in one file: their chunks, and the statistics of their
    floats, by the number of the column."""

    source: BinaryIO
    footer: FileFooter
    chunks: Mapping[int, ColumnChunk]
    floats: Mapping[int, FloatStatistics]


@dataclass
class _Copied:
    """A row group in the new file; the places of its page indexes are not known yet."""

    group: RowGroup
    data: list[int]
    filters: list[int]
    column_indexes: list[bytes]
    offset_indexes: list[bytes]


@dataclass
class JoinedFile:
    """One unfinished file of row groups whose schemas have the same key (`copyable.key_of`).

    Args:
        prefix: folder of the file below the root (`names`).
        like: a footer of that schema.
        values: its partition values, as they will be logged.
    """

    store: Store
    prefix: str
    table: TableFormat
    like: FileFooter
    task: int = 0
    values: Mapping[str, str | None] = field(default_factory=dict)
    rows: int = 0
    copied_in_store: int = 0
    """Bytes that never left the store, known when it is closed."""
    version: int = 1
    """Of the format, as the footer says."""
    encoded: list[bytes] = field(default_factory=list)
    """The row groups, as structs of Thrift, once closed; without what the footer says of floats."""
    _groups: list[_Copied] = field(default_factory=list)
    _last: tuple[BinaryIO | None, int, int] = (None, 0, 0)
    """The source of the last copy, where it ended there, and here."""
    _floats: FloatBounds = field(default_factory=FloatBounds)
    _pairs: dict[bytes, bytes | None] | None = None
    _creators: set[bytes] = field(default_factory=set)
    _footer_size: int = 0
    _kept: int = 0

    def __post_init__(self) -> None:
        self.path = new_path(self.prefix.rstrip("/"), self.values, self.task)
        self._sink: Any = self.store.open_output(self.path)
        self._sink.write(MAGIC)

    @property
    def size(self) -> int:
        """Bytes so far, without the footer."""
        return int(self._sink.tell())

    @property
    def count(self) -> int:
        """Row groups so far."""
        return len(self._groups)

    @property
    def creator(self) -> bytes:
        """Who wrote the row groups."""
        return next(iter(self._creators)) if len(self._creators) == 1 else _CREATOR

    @property
    def is_full(self) -> bool:
        """Whether its footer has reached its bounds."""
        return (
            len(self._groups) >= MOST_GROUPS
            or self._footer_size >= MOST_FOOTER
            or self._kept >= MOST_KEPT
        )

    def copy(
        self,
        source: BinaryIO,
        footer: FileFooter,
        group: RowGroup,
        floats: Mapping[int, FloatStatistics],
    ) -> None:
        """Add a row group of a file. Raises: FooterInvalid, PageDamaged, StorageError, OSError."""
        self._add(group, [ChunkSource(source, footer, dict(enumerate(group.chunks)), floats)])

    def assemble(self, rows: int, parts: Sequence[ChunkSource]) -> None:
        """Add a row group whose columns are in several files; each is in one part. Raises:
        FooterInvalid, PageDamaged, StorageError, OSError."""
        chunks = {number: chunk for part in parts for number, chunk in part.chunks.items()}
        self._add(group_of(rows, [chunks[number] for number in range(len(chunks))]), parts)

    def _add(self, group: RowGroup, parts: Sequence[ChunkSource]) -> None:
        count = len(group.chunks)
        copied = _Copied(group, [0] * count, [0] * count, [b""] * count, [b""] * count)
        for part in parts:
            _require_pages(part.source, part.footer, part.chunks.values())
            self._copy_pages(part, copied.data)
        for part in parts:
            self._copy_indexes(part, copied)
        if len(parts) > 1:
            # The first column of a row group no longer tells whether all have checksums.
            self._creators.add(_CREATOR)
        self._groups.append(copied)
        self._floats.groups.append({n: found for part in parts for n, found in part.floats.items()})
        self._footer_size += sum(len(each.value) for each in group.fields)
        self._footer_size += sum(map(len, (*copied.column_indexes, *copied.offset_indexes)))
        self._kept += group.kept
        self.rows += group.rows
        for part in parts:
            self._remember(part.footer)

    def _copy_indexes(self, part: ChunkSource, copied: _Copied) -> None:
        """Copy filters, and read page indexes, which are written later."""
        indexes = _Indexes(part.source, part.chunks.values())
        for number, chunk in part.chunks.items():
            offsets = indexes.read(chunk.offset_index)
            if offsets:
                moved = copied.data[number] - chunk.data.start
                copied.offset_indexes[number] = offset_index_at(offsets, moved)
            if chunk.type in _FLOATS:
                continue
            copied.column_indexes[number] = indexes.read(chunk.column_index)
            if chunk.filter is not None:
                copied.filters[number] = self.size
                append_range(part.source, chunk.filter.start, chunk.filter.size, self._sink)

    def _remember(self, footer: FileFooter) -> None:
        self.version = max(self.version, footer.version)
        self._creators.add(footer.creator)
        kept = {key: value for key, value in footer.pairs.items() if key not in _PER_FILE}
        before = self._pairs
        self._pairs = kept if before is None else dict(before.items() & kept.items())

    def _copy_pages(self, part: ChunkSource, starts: list[int]) -> None:
        """Sets where the pages of each column begin; ranges that almost touch are copied at once,
        with what lies between them, also from one row group to the next."""
        source = part.source
        order = sorted(part.chunks, key=lambda number: part.chunks[number].data.start)
        last, end, size = self._last
        run = ByteRange(end if last is source and size == self.size else 0, 0)
        for number in order:
            data = part.chunks[number].data
            if not 0 <= data.start - run.end <= _GAP or not run.end:
                append_range(source, run.start, run.size, self._sink)
                run = ByteRange(data.start, 0)
            starts[number] = self.size + data.start - run.start
            run = ByteRange(run.start, data.end - run.start)
        append_range(source, run.start, run.size, self._sink)
        self._last = source, run.end, self.size

    def close(self, describe: Describe | None) -> WrittenFile:
        """Finish the file, and read it back. Raises: StorageError, after which there is no file."""
        self.encoded = groups = self._write_indexes()
        footer = footer_bytes(
            version=self.version,
            schema=self.like.schema,
            rows=self.rows,
            groups=groups,
            pairs=self._pairs or {},
            creator=self.creator,
            orders=self.like.orders,
        )
        footer = with_floats(footer, self._floats)
        self._sink.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
        size = self.size
        self._sink.close()
        self.copied_in_store = getattr(self._sink, "copied_in_store", 0)
        pages = [min(copied.data, default=0) for copied in self._groups]
        try:
            metadata = read_back(self.store, self.path, footer, size, self.rows, pages)
            stats = from_footer(
                metadata,
                self.table.without_row_ids.data_schema,
                self.table.configuration,
                self._floats,
            )
        except BaseException:
            self.store.delete([self.path])
            raise
        path = logged(self.path)
        return WrittenFile(
            path=path,
            size=size,
            rows=metadata.num_rows,
            modified_ms=time.time_ns() // 1_000_000,
            stats=stats,
            partition_values=dict(self.values),
            facts=b"" if describe is None else describe(path, size, footer),
        )

    def _write_indexes(self) -> list[bytes]:
        """Write the page indexes; returns the encoded row groups."""
        columns = [
            [self._append(each) if each else 0 for each in c.column_indexes] for c in self._groups
        ]
        offsets = [[self._append(each) for each in c.offset_indexes] for c in self._groups]
        return [
            group_at(
                copied.group,
                [
                    Placed(*each)
                    for each in zip(
                        copied.data,
                        copied.filters,
                        columns[n],
                        map(ByteRange, offsets[n], map(len, copied.offset_indexes)),
                        strict=True,
                    )
                ],
                n,
            )
            for n, copied in enumerate(self._groups)
        ]

    def _append(self, data: bytes) -> int:
        """Where it begins."""
        start = self.size
        if data:
            self._sink.write(data)
        return start

    def abort(self) -> None:
        """Discard the file."""
        self._sink.abort()


def read_back(
    store: Store, path: str, footer: bytes, size: int, rows: int, pages: Iterable[int]
) -> Any:
    """The footer of a file that was just written, as pyarrow reads it.

    Args:
        footer, size, rows: what was written; size in bytes.
        pages: where some pages begin.
    Raises: StorageError if the file is not what was written.
    """
    try:
        with store.open_input(path) as source:
            found = source.seek(0, 2)
            if found != size:  # a store may have copied more or less than a range
                raise FooterInvalid(f"{found} bytes, {size} were written")
            read_ahead(source, len(footer) + TAIL)
            if read_footer(source) != footer:
                raise FooterInvalid("its footer is another one")
            read_ahead(source, 1)
            for page in pages:
                _require_page(source, page)
            source.seek(0)
            metadata = pq.read_metadata(source)
        if metadata.num_rows != rows:
            raise FooterInvalid(f"{metadata.num_rows} rows, {rows} were copied")
    except (ValueError, IndexError, OSError, ObjectNotFound) as error:
        raise StorageError(
            "a file of copied row groups is not what was written",
            resource=path,
            found=str(error)[:300],
            expected="the row groups that were copied",
            remedy="Nothing was published; run the operation again",
        ) from error
    return metadata


class _Indexes:
    """The page indexes of columns of a row group, which writers put in one place: they are read at
    once, and nothing else is, as the pages may never leave their store."""

    def __init__(self, source: BinaryIO, chunks: Iterable[ColumnChunk]) -> None:
        self._source = source
        named = (where for c in chunks for where in (c.column_index, c.offset_index))
        places = [where for where in named if where is not None and where.size]
        start = min((where.start for where in places), default=0)
        end = max((where.end for where in places), default=0)
        apart = end - start > _TOGETHER + sum(where.size for where in places)
        self._all = ByteRange(start, 0 if apart else end - start)
        self._bytes = self._read(self._all)

    def read(self, where: ByteRange | None) -> bytes:
        if where is None or not where.size:
            return b""
        if not self._all.size:
            return self._read(where)
        start = where.start - self._all.start
        return self._bytes[start : start + where.size]

    def _read(self, where: ByteRange) -> bytes:
        if not where.size:
            return b""
        self._source.seek(where.start)
        return bytes(self._source.read(where.size))


def _require_pages(source: BinaryIO, footer: FileFooter, chunks: Iterable[ColumnChunk]) -> None:
    """That the pages match their checksums, where they have some: what is copied is never decoded.
    Raises: PageDamaged, PageInvalid, OSError."""
    columns = [ColumnPages(each.path, each.data.start, each.data.end) for each in chunks]
    require_pages(source, columns, one_writer=footer.creator != _CREATOR)


def _require_page(source: BinaryIO, at: int) -> None:
    """Raises: ValueError, IndexError if no page begins at `at`."""
    source.seek(at)
    header = bytes(source.read(_PAGE_HEADER))
    try:
        found, _ = thrift.read(header, 0, {1: thrift.INT})
    except (ValueError, IndexError):
        header += bytes(source.read(_LONGEST_PAGE_HEADER - len(header)))
        found, _ = thrift.read(header, 0, {1: thrift.INT})
    if found.get(1) not in _PAGE_TYPES:
        raise FooterInvalid(f"no page begins at byte {at}")
