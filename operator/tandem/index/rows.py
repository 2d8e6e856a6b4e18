"""Reads the rows of splits, and finishes numbers that the log leaves open.

The only module here that reads data pages. A condition is evaluated over Arrow where that is proven
to mean what Spark means (`tandem.statements.local`); for others the caller brings a `RowTest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import dv
from tandem.delta.actions import AddFile
from tandem.delta.calendar import python_values
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.log.files import to_adds
from tandem.errors import StatementFailed
from tandem.index.answers import CertainBounds, CertainCount, Splits
from tandem.index.portions import WHOLE, Portion
from tandem.index.window import Head
from tandem.statements import to_spark_sql
from tandem.statements.local import NeedsSpark, compile_expression
from tandem.statements.statement import referenced
from tandem.statements.tree import Expr
from tandem.storage.store import Store


@dataclass(frozen=True)
class RowTest:
    """Evaluates a condition.

    Attributes:
        matches: the indexes of the rows of a table for which it is true, ascending, as int64. The
            table has the columns that the condition names, and perhaps others.
        rows_at_once: so many rows are gathered for one call; 1 for those of one batch.
    """

    matches: Callable[[pa.Table], Any]
    rows_at_once: int = 1


def local_test(where: Expr) -> RowTest:
    """Evaluates a condition here, without Spark.

    Raises: StatementFailed if only Spark can evaluate it, now or for some rows.
    """
    compiled = compile_expression(where)
    if compiled is None:
        raise _needs_spark(where, "an expression that only Spark evaluates")

    def matches(rows: pa.Table) -> Any:
        try:
            return compiled.where(rows)
        except NeedsSpark as error:
            raise _needs_spark(where, str(error)) from error

    return RowTest(matches)


def read(
    splits: Splits,
    store: Store,
    columns: Sequence[str] | None = None,
    where: Expr | None = None,
    test: RowTest | None = None,
    portion: Portion = WHOLE,
) -> pa.RecordBatchReader:
    """The live rows of the splits for which a condition is true; nothing is read before it is
    requested.

    Args:
        columns: names as the schema spells them, in the order wanted; None for all.
        where: the condition of the splits; None for all rows.
        test: evaluates it, by default `local_test`.
        portion: of each file only its part of the row groups.
    Raises: DataFileMissing, CorruptDeletionVector, StorageError, StatementFailed: while reading.
    """
    table = table_format(splits.head)
    names = tuple(table.schema.names if columns is None else columns)
    if where is not None and test is None and not splits.certain.all():
        test = local_test(where)
    tested = _tested(splits.head, where, names)

    def batches() -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        needed = splits.groups.to_pylist()
        for add, certain, groups in zip(to_adds(splits.files), splits.certain, needed, strict=True):
            if test is None or certain:
                yield from _live(store, add, table, names, groups, portion)
                continue
            for batch in _live(store, add, table, tested, groups, portion):
                gathered.append(batch)
                if sum(each.num_rows for each in gathered) >= test.rows_at_once:
                    yield from _matching(gathered, names, test)
                    gathered.clear()
        if gathered and test is not None:
            yield from _matching(gathered, names, test)

    return pa.RecordBatchReader.from_batches(arrow_schema(table, names), batches())


def schema_of(head: Head, columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of `read`."""
    return arrow_schema(table_format(head), columns)


def _matching(
    batches: Sequence[pa.RecordBatch], columns: Sequence[str], test: RowTest
) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches)
    found = test.matches(rows)
    chosen = rows.select(list(columns))
    # Arrow's `take` of no column has no rows.
    yield from (chosen.take(found) if columns else chosen.slice(0, len(found))).to_batches()


def count(
    found: CertainCount, store: Store, where: Expr | None = None, test: RowTest | None = None
) -> int:
    """The number of matching rows: the certain ones and those of the rest. Raises: as `read`."""
    number = found.rows
    for batch in read(found.rest, store, (), where, test):
        number += batch.num_rows
    return number


def bounds(
    found: CertainBounds, store: Store, where: Expr | None = None, test: RowTest | None = None
) -> tuple[Any, Any]:
    """The least and the greatest value of the matching rows, in Spark's order; None if there is
    none. Times outside of Python's calendar are texts, as in `tandem.delta.calendar`.

    Files are read in the order of what they promise, until none can beat what was found.
    Raises: as `read`.
    """
    return (
        _extreme(found.column, found.low, found.below, found.lows, least, store, where, test),
        _extreme(found.column, found.high, found.above, found.highs, greatest, store, where, test),
    )


