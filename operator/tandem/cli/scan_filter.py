"""`tandem scan --where`: Spark alone evaluates the condition.

Our reader reads the rows. Spark, in this process, gets the columns that the condition refers to,
and returns row numbers; the values that are printed never pass through it.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.errors import StatementFailed
from tandem.statements import parse_where, to_spark_sql
from tandem.statements.statement import referenced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandem.delta.log.snapshot import Snapshot

ROWS_AT_ONCE = 500_000
"""Rows that Spark gets at a time: few enough to bound memory, and enough to outweigh the cost of a
small job."""

ReadBatches = Callable[[Sequence[str] | None], tuple[pa.Schema, Iterable[pa.RecordBatch]]]


def matching(
    snapshot: Snapshot, read: ReadBatches, *, columns: Sequence[str] | None, where: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of the rows for which `where` is true.

    Args:
        read: reads the rows of these columns, of all columns for None.

    Raises:
        InvalidStatement: before anything is read. StatementFailed: while batches are taken.
        SparkMissing.
    """
    condition = parse_where(where, snapshot.metadata.schema_string, resource="--where", field="")
    # The tree spells columns as the schema does, whatever case was typed.
    used = [name for name in snapshot.schema.names if name in referenced(condition)]
    wanted = list(snapshot.schema.names if columns is None else columns)
    # The requested columns first, then those that only the condition needs.
    both = [*wanted, *(name for name in used if name not in wanted)]
    schema, batches = read(both)
    shown = pa.schema([schema.field(index) for index in range(len(wanted))])
    return shown, _filter(batches, used, to_spark_sql(condition), len(wanted))


def _filter(
    batches: Iterable[pa.RecordBatch], used: Sequence[str], sql: str, wanted: int
) -> Iterator[pa.RecordBatch]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tandem.spark.runtime.control import translate

    spark: SparkSession | None = None
    try:
        for rows in _gathered(batches):
            spark = spark or _session()
            try:
                numbers = _numbers(spark, rows, used, sql)
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
            yield from rows.select(range(wanted)).take(numbers).to_batches()
    finally:
        if spark is not None:
            spark.stop()


def _first_sentence(error: Exception, described: StatementFailed) -> str:
    from pyspark.errors import PySparkException

    message = error.getMessage() if isinstance(error, PySparkException) else described.found
    return str(message or described).split(". ")[0].splitlines()[0]


def _numbers(spark: SparkSession, rows: pa.Table, used: Sequence[str], sql: str) -> pa.Array:
    """The numbers of the rows for which the condition is true, ascending."""
    number = "row"
    while number.lower() in (name.lower() for name in used):
        number += "_"
    shown = rows.select(list(used)).append_column(
        number, pa.array(range(rows.num_rows), pa.int64())
    )
    found: Any = spark.createDataFrame(shown).filter(sql).select(f"`{number}`").toArrow()
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
    from tandem.spark.runtime.session import build_conf, launch_environment, quiet_session

    # We report errors, once; neither the JVM's log nor PySpark's repeats them.
    conf = {**build_conf(), "spark.log.level": "OFF"}
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    os.environ.update(launch_environment())
    with warnings.catch_warnings():
        # PySpark warns about pandas while it is imported; nothing here uses pandas.
        warnings.simplefilter("ignore", FutureWarning)
        return quiet_session("tandem-scan", conf)
