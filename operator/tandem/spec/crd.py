"""The custom resource definitions, generated from the models: one definition per kind, whose schema
is structural and has the docstrings under the fields as descriptions. Talks to no cluster.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import annotated_types as at
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic.types import Strict
from pydantic_core import PydanticUndefined

from tandem.spec.common import (
    API_VERSION,
    GROUP,
    OPERATIONS,
    VERSION,
    Operation,
    OperationSpec,
    RewritingSpec,
    plural,
)
from tandem.spec.fields import (
    DnsName,
    ListType,
    OneOf,
    Rule,
    format_duration,
    format_quantity,
    rules_of,
)
from tandem.spec.resources import KINDS, AnyKind, IndexServer, LakeTable
from tandem.spec.status import IndexServerStatus, OperationStatus, TableStatus

# The descriptions of fields: the docstring under each attribute of a model.
#
# They are read from the source when a definition or a page is generated. Pydantic could read them
# as it makes a class, but then each process that imports the models would parse their source.


def described_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, with the docstrings under them as descriptions; those that say their
    description themselves keep it. Raises: OSError for a model without source."""
    texts = {name: text for base in reversed(model.__mro__) for name, text in _docstrings(base)}
    found = {}
    for name, field in model.model_fields.items():
        described = copy.copy(field)
        described.description = field.description or texts.get(name)
        found[name] = described
    return found


@cache
def _docstrings(model: type) -> tuple[tuple[str, str], ...]:
    """Each attribute that a class itself has a docstring for, and that docstring."""
    if not issubclass(model, BaseModel) or model is BaseModel:
        return ()
    [made] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(made, ast.ClassDef)
    found = []
    for attribute, text in zip(made.body, made.body[1:], strict=False):
        match attribute, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                found.append((name, inspect.cleandoc(said)))
    return tuple(found)


# From a pydantic model to the structural schema of a custom resource definition.
#
# Follows the models as they are: types, bounds, defaults, descriptions, and the rules that stand
# on validators (`tandem.spec.fields`). Raises on anything that it cannot express, so that no check
# of the model is lost unnoticed. `tandem.spec.crd` applies it to the kinds.


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
        if alias in getattr(model, "only_recorded", ()):
            continue
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


# The custom resource definitions of all kinds, generated from the models.
#
# One model is the source of what `tandem run` accepts, of `docs/resources.md` and of what the API
# server accepts; `make docs` writes `crds/`, and a test compares. Pure: reads and writes nothing.


CATEGORY: Final = "lake"
"""`kubectl get lake` lists every kind."""

_NOTE: Final = "# Generated by `make docs` from tandem.spec: edit that instead.\n"


def file_name(kind: str) -> str:
    return f"{GROUP}_{plural(kind)}.yaml"


def definition(kind: str) -> dict[str, Any]:
    """The `CustomResourceDefinition` of a kind of `KINDS`."""
    model = KINDS[kind]
    selectable = {LakeTable: [".status.phase"], IndexServer: []}.get(
        model, [".spec.tableRef.name", ".status.phase"]
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "tandem", "app.kubernetes.io/part-of": "tandem"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural(kind),
                "singular": kind.lower(),
                "shortNames": [model.short_name],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    **(
                        {"selectableFields": [{"jsonPath": path} for path in selectable]}
                        if selectable
                        else {}
                    ),
                    "additionalPrinterColumns": _columns(kind),
                    "schema": {"openAPIV3Schema": _schema(model)},
                }
            ],
        },
    }


def manifest(kind: str) -> str:
    """The file of a kind in `crds/`."""
    return _NOTE + yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)


