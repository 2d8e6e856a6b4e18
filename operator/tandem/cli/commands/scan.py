"""`tandem scan`: a table's rows on standard output."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tandem.cli.commands.arguments import moment_ms
from tandem.cli.commands.target import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import (
    ScanOutput,
    json_line,
    json_value,
    print_table,
    standard_output,
    table_of,
    write,
)
from tandem.errors import InvalidSpec

if TYPE_CHECKING:
    import pyarrow as pa

PREVIEW_ROWS = 20


def scan(
    table: Target,
    *,
    version: int | None,
    timestamp: str | None = None,
    columns: Sequence[str] | None,
    where: str | None,
    output: ScanOutput,
    limit: int | None,
    base: bool = False,
) -> Exit:
    """Print rows: of a merge-on-read table the merged view, unless `base` is set. Memory is bounded
    by a batch and by the keys of the log, not by the table."""
    if output is ScanOutput.ARROW and sys.stdout.isatty():
        raise InvalidSpec(
            "an Arrow stream cannot be written to a terminal",
            resource="-o",
            found="arrow",
            expected="standard output to be a file or a pipe",
            remedy="Add `> rows.arrow`",
        )
    if output is ScanOutput.TABLE and limit is None:
        limit = PREVIEW_ROWS
    from tandem.delta.partitions import python_values

    moment = moment_ms(version, timestamp)
    if moment is not None:
        version = table.log().version_at(moment)
    schema, batches = _read(table, version=version, columns=columns, where=where, base=base)
    if limit is not None:
        batches = first_rows(batches, limit + (output is ScanOutput.TABLE))
    if output is ScanOutput.ARROW:
        _write_stream(schema, batches)
    elif output is ScanOutput.JSON:
        for batch in batches:
            write("".join(json_line(row) for row in python_values(batch)))
    else:
        _preview(schema, batches, limit or 0)
    return Exit.OK


def first_rows(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    """The first `count` rows, reading no further than needed."""
    left = count
    for batch in batches:
        if left <= 0:
            return
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _read(
    table: Target,
    *,
    version: int | None,
    columns: Sequence[str] | None,
    where: str | None,
    base: bool,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and rows. A condition that only Spark evaluates takes seconds to start."""
    from tandem.mergelog.log_table import MergeLog
    from tandem.mergelog.view import open_view

    log = MergeLog(table.log())
    if where and not base and table.has_server and not log.exists():
        return _by_server(table, version, columns, where)
    view = open_view(log, version, base=base)

    def read(names: Sequence[str] | None) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        scanned = view.scan(names)
        return scanned.schema, scanned

    if where is None:
        schema, batches = read(columns)
        return schema, iter(batches)

    from tandem.cli.commands.index import matching, matching_in
    from tandem.delta.scan import check_rows, named_columns
    from tandem.index.answers import splits
    from tandem.index.window import Window
    from tandem.statements import parse_where

    snapshot = view.base
    condition = parse_where(where, snapshot.metadata.schema_string, resource="--where", field="")
    names = None if columns is None else named_columns(snapshot, columns)
    if view.log_id:
        return matching_in(read, snapshot.schema.names, condition, names)
    check_rows(snapshot)
    return matching(
        splits(Window(snapshot).view(), condition), view.log.base.store, condition, names
    )


def _by_server(
    table: Target, version: int | None, columns: Sequence[str] | None, where: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """As `_read`, of the files that the index chooses which the LakeTable names."""
    from tandem.cli.commands.index import matching
    from tandem.delta.scan import column_names
    from tandem.index import Query
    from tandem.index.library import condition

    index = table.index()
    found = index.splits(Query(where, version))
    tree = condition(found.head, where)
    assert tree is not None
    head = found.head
    names = None if columns is None else column_names(head.schema, columns, resource=head.location)
    return matching(found, index.store, tree, names)


def _write_stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with standard_output():
        stream = pa.ipc.new_stream(sys.stdout.buffer, schema)
    for batch in batches:
        with standard_output():
            stream.write_batch(batch)
    with standard_output():
        stream.close()
        sys.stdout.buffer.flush()


def _cell(value: Any) -> Any:
    """A value as a preview shows it. A null is not to look like an empty text; nested values and
    booleans are shown as in JSON."""
    shown = json_value(value)
    if shown is None or isinstance(shown, bool | dict | list):
        return json.dumps(shown, ensure_ascii=False)
    return shown


def _preview(schema: pa.Schema, batches: Iterator[pa.RecordBatch], limit: int) -> None:
    from tandem.delta.partitions import python_values

    rows = list(itertools.chain.from_iterable(python_values(batch) for batch in batches))
    cells = [[_cell(row[name]) for name in schema.names] for row in rows[:limit]]
    print_table(table_of(schema.names, cells, keep_empty=True))
    if len(rows) > limit:
        first = "The first row" if limit == 1 else f"The first {limit} rows"
        say(f"{first}; more with --limit, all with -o json or -o arrow.")
