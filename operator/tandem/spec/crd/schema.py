"""From a pydantic model to the structural schema of a custom resource definition.

Follows the models as they are: types, bounds, defaults, descriptions, and the rules that stand
on validators (`tandem.spec.rules`). Raises on anything that it cannot express, so that no check of
the model is lost unnoticed. `tandem.spec.crd.definitions` applies it to the kinds.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.types import Strict
from pydantic_core import PydanticUndefined

from tandem.spec.crd.descriptions import described_fields
from tandem.spec.fields import ListType, OneOf, format_duration, format_quantity
from tandem.spec.rules import Rule, rules_of

JsonSchema = dict[str, Any]

RULES: Final = "x-kubernetes-validations"
_UNKNOWN: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_UNITS: Final = {
    "size": "A Kubernetes quantity in bytes, such as 128Mi or 1G.",
    "duration": "A Go duration, such as 10m, 1h30m or 168h.",
}
_MAX_SIZE_LENGTH: Final = 32
_MAX_DURATION_LENGTH: Final = 64


def object_schema(model: type[BaseModel], *, defaults: bool = True) -> JsonSchema:
    """The schema of a model.

    Args:
        model: a model of `tandem.spec`.
        defaults: whether the API server fills in defaults and insists on required fields. Not
            so in `status`: an operator of another version must always be able to write it.

    Raises:
        TypeError: the model holds something that this cannot say.
    """
    properties: dict[str, JsonSchema] = {}
    required: list[str] = []
    field_rules = _field_rules(model)
    for name, field in described_fields(model).items():
        alias = field.alias or name
        schema = value_schema(field.annotation, field.metadata, defaults=defaults)
        _add_rules(schema, field_rules.get(name, ()))
        _describe(schema, field)
        if defaults:
            if field.is_required():
                required.append(alias)
            else:
                default = _default(field, schema)
                if default is not None:
                    schema["default"] = default
        properties[alias] = schema
    for spelling, meant in getattr(model, "spellings", {}).items():
        properties[spelling] = {
            **properties[meant],
            "description": f"Means {meant}, as YAML 1.1 reads it without quotes.",
        }
        required.remove(meant)  # a rule says that one of them is
    schema = {"type": "object"}
    if model.__doc__ and model.__doc__ != BaseModel.__doc__:
        schema["description"] = _one_line(model.__doc__)
    if required:
        schema["required"] = required
    if properties:
        schema["properties"] = properties
    decorators = model.__pydantic_decorators__.model_validators.values()
    _add_rules(schema, (rule for decorator in decorators for rule in rules_of(decorator.func)))
    return schema


def value_schema(
    annotation: Any, metadata: Sequence[Any] = (), *, defaults: bool = True
) -> JsonSchema:
    """The schema of a value of this type; `metadata` as in `Annotated`."""
    annotation, extras = _flat(annotation, metadata)
    schema = _type_schema(annotation, extras, defaults)
    for extra in extras:
        _constrain(schema, extra)
    return schema


def _flat(annotation: Any, metadata: Iterable[Any]) -> tuple[Any, list[Any]]:
    """The bare type, without `Annotated` and `| None`, and all of its metadata."""
    extras = list(metadata)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            extras = more + extras
            continue
        options = [option for option in get_args(annotation) if option is not types.NoneType]
        if get_origin(annotation) in (Union, types.UnionType) and len(options) == 1:
            annotation = options[0]
            continue
        flat: list[Any] = []
        for extra in extras:
            flat.extend(extra.metadata if isinstance(extra, FieldInfo) else [extra])
        return annotation, flat


def _type_schema(annotation: Any, extras: list[Any], defaults: bool) -> JsonSchema:
    origin, arguments = get_origin(annotation), get_args(annotation)
    marker = _marker(extras)
    if marker == "size":
        return {_INT_OR_STRING: True, "maxLength": _MAX_SIZE_LENGTH}
    if marker == "duration":
        return {"type": "string", "maxLength": _MAX_DURATION_LENGTH}
    if annotation is Any or origin in (Union, types.UnionType):
        return {_UNKNOWN: True}  # text or a mapping: a structural schema has one type or none
    if origin is tuple:
        return {"type": "array", "items": value_schema(arguments[0], defaults=defaults)}
    if origin is dict:
        if arguments[1] is Any:
            return {"type": "object", _UNKNOWN: True}
        schema: JsonSchema = {
            "type": "object",
            "additionalProperties": value_schema(arguments[1], defaults=defaults),
        }
        _add_rules(schema, _key_rules(arguments[0]))
        return schema
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            return object_schema(annotation, defaults=defaults)
        if issubclass(annotation, Enum):
            return {"type": "string", "enum": [member.value for member in annotation]}
        if issubclass(annotation, bool):
            return {"type": "boolean"}
        if issubclass(annotation, int):
            return {"type": "integer", "format": "int64"}
        if issubclass(annotation, float):
            return {"type": "number"}
        if issubclass(annotation, str):
            return {"type": "string"}
    raise TypeError(f"no structural schema for {annotation!r}")


def _marker(extras: Iterable[Any]) -> str:
    for extra in extras:
        if isinstance(extra, WithJsonSchema) and extra.json_schema:
            return str(extra.json_schema.get("x-tandem-type", ""))
    return ""


_BOUNDS: Final[dict[type, dict[str, str]]] = {
    at.MinLen: {"string": "minLength", "array": "minItems", "object": "minProperties"},
    at.MaxLen: {"string": "maxLength", "array": "maxItems", "object": "maxProperties"},
}


def _constrain(schema: JsonSchema, extra: Any) -> None:
    match extra:
        case at.MinLen(length) | at.MaxLen(length):
            schema[_BOUNDS[type(extra)][schema["type"]]] = length
        case at.Gt(bound) | at.Ge(bound) | at.Lt(bound) | at.Le(bound):
            if schema.get("type") in ("integer", "number"):
                below = isinstance(extra, at.Gt | at.Ge)
                schema["minimum" if below else "maximum"] = bound
                if isinstance(extra, at.Gt | at.Lt):
                    schema["exclusiveMinimum" if below else "exclusiveMaximum"] = True
            elif _INT_OR_STRING in schema and isinstance(extra, at.Gt) and bound == 0:
                pass  # the type's own rule says so: another one would cost too much
            elif _INT_OR_STRING in schema:
                raise TypeError(f"cannot say {extra!r} of a size")
            else:
                _add_rules(schema, [_duration_rule(extra, bound)])
        case ListType(name, key):
            schema["x-kubernetes-list-type"] = name
            if key:
                schema["x-kubernetes-list-map-keys"] = [key]
        case AfterValidator(func=function) | BeforeValidator(func=function):
            _add_rules(schema, rules_of(function))
        case OneOf(names):
            schema["enum"] = list(names())
        case Strict() | PlainSerializer() | WithJsonSchema():
            pass
        case _:
            raise TypeError(f"cannot say {extra!r} in a structural schema")


def _duration_rule(extra: Any, bound: Any) -> Rule:
    """A bound on a duration, which is text to the API server."""
    words = {
        at.Gt: "greater than",
        at.Ge: "greater than or equal to",
        at.Lt: "less than",
        at.Le: "less than or equal to",
    }[type(extra)]
    # The model counts whole milliseconds, and leaves out what is less.
    sign = ">=" if isinstance(extra, at.Gt | at.Ge) else "<"
    limit = format_duration(bound + isinstance(extra, at.Gt | at.Le))
    return Rule(
        # A value that is no duration violates another rule, and must not fail here, too.
        f"!self.matches('^(0|([0-9.]+[nuµμm]?[smh])+)$') "
        f"|| duration(self) {sign} duration('{limit}')",
        f"must be {words} {format_duration(bound) if bound else 0}",
    )


def _key_rules(annotation: Any) -> list[Rule]:
    """Rules for the keys of a mapping, which have no schema of their own."""
    _, extras = _flat(annotation, ())
    rules = []
    for extra in extras:
        match extra:
            case at.MaxLen(length):
                words = f"a name must have at most {length} characters"
                rules.append(Rule(f"self.all(key, size(key) <= {length})", words))
            case AfterValidator(func=function):
                for rule in rules_of(function):
                    inner = re.sub(r"\bself\b", "key", rule.rule)
                    rules.append(Rule(f"self.all(key, {inner})", f"a name {rule.message}"))
            case Strict():
                pass
            case _:
                raise TypeError(f"cannot say {extra!r} of a key in a structural schema")
    return rules


def _field_rules(model: type[BaseModel]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for decorator in model.__pydantic_decorators__.field_validators.values():
        for name in decorator.info.fields:
            found.setdefault(name, []).extend(rules_of(decorator.func))
    return found


def _add_rules(schema: JsonSchema, rules: Iterable[Rule]) -> None:
    spelled = [rule.schema() for rule in rules]
    if spelled:
        schema[RULES] = [*schema.get(RULES, ()), *spelled]


def _describe(schema: JsonSchema, field: FieldInfo) -> None:
    description = _one_line(field.description or "") or schema.get("description", "")
    _, extras = _flat(field.annotation, field.metadata)
    unit = _UNITS.get(_marker(extras), "")
    text = " ".join(part for part in (description, unit) if part)
    if text:
        schema["description"] = text


def _default(field: FieldInfo, schema: JsonSchema) -> Any:
    """What the API server fills in, in the form that people type; `None` for nothing."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value is PydanticUndefined or value in ((), {}):
        return None
    if isinstance(value, BaseModel):
        assert value == type(value)(), f"{value!r} differs from the defaults of its fields"
        # Spelled out, since the API server checks the rules against the default as it stands.
        inner = schema.get("properties", {}).items()
        return {name: one["default"] for name, one in inner if "default" in one} or None
    _, extras = _flat(field.annotation, field.metadata)
    marker = _marker(extras)
    if marker == "size":
        return format_quantity(value)
    if marker == "duration":
        return format_duration(value)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())
