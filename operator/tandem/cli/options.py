"""Options that several commands share: written once, and added to the signature of each.

typer reads the options of a command off its signature, as late as it can: names in annotations are
looked up only for the command that was typed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, TypeVar

import typer
from typer.models import OptionInfo

from tandem.errors import InvalidSpec

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
