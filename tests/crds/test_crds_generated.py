"""The files in `crds/` are what the models say, small, bounded and described throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from crds.broken_fields import schema_of
from crds.wrong_resources import ONLY_THE_VALIDATOR, RIGHT, WRONG, Wrong, manifest
from tandem.errors import InvalidSpec
from tandem.spec import KINDS, crd, parse
from tandem.spec.common import OPERATIONS
from tandem.spec.fields import rules_of
from tandem.spec.problems import InvalidSpecs
from tandem.spec.status import Plan, Reconciled

CRDS = Path(__file__).resolve().parents[2] / "crds"

VALIDATOR_ONLY = {
    "_null_is_absent": "the API server does it by itself",
    "_drop_server_fields": "metadata is the API server's",
    "once": "x-kubernetes-list-type: set",
    "_columns_differ": "comparing each with each costs more than the API server spends",
    "_delta_type": "text or a mapping is one type too many for a structural schema",
    "_values_fit": "tables that were created with one must stay changeable",
    "_time_zone": "needs the calendars' data base",
}
"""Validators without a rule, and why."""


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def nodes(kind: str, part: str = "") -> list[tuple[str, dict[str, Any]]]:
    return [(path, node) for path, node in walk(schema_of(kind), "") if path.startswith(part)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_crd_file_is_generated_from_the_model(kind: str) -> None:
    assert (CRDS / crd.file_name(kind)).read_text() == crd.manifest(kind), "run `make docs`"
    assert yaml.safe_load(crd.manifest(kind)) == crd.definition(kind)


def test_there_is_a_file_for_every_kind_and_no_other() -> None:
    assert {file.name for file in CRDS.glob("*.yaml")} == {crd.file_name(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_into_the_annotation_that_kubectl_apply_writes(kind: str) -> None:
    # Kubernetes' limit for all annotations of an object is 262,144 bytes.
    assert (CRDS / crd.file_name(kind)).stat().st_size < 128_000


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_structural(kind: str) -> None:
    for path, node in nodes(kind):
        assert not {"$ref", "anyOf", "allOf", "oneOf", "not", "definitions", "title"} & set(node)
        open_ = "x-kubernetes-preserve-unknown-fields" in node
        assert "type" in node or open_ or "x-kubernetes-int-or-string" in node, path
        assert not ("properties" in node and "additionalProperties" in node), path


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_spark_template_and_column_types_are_open(kind: str) -> None:
    found = {
        path.rsplit(".", 1)[-1]
        for path, node in nodes(kind)
        if "x-kubernetes-preserve-unknown-fields" in node
    }
    assert found <= {"sparkTemplate", "type"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: str) -> None:
    bare = [
        path
        for path, node in nodes(kind)
        if "description" not in node and not path.endswith(("]", "}")) and path != "metadata"
    ]
    assert bare == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_list_and_mapping_of_a_spec_is_bounded(kind: str) -> None:
    bounds = {"string": "maxLength", "array": "maxItems"}
    for path, node in nodes(kind, "spec"):
        bound = bounds.get(node.get("type", ""))
        if "additionalProperties" in node:
            bound = "maxProperties"
        assert bound is None or bound in node or "enum" in node, path


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_a_status_accepts_reports_of_another_version(kind: str) -> None:
    for path, node in nodes(kind, "status"):
        inside = path.removeprefix("status.")
        assert "x-kubernetes-validations" not in node
        assert not {"maxLength", "maxItems", "minimum", "maximum"} & set(node), path
        if path != "status":
            assert "default" not in node, path
        if "enum" in node:
            assert inside == "conditions[].status"
        if "required" in node:
            assert inside == "conditions[]"


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    else:
        for part in get_args(annotation):
            yield from models(part)


def functions(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Callable[..., Any]]:
    """Validators in annotations."""
    for extra in metadata:
        if isinstance(extra, FieldInfo):
            yield from functions(None, tuple(extra.metadata))
        elif isinstance(extra, AfterValidator | BeforeValidator):
            yield extra.func
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        yield from functions(inner, tuple(extras))
    else:
        for part in get_args(annotation):
            yield from functions(part)


def validators() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for kind in KINDS.values():
        for model in models(kind):
            decorators = model.__pydantic_decorators__
            found |= {
                f"{model.__name__}.{name}": decorator.func
                for name, decorator in decorators.model_validators.items()
            }
            found |= {
                f"{model.__name__}.{name}": decorator.func
                for name, decorator in decorators.field_validators.items()
            }
            for name, field in model.model_fields.items():
                for function in functions(field.annotation, tuple(field.metadata)):
                    found[f"{model.__name__}.{name}: {function.__name__}"] = function
    return found


def test_every_validator_has_a_cel_rule_or_a_reason_to_have_none() -> None:
    found = validators()
    assert len(found) > 30
    without = {name for name, function in found.items() if not rules_of(function)}
    assert {name.replace(": ", ".").rsplit(".", 1)[-1] for name in without} == set(VALIDATOR_ONLY)


def messages() -> set[str]:
    return {
        rule["message"]
        for kind in KINDS
        for _, node in nodes(kind)
        for rule in node.get("x-kubernetes-validations", ())
    }


def test_a_field_of_some_kinds_is_in_their_statuses_only() -> None:
    every = {path for operation in OPERATIONS.values() for path in operation.reports}
    assert {"yields", "result.rowsAffected"} <= every
    for kind, operation in OPERATIONS.items():
        found = {path.removeprefix("status.") for path, _ in walk(schema_of(kind), "")}
        assert found & every == operation.reports


def test_what_is_only_recorded_is_in_no_status() -> None:
    for kind in OPERATIONS:
        names = {path.rsplit(".", 1)[-1] for path, _ in nodes(kind, "status.")}
        assert {"readVersion", "commitsSeen"} <= names
        assert not names & {*Plan.only_recorded, *Reconciled.only_recorded}


def test_every_rule_has_a_wrong_resource() -> None:
    """With the words of the rule; changes of what is fixed are tests of their own."""
    words = {wrong.words for wrong in WRONG}
    first = {word.split(",")[0].split(":")[0].split(";")[0] for word in words}
    missing = {
        message
        for message in messages()
        if not message.startswith("cannot be changed")
        and not any(word in message for word in words | first)
    }
    assert missing == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_minimal_resource_of_a_kind_is_accepted(kind: str) -> None:
    assert parse(manifest(kind, {})).kind_name == kind
    assert set(RIGHT) == set(KINDS)


@pytest.mark.parametrize("wrong", [*WRONG, *ONLY_THE_VALIDATOR], ids=lambda wrong: wrong.id)
def test_wrong_resources_are_refused_without_a_cluster(wrong: Wrong) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse(wrong.manifest())
    error = caught.value
    assert not isinstance(error, InvalidSpecs)
    assert wrong.words in str(error)
    assert "hunter2" not in str(error)
    assert error.resource == f"{wrong.kind}/{wrong.name}"
    assert wrong.field in ("", error.field)
    if wrong.found:
        assert error.found == wrong.found
        assert error.expected
        assert wrong.expects in error.expected
        assert error.remedy
        assert "docs/resources.md" not in error.remedy
