"""Divides the rows of a bin by time: each chunk gets files of its own.

Rows keep their order within a chunk. With `take`, rows outside of its intervals are left where they
are: the row map counts them as dead. Runs in a task of `rewrite`; the driver makes the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile, limit_held
from tandem.intervals import IntervalSet, TimeInterval
from tandem.jobs.formats import JobBin, JobSpec, RewriteJob, TimeBorders
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.rowmap.run_table import span, to_array
from tandem.spark.runtime.row_files import POSITION, split_by
from tandem.timeline.file_columns import chunk_starts, rows_within


@dataclass(frozen=True)
class ChunkRows:
    """The rows of a bin in one chunk: its files in order, and the positions by number of the
    input (a portable 64-bit roaring bitmap), in the order of the rows."""

    files: tuple[WrittenFile, ...]
    rows: tuple[tuple[int, bytes], ...]


@dataclass
class _Chunk:
    writer: ParquetDataWriter
    rows: dict[int, BitMap64] = field(default_factory=dict)


class DividedRows:
    """Writes each chunk's rows to files of their own. Use as a context manager: an exception
    discards the unfinished files. `left` counts the rows that were not taken."""

    def __init__(
        self,
        borders: TimeBorders,
        take: Sequence[tuple[int, int]] | None,
        open_writer: Callable[[], ParquetDataWriter],
    ) -> None:
        self._borders = borders
        self._take = None if take is None else IntervalSet(TimeInterval(*each) for each in take)
        self._open_writer = open_writer
        self._chunks: dict[int, _Chunk] = {}
        self.left = 0

    def write(self, slot: int, batch: pa.RecordBatch) -> None:
        """Add live rows of input number `slot`, with their position as the last column."""
        if self._take is not None:
            taken = rows_within(batch.column(self._borders.column), self._take)
            self.left += batch.num_rows - int(np.count_nonzero(taken))
            batch = batch.filter(pa.array(taken))
        if not batch.num_rows:
            return
        chunks = chunk_starts(batch.column(self._borders.column), self._borders.granularity)
        for start, rows in split_by(batch, chunks):
            if start not in self._chunks:
                self._chunks[start] = _Chunk(self._open_writer())
            chunk = self._chunks[start]
            positions = BitMap64(rows.column(POSITION).to_numpy().astype(np.uint64))
            chunk.rows[slot] = chunk.rows.get(slot, BitMap64()) | positions
            chunk.writer.write(rows.drop_columns([POSITION]))
        limit_held(chunk.writer for chunk in self._chunks.values())

    @property
    def parts(self) -> tuple[ChunkRows, ...]:
        """In order of time, once closed."""
        return tuple(
            ChunkRows(
                chunk.writer.files,
                tuple((slot, chunk.rows[slot].serialize()) for slot in sorted(chunk.rows)),
            )
            for _, chunk in sorted(self._chunks.items())
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        for chunk in self._chunks.values():
            if exc_type is None:
                chunk.writer.close()
            else:
                chunk.writer.abort()


def divided_row_map(
    spec: JobSpec, job: RewriteJob, bin_: JobBin, parts: Sequence[ChunkRows]
) -> RowMap:
    """The map of one bin's rows. Raises: RowMapInvalid."""
    inputs = [job.inputs[i] for i in bin_.inputs]
    taken = [BitMap64() for _ in inputs]
    which, positions, outputs, places = [], [], [], []
    files: list[MapOutput] = []
    for part in parts:
        for slot, blob in part.rows:
            rows = BitMap64.deserialize(blob)
            taken[slot] |= rows
            which.append(np.full(len(rows), slot, np.int64))
            positions.append(to_array(rows))
        for file in part.files:
            outputs.append(np.full(file.rows, len(files), np.int64))
            places.append(np.arange(file.rows, dtype=np.int64))
            files.append(MapOutput(file.path, file.rows))
    builder = RowMapBuilder(
        RowMapIdentity(spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version)
    )
    for input_, rows in zip(inputs, taken, strict=True):
        builder.add_input(input_.logged_path, input_.rows, span(0, input_.rows) - rows)
    if files:
        builder.add_sorted(
            [input_.logged_path for input_ in inputs],
            files,
            origins=(np.concatenate(which), np.concatenate(positions)),
            destinations=(np.concatenate(outputs), np.concatenate(places)),
        )
    return builder.build()
