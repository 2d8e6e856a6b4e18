"""The ingest job: reads a source, aligns it with the table's schema, writes it as few new files.
Also the job of a replace, which checks that the rows are in its scope, and finds the rows of files
that are.

Columns are matched by name. A column that the source lacks gets its default, is generated, or
becomes null if the table allows it; a column that the table lacks, and a value that does not fit
its column, are errors: an ingest never drops data silently.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tandem.intervals import IntervalSet
from tandem.jobs.formats import LOAD_TASKS, IngestJob, InputFile, JobSpec, ReplaceJob, RowScope
from tandem.jobs.results import JobProgress, JobResult
from tandem.rowmap.run_table import Positions
from tandem.spark.jobs.statement import serve
from tandem.spark.runtime.control import (
    Control,
    Counter,
    job_table_format,
    output_file,
    reported,
    to_file,
)
from tandem.spark.runtime.frames import (
    each_in_a_task,
    isolated_session,
    table_schema,
    with_absent,
    write_rows,
)
from tandem.spark.runtime.identity import LastValues, lacking
from tandem.spark.runtime.listing import ListedSource
from tandem.spark.runtime.row_files import (
    INPUT,
    POSITION,
    RowFiles,
    RowsWork,
    TaskRows,
    open_input,
    unwritten,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.spark.sources import arrow_rows, readers
from tandem.spark.sources.arrow_rows import in_batches
from tandem.spark.sources.options import checked
from tandem.statements.local import NeedsSpark
from tandem.statements.tree import quote_name
from tandem.storage import Store
from tandem.timeline.file_columns import rows_within

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


# The scope of a replace as a condition on the rows of a source.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000


def observation() -> Observation:
    """To count rows while they are written."""
    from pyspark.sql import Observation

    return Observation()


def restricted(
    rows: DataFrame, schema: StructType, scope: RowScope, outside: Observation | None
) -> DataFrame:
    """The rows that are in scope.

    Args:
        rows: with the columns of the table.
        outside: counts the other ones as `rows`, which are left out; None: Spark raises an error
            on such a row, which names it.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    within = F.coalesce(_within(schema, scope), F.lit(False))
    if outside is not None:
        counted = rows.observe(outside, F.count_if(~within).alias("rows"))
        return counted.where(within)
    columns = [name for name in schema.names if name.lower() in _columns(scope)]
    shown = F.concat_ws(
        ", ",
        *(
            F.concat(
                F.lit(f"{name}="),
                F.coalesce(F.col(quote_name(name)).cast("string"), F.lit("NULL")),
            )
            for name in columns
        ),
    )
    error = F.raise_error(
        F.concat(
            F.lit("a row of the source is outside of what is replaced (found: "),
            shown,
            F.lit(
                "; expected: a row in the intervals and partitions; with outside: Drop it is left "
                "out)"
            ),
        )
    )
    return rows.where(F.when(within, F.lit(True)).otherwise(error.cast("boolean")))


def _columns(scope: RowScope) -> frozenset[str]:
    names = {name.lower() for partition in scope.partitions for name in partition}
    return frozenset({*names, scope.time_column.lower()})


def _within(schema: StructType, scope: RowScope) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    found = F.lit(True)
    types = {field.name.lower(): field for field in schema.fields}
    if scope.intervals:
        field = types[scope.time_column.lower()]
        time = F.col(quote_name(field.name))
        found &= any_of([_between(time, field.dataType, *each) for each in scope.intervals])
    if scope.partitions:
        found &= any_of([_of_partition(types, each) for each in scope.partitions])
    return found


def any_of(conditions: Sequence[Column]) -> Column:
    """Balanced: Spark walks through an expression recursively, and a chain of a thousand overflows
    its stack."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return any_of(conditions[:half]) | any_of(conditions[half:])


def _of_partition(types: Mapping[str, StructField], partition: Mapping[str, str | None]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    all_of_it = F.lit(True)
    for name, text in partition.items():
        field = types[name.lower()]
        all_of_it &= _as_stored(field).eqNullSafe(F.lit(text).cast(field.dataType))
    return all_of_it


def _as_stored(field: StructField) -> Column:
    """A partition column as the table gives it back: empty texts and bytes are stored as NULL."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    column = F.col(quote_name(field.name))
    if isinstance(field.dataType, T.StringType | T.BinaryType):
        return F.when(F.length(column) > 0, column)
    return column


