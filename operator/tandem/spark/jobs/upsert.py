"""The job of an upsert: reads a source, sorts its rows by key, and writes them as blocks of a log.
Never appends the blocks to the log: the engine does.

Columns are matched by name, as in an ingest. Each task has a range of the keys, so that the rows of
a key meet in one task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from tandem.delta.protocol import is_reserved_column
from tandem.errors import InvalidSpec
from tandem.jobs.formats import UpsertJob
from tandem.jobs.results import JobProgress
from tandem.mergelog.rows.by_key import Repeated
from tandem.mergelog.state.log_table import LogSettings
from tandem.spark.jobs.block_files import (
    BlockFiles,
    BlocksWritten,
    block_work,
    columns_of,
    outputs_of,
    publish,
)
from tandem.spark.jobs.rewrite.codes import codes_of, in_order, one_array
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import (
    Batches,
    answers,
    isolated_session,
    table_schema,
    task_number,
)
from tandem.spark.runtime.listing import ListedSource
from tandem.spark.sources import arrow_rows, readers, source_pin
from tandem.spark.sources.arrow_rows import in_batches
from tandem.spark.sources.options import checked
from tandem.statements.generate import quote_name
from tandem.statements.local import NeedsSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
        source_pin.unchanged(control, source)
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
        rows, source = arrow_rows.load(control, job.blocks, columns_of(job), required=needed)
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
        found.append(
            align_columns(
                rows.frame,
                schema,
                place,
                bounded,
                rows.where,
                field=job.field,
                csv=job.source_format == "Csv",
            )
        )
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
