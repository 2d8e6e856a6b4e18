"""Exit codes, and how errors are printed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

import typer

from tandem.errors import (
    Interrupted,
    InvalidSpec,
    InvalidStatement,
    LocationNotAllowed,
    ReferenceNotFound,
    TandemError,
    UnknownSegment,
)

TYPED = "tandem.typed"
"""The key of the command's words in the context of a command."""


def is_set(context: typer.Context, flag: str) -> bool:
    """Whether a flag that stands before the command is given: `tandem -v run`."""
    return bool(context.parent and context.parent.params.get(flag))


def typed_words(context: typer.Context) -> list[str]:
    """The command as it was typed: `tandem compact /data/t`. For remedies that can be pasted."""
    return ["tandem", *context.meta.get(TYPED, ())]


def pasteable(words: Sequence[str]) -> str:
    """Words as a shell reads them, with as few quotes as possible."""
    return " ".join(
        f'"{word}"' if "'" in word and not set(word) & set('"$`\\!\n') else shlex.quote(word)
        for word in words
    )


class Exit(IntEnum):
    """`OK`: all operations ended `Succeeded` or `Superseded`. `FAILED`: at least one did not.
    `WRONG_INPUT`: the input is wrong, and nothing was started. `INTERRUPTED`: stopped by the
    user; what had committed is reported."""

    OK = 0
    FAILED = 1
    WRONG_INPUT = 2
    INTERRUPTED = 130


_WRONG_INPUT = (
    InvalidSpec,
    InvalidStatement,
    LocationNotAllowed,
    ReferenceNotFound,
    UnknownSegment,
)


def exit_code(error: TandemError) -> Exit:
    """The exit code of a command that ends with this error."""
    if isinstance(error, Interrupted):
        return Exit.INTERRUPTED
    return Exit.WRONG_INPUT if isinstance(error, _WRONG_INPUT) else Exit.FAILED


@contextmanager
def errors_to_exit() -> Iterator[None]:
    """Print a TandemError, and exit with its exit code.

    Any other exception is a bug and keeps its traceback.
    """
    try:
        yield
    except TandemError as error:
        print_error(error)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt as error:
        say("Interrupted.")
        raise typer.Exit(Exit.INTERRUPTED) from error
    except BrokenPipeError as error:
        # `tandem scan … | head`: the reader has closed the pipe. Python would report an error when
        # it exits.
        sys.stdout = None
        raise typer.Exit(Exit.OK) from error


@contextmanager
def add_table_to_errors(location: str) -> Iterator[None]:
    """Errors raised in the block name the table, also those that name only one of its files, and
    so do the commands in their remedies."""
    try:
        yield
    except TandemError as error:
        for each in (error, *getattr(error, "problems", ())):
            each.remedy = with_location(each.remedy, location)
        if location not in str(error):
            error.add_note(location)
        raise


_OF_A_TABLE = re.compile(
    r"`(tandem (?:table show|table segments|history|timeline|log show|log resolve|index show))"
    r"((?: --[a-z-]+)*)`"
)


def with_location(text: str, location: str) -> str:
    """A message whose commands name the table, so that they can be pasted."""
    place = shlex.quote(location)
    return _OF_A_TABLE.sub(lambda found: f"`{found[1]} {place}{found[2]}`", text)


def print_error(error: TandemError) -> None:
    """Print one error to standard error: what happened, then found, expected and remedy on lines
    of their own."""
    say(f"Error ({error.reason}): {error_text(error)}")


def error_text(error: TandemError) -> str:
    """The text of an error for a terminal."""
    problems = getattr(error, "problems", None)
    if problems:
        listed = "\n\n".join(error_text(problem) for problem in problems)
        return f"{len(problems)} problems\n\n{listed}"
    # A dot after a location would look like a part of it.
    joint = ", " if "://" in error.resource else "."
    where = joint.join(part for part in (error.resource, error.field) if part)
    lines = [f"{where}: {error.message}" if where else error.message]
    lines += [
        f"    {name + ':':<10}{value}"
        for name, value in (
            *(("table", note) for note in getattr(error, "__notes__", ())),
            ("found", error.found),
            ("expected", error.expected),
            ("remedy", error.remedy),
        )
        if value
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a message to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
