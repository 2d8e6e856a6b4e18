"""The sources of operations: checks one, and pins the version of a Delta table.

The columns of a source are checked before a job starts, where the engine may read the source. That
is so without a cluster: jobs run on this machine, in this environment. An operator may have no
permission to read a source, so there its jobs find these errors. What is refused here would fail in
the job; what takes reading rows is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tandem.delta.identity import START, given_by_table, identity_columns
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import (
    AccessDenied,
    BucketNotFound,
    DataFileMissing,
    InvalidSpec,
    ObjectNotFound,
    SourceUnreadable,
    StatementFailed,
    TableNotFound,
    TandemError,
    VersionNotFound,
)
from tandem.jobs.formats import JobSpec, SourceJob
from tandem.operations import attempt_files
from tandem.operations.model import SourceAccess, Work
from tandem.remedies import HEADER_AND_SEP
from tandem.spark.runtime.listing import FolderColumn, ListedSource, lacking, list_source
from tandem.spark.sources.json_text import fields_of
from tandem.spark.sources.options import checked, storage_options
from tandem.spec.update import Source, SourceFormat
from tandem.statements.coercion import assignment_loss
from tandem.statements.types import Schema, SchemaColumn, SqlType, delta_name
from tandem.storage import allowed_locations, open_store

_MOST_FILES = 16
"""Files of a source whose columns are read."""
_MOST_JSON_BYTES = 1 << 20
"""The size of JSON sources that are read as a whole, since each line may have further fields."""
_Error = TypeVar("_Error", bound=TandemError)
_ABSENT = (BucketNotFound, ObjectNotFound, DataFileMissing, TableNotFound, VersionNotFound)
_UNREADABLE = (AccessDenied, SourceUnreadable, StatementFailed)


@dataclass(frozen=True)
class SourceContent:
    """What planning sees of a source: the columns of some of its files, and its size in bytes, None
    if it cannot be read now."""

    columns: Sequence[SourceColumns] = ()
    size: int | None = None


@dataclass(frozen=True)
class SourceColumns:
    """The columns of some files of a source. `all_known`: they may have no others."""

    path: str
    schema: Schema
    all_known: bool = True


def check_source(work: Work, source: Source, *, resource: str, field: str) -> None:
    """Check the options and the location of a source, which `field` of the resource describes.

    Raises: InvalidSpec, LocationNotAllowed.
    """
    checked(source.format.value, source.options, field)
    allowed_locations.require(
        source.location,
        work.table.allowed_prefixes,
        resource=resource,
        field=f"{field}.location",
    )


def version_of_source(work: Work, source: Source) -> int | None:
    """The version of a Delta source: all attempts read that of the first one. None for files."""
    if source.format is not SourceFormat.DELTA or source.version is not None:
        return source.version
    path = attempt_files.job(work.identity.operation_id, 1)
    first = attempt_files.load(work.table.store, path, JobSpec)
    if first is not None and isinstance(first.job, SourceJob):
        return first.job.source_version
    options = storage_options(source.location, work.table.location, work.table.storage_options)
    store = open_store(source.location, options, ceiling_s=work.table.ceiling_s)
    return DeltaLog(store).latest_version()


def check_loaded(
    work: Work,
    source: Source,
    *,
    resource: str,
    field: str,
    columns: Schema | None = None,
    besides: str = "that the table lacks",
) -> int | None:
    """Check that rows of a source fit the table, as far as names and types tell; returns the size
    of the source (`SourceContent.size`).

    Args:
        columns: those that the rows are for, if not all of the table.
        besides: what other columns are.
    Raises: InvalidSpec, also for a source that is not there.
    """
    table = _table(work) if columns is None else columns
    content = content_of(work, source, resource=resource, field=field, table=table)
    of_identity = identity_columns(work.snapshot.metadata.schema_string) if columns is None else {}
    for found in content.columns:
        _check(found, table, source, resource, field, besides)
        if source.format is not SourceFormat.JSON:  # where NULL may be meant
            given_by_table(of_identity, found.schema.names, source=found.path)
    return content.size


def content_of(
    work: Work, source: Source, *, resource: str, field: str, table: Schema | None = None
) -> SourceContent:
    """What is seen of a source; nothing if it cannot be read now. Columns of texts have the types
    of `table`, if not the table's own.

    Raises: InvalidSpec for a source that is not there, unless it may still come; SourceUnreadable
    for a file that is damaged or of another format; StatementFailed for bytes that are no text;
    AccessDenied.
    """
    access = work.table.source_access
    if access is SourceAccess.NONE:
        return SourceContent()
    options = storage_options(source.location, work.table.location, work.table.storage_options)
    try:
        return _content(table or _table(work), source, options, field)
    except _UNREADABLE as error:
        raise _of(error, resource) from error
    except InvalidSpec as error:
        if access is SourceAccess.MAY_COME and error.field == f"{field}.location":
            return SourceContent()
        raise _of(error, resource) from error
    except _ABSENT as error:
        if access is SourceAccess.MAY_COME:
            return SourceContent()
        raise InvalidSpec(
            "the source does not exist",
            resource=resource,
            field=f"{field}.location",
            found=source.location,
            expected="a table, a file, or a folder of files",
            remedy="Correct the location, or put the source there",
        ) from error
    except TandemError:
        return SourceContent()  # the job tries again, and reports it if it lasts


def _of(error: _Error, resource: str) -> _Error:
    """The error, said of the resource; the message names the file."""
    where = f"{error.resource}: " if error.resource else ""
    return type(error)(
        f"{where}{error.message}",
        resource=resource,
        field=error.field,
        found=error.found,
        expected=error.expected,
        remedy=error.remedy,
    )


def _table(work: Work) -> Schema:
    return Schema.from_json(work.snapshot.metadata.schema_string)


def _content(
    table: Schema, source: Source, options: Mapping[str, str], field: str
) -> SourceContent:
    if source.format is SourceFormat.DELTA:
        snapshot = DeltaLog(open_store(source.location, options)).snapshot(source.version)
        schema = Schema.from_json(snapshot.metadata.schema_string)
        return SourceContent([SourceColumns(source.location, schema)], snapshot.size_bytes)
    listed = list_source(source.location, options, field=f"{field}.location")
    columns = list(_columns(table, source, listed, field))
    return SourceContent(columns, sum(meta.size for meta in listed.files))


def _columns(
    table: Schema, source: Source, listed: ListedSource, field: str
) -> Iterator[SourceColumns]:
    files = listed.files[:_MOST_FILES]
    columns = listed.folder_columns({c.name: delta_name(c.type) for c in table.columns})
    if source.format is SourceFormat.PARQUET:
        from tandem.spark.runtime.listing import parquet_schema, schema_string

        for file, meta in enumerate(files):
            arrow, _ = parquet_schema(listed.store, meta.path)
            outside = _checked(lacking(columns, arrow.names), file, meta.path)
            yield SourceColumns(meta.path, Schema.from_json(schema_string(arrow, outside)))
        return
    given = checked(source.format.value, source.options, field)
    if source.format is SourceFormat.CSV:
        from tandem.spark.sources.csv_text import csv_columns

        for file, meta in enumerate(files):
            names = csv_columns(listed, meta.path, given, table.names, field, columns)
            if names is not None:
                outside = _checked(lacking(columns, names), file, meta.path)
                yield SourceColumns(meta.path, _with_folders(table, names, outside))
        return
    from tandem.spark.sources.text_files import read_text

    encoding = given.get("encoding", "utf-8")
    for file, meta in enumerate(files):
        text = next(iter(read_text(listed.store, meta.path, encoding)), "")
        outside = _checked(columns, file, meta.path)
        found = _with_folders(table, _fields(text), outside)
        yield SourceColumns(meta.path, found, all_known=False)
    if len(files) == len(listed.files) and sum(meta.size for meta in files) <= _MOST_JSON_BYTES:
        texts = (part for meta in files for part in read_text(listed.store, meta.path, encoding))
        schema = _whole(table, fields_of(texts))
        if schema is not None:
            own = {column.name.lower() for column in schema.columns}
            more = table.with_types([c.name for c in columns if c.name.lower() not in own])
            schema = Schema((*schema.columns, *more.columns))
            where = files[0].path if len(files) == 1 else source.location
            yield SourceColumns(where, schema)


def _checked(columns: Sequence[FolderColumn], file: int, path: str) -> Sequence[FolderColumn]:
    """Raises: StatementFailed for the name of a folder that is no value of its column."""
    for column in columns:
        column.text(file, path)
    return columns


def _with_folders(table: Schema, names: Sequence[str], outside: Sequence[FolderColumn]) -> Schema:
    """Columns of a text source, with those that come from names of folders."""
    own = {name.lower() for name in names}
    return table.with_types([*names, *(c.name for c in outside if c.name.lower() not in own)])


def _whole(table: Schema, fields: Mapping[str, str] | None) -> Schema | None:
    """The columns of a whole JSON source, if there is no doubt about them."""
    columns = []
    known = {column.name.lower(): column.type for column in table.columns}
    for name, inferred in (fields or {}).items():
        type_ = known.get(name.lower()) or (SqlType(inferred) if inferred else None)
        if type_ is None:
            return None
        columns.append(SchemaColumn(name, type_))
    spellings = {column.name.lower() for column in columns}
    return Schema(tuple(columns)) if columns and len(spellings) == len(columns) else None


def _fields(text: str) -> Sequence[str]:
    """The names of the fields of the first object, if it is there as a whole on a line."""
    try:
        first = json.loads(text.split("\n", 1)[0])
    except ValueError:
        return ()
    return tuple(first) if isinstance(first, dict) else ()


def _check(
    found: SourceColumns,
    table: Schema,
    source: Source,
    resource: str,
    field: str,
    besides: str,
) -> None:
    known = {column.name.lower(): column for column in table.columns}
    extra = [c.name for c in found.schema.columns if c.name.lower() not in known]
    csv = source.format is SourceFormat.CSV
    if extra:
        raise InvalidSpec(
            f"the source has columns {besides}",
            resource=resource,
            field=field,
            found=f"{', '.join(extra)} in {found.path}",
            expected=", ".join(table.names),
            remedy="Add the columns to the table, or leave them out of the source"
            + f"; if these are not column names, {HEADER_AND_SEP.in_resource}" * csv,
        )
    for column in found.schema.columns:
        wanted = known[column.name.lower()]
        if not (column.type.is_atomic and wanted.type.is_atomic):
            continue  # the job compares them field by field
        loss = assignment_loss(column.type, wanted.type)
        if loss:
            raise InvalidSpec(
                f"a column of the source has another type than the table's: {loss}",
                resource=resource,
                field=field,
                found=f"{column.name}: {column.type} in {found.path}",
                expected=str(wanted.type),
                remedy="Convert the column in the source",
            )
    given = {column.name.lower() for column in found.schema.columns}
    missing = [
        column.name
        for column in table.columns
        if not (column.nullable or START in column.metadata) and column.name.lower() not in given
    ]
    if missing and found.all_known:
        raise InvalidSpec(
            "the source lacks columns that must not be null",
            resource=resource,
            field=field,
            found=f"no {', '.join(missing)} in {found.path}",
            expected="a value for each of them",
            remedy="Add the columns to the source",
        )
