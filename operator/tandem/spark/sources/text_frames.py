"""CSV and JSON sources as DataFrames: determines their columns, and converts their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tandem.errors import InvalidSpec, StatementFailed
from tandem.jobs.formats import MergeJob
from tandem.remedies import HEADER, NO_HEADER
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.listing import (
    FolderColumn,
    ListedSource,
    check_unique_names,
    lacking,
    types_in,
)
from tandem.spark.sources.casts import cast_texts
from tandem.spark.sources.csv_text import CsvParser, CsvProblem, Dialect, lines_in
from tandem.spark.sources.json_text import JsonOptions
from tandem.spark.sources.options import check_option_names, source_job
from tandem.spark.sources.text_lines import TextFile, read_text
from tandem.spark.sources.text_records import (
    FILE,
    FOLDER,
    LINE,
    RecordsSource,
    RecordsWork,
    check_fields,
    place,
    with_begins,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def read_csv(
    control: Control,
    spark: SparkSession,
    source: ListedSource,
    options: Mapping[str, str],
    schema: StructType,
    *,
    places: bool = False,
) -> Iterator[tuple[DataFrame, Column | None, str]]:
    """For each group of files with the same header: its rows, the location of a row if `places`,
    and the path of the first file. Columns that the table lacks are strings."""
    job = source_job(control.spec)
    alike: dict[tuple[str, ...], list[TextFile]] = {}
    columns = source.folder_columns(types_in(schema.json()))
    for file, meta in enumerate(source.files):
        names, skip = csv_columns(
            source, meta.path, options, schema.names, job.source_field, columns
        )
        if names is None:
            continue
        texts = tuple(c.text(file, meta.path) for c in lacking(columns, names))
        alike.setdefault(names, []).append(
            TextFile(path=meta.path, size=meta.size, skip=skip, folders=texts)
        )
    for names, files in alike.items():
        wanted = _with_types(names, schema)
        outside = _Outside(lacking(columns, names), schema)
        rows = _records(
            control, spark, source, files, "Csv", options, wanted, outside, places=places
        )
        yield *rows, files[0].path


def csv_columns(
    source: ListedSource,
    path: str,
    options: Mapping[str, str],
    table: Sequence[str],
    field: str,
    folders: Sequence[FolderColumn] = (),
) -> tuple[tuple[str, ...] | None, int]:
    """The names of the columns of a file, None for one without a row; and the number of lines of
    its header.

    Args:
        table: the table's columns, which a file without a header has in this order, without those
            that come from `folders`.
        field: the field of the resource that describes the source.
    Raises: InvalidSpec, StatementFailed, SourceUnreadable, StorageError.
    """
    first, skip = _first_row(source, path, options, Dialect.of(options))
    if first is None:
        return None, 0
    if options.get("header", "false").lower() == "true":
        return _header(first, f"{source.store.location}/{path}"), skip
    below = {column.name.lower() for column in folders if column.overrides}
    all_ = {column.name.lower() for column in folders}
    table = [name for name in table if name.lower() not in below]
    if len(first) != len(table):
        shorter = [name for name in table if name.lower() not in all_]
        if len(first) == len(shorter):
            table = shorter
    if len(first) != len(table):
        raise InvalidSpec(
            "a CSV source without a header has a different number of columns",
            resource=f"{source.store.location}/{path}",
            field=f"{field}.options.header",
            found=len(first),
            expected=str(len(table)),
            remedy=f"If the first line names the columns, {HEADER.in_resource}",
        )
    if "header" not in options and _names_columns(first, table):
        raise InvalidSpec(
            "the first line of a CSV source names columns, and would be read as a row",
            resource=f"{source.store.location}/{path}",
            field=f"{field}.options.header",
            found=", ".join(str(value) for value in first)[:300],
            expected="the option header",
            remedy=f"If the first line names the columns, {HEADER.in_resource}; "
            f"{NO_HEADER.in_resource}",
        )
    return tuple(table), 0


def _names_columns(row: Sequence[str | None], table: Sequence[str]) -> bool:
    """Whether more than half of the values are names of the table's columns."""
    known = {name.lower() for name in table}
    names = sum(value is not None and value.strip().lower() in known for value in row)
    return 2 * names > len(row)


