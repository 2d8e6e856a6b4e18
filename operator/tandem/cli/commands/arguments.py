"""Arguments and options that several commands have, and the table that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from tandem.cli.errors import Exit, add_table_to_errors, errors_to_exit
from tandem.cli.options import Command, argument, option, within
from tandem.errors import InvalidSpec, TandemError

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target

TABLE_FILES = option(None, "Files that define the LakeTable; repeatable.", "-f", "--filename")
TABLE = argument(
    ..., "LOCATION_OR_NAME", "URL or path of a table, or with -f the name of a LakeTable."
)
STORE_OPTIONS = option(
    None, "Option of the object store; repeatable.", "--option", metavar="KEY=VALUE"
)
CLONE_SOURCES = option(
    None,
    "Of a shallow clone: URL or path of its source; repeatable.",
    "--clone-source",
    metavar="LOCATION",
)
VERSION = option(None, "Delta version; the latest by default.", min=0)
TIMESTAMP = option(
    None,
    "The newest version not after this time; in UTC unless it names a zone.",
    metavar="TIME",
)


def moment_ms(version: int | None, timestamp: str | None) -> int | None:
    """`--timestamp` in Unix milliseconds; None without. Raises: InvalidSpec for what is no time,
    or beside a version."""
    if timestamp is None:
        return None
    if version is not None:
        raise InvalidSpec(
            "a version and a timestamp cannot be combined",
            resource="--timestamp",
            found=f"--version {version} --timestamp {timestamp}",
            expected="one of them",
        )
    return moment_of(timestamp, "--timestamp")


def moment_of(text: str, option: str) -> int:
    """A date or a time in Unix milliseconds. Raises: InvalidSpec."""
    from tandem.timeline.chunks import parse_moment

    moment = parse_moment(text)
    if moment is None:
        raise InvalidSpec(
            "not a date or a time",
            resource=option,
            found=text,
            expected="2013, 2013-02, 2013-02-01, 2013-02-01T05 or 2013-02-01T05:30:00Z",
        )
    return moment


_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,](?:[^,]*[^\s,])?))\s*(,|$)", re.DOTALL)


def names_in(text: str, option: str) -> list[str]:
    """Names that are separated by commas. Blanks around a name do not count; a name in backquotes,
    as in SQL, is taken as it is. Dots are part of a name. Raises: InvalidSpec."""
    found: list[str] = []
    at, more = 0, True
    while more:
        name = _NAME.match(text, at)
        if name is None:
            raise InvalidSpec(
                "not a list of names",
                resource=option,
                found=text,
                expected="A,B",
                remedy="Put a name in backquotes that has commas, or blanks at its ends, or begins "
                "with a backquote, which is then doubled",
            )
        found.append(name[2] if name[1] is None else name[1].replace("``", "`"))
        at, more = name.end(), name[3] == ","
    return found


OPTION_OF_STORE = "spec.storage.options."
"""The field of the options of a store, before the name of one."""


def _in_words_of_options(error: TandemError) -> None:
    """Let an error name the options of a command in place of fields of a resource."""
    from tandem.remedies import OF_STORES

    for said, instead in ((OPTION_OF_STORE, "--option "), *OF_STORES):
        for name in ("message", "field", "found", "expected", "remedy"):
            setattr(error, name, getattr(error, name).replace(said, instead))


@contextmanager
def opened(
    location: str,
    files: Sequence[str] | None,
    options: Sequence[str] | None,
    clone_sources: Sequence[str] | None = None,
) -> Iterator[Target]:
    """The table of a command; errors end the command, and name the table."""
    with errors_to_exit():
        from tandem.cli.commands.target import target as find

        target = find(location, files or [], options or [], clone_sources or [])
        try:
            with add_table_to_errors(target.location):
                yield target
        except TandemError as error:
            if target.table is None:
                _in_words_of_options(error)
            raise


def on_table(function: Callable[..., Exit]) -> Command:
    """A command on one table, which is its first argument."""

    def run(
        table: str = TABLE,
        *,
        files: list[str] | None = TABLE_FILES,
        options: list[str] | None = STORE_OPTIONS,
        **own: Any,
    ) -> None:
        with opened(table, files, options) as target:
            raise typer.Exit(function(target, **own))

    return within(run, function)


def on_rows(function: Callable[..., Exit]) -> Command:
    """As `on_table`, for a command that reads data files: also those of a clone's source."""

    def run(
        table: str = TABLE,
        *,
        files: list[str] | None = TABLE_FILES,
        options: list[str] | None = STORE_OPTIONS,
        clone_sources: list[str] | None = CLONE_SOURCES,
        **own: Any,
    ) -> None:
        with opened(table, files, options, clone_sources) as target:
            raise typer.Exit(function(target, **own))

    return within(run, function)


def command(function: Callable[..., Exit]) -> Command:
    """A command of which an error prints a message, and ends it with its exit code."""

    def run(context: typer.Context, **own: Any) -> None:
        with errors_to_exit():
            raise typer.Exit(function(context, **own))

    return within(run, function)
