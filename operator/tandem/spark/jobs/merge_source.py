"""The source of a merge as one DataFrame, named `s` in its expressions.

Columns of CSV and JSON that the table has by name are read with the table's types, as an ingest
does; others are strings (CSV), or have the type that Spark infers (JSON). Parquet and Delta have
their own types. Files may differ in columns: a column that a file lacks is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from tandem.errors import InvalidSpec
from tandem.jobs.formats import SourceJob
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.listing import ListedSource, check_unique_names
from tandem.spark.runtime.names import quoted_identifier
from tandem.spark.sources import readers
from tandem.spark.sources.options import check_option_names, source_job
from tandem.spark.sources.schema_alignment import by_name
from tandem.spark.sources.source_pin import SourcePin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def read(
    control: Control,
    spark: SparkSession,
    schema: StructType,
    pin: SourcePin,
    source: ListedSource | None,
) -> DataFrame:
    """The pinned source. `schema` is the table's.

    Raises: InvalidSpec, StatementFailed, StorageError; and Spark's errors.
    """
    job = source_job(control.spec)
    found = readers.read(control, spark, schema, source=source, version=pin.version)
    frames = [rows.frame for rows in found]
    if not frames:
        raise InvalidSpec(
            "the source has no columns",
            resource=job.source_location,
            field=f"{job.source_field}.location",
            found="files without a line",
            expected="a header, at least",
        )
    for frame in frames:
        check_unique_names(frame.schema.names, job.source_location)
        check_option_names(frame.schema.names, job)
    return frames[0] if len(frames) == 1 else _together(frames, schema, job)


def _together(frames: Sequence[DataFrame], schema: StructType, job: SourceJob) -> DataFrame:
    """All rows, each with the columns of all frames."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    table = {f.name.lower(): f.dataType for f in schema.fields}
    spelled: dict[str, str] = {}
    types: dict[str, DataType] = {}
    for frame in frames:
        for found in frame.schema.fields:
            key = found.name.lower()
            spelled.setdefault(key, found.name)
            if types.setdefault(key, found.dataType) == found.dataType:
                continue
            if key not in table:
                raise InvalidSpec(
                    "a column has different types in the files of the source",
                    resource=job.source_location,
                    field=job.source_field,
                    found=f"{found.name}: {types[key].simpleString()} and "
                    f"{found.dataType.simpleString()}",
                    expected="one type, for a column that the table does not have",
                )
            types[key] = table[key]
    whole = []
    for frame in frames:
        present = {f.name.lower(): f for f in frame.schema.fields}
        columns = []
        for key, name in spelled.items():
            own = present.get(key)
            if own is None:
                column = F.lit(None).cast(types[key])
            elif own.dataType == types[key]:
                column = F.col(quoted_identifier(own.name))
            else:
                column = by_name(
                    F.col(quoted_identifier(own.name)),
                    own.dataType,
                    types[key],
                    job.source_location,
                    name,
                )
            columns.append(column.alias(name))
        whole.append(frame.select(*columns))
    return reduce(lambda a, b: a.unionAll(b), whole)
