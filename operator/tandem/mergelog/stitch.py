"""Stitches the blocks of a run into one, or several if it would grow too large. Does not commit.

A stitched block keeps the instants of its records in a column, so that it is right for every mark,
and its records need no order among blocks: several blocks of one run have the same interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile, repetitive_columns
from tandem.errors import StorageError
from tandem.mergelog.blocks import BlockReader, records_of, require_keys
from tandem.mergelog.by_key import (
    Key,
    Unsorted,
    kept_by_stitching,
    key_at,
    number_keys,
    parts_by_key,
    sorted_order,
    wide,
)
from tandem.mergelog.log_table import DELETED, INSTANT, LogSettings
from tandem.mergelog.versions import Block, BlockRun, tags_of
from tandem.storage.store import Store

MEMORY: Final = 64 << 20
"""Bytes of the rows that are read and not written yet, about, whatever the size of the run."""
MOST_OPEN: Final = 512
"""So many blocks are merged at once: a process may not open any number of files."""
PAGES: Final = 256 << 20
"""Bytes of the pages of all blocks that are merged at once, about. A run with more is stitched in
several steps."""
_PAGES_OF_COLUMN: Final = 2 << 20
"""A page of a column, and the dictionary of its values."""


@dataclass(frozen=True, slots=True)
class StitchRequest:
    """What a log compaction asks for.

    Attributes:
        mark: the mark that the log recorded in the version of the plan. A later one is not safe: a
            restore may return to the recorded one.
        expired: deletes up to this instant are dropped once they are merged.
        max_bytes: the size of a block, about; a larger one is split between keys.
    """

    mark: int
    expired: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Stitched:
    """The blocks made from a run, with their numbers of records: none, if the base table holds
    all that the run has."""

    adds: tuple[AddFile, ...]
    rows: tuple[int, ...]
    records_in: int

    @property
    def records_out(self) -> int:
        return sum(self.rows)


def stitch(
    store: Store,
    run: BlockRun,
    request: StitchRequest,
    table: TableFormat,
    settings: LogSettings,
    *,
    prefix: str,
    task: int,
) -> Stitched:
    """Write the blocks that replace a run. Raises: DataFileMissing, StorageError, CorruptLog."""
    stitcher = _Stitcher(store, run, request, table, settings, prefix, task)
    blocks = run.blocks
    between: list[str] = []
    dropped = 0
    while len(groups := stitcher.groups(blocks)) > 1:
        left: list[Block] = []
        for group in groups:
            found = stitcher.write(group, sys.maxsize)
            dropped += found.records_in - found.records_out
            left += map(stitcher.block, found.adds)
        blocks = tuple(left)
        between += [block.path for block in blocks]
    done = stitcher.write(blocks, request.max_bytes)
    store.delete(between)
    return replace(done, records_in=done.records_in + dropped)


@dataclass(frozen=True, slots=True)
class _Stitcher:
    """Writes blocks that replace those of a run, or some of them."""

    store: Store
    run: BlockRun
    request: StitchRequest
    table: TableFormat
    settings: LogSettings
    prefix: str
    task: int

    def groups(self, blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
        """The blocks in parts that are merged at once, each of two or more but for the last."""
        most = len(self.table.data_schema) * _PAGES_OF_COLUMN
        groups: list[list[Block]] = [[]]
        pages = 0
        for block in blocks:
            size = min(block.size, most)
            full = len(groups[-1]) == MOST_OPEN or pages + size > PAGES
            if full and len(groups[-1]) > 1:
                groups.append([])
                pages = 0
            groups[-1].append(block)
            pages += size
        return [tuple(group) for group in groups]

    def write(self, blocks: Sequence[Block], max_bytes: int) -> Stitched:
        """Raises: DataFileMissing, StorageError, CorruptLog."""
        table, keys = self.table, self.settings.keys
        columns = [name for name in table.schema.names if name not in (DELETED, INSTANT)]
        share = MEMORY // max(len(blocks), 1)
        with ExitStack() as opened:
            readers = [
                opened.enter_context(BlockReader(self.store, block, table, columns, memory=share))
                for block in blocks
            ]
            records_in = sum(reader.num_rows for reader in readers)
            size = sum(block.size for block in blocks)
            out = opened.enter_context(
                _Output(self, most=max(max_bytes * records_in // max(size, 1), 1))
            )
            schema = arrow_schema(table, [*columns, DELETED, INSTANT])
            batches = [
                self._read(reader, block.path)
                for reader, block in zip(readers, blocks, strict=True)
            ]
            try:
                for part in parts_by_key(batches, schema, keys, MEMORY):
                    out.write(self._kept(part))
            except Unsorted as error:
                raise StorageError(
                    "a block is not sorted by key, so that it cannot be stitched",
                    resource=self.store.location,
                    found=f"instants {self.run.first} to {self.run.last}",
                    remedy="Another writer has changed the log: merge it instead",
                ) from error
            out.close()
        return Stitched(tuple(out.adds), tuple(out.sizes), records_in)

    def _read(self, reader: BlockReader, path: str) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches():
            require_keys(batch, self.settings, path)
            yield batch

    def _kept(self, rows: pa.Table) -> pa.Table:
        """The records that stay, in order."""
        records = records_of(rows, self.table, self.settings)
        kept = pa.array(kept_by_stitching(records, self.request.mark, self.request.expired))
        sorting = (*self.settings.keys, INSTANT)
        order = sorted_order([wide(rows[name]).take(kept) for name in sorting])
        return rows.take(kept.take(order))

    def file(self, rows: pa.Table) -> ParquetDataWriter:
        """A file that begins with some rows."""
        group = dict(self.run.blocks[0].group)
        return ParquetDataWriter(
            self.store,
            self.prefix,
            self.table,
            partition_values=group,
            partition_folders=False,
            task=self.task,
            dictionary=repetitive_columns(self.table, rows),
            checksums=True,
        )

    def added(self, file: WrittenFile, deletes: int) -> AddFile:
        block = Block(file.path, self.run.first, self.run.last, file.size, deletes)
        return AddFile(
            logged_path=file.path,
            partition_values=dict(file.partition_values),
            size=file.size,
            modified_ms=file.modified_ms,
            data_change=False,
            stats=file.stats,
            tags=tags_of(block),
        )

    def block(self, add: AddFile) -> Block:
        """A block that is stitched once more."""
        group = self.run.blocks[0].group
        return Block(add.path, self.run.first, self.run.last, add.size, group=group)


class _Output:
    """Blocks of sorted records, each of about `most` of them: it is cut between keys."""

    def __init__(self, stitcher: _Stitcher, most: int) -> None:
        self._stitcher = stitcher
        self._most = most
        self._keys = stitcher.settings.keys
        self._writer: ParquetDataWriter | None = None
        self._rows = self._deletes = 0
        self._last: Key | None = None
        self.adds: list[AddFile] = []
        self.sizes: list[int] = []

    def write(self, rows: pa.Table) -> None:
        """Add records whose keys are greater than those before. Raises: Unsorted."""
        if not rows.num_rows:
            return
        self._check_order(rows)
        while rows.num_rows:
            room = self._most - self._rows
            count = rows.num_rows if room > rows.num_rows else self._end_of_key(rows, room)
            self._append(rows.slice(0, count))
            rows = rows.slice(count)
            if self._rows >= self._most:
                self.close()

    def _check_order(self, rows: pa.Table) -> None:
        first = key_at(rows, self._keys, 0)
        if self._last is not None and not self._last < first:
            raise Unsorted
        self._last = key_at(rows, self._keys, rows.num_rows - 1)

    def _end_of_key(self, rows: pa.Table, least: int) -> int:
        """The number of rows, at least so many, after which another key follows."""
        numbers = number_keys([rows[key].combine_chunks() for key in self._keys])
        ends = np.append(np.flatnonzero(np.diff(numbers)) + 1, len(numbers))
        return int(ends[np.searchsorted(ends, least)])

    def _append(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._writer = self._stitcher.file(rows)
        for batch in rows.select(self._stitcher.table.data_schema.names).to_batches():
            self._writer.write(batch)
        self._rows += rows.num_rows
        self._deletes += int(pc.sum(rows[DELETED]).as_py())

    def close(self) -> None:
        """Finish the present block."""
        if self._writer is not None:
            (file,) = self._writer.close()
            self.adds.append(self._stitcher.added(file, self._deletes))
            self.sizes.append(file.rows)
        self._writer = None
        self._rows = self._deletes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.abort()
