"""`tandem index`: what the log says of a table's rows. The server that a LakeTable names is asked;
without one, and where it fails, this process answers.

The conditions of `tandem scan --where` and `tandem index`.

The index chooses the files, our reader reads them, and the condition is evaluated here where that
is proven to mean what Spark means. Otherwise Spark, in this process, gets the columns that the
condition names, and returns row numbers; the values that are printed never pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.cli.commands.arguments import moment_ms, names_in
from tandem.cli.commands.target import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import ByteSize, Output, json_value, print_data, print_table, table_of, write
from tandem.errors import StatementFailed
from tandem.index import Query, TableIndex, answers, rows
from tandem.index.answers import Splits
from tandem.index.library import IndexReader, condition
from tandem.index.rows import Difference, RowTest, verify_view
from tandem.statements import to_spark_sql
from tandem.statements.local import NeedsSpark, compile_expression
from tandem.statements.statement import referenced
from tandem.statements.tree import Expr
from tandem.text import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandem.index.window import View
    from tandem.storage.store import Store


ROWS_AT_ONCE = 500_000
"""Rows that Spark gets at a time: few enough to bound memory, and enough to outweigh the cost of a
small job."""

ReadBatches = Callable[[Sequence[str] | None], tuple[pa.Schema, Iterable[pa.RecordBatch]]]


@contextmanager
def row_test(where: Expr) -> Iterator[RowTest]:
    """Evaluates a condition: here, or by a Spark session that is started when it is needed.

    Its calls raise: StatementFailed, SparkMissing.
    """
    compiled = compile_expression(where)
    with ExitStack() as stack:
        session: list[SparkSession] = []

        def by_spark(table: pa.Table) -> Any:
            if not session:
                session.append(_session())
                stack.callback(session[0].stop)
            return _matching(session[0], table, where)

        def matches(table: pa.Table) -> Any:
            # Spark is not started for rows that it then would evaluate again.
            if compiled is None or session:
                return by_spark(table)
            try:
                return compiled.where(table)
            except NeedsSpark:
                return by_spark(table)

        yield RowTest(matches, rows_at_once=ROWS_AT_ONCE)


def matching(
    splits: Splits, store: Store, where: Expr, columns: Sequence[str] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches of the rows of splits for which a condition is true.

    Raises: while batches are taken, as `rows.read` and `row_test`.
    """
    schema = rows.schema_of(splits.head, columns)

    def batches() -> Iterator[pa.RecordBatch]:
        with row_test(where) as test:
            yield from rows.read(splits, store, columns, where, test)

    return schema, batches()


