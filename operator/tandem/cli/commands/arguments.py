"""Arguments and options that several commands have, and the table that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.errors import add_table_to_errors, errors_to_exit

if TYPE_CHECKING:
    from tandem.cli.commands.tables import Target

OptionalFilenames = Annotated[
    list[str] | None,
    typer.Option(
        "-f", "--filename", help="Files in which a LakeTable of that name is looked up; repeatable."
    ),
]
TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOCATION_OR_NAME", help="URL or path of a table; with -f a LakeTable's name."
    ),
]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Option of the object store; repeatable."),
]
Version = Annotated[
    int | None, typer.Option("--version", min=0, help="Delta version; the latest by default.")
]


@contextmanager
def opened(
    location: str, files: Sequence[str] | None, options: Sequence[str] | None
) -> Iterator[Target]:
    """The table of a command; errors end the command, and name the table."""
    with errors_to_exit():
        from tandem.cli.commands import tables

        target = tables.target(location, files or [], options or [])
        with add_table_to_errors(target.location):
            yield target
