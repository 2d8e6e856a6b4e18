"""Ties what a validator checks to what the API server checks.

`@cel(...)` stands on the very function that pydantic calls, so that the two judges of one rule
are read, and changed, together. The rule has no effect here: `tandem.spec.crd.definitions` writes
it into the custom resource definitions, and `tests/crds` tries both on the same wrong resources.
What a rule cannot say (other resources, calendars, a table's schema) stays with the validator
alone; the operator runs the validators again on what it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

_ATTRIBUTE: Final = "__cel_rules__"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    rule: str
    """True where the value is right; `self` is the value that the validator gets, with its
    fields named as people type them."""
    message: str
    """What people read if it is not: that of the validator, where that one is constant."""
    field: str = ""
    """The field below `self` that is wrong, as a JSON path (`.update.set`)."""
    expression: str = ""
    """CEL that makes the message, where it depends on the value; `message` if it fails."""
    hides_value: bool = False
    """The API server must not repeat the value: it may hold a credential, or is long."""

    def schema(self) -> dict[str, str]:
        """As the custom resource definition spells it."""
        spelled = {"rule": self.rule, "message": self.message}
        if self.expression:
            spelled["messageExpression"] = self.expression
        if self.field:
            spelled["fieldPath"] = self.field
        if self.hides_value:
            spelled["reason"] = "FieldValueForbidden"
        return spelled


def cel(
    rule: str,
    message: str,
    *,
    field: str = "",
    expression: str = "",
    hides_value: bool = False,
) -> Callable[[_Function], _Function]:
    """Say in CEL what the decorated validator says in Python; see `Rule` for the arguments."""

    def mark(function: _Function) -> _Function:
        added = Rule(rule, message, field, expression, hides_value)
        setattr(function, _ATTRIBUTE, (added, *rules_of(function)))
        return function

    return mark


def rules_of(function: Callable[..., Any]) -> tuple[Rule, ...]:
    """The rules on a validator, in the order in which they are written."""
    rules: tuple[Rule, ...] = getattr(function, _ATTRIBUTE, ())
    return rules
