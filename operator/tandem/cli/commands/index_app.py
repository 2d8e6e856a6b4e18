"""The commands of `tandem index`, their options and their help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import typer

from tandem.cli.commands.arguments import (
    STORE_OPTIONS,
    TABLE_FILES,
    TIMESTAMP,
    VERSION,
    command,
    on_rows,
    on_table,
)
from tandem.cli.errors import Exit
from tandem.cli.options import argument, group, option
from tandem.cli.output import Output, OutputOption

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
