"""The rows of a small source in the columns of a table, without Spark, where that is proven equal.

Files are listed and read as for Spark, with the same refusals. What a text of CSV or JSON means is
defined by Spark's casts (`casts.py`); of those, the plain forms are converted here. Whatever else
there is, a column that does not fit above all, is left to Spark, which reports it best.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import arrow_schema
from tandem.delta.dv import from_base64
from tandem.errors import StorageError
from tandem.jobs.formats import JobTable
from tandem.spark.runtime.control import Control, job_table_format
from tandem.spark.runtime.identity import lacking, last_values, numbered_rows
from tandem.spark.runtime.listing import ListedSource, decoding_error, types_in
from tandem.spark.runtime.row_files import InputSplit, open_input
from tandem.spark.sources.csv_text import csv_columns
from tandem.spark.sources.options import check_option_names, checked, source_job
from tandem.spark.sources.readers import SourceFiles, delta_files, open_source, parquet_files
from tandem.spark.sources.text_records import RecordsWork, TextFile, records
from tandem.statements.local import NeedsSpark
from tandem.statements.local.kernels import BOUNDED
from tandem.statements.local.rules import filled
from tandem.storage import open_store

FILE_BYTES: Final = 64 << 20
MEMORY: Final = 128 << 20
"""A source of larger files, or that takes more memory, stays with Spark."""
_BATCH_ROWS: Final = 65_536
_SPARK_ROWS: Final = 10_000
"""Rows that Spark hands to a task at once: of these, the first column with an error is named."""
_BATCH_BYTES: Final = 16 << 20

_YEAR = r"[1-9]\d{3}-\d{2}-\d{2}"
_TIME = rf"{_YEAR}[ T]\d{{2}}:\d{{2}}:\d{{2}}(\.\d{{1,6}})?"
_NUMBER = r"-?\d+(\.\d+)?([eE][+-]?\d{1,3})?"
_PLAIN: Final[Mapping[str, str]] = {
    "boolean": "true|false",
    "byte": r"-?\d{1,3}",
    "short": r"-?\d{1,5}",
    "integer": r"-?\d{1,10}",
    "long": r"-?\d{1,18}",
    "float": _NUMBER,
    "double": _NUMBER,
    "date": _YEAR,
    "timestamp": _TIME + "Z?",
    "timestamp_ntz": _TIME,
}
"""Texts whose value is beyond doubt, by the type of their column."""
_FORMATS: Final = frozenset({"dateFormat", "timestampFormat", "timestampNTZFormat"})


def load(
    control: Control,
    table: JobTable,
    names: Sequence[str],
    *,
    required: Sequence[str] = (),
) -> tuple[pa.Table, ListedSource | None, dict[str, int]]:
    """All rows of the job's source; its files, None for a Delta table; and the last value that they
    got in each identity column.

    Args:
        table, names: the columns that the rows get, by logical name. Those that the source lacks
            have their default, a generated column what its expression says, or NULL.
        required: columns that the source must have.
    Raises: NeedsSpark; InvalidSpec, StatementFailed, SourceUnreadable, StorageError.
    """
    job = source_job(control.spec)
    options = checked(job.source_format, job.source_options, job.source_field)
    wanted = {n: t for n, t in types_in(table.schema_string).items() if n in names}
    if BOUNDED in table.schema_string or _FORMATS & options.keys():
        raise NeedsSpark("a type, or a format, that only Spark knows")
    listed = None if job.source_format == "Delta" else open_source(control)
    if listed is not None:
        _require_small(file.size for file in listed.files)
    if job.source_format in ("Csv", "Json"):
        assert listed is not None
        found = _texts(control, listed, options, table, wanted, required)
    else:
        found = _decoded(control, listed, table, wanted, required)
    loose = job_table_format(table)
    schema = arrow_schema(replace(loose, schema=all_nullable(loose.schema)), names)
    tables, size = [schema.empty_table()], 0
    numbered = dict.fromkeys(table.identity, 0)
    sparse = job.source_format == "Json"
    for rows in found:
        have = {name.lower(): name for name in rows.column_names}
        columns = [
            rows[have[field.name.lower()]]
            if field.name.lower() in have
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        whole = pa.table(columns, schema=schema)
        if numbered:
            unknown = {name.lower() for name in numbered} if sparse else frozenset()
            given = [n for n in have if n not in unknown or not _without_values(rows[have[n]])]
            for name in lacking(table, given, job.source_location):
                whole = numbered_rows(whole, table, [name], numbered[name])
                numbered[name] += rows.num_rows
        tables.append(filled(whole, table.schema_string, have, sparse=sparse))
        size += tables[-1].nbytes
        if size > MEMORY:
            raise NeedsSpark("a source that takes much memory")
    return pa.concat_tables(tables), listed, last_values(table, numbered)


def _without_values(column: Any) -> bool:
    """Whether a column of JSON has no value. Raises: NeedsSpark if some rows have one."""
    if 0 < column.null_count < len(column):
        raise NeedsSpark("some rows without a value of an identity column, perhaps")
    return bool(column.null_count == len(column))


def read_files(files: SourceFiles) -> pa.Table:
    """The rows of files of a source with the same columns. Raises: NeedsSpark, if they are many,
    or not valid; SourceUnreadable, StorageError."""
    table = job_table_format(files.table)
    loose = replace(table, schema=all_nullable(table.schema))
    store = open_store(
        files.table.location,
        files.table.storage_options,
        allowed_prefixes=files.table.allowed_prefixes,
    )
    batches: list[pa.RecordBatch] = []
    size = 0
    for input_ in files.inputs:
        try:
            with open_input(store, loose, input_, files.names, exact=True) as reader:
                for batch in reader.batches(
                    dead=from_base64(input_.dv) if input_.dv else None,
                    batch_rows=max(1, min(_BATCH_ROWS, _BATCH_BYTES // reader.row_bytes)),
                ):
                    batches.append(batch)
                    size += batch.nbytes
                    if size > MEMORY:
                        raise NeedsSpark("a source that takes much memory")
        except StorageError as error:
            raise decoding_error(error) or error from error
    rows = pa.Table.from_batches(batches, arrow_schema(loose, files.names))
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        # A decimal of more digits than its type has, or a text that is not UTF-8.
        raise NeedsSpark(str(error)) from error
    return rows


def in_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows as a task of Spark gets them: some at a time."""
    size = max(1, rows.nbytes // max(1, rows.num_rows))
    yield from rows.combine_chunks().to_batches(max(1, min(_SPARK_ROWS, _BATCH_BYTES // size)))


def _require_small(sizes: Any) -> None:
    if sum(sizes) > FILE_BYTES:
        raise NeedsSpark("a large source")


def _decoded(
    control: Control,
    listed: ListedSource | None,
    table: JobTable,
    wanted: Mapping[str, Any],
    required: Sequence[str],
) -> Iterator[pa.Table]:
    """Rows of Parquet and Delta, whose columns must have the very types of the table's."""
    job = source_job(control.spec)
    if listed is None:
        groups = [delta_files(control.spec.table, job, job.source_version)]
    else:
        groups = parquet_files(listed, types_in(table.schema_string))
    _require_small(file.size for files in groups for file in files.inputs)
    types = {name.lower(): type_ for name, type_ in wanted.items()}
    # What is wrong with columns is said before what is wrong with rows.
    for files in groups:
        check_option_names(files.names, job)
        found = types_in(files.table.schema_string)
        _require_names(files.names, types, required)
        if any(types[name.lower()] != type_ for name, type_ in found.items()):
            raise NeedsSpark("columns that do not fit as they are")
        if any('"type": "map"' in json.dumps(type_) for type_ in found.values()):
            raise NeedsSpark("a map, in which Spark looks for a key that occurs twice")
    for files in groups:
        yield read_files(files)


def _require_names(names: Sequence[str], known: Mapping[str, Any], required: Sequence[str]) -> None:
    """Raises: NeedsSpark, if a column of the source is not `known` (by lower case), is there twice,
    or is missing."""
    lower = [name.lower() for name in names]
    if not set(lower) <= known.keys() or len(set(lower)) < len(lower):
        raise NeedsSpark("columns that the table lacks")
    if not {name.lower() for name in required} <= set(lower):
        raise NeedsSpark("a column is missing")


# Texts of CSV and JSON.


def _texts(
    control: Control,
    listed: ListedSource,
    options: Mapping[str, str],
    table: JobTable,
    wanted: Mapping[str, Any],
    required: Sequence[str],
) -> Iterator[pa.Table]:
    """Rows of CSV and JSON, file by file."""
    job = source_job(control.spec)
    if listed.folder_columns(types_in(table.schema_string)):
        raise NeedsSpark("columns in names of folders")
    types = {name.lower(): type_ for name, type_ in wanted.items()}
    is_json = job.source_format == "Json"
    headers: list[Sequence[str] | None] = [
        list(wanted)
        if is_json
        else csv_columns(listed, meta.path, options, list(wanted), job.source_field)
        for meta in listed.files
    ]
    # What is wrong with columns is said before what is wrong with rows.
    for names in filter(None, headers):
        check_option_names(names, job)
        _require_names(names, types, required)
        if not all(isinstance(types[name.lower()], str) for name in names):
            raise NeedsSpark("a type that only Spark converts")
    for meta, header in zip(listed.files, headers, strict=True):
        if header is None:
            continue
        work = RecordsWork(
            location=listed.store.location,
            storage_options=dict(listed.options),
            files=(TextFile(path=meta.path, size=meta.size),),
            text_format="Json" if is_json else "Csv",
            options=dict(options),
            wanted=_texts_named(header),
        )
        for columns, lines in records(listed.store, work, InputSplit(0)):
            if not lines:
                continue
            yield pa.table(
                [
                    value_of(texts, types[name.lower()])
                    for name, texts in zip(header, columns, strict=True)
                ],
                names=list(header),
            )


def _texts_named(names: Sequence[str]) -> str:
    """A schema, as Delta writes it, of texts."""
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
    return json.dumps({"type": "struct", "fields": fields})


def value_of(texts: Any, type_: Any) -> Any:
    """Texts as values of a column.

    Args:
        type_: as Delta writes it: a name, or the body of a nested type.
    Raises: NeedsSpark for a text that is not plain.
    """
    if type_ == "string":
        return texts
    try:
        if isinstance(type_, str) and type_.startswith("decimal("):
            precision, scale = map(int, type_[len("decimal(") : -1].split(","))
            whole = precision - scale
            fraction = rf"(\.\d{{0,{scale}}})?" if scale else ""
            _require_plain(texts, rf"-?\d{{1,{whole}}}{fraction}" if whole else rf"-?0?{fraction}")
            return texts.cast(pa.decimal128(precision, scale))
        plain = _PLAIN.get(type_) if isinstance(type_, str) else None
        if plain is None:
            raise NeedsSpark("a type that only Spark converts")
        _require_plain(texts, plain)
        return _CASTS.get(type_, _cast(type_))(texts)
    except pa.ArrowInvalid as error:
        raise NeedsSpark(str(error)) from error


def _require_plain(texts: Any, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(texts, f"^({pattern})$"), min_count=0).as_py():
        raise NeedsSpark("a text that only Spark converts")


def _cast(name: str) -> Any:
    types = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
    to = {**types, "boolean": pa.bool_(), "date": pa.date32()}.get(name)
    return lambda texts: texts.cast(to)


def _floats(to: pa.DataType) -> Any:
    def cast(texts: Any) -> Any:
        found = texts.cast(to)
        lost = pc.and_(pc.equal(found, 0), pc.match_substring_regex(texts, r"^[^eE]*[1-9]"))
        if pc.any(pc.or_(pc.invert(pc.is_finite(found)), lost)).as_py():
            raise NeedsSpark("a number that is too large, or too small")
        return found

    return cast


def _instants(texts: Any) -> Any:
    local = pc.replace_substring_regex(texts, "Z$", "").cast(pa.timestamp("us"))
    return pc.assume_timezone(local, "UTC")  # the zone of all sessions of jobs


_CASTS: Final[Mapping[str, Any]] = {
    "float": _floats(pa.float32()),
    "double": _floats(pa.float64()),
    "timestamp": _instants,
    "timestamp_ntz": lambda texts: texts.cast(pa.timestamp("us")),
}