def read_json(
    control: Control,
    spark: SparkSession,
    source: ListedSource,
    options: Mapping[str, str],
    schema: StructType,
    *,
    places: bool = False,
) -> tuple[DataFrame, Column | None]:
    """For an ingest the table's columns; for a merge those of the source, with the table's types if
    it has them, else with those that Spark infers. Also the location of a row if `places`."""
    columns = source.folder_columns(types_in(schema.json()))
    files = [
        TextFile(
            path=meta.path,
            size=meta.size,
            folders=tuple(c.text(file, meta.path) for c in columns),
        )
        for file, meta in enumerate(source.files)
    ]
    wanted = schema
    if isinstance(source_job(control.spec), MergeJob):
        wanted = _inferred(control, spark, source, files, options, schema)
    outside = _Outside(columns, schema)
    return _records(control, spark, source, files, "Json", options, wanted, outside, places=places)


def _first_row(
    source: ListedSource, path: str, options: Mapping[str, str], dialect: Dialect
) -> tuple[list[str | None] | None, int]:
    """The first row, and the number of lines up to its end."""
    parser = CsvParser(dialect, ())
    try:
        for text in read_text(source.store, path, options.get("encoding", "utf-8")):
            found = parser.first(text)
            if found is not None:
                return found
        parser.close()
    except CsvProblem as problem:
        raise StatementFailed(
            problem.message,
            resource=place(path, problem.line, problem.column),
            found=problem.found,
            expected=problem.expected,
            remedy="Correct the source, or its options",
        ) from problem
    return None, 0


def _header(row: Sequence[str | None], file: str) -> tuple[str, ...]:
    names = tuple("" if name is None else name for name in row)
    if "" in names:
        raise InvalidSpec(
            "a column of the header has no name",
            resource=file,
            found=", ".join(names)[:300],
            expected="a name for each column",
            remedy="Correct the header, or the separator (option sep)",
        )
    check_unique_names(names, file)
    return names


def _with_types(names: Sequence[str], schema: StructType) -> StructType:
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    known: dict[str, DataType] = {f.name.lower(): f.dataType for f in schema.fields}
    return T.StructType([T.StructField(n, known.get(n.lower(), T.StringType())) for n in names])


def _inferred(
    control: Control,
    spark: SparkSession,
    source: ListedSource,
    files: Sequence[TextFile],
    options: Mapping[str, str],
    schema: StructType,
) -> StructType:
    from pyspark.errors import AnalysisException
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.datasource import put_work
    from tandem.spark.sources.text_lines import NAME, LinesSource, LinesWork

    spark.dataSource.register(LinesSource)
    work = LinesWork(
        location=source.store.location,
        storage_options=dict(source.options),
        files=tuple(files),
        encoding=options.get("encoding", "utf-8"),
    )
    lines = spark.read.format(NAME).options(**put_work(control, work, 0)).load()
    # Malformed text is an error when it is read, with its location.
    lenient = {k: v for k, v in options.items() if k != "encoding"}
    corrupt = f"{FILE}_corrupt"
    reader = spark.read.options(**lenient).option("columnNameOfCorruptRecord", corrupt)
    known = {f.name.lower(): f.dataType for f in schema.fields}
    fields: dict[str, T.StructField] = {}
    try:
        inferred = reader.json(lines).schema.fields
    except AnalysisException:
        # Reports objects with a duplicate field, whose location Spark does not report.
        _require_one_of_each(source, files, options)
        raise
    unknown = [f for f in inferred if f.name.lower() not in known]
    if any(_repeats(f.dataType) for f in unknown):
        _require_one_of_each(source, files, options)
        raise InvalidSpec(
            "a field inside an object is spelled in two ways",
            resource=source_job(control.spec).source_location,
            field=source_job(control.spec).source_field,
            found=", ".join(f.name for f in unknown if _repeats(f.dataType)),
            expected="one spelling",
            remedy="Spell the field in one way in the source",
        )
    for found in inferred:
        key = found.name.lower()
        if found.name == corrupt:
            continue
        if key not in known and key in fields and fields[key].name != found.name:
            raise InvalidSpec(
                "a field that the table does not have is spelled in two ways",
                resource=source_job(control.spec).source_location,
                field=source_job(control.spec).source_field,
                found=f"{fields[key].name}, {found.name}",
                expected="one spelling",
                remedy="Spell the field in one way in the source",
            )
        fields.setdefault(key, T.StructField(found.name, known.get(key, found.dataType)))
    return T.StructType(list(fields.values()))


