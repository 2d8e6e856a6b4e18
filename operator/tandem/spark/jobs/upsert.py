"""The job of an upsert: reads a source, sorts its rows by key, and writes them as blocks of a log.
Never appends the blocks to the log: the engine does.

Columns are matched by name, as in an ingest. Each task has a range of the keys, so that the rows of
a key meet in one task.

Rows of a source, sorted by key, as files of blocks. It must not import Spark.

A block has one row a key, and no key is NULL. Columns and other NULLs are checked as those of any
new data file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import nulls
from tandem.delta.datafiles.writer import WrittenFile
from tandem.delta.partitions import unstorable
from tandem.delta.protocol import is_reserved_column
from tandem.errors import DuplicateKeys, InvalidSpec, StatementFailed
from tandem.jobs.formats import UpsertJob
from tandem.jobs.results import JobProgress, JobResult, OutputFile
from tandem.mergelog.by_key import Repeated, UniqueRows
from tandem.mergelog.log_table import DELETED, INSTANT, LogSettings
from tandem.spark.jobs.sort_codes import codes_of, in_order, one_array
from tandem.spark.runtime.control import Control, job_table_format, output_file
from tandem.spark.runtime.frames import (
    Batches,
    answers,
    isolated_session,
    table_schema,
    task_number,
    with_absent,
)
from tandem.spark.runtime.listing import ListedSource
from tandem.spark.runtime.row_files import RowFiles, RowsWork
from tandem.spark.sources import arrow_rows, readers
from tandem.spark.sources.arrow_rows import in_batches
from tandem.spark.sources.options import checked
from tandem.statements.local import NeedsSpark
from tandem.statements.local.rules import row_text
from tandem.statements.tree import quote_name
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, kw_only=True)
class BlockWork(RowsWork):
    """A write of blocks. `table` is `UpsertJob.blocks`; `field`, `keys`, `ordering_column`,
    `deletes` and `partitions` are the job's."""

    field: str
    keys: tuple[str, ...]
    ordering_column: str = ""
    deletes: bool = False
    partitions: tuple[str, ...] = ()

    @property
    def settings(self) -> LogSettings:
        return LogSettings(self.keys, self.ordering_column)


def block_work(control: Control, job: UpsertJob) -> BlockWork:
    """The write of a job's blocks."""
    return BlockWork(
        table=job.blocks,
        data_prefix=control.spec.data_prefix,
        target_file_size=job.max_block_bytes,
        new_columns=columns_of(job),
        field=job.field,
        keys=job.keys,
        ordering_column=job.ordering_column,
        deletes=job.deletes,
        partitions=job.partitions,
    )


def columns_of(job: UpsertJob) -> tuple[str, ...]:
    """The columns that rows of the source have: all of the base table, or those of a delete."""
    names = job_table_format(job.blocks).schema.names
    wanted = LogSettings(job.keys, job.ordering_column).columns
    own = (DELETED, INSTANT)
    return tuple(n for n in names if n not in own and (not job.deletes or n in wanted))


@dataclass(frozen=True)
class BlocksWritten:
    """The files of a task, the rows that it read, and the keys that occurred more than once."""

    files: tuple[WrittenFile, ...]
    rows: int
    repeated: Repeated


