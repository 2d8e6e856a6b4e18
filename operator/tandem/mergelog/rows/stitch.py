"""Stitches the blocks of a run into one, or several if it would grow too large. Does not commit.

A stitched block keeps the instants of its records in a column, so that it is right for every mark,
and its records need no order among blocks: several blocks of one run have the same interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.mergelog.rows.blocks import read_block, records_of
from tandem.mergelog.rows.records import kept_by_stitching, number_keys
from tandem.mergelog.runs import Run
from tandem.mergelog.state.log_table import DELETED, INSTANT, LogSettings
from tandem.mergelog.state.model import Block, tags_of
from tandem.storage.store import Store


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
    run: Run,
    request: StitchRequest,
    table: TableFormat,
    settings: LogSettings,
    *,
    prefix: str,
    task: int,
) -> Stitched:
    """Write the blocks that replace a run. Raises: DataFileMissing, StorageError."""
    columns = [name for name in table.schema.names if name not in (DELETED, INSTANT)]
    parts = [read_block(store, block, table, columns) for block in run.blocks]
    rows = pa.concat_tables(parts).combine_chunks()
    kept = kept_by_stitching(records_of(rows, settings), request.mark, request.expired)
    sorting = [(key, "ascending") for key in (*settings.keys, INSTANT)]
    found = rows.take(pa.array(kept)).sort_by(sorting)
    group = dict(run.blocks[0].group)
    adds: list[AddFile] = []
    sizes: list[int] = []
    for part in _parts(found, settings, request.max_bytes * rows.num_rows // max(run.size, 1)):
        with ParquetDataWriter(
            store, prefix, table, partition_values=group, task=task, checksums=True
        ) as writer:
            for batch in part.select(table.data_schema.names).to_batches():
                writer.write(batch)
            (file,) = writer.close()
        deletes = int(pc.sum(part[DELETED]).as_py())
        sizes.append(file.rows)
        adds.append(
            AddFile(
                logged_path=file.path,
                partition_values=group,
                size=file.size,
                modified_ms=file.modified_ms,
                data_change=False,
                stats=file.stats,
                tags=tags_of(Block(file.path, run.first, run.last, file.size, deletes)),
            )
        )
    return Stitched(tuple(adds), tuple(sizes), rows.num_rows)


def _parts(rows: pa.Table, settings: LogSettings, most: int) -> Iterator[pa.Table]:
    """The rows, sorted by key, in parts of about `most` rows that are cut between keys."""
    if not rows.num_rows:
        return
    keys = number_keys([rows[key].combine_chunks() for key in settings.keys])
    cuts = np.append(np.flatnonzero(np.diff(keys)) + 1, len(keys))
    start = 0
    while start < len(keys):
        at = int(np.searchsorted(cuts, min(start + max(most, 1), len(keys))))
        end = int(cuts[at])
        yield rows.slice(start, end - start)
        start = end
