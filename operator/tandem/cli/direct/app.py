"""The commands that do one thing to one table, and their options.

`COMMANDS` is the list of them: an entry turns its options into the spec of a resource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.commands.arguments import (
    CloneSources,
    OptionalFilenames,
    StoreOptions,
    TableArgument,
    names_in,
    opened,
)
from tandem.cli.errors import errors_to_exit
from tandem.cli.output import Output
from tandem.spec.update import SourceFormat

if TYPE_CHECKING:
    from tandem.cli.direct.resources import DirectOperation

_Table = tuple[str, Sequence[str] | None, Sequence[str] | None, Sequence[str] | None]
"""The arguments of `opened`."""
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only plan; change nothing.")]
DirectOutput = Annotated[
    Output,
    typer.Option(
        "-o",
        "--output",
        help="Output format; yaml prints the resources for `tandem run -f`, and runs nothing.",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Hide progress.")]
TargetFileSize = Annotated[
    str | None,
    typer.Option(
        "--target-file-size", metavar="SIZE", help="Target size of output files; 128Mi by default."
    ),
]
FileFilter = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPR",
        help="Only files that may hold matching rows, by statistics and partition values.",
    ),
]
Columns = Annotated[
    str,
    typer.Argument(
        metavar="COLUMNS",
        help="Columns to order by, separated by commas; in backquotes as in SQL.",
    ),
]
Rows = Annotated[
    str,
    typer.Option("--where", metavar="EXPR", help="A Spark SQL condition; `true` selects all rows."),
]
EnableDeletionVectors = Annotated[
    bool,
    typer.Option(
        "--enable-deletion-vectors",
        help="Enable deletion vectors if the table lacks them: deletes and updates then write "
        "these instead of rewriting files. It upgrades the table's protocol: old readers may then "
        "refuse it.",
    ),
]
From = Annotated[
    str, typer.Option("--from", metavar="SOURCE", help="URL or path of a file, folder or table.")
]
Format = Annotated[
    SourceFormat | None,
    typer.Option(
        "--format",
        case_sensitive=False,
        help="Format of the source; by default inferred from its name.",
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--source-option",
        metavar="KEY=VALUE",
        help="Spark's option for reading the source, such as header=true; repeatable.",
    ),
]
SourceVersion = Annotated[
    int | None,
    typer.Option(
        "--source-version", min=0, help="Version of a Delta source; the latest by default."
    ),
]
Assignments = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="COLUMN=EXPR", help="New value of a column, in Spark SQL; repeatable."
    ),
]


def compact(
    context: typer.Context,
    location: TableArgument,
    where: FileFilter = None,
    target_file_size: TargetFileSize = None,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Rewrite small files as larger ones: OPTIMIZE.

    Other writers need not stop. Files that are large enough and have few deleted rows are left
    alone.
    """
    spec = {**_selection(where), **_sizes(target_file_size)}
    found = _operation("compact", "TableCompaction", spec, {"spec.custom.where": "--where"})
    table = (location, files, options, clone_sources)
    _perform(context, table, lambda: found, output, dry_run=dry_run, quiet=quiet)


