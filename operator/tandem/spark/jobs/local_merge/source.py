"""The source of a merge as an Arrow table, if it is small, and of a form that is proven equal.

Reads what Spark would read, through the same reader, with the same refusals. CSV and JSON stay with
Spark, which casts their texts; so do files that differ in columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import arrow_schema
from tandem.delta.dv import from_base64
from tandem.errors import StorageError
from tandem.jobs.formats import SOURCE_IDS, JobSpec, MergeJob
from tandem.jobs.results import SidecarRef
from tandem.pruning.selection import KEY_TYPES
from tandem.spark.jobs import source_copy
from tandem.spark.runtime.control import Control, job_table_format
from tandem.spark.runtime.listing import (
    ListedSource,
    check_unique_names,
    decoding_error,
    types_in,
)
from tandem.spark.runtime.row_files import open_input
from tandem.spark.sources.arrow_row_hash import with_identity
from tandem.spark.sources.options import check_option_names
from tandem.spark.sources.readers import SourceFiles, delta_files, parquet_files
from tandem.spark.sources.source_pin import SourcePin
from tandem.statements.local import LocalMerge, NeedsSpark, compile_merge
from tandem.statements.local.rows import NOT_OURS
from tandem.statements.merge import MergeStatement, parse_merge
from tandem.statements.types import Schema
from tandem.storage import open_store

FORMATS: Final = frozenset({"Parquet", "Delta"})
FILE_BYTES: Final = 64 << 20
MEMORY: Final = 128 << 20
"""A source of larger files, or that takes more memory, stays with Spark."""
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class ArrowSource:
    """All rows of a source. They have `SOURCE_IDS` if the merge records them. `schema` is the
    source's, as Delta writes it; `statement` is the merge with the source's columns."""

    rows: pa.Table
    schema: str
    statement: MergeStatement
    local: LocalMerge

    @property
    def identified(self) -> bool:
        return SOURCE_IDS[0] in self.rows.column_names

    @property
    def read_names(self) -> list[str]:
        """The columns that the merge reads."""
        read = self.statement.columns_of_source()
        return [name for name in self.rows.column_names if name in read]


def compiled(spec: JobSpec, schema: str) -> tuple[MergeStatement, LocalMerge] | None:
    """The merge with a source of this schema; None if only Spark can evaluate it.

    Raises: InvalidStatement.
    """
    job = spec.job
    assert isinstance(job, MergeJob)
    statement = parse_merge(
        job.on, job.clauses, Schema.from_json(spec.table.schema_string), Schema.from_json(schema)
    )
    if any(text in each for text in NOT_OURS for each in (spec.table.schema_string, schema)):
        return None
    local = compile_merge(statement)
    return None if local is None else (statement, local)


def load(control: Control, pin: SourcePin, listed: ListedSource | None) -> ArrowSource:
    """Read the pinned source.

    Raises: NeedsSpark; InvalidSpec, InvalidStatement, SourceUnreadable, StorageError.
    """
    job = control.spec.job
    assert isinstance(job, MergeJob)
    if job.source_format not in FORMATS or sum(file.size for file in pin.files) > FILE_BYTES:
        raise NeedsSpark("a source that only Spark reads")
    if listed is None:
        files = delta_files(control.spec.table, job, pin.version)
    else:
        types = types_in(control.spec.table.schema_string)
        files, *others = parquet_files(listed, types)
        if others:
            raise NeedsSpark("files that differ in columns")
    if sum(file.size for file in files.inputs) > FILE_BYTES:
        raise NeedsSpark("a large source")
    check_unique_names(files.names, job.source_location)
    check_option_names(files.names, job)
    found = compiled(control.spec, files.table.schema_string)
    if found is None:
        raise NeedsSpark("an expression, or a type, that only Spark evaluates")
    rows = _rows(files)
    if found[0].records_matches:
        identified = with_identity(rows)
        # Nested columns have no identity on Spark either; long values have one there.
        rows = rows if identified is None else identified
        if identified is None and not any(pa.types.is_nested(f.type) for f in rows.schema):
            raise NeedsSpark("a value of the source is long")
    return ArrowSource(rows, files.table.schema_string, *found)


def _rows(files: SourceFiles) -> pa.Table:
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
    return pa.Table.from_batches(batches, arrow_schema(loose, files.names))


def copied(control: Control, source: ArrowSource, round_: int) -> SidecarRef | None:
    """The copy for the engine, as `source_copy` makes it from Spark's rows; in a round in which it
    has none, None."""
    if round_ == 0:
        kept = [name for name in SOURCE_IDS if name in source.rows.column_names]
        rows = source.rows.select([*source.read_names, *kept])
        size = rows.nbytes + rows.num_rows * source_copy.ROW_BYTES
        if rows.num_rows > source_copy.MAX_ROWS or size > source_copy.MAX_BYTES:
            return None
        return source_copy.put(control, rows, source.schema, round_, complete=True)
    if round_ == 1 and control.result(0).source is None:
        names = {
            column.parts[1]
            for _, column in source.statement.equal_columns()
            if column.type.name in KEY_TYPES
        }
        if not names:
            return None
        ends = _ends(source.rows.select(sorted(names)))
        return source_copy.put(control, ends, source.schema, round_, complete=False)
    return None


def _ends(rows: pa.Table) -> pa.Table:
    """The least and the greatest value of each column."""
    columns = []
    for column in rows.columns:
        found = pc.min_max(column)
        columns.append(pa.concat_arrays([pa.repeat(found[end], 1) for end in ("min", "max")]))
    return pa.table(columns, names=rows.column_names)
