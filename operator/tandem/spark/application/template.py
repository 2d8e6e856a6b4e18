"""Templates of a `SparkApplication`: checks their fields, and merges them. Pure.

Three layers, each over the previous one: our defaults, the operator's template, the resource's
template. On top are the settings that correctness requires; a template that sets one of them is
refused with its path, not silently overridden.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.json_types import Json
from tandem.spark.application.arguments import shown, wrong_texts
from tandem.spark.runtime.session import session_conf
from tandem.spec.common import MANAGED_BY, PREFIX

OURS: Final = (
    "apiVersion",
    "kind",
    "status",
    "metadata.name",
    "metadata.generateName",
    "metadata.namespace",
    "metadata.ownerReferences",
    "metadata.finalizers",
    f"metadata.labels.{MANAGED_BY[0]}",
    f"metadata.labels.{PREFIX}*",
    f"metadata.annotations.{PREFIX}*",
    *(
        f"{labels}{theirs}*"
        for theirs in ("sparkoperator.k8s.io/", PREFIX)
        for part in ("driver", "executor")
        for labels in (
            f"spec.{part}.labels.",
            f"spec.{part}.template.metadata.labels.",
            f"spec.sparkConf.spark.kubernetes.{part}.label.",
        )
    ),
    "spec.type",
    "spec.mode",
    "spec.mainApplicationFile",
    "spec.mainClass",
    "spec.arguments",
    "spec.restartPolicy",
    "spec.failureRetries",
    "spec.retryInterval",
    "spec.suspend",
    "spec.driver.podName",
    "spec.driver.kubernetesMaster",
    "spec.sparkConf.spark.master",
    "spec.sparkConf.spark.submit.deployMode",
    "spec.sparkConf.spark.remote",
    "spec.sparkConf.spark.api.mode",
    "spec.sparkConf.spark.kubernetes.namespace",
    "spec.sparkConf.spark.kubernetes.driver.master",
    "spec.sparkConf.spark.kubernetes.driver.pod.name",
    "spec.sparkConf.spark.kubernetes.driver.podTemplate*",
    "spec.sparkConf.spark.kubernetes.executor.podTemplate*",
    *(f"spec.sparkConf.{key}" for key in session_conf()),
)
"""Paths that only Tandem sets. A `*` at the end matches any suffix.

