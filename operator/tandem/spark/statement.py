"""The statement job: find the rows that an update or delete means, write what they become.

Round 0 evaluates the files of the job; then the driver serves rounds until the engine says
that it is done: rows that others appended or changed meanwhile, at a later version. The texts
are canonical Spark SQL generated from a checked tree (`tandem.statements`), never what a user
typed. A row on which the statement raises fails the whole round.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from tandem.errors import CountMismatch, JobFailed, ObjectNotFound
from tandem.spark.control import Control, translate
from tandem.spark.counters import prefix_of, reported
from tandem.spark.job import InputFile, JobResult, SidecarRef, StatementJob
from tandem.spark.job import Table as JobTable
from tandem.spark.names import quoted as quoted
from tandem.spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tandem.spark.datasource import Answer
    from tandem.spark.row_files import Spelling

IDLE_SECONDS = 1800.0
"""A driver that hears nothing of its engine for so long ends: it holds memory for nobody."""
POLL_SECONDS = (0.02, 0.2)
"""First and longest pause between two looks for a request. Between, a pause is an eighth of the
time that the driver has waited: others may commit until the engine does."""


def run(control: Control, spark: SparkSession, stop: threading.Event | None = None) -> None:
    """Evaluate round 0, then serve rounds. `stop` ends the service early (tests).

    Raises: TandemError if round 0 fails. Failures of later rounds are answered, and the
    service goes on: the engine decides what they mean.
    """
    job = control.spec.job
    assert isinstance(job, StatementJob)
    with isolated(spark) as own:

        def round_(inputs: Sequence[InputFile], number: int) -> None:
            evaluate(control, own, job, inputs, number)

        round_(job.inputs, 0)
        serve(control, round_, stop or threading.Event())


Round = Callable[[Sequence[InputFile], int], None]
"""Evaluates these files and publishes the result of the round of that number."""


def serve(control: Control, evaluate_: Round, ended: threading.Event) -> None:
    """Evaluate what the engine asks for until it says that it is done, or `ended` is set."""
    round_ = 1
    shortest, longest = POLL_SECONDS
    idle_since = time.monotonic()
    while not ended.is_set():
        request = control.request(round_)
        if request is None:
            idle = time.monotonic() - idle_since
            if control.is_done() or idle > IDLE_SECONDS:
                return
            ended.wait(min(longest, max(shortest, idle / 8)))
            continue
        try:
            evaluate_(request.inputs, round_)
        except Exception as error:  # noqa: BLE001 - described to the engine, which decides
            control.fail(translate(error), round_)
        round_ += 1
        idle_since = time.monotonic()


@contextmanager
def isolated(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own on the same context, with the pinned settings and our data source.

    Settings that a cluster or a test made for its own session neither change what a statement
    means nor are changed by it.
    """
    from tandem.spark.datasource import RowsSource

    own = spark.newSession()
    for key, value in session_conf().items():
        own.conf.set(key, value)
    # Sources are looked up in the thread's active session, which only the thread that made the
    # session has from the start.
    jvm = spark._jvm
    assert jvm is not None
    sessions = spark._get_j_spark_session_class(jvm)
    sessions.setActiveSession(own._jsparkSession)
    own.dataSource.register(RowsSource)
    try:
        yield own
    finally:
        sessions.setActiveSession(spark._jsparkSession)


def evaluate(
    control: Control,
    spark: SparkSession,
    job: StatementJob,
    inputs: Sequence[InputFile],
    round_: int,
) -> None:
    """Evaluate the statement on the live rows of `inputs` and publish the round's result."""
    from tandem.spark.ipc import to_file
    from tandem.spark.row_files import MATCHES, spellings

    spec = control.spec
    live = sum(i.rows - cardinality(i) for i in inputs)
    outputs: tuple[Any, ...] = ()
    matched = 0
    if not live:
        # No file is concerned, as its statistics say, or only deleted rows are left in them. A
        # result without matches is one that was cut off, so there are matches, of no rows.
        matches = control.sidecar(round_, "matches.arrow", to_file(MATCHES.empty_table()))
    else:
        schema = table_schema(spec.table)
        columns = _columns_read(job, schema)
        rows = read_rows(control, spark, inputs, columns, round_, hidden=True)
        found = _statement(rows, job, schema)
        with reported_shares(control, "Evaluating", inputs, round_):
            answer = write_rows(
                control,
                found,
                job.target_file_size,
                round_,
                spellings(spec.table, inputs, [name.lower() for name in job.set]),
            )
        outputs, matched = answer.outputs, answer.rows
        data = control.store.get(answer.matches)
        matches = SidecarRef(
            path=answer.matches, size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        written = sum(o.rows for o in outputs)
        if matched > live or (job.set and written != matched):
            raise CountMismatch(
                "a statement touched another number of rows than it wrote",
                resource=f"round {round_}",
                found=f"{matched} matched, {written} written",
                expected=f"the same, at most {live}",
            )
    control.publish(
        JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            round=round_,
            outputs=outputs,
            matches=matches,
            rows_read=live,
            rows_written=sum(o.rows for o in outputs),
            rows_matched=matched,
        )
    )


