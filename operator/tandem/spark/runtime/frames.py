"""Rows of a table as DataFrames, for jobs and sources, and the work of Spark's tasks, whose answers
are collected, or exchanged as blocks by Spark's shuffle: it moves bytes, and looks at none. Parses
no statement.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.dv import from_base64
from tandem.errors import TandemError
from tandem.jobs.formats import InputFile, JobTable
from tandem.spark.runtime.control import Control, reported
from tandem.spark.runtime.session import session_conf

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tandem.spark.runtime.row_files import InputSplit, RowsWork, TaskRows


A = TypeVar("A")

Batches = Iterator[pa.RecordBatch]


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
    from tandem.spark.runtime.datasource import spark_schema

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
    """The live rows of `inputs` (of this table, or of another) as a DataFrame.

    Args:
        columns: of the table, and those of row ids.
    """
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    from tandem.spark.runtime.datasource import NAME, RowsRead, put_work
    from tandem.spark.runtime.row_files import INPUT, POSITION

    of = table or control.spec.table
    schema = table_schema(of)
    ids = {name: StructField(name, LongType()) for name in of.row_ids or ()}
    fields = [ids.get(name) or schema[name] for name in columns]
    if hidden:
        fields += [StructField(INPUT, IntegerType()), StructField(POSITION, LongType())]
    if not inputs:
        return spark.createDataFrame([], StructType(fields))
    work = RowsRead(
        table=of,
        inputs=tuple(inputs),
        counters=control.round_path(round_, "counters") if hidden and not table else "",
        source=table is not None,
    )
    options = put_work(control, work, round_)
    return spark.read.format(NAME).schema(StructType(fields)).options(**options).load()


def with_rules(rows: DataFrame, table: JobTable, where: Column | None = None) -> DataFrame:
    """Rows with the number of the first rule of the table that each breaks (`BROKEN`), if it has
    rules; `where`: the rows that have new values."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.row_files import BROKEN
    from tandem.statements.rules import rules_of

    rules = rules_of(table.schema_string, table.configuration, table.partition_columns)
    if not rules:
        return rows
    broken = F.lit(None).cast("int")
    for number, rule in reversed([*enumerate(rules)]):
        # NULL fails, as in Spark.
        kept = F.coalesce(F.expr(rule.sql), F.lit(False))
        broken = F.when(~kept, F.lit(number)).otherwise(broken)
    return rows.withColumn(BROKEN, broken if where is None else F.when(where, broken))