class BlockFiles(RowFiles):
    """Writes rows that come sorted by key, so that equal keys follow each other."""

    are_blocks = True

    def __init__(self, control: Store, work: BlockWork, task: int = 0) -> None:
        super().__init__(control, work, tuple(job_table_format(work.table).schema.names), task)
        self._blocks = work

    def _require_rules(self, batch: pa.RecordBatch) -> None:
        if not self._blocks.deletes:
            self._rules.require_here(batch)

    def write_blocks(self, batches: Iterable[pa.RecordBatch]) -> BlocksWritten:
        """Write all batches, and close the files; an error leaves no incomplete file.

        Raises: StatementFailed for a key that is NULL, and a row with it; for another NULL, a text
            that is not UTF-8, or a value that a partition column cannot hold.
        """
        # A delete has its key and the value of the ordering column: two that are equal are one.
        unique = UniqueRows(self._blocks.settings, alike=self._blocks.deletes)
        rows = 0

        def parts() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                self._check_keys(batch)
                self._check_partitions(batch)
                yield from self._records(unique.take(pa.Table.from_batches([batch])))
            yield from self._records(unique.finish())

        written = self.write_all(parts())
        return BlocksWritten(written.files, rows, unique.repeated)

    def _check_keys(self, rows: pa.RecordBatch) -> None:
        for name in self._blocks.keys:
            keys = rows.column(name)
            if keys.null_count:
                at = pc.index(keys.is_null(), True).as_py()
                row = row_text(rows.drop_columns([name]), at)
                raise StatementFailed(
                    "a key is NULL",
                    resource=self._blocks.field,
                    field=name,
                    found=f"NULL in the row {row or 'without other columns'}",
                    expected="a value in every row",
                    remedy="Leave rows without a key out of the source, or give them one: a log "
                    "finds rows by their keys",
                )

    def _check_partitions(self, rows: pa.RecordBatch) -> None:
        for name in self._blocks.partitions:
            wrong = unstorable(rows.column(name)) if name in rows.schema.names else None
            if wrong is not None:
                raise StatementFailed(
                    "a partition column cannot hold a value",
                    field=name,
                    found=wrong.found,
                    expected=wrong.expected,
                    remedy="Correct the source, or leave such rows out",
                )

    def _records(self, rows: pa.Table | None) -> list[pa.RecordBatch]:
        """Rows in the columns of blocks."""
        if rows is None or not rows.num_rows:
            return []
        own = {
            DELETED: pa.repeat(pa.scalar(self._blocks.deletes), rows.num_rows),
            INSTANT: pa.nulls(rows.num_rows, pa.int64()),
        }
        arrays = [
            own[field.name]
            if field.name in own
            else rows[field.name].combine_chunks()
            if field.name in rows.column_names
            else nulls(rows.num_rows, field.type)
            for field in self._table.schema
        ]
        return [pa.RecordBatch.from_arrays(arrays, names=self._table.schema.names)]


def publish(
    control: Control, files: Sequence[OutputFile], rows_read: int, repeated: Repeated
) -> None:
    """Publish the result of a job. Raises: DuplicateKeys."""
    job = control.spec.job
    assert isinstance(job, UpsertJob)
    if repeated.keys:
        ordered = bool(job.ordering_column)
        raise DuplicateKeys(
            f"the source has several rows of a key, and the greatest {job.ordering_column} in "
            "more than one of them"
            if ordered
            else "the source has several rows of a key, and nothing says which of them wins",
            resource=job.source_location,
            field=job.field,
            found=f"{repeated.keys} keys: {'; '.join(repeated.examples)}",
            expected=f"one greatest {job.ordering_column} a key" if ordered else "one row a key",
            remedy="Remove the repeated rows from the source",
        )
    outputs = tuple(
        file.model_copy(update={"deletes": file.rows}) if job.deletes else file for file in files
    )
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=outputs,
            rows_read=rows_read,
            rows_written=sum(file.rows for file in outputs),
        )
    )


def outputs_of(written: BlocksWritten) -> tuple[OutputFile, ...]:
    return tuple(map(output_file, written.files))


def run(control: Control, spark: SparkSession) -> None:
    """Execute the job and publish its result.

    Raises:
        InvalidSpec: the source's columns or options do not fit.
        StatementFailed: a value does not fit its column, or is null where it must not be.
        DuplicateKeys: a key occurs twice, and nothing says which row wins.
        SourceUnreadable: a file is damaged. SourceChanged: files changed during the read.
    """

    job = control.spec.job
    assert isinstance(job, UpsertJob)
    with isolated_session(spark) as own:
        _report(control, 0, "Reading")
        checked(job.source_format, job.source_options, job.field)
        source = None if job.source_format == "Delta" else readers.open_source(control)
        _publish(control, _written(control, _rows(control, own, job, source), job), source)


def _publish(
    control: Control, written: Sequence[BlocksWritten], source: ListedSource | None
) -> None:
    """Raises: DuplicateKeys, SourceChanged."""
    if source is not None:
        readers.unchanged(control, source)
    _report(control, 1, "Publishing")
    repeated = Repeated()
    for each in written:
        repeated.add(each.repeated)
    outputs = [output for each in written for output in outputs_of(each)]
    publish(control, outputs, sum(each.rows for each in written), repeated)


