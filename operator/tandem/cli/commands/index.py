"""`tandem index`: what the log says of a table's rows. The server that a LakeTable names is asked;
without one, and where it fails, this process answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tandem.cli.commands.arguments import moment_ms, names_in
from tandem.cli.commands.target import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import ByteSize, Output, json_value, print_data, print_table, table_of, write
from tandem.cli.scan_filter import row_test
from tandem.index import Query, TableIndex, answers, rows
from tandem.index.library import IndexReader, condition
from tandem.index.rows import Difference, verify_view
from tandem.text import counted

if TYPE_CHECKING:
    from tandem.index.answers import Splits
    from tandem.index.rows import RowTest
    from tandem.index.window import View
    from tandem.statements.tree import Expr


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
