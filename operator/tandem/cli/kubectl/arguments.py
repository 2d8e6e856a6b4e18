"""What commands of `kubectl tandem` take: kubectl's own options, and names of resources.

kubectl passes on everything after `kubectl tandem` as typed, so the plugin parses these options;
they may stand before or after the command's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import typer

from tandem.cli.commands.arguments import Command, own_options, parsed
from tandem.cli.errors import Exit, errors_to_exit
from tandem.errors import InvalidSpec


def _flag(text: str, *words: str, default: Any = None, hidden: bool = False) -> Any:
    """An option of kubectl; `hidden` ones are only in the help of all commands together."""
    return field(default=default, metadata={"words": words, "help": text, "hidden": hidden})


@dataclass(frozen=True, slots=True)
class Flags:
    """kubectl's own options as typed, which every command has; None or empty if not given."""

    namespace: str | None = _flag("Namespace; the context's by default.", "-n", "--namespace")
    all_namespaces: bool = _flag("In all namespaces.", "-A", "--all-namespaces", default=False)
    context: str | None = _flag("Context of the kubeconfig.", "--context")
    kubeconfig: Path | None = _flag(
        "Kubeconfig; by default KUBECONFIG or ~/.kube/config.", "--kubeconfig"
    )
    cluster: str | None = _flag("Cluster of the kubeconfig.", "--cluster", hidden=True)
    user: str | None = _flag("User of the kubeconfig.", "--user", hidden=True)
    server: str | None = _flag("Address of the API server.", "-s", "--server", hidden=True)
    token: str | None = _flag("Bearer token for the API server.", "--token", hidden=True)
    as_user: str | None = _flag("User to impersonate.", "--as", hidden=True)
    as_groups: tuple[str, ...] = _flag(
        "Group to impersonate; repeatable.", "--as-group", default=(), hidden=True
    )
    request_timeout: str = _flag(
        "Timeout of one call: 10s, 1m.", "--request-timeout", default="", hidden=True
    )

    def with_defaults(self, below: Flags) -> Flags:
        """These flags, completed by those that only `below` has."""
        missing = {
            each.name: getattr(below, each.name)
            for each in fields(self)
            if getattr(self, each.name) in (None, "", (), False)
        }
        return replace(self, **missing)

    @property
    def timeout_s(self) -> float:
        """The timeout of one call, in seconds. Raises: InvalidSpec."""
        from tandem.spec.fields import parse_duration

        if self.request_timeout in ("", "0"):
            return 30.0
        text = self.request_timeout
        given = f"{text}s" if text.isdigit() else text
        return parsed(parse_duration, given, "--request-timeout", "10s, 1m") / 1000


def connected(
    *, everywhere: bool = False, root: bool = False
) -> Callable[[Callable[..., Exit]], Command]:
    """A command in a cluster: it has the options of `Flags` in addition to its own, and gets them
    as its first argument.

    Args:
        everywhere: also add `-A`.
        root: for the options before the command's name: its help lists all of them.
    """
    wanted = [each for each in fields(Flags) if everywhere or root or each.name != "all_namespaces"]

    def decorate(function: Callable[..., Exit]) -> Command:
        def run(typed: typer.Context, **values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in wanted}
            flags = Flags(**{**given, "as_groups": tuple(given["as_groups"] or ())})
            below = typed.find_object(Flags)
            if root:
                typed.obj = flags
                return
            with errors_to_exit():
                chosen = flags if below is None else flags.with_defaults(below)
                raise typer.Exit(function(chosen, **values))

        def parameters() -> Iterator[inspect.Parameter]:
            kind = inspect.Parameter.KEYWORD_ONLY
            types = {**get_type_hints(Flags), "as_groups": list[str] | None}
            yield from own_options(function)
            for each in wanted:
                words, text, hidden = each.metadata.values()
                option = typer.Option(
                    None if each.default == () else each.default,
                    *words,
                    help=text,
                    hidden=hidden and not root,
                )
                yield inspect.Parameter(
                    each.name, kind, default=option, annotation=types[each.name]
                )
            yield inspect.Parameter("typed", kind, annotation=typer.Context)

        return Command(function, run, parameters)

    return decorate


# The forms in which users name a resource: `TableCompaction/nightly`, `tcomp/nightly`,
# `tablecompactions.tandem.dev/nightly`. Pure.


_TABLE = "LakeTable"


def short_name(kind: str) -> str:
    """`TableCompaction` → `tcomp`."""
    from tandem.spec.resources import KINDS

    return KINDS[kind].short_name


def kind_of(text: str) -> str:
    """The kind in any of its forms. Raises: InvalidSpec."""
    from tandem.spec.common import GROUP, plural
    from tandem.spec.resources import KINDS

    word = text.lower().removesuffix(f".{GROUP}")
    for kind in KINDS:
        if word in (kind.lower(), plural(kind), short_name(kind)):
            return kind
    raise InvalidSpec(
        "not a kind of Tandem",
        resource=text,
        expected=", ".join(f"{kind} ({short_name(kind)})" for kind in KINDS),
    )


def parse_resource(text: str, *, tables: bool = True) -> tuple[str, str]:
    """Kind and name of `KIND/NAME`. Raises: InvalidSpec."""
    from tandem.spec.common import OPERATIONS

    kind, slash, name = text.partition("/")
    if not (kind and slash and name) or "/" in name:
        raise InvalidSpec(
            "not a resource", resource=text, expected="KIND/NAME, as in tcomp/nightly"
        )
    found = kind_of(kind)
    if found not in OPERATIONS and not (tables and found == _TABLE):
        raise InvalidSpec(
            f"{found} is not an operation", resource=text, expected=" or ".join(OPERATIONS)
        )
    return found, name


def parse_table(text: str | None) -> str | None:
    """The name of a LakeTable, which may be typed with its kind. Raises: InvalidSpec."""
    if text is None or "/" not in text:
        return text
    kind, name = parse_resource(text)
    if kind != _TABLE:
        raise InvalidSpec("no table", resource=text, expected="the name of a LakeTable")
    return name