def _statement(rows: DataFrame, job: StatementJob, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.row_files import HIDDEN

    found = rows.filter(F.expr(job.where))
    hidden = [F.col(name) for name in HIDDEN]
    if not job.set:
        return found.select(*hidden)
    chosen = {name.lower(): text for name, text in job.set.items()}
    # ANSI store assignment: a value that does not fit its column raises.
    columns = [
        F.expr(chosen[f.name.lower()]).cast(f.dataType).alias(f.name)
        if f.name.lower() in chosen
        else F.col(quoted(f.name))
        for f in schema.fields
    ]
    return found.select(*columns, *hidden)


def _columns_read(job: StatementJob, schema: StructType) -> tuple[str, ...]:
    """A delete reads the columns whose names occur in its text (too many do no harm)."""
    if job.set:
        return tuple(schema.names)
    text = job.where.lower().replace("``", "`")
    return tuple(n for n in schema.names if n.lower().replace("``", "`") in text)


def table_schema(table: JobTable) -> StructType:
    """Spark's schema of the table; nullable throughout, since we check what must not be null."""
    from pyspark.sql.types import StructField, StructType

    schema = StructType.fromJson(json.loads(table.schema_string))
    return StructType([StructField(f.name, _nullable(f.dataType), True) for f in schema.fields])


def _nullable(type_: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(type_, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in type_.fields])
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType), True)
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType), True)
    return type_


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

    from tandem.spark.datasource import NAME, put_work
    from tandem.spark.row_files import INPUT, POSITION, Work

    of = table or control.spec.table
    schema = table_schema(of)
    fields = [schema[name] for name in columns]
    if hidden:
        fields += [StructField(INPUT, IntegerType()), StructField(POSITION, LongType())]
    if not inputs:
        return spark.createDataFrame([], StructType(fields))
    work = Work(
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
    spellings: tuple[Spelling, ...] = (),
) -> Answer:
    """Write rows as data files of the table; hidden columns become matches, and say whose
    spellings of partition values a row keeps."""
    from tandem.spark.datasource import NAME, Answer, put_work
    from tandem.spark.row_files import Work

    work = Work(
        table=control.spec.table,
        data_prefix=control.spec.data_prefix,
        target_file_size=target_file_size,
        answer_path=control.round_path(round_, f"answer-{uuid.uuid4()}"),
        round=round_,
        spellings=spellings,
    )
    options = put_work(control, work, round_)
    rows.write.format(NAME).options(**options).mode("append").save()
    try:
        return Answer.model_validate_json(control.store.get(work.answer_path))
    except ObjectNotFound as error:
        raise JobFailed("Spark wrote no answer", resource=work.answer_path) from error


def cardinality(input_: InputFile) -> int:
    """How many of its rows are not to be evaluated."""
    from tandem.delta.dv import from_base64

    return len(from_base64(input_.dv)) if input_.dv else 0


def reported_shares(
    control: Control, stage: str, inputs: Sequence[InputFile], round_: int
) -> AbstractContextManager[None]:
    """Progress of a read of `read_rows`: files count by the shares of them that were read."""
    from tandem.spark.datasource import shares

    parts = [p.stripes for p in shares(inputs)]
    total = sum(i.size for i in inputs)

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        read = [s for number, n in counts.items() for s in parts[number][:n]]
        files = sum(1 / s.parts for s in read)
        size = sum(inputs[s.input].size / s.parts for s in read)
        return int(files + 1e-6), min(int(size), total)

    return reported(control, stage, (len(inputs), total), done, round_)
