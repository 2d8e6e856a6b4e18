"""The source of a merge as an Arrow table, if it is small, and of a form that is proven equal.

Reads what Spark would read, through the same reader, with the same refusals. CSV and JSON stay with
Spark, which casts their texts; so do files that differ in columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA, JobSpec, MergeJob
from tandem.jobs.results import SideFileRef
from tandem.pruning.selection import KEY_TYPES
from tandem.spark.runtime.control import Control, to_file
from tandem.spark.runtime.listing import ListedSource, check_unique_names, types_in
from tandem.spark.sources.arrow_rows import FILE_BYTES, read_files
from tandem.spark.sources.options import check_option_names
from tandem.spark.sources.readers import delta_files, parquet_files
from tandem.spark.sources.row_hash import with_arrow_identity
from tandem.spark.sources.source_pin import SourcePin
from tandem.statements import tree
from tandem.statements.generate import quote_name
from tandem.statements.local import LocalMerge, NeedsSpark, compile_merge
from tandem.statements.local.rows import NOT_OURS
from tandem.statements.merge import SOURCE, MergeStatement, parse_merge
from tandem.statements.types import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


FORMATS: Final = frozenset({"Parquet", "Delta"})


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
    rows = read_files(files)
    if found[0].records_matches:
        identified = with_arrow_identity(rows)
        # Nested columns have no identity on Spark either; long values have one there.
        rows = rows if identified is None else identified
        if identified is None and not any(pa.types.is_nested(f.type) for f in rows.schema):
            raise NeedsSpark("a value of the source is long")
    return ArrowSource(rows, files.table.schema_string, *found)


def copied(control: Control, source: ArrowSource, round_: int) -> SideFileRef | None:
    """The copy for the engine, as `copy_all_rows` makes it from Spark's rows; None in a round in
    which it has none."""
    if round_ == 0:
        kept = [name for name in SOURCE_IDS if name in source.rows.column_names]
        rows = source.rows.select([*source.read_names, *kept])
        size = rows.nbytes + rows.num_rows * ROW_BYTES
        if rows.num_rows > MAX_ROWS or size > MAX_BYTES:
            return None
        return put(control, rows, source.schema, round_, complete=True)
    if round_ == 1 and control.result(0).source is None:
        names = {
            column.parts[1]
            for _, column in source.statement.equal_columns()
            if column.type.name in KEY_TYPES
        }
        if not names:
            return None
        ends = _ends(source.rows.select(sorted(names)))
        return put(control, ends, source.schema, round_, complete=False)
    return None


def _ends(rows: pa.Table) -> pa.Table:
    """The least and the greatest value of each column."""
    columns = []
    for column in rows.columns:
        found = pc.min_max(column)
        columns.append(pa.concat_arrays([pa.repeat(found[end], 1) for end in ("min", "max")]))
    return pa.table(columns, names=rows.column_names)


# A copy of a merge's source for the engine: `JobResult.source`.
#
# From it the engine prunes files by the keys in the source, and evaluates small rounds itself
# (docs/decisions/0099-small-rounds.md). A source with few rows is copied whole, of a larger one the
# least and the greatest value of each column that `on` compares.


MAX_ROWS = 100_000
"""A source with more rows is not copied whole."""
MAX_BYTES = 32 << 20
"""A source that takes more memory is not copied whole: the engine holds the copy during a merge."""


ROW_BYTES = 48
"""Approximate memory of a row in addition to its values: its header, and its hash table entry."""


@dataclass(frozen=True)
class SourceSize:
    """The memory of a source: its rows, and the approximate bytes of the columns that are read."""

    rows: int
    bytes: int


def measure(source: DataFrame, merge: MergeStatement) -> SourceSize:
    """Measure the columns that the merge reads inside Spark: a file of few bytes may hold gigabytes
    of one text, for which the driver has no memory."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - as above

    rows = source.select(*map(quote_name, _copied(source, merge)))
    sizes = [F.lit(0)]
    for field in rows.schema.fields:
        column = F.col(quote_name(field.name))
        if isinstance(field.dataType, T.StringType | T.BinaryType):
            sizes.append(F.octet_length(column))
        elif not isinstance(field.dataType, T.AtomicType | T.NullType):
            sizes.append(F.octet_length(column.cast("string")))
    found = rows.agg(F.count(F.lit(1)), *(F.sum(size.cast("long")) for size in sizes)).collect()[0]
    count = found[0]
    fixed = count * (ROW_BYTES + 8 * len(rows.columns))
    return SourceSize(count, fixed + sum(size or 0 for size in found[1:]))


def copy_all_rows(
    control: Control, source: DataFrame, merge: MergeStatement, size: SourceSize, round_: int
) -> SideFileRef | None:
    """Copy all rows of the columns that the merge reads; None if there are too many."""
    names = _copied(source, merge)
    if not names or size.rows > MAX_ROWS or size.bytes > MAX_BYTES:
        return None
    rows = source.select(*map(quote_name, names)).toArrow()
    return put(control, rows, source.schema.json(), round_, complete=True)


def bounds(
    control: Control, source: DataFrame, merge: MergeStatement, round_: int
) -> SideFileRef | None:
    """Copy the least and the greatest value of each column of `on`; None if there is none."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql.types import AtomicType

    compared = _columns(merge.on)
    names = [
        field.name
        for field in source.schema.fields
        if field.name in compared and isinstance(field.dataType, AtomicType)
    ]
    if not names:
        return None
    found = source.agg(
        *(F.min(quote_name(name)).alias(f"least {name}") for name in names),
        *(F.max(quote_name(name)).alias(f"greatest {name}") for name in names),
    ).toArrow()
    ends = [found.select([f"{end} {n}" for n in names]) for end in ("least", "greatest")]
    rows = [end.rename_columns(names) for end in ends]
    import pyarrow as pa

    return put(control, pa.concat_tables(rows), source.schema.json(), round_, complete=False)


def put(
    control: Control, rows: pa.Table, schema: str, round_: int, *, complete: bool
) -> SideFileRef:
    """Write a copy; `schema` is the source's, as JSON. `complete`: it has all rows."""
    metadata = {SOURCE_SCHEMA: schema, SOURCE_IS_WHOLE: "true" if complete else "false"}
    return control.side_file(
        round_, "source.arrow", to_file(rows.replace_schema_metadata(metadata))
    )


def _copied(source: DataFrame, merge: MergeStatement) -> list[str]:
    read = merge.columns_of_source()
    return [name for name in source.columns if name in read or name in SOURCE_IDS]


def _columns(root: tree.Expr) -> frozenset[str]:
    """The source's columns in an expression."""
    return frozenset(
        node.parts[1]
        for node in tree.walk(root)
        if isinstance(node, tree.ColumnRef) and node.parts[0] == SOURCE
    )
