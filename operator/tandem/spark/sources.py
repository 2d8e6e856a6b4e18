"""What an ingest or a merge reads, as DataFrames: files listed and read through our store.

CSV and JSON are parsed by Spark, Parquet and Delta decoded by our reader; all bytes come through
`tandem.storage`, so that a source on S3 needs no Hadoop jar and no second credentials. Files of
one source may differ in columns: each group of alike files becomes a DataFrame of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.delta import dv
from tandem.delta.log import DeltaLog
from tandem.delta.parquet import DataFileReader, TableFormat
from tandem.delta.scan import check_rows
from tandem.errors import InvalidSpec, ObjectNotFound, StorageError
from tandem.spark.control import Control
from tandem.spark.job import InputFile, MergeJob
from tandem.spark.job import Table as JobTable
from tandem.spark.source_options import SourceJob, checked, place, source_job, storage_options
from tandem.spark.statement import read_rows
from tandem.storage import ObjectMeta, Store, open_store
from tandem.storage.paths import canonical_location, split_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class Source:
    """An opened source: its files as seen now, in order of path."""

    store: Store
    options: Mapping[str, str]
    files: tuple[ObjectMeta, ...]


def open_source(control: Control) -> Source:
    """List the job's source. Raises: as `listed`."""
    table, job = control.spec.table, source_job(control.spec)
    return listed(
        job.source_location,
        storage_options(job.source_location, table.location, table.storage_options),
        field=f"{place(job)}.location",
    )


def listed(location: str, options: Mapping[str, str], *, field: str) -> Source:
    """List what lies at a location: a file or a folder. Names that begin with `_` or `.` are left
    out, as Spark does.

    Args:
        options: of its store.
        field: where the location stands in its resource.
    Raises: InvalidSpec if there is nothing, or a folder of partitions; StorageError.
    """
    root = canonical_location(location, field=field)
    parent, _, name = root.rpartition("/")
    if name and urlsplit(root).path.strip("/"):
        # The root of a local disk is no URL that ends in a slash.
        store = open_store(parent if not parent.endswith("//") else f"{parent}/", options)
        decoded = split_location(root)[2].rpartition("/")[2]
        try:
            return Source(store, options, (store.head(decoded),))
        except ObjectNotFound:
            pass  # a folder, then
    store = open_store(root, options)
    files = tuple(
        meta
        for meta in store.list("")
        if meta.size and not any(part.startswith(("_", ".")) for part in meta.path.split("/"))
    )
    partitioned = next((m.path for m in files if "=" in m.path.rpartition("/")[0]), "")
    if partitioned:
        raise InvalidSpec(
            "a source's folders must not hold values",
            field=field,
            found=f"{partitioned} in {location}",
            expected="files that hold all of their columns",
            remedy="Ingest each of the folders by itself, or make the source a Delta table",
        )
    if not files:
        raise InvalidSpec(
            "the source is not there, or is empty",
            field=field,
            found=f"no files at {location}",
            expected="a file, or a folder of files",
            remedy="Correct the location",
        )
    return Source(store, options, files)


def read(
    control: Control,
    spark: SparkSession,
    schema: StructType,
    *,
    source: Source | None = None,
    version: int | None = None,
) -> list[DataFrame]:
    """The source's rows, all as the source has them; CSV as texts.

    Args:
        schema: the table's. Fields of JSON that it has are read with its types.
        source, version: what to read, if not what is there now.
    Raises: InvalidSpec, StatementFailed, StorageError; and what Spark raises.
    """
    job = source_job(control.spec)
    options = checked(job.source_format, job.source_options, place(job))
    if job.source_format == "Delta":
        return [_delta(control, spark, job, job.source_version if version is None else version)]
    source = open_source(control) if source is None else source
    match job.source_format:
        case "Parquet":
            return list(_parquet(control, spark, source))
        case "Csv":
            return list(_csv(control, spark, source, options, schema))
        case _:
            return [_json(control, spark, source, options, schema)]


