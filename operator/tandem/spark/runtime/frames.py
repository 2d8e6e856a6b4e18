"""Rows of a table as DataFrames, for jobs and sources. Parses no statement."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyroaring import BitMap64

from tandem.delta.dv import from_base64
from tandem.errors import JobFailed, ObjectNotFound
from tandem.jobs.formats import Format, InputFile, JobTable, TimeBorders
from tandem.spark.runtime.control import Control, prefix_of, reported
from tandem.spark.runtime.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tandem.spark.runtime.datasource import WriteResult
    from tandem.spark.runtime.row_files import InputSplit, LoggedPartitionValue, RowsWork

_Answer = TypeVar("_Answer", bound=Format)


@contextmanager
def isolated_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A separate session on the same context, with the pinned settings and our data source.

    Settings that a cluster or a test made in its own session do not change the meaning of a
    statement, and are not changed by it.
    """
    from tandem.spark.runtime.datasource import RowsSource

    own = spark.newSession()
    for key, value in session_conf().items():
        own.conf.set(key, value)
    # Data sources are looked up in the thread's active session, which is initially set only in the
    # thread that created the session.
    jvm = spark._jvm
    assert jvm is not None
    sessions = spark._get_j_spark_session_class(jvm)
    sessions.setActiveSession(own._jsparkSession)
    own.dataSource.register(RowsSource)
    try:
        yield own
    finally:
        sessions.setActiveSession(spark._jsparkSession)


def table_schema(table: JobTable) -> StructType:
    """Spark's schema of the table; all nullable, since our writer checks nullability."""
    from tandem.spark.runtime.schemas import spark_schema

    return spark_schema(table.schema_string)


def read_rows(
    control: Control,
    spark: SparkSession,
    inputs: Sequence[InputFile],
    columns: Sequence[str],
    round_: int,
    *,
    hidden: bool,
    table: JobTable | None = None,
) -> DataFrame:
    """The live rows of `inputs` (of this table, or of another) as a DataFrame."""
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    from tandem.spark.runtime.datasource import NAME, put_work
    from tandem.spark.runtime.row_files import INPUT, POSITION, RowsWork

    of = table or control.spec.table
    schema = table_schema(of)
    fields = [schema[name] for name in columns]
    if hidden:
        fields += [StructField(INPUT, IntegerType()), StructField(POSITION, LongType())]
    if not inputs:
        return spark.createDataFrame([], StructType(fields))
    work = RowsWork(
        table=of,
        inputs=tuple(inputs),
        columns=tuple(columns),
        round=round_,
        counters=prefix_of(control.spec.control_prefix, round_) if hidden and not table else "",
        source=table is not None,
    )
    options = put_work(control, work, round_)
    return spark.read.format(NAME).schema(StructType(fields)).options(**options).load()


def write_rows(
    control: Control,
    rows: DataFrame,
    target_file_size: int,
    round_: int,
    logged_values: tuple[LoggedPartitionValue, ...] = (),
    *,
    new_columns: Sequence[str],
    borders: TimeBorders | None = None,
    table: JobTable | None = None,
) -> WriteResult:
    """Write rows as data files of the table; hidden columns become matches, and determine whose
    logged partition values a row keeps. `new_columns`, `borders`: as in `RowsWork`; `table`: the
    job's, unless the rows have some of its columns alone."""
    from tandem.spark.runtime.datasource import NAME, WriteResult
    from tandem.spark.runtime.row_files import RowsWork

    work = RowsWork(
        table=table or control.spec.table,
        data_prefix=control.spec.data_prefix,
        target_file_size=target_file_size,
        answer_path=control.round_path(round_, f"answer-{uuid.uuid4()}"),
        round=round_,
        logged_values=logged_values,
        new_columns=tuple(new_columns),
        borders=borders,
    )
    return save_rows(control, rows, NAME, work, WriteResult)


def save_rows(
    control: Control, rows: DataFrame, source: str, work: RowsWork, answer: type[_Answer]
) -> _Answer:
    """Write rows with one of our data sources, and return the answer of its commit.

    Raises: JobFailed if there is no answer.
    """
    from tandem.spark.runtime.datasource import put_work

    options = put_work(control, work, work.round)
    rows.write.format(source).options(**options).mode("append").save()
    try:
        return answer.model_validate_json(control.store.get(work.answer_path))
    except ObjectNotFound as error:
        raise JobFailed("Spark wrote no result", resource=work.answer_path) from error


def dead_rows(input_: InputFile) -> BitMap64:
    """The positions of an input's rows that are deleted at the version that the job reads."""
    return from_base64(input_.dv) if input_.dv else BitMap64()


def cardinality(input_: InputFile) -> int:
    """How many rows of an input are deleted."""
    return len(dead_rows(input_))


def reported_shares(
    control: Control, stage: str, inputs: Sequence[InputFile], round_: int
) -> AbstractContextManager[None]:
    """Progress of a read by `read_rows`."""
    from tandem.spark.runtime.datasource import shares

    return reported_splits(control, stage, inputs, [p.splits for p in shares(inputs)], round_)


def reported_splits(
    control: Control,
    stage: str,
    inputs: Sequence[InputFile],
    tasks: Sequence[Sequence[InputSplit]],
    round_: int,
) -> AbstractContextManager[None]:
    """Progress of a read, given what each task reads: files count by the parts of them that were
    read."""
    total = sum(i.size for i in inputs)

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        read = [s for number, n in counts.items() for s in tasks[number][:n]]
        files = sum(1 / s.parts for s in read)
        size = sum(inputs[s.input].size / s.parts for s in read)
        return int(files + 1e-6), min(int(size), total)

    return reported(control, stage, (len(inputs), total), done, round_)
