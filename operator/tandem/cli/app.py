"""The commands, their options and their help, and nothing else.

Every command is a few lines that call a module, which is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

import tandem
from tandem.cli.commands.arguments import (
    CloneSources,
    OptionalFilenames,
    StoreOptions,
    TableArgument,
    Timestamp,
    Version,
    names_in,
    opened,
)
from tandem.cli.commands.index_app import index_app
from tandem.cli.commands.operator_options import etcd_user, operator
from tandem.cli.direct.app import COMMANDS
from tandem.cli.engine import DEFAULT_PARALLEL
from tandem.cli.errors import TYPED, errors_to_exit, is_set
from tandem.cli.output import Output, OutputOption, ScanOutput


class _Commands(TyperGroup):
    """Keeps what was typed, for messages."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, args)


_HELP = ["-h", "--help"]

app = typer.Typer(
    name="tandem",
    cls=_Commands,
    help="Table services for Delta Lake tables while they are being written.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": _HELP},
    rich_markup_mode=None,
)
table_app = typer.Typer(
    help="Inspect a table.", no_args_is_help=True, pretty_exceptions_enable=False
)
app.add_typer(table_app, name="table")
log_app = typer.Typer(
    help="Inspect the log of a merge-on-read table.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(log_app, name="log")
app.add_typer(index_app, name="index")

Filenames = Annotated[
    list[str],
    typer.Option(
        "-f", "--filename", help="File or folder of resources, or - for standard input; repeatable."
    ),
]
OnlyResources = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="KIND/NAME", help="Only this resource; repeatable."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {tandem.__version__}")
        raise typer.Exit


@app.callback()
def common(
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log as JSON lines to standard error.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Print each phase of an operation, and log more."),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    from tandem.cli import logs

    logs.configure(json=log_json, verbose=verbose)


@app.command()
def run(
    context: typer.Context,
    files: Filenames,
    output: OutputOption = Output.TABLE,
    only: OnlyResources = None,
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel", min=0, help="Maximum number of concurrent operations; 0: no limit."
        ),
    ] = DEFAULT_PARALLEL,
    again: Annotated[
        bool, typer.Option("--again", help="Run operations again that have a recorded result.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Hide progress.")] = False,
) -> None:
    """Run resources here, without a cluster.

    Exit code: 0 all ended Succeeded or Superseded, 1 some Failed, 2 the input is invalid
    and nothing was started, 130 interrupted.
    """
    with errors_to_exit():
        from tandem.cli.commands import run

        code = run.run(
            files,
            output=output,
            only=only or [],
            parallel=parallel,
            again=again,
            quiet=quiet or is_set(context, "log_json"),
            verbose=is_set(context, "verbose"),
        )
        raise typer.Exit(code)


@app.command()
def plan(files: Filenames, output: OutputOption = Output.TABLE, only: OnlyResources = None) -> None:
    """Show what `run` would do; change nothing."""
    with errors_to_exit():
        from tandem.cli.commands import run

        raise typer.Exit(run.plan(files, output=output, only=only or []))


@app.command()
def scan(
    location: TableArgument,
    version: Version = None,
    timestamp: Timestamp = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="EXPR", help="Only rows for which this Spark SQL condition is true."
        ),
    ] = None,
    output: Annotated[
        ScanOutput,
        typer.Option(
            "-o",
            "--output",
            help="A preview, one JSON object a line, or an Arrow IPC stream.",
        ),
    ] = ScanOutput.TABLE,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="Maximum number of rows; 20 in a preview."),
    ] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Without the log of a merge-on-read table.")
    ] = False,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Print a table's rows."""
    with opened(location, files, options, clone_sources) as target:
        from tandem.cli.commands import scan

        raise typer.Exit(
            scan.scan(
                target,
                version=version,
                timestamp=timestamp,
                columns=None if columns is None else names_in(columns, "--columns"),
                where=where,
                output=output,
                limit=limit,
                base=base,
            )
        )


@table_app.command("segments", short_help="List the segments of a version.")
def table_segments(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    version: Version = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also former segments that the log still has.")
    ] = False,
    options: StoreOptions = None,
) -> None:
    """List segments: level, status, interval, load time, size, deleted rows."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.segments(target, output=output, version=version, every=every))


@table_app.command("show", short_help="Show version, size, columns and protocol.")
def table_show(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    version: Version = None,
    options: StoreOptions = None,
) -> None:
    """Show a table's version, size, columns and protocol."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.show(target, output=output, version=version))