def _parquet(control: Control, spark: SparkSession, source: Source) -> Iterator[DataFrame]:
    def footer(meta: ObjectMeta) -> tuple[pa.Schema, int]:
        opened = source.store.open_input
        try:
            with (
                opened(meta.path) as f,
                pq.ParquetFile(f, coerce_int96_timestamp_unit="us") as file,
            ):
                return file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise StorageError(
                "a file of the source is no Parquet file",
                resource=meta.path,
                found=str(error)[:300],
                expected="Parquet",
            ) from error

    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "tandem-footers") as pool:
        footers = list(pool.map(footer, source.files))
    alike: dict[str, list[InputFile]] = {}
    for meta, (arrow, rows) in zip(source.files, footers, strict=True):
        input_ = InputFile(logged_path=quote(meta.path), size=meta.size, rows=rows)
        alike.setdefault(schema_string(arrow), []).append(input_)
    for text, inputs in alike.items():
        table = JobTable(
            location=source.store.location,
            version=0,
            table_id="",
            schema_string=text,
            partition_columns=(),
            configuration={},
            storage_options=dict(source.options),
        )
        names = [field["name"] for field in json.loads(text)["fields"]]
        yield read_rows(control, spark, inputs, names, 0, hidden=False, table=table)


def _csv(
    control: Control,
    spark: SparkSession,
    source: Source,
    options: Mapping[str, str],
    schema: StructType,
) -> Iterator[DataFrame]:
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    from tandem.spark.lines import TextFile

    job = source_job(control.spec)
    parsing = {k: v for k, v in options.items() if not k.endswith("Format") and k != "header"}
    encoding = parsing.pop("encoding", "utf-8")
    alike: dict[tuple[str, ...], list[TextFile]] = {}
    header = options.get("header", "false").lower() == "true"
    for meta in source.files:
        first, skip = _first_line(source.store, meta.path, encoding, parsing.get("comment", ""))
        if first is None:
            continue
        lone = spark.createDataFrame([(first,)], T.StructType([T.StructField("v", T.StringType())]))
        [row] = spark.read.options(**parsing).csv(lone).collect()
        if header:
            names = tuple("" if name is None else name for name in row)
        elif len(row) != len(schema.names):
            raise InvalidSpec(
                "a CSV source without a header has another number of columns",
                resource=job.source_location,
                field=f"{place(job)}.options.header",
                found=len(row),
                expected=str(len(schema.names)),
            )
        else:
            names, skip = tuple(schema.names), 0
        alike.setdefault(names, []).append(TextFile(path=meta.path, size=meta.size, skip=skip))
    for names, files in alike.items():
        check_spelling(names, job.source_location)
        # Everything as text first: casts then say which value does not fit.
        texts = T.StructType([T.StructField(name, T.StringType()) for name in names])
        reader = spark.read.options(**{**parsing, "mode": "FAILFAST"}).schema(texts)
        lines = _lines(control, spark, source, files, encoding)
        if len(names) == 1:
            lines = _whole_values(lines, parsing.get("quote", '"'))
        yield reader.csv(lines)


def _first_line(store: Store, path: str, encoding: str, comment: str) -> tuple[str | None, int]:
    """The first line that says something, and how many lines there are up to it."""
    from tandem.spark.lines import read_lines

    count = 0
    for lines in read_lines(store, path, encoding):
        for line in lines:
            count += 1
            if line.strip() and not (comment and line.startswith(comment)):
                return line, count
    return None, count


