"""Identifies the rows of a merge's source by their content: two hashes of all columns.

The hashes are the same in every round, since the source is pinned, and do not depend on the order
of reading. Two different rows must not have the same hashes, or the engine would skip an insert
because it takes the row for an existing one: Spark's hash ignores nulls, so the set of null columns
is hashed, too; it treats texts that are equal by a collation as one, so their bytes are hashed; and
-0.0 as 0.0, so for each floating point number it is hashed whether it is -0.0. `arrow_row_hash`
computes the same without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.jobs.formats import SOURCE_IDS
from tandem.spark.runtime.names import quoted_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


def with_identity(source: DataFrame) -> DataFrame | None:
    """The source with two more columns; None if it has a column whose values cannot be compared
    reliably, such as a map."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    fields = sorted(source.schema.fields, key=lambda field: field.name)
    known: list[Column] = []
    for field in fields:
        values = _values(field)
        if values is None:
            return None
        known += values
    nulls = [F.col(quoted_identifier(field.name)).isNull() for field in fields]
    return source.select(
        "*", *(F.xxhash64(F.lit(name), *nulls, *known).alias(name) for name in SOURCE_IDS)
    )


def _values(field: StructField) -> list[Column] | None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - as above

    column = F.col(quoted_identifier(field.name))
    if isinstance(field.dataType, T.StringType):
        return [column.cast("binary")]
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        return [column, column.cast("string") == F.lit("-0.0")]
    plain = (
        T.BooleanType,
        T.ByteType,
        T.ShortType,
        T.IntegerType,
        T.LongType,
        T.DecimalType,
        T.BinaryType,
        T.DateType,
        T.TimestampType,
        T.TimestampNTZType,
    )
    return [column] if isinstance(field.dataType, plain) else None
