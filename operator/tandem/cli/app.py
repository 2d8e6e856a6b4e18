"""The commands, their options and their help, and nothing else.

Every command is a few lines that call a module, which is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

import tandem
from tandem.cli.commands import tables
from tandem.cli.commands.arguments import (
    STORE_OPTIONS,
    TABLE_FILES,
    TIMESTAMP,
    VERSION,
    argument,
    command,
    group,
    names_in,
    on_rows,
    on_table,
    option,
)
from tandem.cli.commands.operator import etcd_user, operator
from tandem.cli.direct.app import COMMANDS
from tandem.cli.errors import TYPED, Exit, is_set
from tandem.cli.output import Output, OutputOption, ScanOutput
from tandem.spec.table import Granularity

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target


index_app = group("Count rows and prune files by what the log says.")

WHERE = option(None, "Only rows for which this Spark SQL condition is true.", metavar="EXPR")
SEGMENTS = option(None, "Only rows in files of these segments.", metavar="A,B")
BASE = option(False, "Of a merge-on-read table: without its log.")


def local_folder(text: str) -> Path:
    """A folder of this machine, as a path or a `file:` URL. Raises: BadParameter for another URL,
    which would be taken for a relative path."""
    parts = urlsplit(text)
    if "://" not in text and parts.scheme != "file":
        return Path(text)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise typer.BadParameter(f"{text!r} is no folder of this machine: give a path")
    return Path(unquote(parts.path))


@index_app.command()
@on_rows
def count(
    target: Target,
    *,
    where: str | None = WHERE,
    version: int | None = VERSION,
    timestamp: str | None = TIMESTAMP,
    segments: str | None = SEGMENTS,
    base: bool = BASE,
    output: OutputOption = Output.TABLE,
) -> Exit:
    """Print the number of rows."""
    from tandem.cli.commands import index

    query = index.query(where, version, timestamp, segments)
    return index.count(target, query, base=base, output=output)


@index_app.command()
@on_rows
def bounds(
    target: Target,
    *,
    columns: str = option(..., "Of these columns.", metavar="A,B"),
    where: str | None = WHERE,
    version: int | None = VERSION,
    timestamp: str | None = TIMESTAMP,
    segments: str | None = SEGMENTS,
    base: bool = BASE,
    output: OutputOption = Output.TABLE,
) -> Exit:
    """Print the least and the greatest value of columns."""
    from tandem.cli.commands import index

    query = index.query(where, version, timestamp, segments)
    return index.bounds(target, columns, query, base=base, output=output)


@index_app.command(short_help="List the files that a reader needs.")
@on_table
def splits(
    target: Target,
    *,
    where: str | None = WHERE,
    version: int | None = VERSION,
    timestamp: str | None = TIMESTAMP,
    segments: str | None = SEGMENTS,
    base: bool = BASE,
    output: OutputOption = Output.TABLE,
) -> Exit:
    """List the files that a reader needs, and whether it still has to apply the condition."""
    from tandem.cli.commands import index

    query = index.query(where, version, timestamp, segments)
    return index.splits(target, query, base=base, output=output)


@index_app.command(short_help="Show what is known of a table's files.")
@on_table
def show(
    target: Target,
    *,
    version: int | None = VERSION,
    base: bool = BASE,
    output: OutputOption = Output.TABLE,
) -> Exit:
    """Show what is known of a table's files: rows, and bounds by column."""
    from tandem.cli.commands import index

    return index.show(target, version, base=base, output=output)


@index_app.command(short_help="Read all rows, and compare them with the log.")
@on_rows
def verify(
    target: Target,
    *,
    version: int | None = VERSION,
    base: bool = BASE,
    output: OutputOption = Output.TABLE,
) -> Exit:
    """Read all rows, and list the files of which the log says something else.

    Exit code: 0 all is as the log says, 1 it is not.
    """
    from tandem.cli.commands import index

    return index.verify(target, version, base=base, output=output)