def _between(time: Column, type_: DataType, low: int | None, high: int | None) -> Column:
    found = time.isNotNull()
    if low is not None:
        found &= time >= _moment(low, type_)
    if high is not None:
        found &= time < _moment(high, type_)
    return found


def _moment(ms: int, type_: DataType) -> Column:
    """A moment in the type of a time column; of a date, the first one that begins no earlier."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if isinstance(type_, T.DateType):
        return F.date_from_unix_date(F.lit(-(-ms // _DAY_MS)))
    if isinstance(type_, T.TimestampNTZType):
        moment = (_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None)
        return F.lit(moment.isoformat()).cast(type_)
    return F.timestamp_micros(F.lit(ms * 1_000))


# Which rows of files are in the intervals of a replace.
#
# For files whose times are too many to be read by the engine. Only the time column is read, by the
# same code as there, so a task needs Python and no SQL. All rows are reported, deleted or not: a
# file never changes, and the answer stays valid whatever commits do. A task reads whole files.


MOST_TASKS = 1_000
"""A task takes about 20 ms of the driver, also for a file of a few rows."""


def rows_in_scope(
    control: Control, context: SparkContext, inputs: Sequence[InputFile], round_: int
) -> list[Positions]:
    """The rows of each input that are in the intervals of the job's scope.

    Raises: DataFileMissing, StorageError, CountMismatch.
    """
    spec, store, counters = control.spec, control.store, control.counters(round_)

    def task(index: int) -> Positions:
        found = rows_of(store, spec, inputs[index])
        counter = Counter(counters, index)
        counter.add()
        counter.show()
        return found

    def size_of(files: Mapping[int, int]) -> tuple[int, int]:
        return len(files), sum(inputs[index].size for index in files)

    order = range(len(inputs))
    with reported(control, "Reading times", size_of(dict.fromkeys(order, 1)), size_of, round_):
        return each_in_a_task(context, order, task, most=MOST_TASKS)


def rows_of(store: Store, spec: JobSpec, input_: InputFile) -> Positions:
    """The rows of a file that are in the intervals of the job's scope: the work of a task.

    Raises: DataFileMissing, StorageError, CountMismatch.
    """
    job = spec.job
    assert isinstance(job, ReplaceJob)
    intervals, table = IntervalSet.from_json(job.scope.intervals), job_table_format(spec.table)
    found, start = [np.empty(0, np.int64)], 0
    with open_input(store, table, input_, [job.scope.time_column]) as reader:
        for batch in reader.batches():
            found.append(np.flatnonzero(rows_within(batch.column(0), intervals)) + start)
            start += batch.num_rows
    return np.concatenate(found)


def with_matches(
    control: Control,
    result: JobResult,
    inputs: Sequence[InputFile],
    found: Sequence[Positions],
) -> JobResult:
    """The result of a round, with the rows that were found in each input."""
    hidden = {
        INPUT: np.repeat(np.arange(len(found), dtype=np.int32), [len(f) for f in found]),
        POSITION: np.concatenate([np.empty(0, np.int64), *found]),
    }
    matches = unwritten(pa.table(hidden), None)
    sidecar = control.side_file(result.round, "matches.arrow", to_file(matches))
    read = result.rows_read + sum(input_.rows for input_ in inputs)
    changes = {"matches": sidecar, "rows_read": read, "rows_matched": len(matches)}
    return result.model_copy(update=changes)


# The job of an ingest, and of a replace.


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


def run_here(control: Control) -> bool:
    """Execute an ingest in this thread, and publish its result; False if Spark is needed, as for a
    replace.

    Raises: as `run`.
    """
    spec = control.spec
    job = spec.job
    if not isinstance(job, IngestJob):
        return False
    names = job_table_format(spec.table).schema.names
    try:
        rows, source, identity = arrow_rows.load(control, spec.table, names)
        files = RowFiles(control.store, _rows_work(control, job, names), tuple(names))
        written = files.write_all(in_batches(rows)).sent()
    except NeedsSpark:
        return False
    result = _written(control, [written], source)
    control.publish(result.model_copy(update={"identity": identity}))
    _report(control, 1, "Publishing")
    return True


def _with_scope(
    control: Control, spark: SparkSession, result: JobResult, inputs: Sequence[InputFile]
) -> JobResult:
    """The result with the rows of `inputs` that are in scope."""
    found = rows_in_scope(control, spark.sparkContext, inputs, result.round)
    return with_matches(control, result, inputs, found)


def _ingest(control: Control, spark: SparkSession, job: IngestJob | ReplaceJob) -> JobResult:
    """Write the rows of the source; the result to publish."""
    spec = control.spec
    from tandem.spark.sources.casts import align_columns, declared_char_types  # imports Spark

    _report(control, 0, "Reading")
    schema = table_schema(spec.table)
    checked(job.source_format, job.source_options)
    bounded = declared_char_types(spec.table.schema_string)
    source = None if job.source_format == "Delta" else readers.open_source(control)
    csv, sparse = job.source_format == "Csv", job.source_format == "Json"
    found: list[DataFrame] = []
    numbered: dict[str, None] = {}
    for rows in readers.read(control, spark, schema, source=source, places=True):
        place = rows.path or job.source_location
        aligned = align_columns(rows.frame, schema, place, bounded, rows.where, csv=csv)
        found.append(with_absent(aligned, spec.table, rows.frame.columns, sparse=sparse))
        if spec.table.identity:
            given = () if sparse else rows.frame.columns
            numbered.update(dict.fromkeys(lacking(spec.table, given, place)))
    new = reduce(lambda a, b: a.unionAll(b), found) if found else spark.createDataFrame([], schema)
    outside = None
    if isinstance(job, ReplaceJob):
        outside = observation() if job.drops_outside else None
        new = restricted(new, schema, job.scope, outside)
    last = LastValues(spec.table)
    new = last.give(_few(new), tuple(numbered))
    written = write_rows(control, new, _rows_work(control, job, schema.names))
    result = _written(control, written, source)
    left_out = int(outside.get["rows"]) if outside is not None else 0
    return result.model_copy(update={"rows_outside": left_out, "identity": last.found()})


def _rows_work(control: Control, job: IngestJob | ReplaceJob, names: Sequence[str]) -> RowsWork:
    return RowsWork(
        table=control.spec.table,
        data_prefix=control.spec.data_prefix,
        target_file_size=job.target_file_size,
        new_columns=tuple(names),
        borders=job.borders,
    )


def _written(
    control: Control, written: Sequence[TaskRows], source: ListedSource | None
) -> JobResult:
    """The result, once it is certain that the source has not changed. Raises: SourceChanged."""
    spec = control.spec
    store_facts(control.store, spec.table.table_id, (f for each in written for f in each.files))
    if source is not None:
        readers.unchanged(control, source)
    return JobResult(
        operation_id=spec.operation_id,
        attempt=spec.attempt,
        outputs=tuple(output_file(file) for each in written for file in each.files),
        rows_read=sum(each.rows for each in written),
        rows_written=sum(file.rows for each in written for file in each.files),
        chunks_together=len(frozenset().union(*(each.together for each in written))),
    )


def _report(control: Control, done: int, stage: str) -> None:
    control.progress(
        JobProgress(files_done=done, files_total=1, bytes_done=0, bytes_total=0, stage=stage)
    )


def _few(rows: DataFrame) -> DataFrame:
    """One load is one segment: a handful of files, not one for every file of the source. Without a
    shuffle, which would write all rows twice, so it limits the tasks that read, too."""
    partitions = rows.rdd.getNumPartitions()
    return rows.coalesce(LOAD_TASKS) if partitions > LOAD_TASKS else rows