def _extreme(
    column: str,
    certain: Any,
    rivals: Splits,
    limits: Sequence[Any],
    kernel: Callable[[pa.Array], pa.Array],
    store: Store,
    where: Expr | None,
    test: RowTest | None,
) -> Any:
    """The certain value, or a better one among the rivals."""
    type_ = arrow_schema(table_format(rivals.head), (column,)).field(0).type
    best = pa.array([] if certain is None else [certain], type_)
    for at, limit in enumerate(limits):
        if limit is not None and len(best) and not _beats(limit, best, kernel):
            break
        for batch in read(rivals.slice(at, 1), store, (column,), where, test):
            best = kernel(pa.concat_arrays([best, kernel(batch.column(0))]))
    return next(iter(python_values(best)), None)


def _beats(limit: Any, best: pa.Array, kernel: Callable[[pa.Array], pa.Array]) -> bool:
    """Whether a file whose values are bounded by `limit` can have a better one."""
    try:
        value = best[0].as_py()
    except (OverflowError, ValueError):  # outside of Python's calendar
        return True
    if isinstance(value, float) and math.isnan(value):
        return kernel is least  # NaN is the greatest
    return bool(limit < value if kernel is least else limit > value)


def least(values: pa.Array) -> pa.Array:
    """The least value, in an array of one, or of none. NaN is the greatest value, as in Spark."""
    present = values.drop_null()
    if pa.types.is_floating(values.type):
        numbers = present.filter(pc.invert(pc.is_nan(present)))
        present = numbers if len(numbers) else present
    return _one(present, pc.min(present))


def greatest(values: pa.Array) -> pa.Array:
    """As `least`."""
    present = values.drop_null()
    if pa.types.is_floating(values.type):
        nan = present.filter(pc.is_nan(present))
        if len(nan):
            return nan.slice(0, 1)
    return _one(present, pc.max(present))


def _one(present: pa.Array, value: pa.Scalar) -> pa.Array:
    return pa.array([value], present.type) if value.is_valid else present.slice(0, 1)


def _live(
    store: Store,
    add: AddFile,
    table: TableFormat,
    columns: Sequence[str],
    groups: Sequence[int] | None,
    portion: Portion,
) -> Iterator[pa.RecordBatch]:
    """The live rows of some row groups of a file; None for all."""
    dead = dv.load(store, add.deletion_vector) if add.deletion_vector else None
    with DataFileReader(
        store, add.path, table, partition_values=add.partition_values, columns=columns
    ) as reader:
        # By the footer alone: other tasks must take the others, whatever they know of the file.
        mine = portion.groups(len(reader.row_groups))
        for run in _runs(mine if groups is None else [at for at in groups if at in mine]):
            yield from reader.batches(dead=dead, row_groups=run)


def _runs(groups: Sequence[int]) -> Iterator[range]:
    """Consecutive row groups, of which few calls read many."""
    start = 0
    for at in range(1, len(groups) + 1):
        if at == len(groups) or groups[at] != groups[at - 1] + 1:
            yield range(groups[start], groups[at - 1] + 1)
            start = at


def table_format(head: Head) -> TableFormat:
    """What reading files of a version needs to know."""
    metadata = head.metadata
    return TableFormat(head.schema, metadata.partition_columns, metadata.configuration)


def _tested(head: Head, where: Expr | None, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns, and those that a condition names: each once, and at least one, since a table
    without a column has no rows."""
    named = frozenset[str]() if where is None else referenced(where)
    used = (name for name in head.schema.names if name in named)
    return tuple(dict.fromkeys((*columns, *used))) or tuple(head.schema.names[:1])


def _needs_spark(where: Expr, found: str) -> StatementFailed:
    return StatementFailed(
        "the condition can be evaluated by Spark only",
        resource="where",
        found=f"{to_spark_sql(where)}: {found}"[:300],
        expected="a condition that is evaluated without Spark",
        remedy="Read the splits with an engine that evaluates it, or use `tandem scan --where`",
    )
