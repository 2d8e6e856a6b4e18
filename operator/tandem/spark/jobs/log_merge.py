"""The job of a log merge: which rows the log hides, and the rows that it shows as data files.

The driver reads the keys of the log's blocks and finds the winners; a task looks them up in one
file of the base table. The winners that are no deletes are written in full, also those that a row
of the base table beats: another writer may delete that row before the commit. The driver has the
keys of all winners in memory, and of their rows one part of a block and what its writers hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import (
    ParquetDataWriter,
    WrittenFile,
    limit_held,
    repetitive_columns,
)
from tandem.delta.partitions import python_values, unstorable
from tandem.distinct import IntArray
from tandem.errors import StatementFailed
from tandem.jobs.formats import JobSpec, LogMergeJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.mergelog.blocks import by_group, rows_at
from tandem.mergelog.by_key import Overlay
from tandem.mergelog.log_table import LogSettings, block_schema
from tandem.mergelog.versions import Block
from tandem.mergelog.winners import (
    MATCHES,
    MATCHES_WITH_IDS,
    NO_ID,
    LogWinners,
    MatchedRows,
    at_version,
    match,
    of_matches,
    of_places,
    winners_of,
)
from tandem.spark.runtime.control import (
    Control,
    Counter,
    Counters,
    job_table_format,
    origin_of,
    output_file,
    reported,
    to_file,
)
from tandem.spark.runtime.frames import dead_rows, each_in_a_task
from tandem.spark.runtime.written_facts import FileDescriber, store_facts
from tandem.statements.local.rules import LocalRules
from tandem.storage import Store
from tandem.storage.paths import LOG_FOLDER, object_path
from tandem.storage.rooted import Subfolder

if TYPE_CHECKING:
    from pyspark import SparkContext

HELD: Final = 256 << 20
"""Arrow bytes of rows that the writers of all partitions hold together."""


def run(control: Control, context: SparkContext | None) -> None:
    """Execute the job, without a context in this thread, and publish its result. Raises:
    TandemError."""
    spec, store = control.spec, control.store
    job = spec.job
    assert isinstance(job, LogMergeJob)
    won = log_winners(store, spec)
    counters = control.counters(0)
    given = _held(won.overlay) if context is None else _sent(context, won.overlay)

    def task(index: int) -> tuple[int, MatchedRows]:
        return index, match_file(store, spec, index, given(), counters)

    def size_of(files: Mapping[int, int]) -> tuple[int, int]:
        return len(files), sum(job.inputs[at].size for at in files)

    order = range(len(job.inputs))
    with reported(control, "Merging the log", size_of(dict.fromkeys(order, 1)), size_of):
        matches = each_in_a_task(context, order, task)
    publish(control, won, matches)


def _held(overlay: Overlay) -> Callable[[], Overlay]:
    return lambda: overlay


def _sent(context: SparkContext, overlay: Overlay) -> Callable[[], Overlay]:
    """A task gets no more than a reference to it."""
    sent = context.broadcast(overlay)
    return lambda: sent.value


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


def match_file(
    store: Store, spec: JobSpec, index: int, overlay: Overlay, counters: Counters | None = None
) -> MatchedRows:
    """The rows of input `index` whose key has a winner: the work of a task.

    Raises: DataFileMissing, StorageError.
    """
    job = spec.job
    assert isinstance(job, LogMergeJob)
    input_ = job.inputs[index]
    table = job_table_format(spec.table)
    with DataFileReader(
        store,
        object_path(input_.logged_path),
        table,
        partition_values=input_.partition_values,
        columns=(*LogSettings(job.keys, job.ordering_column).columns, *table.row_ids[:1]),
        origin=origin_of(input_, table),
    ) as reader:
        # With deleted rows: another vector may be the file's at the commit.
        found = match(reader, overlay, BitMap64(), with_ids=bool(table.row_ids))
    counter = Counter(counters, index)
    counter.add()
    counter.show()
    return found


def publish(control: Control, won: LogWinners, matches: Sequence[tuple[int, MatchedRows]]) -> None:
    """Write the winners' rows, and publish the result."""
    job = control.spec.job
    assert isinstance(job, LogMergeJob)
    ids: IntArray | None = None
    if control.spec.table.row_ids:
        dead = {str(index): dead_rows(job.inputs[index]) for index, _ in matches}
        at_plan = at_version({str(index): rows for index, rows in matches}, dead)
        ids = at_plan.ids_of(np.arange(len(won.rows)))
    empty = (MATCHES if ids is None else MATCHES_WITH_IDS).empty_table()
    tables = [empty, *(of_matches(index, rows) for index, rows in matches)]
    shown = np.flatnonzero(~won.overlay.records.deleted)
    written = write_winners(control.store, control.spec, won, ids, shown)
    tables += [of_places(at, f.winners, f.row_ids) for at, f in enumerate(written)]
    outputs = [each.file for each in written]
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(outputs),
            matches=control.side_file(0, "matches", to_file(pa.concat_tables(tables))),
            rows_read=len(won.rows),
            rows_written=sum(file.rows for file in outputs),
            rows_matched=sum(len(rows.positions) for _, rows in matches),
        )
    )


@dataclass(frozen=True, slots=True)
class WrittenWinners:
    """A file of winners: for each of its rows the winner, and, where rows keep their ids, the one
    that it has, `NO_ID` for none."""

    file: OutputFile
    winners: IntArray
    row_ids: IntArray | None = None