def with_absent(
    rows: DataFrame, table: JobTable, given: Iterable[str], *, sparse: bool = False
) -> DataFrame:
    """Rows with the columns of the table, of which a source gave some and the others are NULL, with
    the values of these; `sparse` is as in `absent_values`. Raises: InvalidStatement."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.statements.statement import absent_values
    from tandem.statements.tree import quote_name, to_spark_sql

    values = absent_values(table.schema_string, rows.columns, given, sparse=sparse)
    for name, value in values.items():
        found = F.coalesce(F.col(quote_name(name)), F.expr(to_spark_sql(value)))
        rows = rows.withColumn(name, found)
    return rows


def write_rows(control: Control, rows: DataFrame, work: RowsWork) -> list[TaskRows]:
    """Write rows as data files of a table: what each task has written. Hidden columns become
    matches, and determine whose logged partition values a row keeps."""
    from tandem.spark.runtime.row_files import HIDDEN

    if not set(rows.columns) <= set(HIDDEN):  # as those of a delete are
        rows = with_rules(rows, work.table)
    store, names = control.store, tuple(rows.columns)

    def write(batches: Batches) -> Iterator[TaskRows]:
        from tandem.spark.runtime.row_files import RowFiles

        yield RowFiles(store, work, names, task_number()).write_all(batches).sent()

    return answers(rows, write)


def answers(rows: DataFrame, work: Callable[[Batches], Iterator[A]]) -> list[A]:
    """What `work` yields in the tasks of Spark, given the rows of each: of all attempts at a task,
    only of the one that Spark accepted."""

    def answered(batches: Batches) -> Batches:
        for answer in work(batches):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)])], ["answer"])

    found = map_in_arrow(rows, answered, "answer binary").collect()
    return [pickle.loads(row[0]) for row in found]


def each_in_a_task(
    context: SparkContext | None,
    numbers: Sequence[int],
    work: Callable[[int], A],
    *,
    most: int = 1 << 31,
    known: tuple[type[Exception], ...] = (TandemError,),
) -> list[A]:
    """What `work` returns for each number, in their order: by a task each, or `most` tasks; without
    a context in this thread.

    Raises: the first error that is `known`.
    """

    def task(number: int) -> A | Exception:
        try:
            return work(number)
        except known as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error

    if context is None:
        return list(map(work, numbers))
    if not numbers:
        return []
    found: list[A] = []
    for answer in context.parallelize(numbers, min(len(numbers), most)).map(task).collect():
        if isinstance(answer, known):
            raise answer
        found.append(cast("A", answer))
    return found


def map_in_arrow(
    frame: DataFrame, function: Callable[[Batches], Batches], schema: str
) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas and uses none (PySpark 4.2)."""
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    from tandem.statements.tree import quote_name

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*(frame[quote_name(name)] for name in frame.columns))
    mapped: Any = frame
    return DataFrame(mapped._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def task_number() -> int:
    """The number of the running task of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


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


# Blocks of rows, as they travel between tasks, and the file in which a task keeps what it gets.
#
# It must not import Spark.


HELD: Final = 32 << 20
"""Bytes of a task's blocks beyond which they are on disk."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")
"""Faster than zstd; the rows are on disk for seconds."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of one range of a bin.

    Attributes:
        part: the number of the task that gets it.
        range_: the number of the range within the part.
        first: the place of the first row, by which blocks of a range are in order.
        size: bytes of the rows in memory.
        largest: those of the largest column.
        data: an Arrow IPC stream, compressed, in which columns may have dictionaries.
    """

    part: int
    range_: int = 0
    first: int = 0
    rows: int = 0
    size: int = 0
    largest: int = 0
    data: bytes = b""


class Exchange(Protocol):
    """Runs tasks that send blocks to others."""

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        """Call `send` with each number below `senders`, then `receive` with the blocks of each
        part below `parts`, in any order, or those of several parts at once.

        Returns: what the calls of `receive` yielded, in any order.
        """


def encoded(rows: pa.RecordBatch) -> bytes:
    """The data of a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def decoded_rows(data: bytes) -> pa.RecordBatch:
    """The rows of a block's data."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def sized(part: int, range_: int, first: int, rows: pa.RecordBatch) -> RowBlock:
    """A block of these rows."""
    sizes = [column.nbytes for column in rows.columns]
    return RowBlock(part, range_, first, rows.num_rows, sum(sizes), max(sizes), encoded(rows))


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """A block whose data are in a file."""

    block: RowBlock
    start: int
    length: int


class BlockFile:
    """A task's blocks: in memory if they are few, otherwise in a file that has no name. Use as a
    context manager."""

    def __init__(self) -> None:
        # Spark's own folders for such files, which may be on a larger disk.
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        folder = folders[0] if os.path.isdir(folders[0]) else None
        self._file = tempfile.SpooledTemporaryFile(HELD, dir=folder)  # noqa: SIM115
        self._end = 0

    def add(self, block: RowBlock) -> KeptBlock:
        kept = KeptBlock(replace(block, data=b""), self._end, len(block.data))
        self._file.seek(self._end)
        self._file.write(block.data)
        self._end += len(block.data)
        return kept

    def rows(self, kept: KeptBlock) -> pa.RecordBatch:
        """Read the rows of a block."""
        self._file.seek(kept.start)
        return decoded_rows(self._file.read(kept.length))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_SCHEMA: Final = "part int, block binary"


class SparkExchange:
    """An `Exchange`.

    Args:
        session: one of its own; its settings are changed.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        # A batch of blocks is in memory as a whole.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        def sent(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from map(_as_batch, send(number))

        def received(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
            return receive(_blocks(batches))

        blocks = map_in_arrow(self._session.range(0, senders, 1, senders), sent, _SCHEMA)
        return answers(blocks.repartitionById(parts, "part"), received)


def _as_batch(block: RowBlock) -> pa.RecordBatch:
    arrays = [pa.array([block.part], pa.int32()), pa.array([pickle.dumps(block)], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["part", "block"])


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[RowBlock]:
    for batch in batches:
        for block in batch.column(1):
            yield pickle.loads(block.as_py())
