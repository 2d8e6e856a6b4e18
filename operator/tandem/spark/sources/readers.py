"""The source of an ingest or a merge as DataFrames: files are listed and read through our store.

CSV and JSON are parsed by our own code, since an error must name file, line and column
(`text_records.py`), and cast by Spark; Parquet and Delta are decoded by our reader. All bytes come
through `tandem.storage`, so that a source on S3 needs no Hadoop jar and no second credentials.
Files of one source may differ in columns: each group of files with the same columns becomes a
separate DataFrame.

Pins a merge's source: all rounds and attempts of an operation read the same state.

The first driver that reads the source records its version (Delta), or its files with their sizes
and times; later drivers check that they are unchanged. A merge whose source has changed fails with
SourceChanged: it never mixes two states.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pydantic import ValidationError

from tandem.delta import dv
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import check_rows
from tandem.errors import (
    AlreadyExists,
    ManifestInvalid,
    ObjectNotFound,
    OutcomeUnknown,
    SourceChanged,
    StorageError,
    TandemError,
)
from tandem.jobs.formats import Format, InputFile, JobTable, SourceJob
from tandem.spark.runtime.control import Control, encode
from tandem.spark.runtime.frames import read_rows
from tandem.spark.runtime.listing import (
    ListedSource,
    decoding_error,
    lacking,
    list_source,
    parquet_schema,
    schema_string,
    types_in,
)
from tandem.spark.sources.options import (
    check_option_names,
    checked,
    source_job,
    storage_options,
)
from tandem.storage import ObjectInfo, open_store
from tandem.storage.paths import object_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


FOOTERS_AT_ONCE = 16


def open_source(control: Control) -> ListedSource:
    """List the job's source. Raises: as `listed`."""
    table, job = control.spec.table, source_job(control.spec)
    return list_source(
        job.source_location,
        storage_options(job.source_location, table.location, table.storage_options),
        field=f"{job.source_field}.location",
    )


def source_bytes(control: Control) -> int:
    """The size of what the job's source has now; 0 without a source. Raises: as `read`."""
    job = control.spec.job
    if not isinstance(job, SourceJob) or not job.sources:
        return 0
    checked(job.source_format, job.source_options, job.source_field)
    if job.source_format != "Delta":
        return sum(file.size for file in open_source(control).files)
    own = control.spec.table
    options = storage_options(job.source_location, own.location, own.storage_options)
    store = open_store(job.source_location, options, allowed_prefixes=own.allowed_prefixes)
    return sum(add.size for add in DeltaLog(store).snapshot(job.source_version).adds())


@dataclass(frozen=True)
class SourceRows:
    """Rows of the source. `where` is the location of a row as a text expression on columns with
    hidden names, in addition to the source's own. `path` is a file with these columns; "" if the
    source is a Delta table."""

    frame: DataFrame
    where: Column | None = None
    path: str = ""


def read(
    control: Control,
    spark: SparkSession,
    schema: StructType,
    *,
    source: ListedSource | None = None,
    version: int | None = None,
    places: bool = False,
) -> list[SourceRows]:
    """The source's rows.

    Args:
        schema: the table's. Columns of CSV and JSON that it has are read with its types.
        source, version: what to read, if not the current state.
        places: whether rows have their location.
    Raises: InvalidSpec, StatementFailed, SourceUnreadable, StorageError; and Spark's errors.
    """
    job = source_job(control.spec)
    options = checked(job.source_format, job.source_options, job.source_field)
    if job.source_format == "Delta":
        wanted = job.source_version if version is None else version
        files = delta_files(control.spec.table, job, wanted)
        return [_placed(control, spark, files, places=places)]
    source = open_source(control) if source is None else source
    if job.source_format == "Parquet":
        return list(_parquet(control, spark, source, schema, places=places))
    from tandem.spark.sources.text_frames import TextSource  # imports Spark

    texts = TextSource(control, spark, source, options, schema, places)
    if job.source_format == "Csv":
        return [SourceRows(*group) for group in texts.csv()]
    return [SourceRows(*texts.json())]


@dataclass(frozen=True)
class SourceFiles:
    """Files of a source with the same columns: the form in which our reader takes them."""

    table: JobTable
    inputs: tuple[InputFile, ...]

    @property
    def names(self) -> list[str]:
        """The columns, also if no name of a table may be like them."""
        return [field["name"] for field in json.loads(self.table.schema_string)["fields"]]


