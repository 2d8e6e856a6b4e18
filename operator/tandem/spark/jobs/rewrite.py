"""The rewrite job: re-encodes each bin in order, without the rows deleted at the read version.

One Spark task per bin. A task reads its inputs with pyarrow through our store, decoding ahead while
the writer encodes, and writes files of the target size under unique final names. The row order is
kept, so the row map only needs the cut points. The driver merges the tasks' answers, checks them,
and publishes the row map and then the result.

Spark's SQL engine is not involved: a context is enough, which starts faster than a session.
`rewrite_sorted` handles bins that are reordered, `rewrite_divided` those that are divided by time.
A task that runs twice (speculation, a second driver) writes files that no result lists.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import TYPE_CHECKING

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile, compact_columns
from tandem.errors import CountMismatch, TandemError
from tandem.jobs.formats import InputFile, JobBin, JobSpec, RewriteJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.rowmap.binary_format import to_bytes
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity, merge
from tandem.spark.jobs.rewrite_divided import ChunkRows, DividedRows, divided_row_map
from tandem.spark.runtime.control import Control, job_table_format, output_file
from tandem.spark.runtime.counters import Counter, prefix_of, reported
from tandem.spark.runtime.frames import dead_rows
from tandem.spark.runtime.row_files import POSITION
from tandem.spark.runtime.written_facts import FileDescriber, store_facts
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark import SparkContext

AHEAD = 4
"""The most decoded batches that wait for the writer."""


@dataclass(frozen=True)
class BinResult:
    """The result of a task: the files that it wrote and the live rows that it read."""

    index: int
    files: tuple[WrittenFile, ...]
    rows_read: int
    parts: tuple[ChunkRows, ...] | None = None
    """By the chunk of the rows, if the bin was divided by time."""


def run(control: Control, context: SparkContext) -> None:
    """Execute the job and publish its result. Raises: TandemError."""
    spec = control.spec
    job = spec.job
    assert isinstance(job, RewriteJob)
    if job.layout is not None:
        # Needs a session, which takes longer to start than a context.
        from tandem.spark.jobs.rewrite_sorted import run_sorted

        _publish(control, *run_sorted(control, context, job, job.layout))
        return
    results = _run_bins(control, context, job)
    outputs = []
    maps = []
    read = written = 0
    for result in results:
        bin_ = job.bins[result.index]
        outputs += [output_file(file, run=bin_.run) for file in result.files]
        maps.append(row_map_of(spec, job, result))
        read += result.rows_read
        written += sum(file.rows for file in result.files)
    files = (file for result in results for file in result.files)
    store_facts(control.store, spec.table.table_id, files)
    _publish(control, outputs, merge(maps) if maps else None, read, written)


def _publish(
    control: Control,
    outputs: Sequence[OutputFile],
    row_map: RowMap | None,
    read: int,
    written: int,
) -> None:
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(outputs),
            row_map=control.sidecar(0, "rowmap", to_bytes(row_map)) if row_map else None,
            rows_read=read,
            rows_written=written,
        )
    )


def _run_bins(control: Control, context: SparkContext, job: RewriteJob) -> list[BinResult]:
    spec, store = control.spec, control.store

    def task(index: int) -> BinResult | TandemError:
        try:
            return rewrite_bin(store, spec, index)
        except TandemError as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        return size_of(i for index, n in counts.items() for i in job.bins[index].inputs[:n])

    def size_of(inputs: Iterable[int]) -> tuple[int, int]:
        sizes = [job.inputs[i].size for i in inputs]
        return len(sizes), sum(sizes)

    # Large bins first: the job ends with its last task.
    order = sorted(range(len(job.bins)), key=lambda i: -size_of(job.bins[i].inputs)[1])
    with reported(control, "Rewriting", size_of(i for b in job.bins for i in b.inputs), done):
        found = context.parallelize(order, max(len(order), 1)).map(task).collect()
        for answer in found:
            if isinstance(answer, TandemError):
                raise answer
    return sorted((a for a in found if isinstance(a, BinResult)), key=lambda a: a.index)


def rewrite_bin(store: Store, spec: JobSpec, index: int) -> BinResult:
    """Rewrite one bin: the work of a task.

    Raises:
        DataFileMissing, StorageError: an input does not exist or cannot be read.
        CountMismatch: an input has another number of rows than planned.
    """
    job = spec.job
    assert isinstance(job, RewriteJob)
    bin_ = job.bins[index]
    inputs = [job.inputs[i] for i in bin_.inputs]
    table = job_table_format(spec.table)
    # Spark limits native threads per task; a lone bin would leave the other cores idle.
    pa.set_cpu_count(os.cpu_count() or 1)
    expected = sum(i.rows - len(dead_rows(i)) for i in inputs)
    encoding = _encoding(store, inputs, table)
    describe = FileDescriber(store, spec.table.table_id)

    def open_writer() -> ParquetDataWriter:
        return ParquetDataWriter(
            store,
            spec.data_prefix,
            table,
            partition_values=bin_.partition_values,
            target_size=job.target_file_size,
            task=index,
            dictionary=encoding,
            codec=job.codec,
            codec_level=job.codec_level,
            describe=describe,
        )

    read = left = 0
    parts: tuple[ChunkRows, ...] | None = None
    counter = Counter(store, prefix_of(spec.control_prefix), index)
    if job.borders is None:
        batches = _live_batches(store, inputs, table, counter)
        writer = open_writer()
        with writer:
            for _, batch in _ahead(batches):
                read += batch.num_rows
                writer.write(batch)
        files = writer.files
    else:
        batches = _live_batches(store, inputs, table, counter, POSITION)
        with DividedRows(job.borders, job.take, open_writer) as divided:
            for slot, batch in _ahead(batches):
                read += batch.num_rows
                divided.write(slot, batch)
        parts, left = divided.parts, divided.left
        files = tuple(file for part in parts for file in part.files)
    written = sum(file.rows for file in files)
    if not read == written + left == expected:
        raise CountMismatch(
            "a rewrite would not have kept every row",
            resource=f"bin {index}",
            found=f"{read} rows read, {written} written, {left} left",
            expected=f"{expected} live rows by the plan",
        )
    return BinResult(index, files, read, parts)


def _encoding(store: Store, inputs: Sequence[InputFile], table: TableFormat) -> list[str] | None:
    """Encode like the largest input; under column mapping let the encoder decide, since an old
    file may have other column names."""
    if not inputs or table.mapping != "none":
        return None
    largest = max(inputs, key=lambda i: i.size)
    with DataFileReader(store, decoded(largest), table, columns=()) as reader:
        if len(reader.metadata.schema.names) < len(table.data_schema):
            return None  # the file is older than a column
        return compact_columns(reader.metadata)


def decoded(input_: InputFile) -> str:
    from urllib.parse import unquote

    return unquote(input_.logged_path)


def _live_batches(
    store: Store,
    inputs: Sequence[InputFile],
    table: TableFormat,
    counter: Counter,
    positions: str | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the input, rows of it), in order."""
    columns = table.data_schema.names
    for slot, input_ in enumerate(inputs):
        path = decoded(input_)
        with DataFileReader(store, path, table, columns=columns, dictionaries=True) as reader:
            if reader.num_rows != input_.rows:
                raise CountMismatch(
                    "the number of rows in a data file differs from the log",
                    resource=path,
                    found=reader.num_rows,
                    expected=str(input_.rows),
                    remedy="Restore the file, or the table to a version without it",
                )
            for batch in reader.batches(dead=dead_rows(input_), positions=positions):
                yield slot, batch
        counter.add()
    counter.show()