def matching_in(
    read: ReadBatches, names: Sequence[str], where: Expr, columns: Sequence[str] | None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """As `matching`, of rows that are read in another way.

    Args:
        read: reads the rows of these columns.
        names: the columns of the table.
    """
    named = referenced(where)
    wanted = list(names if columns is None else columns)
    # The requested columns and those that the condition needs, each once.
    schema, batches = read(
        list(dict.fromkeys([*wanted, *(name for name in names if name in named)]))
    )

    def found() -> Iterator[pa.RecordBatch]:
        with row_test(where) as test:
            for table in _gathered(batches):
                chosen = table.select(wanted).take(test.matches(table))
                yield from chosen.to_batches()

    return pa.schema([schema.field(name) for name in wanted]), found()


def _matching(spark: SparkSession, table: pa.Table, where: Expr) -> pa.Array:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tandem.spark.runtime.control import translate

    try:
        return _numbers(spark, table, where)
    except (PySparkException, Py4JError) as error:
        described = translate(error)
        if not isinstance(described, StatementFailed):
            raise described from error
        raise StatementFailed(
            "the condition failed on a row",
            resource="--where",
            found=_first_sentence(error, described),
            expected="a condition that is defined for every row",
            remedy="Guard it with CASE WHEN",
        ) from error


def _first_sentence(error: Exception, described: StatementFailed) -> str:
    from pyspark.errors import PySparkException

    message = error.getMessage() if isinstance(error, PySparkException) else described.found
    return str(message or described).split(". ")[0].splitlines()[0]


def _numbers(spark: SparkSession, table: pa.Table, where: Expr) -> pa.Array:
    """The numbers of the rows for which the condition is true, ascending."""
    named = referenced(where)
    # The tree spells columns as the schema does, whatever case was typed.
    used = [name for name in table.column_names if name in named]
    number = "row"
    while number.lower() in (name.lower() for name in used):
        number += "_"
    shown = table.select(used).append_column(number, pa.array(range(table.num_rows), pa.int64()))
    found: Any = (
        spark.createDataFrame(shown).filter(to_spark_sql(where)).select(f"`{number}`").toArrow()
    )
    return found.column(0).combine_chunks().sort()


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _session() -> SparkSession:
    from pyspark import SparkContext

    from tandem.spark.runtime.jvm import LocalJvm
    from tandem.spark.runtime.session import build_conf, session

    if SparkContext._active_spark_context is None:
        # We report errors, once; the JVM's log does not repeat them.
        conf = {**build_conf(), "spark.log.level": "OFF"}
        LocalJvm("tandem-scan", conf).context()
    return session("tandem-scan")


def query(
    where: str | None, version: int | None, timestamp: str | None, segments: str | None
) -> Query:
    """The question of the options. Raises: InvalidSpec."""
    moment = moment_ms(version, timestamp)
    chosen = () if segments is None else tuple(names_in(segments, "--segments"))
    return Query(where or "", version, moment, chosen)


def count(table: Target, asked: Query, *, base: bool, output: Output) -> Exit:
    index = table.index(base=base)
    found = index.certain_count(asked)
    where = condition(found.rest.head, asked.where)
    with _test(where) as test:
        number = rows.count(found, index.store, where, test)
    if output is Output.TABLE:
        write(f"{number}\n")
        read = counted(len(found.rest), "file")
        how = f"after reading {read}" if len(found.rest) else "by the log alone"
        say(f"Rows of version {found.version}, {how}")
    else:
        print_data({"version": found.version, "rows": number, "filesRead": len(found.rest)}, output)
    return Exit.OK


def bounds(table: Target, columns: str, asked: Query, *, base: bool, output: Output) -> Exit:
    index = table.index(base=base)
    parts = index.certain_bounds(names_in(columns, "--columns"), asked)
    head = parts[0].below.head
    where = condition(head, asked.where)
    found = {}
    with _test(where) as test:
        for part in parts:
            found[part.column] = rows.bounds(part, index.store, where, test)
    if output is Output.TABLE:
        cells = [
            [name, *("null" if value is None else json_value(value) for value in both)]
            for name, both in found.items()
        ]
        print_table(table_of(["column", "least", "greatest"], cells, keep_empty=True))
    else:
        shown = [
            {"column": name, "least": json_value(low), "greatest": json_value(high)}
            for name, (low, high) in found.items()
        ]
        print_data({"version": head.version, "columns": shown}, output)
    return Exit.OK


def splits(table: Target, asked: Query, *, base: bool, output: Output) -> Exit:
    index = table.index(base=base)
    found = index.splits(asked)
    listed = found.files.select(["path", "size", "partition_values", "deletion_vector"])
    data = [
        {
            "path": row["path"],
            "bytes": row["size"],
            "rows": None if live < 0 else live,
            "deletedRows": (row["deletion_vector"] or {}).get("cardinality", 0),
            "rowGroups": groups,
            "filter": not certain,
            "partitionValues": dict(row["partition_values"] or ()),
        }
        for row, live, certain, groups in zip(
            listed.to_pylist(),
            found.rows.tolist(),
            found.certain.tolist(),
            found.groups.to_pylist(),
            strict=True,
        )
    ]
    if output is not Output.TABLE:
        print_data({"version": found.version, "splits": data}, output)
        return Exit.OK
    cells = [
        [
            row["path"],
            ByteSize(row["bytes"]),
            row["rows"],
            row["deletedRows"] or None,
            None if row["rowGroups"] is None else ", ".join(map(str, row["rowGroups"])),
            "filter" if row["filter"] else "all rows",
        ]
        for row in data
    ]
    if cells:
        headers = ["path", "size", "live rows", "deleted", "row groups", "needed"]
        print_table(table_of(headers, cells))
    say(f"{_of_all(index, found)}, as of version {found.version}")
    return Exit.OK


def _of_all(index: IndexReader, found: Splits) -> str:
    if not isinstance(index, TableIndex):
        # A server is not asked for all files only to count them.
        return counted(len(found), "file")
    view = index.view(Query(version=found.version))
    return f"{len(found)} of {counted(sum(len(part.rows) for part in view.chosen()), 'file')}"


def show(table: Target, version: int | None, *, base: bool, output: Output) -> Exit:
    index, view = _opened(table, version, base=base)
    known = answers.knowledge(view)
    facts = {
        "version": view.version,
        "files": known.files,
        "rows": view.total,
        "filesWithoutRowCount": known.without_rows,
        "filesWithDeletedRows": known.with_deleted,
        "columns": [
            {"column": name, "filesWithBounds": count} for name, count in known.columns.items()
        ],
        "bytesHeld": index.nbytes,
    }
    if output is not Output.TABLE:
        print_data(facts, output)
        return Exit.OK
    cells: list[list[object]] = [
        ["version", facts["version"]],
        ["files", known.files],
        ["live rows", "not known by the log" if view.total is None else view.total],
        ["files without a row count", known.without_rows],
        ["files with deleted rows", known.with_deleted],
        ["memory", str(ByteSize(index.nbytes))],
    ]
    print_table(table_of(["fact", "value"], [[name, str(value)] for name, value in cells]))
    print_table(
        table_of(
            ["column", "files with bounds"],
            [[name, f"{count} of {known.files}"] for name, count in known.columns.items()],
        )
    )
    return Exit.OK


def verify(table: Target, version: int | None, *, base: bool, output: Output) -> Exit:
    index, view = _opened(table, version, base=base)
    found: list[Difference] = []
    files = 0
    for differences in verify_view(view, index.store):
        files += 1
        found += differences
    data = [
        {"path": d.path, "field": d.field, "log": json_value(d.log), "rows": json_value(d.rows)}
        for d in found
    ]
    if output is not Output.TABLE:
        print_data({"version": view.version, "files": files, "differences": data}, output)
    else:
        if found:
            cells = [[d["path"], d["field"], d["log"], d["rows"]] for d in data]
            print_table(table_of(["path", "field", "the log says", "the rows say"], cells))
        right = "all as the log says" if not found else counted(len(found), "difference")
        say(f"{counted(files, 'file')} of version {view.version} read: {right}")
    return Exit.FAILED if found else Exit.OK


def _opened(table: Target, version: int | None, *, base: bool) -> tuple[TableIndex, View]:
    """What this process finds in the log."""
    index = TableIndex(table.log(), base=base)
    return index, index.view(Query(version=version))


@contextmanager
def _test(where: Expr | None) -> Iterator[RowTest | None]:
    if where is None:
        yield None
        return
    with row_test(where) as test:
        yield test