def run_here(control: Control) -> bool:
    """Execute the job in this thread, and publish its result; False if Spark is needed.

    Raises: as `run`.
    """
    job = control.spec.job
    assert isinstance(job, UpsertJob)
    needed = LogSettings(job.keys, job.ordering_column).columns
    try:
        rows, source, _ = arrow_rows.load(control, job.blocks, columns_of(job), required=needed)
    except NeedsSpark:
        return False
    if any(rows[key].null_count for key in job.keys):
        return False  # an error, which shows the first such row in Spark's order: NULL comes first
    keys = [codes_of(one_array(rows[key].chunks)) for key in job.keys]
    ordered = rows.take(pa.array(in_order(keys, rows.num_rows)))
    files = BlockFiles(control.store, block_work(control, job))
    _publish(control, [files.write_blocks(in_batches(ordered))], source)
    return True


def _rows(
    control: Control, spark: SparkSession, job: UpsertJob, source: ListedSource | None
) -> DataFrame:
    """The source with the columns of the table, or those of a delete."""
    from pyspark.sql.types import StructType

    from tandem.spark.sources.casts import align_columns, declared_char_types  # imports Spark

    all_columns = table_schema(job.blocks)
    schema = StructType([all_columns[name] for name in columns_of(job)])
    bounded = declared_char_types(job.blocks.schema_string)
    found = []
    for rows in readers.read(control, spark, schema, source=source, places=True):
        place = rows.path or job.source_location
        _check_names(job, schema, rows.frame.schema, place)
        csv, sparse = job.source_format == "Csv", job.source_format == "Json"
        aligned = align_columns(
            rows.frame, schema, place, bounded, rows.where, field=job.field, csv=csv
        )
        found.append(with_absent(aligned, job.blocks, rows.frame.columns, sparse=sparse))
    return reduce(lambda a, b: a.unionAll(b), found) if found else spark.createDataFrame([], schema)


def _check_names(job: UpsertJob, schema: StructType, found: StructType, place: str) -> None:
    """Raises: InvalidSpec if the source lacks a key or the ordering column."""
    names = {name.lower() for name in found.names}
    wanted = LogSettings(job.keys, job.ordering_column).columns
    missing = [name for name in wanted if name.lower() not in names]
    if missing:
        raise InvalidSpec(
            "the source lacks a key, or the ordering column",
            resource=f"{job.field}: {place}",
            found=", ".join(name for name in found.names if not is_reserved_column(name)),
            expected=", ".join(missing),
            remedy="Add the column to the source",
        )
    if not job.deletes:
        return
    known = {name.lower() for name in schema.names}
    extra = [n for n in found.names if n.lower() not in known and not is_reserved_column(n)]
    if extra:
        raise InvalidSpec(
            "the source of a delete has columns besides the keys and the ordering column",
            resource=f"{job.field}: {place}",
            found=", ".join(extra),
            expected=", ".join(schema.names),
            remedy="Leave them out of the source",
        )


def _written(control: Control, rows: DataFrame, job: UpsertJob) -> list[BlocksWritten]:
    """Write the blocks; each task has a range of the keys."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.datasource import STRIPE_BYTES

    keys = [F.col(quote_name(key)) for key in job.keys]
    # A partition that is read has about `STRIPE_BYTES`.
    size = rows.rdd.getNumPartitions() * STRIPE_BYTES
    tasks = max(1, math.ceil(size / max(job.max_block_bytes, 1)))
    ranged = rows.repartitionByRange(tasks, *keys) if tasks > 1 else rows.coalesce(1)
    store, work = control.store, block_work(control, job)

    def write(batches: Batches) -> Iterator[BlocksWritten]:
        yield BlockFiles(store, work, task_number()).write_blocks(batches)

    return answers(ranged.sortWithinPartitions(*keys), write)


def _report(control: Control, done: int, stage: str) -> None:
    control.progress(
        JobProgress(files_done=done, files_total=1, bytes_done=0, bytes_total=0, stage=stage)
    )
