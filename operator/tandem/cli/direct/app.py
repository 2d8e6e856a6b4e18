"""The commands that do one thing to one table, and their options.

`COMMANDS` is the list of them: an entry turns its options into the spec of a resource, and says
which field of it each option fills (`Typed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer

from tandem.cli.commands.arguments import (
    CLONE_SOURCES,
    STORE_OPTIONS,
    TABLE,
    TABLE_FILES,
    Command,
    argument,
    names_in,
    opened,
    option,
    within,
)
from tandem.cli.direct.resources import DirectOperation, Typed, assignments, merge_spec, source
from tandem.cli.errors import errors_to_exit
from tandem.cli.output import Output
from tandem.spec.update import SourceFormat

DRY_RUN = option(False, "Only plan; change nothing.", "--dry-run")
OUTPUT = option(
    Output.TABLE,
    "Output format; yaml prints the resources for `tandem run -f`, and runs nothing.",
    "-o",
    "--output",
)
QUIET = option(False, "Hide progress.", "-q", "--quiet")
TARGET_FILE_SIZE = option(
    None,
    "Target size of output files. By default 128Mi; of a compaction, the table's "
    "delta.targetFileSize first.",
    metavar="SIZE",
)
FILE_FILTER = option(
    None,
    "Only files that may hold matching rows, by statistics and partition values.",
    metavar="EXPR",
)
COLUMNS = argument(
    ..., "COLUMNS", "Columns to order by, separated by commas; in backquotes as in SQL."
)
ROWS = option(..., "A Spark SQL condition; `true` selects all rows.", metavar="EXPR")
ENABLE_DELETION_VECTORS = option(
    False,
    "Enable deletion vectors if the table lacks them: deletes and updates then write these instead "
    "of rewriting files. It upgrades the table's protocol: old readers may then refuse it.",
)
FROM = option(..., "URL or path of a file, folder or table.", "--from", metavar="SOURCE")
FORMAT = option(
    None, "Format of the source; by default inferred from its name.", "--format",
    case_sensitive=False,
)  # fmt: skip
SOURCE_OPTIONS = option(
    None,
    "Spark's option for reading the source, such as header=true; repeatable.",
    "--source-option",
    metavar="KEY=VALUE",
)
SOURCE_VERSION = option(None, "Version of a Delta source; the latest by default.", min=0)


def _direct(asked: Callable[..., DirectOperation]) -> Command:
    """A command that does what a function asks for, to the table of its first argument."""

    def run(
        context: typer.Context,
        location: str = TABLE,
        *,
        dry_run: bool = DRY_RUN,
        output: Output = OUTPUT,
        quiet: bool = QUIET,
        files: list[str] | None = TABLE_FILES,
        options: list[str] | None = STORE_OPTIONS,
        clone_sources: list[str] | None = CLONE_SOURCES,
        **own: Any,
    ) -> None:
        with opened(location, files, options, clone_sources) as target:
            from tandem.cli.direct import command

            chosen = command.options(context, output, dry_run=dry_run, quiet=quiet)
            raise typer.Exit(command.perform(target, asked.__name__, asked(**own), chosen))

    return within(run, asked)


@_direct
def compact(
    *,
    where: str | None = FILE_FILTER,
    cluster: bool = option(False, "Cluster rows by the table's clustering columns (CLUSTER BY)."),
    target_file_size: str | None = TARGET_FILE_SIZE,
) -> DirectOperation:
    """Rewrite small files as larger ones: OPTIMIZE.

    Other writers need not stop. Files that are large enough and have few deleted rows are left
    alone; with --cluster, those that are clustered.
    """
    layout = Typed("--cluster", {"strategy": "Clustering"}) if cluster else None
    return _compaction(where, target_file_size, layout)


@_direct
def zorder(
    *,
    columns: str = COLUMNS,
    where: str | None = FILE_FILTER,
    target_file_size: str | None = TARGET_FILE_SIZE,
) -> DirectOperation:
    """Cluster rows by several columns at once: OPTIMIZE … ZORDER BY.

    Filters on any of the columns then skip files. Files that are in this order already are left
    alone.
    """
    return _compaction(where, target_file_size, _layout("ZOrder", columns))


@_direct
def sort(
    *,
    columns: str = COLUMNS,
    where: str | None = FILE_FILTER,
    target_file_size: str | None = TARGET_FILE_SIZE,
) -> DirectOperation:
    """Sort rows by columns, the first one first.

    Files that are in this order already are left alone.
    """
    return _compaction(where, target_file_size, _layout("Sort", columns))


@_direct
def update(
    *,
    where: str = ROWS,
    set_: list[str] = option(
        ..., "New value of a column, in Spark SQL; repeatable.", "--set", metavar="COLUMN=EXPR"
    ),
    enable_deletion_vectors: bool = ENABLE_DELETION_VECTORS,
) -> DirectOperation:
    """Update rows, beside compactions and other writers."""
    what = {"where": Typed("--where", where), "set": Typed("--set", assignments(set_))}
    return _statement({"update": Typed("--set", what)}, enable_deletion_vectors)


@_direct
def delete(
    *, where: str = ROWS, enable_deletion_vectors: bool = ENABLE_DELETION_VECTORS
) -> DirectOperation:
    """Delete rows, beside compactions and other writers."""
    what = Typed("--where", {"where": Typed("--where", where)})
    return _statement({"delete": what}, enable_deletion_vectors)


@_direct
def merge(
    *,
    from_: str = FROM,
    on: str = option(
        ..., "Which rows match; t is the table, s the source: 't.id = s.id'.", metavar="EXPR"
    ),
    update_all: bool = option(False, "Replace rows that match by those of the source."),
    insert_all: bool = option(False, "Insert rows of the source without a match."),
    set_: list[str] | None = option(
        None,
        "Update rows that match: new value of a column, such as n=s.n; repeatable.",
        "--set",
        metavar="COLUMN=EXPR",
    ),
    delete_when: str | None = option(
        None,
        "Delete rows that match and for which this is true, such as s.op = 'D'.",
        metavar="EXPR",
    ),
    format_: SourceFormat | None = FORMAT,
    source_options: list[str] | None = SOURCE_OPTIONS,
    source_version: int | None = SOURCE_VERSION,
    enable_deletion_vectors: bool = ENABLE_DELETION_VECTORS,
) -> DirectOperation:
    """Merge a source into the table, beside other writers.

    `-o yaml` prints a resource to which further clauses can be added.
    """
    clauses = merge_spec(
        on,
        update_all=update_all,
        insert_all=insert_all,
        set_=set_ or [],
        delete_when=delete_when,
    )
    read = source(from_, format_, source_options or (), source_version)
    return _statement({"merge": {"source": read, **clauses}}, enable_deletion_vectors)


@_direct
def ingest(
    *,
    from_: str = FROM,
    format_: SourceFormat | None = FORMAT,
    source_options: list[str] | None = SOURCE_OPTIONS,
    source_version: int | None = SOURCE_VERSION,
    target_file_size: str | None = TARGET_FILE_SIZE,
) -> DirectOperation:
    """Append the rows of a source."""
    read = source(from_, format_, source_options or (), source_version)
    size = Typed("--target-file-size", target_file_size)
    return DirectOperation("TableIngest", {"source": read, "targetFileSize": size})


def maintain(
    context: typer.Context,
    location_or_file: str = argument(
        ...,
        "LOCATION_OR_FILE",
        "A file with LakeTables, or URL or path of a table, or its URL in a catalog, which is "
        "compacted and cleaned.",
    ),
    dry_run: bool = DRY_RUN,
    output: Output = OUTPUT,
    quiet: bool = QUIET,
    files: list[str] | None = TABLE_FILES,
    options: list[str] | None = STORE_OPTIONS,
    clone_sources: list[str] | None = CLONE_SOURCES,
) -> None:
    """Do once what an operator would do now: for cron or Airflow.

    Runs what `spec.compaction`, `spec.retention.rows` and `spec.mergeOnRead` of LakeTables ask for,
    and cleans by `spec.retention`. A schedule runs once each time that its cron fires, however
    often this is called. The exit code is 0 even if nothing is due.
    """
    with errors_to_exit():
        from tandem.cli.direct import command

        chosen = command.options(context, output, dry_run=dry_run, quiet=quiet)
        table = (location_or_file, files or [], options or [], clone_sources or [])
        code = command.maintain(table, chosen)
        raise typer.Exit(code)


COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    compact,
    zorder,
    sort,
    update,
    delete,
    merge,
    ingest,
    maintain,
)
"""The commands, in the order of the help."""


def _compaction(
    where: str | None, target_file_size: str | None, layout: Typed | None
) -> DirectOperation:
    """A compaction of all chunks, or of the files that a condition selects."""
    spec: dict[str, Any] = {
        "type": "SemiMajor",
        "layout": layout,
        "targetFileSize": Typed("--target-file-size", target_file_size),
    }
    if where is not None:
        spec |= {"type": "Custom", "custom": {"where": Typed("--where", where)}}
    return DirectOperation("TableCompaction", spec)


def _layout(strategy: str, columns: str) -> Typed:
    names = Typed("COLUMNS", names_in(columns, "COLUMNS"))
    return Typed("COLUMNS", {"strategy": strategy, "columns": names})


def _statement(spec: dict[str, Any], enable_vectors: bool) -> DirectOperation:
    vectors = {"enableDeletionVectors": True} if enable_vectors else {}
    return DirectOperation("TableUpdate", spec, vectors)
