"""Errors of a server as JSON, so that a client raises what a call in its own process would have
raised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem import errors
from tandem.errors import TandemError

_PLAIN = (str, int, tuple, type(None))
"""Types of attributes of errors that are sent."""


def described(error: TandemError) -> dict[str, Any]:
    """What is sent of an error."""
    plain = {n: v for n, v in vars(error).items() if isinstance(v, _PLAIN)}
    return {"type": type(error).__name__, "attributes": plain}


def raised(message: Mapping[str, Any]) -> TandemError:
    """The error that the server raised, as its own type."""
    kind = getattr(errors, str(message.get("type")), TandemError)
    if not (isinstance(kind, type) and issubclass(kind, TandemError)):
        kind = TandemError
    attributes = message.get("attributes")
    plain = attributes if isinstance(attributes, dict) else {}
    error: TandemError = kind.__new__(kind)
    TandemError.__init__(error, str(plain.get("message", "the index server failed")))
    for name, value in plain.items():
        vars(error)[name] = tuple(value) if isinstance(value, list) else value
    return error