def _schema(model: type[AnyKind]) -> JsonSchema:
    # The API server itself checks metadata, but for what is ours: a name becomes a label's value.
    name_rules = value_schema(DnsName)[RULES]
    spec_model = model.model_fields["spec"].annotation
    assert isinstance(spec_model, type)
    assert issubclass(spec_model, BaseModel)
    spec = object_schema(spec_model)
    spec.setdefault("description", "The desired state.")
    rules = [
        *spec.get(RULES, ()),
        *(rule.schema() for rule in _fixed_rules(model, spec_model, spec)),
    ]
    if rules:
        spec[RULES] = rules
    return {
        "type": "object",
        "description": " ".join((model.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {API_VERSION}."},
            "kind": {"type": "string", "description": f"Always {model.kind_name}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _status(model),
        },
        RULES: [
            *(
                {
                    "rule": rule["rule"].replace("self", "self.metadata.name"),
                    "message": f"metadata.name {rule['message']}",
                }
                for rule in name_rules
            ),
            *(
                rule.schema()
                for validator in model.__pydantic_decorators__.model_validators.values()
                for rule in rules_of(validator.func)
            ),
        ],
    }


_STATUSES: Final[Mapping[type[AnyKind], type[BaseModel]]] = {
    LakeTable: TableStatus,
    IndexServer: IndexServerStatus,
}


def _fixed_rules(model: type[AnyKind], spec_model: type[BaseModel], spec: JsonSchema) -> list[Rule]:
    """One rule for every field that must not change, so that the message names it."""
    if issubclass(spec_model, OperationSpec):
        fixed = set(spec_model.model_fields) - spec_model.changeable
        free = [spec_model.model_fields[name].alias for name in sorted(spec_model.changeable)]
        message = (
            f"cannot be changed: create a new {model.kind_name} "
            f"(only {', '.join(map(str, free))} may change)"
        )
    else:
        fixed = set(getattr(spec_model, "fixed", ()))
        message = f"cannot be changed: create a new {model.kind_name}"
    rules = []
    for name, field in spec_model.model_fields.items():
        if name not in fixed:
            continue
        alias = field.alias or name
        always = alias in spec.get("required", ()) or "default" in spec["properties"][alias]
        same = f"self.{alias} == oldSelf.{alias}"
        rule = (
            same
            if always
            else f"has(self.{alias}) == has(oldSelf.{alias}) && (!has(self.{alias}) || {same})"
        )
        rules.append(Rule(rule, message, field=f".{alias}", hides_value=True))
    return rules


def _remove(schema: JsonSchema, path: Sequence[str]) -> None:
    *above, name = path
    for part in above:
        schema = schema.get("properties", {}).get(part, {})
    schema.get("properties", {}).pop(name, None)


def _status(kind: type[AnyKind]) -> JsonSchema:
    """Open to what other versions of the operator report: no enums, no bounds, no required
    fields but what makes a condition one. What only some kinds report is in their schemas only."""
    schema = object_schema(_STATUSES.get(kind, OperationStatus), defaults=False)
    if issubclass(kind, Operation):
        for path in frozenset().union(*(each.reports for each in OPERATIONS.values())):
            if path not in kind.reports:
                _remove(schema, path.split("."))
    _loosen(schema)
    schema["description"] = "The observed state; written by the operator."
    # -1 until the operator has seen the resource. Without it, tools that wait for a resource take
    # one that was never reconciled for done.
    schema["default"] = {"observedGeneration": -1}
    conditions = schema["properties"]["conditions"]
    conditions["x-kubernetes-list-type"] = "map"
    conditions["x-kubernetes-list-map-keys"] = ["type"]
    condition = conditions["items"]
    condition["required"] = ["type", "status", "reason", "message", "lastTransitionTime"]
    condition["properties"]["status"] = {
        "type": "string",
        "enum": ["True", "False", "Unknown"],
        "description": "Whether the condition applies.",
    }
    condition["properties"]["lastTransitionTime"]["format"] = "date-time"
    return schema


def _loosen(schema: JsonSchema) -> None:
    values = schema.pop("enum", None)
    if values:
        description = schema.get("description", "")
        listed = f"One of {', '.join(values)}; later versions may add some."
        schema["description"] = f"{description} {listed}".strip()
    for inner in (
        *schema.get("properties", {}).values(),
        *(schema[key] for key in ("items", "additionalProperties") if key in schema),
    ):
        _loosen(inner)


_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_SUCCEEDED: Final = '.status.conditions[?(@.type=="Succeeded")]'
_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _columns(kind: str) -> list[dict[str, Any]]:
    """What `kubectl get` prints; `-o wide` prints those of priority 1 too."""

    def column(name: str, path: str, type_: str = "string", *, wide: bool = False) -> Any:
        shown = {"name": name, "type": type_, "jsonPath": path}
        return {**shown, "priority": 1} if wide else shown

    if kind == "LakeTable":
        return [
            column("Version", ".status.version", "integer"),
            column("Segments", ".status.segments", "integer"),
            column("Files", ".status.files", "integer"),
            column("Bytes", ".status.bytes", "integer"),
            column("Ready", f"{_READY}.status"),
            column("Reason", f"{_READY}.reason"),
            column("Rows", ".status.rows", "integer", wide=True),
            column("Deleted", ".status.deletedRows", "integer", wide=True),
            column("Small", ".status.smallFiles", "integer", wide=True),
            column("Blocks", ".status.log.blocks", "integer", wide=True),
            column("Unmerged", ".status.log.oldestUnmerged", "date", wide=True),
            column("Location", ".status.location", wide=True),
            column("Message", f"{_READY}.message", wide=True),
            _AGE,
        ]
    if kind == "IndexServer":
        return [
            column("Tables", ".status.tableCount", "integer"),
            column("Bytes", ".status.cache.bytes", "integer"),
            column("Ready", f"{_READY}.status"),
            column("Reason", f"{_READY}.reason"),
            column("Executors", ".status.executors.ready", "integer", wide=True),
            column("Evictions", ".status.cache.evictions", "integer", wide=True),
            column("Endpoint", ".status.endpoint", wide=True),
            column("Message", f"{_READY}.message", wide=True),
            _AGE,
        ]
    spec = OPERATIONS[kind].model_fields["spec"].annotation
    yields = isinstance(spec, type) and issubclass(spec, RewritingSpec)
    return [
        column("Table", ".spec.tableRef.name"),
        *(column(name, path) for name, path in OPERATIONS[kind].columns.items()),
        column("Phase", ".status.phase"),
        *(column(name, path) for name, path in OPERATIONS[kind].result_columns.items()),
        column("Progress", ".status.progress.summary"),
        column("Reason", f"{_SUCCEEDED}.reason"),
        column("Attempt", ".status.attempt", "integer", wide=True),
        column("Version", ".status.result.version", "integer", wide=True),
        *([column("Yields", ".status.yields.count", "integer", wide=True)] if yields else []),
        column("Message", f"{_SUCCEEDED}.message", wide=True),
        _AGE,
    ]
