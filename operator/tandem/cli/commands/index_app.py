"""The commands of `tandem index`, their options and their help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from tandem.cli.commands.arguments import (
    CloneSources,
    OptionalFilenames,
    StoreOptions,
    TableArgument,
    Timestamp,
    Version,
    opened,
)
from tandem.cli.errors import errors_to_exit
from tandem.cli.output import Output, OutputOption

if TYPE_CHECKING:
    from tandem.index import Query

index_app = typer.Typer(
    help="Count rows and prune files by what the log says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Where = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="EXPR", help="Only rows for which this Spark SQL condition is true."
    ),
]
Segments = Annotated[
    str | None,
    typer.Option("--segments", metavar="A,B", help="Only rows in files of these segments."),
]
Base = Annotated[bool, typer.Option("--base", help="Of a merge-on-read table: without its log.")]


def local_folder(text: str) -> Path:
    """A folder of this machine, as a path or a `file:` URL. Raises: BadParameter for another URL,
    which would be taken for a relative path."""
    parts = urlsplit(text)
    if "://" not in text and parts.scheme != "file":
        return Path(text)
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise typer.BadParameter(f"{text!r} is no folder of this machine: give a path")
    return Path(unquote(parts.path))


def _query(
    where: str | None, version: int | None, timestamp: str | None, segments: str | None
) -> Query:
    from tandem.cli.commands import index

    return index.query(where, version, timestamp, segments)


@index_app.command()
def count(
    table: TableArgument,
    where: Where = None,
    version: Version = None,
    timestamp: Timestamp = None,
    segments: Segments = None,
    base: Base = False,
    output: OutputOption = Output.TABLE,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Print the number of rows."""
    with opened(table, files, options, clone_sources) as target:
        from tandem.cli.commands import index

        query = _query(where, version, timestamp, segments)
        raise typer.Exit(index.count(target, query, base=base, output=output))


@index_app.command()
def bounds(
    table: TableArgument,
    columns: Annotated[str, typer.Option("--columns", metavar="A,B", help="Of these columns.")],
    where: Where = None,
    version: Version = None,
    timestamp: Timestamp = None,
    segments: Segments = None,
    base: Base = False,
    output: OutputOption = Output.TABLE,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Print the least and the greatest value of columns."""
    with opened(table, files, options, clone_sources) as target:
        from tandem.cli.commands import index

        query = _query(where, version, timestamp, segments)
        raise typer.Exit(index.bounds(target, columns, query, base=base, output=output))


@index_app.command(short_help="List the files that a reader needs.")
def splits(
    table: TableArgument,
    where: Where = None,
    version: Version = None,
    timestamp: Timestamp = None,
    segments: Segments = None,
    base: Base = False,
    output: OutputOption = Output.TABLE,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
) -> None:
    """List the files that a reader needs, and whether it still has to apply the condition."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import index

        query = _query(where, version, timestamp, segments)
        raise typer.Exit(index.splits(target, query, base=base, output=output))


@index_app.command(short_help="Show what is known of a table's files.")
def show(
    table: TableArgument,
    version: Version = None,
    base: Base = False,
    output: OutputOption = Output.TABLE,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
) -> None:
    """Show what is known of a table's files: rows, and bounds by column."""
    with opened(table, files, options) as target:
        from tandem.cli.commands import index

        raise typer.Exit(index.show(target, version, base=base, output=output))


@index_app.command(short_help="Read all rows, and compare them with the log.")
def verify(
    table: TableArgument,
    version: Version = None,
    base: Base = False,
    output: OutputOption = Output.TABLE,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
    clone_sources: CloneSources = None,
) -> None:
    """Read all rows, and list the files of which the log says something else.

    Exit code: 0 all is as the log says, 1 it is not.
    """
    with opened(table, files, options, clone_sources) as target:
        from tandem.cli.commands import index

        raise typer.Exit(index.verify(target, version, base=base, output=output))


@index_app.command(short_help="Serve counts, bounds and splits over Arrow Flight.")
def serve(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME[=LOCATION]...",
            help="Tables by the name that callers use; with -f names of LakeTables.",
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one."
        ),
    ] = "127.0.0.1:8815",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="Holds the token that callers must present."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate, with its chain, as PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key, as PEM.")] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Limit of what is held between questions, as 512Mi or 4Gi; no limit by default.",
        ),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            metavar="PATH",
            parser=local_folder,
            help="Folder in which large answers wait; it is emptied.",
        ),
    ] = None,
    files: OptionalFilenames = None,
    options: StoreOptions = None,
) -> None:
    """Serve counts, bounds and splits of tables over Arrow Flight, until it is stopped.

    Beyond loopback it needs a token and a certificate.
    """
    with errors_to_exit():
        from tandem.cli.commands import index_serve

        settings = index_serve.ServeOptions(listen, token_file, certificate, key, answers, memory)
        raise typer.Exit(index_serve.serve(tables, files or [], options or [], settings))
