"""charts/tandem as files: what is copied or generated is fresh, and every value is explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

import chart_docs
import tandem
from support.cluster.helm import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
CRDS = sorted((chart_docs.ROOT / "crds").glob("*.yaml"))


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def sections(
    schema: dict[str, Any], values: object, path: str = ""
) -> Iterator[tuple[str, set[str], set[str]]]:
    """(path, names in the schema, names in values.yaml) of every object with fixed names."""
    schema = resolved(schema)
    if "properties" not in schema:
        return
    assert schema["additionalProperties"] is False, path
    assert isinstance(values, dict)
    yield path, set(schema["properties"]), set(values)
    for name, inner in schema["properties"].items():
        if name in values:
            yield from sections(inner, values[name], f"{path}.{name}")


@pytest.mark.parametrize("file", CRDS, ids=lambda file: str(file.stem))
def test_the_chart_has_the_definitions_of_the_repository(file: Any) -> None:
    assert chart_docs.crd_copy(file.name).read_text() == file.read_text(), "run `make docs`"


def test_the_chart_has_no_other_definitions() -> None:
    copies = chart_docs.crd_copy("").glob("*")
    assert {file.name for file in copies} == {file.name for file in CRDS}


def test_the_readme_has_the_values_as_they_are() -> None:
    assert (CHART / "README.md").read_text() == chart_docs.readme(), "run `make docs`"


def test_every_value_has_a_comment() -> None:
    described = {value.path for value in chart_docs.documented((CHART / "values.yaml").read_text())}

    def check(values: object, path: tuple[str, ...]) -> None:
        """Described itself, or all within it."""
        if path in described and not any(p[: len(path)] == path != p for p in described):
            return
        assert isinstance(values, dict), path
        assert values, path
        for name, inner in values.items():
            check(inner, (*path, name))

    check(VALUES, ())


def test_a_value_without_a_comment_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"b\.d has no comment"):
        list(chart_docs.documented("# A.\na: 1\nb:\n  # C.\n  c: 1\n  d: 2\n"))


def test_the_schema_names_exactly_the_values_that_there_are() -> None:
    """But for what is empty by default, where only the schema knows what may be within."""
    seen = 0
    for path, named, there in sections(SCHEMA, VALUES):
        if path in (".jobs.sparkTemplate", ".resources", ".etcd.bundled.resources"):
            assert there <= named
            continue
        assert named == there, path
        seen += 1
    assert seen > 20


def test_chart_and_operator_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == tandem.__version__


def test_the_bundled_etcd_is_the_one_that_tests_run() -> None:
    pinned = (chart_docs.ROOT / "tools" / "etcd" / "go.mod").read_text()
    [version] = re.findall(r"go\.etcd\.io/etcd/server/v3 (v\S+)", pinned)
    assert VALUES["etcd"]["bundled"]["image"]["tag"] == version