def _ahead(batches: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The same batches, decoded by another thread while the caller processes the previous one."""
    queue: Queue[tuple[int, pa.RecordBatch] | BaseException | None] = Queue(AHEAD)
    stop = threading.Event()

    def produce() -> None:
        try:
            for batch in batches:
                queue.put(batch)
                if stop.is_set():
                    break
            queue.put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, raised there
            queue.put(error)

    thread = threading.Thread(target=produce, name="tandem-decode", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        while thread.is_alive():
            # Free a slot in case the producer waits for one.
            if not queue.empty():
                queue.get_nowait()
            thread.join(0.01)


def row_map_of(spec: JobSpec, job: RewriteJob, result: BinResult) -> RowMap:
    """The map of a bin's rows. Raises: CountMismatch, RowMapInvalid."""
    bin_ = job.bins[result.index]
    if result.parts is not None:
        return divided_row_map(spec, job, bin_, result.parts)
    return bin_row_map(spec, job, bin_, result.files)


def bin_row_map(
    spec: JobSpec, job: RewriteJob, bin_: JobBin, files: Sequence[WrittenFile]
) -> RowMap:
    """The map of one bin's rows. Rows keep their order, so the row counts of the outputs determine
    it. Raises: CountMismatch."""
    identity = RowMapIdentity(
        spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version
    )
    builder = RowMapBuilder(identity)
    inputs = [job.inputs[i] for i in bin_.inputs]
    for input_ in inputs:
        builder.add_input(input_.logged_path, input_.rows, dead_rows(input_))
    room = [(file.path, file.rows) for file in files]
    for input_ in inputs:
        dead = dead_rows(input_)
        start = 0
        left = input_.rows - len(dead)
        while left:
            if not room:
                raise CountMismatch(
                    "some rows of a rewrite are in no output", resource=input_.logged_path
                )
            path, free = room[0]
            take = min(free, left)
            end = input_.rows if take == left else after_live(dead, start, take)
            builder.add_run(input_.logged_path, start, end, path)
            start, left = end, left - take
            if take == free:
                room.pop(0)
            else:
                room[0] = (path, free - take)
    if room:
        raise CountMismatch("an output of a rewrite has rows of no input", resource=room[0][0])
    return builder.build()


def after_live(dead: BitMap64, start: int, count: int) -> int:
    """The least position p with `count` live rows in [start, p); there are at least that many."""
    low, high = start + count, start + count + len(dead)
    while low < high:
        middle = (low + high) // 2
        live = middle - start - (dead.range_cardinality(start, middle) if dead else 0)
        if live < count:
            low = middle + 1
        else:
            high = middle
    return low
