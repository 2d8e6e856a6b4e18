"""A copy of a merge's source for the engine: `JobResult.source`.

With it the engine prunes files by the keys that occur, and evaluates small rounds itself
(docs/decisions/0099-small-rounds.md). Of a source with few rows it is whole, of a larger one the
least and the greatest value of each column that `on` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA, SidecarRef
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.ipc import to_file
from tandem.spark.runtime.names import quoted_identifier
from tandem.statements import tree
from tandem.statements.merge import SOURCE, MergeStatement

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MAX_ROWS = 100_000
"""A source of more rows is not copied whole."""
MAX_BYTES = 32 << 20
"""Neither is one that takes more memory: the engine holds it while the merge lives."""


ROW_BYTES = 48
"""What a row takes beside its values, about: its header, and its entry in a hashed relation."""


@dataclass(frozen=True)
class SourceSize:
    """What a source takes in memory: its rows, and about how many bytes of what is read of it."""

    rows: int
    bytes: int


def measure(source: DataFrame, merge: MergeStatement) -> SourceSize:
    """Measure the columns that the merge reads, where they are: a file of few bytes may hold
    gigabytes of one text, which the driver has no room for."""
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


def whole(
    control: Control, source: DataFrame, merge: MergeStatement, size: SourceSize, round_: int
) -> SidecarRef | None:
    """Copy all rows of the columns that the merge reads; None if they are too many."""
    names = _copied(source, merge)
    if not names or size.rows > MAX_ROWS or size.bytes > MAX_BYTES:
        return None
    rows = source.select(*map(quoted_identifier, names)).toArrow()
    return _put(control, rows, source, round_, complete=True)


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

    return _put(control, pa.concat_tables(rows), source, round_, complete=False)


def _copied(source: DataFrame, merge: MergeStatement) -> list[str]:
    read = frozenset().union(*(_columns(root) for root in merge.roots()))
    return [name for name in source.columns if name in read or name in SOURCE_IDS]


def _put(
    control: Control, rows: pa.Table, source: DataFrame, round_: int, *, complete: bool
) -> SidecarRef:
    metadata = {
        SOURCE_SCHEMA: source.schema.json(),
        SOURCE_IS_WHOLE: "true" if complete else "false",
    }
    return control.sidecar(round_, "source.arrow", to_file(rows.replace_schema_metadata(metadata)))


def _columns(root: tree.Expr) -> frozenset[str]:
    """The source's columns in an expression."""
    return frozenset(
        node.parts[1]
        for node in tree.walk(root)
        if isinstance(node, tree.ColumnRef) and node.parts[0] == SOURCE
    )