def _repeats(type_: DataType) -> bool:
    """Whether a struct at some level has a field twice, in any case."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    match type_:
        case T.StructType():
            names = [f.name.lower() for f in type_.fields]
            return len(set(names)) < len(names) or any(_repeats(f.dataType) for f in type_.fields)
        case T.ArrayType():
            return _repeats(type_.elementType)
        case _:
            return False


def _require_one_of_each(
    source: ListedSource, files: Sequence[TextFile], options: Mapping[str, str]
) -> None:
    """Check that no object has a field twice, in any case. Raises: StatementFailed."""
    lenient = JsonOptions.of(options)
    for file in files:
        line = 1
        for text in read_text(source.store, file.path, options.get("encoding", "utf-8")):
            check_fields(text, line, lenient, file.path)
            line += lines_in(text)


@dataclass(frozen=True)
class _Outside:
    """What comes from names of folders, and the schema of the table."""

    columns: Sequence[FolderColumn]
    schema: StructType


def _records(
    control: Control,
    spark: SparkSession,
    source: ListedSource,
    files: Sequence[TextFile],
    form: Literal["Csv", "Json"],
    options: Mapping[str, str],
    wanted: StructType,
    outside: _Outside,
    *,
    places: bool,
) -> tuple[DataFrame, Column | None]:
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.datasource import put_work
    from tandem.spark.sources.text_records import RECORDS_SOURCE

    own = {name.lower() for name in wanted.names}
    more = [c.name for c in outside.columns if c.name.lower() not in own]
    every = T.StructType([*wanted.fields, *_with_types(more, outside.schema).fields])
    check_option_names(every.names, source_job(control.spec))
    spark.dataSource.register(RecordsSource)
    dialect = Dialect.of(options) if form == "Csv" else None
    encoding = options.get("encoding", "utf-8")
    begun = with_begins(spark, source.store.location, source.options, files, encoding, dialect)
    work = RecordsWork(
        location=source.store.location,
        storage_options=dict(source.options),
        files=begun,
        text_format=form,
        options=dict(options),
        wanted=wanted.json(),
    )
    hidden = [
        *(T.StructField(f"{FOLDER}{n}", T.StringType()) for n in range(len(outside.columns))),
        T.StructField(FILE, T.IntegerType()),
        T.StructField(LINE, T.LongType()),
    ]
    texts = T.StructType(
        [T.StructField(f.name, _texts(f.dataType)) for f in wanted.fields] + hidden
    )
    reader = spark.read.format(RECORDS_SOURCE).schema(texts).options(**put_work(control, work, 0))
    paths = [file.path for file in files]
    return cast_texts(
        reader.load(),
        every,
        paths,
        options,
        json=form == "Json",
        places=places,
        folders=outside.columns,
    )


def _texts(type_: DataType) -> DataType:
    """The same shape, with strings at the leaves."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    match type_:
        case T.StructType():
            return T.StructType([T.StructField(f.name, _texts(f.dataType)) for f in type_.fields])
        case T.ArrayType():
            return T.ArrayType(_texts(type_.elementType), True)
        case T.MapType():
            return T.MapType(T.StringType(), _texts(type_.valueType), True)
        case _:
            return T.StringType()