@index_app.command(short_help="Serve counts, bounds and splits over Arrow Flight.")
@command
def serve(
    _: typer.Context,
    *,
    tables: list[str] = argument(
        ...,
        "NAME[=LOCATION]...",
        "Tables by the name that callers use; with -f names of LakeTables.",
    ),
    listen: str = option(
        "127.0.0.1:8815", "Address to listen on; port 0 picks a free one.", metavar="HOST:PORT"
    ),
    token_file: Path | None = option(None, "Holds the token that callers must present."),
    certificate: Path | None = option(None, "Certificate, with its chain, as PEM.", "--tls-cert"),
    key: Path | None = option(None, "Its private key, as PEM.", "--tls-key"),
    memory: str | None = option(
        None,
        "Limit of what is held between questions, as 512Mi or 4Gi; no limit by default.",
        metavar="SIZE",
    ),
    answers: Path | None = option(
        None,
        "Folder in which large answers wait; it is emptied.",
        metavar="PATH",
        parser=local_folder,
    ),
    files: list[str] | None = TABLE_FILES,
    options: list[str] | None = STORE_OPTIONS,
) -> Exit:
    """Serve counts, bounds and splits of tables over Arrow Flight, until it is stopped.

    Beyond loopback it needs a token and a certificate.
    """
    from tandem.cli.commands import index_serve

    settings = index_serve.ServeOptions(listen, token_file, certificate, key, answers, memory)
    return index_serve.serve(tables, files or [], options or [], settings)


class _Commands(TyperGroup):
    """Keeps what was typed, for messages."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, args)


_HELP = ["-h", "--help"]
_PARALLEL = 8
"""Concurrent operations: each has a Spark driver of its own, of about half a GiB. Without a limit,
a folder of many ingests would start all of them at once."""

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
app.add_typer(tables.table_app, name="table")
app.add_typer(tables.log_app, name="log")
app.add_typer(index_app, name="index")

FILES = option(
    ...,
    "File or folder of resources, or - for standard input; repeatable.",
    "-f",
    "--filename",
)
ONLY = option(None, "Only this resource; repeatable.", metavar="KIND/NAME")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {tandem.__version__}")
        raise typer.Exit


@app.callback()
def common(
    log_json: bool = option(False, "Log as JSON lines to standard error.", "--log-json"),
    verbose: bool = option(
        False, "Print each phase of an operation, and log more.", "-v", "--verbose"
    ),
    _version: bool = option(
        False, "Print the version.", "--version", callback=_print_version, is_eager=True
    ),
) -> None:
    from tandem.cli import output

    output.configure(json=log_json, verbose=verbose)


@app.command()
@command
def run(
    context: typer.Context,
    *,
    files: list[str] = FILES,
    output: OutputOption = Output.TABLE,
    only: list[str] | None = ONLY,
    parallel: int = option(
        _PARALLEL, "Maximum number of concurrent operations; 0: no limit.", min=0
    ),
    again: bool = option(False, "Run operations again that have a recorded result."),
    quiet: bool = option(False, "Hide progress.", "-q", "--quiet"),
) -> Exit:
    """Run resources here, without a cluster.

    Exit code: 0 all ended Succeeded or Superseded, 1 some Failed, 2 the input is invalid
    and nothing was started, 130 interrupted.
    """
    from tandem.cli.commands import run

    return run.run(
        files,
        output=output,
        only=only or [],
        parallel=parallel,
        again=again,
        quiet=quiet or is_set(context, "log_json"),
        verbose=is_set(context, "verbose"),
    )


@app.command()
@command
def plan(
    _: typer.Context,
    *,
    files: list[str] = FILES,
    output: OutputOption = Output.TABLE,
    only: list[str] | None = ONLY,
) -> Exit:
    """Show what `run` would do; change nothing."""
    from tandem.cli.commands import run

    return run.plan(files, output=output, only=only or [])


@app.command()
@on_rows
def scan(
    target: Target,
    *,
    version: int | None = VERSION,
    timestamp: str | None = TIMESTAMP,
    columns: str | None = option(None, "Only these columns.", metavar="A,B"),
    where: str | None = option(
        None, "Only rows for which this Spark SQL condition is true.", metavar="EXPR"
    ),
    output: ScanOutput = option(
        ScanOutput.TABLE,
        "A preview, one JSON object a line, or an Arrow IPC stream.",
        "-o",
        "--output",
    ),
    limit: int | None = option(None, "Maximum number of rows; 20 in a preview.", min=0),
    base: bool = option(False, "Without the log of a merge-on-read table."),
) -> Exit:
    """Print a table's rows."""
    from tandem.cli.commands import scan

    return scan.scan(
        target,
        version=version,
        timestamp=timestamp,
        columns=None if columns is None else names_in(columns, "--columns"),
        where=where,
        output=output,
        limit=limit,
        base=base,
    )