def _whole_values(lines: DataFrame, mark: str) -> DataFrame:
    """Refuse a quoted value that goes on in the next line: with more columns the parser notices
    by their number, with one it would make two values of it."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    if not mark:
        return lines
    text = F.trim(F.col("value"))
    cut = text.startswith(mark) & ~(text.endswith(mark) & (F.length(text) > 1))
    said = "a quoted value goes over several lines, which is not read from Csv"
    return lines.select(
        F.when(cut, F.raise_error(F.lit(said)).cast("string"))
        .otherwise(F.col("value"))
        .alias("value")
    )


def _json(
    control: Control,
    spark: SparkSession,
    source: Source,
    options: Mapping[str, str],
    schema: StructType,
) -> DataFrame:
    from tandem.spark.fit import check_columns, spelled, typed_where_known
    from tandem.spark.lines import TextFile

    job = source_job(control.spec)
    parsing = dict(options)
    encoding = parsing.pop("encoding", "utf-8")
    files = [TextFile(path=meta.path, size=meta.size) for meta in source.files]
    lines = _lines(control, spark, source, files, encoding)
    reader = spark.read.options(**{**parsing, "mode": "FAILFAST"})
    # The parser drops fields that its schema lacks, and knows no other case: look first.
    inferred = reader.json(lines).schema
    if isinstance(job, MergeJob):
        typed = typed_where_known(inferred, schema, job.source_location, place(job))
        return reader.schema(typed).json(lines)
    check_columns(inferred, schema, job.source_location)
    return reader.schema(spelled(inferred, schema)).json(lines)


def _lines(
    control: Control,
    spark: SparkSession,
    source: Source,
    files: Sequence[Any],
    encoding: str,
) -> DataFrame:
    from tandem.spark.datasource import put_work
    from tandem.spark.lines import NAME, LinesSource, LinesWork

    spark.dataSource.register(LinesSource)
    work = LinesWork(
        location=source.store.location,
        storage_options=dict(source.options),
        files=tuple(files),
        encoding=encoding,
    )
    options = put_work(control, work, 0)
    return spark.read.format(NAME).options(**options).load()


def _delta(control: Control, spark: SparkSession, job: SourceJob, version: int | None) -> DataFrame:
    own = control.spec.table
    options = storage_options(job.source_location, own.location, own.storage_options)
    store = open_store(job.source_location, options)
    snapshot = DeltaLog(store).snapshot(version)
    check_rows(snapshot)
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
        with DataFileReader(store, add.path, format_, columns=()) as reader:
            rows = reader.num_rows
        inputs.append(
            InputFile(
                logged_path=add.logged_path,
                size=add.size,
                rows=rows,
                dv=dv.to_base64(dead) if dead else "",
                partition_values=dict(add.partition_values),
            )
        )
    return read_rows(control, spark, inputs, snapshot.schema.names, 0, hidden=False, table=table)


def check_spelling(names: Sequence[str], location: str) -> None:
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in lowered if lowered.count(name) > 1})
    if twice:
        raise InvalidSpec(
            "a column occurs twice in the source",
            resource=location,
            field="spec.source",
            found=", ".join(twice),
            expected="names that differ in more than their case",
        )


def schema_string(schema: pa.Schema) -> str:
    """A Parquet file's schema as a Delta schema, all nullable. Raises: InvalidSpec for a type
    that Delta has no word for."""
    check_spelling(schema.names, "the source")
    fields = [_field(field) for field in schema]
    return json.dumps({"type": "struct", "fields": fields})


def _field(field: pa.Field) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _type(field.type, field.name),
        "nullable": True,
        "metadata": {},
    }


def _type(type_: Any, column: str) -> Any:
    is_ = pa.types
    if is_.is_dictionary(type_):
        return _type(type_.value_type, column)
    if is_.is_struct(type_):
        return {"type": "struct", "fields": [_field(child) for child in type_]}
    if is_.is_list(type_) or is_.is_large_list(type_):
        element = _type(type_.value_type, column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if is_.is_map(type_):
        return {
            "type": "map",
            "keyType": _type(type_.key_type, column),
            "valueType": _type(type_.item_type, column),
            "valueContainsNull": True,
        }
    if is_.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if is_.is_decimal(type_) and type_.precision <= 38:
        return f"decimal({type_.precision},{type_.scale})"
    names: tuple[tuple[Any, str], ...] = (
        (is_.is_boolean, "boolean"),
        (is_.is_int8, "byte"),
        (lambda t: is_.is_int16(t) or is_.is_uint8(t), "short"),
        (lambda t: is_.is_int32(t) or is_.is_uint16(t), "integer"),
        (lambda t: is_.is_int64(t) or is_.is_uint32(t), "long"),
        (is_.is_uint64, "decimal(20,0)"),
        (lambda t: is_.is_float32(t) or is_.is_float16(t), "float"),
        (is_.is_float64, "double"),
        (lambda t: is_.is_string(t) or is_.is_large_string(t), "string"),
        (lambda t: is_.is_binary(t) or is_.is_large_binary(t), "binary"),
        (is_.is_fixed_size_binary, "binary"),
        (is_.is_date, "date"),
        (is_.is_null, "string"),
    )
    for test, name in names:
        if test(type_):
            return name
    raise InvalidSpec(
        "a column of the source has a type that a table cannot have",
        resource="the source",
        field=column,
        found=str(type_),
        remedy="Cast the column before the ingest",
    )