def zorder(
    context: typer.Context,
    location: TableArgument,
    columns: Columns,
    where: FileFilter = None,
    target_file_size: TargetFileSize = None,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Cluster rows by several columns at once: OPTIMIZE … ZORDER BY.

    Filters on any of the columns then skip files. Files that are in this order already are left
    alone.
    """

    def asked() -> DirectOperation:
        return _laid_out("zorder", "ZOrder", columns, where, target_file_size)

    table = (location, files, options, clone_sources)
    _perform(context, table, asked, output, dry_run=dry_run, quiet=quiet)


def sort(
    context: typer.Context,
    location: TableArgument,
    columns: Columns,
    where: FileFilter = None,
    target_file_size: TargetFileSize = None,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Sort rows by columns, the first one first.

    Files that are in this order already are left alone.
    """

    def asked() -> DirectOperation:
        return _laid_out("sort", "Sort", columns, where, target_file_size)

    table = (location, files, options, clone_sources)
    _perform(context, table, asked, output, dry_run=dry_run, quiet=quiet)


def update(
    context: typer.Context,
    location: TableArgument,
    where: Rows,
    assignments: Assignments,
    enable_deletion_vectors: EnableDeletionVectors = False,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Update rows, beside compactions and other writers."""

    def asked() -> DirectOperation:
        from tandem.cli.direct.resources import assignments as parsed

        return _operation(
            "update",
            "TableUpdate",
            {"update": {"where": where, "set": parsed(assignments)}},
            {"spec.update.where": "--where", "spec.update.set": "--set", "spec.update": "--set"},
            _vectors(enable_deletion_vectors),
        )

    table = (location, files, options, clone_sources)
    _perform(context, table, asked, output, dry_run=dry_run, quiet=quiet)


def delete(
    context: typer.Context,
    location: TableArgument,
    where: Rows,
    enable_deletion_vectors: EnableDeletionVectors = False,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Delete rows, beside compactions and other writers."""
    found = _operation(
        "delete",
        "TableUpdate",
        {"delete": {"where": where}},
        {"spec.delete.where": "--where", "spec.delete": "--where"},
        _vectors(enable_deletion_vectors),
    )
    table = (location, files, options, clone_sources)
    _perform(context, table, lambda: found, output, dry_run=dry_run, quiet=quiet)


def merge(
    context: typer.Context,
    location: TableArgument,
    from_: From,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="EXPR",
            help="Which rows match; t is the table, s the source: 't.id = s.id'.",
        ),
    ],
    update_all: Annotated[
        bool,
        typer.Option("--update-all", help="Replace rows that match by those of the source."),
    ] = False,
    insert_all: Annotated[
        bool, typer.Option("--insert-all", help="Insert rows of the source without a match.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="COLUMN=EXPR",
            help="Update rows that match: new value of a column, such as n=s.n; repeatable.",
        ),
    ] = None,
    delete_when: Annotated[
        str | None,
        typer.Option(
            "--delete-when",
            metavar="EXPR",
            help="Delete rows that match and for which this is true, such as s.op = 'D'.",
        ),
    ] = None,
    format_: Format = None,
    source_options: SourceOptions = None,
    source_version: SourceVersion = None,
    enable_deletion_vectors: EnableDeletionVectors = False,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Merge a source into the table, beside other writers.

    `-o yaml` prints a resource to which further clauses can be added.
    """

    def asked() -> DirectOperation:
        from tandem.cli.direct.resources import merge_spec

        spec = merge_spec(
            on, update_all=update_all, insert_all=insert_all, set_=assignments or [],
            delete_when=delete_when,
        )  # fmt: skip
        source = _source(from_, format_, source_options, source_version)
        return _operation(
            "merge",
            "TableUpdate",
            {"merge": {"source": source, **spec}},
            {
                "spec.merge.on": "--on",
                **_clauses(delete_when is not None),
                "spec.merge.whenNotMatched": "--insert-all",
                **_source_fields("spec.merge.source"),
            },
            _vectors(enable_deletion_vectors),
        )

    table = (location, files, options, clone_sources)
    _perform(context, table, asked, output, dry_run=dry_run, quiet=quiet)


def _clauses(deletes: bool) -> dict[str, str]:
    """The options behind the clauses of `merge_spec`, in which a delete comes first."""
    clauses = "spec.merge.whenMatched"
    update = f"{clauses}[{int(deletes)}]"
    delete = {f"{clauses}[0]": "--delete-when", f"{clauses}[0].where": "--delete-when"}
    return {
        clauses: "--update-all, --set or --delete-when",
        **(delete if deletes else {}),
        update: "--update-all",
        f"{update}.update.set": "--set",
    }


def ingest(
    context: typer.Context,
    location: TableArgument,
    from_: From,
    format_: Format = None,
    source_options: SourceOptions = None,
    source_version: SourceVersion = None,
    target_file_size: TargetFileSize = None,
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Append the rows of a source."""

    def asked() -> DirectOperation:
        source = _source(from_, format_, source_options, source_version)
        spec = {"source": source, **_sizes(target_file_size)}
        return _operation("ingest", "TableIngest", spec, _source_fields("spec.source"))

    table = (location, files, options, clone_sources)
    _perform(context, table, asked, output, dry_run=dry_run, quiet=quiet)


def maintain(
    context: typer.Context,
    location_or_file: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION_OR_FILE",
            help="A file with LakeTables, or URL or path of a table, which is compacted and "
            "cleaned.",
        ),
    ],
    dry_run: DryRun = False,
    output: DirectOutput = Output.TABLE,
    quiet: Quiet = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
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


def _perform(
    context: typer.Context,
    table: _Table,
    asked: Callable[[], DirectOperation],
    output: Output,
    *,
    dry_run: bool,
    quiet: bool,
) -> None:
    with opened(*table) as target:
        from tandem.cli.direct import command

        chosen = command.options(context, output, dry_run=dry_run, quiet=quiet)
        raise typer.Exit(command.perform(target, asked(), chosen))


def _operation(
    word: str,
    kind: str,
    spec: Mapping[str, Any],
    options: Mapping[str, str],
    table: Mapping[str, Any] | None = None,
) -> DirectOperation:
    from tandem.cli.direct.resources import DirectOperation

    return DirectOperation(word, kind, spec, options, table or {})


def _laid_out(
    word: str, strategy: str, columns: str, where: str | None, size: str | None
) -> DirectOperation:
    layout = {"strategy": strategy, "columns": names_in(columns, "COLUMNS")}
    spec = {**_selection(where), "layout": layout, **_sizes(size)}
    fields = {
        "spec.layout.columns": "COLUMNS",
        "spec.layout": "COLUMNS",
        "spec.custom.where": "--where",
    }
    return _operation(word, "TableCompaction", spec, fields)


def _selection(where: str | None) -> dict[str, Any]:
    """Which files a compaction takes: those of all chunks, or those that a condition selects."""
    if where is None:
        return {"type": "SemiMajor"}
    return {"type": "Custom", "custom": {"where": where}}


def _sizes(target_file_size: str | None) -> dict[str, Any]:
    return {} if target_file_size is None else {"targetFileSize": target_file_size}


def _vectors(enable: bool) -> dict[str, Any]:
    return {"enableDeletionVectors": True} if enable else {}


def _source(
    location: str,
    format_: SourceFormat | None,
    options: Sequence[str] | None,
    version: int | None,
) -> dict[str, Any]:
    from tandem.cli.commands.target import key_and_value
    from tandem.cli.direct.resources import source

    pairs = dict(key_and_value(text, "--source-option") for text in options or ())
    return source(location, format_, pairs, version)


def _source_fields(field: str) -> dict[str, str]:
    return {
        field: "--from",
        f"{field}.location": "--from",
        f"{field}.format": "--format",
        f"{field}.options": "--source-option",
        f"{field}.options.": "--source-option ",
        f"{field}.version": "--source-version",
    }