What a job is and how often it runs (a second run of the same attempt would be a second driver),
its owner, the labels that select its pods, and the pinned settings under which a statement has one
meaning.
"""

_MOST_LEVELS = 64
_METADATA = ("labels", "annotations")
_PARTS: Final = ("driver", "executor")
_TEXTS: Final = ("sparkConf", "hadoopConf")


def check(template: Mapping[str, Any] | None, *, resource: str = "", field: str = "") -> None:
    """Check that a template sets no reserved field and has the types of a `SparkApplication`.

    Args:
        resource, field: the template's location, for messages: `TableCompaction/nightly`,
            `spec.sparkTemplate`.
    Raises: InvalidSpec.
    """
    if template is None:
        return
    _mapping(template, "", resource, field)
    _check_depth(template, resource, field)
    for key, value in template.items():
        if key not in ("metadata", "spec") and not _is_ours(str(key)):
            raise InvalidSpec(
                "is not a field of a SparkApplication that a template can set",
                resource=resource,
                field=_join(field, key),
                expected="metadata.labels, metadata.annotations or fields below spec",
                remedy=f"Did you mean spec.{key}?",
            )
        for path in _paths(shown(key), value):
            if _is_ours(path):
                raise InvalidSpec(
                    "is set by Tandem and cannot be changed by a template",
                    resource=resource,
                    field=_join(field, path),
                    expected="another field: image, resources, node selectors, volumes, …",
                    remedy="Remove it",
                )
    metadata = _mapping(template.get("metadata"), "metadata", resource, field)
    for key in metadata:
        if key not in _METADATA:
            raise InvalidSpec(
                "cannot be set by a template",
                resource=resource,
                field=_join(field, f"metadata.{key}"),
                expected="labels or annotations",
            )
        _mapping(metadata[key], f"metadata.{key}", resource, field)
    spec = _mapping(template.get("spec"), "spec", resource, field)
    for part in (*_PARTS, *_TEXTS, "dynamicAllocation"):
        inner = _mapping(spec.get(part), f"spec.{part}", resource, field)
        if part in _PARTS:
            _check_pod(inner, f"spec.{part}", resource, field)
    if spec.get("nodeSelector") and any(
        (spec.get(part) or {}).get("nodeSelector") for part in _PARTS
    ):
        raise InvalidSpec(
            "node selectors are given twice, which the Spark operator refuses",
            resource=resource,
            field=_join(field, "spec.nodeSelector"),
            expected="one for the application, or one each for driver and executor",
        )
    for wrong in wrong_texts(template):
        raise InvalidSpec(
            "would not reach Spark unchanged",
            resource=resource,
            field=_join(field, wrong.path),
            found=wrong.found,
            expected=wrong.expected,
            remedy="Correct it, or remove it",
        )


def _check_depth(template: Mapping[str, Any], resource: str, field: str) -> None:
    """Limit the nesting: all other functions here recurse into the template."""
    level: list[Any] = [template]
    for _ in range(_MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise InvalidSpec(
        "is nested too deeply",
        resource=resource,
        field=field,
        expected=f"at most {_MOST_LEVELS} levels",
    )


def _inside(outer: Any) -> list[Any]:
    values = outer.values() if isinstance(outer, Mapping) else outer
    return [value for value in values if isinstance(value, Mapping | list | tuple)]


def _check_pod(pod: Mapping[str, Any], path: str, resource: str, field: str) -> None:
    template = _mapping(pod.get("template"), f"{path}.template", resource, field)
    spec = _mapping(template.get("spec"), f"{path}.template.spec", resource, field)
    containers = [] if spec.get("containers") is None else spec["containers"]
    if not isinstance(containers, list) or not all(
        isinstance(c, Mapping) and isinstance(c.get("name"), str) for c in containers
    ):
        raise InvalidSpec(
            "is not a list of named containers",
            resource=resource,
            field=_join(field, f"{path}.template.spec.containers"),
            expected="mappings with a name each",
        )
    named = [(f"{path}.template.spec.containers.{c['name']}", c) for c in containers]
    for where, container in [(path, pod), *named]:
        if not isinstance(container.get("envFrom") or [], list):
            raise InvalidSpec(
                "is not a list",
                resource=resource,
                field=_join(field, f"{where}.envFrom"),
                found=type(container["envFrom"]).__name__,
            )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Json:
    """Merge `above` over `below`, deeply; neither is modified.

    Mappings are merged by key. Lists whose items all have a `name` are merged by name (containers,
    volumes, environment variables); other lists, and all other values, are replaced. A null removes
    the value below it.
    """
    merged: Json = {}
    for key, value in below.items():
        if key not in above:
            merged[key] = copy.deepcopy(value)
        elif above[key] is not None:
            merged[key] = _merged(value, above[key])
    for key, value in above.items():
        if key not in below and value is not None:
            merged[key] = _merged(None, value)
    return merged


def texts(conf: Mapping[str, Any]) -> dict[str, str]:
    """Spark settings as strings: YAML has numbers and booleans, the CRD requires strings."""
    return {key: _text(value) for key, value in conf.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _merged(below: Any, above: Any) -> Any:
    if isinstance(above, Mapping):
        return merge(below if isinstance(below, Mapping) else {}, above)
    if _named(above) and _named(below):
        items = {item["name"]: item for item in below}
        for item in above:
            items[item["name"]] = merge(items.get(item["name"], {}), item)
        return copy.deepcopy(list(items.values()))
    return copy.deepcopy(above)


def _named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in value)
    )


def _paths(prefix: str, value: Any) -> Iterator[str]:
    """A path and all paths below it; keys are taken literally, dots included."""
    yield prefix
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _paths(f"{prefix}.{shown(key)}", inner)


def _is_ours(path: str) -> bool:
    return _OURS.fullmatch(_folded(path)) is not None


def _folded(path: str) -> str:
    """Settings that differ in case count as one: a reader could mistake one for the other."""
    setting = path.removeprefix(_CONF)
    return path if setting == path else _CONF + setting.lower()


_CONF: Final = "spec.sparkConf."
_OURS: Final = re.compile(
    "|".join(re.escape(_folded(ours)).replace(r"\*", ".*") for ours in OURS), re.DOTALL
)


def _mapping(value: Any, path: str, resource: str, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidSpec(
            "is not a mapping",
            resource=resource,
            field=_join(field, path),
            found=type(value).__name__,
            expected="a mapping, as in a SparkApplication",
        )
    return value


def _join(field: str, path: str) -> str:
    return ".".join(part for part in (field, path) if part)
