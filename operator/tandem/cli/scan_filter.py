"""The conditions of `tandem scan --where` and `tandem index`.

The index chooses the files, our reader reads them, and the condition is evaluated here where that
is proven to mean what Spark means. Otherwise Spark, in this process, gets the columns that the
condition names, and returns row numbers; the values that are printed never pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.errors import StatementFailed
from tandem.index import rows
from tandem.index.answers import Splits
from tandem.index.rows import RowTest
from tandem.statements import to_spark_sql
from tandem.statements.local import NeedsSpark, compile_expression
from tandem.statements.statement import referenced
from tandem.statements.tree import Expr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandem.storage.store import Store

ROWS_AT_ONCE = 500_000
"""Rows that Spark gets at a time: few enough to bound memory, and enough to outweigh the cost of a
small job."""

ReadBatches = Callable[[Sequence[str] | None], tuple[pa.Schema, Iterable[pa.RecordBatch]]]


@contextmanager
def row_test(where: Expr) -> Iterator[RowTest]:
    """Evaluates a condition: here, or by a Spark session that is started when it is needed.

    Its calls raise: StatementFailed, SparkMissing.
    """
    compiled = compile_expression(where)
    with ExitStack() as stack:
        session: list[SparkSession] = []

        def by_spark(table: pa.Table) -> Any:
            if not session:
                session.append(_session())
                stack.callback(session[0].stop)
            return _matching(session[0], table, where)

        def matches(table: pa.Table) -> Any:
            # Spark is not started for rows that it then would evaluate again.
            if compiled is None or session:
                return by_spark(table)
            try:
                return compiled.where(table)
            except NeedsSpark:
                return by_spark(table)

        yield RowTest(matches, rows_at_once=ROWS_AT_ONCE)


def matching(
    splits: Splits, store: Store, where: Expr, columns: Sequence[str] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of the rows of splits for which a condition is true.

    Raises: while batches are taken, as `rows.read` and `row_test`.
    """
    schema = rows.schema_of(splits.head, columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with row_test(where) as test:
            yield from rows.read(splits, store, columns, where, test)

    return schema, batches()


def matching_in(
    read: ReadBatches, names: Sequence[str], where: Expr, columns: Sequence[str] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """As `matching`, of rows that are read in another way.

    Args:
        read: reads the rows of these columns.
        names: the columns of the table.
    """
    named = referenced(where)
    wanted = list(names if columns is None else columns)
    # The requested columns and those that the condition needs, each once.
    schema, batches = read(
        list(dict.fromkeys([*wanted, *(name for name in names if name in named)]))
    )

    def found() -> Iterator[pa.RecordBatch]:
        with row_test(where) as test:
            for table in _gathered(batches):
                chosen = table.select(wanted).take(test.matches(table))
                yield from chosen.to_batches()

    return pa.schema([schema.field(name) for name in wanted]), found()


def _matching(spark: SparkSession, table: pa.Table, where: Expr) -> pa.Array:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tandem.spark.runtime.control import translate

    try:
        return _numbers(spark, table, where)
    except (PySparkException, Py4JError) as error:
        described = translate(error)
        if not isinstance(described, StatementFailed):
            raise described from error
        raise StatementFailed(
            "the condition failed on a row",
            resource="--where",
            found=_first_sentence(error, described),
            expected="a condition that is defined for every row",
            remedy="Guard it with CASE WHEN",
        ) from error


def _first_sentence(error: Exception, described: StatementFailed) -> str:
    from pyspark.errors import PySparkException

    message = error.getMessage() if isinstance(error, PySparkException) else described.found
    return str(message or described).split(". ")[0].splitlines()[0]


def _numbers(spark: SparkSession, table: pa.Table, where: Expr) -> pa.Array:
    """The numbers of the rows for which the condition is true, ascending."""
    named = referenced(where)
    # The tree spells columns as the schema does, whatever case was typed.
    used = [name for name in table.column_names if name in named]
    number = "row"
    while number.lower() in (name.lower() for name in used):
        number += "_"
    shown = table.select(used).append_column(number, pa.array(range(table.num_rows), pa.int64()))
    found: Any = (
        spark.createDataFrame(shown).filter(to_spark_sql(where)).select(f"`{number}`").toArrow()
    )
    return found.column(0).combine_chunks().sort()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _session() -> SparkSession:
    from pyspark import SparkContext

    from tandem.spark.runtime.jvm import LocalJvm
    from tandem.spark.runtime.session import build_conf, session

    if SparkContext._active_spark_context is None:
        # We report errors, once; the JVM's log does not repeat them.
        conf = {**build_conf(), "spark.log.level": "OFF"}
        LocalJvm("tandem-scan", conf).context()
    return session("tandem-scan")
