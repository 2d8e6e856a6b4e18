"""What commands of `kubectl tandem` take: kubectl's own options, and names of resources.

kubectl passes on everything after `kubectl tandem` as typed, so the plugin parses these options;
they may stand before or after the command's name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tandem.errors import InvalidSpec

_F = TypeVar("_F", bound=Callable[..., Any])


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

_CONTEXT = "typed"


def connected(*, everywhere: bool = False, root: bool = False) -> Callable[[_F], Any]:
    """Add the options above to a command, which gets them as its argument `flags`.

    Args:
        everywhere: also add `-A`.
        root: for the options before the command's name: its help lists all of them.
    """
    wanted = [_NAMESPACE, *([_EVERYWHERE] if everywhere or root else []), *_OTHERS]

    def decorate(function: _F) -> Any:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name, *_ in wanted}
            given["as_groups"] = tuple(given["as_groups"] or ())
            flags = Flags(**given)
            typed: typer.Context = values.pop(_CONTEXT)
            below = typed.find_object(Flags)
            if root:
                typed.obj = flags
            elif below is not None:
                flags = flags.with_defaults(below)
            return function(*args, flags=flags, **values)

        parameters = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "flags"
        ]
        for name, type_, default, words, text, hidden in wanted:
            option = typer.Option(*words, help=text, hidden=hidden and not root)
            parameters.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=Annotated[type_, option],
                )
            )
        parameters.append(
            inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        )
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

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