@log_app.command("show", short_help="Show the live blocks of a log.")
def log_show(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    options: StoreOptions = None,
) -> None:
    """Show the live blocks of a table's log: instants, sizes, deletes, merged, pending or not."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.log_show(target, output=output))


@log_app.command("resolve", short_help="Keep or discard records that are not merged.")
def log_resolve(
    table: TableArgument,
    keep: Annotated[
        bool,
        typer.Option("--keep/--discard", help="Whether the unmerged records are still valid."),
    ],
    files: OptionalFilenames = None,
    options: StoreOptions = None,
) -> None:
    """Decide about unmerged records after the base table was replaced, or give up (`--discard`)
    those whose blocks are gone."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.log_resolve(target, keep=keep))


@app.command()
def history(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help="Maximum number of commits; 20 by default, 2000 for a page."
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write one self-contained HTML page; - prints it."
        ),
    ] = None,
    options: StoreOptions = None,
) -> None:
    """Show a table's commits, newest first.

    The picture beside the versions: ● a commit of Tandem; of another writer: ○ added rows,
    ◆ changed rows, ■ rewrote files, · no data. A line runs from an operation back to the version
    that it read; ▶ is a commit in between that it reconciled with.
    """
    with opened(table, files, options) as target:
        from tandem.cli.history import command

        raise typer.Exit(command.history(target, output=output, limit=limit, html=html))


@app.command()
def timeline(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    version: Version = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Only what is at or after this time, in UTC."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Only what is before this time, in UTC."),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            "--time-column", metavar="NAME", help="Time column; by default that of the LakeTable."
        ),
    ] = None,
    granularity: Annotated[
        str | None,
        typer.Option(
            "--granularity",
            metavar="NAME",
            help="Hour, Day, Week, Month, Quarter, Year or All; by default that of the LakeTable, "
            "or Day.",
        ),
    ] = None,
    changes: Annotated[
        bool,
        typer.Option(
            "--changes", help="Print versions: what each took and added, and its segments."
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help="Maximum number of commits that are read for --changes and for hidden segments; "
            "20 by default.",
        ),
    ] = None,
    options: StoreOptions = None,
) -> None:
    """Draw the segments of a table over time, newest first.

    A line is a segment, a column a time chunk: - visible; x hidden, since its files were removed;
    n masked, since all its rows there were deleted. Without a time column there is one chunk.

    With --changes: v44: (-0.1[2013-03-02/2013-03-05) +12) [0.1, 12] is a version that masked three
    days of segment 0.1 and added segment 12. A reader of it sees both.
    """
    with opened(table, files, options) as target:
        from tandem.cli.history import timeline

        chosen = timeline.TimelineOptions(version, first, before, time_column, granularity, limit)
        raise typer.Exit(timeline.timeline(target, chosen, changes=changes, output=output))


@app.command()
def locks(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    options: StoreOptions = None,
) -> None:
    """List the locks on a table. Without a cluster they exist in the running process only."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.locks(target, output=output))


@app.command()
def clean(
    table: TableArgument,
    files: OptionalFilenames = None,
    output: OutputOption = Output.TABLE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
    options: StoreOptions = None,
) -> None:
    """Remove files that are no longer needed.

    docs/cleaning.md says which they are, and when they go.
    """
    with opened(table, files, options) as target:
        from tandem.cli.commands import tables

        raise typer.Exit(tables.clean(target, output=output, dry_run=dry_run))


for _command in COMMANDS:
    app.command(_command.__name__)(_command)
app.command("operator")(operator)
app.command("etcd-user")(etcd_user)


@app.command()
def dev(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig",
            help="Kubeconfig; by default the pod's service account or kubectl's file.",
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("-n", "--namespace", help="Serve only this namespace; repeatable."),
    ] = None,
    max_jobs: Annotated[
        int,
        typer.Option("--max-jobs", min=1, help="Maximum number of concurrent jobs; others wait."),
    ] = 2,
) -> None:
    """Run SparkApplications here, in place of the Spark operator.

    Needs the Spark operator's CRDs, but no running Spark operator. Runs only applications of
    Tandem; jobs end with this command. `tandem -v dev` prints every state.
    """
    with errors_to_exit():
        from tandem.cli.commands import operator

        code = operator.dev(kubeconfig, namespaces or [], max_jobs)
        raise typer.Exit(code)


def keep_typed_command(words: Sequence[str]) -> None:
    """Drop the other commands: typer would build the options of each of them. Help on all of them
    needs them, and so does a command that is unknown."""
    typed = next((word for word in words if not word.startswith("-") or word in _HELP), None)
    commands = [each for each in app.registered_commands if _name_of(each) == typed]
    groups = [each for each in app.registered_groups if each.name == typed]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def _name_of(command: CommandInfo) -> str | None:
    found: str | None = command.name or getattr(command.callback, "__name__", None)
    return found
