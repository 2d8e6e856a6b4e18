"""The ingest job: reads a source, aligns it with the table's schema, writes it as few new files.
Also the job of a replace, which checks that the rows are in its scope, and finds the rows of files
that are (`replace/file_rows.py`).

Columns are matched by name. A column that the source lacks becomes null if the table allows it;
a column that the table lacks, and a value that does not fit its column, are errors: an ingest never
drops data silently.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from tandem.jobs.formats import IngestJob, InputFile, ReplaceJob
from tandem.jobs.results import JobProgress, JobResult
from tandem.spark.jobs.replace import file_rows
from tandem.spark.jobs.replace.source_rows import observation, restricted
from tandem.spark.jobs.statement import serve
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import isolated_session, table_schema, write_rows
from tandem.spark.sources import readers, source_pin
from tandem.spark.sources.char_types import declared_char_types
from tandem.spark.sources.options import checked
from tandem.spark.sources.schema_alignment import align_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_FILES = 8
"""Concurrent writing tasks; each writes one file or more, cut at the target size."""


def run(control: Control, spark: SparkSession, stop: threading.Event | None = None) -> None:
    """Execute the job and publish its result; then serve the rounds of a replace. `stop` ends the
    service early (tests).

    Raises:
        InvalidSpec: the source's columns or options do not fit.
        StatementFailed: a value does not fit its column, or is null where it must not be.
        SourceUnreadable: a file is damaged. SourceChanged: files changed during the read.
    """
    job = control.spec.job
    assert isinstance(job, IngestJob | ReplaceJob)
    empty = JobResult(operation_id=control.spec.operation_id, attempt=control.spec.attempt)
    result = empty
    if isinstance(job, IngestJob) or job.has_source:
        with isolated_session(spark) as own:
            result = _ingest(control, own, job)
    if isinstance(job, ReplaceJob) and job.inputs:
        result = _with_scope(control, spark, result, job.inputs)
    control.publish(result)
    _report(control, 1, "Publishing")

    def round_(inputs: Sequence[InputFile], number: int) -> None:
        of_round = empty.model_copy(update={"round": number})
        control.publish(_with_scope(control, spark, of_round, inputs))

    if isinstance(job, ReplaceJob) and job.serves_rounds:
        serve(control, round_, stop or threading.Event())


def _with_scope(
    control: Control, spark: SparkSession, result: JobResult, inputs: Sequence[InputFile]
) -> JobResult:
    """The result with the rows of `inputs` that are in scope."""
    found = file_rows.read(control, spark.sparkContext, inputs, result.round)
    return file_rows.with_matches(control, result, inputs, found)


def _ingest(control: Control, spark: SparkSession, job: IngestJob | ReplaceJob) -> JobResult:
    """Write the rows of the source; the result to publish."""
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
    return JobResult(
        operation_id=spec.operation_id,
        attempt=spec.attempt,
        outputs=answer.outputs,
        rows_read=answer.rows,
        rows_written=sum(o.rows for o in answer.outputs),
        rows_outside=int(outside.get["rows"]) if outside is not None else 0,
        chunks_together=answer.chunks_together,
    )


def _report(control: Control, done: int, stage: str) -> None:
    control.progress(
        JobProgress(files_done=done, files_total=1, bytes_done=0, bytes_total=0, stage=stage)
    )


def _few(rows: DataFrame) -> DataFrame:
    """One load is one segment: a handful of files, not one for every file of the source."""
    partitions = rows.rdd.getNumPartitions()
    return rows.coalesce(MAX_FILES) if partitions > MAX_FILES else rows
