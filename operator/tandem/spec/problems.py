"""Turns what pydantic found wrong into `InvalidSpec`: resource, field, found, expected, remedy.

All problems of all resources are reported together, so that one run of the command shows
everything there is to fix.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tandem.errors import InvalidSpec, closest_name
from tandem.spec.fields import IncompatibleFields

FieldPath = tuple[str | int, ...]
"""Names of fields and indexes of lists, from the resource down."""
_MAX_SHOWN = 80
_URL_SECRETS = re.compile(r"(?<=://)[^/\s'\"]*(?=@)|(?<=[?#])(?<=\S)[^\s'\"]+=[^\s'\"]*")
_REMEDY = "Correct the file: docs/resources.md describes every field"
"""Where a problem suggests no better one."""


class InvalidSpecs(InvalidSpec):
    """Several problems at once; its own attributes are those of the first."""

    def __init__(self, problems: Sequence[InvalidSpec]) -> None:
        first = problems[0]
        super().__init__(
            first.message,
            resource=first.resource,
            field=first.field,
            found=first.found,
            expected=first.expected,
            remedy=first.remedy,
        )
        self.problems = tuple(problems)

    def __str__(self) -> str:
        listed = "\n".join(f"  {problem}" for problem in self.problems)
        return f"{len(self.problems)} problems:\n{listed}"

    @staticmethod
    def raise_if(problems: Sequence[InvalidSpec]) -> None:
        """Raise the one problem as it is, or several together; nothing for none."""
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise InvalidSpecs(problems)


def shown(value: object) -> str:
    """A value as an error shows it: short, one line, and without what may be a credential in a
    URL (user info, a signed query)."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = _URL_SECRETS.sub("…", " ".join(text.split()))
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def dotted(path: Sequence[str | int]) -> str:
    """`("spec", "minor", "thresholds", 0)` → `spec.minor.thresholds[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def problems_of(
    error: ValidationError, *, model: type[BaseModel], resource: str, lines: Mapping[FieldPath, str]
) -> list[InvalidSpec]:
    """One `InvalidSpec` per problem; `lines` says where in which file each path was written."""
    found: list[InvalidSpec] = []
    all_details = error.errors(include_url=False)
    misspelt = {
        (*path[:-1], closest_name(str(path[-1]), field_names(model, path[:-1])))
        for details in all_details
        if details["type"] == "extra_forbidden"
        for path in [_alias_path(details["loc"])]
    }
    for details in all_details:
        path = _alias_path(details["loc"])
        if details["type"] == "missing" and path in misspelt:
            continue  # one slip of the pen, one problem
        if details["type"] == "too_short" and any(
            other["loc"][: len(details["loc"])] == details["loc"] and other is not details
            for other in all_details
        ):
            continue  # there are entries; they are what is wrong
        message, found_text, expected, remedy = _explain(details, model, path)
        place = _nearest_line(path, lines)
        found.append(
            InvalidSpec(
                f"{message} (at {place})" if place else message,
                resource=resource,
                field=dotted(path),
                found=found_text,
                expected=expected,
                remedy=remedy or _REMEDY,
            )
        )
    return found


def _alias_path(location: tuple[int | str, ...]) -> FieldPath:
    # Pydantic adds parts that are not in the input: the branch of a union (`str`,
    # `dict[str,any]`) and `[key]` for a key of a mapping.
    return tuple(
        part
        for part in location
        if isinstance(part, int) or not (part == "[key]" or part in _BRANCHES)
    )


_BRANCHES = frozenset({"str", "dict[str,any]", "constrained-str"})


def _nearest_line(path: FieldPath, lines: Mapping[FieldPath, str]) -> str:
    for length in range(len(path), -1, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return ""


def _explain(
    details: ErrorDetails, model: type[BaseModel], path: FieldPath
) -> tuple[str, str, str, str]:
    """Message, found, expected and remedy of one problem."""
    kind = details["type"]
    context: dict[str, Any] = details.get("ctx", {})
    value = details["input"]
    if kind == "extra_forbidden":
        names = field_names(model, path[:-1])
        guess = closest_name(str(path[-1]), names)
        return (
            "unknown field",
            "",
            f"one of {', '.join(names)}" if names else "",
            f"Did you mean {guess}?" if guess else "Remove it",
        )
    if kind == "missing":
        return ("required, but missing", "", "", f"Add {path[-1]}")
    if kind == "value_error" and isinstance(context["error"], IncompatibleFields):
        error = context["error"]
        return (str(error), error.found, error.expected, error.remedy)
    if kind == "value_error":
        # Our own validators speak for themselves: "must be …".
        return (str(context["error"]), "" if isinstance(value, dict) else shown(value), "", "")
    if kind in ("enum", "literal_error"):
        expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        guess = closest_name(str(value), expected.split(", "))
        remedy = f"Did you mean {guess}?" if guess else ""
        return ("is not one of the allowed values", shown(value), f"one of {expected}", remedy)
    expected = {
        "int_type": "a whole number",
        "bool_type": "true or false",
        "string_type": "text",
        "tuple_type": "a list",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
    }.get(kind, "")
    if expected:
        quote = kind == "string_type" and isinstance(value, int | float | bool)
        remedy = f'Put it in quotes: "{_yaml_scalar(value)}"' if quote else ""
        return ("has the wrong type", f"{shown(value)}", expected, remedy)
    if kind == "too_short":
        return ("has too few entries", shown(value), f"at least {context['min_length']}", "")
    if kind == "too_long":
        return ("has too many entries", shown(value), f"at most {context['max_length']}", "")
    if kind == "string_too_long":
        return ("is too long", shown(value), f"at most {context['max_length']} characters", "")
    return (details["msg"][0].lower() + details["msg"][1:], shown(value), "", "")


def _yaml_scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def field_names(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The names (as typed) of the fields of the model that `path` leads to; none if it leads
    to something else."""
    current: Any = model
    for part in path:
        candidates = _models(current) if not isinstance(part, int) else [current]
        if isinstance(part, int):
            continue  # a list's entry: `_models` looks through the list
        for candidate in candidates:
            for name, field in candidate.model_fields.items():
                if (field.alias or name) == part:
                    current = field.annotation
                    break
            else:
                continue
            break
        else:
            return []
    return [
        field.alias or name
        for candidate in _models(current)
        for name, field in candidate.model_fields.items()
    ]


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation such as `tuple[Column, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, Annotated):
        return [model for part in get_args(annotation) for model in _models(part)]
    return []


class Document:
    """One YAML document: its data, and where in which file every path of it stands."""

    """A document of a file of resources: its data, and where in which file every path of it
    stands."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.data: Any = None
        self.lines: dict[FieldPath, str] = {}
