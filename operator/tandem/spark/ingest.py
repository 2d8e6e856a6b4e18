"""The ingest job: read a source, fit it to the table's schema, write it as few new files.

Columns are matched by name. A column that the source lacks becomes null if the table allows it;
one that the table lacks, and a value that does not fit its column, are errors: an ingest never
drops data silently. Parquet, CSV and JSON are read by Spark's own readers (local paths, or
whatever file systems the cluster has); a Delta source by our own, at its pinned version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tandem.delta import dv
from tandem.delta.log import DeltaLog
from tandem.delta.parquet import DataFileReader, TableFormat
from tandem.errors import InvalidSpec, StatementFailed
from tandem.spark.control import Control
from tandem.spark.job import IngestJob, InputFile, JobProgress, JobResult
from tandem.spark.job import Table as JobTable
from tandem.spark.statement import isolated, quoted, read_rows, table_schema, write_rows
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

MAX_FILES = 8
"""Tasks that write at once; each writes one file or more, cut at the target size."""


def run(control: Control, spark: SparkSession) -> None:
    """Do the job and publish its result.

    Raises:
        InvalidSpec: the source's columns do not fit the table's.
        StatementFailed: a value does not fit its column.
    """
    job = control.spec.job
    assert isinstance(job, IngestJob)
    with isolated(spark) as own:
        _ingest(control, own, job)


def _ingest(control: Control, spark: SparkSession, job: IngestJob) -> None:
    spec = control.spec
    control.progress(
        JobProgress(files_done=0, files_total=1, bytes_done=0, bytes_total=0, stage="Reading")
    )
    schema = table_schema(spec.table)
    source = _read(control, spark, job, schema)
    rows = source.select(*_fitted(source, schema, control, texts=job.source_format == "Csv"))
    rows = _few(rows)
    answer = write_rows(control, rows, job.target_file_size, 0)
    control.publish(
        JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            outputs=answer.outputs,
            rows_read=answer.rows,
            rows_written=sum(o.rows for o in answer.outputs),
        )
    )


def _read(control: Control, spark: SparkSession, job: IngestJob, schema: StructType) -> DataFrame:
    options = dict(job.source_options)
    path = _spark_path(job.source_location)
    match job.source_format:
        case "Parquet":
            return spark.read.options(**options).parquet(path)
        case "Csv":
            # Everything as text first: casts then say which value does not fit.
            found = spark.read.options(**{"mode": "FAILFAST", **options}).csv(path)
            if options.get("header", "false").lower() != "true":
                if len(found.columns) != len(schema.names):
                    raise InvalidSpec(
                        "a CSV source without a header has another number of columns",
                        resource=job.source_location,
                        field="spec.source.options.header",
                        found=len(found.columns),
                        expected=str(len(schema.names)),
                    )
                found = found.toDF(*schema.names)
            return found
        case "Json":
            reader = spark.read.options(**{"mode": "FAILFAST", **options})
            inferred = reader.json(path)
            _check_columns(inferred.columns, schema, job.source_location)
            present = {name.lower() for name in inferred.columns}
            wanted = type(schema)([f for f in schema.fields if f.name.lower() in present])
            return reader.schema(wanted).json(path)
        case "Delta":
            return _delta(control, spark, job)
        case other:
            raise InvalidSpec(
                "no such source format",
                field="spec.source.format",
                found=other,
                expected="Parquet, Csv, Json or Delta",
            )


def _spark_path(location: str) -> str:
    """Spark decodes no percent signs in plain paths; URLs of local files become those."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        from urllib.parse import unquote

        return unquote(parts.path)
    return location


def _delta(control: Control, spark: SparkSession, job: IngestJob) -> DataFrame:
    options = dict(control.spec.table.storage_options)
    store = open_store(job.source_location, options)
    snapshot = DeltaLog(store).snapshot(job.source_version)
    table = JobTable(
        location=store.location,
        version=snapshot.version,
        table_id=snapshot.metadata.id,
        schema_string=snapshot.metadata.schema_string,
        partition_columns=snapshot.metadata.partition_columns,
        configuration=dict(snapshot.metadata.configuration),
        storage_options=options,
    )
    format_ = TableFormat(snapshot.schema, snapshot.partition_columns, snapshot.configuration)
    inputs = []
    for add in snapshot.adds():
        dead = dv.load(store, add.deletion_vector) if add.deletion_vector else None
        inputs.append(
            InputFile(
                logged_path=add.logged_path,
                size=add.size,
                rows=_rows(store, add.path, format_),
                dv=dv.to_base64(dead) if dead else "",
                partition_values=dict(add.partition_values),
            )
        )
    return read_rows(control, spark, inputs, snapshot.schema.names, 0, hidden=False, table=table)


def _rows(store: Store, path: str, table: TableFormat) -> int:
    with DataFileReader(store, path, table, columns=()) as reader:
        return reader.num_rows


def _check_columns(names: list[str], schema: StructType, location: str) -> None:
    known = {name.lower() for name in schema.names}
    extra = [name for name in names if name.lower() not in known]
    if extra:
        raise InvalidSpec(
            "the source has columns that the table lacks",
            resource=location,
            field="spec.source",
            found=", ".join(extra),
            expected=", ".join(schema.names),
            remedy="Add the columns to the table, or leave them out of the source",
        )


def _fitted(
    source: DataFrame, schema: StructType, control: Control, *, texts: bool
) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    job = control.spec.job
    assert isinstance(job, IngestJob)
    _check_columns(source.columns, schema, job.source_location)
    present = {f.name.lower(): f for f in source.schema.fields}
    columns = []
    required = {f.name for f in control.table.schema if not f.nullable}
    for field in schema.fields:
        found = present.get(field.name.lower())
        if found is None:
            if field.name in required:
                raise InvalidSpec(
                    "the source lacks a column that must not be null",
                    resource=job.source_location,
                    field=field.name,
                )
            columns.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        if not texts and not _assignable(found.dataType, field.dataType):
            raise StatementFailed(
                "a column of the source has another type than the table's",
                resource=job.source_location,
                field=field.name,
                found=found.dataType.simpleString(),
                expected=field.dataType.simpleString(),
            )
        columns.append(F.col(quoted(found.name)).cast(field.dataType).alias(field.name))
    return columns


def _assignable(found: DataType, wanted: DataType) -> bool:
    """ANSI store assignment between atomic types: numbers to numbers, anything to text, a date
    to a timestamp. Nested types must be alike; Spark's cast checks their parts."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if found == wanted or isinstance(found, T.NullType):
        return True
    if isinstance(found, T.NumericType) and isinstance(wanted, T.NumericType):
        return True
    if isinstance(wanted, T.StringType):
        return isinstance(found, T.AtomicType) and not isinstance(found, T.BinaryType)
    times = (T.DateType, T.TimestampType, T.TimestampNTZType)
    if isinstance(found, times) and isinstance(wanted, times):
        return True
    nested = (T.StructType, T.ArrayType, T.MapType)
    return isinstance(found, nested) and type(found) is type(wanted)


def _few(rows: DataFrame) -> DataFrame:
    """A load is one segment: a handful of files, not one for every file of the source."""
    partitions = rows.rdd.getNumPartitions()
    return rows.coalesce(MAX_FILES) if partitions > MAX_FILES else rows
