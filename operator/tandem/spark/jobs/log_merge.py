"""The job of a log merge: which rows the log hides, and the rows that it shows as data files.

The driver reads the keys of the log's blocks and finds the winners; a task looks them up in one
file of the base table. The winners that are no deletes are written in full, also those that a row
of the base table beats: another writer may delete that row before the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.errors import TandemError
from tandem.jobs.formats import JobSpec, LogMergeJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.mergelog.rows.blocks import by_group, read_block
from tandem.mergelog.rows.merged import MATCHES, of_matches, of_places
from tandem.mergelog.rows.records import Overlay
from tandem.mergelog.rows.winners import LogWinners, MatchedRows, match, winners_of
from tandem.mergelog.state.log_table import DELETED, INSTANT, LOG_FOLDER, LogSettings, block_schema
from tandem.mergelog.state.model import Block
from tandem.spark.runtime.control import Control, job_table_format, output_file
from tandem.spark.runtime.counters import Counter, prefix_of, reported
from tandem.spark.runtime.frames import dead_rows
from tandem.spark.runtime.ipc import to_file
from tandem.storage import Store
from tandem.storage.subfolder import Subfolder

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(control: Control, context: SparkContext) -> None:
    """Execute the job and publish its result. Raises: TandemError."""
    spec, store = control.spec, control.store
    job = spec.job
    assert isinstance(job, LogMergeJob)
    won = log_winners(store, spec)
    overlay = context.broadcast(won.overlay)

    def task(index: int) -> tuple[int, MatchedRows] | TandemError:
        try:
            return index, match_file(store, spec, index, overlay.value)
        except TandemError as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error

    def size_of(files: Mapping[int, int]) -> tuple[int, int]:
        return len(files), sum(job.inputs[at].size for at in files)

    order = range(len(job.inputs))
    with reported(control, "Merging the log", size_of(dict.fromkeys(order, 1)), size_of):
        found = context.parallelize(order, max(len(order), 1)).map(task).collect() if order else []
    matches: list[tuple[int, MatchedRows]] = []
    for answer in found:
        if isinstance(answer, TandemError):
            raise answer
        matches.append(answer)
    publish(control, won, matches)


def log_winners(store: Store, spec: JobSpec) -> LogWinners:
    """The winners of the job's blocks."""
    job = spec.job
    assert isinstance(job, LogMergeJob)
    found = winners_of(
        Subfolder(store, LOG_FOLDER),
        blocks_of(job),
        _block_format(spec),
        LogSettings(job.keys, job.ordering_column),
        job.mark,
    )
    assert found is not None  # without a limit of memory
    return found


def match_file(store: Store, spec: JobSpec, index: int, overlay: Overlay) -> MatchedRows:
    """The rows of input `index` whose key has a winner: the work of a task.

    Raises: DataFileMissing, StorageError.
    """
    job = spec.job
    assert isinstance(job, LogMergeJob)
    input_ = job.inputs[index]
    with DataFileReader(
        store,
        unquote(input_.logged_path),
        job_table_format(spec.table),
        partition_values=input_.partition_values,
        columns=LogSettings(job.keys, job.ordering_column).columns,
    ) as reader:
        found = match(reader, overlay, dead_rows(input_))
    counter = Counter(store, prefix_of(spec.control_prefix), index)
    counter.add()
    counter.show()
    return found


def publish(control: Control, won: LogWinners, matches: Sequence[tuple[int, MatchedRows]]) -> None:
    """Write the winners' rows, and publish the result."""
    outputs: list[OutputFile] = []
    tables = [MATCHES.empty_table(), *(of_matches(index, rows) for index, rows in matches)]
    for files, winners in _written(control.store, control.spec, won):
        start = 0
        for file in files:
            mine = winners[start : start + file.rows]
            tables.append(of_places(len(outputs), mine))
            outputs.append(file.model_copy(update={"fresh": True}))
            start += file.rows
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(outputs),
            matches=control.sidecar(0, "matches", to_file(pa.concat_tables(tables))),
            rows_read=len(won.rows),
            rows_written=sum(file.rows for file in outputs),
            rows_matched=sum(len(rows.positions) for _, rows in matches),
        )
    )


def _written(
    store: Store, spec: JobSpec, won: LogWinners
) -> Iterator[tuple[list[OutputFile], np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """For each partition the files of the winners that are no deletes, and the winner of each of
    their rows."""
    job = spec.job
    assert isinstance(job, LogMergeJob)
    table = job_table_format(spec.table)
    rows, winners = _rows_of(Subfolder(store, LOG_FOLDER), spec, won)
    if rows is None:
        return
    for values, part, at in by_group(table, rows):
        writer = ParquetDataWriter(
            store,
            spec.data_prefix,
            table,
            partition_values=values,
            target_size=job.target_file_size,
        )
        with writer:
            for batch in part.select(table.data_schema.names).to_batches():
                writer.write(batch)
        yield [output_file(file) for file in writer.files], winners[at]


@dataclass(frozen=True)
class _Part:
    rows: pa.Table
    winners: np.ndarray[tuple[int], np.dtype[np.int64]]


def _rows_of(
    log: Store, spec: JobSpec, won: LogWinners
) -> tuple[pa.Table | None, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The rows of the winners that are no deletes, and the winner of each."""
    job = spec.job
    assert isinstance(job, LogMergeJob)
    columns = job_table_format(spec.table).schema.names
    shown = np.flatnonzero(~won.overlay.records.deleted)
    parts: list[_Part] = []
    for number, block in enumerate(blocks_of(job)):
        mine = shown[won.blocks[shown] == number]
        if len(mine):
            found = read_block(log, block, _block_format(spec), columns)
            found = found.drop_columns([DELETED, INSTANT]).take(pa.array(won.rows[mine]))
            parts.append(_Part(found, mine))
    if not parts:
        return None, np.empty(0, np.int64)
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    return rows, np.concatenate([part.winners for part in parts])


def blocks_of(job: LogMergeJob) -> tuple[Block, ...]:
    return tuple(
        Block(
            path=unquote(block.logged_path),
            first=block.first,
            last=block.last,
            size=block.size,
            group=tuple(sorted(block.partition_values.items())),
        )
        for block in job.blocks
    )


def _block_format(spec: JobSpec) -> TableFormat:
    job = spec.job
    assert isinstance(job, LogMergeJob)
    table = job_table_format(spec.table)
    return TableFormat(block_schema(table.schema), job.log_partition_columns, table.configuration)
