"""Arguments and options that several commands have, and the table that they name.

Options that several commands share are written once, and added to the signature of each. typer
reads the options of a command off its signature, as late as it can: names in annotations are looked
up only for the command that was typed.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.models import OptionInfo

from tandem.cli.errors import Exit, add_table_to_errors, errors_to_exit
from tandem.errors import InvalidSpec, TandemError

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target


Parameters = Iterable[inspect.Parameter]
_T = TypeVar("_T")


def option(default: Any, text: str, *flags: str, **more: Any) -> Any:
    """The default of a parameter that is an option, with its help (`...`: it must be given). Its
    flag is the name of the parameter unless others are given."""
    return typer.Option(default, *flags, help=text, **more)


def argument(default: Any, metavar: str, text: str, **more: Any) -> Any:
    """As `option`, for a parameter that is given by its place."""
    return typer.Argument(default, metavar=metavar, help=text, **more)


def group(text: str) -> typer.Typer:
    """Commands below a word, with its help."""
    return typer.Typer(help=text, no_args_is_help=True, pretty_exceptions_enable=False)


def parsed(parse: Callable[[str], _T], text: str, flag: str, expected: str = "") -> _T:
    """What the text of an option means. Raises: InvalidSpec for a text that `parse` refuses."""
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidSpec(str(error), resource=flag, found=text, expected=expected) from error


class Command:
    """What typer takes for a command: calls `run`, with the documentation of `function`, and with
    the parameters that `parameters` returns. `function` can be called from Python with all of its
    options: their defaults are typer's."""

    __name__: str

    def __init__(
        self,
        function: Callable[..., Any],
        run: Callable[..., None],
        parameters: Callable[[], Parameters],
    ) -> None:
        functools.update_wrapper(self, function)
        self.__annotations__ = {}  # typer is to look at the signature only
        self.function = function
        self._run = run
        self._parameters = parameters

    def __call__(self, **values: Any) -> None:
        self._run(**values)

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature(list(self._parameters()))


def own_options(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The options of a command itself: the parameters that have to be given by name."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            # As `inspect` does it: types of the others may be known to type checkers only.
            each = each.replace(annotation=eval(each.annotation, function.__globals__))  # noqa: S307
            if isinstance(each.default, OptionInfo) and not each.default.param_decls:
                # typer would add `--no-…` to flags.
                info = copy(each.default)
                info.param_decls = ("--" + each.name.replace("_", "-"),)
                each = each.replace(default=info)
            found.append(each)
    return found


def within(run: Callable[..., None], function: Callable[..., Any]) -> Command:
    """`function` as a command that `run` calls. The options of `function` stand where `run` takes
    any others (`**own`): after its arguments and before its options."""

    def parameters() -> Parameters:
        *shared, _own = inspect.signature(run, eval_str=True).parameters.values()
        arguments = [each for each in shared if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        every = [*arguments, *own_options(function), *shared[len(arguments) :]]
        return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]

    return Command(function, run, parameters)


TABLE_FILES = option(None, "Files that define the LakeTable; repeatable.", "-f", "--filename")
TABLE = argument(
    ...,
    "LOCATION_OR_NAME",
    "URL or path of a table, its URL in a catalog (unity://…, hive://…, glue://…), or with -f the "
    "name of a LakeTable.",
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