@app.command()
@on_table
def history(
    target: Target,
    *,
    output: OutputOption = Output.TABLE,
    limit: int | None = option(
        None, "Maximum number of commits; 20 by default, 2000 for a page.", min=1
    ),
    html: str | None = option(
        None, "Write one self-contained HTML page; - prints it.", metavar="FILE"
    ),
) -> Exit:
    """Show a table's commits, newest first.

    The picture beside the versions: ● a commit of Tandem; of another writer: ○ added rows,
    ◆ changed rows, ■ rewrote files, · no data. A line runs from an operation back to the version
    that it read; ▶ is a commit in between that it reconciled with.
    """
    from tandem.cli import history as history_

    return history_.history(target, output=output, limit=limit, html=html)


@app.command()
@on_table
def timeline(
    target: Target,
    *,
    output: OutputOption = Output.TABLE,
    version: int | None = VERSION,
    first: str | None = option(
        None, "Only what is at or after this time, in UTC.", "--from", metavar="TIME"
    ),
    before: str | None = option(
        None, "Only what is before this time, in UTC.", "--to", metavar="TIME"
    ),
    time_column: str | None = option(
        None, "Time column; by default that of the LakeTable.", metavar="NAME"
    ),
    granularity: Granularity | None = option(
        None,
        "Hour, Day, Week, Month, Quarter, Year or All; by default that of the LakeTable, or Day.",
        metavar="NAME",
        case_sensitive=False,
    ),
    changes: bool = option(False, "Print versions: what each took and added, and its segments."),
    limit: int | None = option(
        None,
        "Maximum number of commits that are read for --changes and for hidden segments; "
        "20 by default.",
        min=1,
    ),
) -> Exit:
    """Draw the segments of a table over time, newest first.

    A line is a segment, a column a time chunk: - visible; x hidden, since its files were removed;
    n masked, since all its rows there were deleted. Without a time column there is one chunk.

    With --changes: v44: (-0.1[2013-03-02/2013-03-05) +12) [0.1, 12] is a version that masked three
    days of segment 0.1 and added segment 12. A reader of it sees both.
    """
    from tandem.cli import timeline

    chosen = timeline.TimelineOptions(version, first, before, time_column, granularity, limit)
    return timeline.timeline(target, chosen, changes=changes, output=output)


app.command()(tables.locks)
app.command()(tables.clean)
for _command in COMMANDS:
    app.command(_command.__name__)(_command)
app.command("operator")(operator)
app.command("etcd-user")(etcd_user)


@app.command()
@command
def dev(
    _: typer.Context,
    *,
    kubeconfig: Path | None = option(
        None, "Kubeconfig; by default the pod's service account or kubectl's file."
    ),
    namespaces: list[str] | None = option(
        None, "Serve only this namespace; repeatable.", "-n", "--namespace"
    ),
    max_jobs: int = option(2, "Maximum number of concurrent jobs; others wait.", min=1),
) -> Exit:
    """Run SparkApplications here, in place of the Spark operator.

    Needs the Spark operator's CRDs, but no running Spark operator. Runs only applications of
    Tandem; jobs end with this command. `tandem -v dev` prints every state.
    """
    from tandem.cli.commands import operator

    return operator.dev(kubeconfig, namespaces or [], max_jobs)


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
