"""For every field of a custom resource definition and everything that its schema demands, one
resource that breaks just that: a wrong type, a bound, an enum, a missing or unknown field.

Made from the schema, so that a new field is covered automatically.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crds.wrong_resources import manifest
from tandem.spec import crd

Schema = dict[str, Any]
Token = str | int


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind, as the API server has it."""
    (version,) = crd.definition(kind)["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


@dataclass(frozen=True)
class Broken:
    kind: str
    why: str
    field: str
    """Which field is wrong, as errors name it: `spec.custom.segments[0]`."""
    words: str
    """What the API server says about it."""
    resource: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.field}: {self.why}"


_RIGHT_TEXT = {
    "must be a DNS-1123": "a",
    "must be a duration": "1h",
    "must be a URL": "s3://lake/x",
    "must be an interval": "2013",
    "must have five fields": "0 3 * * *",
    "must be a time of day": "01:00",
    "must be https://": "https://a",
    "must be thrift://": "thrift://a",
    "must be database.table": "a.b",
    "must be catalog.schema.table": "a.b.c",
    "must be an AWS region": "eu",
    "must be the 12 digits": "123456789012",
}


def example(schema: Schema, number: int = 0) -> Any:
    """A right value, as short as possible; another one for every `number`."""
    if "enum" in schema:
        return schema["enum"][0]
    if "x-kubernetes-int-or-string" in schema:
        return "1Gi"
    match schema.get("type"):
        case "object" if "additionalProperties" in schema:
            return {"a": example(schema["additionalProperties"])}
        case "object":
            inner = schema.get("properties", {})
            names = [*schema.get("required", ()), *_one_of(schema)]
            return {name: example(inner[name], number) for name in names}
        case "array":
            return [example(schema["items"])]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            messages = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
            for start, text in _RIGHT_TEXT.items():
                if any(message.startswith(start) for message in messages):
                    return text
            return f"a{number}" if number else "a"
        case _:
            return "long"  # the type of a column


def _one_of(schema: Schema) -> list[str]:
    """The first of those fields of which there must be exactly one."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if found := re.match(r"must have exactly one of (\w+)", rule["message"]):
            return [found.group(1)]
    return []


def broken_fields(kind: str, schema: Schema) -> Iterator[Broken]:
    """All of them, for the schema of a whole resource."""
    yield from _node(kind, [("spec", schema["properties"]["spec"])])


def _node(kind: str, trail: list[tuple[Token, Schema]]) -> Iterator[Broken]:
    schema = trail[-1][1]
    for why, value, words, below in _breaks(schema):
        tokens = [token for token, _ in trail]
        resource = manifest(kind, {})
        _put(resource, trail, value)
        yield Broken(kind, why, dotted([*tokens, *below]), words, resource)
    for name, inner in schema.get("properties", {}).items():
        if name != "true":  # the other spelling of `on`
            yield from _node(kind, [*trail, (name, inner)])
    if "items" in schema:
        yield from _node(kind, [*trail, (0, schema["items"])])
    if "additionalProperties" in schema:
        yield from _node(kind, [*trail, ("a", schema["additionalProperties"])])


def _breaks(schema: Schema) -> Iterator[tuple[str, Any, str, list[Token]]]:
    """What is wrong, the wrong value, what the API server says, and where below the value."""
    kind = schema.get("type", "")
    if "x-kubernetes-int-or-string" in schema:
        yield "type", [], "must be of type integer,string", []
    wrong = {
        "string": 7, "integer": "seven", "number": "seven", "boolean": "yes", "array": "none",
        "object": "none",
    }  # fmt: skip
    if kind:
        yield "type", wrong[kind], f"must be of type {kind}", []
    if "enum" in schema:
        yield "enum", "Nope", "Unsupported value", []
    if "minimum" in schema:
        low = schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1)
        yield "minimum", low, "should be greater than", []
    if "maximum" in schema:
        high = schema["maximum"] + (0 if schema.get("exclusiveMaximum") else 1)
        yield "maximum", high, "should be less than", []
    if "maxLength" in schema:
        yield "maxLength", "a" * (schema["maxLength"] + 1), "Too long", []
    if "maxItems" in schema:
        many = [example(schema["items"], number) for number in range(schema["maxItems"] + 1)]
        yield "maxItems", many, "Too many", []
    if "minItems" in schema:
        yield "minItems", [], "should have at least", []
    if "x-kubernetes-list-type" in schema:
        yield "twice", [example(schema["items"])] * 2, "Duplicate value", [1]
    if "maxProperties" in schema:
        inner = example(schema["additionalProperties"])
        many_keys = {f"a{number}": inner for number in range(schema["maxProperties"] + 1)}
        yield "maxProperties", many_keys, "Too many", []
    if "minProperties" in schema:
        yield "minProperties", {}, "should have at least", []
    for name in schema.get("required", ()):
        less = {key: value for key, value in example(schema).items() if key != name}
        yield f"no {name}", less, "Required value", [name]
    open_ = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(schema)
    if kind == "object" and not open_:
        yield "unknown", {**example(schema), "nope": 1}, "unknown field", ["nope"]


def _put(resource: dict[str, Any], trail: list[tuple[Token, Schema]], value: Any) -> None:
    """Set the value at the end of the trail; what is missing on the way becomes right."""
    at: Any = resource
    for token, schema in trail[:-1]:
        if isinstance(token, str) and not at.get(token):
            at[token] = copy.deepcopy(example(schema))
        at = at[token]
    at[trail[-1][0]] = value


def dotted(tokens: list[Token]) -> str:
    """`["spec", "a", 0]` → `spec.a[0]`."""
    text = ""
    for token in tokens:
        text += f"[{token}]" if isinstance(token, int) else f".{token}" if text else token
    return text
