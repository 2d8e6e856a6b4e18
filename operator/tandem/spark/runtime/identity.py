"""The values of identity columns in new rows, over Arrow and on Spark.

A row gets the value of its number. On Spark, a task of the frame that is numbered takes every n-th
number, so that tasks need not know how many rows others have; so does Delta's own
`GenerateIdentityValues`. The last value that a row got is reported, since that much of the table's
values has to be reserved before the rows are committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tandem.delta.identity import given_by_table, identity_columns, value_after
from tandem.jobs.formats import JobTable
from tandem.statements.tree import quote_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

NUMBER: Final = "__tandem_number"
"""The number of a row of a source."""
_ROW_BITS: Final = 33
"""Bits of `monotonically_increasing_id` below the number of the task."""


def lacking(table: JobTable, given: Collection[str], source: str) -> list[str]:
    """The identity columns whose values rows of a source lack. Raises: InvalidSpec if they have
    those of a column that allows none."""
    return given_by_table(identity_columns(table.schema_string), given, source=source)


def numbered_rows(
    rows: pa.Table, table: JobTable, columns: Collection[str], first: int = 0
) -> pa.Table:
    """Rows with the values of these identity columns, by numbers from `first` on. Raises:
    StatementFailed if there are not as many values."""
    count = rows.num_rows
    for name in columns if count else ():
        values = table.identity[name]
        _value(table, name, first + count - 1)
        found = values.first + (first + np.arange(count, dtype=np.int64)) * values.step
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), pa.array(found, pa.int64()))
    return rows


def last_values(table: JobTable, rows: Mapping[str, int]) -> dict[str, int]:
    """The last value that so many rows got in each column."""
    return {name: _value(table, name, n - 1) for name, n in rows.items() if n}


def _value(table: JobTable, name: str, number: int) -> int:
    """The value of the row with this number, from 0 on. Raises: StatementFailed for none."""
    values = table.identity[name]
    return value_after(name, values.first, values.step, number)


def number_of(rows: DataFrame) -> Column:
    """The number of each row of a frame that is read in tasks that are known beforehand."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    tasks = rows.rdd.getNumPartitions()
    id_ = F.monotonically_increasing_id()
    within = id_.bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
    return within * F.lit(tasks) + F.shiftright(id_, _ROW_BITS)


def value_of(table: JobTable, name: str, number: Column) -> Column:
    """The value of the row with this number. Spark raises for one beyond 64 bits. Raises:
    StatementFailed if the first one is."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    return F.lit(_value(table, name, 0)) + number * F.lit(table.identity[name].step)


class LastValues:
    """Observes which value is the last of each identity column, while Spark writes rows."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._observation: Observation | None = None

    def watch(self, rows: DataFrame, values: Mapping[str, Column]) -> DataFrame:
        """The rows; `values` are those of the table's that each of them gets by column, NULL for
        none."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        if not values:
            return rows
        self._observation = Observation()
        found = []
        for name, value in values.items():
            of = F.max if self._table.identity[name].step > 0 else F.min
            found.append(of(value).alias(name))
        return rows.observe(self._observation, *found)

    def give(self, rows: DataFrame, columns: Collection[str]) -> DataFrame:
        """The rows of a source with values in these columns, where they have none. Spark raises for
        a row that has one in a column that allows none."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        if not columns:
            return rows
        known = identity_columns(self._table.schema_string)
        rows = rows.withColumn(NUMBER, number_of(rows))
        given = {name: F.col(quote_name(name)) for name in columns}
        values = {
            name: F.when(column.isNull(), value_of(self._table, name, F.col(NUMBER)))
            for name, column in given.items()
        }
        rows = self.watch(rows, values)
        for name, column in given.items():
            refused = (
                f"{name} is an identity column, and a row of the source has a value of its own"
            )
            own = column if known[name].explicit else F.raise_error(F.lit(refused)).cast("bigint")
            rows = rows.withColumn(name, F.when(column.isNull(), values[name]).otherwise(own))
        return rows.drop(NUMBER)

    def found(self) -> dict[str, int]:
        """The last value of each column of which there is one, once the rows are written."""
        if self._observation is None:
            return {}
        seen: dict[str, Any] = self._observation.get
        return {name: int(value) for name, value in seen.items() if value is not None}