def parquet_files(source: ListedSource, table: Mapping[str, Any]) -> list[SourceFiles]:
    """The files of a Parquet source by their columns, from their footers and folders.

    Args:
        table: as of `HiveFolders.columns`.
    Raises: InvalidSpec, StatementFailed, SourceUnreadable, StorageError.
    """

    def footer(meta: ObjectInfo) -> tuple[pa.Schema, int]:
        return parquet_schema(source.store, meta.path)

    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "tandem-footers") as pool:
        footers = list(pool.map(footer, source.files))
    alike: dict[tuple[str, tuple[str, ...]], list[InputFile]] = {}
    columns = source.folder_columns(table)
    for file, (meta, (arrow, rows)) in enumerate(zip(source.files, footers, strict=True)):
        outside = lacking(columns, arrow.names)
        input_ = InputFile(
            logged_path=quote(meta.path),
            size=meta.size,
            rows=rows,
            partition_values={c.name: c.text(file, meta.path) for c in outside},
        )
        key = schema_string(arrow, outside), tuple(c.name for c in outside)
        alike.setdefault(key, []).append(input_)
    return [
        SourceFiles(
            JobTable(
                location=source.store.location,
                version=0,
                table_id="",
                schema_string=text,
                partition_columns=outside,
                configuration={},
                storage_options=dict(source.options),
            ),
            tuple(inputs),
        )
        for (text, outside), inputs in alike.items()
    ]


def _parquet(
    control: Control,
    spark: SparkSession,
    source: ListedSource,
    schema: StructType,
    *,
    places: bool,
) -> Iterator[SourceRows]:
    for files in parquet_files(source, types_in(schema.json())):
        placed = _placed(control, spark, files, places=places)
        yield replace(placed, path=object_path(files.inputs[0].logged_path))


def _placed(
    control: Control, spark: SparkSession, files: SourceFiles, *, places: bool
) -> SourceRows:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.row_files import INPUT, POSITION

    names, inputs = files.names, files.inputs
    check_option_names(names, source_job(control.spec))
    frame = read_rows(control, spark, inputs, names, 0, hidden=places, table=files.table)
    if not places or not inputs:
        return SourceRows(frame)
    paths = F.array(*(F.lit(object_path(i.logged_path)) for i in inputs))
    row = (F.col(POSITION) + 1).cast("string")
    return SourceRows(frame, F.concat(F.element_at(paths, F.col(INPUT) + 1), F.lit(", row "), row))


def delta_files(own: JobTable, job: SourceJob, version: int | None) -> SourceFiles:
    """The files of a Delta source at a version, None for its newest one.

    Args:
        own: the table of the job. A source that is a shallow clone is read as this table would be.
    Raises: SourceUnreadable, StorageError; as `DeltaLog.snapshot`.
    """
    options = storage_options(job.source_location, own.location, own.storage_options)
    store = open_store(job.source_location, options, allowed_prefixes=own.allowed_prefixes)
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
        allowed_prefixes=own.allowed_prefixes,
    )
    format_ = TableFormat(snapshot.schema, snapshot.partition_columns, snapshot.configuration)
    inputs = []
    for add in snapshot.adds():
        dead = dv.load(store, add.deletion_vector) if add.deletion_vector else None
        try:
            with DataFileReader(store, add.path, format_, columns=()) as reader:
                rows = reader.num_rows
        except StorageError as error:
            raise decoding_error(error) or error from error
        inputs.append(
            InputFile(
                logged_path=add.logged_path,
                size=add.size,
                rows=rows,
                dv=dv.to_base64(dead) if dead else "",
                partition_values=dict(add.partition_values),
            )
        )
    return SourceFiles(table, tuple(inputs))


class SourceFile(Format):
    """A listed file; `modified_ms` in Unix milliseconds."""

    path: str
    size: int
    modified_ms: int


class SourcePin(Format):
    """`source.json` of an operation: `version` and `table_id` of a Delta table, or `files`."""

    operation_id: str
    location: str
    version: int | None = None
    table_id: str = ""
    files: tuple[SourceFile, ...] = ()


