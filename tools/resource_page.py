"""`docs/resources.md`: every field of every kind, from the resource model and from the custom
resource definitions. Used by `generate_docs.py`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from enum import EnumType, StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tandem.spec import KINDS, crd
from tandem.spec.common import OPERATIONS, OperationSpec
from tandem.spec.crd import RULES, described_fields, object_schema
from tandem.spec.fields import OneOf, format_duration, format_quantity
from tandem.spec.status import IndexServerStatus, OperationStatus, TableStatus

Schema = Mapping[str, Any]
_BOUNDS = (
    ("minItems", "maxItems", "entries"),
    ("minProperties", "maxProperties", "entries"),
    ("minLength", "maxLength", "characters"),
    ("minimum", "maximum", ""),
)
_BOUND_WORDS = ("must be greater than", "must be less than")
"""The first words of a rule that bounds a duration; its other rules define what a duration is."""
_FIXED = "cannot be changed"
_MANY = 2
"""A mapping of so many fields is described in one place."""

_RESOURCES = """`apiVersion: tandem.dev/v1alpha1`. The same files work with `tandem run -f` and,
with the operator, with `kubectl apply -f`. Both refuse the same mistakes. Tandem's rules have the
same messages in both; the API server words unknown fields and values of a wrong type itself. A
field that is null counts as absent. Sizes are Kubernetes quantities (`128Mi`, `1G`, bytes as a
number), more than 0 and less than 8Ei. Durations are Go durations (`10m`, `1h30m`; no days), at
most 100 years. Fields in **bold** are required.

**Bounds** are the limits that the API server enforces. `entries` and `characters` are the maximum
sizes of a list, a mapping or a text. Combinations of fields that are refused are listed with their
messages below the table.

**Quotes.** kubectl reads YAML 1.1, in which `yes`, `no`, `on`, `off`, `y` and `n` are true or
false, `010` is 8 and `1_000` is 1000. `tandem run` reads these words as text, which the API server
refuses as booleans, and refuses such numbers. Within a `sparkTemplate`, which has no other check,
it refuses both. So a file means the same to both, or one of them reports an error. These need
quotes: names of segments (`"0.1"`, `"7"`), columns of these names (`set: {"no": …}`), texts in
`options` (`header: "true"`) and cron expressions that begin with a star (`"*/5 * * * *"`).
`1Gi`, `4h`, `01:00`, `2013-02` and `0 3 * * *` need no quotes. Neither does the `on` of a merge:
the API server accepts the key `true` that kubectl makes of it.
"""


def resources(note: str) -> str:
    """All fields of all kinds, with types, defaults, bounds and meaning."""
    text = "# Resources\n\n" + note + _RESOURCES
    text += "\n## Every operation\n\nFields of all kinds but `LakeTable` and `IndexServer`.\n\n"
    text += _table(_rows(OperationSpec, "spec", object_schema(OperationSpec)))
    homes = _homes()
    for name, model in KINDS.items():
        schema = _spec_schema(name)
        rows = _own_rows(name, homes)
        text += f"\n## {name}\n\n{_first_paragraph(model)} Short name: `{model.short_name}`. "
        text += f"Example: [{name.lower()}.yaml](../examples/kinds/{name.lower()}.yaml). "
        text += f"{_changes(name, schema)}\n\n"
        text += _table(rows)
        refused = list(dict.fromkeys(_refused(schema)))
        if refused:
            text += "\nRefused:\n\n" + "".join(f"- {each}\n" for each in refused)
    text += "\n# Status\n\nFields that do not apply are absent.\n"
    for title, status in (
        ("LakeTable", TableStatus),
        ("IndexServer", IndexServerStatus),
        ("every operation", OperationStatus),
    ):
        text += f"\n## Status of {title}\n\n| field | type | meaning |\n|---|---|---|\n"
        for path, field, _, _ in _rows(status, "status", object_schema(status, defaults=False)):
            text += f"| `{path}` | {_type(field)} | {_meaning(field)} |\n"
    return text


def _own_rows(kind: str, homes: Homes) -> list[Row]:
    """The rows of a kind without those of every operation."""
    found = _rows(
        KINDS[kind].model_fields["spec"].annotation, "spec", _spec_schema(kind), kind, homes
    )
    if kind not in OPERATIONS:
        return list(found)
    common = {field.alias or at for at, field in OperationSpec.model_fields.items()}
    return [row for row in found if row[0].split(".")[1].rstrip("[]") not in common]


def _homes() -> Homes:
    """Where a mapping that occurs in several places is described: at the shortest path."""
    homes: Homes = {}
    for kind in KINDS:
        found: Homes = {}
        for path, field, schema, _ in _own_rows(kind, {}):
            for model, listed in _models(field.annotation):
                below = schema["items"] if listed else schema
                if len(model.model_fields) >= _MANY and "properties" in below:
                    found.setdefault(_identity(model, below), (kind, path))
        for key, (_, path) in found.items():
            if key not in homes or len(path) < len(homes[key][1]):
                homes[key] = found[key]
    return homes


def _identity(model: type[BaseModel], schema: Schema) -> tuple[str, str]:
    """Two mappings with the same fields, bounds and defaults."""
    same = {key: value for key, value in schema.items() if key != "description"}
    return model.__name__, json.dumps(same, sort_keys=True)


def _spec_schema(kind: str) -> Schema:
    (version,) = crd.definition(kind)["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _changes(kind: str, schema: Schema) -> str:
    """The fields that may change after creation, by the rules of the definition."""
    fixed = sum(_FIXED in rule["message"] for rule in schema.get(RULES, ()))
    spec = KINDS[kind].model_fields["spec"].annotation
    changeable = getattr(spec, "changeable", None)
    if changeable is None:
        names = sorted(getattr(spec, "fixed", ()))
        assert len(names) == fixed, kind
        if not names:
            return "All fields may change."
        return f"Immutable: {', '.join(f'`{name}`' for name in names)}."
    assert isinstance(spec, type)
    assert issubclass(spec, BaseModel)
    assert len(spec.model_fields) - len(changeable) == fixed, kind
    names = [str(spec.model_fields[name].alias) for name in sorted(changeable)]
    return f"Only these fields may change: {', '.join(f'`{name}`' for name in names)}."


def _first_paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


Row = tuple[str, FieldInfo, Schema, str]
"""Path, field, its schema, and where its own fields are described if not below it."""
Homes = dict[tuple[str, str], tuple[str, str]]
"""A mapping → the kind and the path where its fields are described."""


def _table(rows: Iterator[Row] | list[Row]) -> str:
    text = "| field | type | default | bounds | meaning |\n|---|---|---|---|---|\n"
    for path, field, schema, elsewhere in rows:
        name = f"**`{path}`**" if field.is_required() else f"`{path}`"
        cells = (
            name,
            _type(field),
            _default(field),
            _bounds(schema, _type(field)),
            " ".join(filter(None, (_meaning(field), elsewhere))),
        )
        text += f"| {' | '.join(cells)} |\n"
    return text


def _rows(
    model: Any, prefix: str, schema: Schema, kind: str = "", homes: Homes | None = None
) -> Iterator[Row]:
    for name, field in described_fields(model).items():
        alias = field.alias or name
        if alias not in schema["properties"]:
            continue  # only recorded
        path, own = f"{prefix}.{alias}", schema["properties"][alias]
        inner_rows: list[Row] = []
        elsewhere = ""
        for inner, listed in _models(field.annotation):
            below = own["items"] if listed else own
            if "properties" not in below:
                continue
            home = (homes or {}).get(_identity(inner, below), (kind, path))
            if home == (kind, path):
                below_path = path + ("[]" if listed else "")
                inner_rows += _rows(inner, below_path, below, kind, homes)
            else:
                where = "" if home[0] == kind else f" of [{home[0]}](#{home[0].lower()})"
                elsewhere = f"Fields as in `{home[1]}`{where}."
        yield path, field, own, elsewhere
        yield from inner_rows


def _bounds(schema: Schema, kind: str = "") -> str:
    """Minimum and maximum of a value, and of its entries' texts."""
    found = []
    for least, most, unit in _BOUNDS:
        low, high = schema.get(least), schema.get(most)
        if unit == "characters" and kind in ("size", "duration"):
            continue  # no real value reaches it
        if low is None and high is None:
            continue
        if unit:
            found.append(f"{low}–{high} {unit}" if low else f"≤ {high} {unit}")
        elif high is None:
            found.append(f"≥ {low}")
        else:
            found.append(f"{low} – {high}")
    for rule in schema.get(RULES, ()):
        if rule.get("message", "").startswith(_BOUND_WORDS):
            found.append(rule["message"].removeprefix("must be "))
    if "items" in schema:
        inner = _bounds(schema["items"])
        if inner:
            found.append(f"each {inner}")
    if schema.get("x-kubernetes-list-type") == "set":
        found.append("unique entries")
    return ", ".join(found)


