"""Reads the rows of splits, and finishes numbers that the log leaves open.

The only module here that reads data pages. A condition is evaluated over Arrow where that is proven
to mean what Spark means (`tandem.statements.local`); for others the caller brings a `RowTest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import dv
from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.log.files import to_adds
from tandem.delta.partitions import python_values
from tandem.errors import StatementFailed
from tandem.index import answers
from tandem.index.answers import WHOLE, CertainBounds, CertainCount, Portion, Splits
from tandem.index.entries import UNKNOWN_ROWS
from tandem.index.statistics import BoundArray, Side, side_of
from tandem.index.window import Chosen, Head, View
from tandem.pruning.bounds import HeldBounds
from tandem.statements import to_spark_sql
from tandem.statements.local import NeedsSpark, compile_expression
from tandem.statements.statement import referenced
from tandem.statements.tree import Expr
from tandem.statements.types import Schema, SqlType
from tandem.storage.store import Store

# Compares what the log says of each file with the rows that it has.


@dataclass(frozen=True)
class Difference:
    """One thing that the log says of a file and its rows do not.

    Attributes:
        field: `numRecords`, or `minValues.NAME`, `maxValues.NAME` or `nullCount.NAME` of a column.
        log: what the log says. rows: what is right.
    """

    path: str
    field: str
    log: Any
    rows: Any


def verify_view(view: View, store: Store) -> Iterator[list[Difference]]:
    """The differences in each file of a version; all columns of all files are read.

    A bound is wrong if a row of the file lies beyond it. Rows in deletion vectors count: a bound
    may be that of a deleted row. A number of NULLs is wrong if it says that there is none, or
    nothing else, and there is; in files with deleted rows it is not looked at.
    Raises: DataFileMissing, StorageError, UnsupportedFeature.
    """
    head = view.head
    schema = Schema.from_json(head.metadata.schema_string)
    types = {column.name: column.type for column in schema.columns if column.type.is_atomic}
    for part in view.chosen():
        found = answers.splits_of(head, [part])
        columns = {
            name: column
            for name, type_ in types.items()
            if (column := _column_of(view, part, name, type_)) is not None
        }
        sides = {
            (name, side): side_of([column], [len(part.rows)], types[name], side)
            for name, column in columns.items()
            for side in Side
        }
        for at, add in enumerate(to_adds(found.files)):
            rows = int(part.entries.rows[part.rows[at]])
            stated = {} if add.deletion_vector else _stated_nulls(columns, at, rows)
            yield list(_of_file(view, store, add, rows, at, sides, stated))


def _column_of(view: View, part: Chosen, name: str, type_: SqlType) -> HeldBounds | None:
    head = view.head
    column = part.entries.column(name, type_, head.schema, head.metadata.partition_columns)
    if column is None or name in head.metadata.partition_columns:
        return None
    return column.take(part.rows)


def _stated_nulls(columns: Mapping[str, HeldBounds], at: int, rows: int) -> dict[str, int]:
    """The columns of a file that have no NULL by the log, or nothing else, and the number of NULLs
    that says so."""
    none = {name: 0 for name, column in columns.items() if not column.some_null[at]}
    return none | {name: rows for name, column in columns.items() if not column.some_value[at]}


def _of_file(
    view: View,
    store: Store,
    add: AddFile,
    rows: int,
    at: int,
    sides: Mapping[tuple[str, Side], BoundArray],
    stated_nulls: Mapping[str, int],
) -> Iterator[Difference]:
    format_ = table_format(view.head)
    names = sorted({name for name, _ in sides})
    best: dict[tuple[str, Side], pa.Array] = {}
    nulls = dict.fromkeys(stated_nulls, 0)
    with DataFileReader(
        store, add.path, format_, partition_values=add.partition_values, columns=names
    ) as reader:
        if rows not in (UNKNOWN_ROWS, reader.num_rows):
            yield Difference(add.path, "numRecords", rows, reader.num_rows)
        for batch in reader.batches() if names else ():
            for name in nulls:
                nulls[name] += batch.column(names.index(name)).null_count
            for name, side in sides:
                kernel = least if side is Side.LOW else greatest
                values = kernel(batch.column(names.index(name)))
                known = best.get((name, side))
                both = values if known is None else pa.concat_arrays([known, values])
                best[name, side] = kernel(both)
    for name, stated in stated_nulls.items():
        if nulls[name] != stated:
            yield Difference(add.path, f"nullCount.{name}", stated, nulls[name])
    for (name, side), values in best.items():
        limit = sides[name, side].value(at)
        if limit is None or not len(values):
            continue
        value = python_values(values)[0]
        if _lies_beyond(value, limit, side):
            field = "minValues" if side is Side.LOW else "maxValues"
            yield Difference(add.path, f"{field}.{name}", limit, value)


def _lies_beyond(value: Any, limit: Any, side: Side) -> bool:
    if isinstance(value, str) and not isinstance(limit, str):
        # A time outside of Python's calendar, which bounds do not reach.
        return value.startswith("+") is (side is Side.HIGH)
    # NaN lies beyond nothing: statistics do not count it.
    return bool(value < limit if side is Side.LOW else value > limit)


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
    none. Times outside of Python's calendar are texts, as in `tandem.delta.partitions`.

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