def pinned(control: Control) -> tuple[SourcePin, ListedSource | None]:
    """The pin, created if there is none, and the files that it pins (None for Delta).

    Raises: SourceChanged; ManifestInvalid; InvalidSpec, StorageError as for any source.
    """
    pin = _load(control)
    source = _look(control, pin)
    if pin is None:
        _put(control, source[0])
        pin = _load(control)
        assert pin is not None
    _compare(control, pin, source[0])
    return pin, source[1]


def check(control: Control, pin: SourcePin) -> None:
    """Check that the source is still in its pinned state. Raises: SourceChanged, StorageError."""
    _compare(control, pin, _look(control, pin)[0])


def unchanged(control: Control, source: ListedSource) -> None:
    """Check that the files are still those listed. Raises: SourceChanged, StorageError."""
    before = _of(control, source)
    _compare(control, before, _look(control, before)[0])


def path(control: Control) -> str:
    """The path of the pin: beside the attempts, since all of them share it."""
    return control.spec.control_prefix.rpartition("/attempts/")[0] + "/source.json"


def _look(control: Control, pin: SourcePin | None) -> tuple[SourcePin, ListedSource | None]:
    """The current state of the source; that of a Delta table at its pinned version."""
    job = source_job(control.spec)
    operation = control.spec.operation_id
    if job.source_format == "Delta":
        own = control.spec.table
        options = storage_options(job.source_location, own.location, own.storage_options)
        wanted = job.source_version if pin is None else pin.version
        snapshot = DeltaLog(open_store(job.source_location, options)).snapshot(wanted)
        check_rows(snapshot)
        return (
            SourcePin(
                operation_id=operation,
                location=job.source_location,
                version=snapshot.version,
                table_id=snapshot.metadata.id,
            ),
            None,
        )
    try:
        source = open_source(control)
    except TandemError as error:
        if pin is None:
            raise
        raise _changed(control, "nothing", f"{len(pin.files)} files") from error
    return _of(control, source), source


def _of(control: Control, source: ListedSource) -> SourcePin:
    return SourcePin(
        operation_id=control.spec.operation_id,
        location=source_job(control.spec).source_location,
        files=tuple(_file(meta) for meta in source.files),
    )


def _file(meta: ObjectInfo) -> SourceFile:
    return SourceFile(path=meta.path, size=meta.size, modified_ms=meta.modified_ms)


def _compare(control: Control, pin: SourcePin, now: SourcePin) -> None:
    if pin.location != now.location:
        raise _changed(control, now.location, pin.location)
    if (pin.version, pin.table_id) != (now.version, now.table_id):
        raise _changed(control, f"table {now.table_id}", f"table {pin.table_id}")
    before, after = ({f.path: f for f in p.files} for p in (pin, now))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise _changed(
                control, _described(name, after.get(name)), _described(name, before.get(name))
            )


def _described(name: str, file: SourceFile | None) -> str:
    if file is None:
        return f"no {name}"
    return f"{name} of {file.size} bytes, last written at {file.modified_ms} ms"


def _changed(control: Control, found: str, expected: str) -> SourceChanged:
    job = source_job(control.spec)
    return SourceChanged(
        "the source has changed since it was first read",
        resource=job.source_location,
        field=f"{job.source_field}.location",
        found=found,
        expected=expected,
        remedy="Run it again with a source that does not change, or name a Delta version",
    )


def _load(control: Control) -> SourcePin | None:
    try:
        data = control.store.get(path(control))
    except ObjectNotFound:
        return None
    try:
        found = SourcePin.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(
            "the pin of the source cannot be read",
            resource=path(control),
            found=str(error.errors(include_url=False)[:1])[:300],
            expected="a whole SourcePin of format version 1",
        ) from error
    if found.operation_id != control.spec.operation_id:
        raise ManifestInvalid(
            "the pin of the source belongs to another operation",
            resource=path(control),
            found=found.operation_id,
            expected=control.spec.operation_id,
        )
    return found


def _put(control: Control, pin: SourcePin) -> None:
    """The first writer wins; a lost answer is resolved by loading the pin."""
    try:
        control.store.put_if_absent(path(control), encode(pin))
    except AlreadyExists:
        return
    except OutcomeUnknown:
        if _load(control) is None:
            control.store.put_if_absent(path(control), encode(pin))
