"""The scope of a replace as a condition on the rows of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tandem.jobs.formats import RowScope
from tandem.spark.runtime.names import quoted_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, StructField, StructType

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
                F.coalesce(F.col(quoted_identifier(name)).cast("string"), F.lit("NULL")),
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
        time = F.col(quoted_identifier(field.name))
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

    column = F.col(quoted_identifier(field.name))
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