def _refused(schema: Schema, path: str = "spec") -> Iterator[str]:
    """The messages of rules about several fields."""
    for name, inner in schema.get("properties", {}).items():
        yield from _refused(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _refused(schema["items"], f"{path}[]")
    if "properties" in schema:
        for rule in schema.get(RULES, ()):
            if _FIXED not in rule["message"]:
                yield f"`{path}` {rule['message']}" if path != "spec" else rule["message"]


def _models(annotation: Any, listed: bool = False) -> list[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, listed)]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, Annotated, tuple):
        return [
            found
            for part in get_args(annotation)
            for found in _models(part, listed or origin is tuple)
        ]
    return []


def _type(field: FieldInfo) -> str:
    for extra in field.metadata:
        if isinstance(extra, OneOf):
            return ", ".join(f"`{name}`" for name in extra.names())
        schema = getattr(extra, "json_schema", None) or {}
        if "x-tandem-type" in schema:
            return str(schema["x-tandem-type"])
    return _type_text(field.annotation)


def _type_text(annotation: Any) -> str:
    if annotation is Any:
        return "anything"
    if get_origin(annotation) is Annotated:
        base, *extras = get_args(annotation)
        for extra in extras:
            schema = getattr(extra, "json_schema", None) or {}
            if "x-tandem-type" in schema:
                return str(schema["x-tandem-type"])
        return _type_text(base)
    if isinstance(annotation, EnumType) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{member}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(a) for a in arguments if a is not types.NoneType)
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}"
    if origin is dict:
        return f"mapping of text to {_type_text(arguments[1])}"
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    names = {str: "text", int: "integer", float: "number", bool: "boolean"}
    return names.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required() or field.default_factory is not None:
        return ""
    value = field.default
    if value is None or value == () or isinstance(value, BaseModel):
        return ""
    kind = _type(field)
    if kind == "size":
        return f"`{format_quantity(value)}`"
    if kind == "duration":
        return f"`{format_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" else ""
