"""A bin in its order, without the rows deleted at the read version: the work of a task
(`rewrite_bin`). Also the row map of a bin (`row_map_of`), which the driver makes.

Where the row groups of its inputs can be copied, they are (`copied_bins`). Otherwise a task reads
its inputs with pyarrow through our store, decoding ahead while the writer encodes, and writes files
of the target size under unique final names. It must not import Spark.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobBin, JobSpec, RewriteJob
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.rowmap.run_table import Ranks
from tandem.spark.jobs.copied_bins import (
    BinFiles,
    CopyChoice,
    ahead,
    choose,
    encoding_of,
    live_batches,
    write_in_order,
)
from tandem.spark.runtime.control import Counter, Counters, job_table_format
from tandem.spark.runtime.frames import dead_rows
from tandem.spark.runtime.written_facts import FileDescriber
from tandem.storage import Store

if TYPE_CHECKING:
    from tandem.spark.jobs.divided_bins import ChunkRows


# The row map of a rewritten bin, from the number of rows in each of its files.
#
# Where rows keep their order, the cut points determine the map; where they do not, their ranks do.
# No I/O.


def row_map_of(spec: JobSpec, job: RewriteJob, result: BinResult) -> RowMap:
    """The map of a bin's rows. Raises: CountMismatch, RowMapInvalid."""
    bin_ = job.bins[result.index]
    if result.parts is not None:
        from tandem.spark.jobs.divided_bins import divided_row_map

        return divided_row_map(spec, job, bin_, result.parts)
    if result.ranks is not None:
        return _sorted_row_map(spec, job, bin_, result.files, result.ranks)
    return bin_row_map(spec, job, bin_, result.files, result.kept)


def _sorted_row_map(
    spec: JobSpec, job: RewriteJob, bin_: JobBin, files: Sequence[WrittenFile], ranks: Ranks
) -> RowMap:
    builder = RowMapBuilder(_identity(spec))
    inputs = [job.inputs[i] for i in bin_.inputs]
    for input_ in inputs:
        builder.add_input(input_.logged_path, input_.rows, dead_rows(input_))
    outputs = [MapOutput(file.path, file.rows) for file in files]
    builder.add_ranks([input_.logged_path for input_ in inputs], outputs, ranks)
    return builder.build()


def _identity(spec: JobSpec) -> RowMapIdentity:
    return RowMapIdentity(spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version)


def bin_row_map(
    spec: JobSpec,
    job: RewriteJob,
    bin_: JobBin,
    files: Sequence[WrittenFile],
    kept: Collection[int] = (),
) -> RowMap:
    """The map of one bin's rows. Rows keep their order, so the row counts of the outputs determine
    it. `kept` are the numbers of inputs whose deleted rows are in the outputs: the map has none of
    theirs as dead. Raises: CountMismatch."""
    builder = RowMapBuilder(_identity(spec))
    inputs = [job.inputs[i] for i in bin_.inputs]
    left_out = [BitMap64() if n in kept else dead_rows(each) for n, each in enumerate(inputs)]
    for input_, dead in zip(inputs, left_out, strict=True):
        builder.add_input(input_.logged_path, input_.rows, dead)
    room = [(file.path, file.rows) for file in files]
    for input_, dead in zip(inputs, left_out, strict=True):
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


MEMORY: Final = 720 << 20
"""Bytes that the rows of a bin may take, with what else is there at the same time. A task has 1 GiB
(`spark.application.manifest`), some of it for Python. It is less than 2 GiB, so that the texts of a
column can be one Arrow array."""


@dataclass(frozen=True)
class BinResult:
    """The result of a task: the files that it wrote and the rows that it read."""

    index: int
    files: tuple[WrittenFile, ...]
    rows_read: int
    parts: tuple[ChunkRows, ...] | None = None
    """By the chunk of the rows, if the bin was divided by time."""
    kept: frozenset[int] = frozenset()
    """The numbers of the inputs whose deleted rows are in the files, too."""
    ranks: Ranks | None = None
    """The places of the rows in the files, if they were reordered (`rowmap.run_table`)."""
    copied_in_store: int = 0
    """Bytes of the files that never left the store."""


@dataclass(frozen=True, slots=True)
class BinTooLarge:
    """A bin whose rows take more memory than a task has. Nothing was written."""

    index: int


def rewrite_bin(
    store: Store, spec: JobSpec, index: int, counters: Counters | None = None
) -> BinResult:
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
    counter = Counter(counters, index)
    if job.borders is None and not job.reencode:
        chosen = choose(store, inputs, table, job.min_row_group_rows)
        if chosen is not None:
            return _copied(store, spec, index, inputs, chosen, table, counter)
    expected = sum(i.rows - len(dead_rows(i)) for i in inputs)
    encoding = encoding_of(store, inputs, table)
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
    if job.borders is None:
        batches = live_batches(store, inputs, table, counter)
        writer = open_writer()
        with writer:
            read = write_in_order(writer, ahead(batches), table)
        files = writer.files
    else:
        from tandem.spark.jobs.divided_bins import DividedRows
        from tandem.spark.runtime.row_files import POSITION

        batches = live_batches(store, inputs, table, counter, POSITION)
        with DividedRows(job.borders, job.take, open_writer) as divided:
            for slot, batch in ahead(batches):
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


def _copied(
    store: Store,
    spec: JobSpec,
    index: int,
    inputs: list[InputFile],
    chosen: CopyChoice,
    table: TableFormat,
    counter: Counter,
) -> BinResult:
    job = spec.job
    assert isinstance(job, RewriteJob)
    kept = frozenset(n for n in chosen.copied if inputs[n].dv)
    expected = sum(
        each.rows - (0 if n in kept else len(dead_rows(each))) for n, each in enumerate(inputs)
    )
    describe = FileDescriber(store, spec.table.table_id)
    with BinFiles(
        store, spec.data_prefix, table, job.bins[index], index, job.target_file_size, describe,
        counter,
    ) as files:  # fmt: skip
        files.write(inputs, chosen)
    if files.rows != expected:
        raise CountMismatch(
            "a rewrite would not have kept every row",
            resource=f"bin {index}",
            found=f"{files.rows} rows copied",
            expected=f"{expected} rows by the plan",
        )
    return BinResult(
        index, tuple(files.files), files.rows, kept=kept, copied_in_store=files.copied_in_store
    )
