"""The ingest job: reads a source, aligns it with the table's schema, writes it as few new files.
Also the job of a replace, which checks that the rows are in its scope.

Columns are matched by name. A column that the source lacks becomes null if the table allows it;
a column that the table lacks, and a value that does not fit its column, are errors: an ingest never
drops data silently.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from tandem.jobs.formats import IngestJob, ReplaceJob
from tandem.jobs.results import JobProgress, JobResult
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import isolated_session, table_schema, write_rows
from tandem.spark.sources import readers, source_pin
from tandem.spark.sources.char_types import declared_char_types
from tandem.spark.sources.options import checked
from tandem.spark.sources.row_scope import observation, restricted
from tandem.spark.sources.schema_alignment import align_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_FILES = 8
"""Concurrent writing tasks; each writes one file or more, cut at the target size."""


def run(control: Control, spark: SparkSession) -> None:
    """Execute the job and publish its result.

    Raises:
        InvalidSpec: the source's columns or options do not fit.
        StatementFailed: a value does not fit its column, or is null where it must not be.
        SourceUnreadable: a file is damaged. SourceChanged: files changed during the read.
    """
    job = control.spec.job
    assert isinstance(job, IngestJob | ReplaceJob)
    with isolated_session(spark) as own:
        _ingest(control, own, job)


def _ingest(control: Control, spark: SparkSession, job: IngestJob | ReplaceJob) -> None:
    spec = control.spec
    _report(control, 0, "Reading")
    schema = table_schema(spec.table)
    checked(job.source_format, job.source_options)
    bounded = declared_char_types(spec.table.schema_string)
    source = None if job.source_format == "Delta" else readers.open_source(control)
    found = [
        align_columns(
            rows.frame,
            schema,
            rows.path or job.source_location,
            bounded,
            rows.where,
            csv=job.source_format == "Csv",
        )
        for rows in readers.read(control, spark, schema, source=source, places=True)
    ]
    rows = reduce(lambda a, b: a.unionAll(b), found) if found else spark.createDataFrame([], schema)
    outside = None
    if isinstance(job, ReplaceJob):
        outside = observation() if job.drops_outside else None
        rows = restricted(rows, schema, job.scope, outside)
    answer = write_rows(
        control,
        _few(rows),
        job.target_file_size,
        0,
        new_columns=schema.names,
        borders=job.borders,
    )
    if source is not None:
        source_pin.unchanged(control, source)
    control.publish(
        JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            outputs=answer.outputs,
            rows_read=answer.rows,
            rows_written=sum(o.rows for o in answer.outputs),
            rows_outside=int(outside.get["rows"]) if outside is not None else 0,
            chunks_together=answer.chunks_together,
        )
    )
    _report(control, 1, "Publishing")


def _report(control: Control, done: int, stage: str) -> None:
    control.progress(
        JobProgress(files_done=done, files_total=1, bytes_done=0, bytes_total=0, stage=stage)
    )


def _few(rows: DataFrame) -> DataFrame:
    """One load is one segment: a handful of files, not one for every file of the source."""
    partitions = rows.rdd.getNumPartitions()
    return rows.coalesce(MAX_FILES) if partitions > MAX_FILES else rows
