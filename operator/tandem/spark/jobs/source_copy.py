"""A copy of a merge's source for the engine: `JobResult.source`.

From it the engine prunes files by the keys in the source, and evaluates small rounds itself
(docs/decisions/0099-small-rounds.md). A source with few rows is copied whole, of a larger one the
least and the greatest value of each column that `on` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA
from tandem.jobs.results import SidecarRef
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.ipc import to_file
from tandem.spark.runtime.names import quoted_identifier
from tandem.statements import tree
from tandem.statements.merge import SOURCE, MergeStatement

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

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

    rows = source.select(*map(quoted_identifier, _copied(source, merge)))
    sizes = [F.lit(0)]
    for field in rows.schema.fields:
        column = F.col(quoted_identifier(field.name))
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
) -> SidecarRef | None:
    """Copy all rows of the columns that the merge reads; None if there are too many."""
    names = _copied(source, merge)
    if not names or size.rows > MAX_ROWS or size.bytes > MAX_BYTES:
        return None
    rows = source.select(*map(quoted_identifier, names)).toArrow()
    return put(control, rows, source.schema.json(), round_, complete=True)


def bounds(
    control: Control, source: DataFrame, merge: MergeStatement, round_: int
) -> SidecarRef | None:
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
        *(F.min(quoted_identifier(name)).alias(f"least {name}") for name in names),
        *(F.max(quoted_identifier(name)).alias(f"greatest {name}") for name in names),
    ).toArrow()
    ends = [found.select([f"{end} {n}" for n in names]) for end in ("least", "greatest")]
    rows = [end.rename_columns(names) for end in ends]
    import pyarrow as pa

    return put(control, pa.concat_tables(rows), source.schema.json(), round_, complete=False)


def put(
    control: Control, rows: pa.Table, schema: str, round_: int, *, complete: bool
) -> SidecarRef:
    """Write a copy; `schema` is the source's, as JSON. `complete`: it has all rows."""
    metadata = {SOURCE_SCHEMA: schema, SOURCE_IS_WHOLE: "true" if complete else "false"}
    return control.sidecar(round_, "source.arrow", to_file(rows.replace_schema_metadata(metadata)))


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
