"""The wrong resources of `wrong_resources.yaml`: what the API server and `tandem run` both refuse.

The words are those that people read, so that a rule and the validator it stands on cannot drift
apart. Types, bounds, enums and required fields are not here: `broken_fields` makes a wrong
resource for each of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())

RIGHT: dict[str, dict[str, Any]] = _FILE["right"]
"""The least that each kind needs."""


@dataclass(frozen=True)
class Wrong:
    kind: str
    spec: dict[str, Any]
    """Fields that replace those of `RIGHT`; `None` takes one away."""
    words: str
    """What the schema and the model both say."""
    name: str = "wrong"
    field: str = ""
    """What the model says, if it is given; so are `found` and a part of what it expects."""
    found: str = ""
    expects: str = ""

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.words[:60]}"

    def manifest(self) -> dict[str, Any]:
        return manifest(self.kind, self.spec, self.name)


def manifest(kind: str, spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    """A resource of that kind: `RIGHT`, with these fields replaced."""
    fields = copy.deepcopy({**RIGHT[kind], **spec})
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def _listed(name: str) -> Iterator[Wrong]:
    for each in _FILE[name]:
        yield Wrong(spec=each.pop("spec", {}), words=each.pop("says"), **each)


def _with_property(name: str, value: str) -> dict[str, Any]:
    return {"create": {"schema": _FILE["columns"], "properties": {name: value}}}


WRONG = [
    *_listed("wrong"),
    # What is too long.
    Wrong("LakeTable", {}, "must be a DNS-1123 name", name="x" * 64),
    Wrong("IndexServer", {}, "metadata.name must be at most 40", name="x" * 41),
    Wrong(
        "IndexServer",
        {"tables": {"selector": {"matchLabels": {"a" * 318: "yes"}}}},
        "at most 317 characters",
    ),
    Wrong(
        "TableUpdate",
        {"delete": None, "update": {"set": {"a" * 257: "1"}}},
        "at most 256 characters",
    ),
]

ONLY_THE_VALIDATOR = [
    *_listed("only_the_validator"),
    *(
        Wrong("LakeTable", _with_property(name, value), words)
        for name, value, words in _FILE["only_the_validator_of_properties"]
    ),
]
"""What the API server cannot know; the operator says it in the resource's conditions."""
