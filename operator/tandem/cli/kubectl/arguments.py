"""What commands of `kubectl tandem` take: kubectl's own options, and names of resources.

kubectl passes on everything after `kubectl tandem` as typed, so the plugin parses these options;
they may stand before or after the command's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.errors import Exit, errors_to_exit
from tandem.cli.options import Command, own_options
from tandem.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags as typed; None or empty if not given."""

    namespace: str | None = None
    all_namespaces: bool = False
    context: str | None = None
    kubeconfig: Path | None = None
    cluster: str | None = None
    user: str | None = None
    server: str | None = None
    token: str | None = None
    as_user: str | None = None
    as_groups: tuple[str, ...] = ()
    request_timeout: str = ""

    def with_defaults(self, below: Flags) -> Flags:
        """These flags, completed by those that only `below` has."""
        missing = {
            field.name: getattr(below, field.name)
            for field in fields(self)
            if getattr(self, field.name) in (None, "", (), False)
        }
        return replace(self, **missing)

    @property
    def timeout_s(self) -> float:
        """The timeout of one call, in seconds. Raises: InvalidSpec."""
        from tandem.spec.fields import parse_duration

        if self.request_timeout in ("", "0"):
            return 30.0
        text = self.request_timeout
        try:
            return parse_duration(f"{text}s" if text.isdigit() else text) / 1000
        except ValueError as error:
            raise InvalidSpec(
                str(error), resource="--request-timeout", found=text, expected="10s, 1m"
            ) from error


_NAMESPACE = ("namespace", str | None, None, ["-n", "--namespace"],
              "Namespace; the context's by default.", False)  # fmt: skip
_EVERYWHERE = ("all_namespaces", bool, False, ["-A", "--all-namespaces"],
               "In all namespaces.", False)  # fmt: skip
_OTHERS = (
    ("context", str | None, None, ["--context"], "Context of the kubeconfig.", False),
    ("kubeconfig", Path | None, None, ["--kubeconfig"],
     "Kubeconfig; by default KUBECONFIG or ~/.kube/config.", False),
    ("cluster", str | None, None, ["--cluster"], "Cluster of the kubeconfig.", True),
    ("user", str | None, None, ["--user"], "User of the kubeconfig.", True),
    ("server", str | None, None, ["-s", "--server"], "Address of the API server.", True),
    ("token", str | None, None, ["--token"], "Bearer token for the API server.", True),
    ("as_user", str | None, None, ["--as"], "User to impersonate.", True),
    ("as_groups", list[str] | None, None, ["--as-group"], "Group to impersonate; repeatable.",
     True),
    ("request_timeout", str, "", ["--request-timeout"], "Timeout of one call: 10s, 1m.", True),
)  # fmt: skip


def connected(
    *, everywhere: bool = False, root: bool = False
) -> Callable[[Callable[..., Exit]], Command]:
    """A command in a cluster: it has the options above in addition to its own, and gets them as its
    first argument.

    Args:
        everywhere: also add `-A`.
        root: for the options before the command's name: its help lists all of them.
    """
    wanted = [_NAMESPACE, *([_EVERYWHERE] if everywhere or root else []), *_OTHERS]

    def decorate(function: Callable[..., Exit]) -> Command:
        def run(typed: typer.Context, **values: Any) -> None:
            given = {name: values.pop(name) for name, *_ in wanted}
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
            yield from own_options(function)
            for name, type_, default, words, text, hidden in wanted:
                option = typer.Option(*words, help=text, hidden=hidden and not root)
                yield inspect.Parameter(
                    name, kind, default=default, annotation=Annotated[type_, option]
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