def write_winners(
    store: Store, spec: JobSpec, won: LogWinners, ids: IntArray | None, chosen: IntArray
) -> list[WrittenWinners]:
    """Write the rows of the chosen winners, which are no deletes, as files of the job.

    Args:
        ids: of the rows of all winners, `NO_ID` for a new one; None if rows keep none.
        chosen: indexes of winners, ascending.
    Raises: StatementFailed, StorageError.
    """
    written: list[WrittenFile] = []
    found = []
    with _Upserts(store, spec, ids) as upserts:
        _write(store, spec, won, chosen, upserts)
        for files, winners in upserts.close():
            start = 0
            written += files
            for file in files:
                mine = winners[start : start + file.rows]
                output = output_file(file).model_copy(update={"fresh": True})
                found.append(WrittenWinners(output, mine, None if ids is None else ids[mine]))
                start += file.rows
    store_facts(store, spec.table.table_id, written)
    return found


def _write(
    store: Store, spec: JobSpec, won: LogWinners, shown: IntArray, upserts: _Upserts
) -> None:
    """Write rows of winners, one part of a block after the other."""
    job = spec.job
    assert isinstance(job, LogMergeJob)
    log, columns = Subfolder(store, LOG_FOLDER), _own_format(spec).schema.names
    for number, block in enumerate(blocks_of(job)):
        mine = shown[won.blocks[shown] == number]
        if len(mine):
            rows = won.rows[mine]
            for batch, which in rows_at(log, block, _block_format(spec), columns, rows):
                upserts.add(batch, mine[which])


class _Upserts:
    """Rows of winners as data files of the base table. Use as a context manager: an exception
    discards the unfinished files.

    Args: as in `write_winners`.
    """

    def __init__(self, store: Store, spec: JobSpec, ids: IntArray | None) -> None:
        job = spec.job
        assert isinstance(job, LogMergeJob)
        self._store, self._spec, self._job = store, spec, job
        self._ids = ids
        self._table = job_table_format(spec.table)
        self._rules = LocalRules.of(
            spec.table.schema_string, spec.table.configuration, spec.table.partition_columns
        )
        self._partitions: dict[tuple[str | None, ...], _Partition] = {}

    def add(self, rows: pa.RecordBatch, winners: IntArray) -> None:
        """Write rows, each of one winner. Raises: StatementFailed, StorageError."""
        self._check(rows)
        self._rules.require_here(rows)  # one may be newer than a record
        names = self._table.data_schema.names
        table = pa.Table.from_batches([rows])
        if self._ids is not None:
            # A row without a version has that of the commit.
            ids = self._ids[winners]
            for name, values in zip(
                self._table.row_ids,
                (pa.array(ids, mask=ids == NO_ID), pa.nulls(len(ids), pa.int64())),
                strict=True,
            ):
                table = table.append_column(name, values)
        for values, part, at in by_group(self._table, table):
            key = tuple(values.values())
            if key not in self._partitions:
                self._partitions[key] = _Partition(self._open(values, part))
            partition = self._partitions[key]
            for batch in part.select(names).to_batches():
                partition.writer.write(batch)
            partition.winners.append(winners[at])
        limit_held((partition.writer for partition in self._partitions.values()), HELD)

    def _check(self, rows: pa.RecordBatch) -> None:
        """Logs of earlier versions have values that must not be appended today."""
        for name in self._table.partition_columns:
            wrong = unstorable(rows.column(name))
            if wrong is None:
                continue
            [found] = python_values(rows.select(list(self._job.keys)).slice(wrong.row, 1))
            key = ", ".join(f"{column} = {value}" for column, value in found.items())
            raise StatementFailed(
                "a record of the log has a value that its partition column cannot hold",
                resource=self._spec.table.location,
                field=name,
                found=f"{wrong.found} of {key}",
                expected=wrong.expected,
                remedy="Append this key again with another value, or delete it, and merge again",
            )

    def _open(self, values: Mapping[str, str | None], rows: pa.Table) -> ParquetDataWriter:
        """A file that begins with some rows."""
        return ParquetDataWriter(
            self._store,
            self._spec.data_prefix,
            self._table,
            partition_values=values,
            target_size=self._job.target_file_size,
            dictionary=repetitive_columns(self._table, rows),
            describe=FileDescriber(self._store, self._spec.table.table_id),
        )

    def close(self) -> Iterator[tuple[tuple[WrittenFile, ...], IntArray]]:
        """For each partition its files, and the winner of each of their rows."""
        for partition in self._partitions.values():
            yield partition.writer.close(), np.concatenate(partition.winners)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for partition in self._partitions.values():
            partition.writer.abort()


@dataclass
class _Partition:
    """The files of a partition, and the winners of their rows."""

    writer: ParquetDataWriter
    winners: list[IntArray] = field(default_factory=list)


def blocks_of(job: LogMergeJob) -> tuple[Block, ...]:
    return tuple(
        Block(
            path=object_path(block.logged_path),
            first=block.first,
            last=block.last,
            size=block.size,
            group=tuple(sorted(block.partition_values.items())),
        )
        for block in job.blocks
    )


def _own_format(spec: JobSpec) -> TableFormat:
    """The table with its own columns alone."""
    return job_table_format(spec.table).without_row_ids


def _block_format(spec: JobSpec) -> TableFormat:
    job = spec.job
    assert isinstance(job, LogMergeJob)
    table = _own_format(spec)
    return TableFormat(block_schema(table.schema), job.log_partition_columns, table.configuration)
