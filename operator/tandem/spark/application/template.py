"""Templates of a `SparkApplication`: checks their fields, and merges them. Pure.

Three layers, each over the previous one: our defaults, the operator's template, the resource's
template. On top are the settings that correctness requires; a template that sets one of them is
refused with its path, not silently overridden.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.json_types import Json
from tandem.spark.runtime.session import session_conf
from tandem.spec.common import MANAGED_BY, PREFIX

# Texts of a template that become arguments of `spark-submit`, and which arrive unchanged. Pure.
#
# The Spark operator writes most of a SparkApplication as `--conf KEY=VALUE`, and lists separated by
# commas (`buildSparkSubmitArgs`, v2.5.1); `spark-submit` splits at the first `=` and at every
# comma. A text with a separator would arrive changed, so it is refused under every template
# policy.


@dataclass(frozen=True, slots=True)
class InvalidText:
    """`path` is below the template; `found` repeats no value; `expected` describes valid texts."""

    path: str
    found: str
    expected: str


PODS_ALONE: Final = frozenset(
    {
        "affinity",
        "configMaps",
        "dnsConfig",
        "env",
        "envFrom",
        "gpu",
        "hostAliases",
        "initContainers",
        "lifecycle",
        "podSecurityContext",
        "ports",
        "securityContext",
        "sidecars",
        "template",
        "tolerations",
    }
)
"""Fields of driver and executor that the API server and the webhook read, but `spark-submit` does
not."""

LISTS: Final = (
    "jars",
    "files",
    "pyFiles",
    "archives",
    "packages",
    "excludePackages",
    "repositories",
)
"""Fields of `spec.deps`, joined by commas."""

_SETTING = re.compile(r"[A-Za-z0-9._-]+")
_NAMED_SETTING = re.compile(
    r"spark\.kubernetes\.(?:(?:driver|executor)\.(?:label|annotation|node\.selector|service\.label"
    r"|service\.annotation)|node\.selector)\.(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9._-]+"
)
"""Labels, annotations and node selectors have Kubernetes names, with one slash."""
_QUALIFIED = re.compile(r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9._-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]+")
_ITEM = re.compile(r"[^\s,]+")
_LOCAL_DIR: Final = "spark-local-dir-"
"""Volumes of these names become settings in `spark-submit`."""

_JAVA_OPTIONS: Final = re.compile(r"spark\.(?:driver|executor)\.(?:extra|default)JavaOptions")
_OPTION_OF_SPARK: Final = re.compile(r"-D\s*spark\.")

_PLAIN: Final = "one line of letters, digits, `.`, `_` and `-`"
_QUALIFIED_NAME: Final = f"{_PLAIN}, with at most one `/`"
_MAPS: Final = {
    "labels": (_QUALIFIED, _QUALIFIED_NAME),
    "annotations": (_QUALIFIED, _QUALIFIED_NAME),
    "serviceLabels": (_QUALIFIED, _QUALIFIED_NAME),
    "serviceAnnotations": (_QUALIFIED, _QUALIFIED_NAME),
    "nodeSelector": (_QUALIFIED, _QUALIFIED_NAME),
    "envVars": (_VARIABLE, "the name of a variable"),
    "envSecretKeyRefs": (_VARIABLE, "the name of a variable"),
}


def wrong_texts(template: Mapping[str, Any]) -> Iterator[InvalidText]:
    """Texts of a template that do not reach Spark unchanged.

    Its types are already checked (`template.check`).
    """
    metadata, spec = mapping(template.get("metadata")), mapping(template.get("spec"))
    for name in ("labels", "annotations"):
        yield from _map(f"metadata.{name}", metadata.get(name), *_MAPS[name])
    yield from _conf("spec.sparkConf", spec.get("sparkConf"))
    yield from _conf("spec.hadoopConf", spec.get("hadoopConf"), prefix="spark.hadoop.")
    yield from _map("spec.nodeSelector", spec.get("nodeSelector"), *_MAPS["nodeSelector"])
    yield from _lists(spec)
    yield from _volumes("spec.volumes", spec.get("volumes"))
    for part in ("driver", "executor"):
        yield from _part(f"spec.{part}", mapping(spec.get(part)))
    for path, text in arguments(template):
        for found in _controls(text):
            yield InvalidText(path, found, "one line without control characters")


def arguments(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Paths and values of all texts that become arguments of `spark-submit`."""
    spec = mapping(template.get("spec"))
    yield from _texts("metadata", mapping(template.get("metadata")))
    for key, value in spec.items():
        if key == "volumes":
            for index, volume in enumerate(value if isinstance(value, list) else []):
                if str(mapping(volume).get("name")).startswith(_LOCAL_DIR):
                    yield from _texts(f"spec.volumes.{index}", volume)
        elif key in ("driver", "executor"):
            for field, inner in mapping(value).items():
                if field not in PODS_ALONE:
                    yield from _texts(f"spec.{key}.{shown(field)}", inner)
        else:
            yield from _texts(f"spec.{shown(key)}", value)


def shown(key: object) -> str:
    """A key on one line, for messages."""
    return str(key).encode("unicode_escape").decode()


def _conf(where: str, conf: Any, prefix: str = "") -> Iterator[InvalidText]:
    for key, value in mapping(conf).items():
        path = f"{where}.{shown(key)}"
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not (
            _SETTING.fullmatch(key) or _NAMED_SETTING.fullmatch(name)
        ):
            yield InvalidText(path, f"a key with {_odd(str(key))}", f"a key of {_PLAIN}")
        if not isinstance(value, str | int | float | bool | None):
            yield InvalidText(path, type(value).__name__, "a text, a number or a boolean")
        elif _JAVA_OPTIONS.fullmatch(name):
            yield from _java_options(path, value)


def _java_options(path: str, value: object) -> Iterator[InvalidText]:
    # Quotes and backslashes disappear when Spark splits the options.
    if _OPTION_OF_SPARK.search(re.sub(r"[\"'\\]", "", str(value))):
        yield InvalidText(
            path, "a setting of Spark (-Dspark.…)", "settings of Spark in spec.sparkConf"
        )


def _lists(spec: Mapping[str, Any]) -> Iterator[InvalidText]:
    deps = mapping(spec.get("deps"))
    found = [(f"spec.deps.{key}", deps.get(key)) for key in LISTS]
    for path, items in [*found, ("spec.imagePullSecrets", spec.get("imagePullSecrets"))]:
        if items is None:
            continue
        if not isinstance(items, list):
            yield InvalidText(path, type(items).__name__, "a list of strings")
            continue
        for index, item in enumerate(items):
            if not isinstance(item, str):
                yield InvalidText(f"{path}.{index}", type(item).__name__, "a text")
            elif not _ITEM.fullmatch(item):
                odd = _odd(item, r"[^\s,]") if item else "an empty item"
                yield InvalidText(f"{path}.{index}", odd, "one item, without commas and blanks")


def _part(where: str, pod: Mapping[str, Any]) -> Iterator[InvalidText]:
    for name, (pattern, expected) in _MAPS.items():
        yield from _map(f"{where}.{name}", pod.get(name), pattern, expected)
    yield from _java_options(f"{where}.javaOptions", pod.get("javaOptions"))
    secrets = pod.get("secrets")
    for index, secret in enumerate(secrets if isinstance(secrets, list) else []):
        yield from _matching(f"{where}.secrets.{index}.name", mapping(secret).get("name"), _NAME)
    for key, reference in mapping(pod.get("envSecretKeyRefs")).items():
        path = f"{where}.envSecretKeyRefs.{shown(key)}"
        yield from _matching(f"{path}.name", mapping(reference).get("name"), _NAME)
        yield from _matching(f"{path}.key", mapping(reference).get("key"), _SECRET_KEY)
    yield from _volumes(f"{where}.volumeMounts", pod.get("volumeMounts"))


def _volumes(where: str, found: Any) -> Iterator[InvalidText]:
    for index, volume in enumerate(found if isinstance(found, list) else []):
        yield from _matching(f"{where}.{index}.name", mapping(volume).get("name"), _NAME)


def _matching(path: str, value: Any, pattern: re.Pattern[str]) -> Iterator[InvalidText]:
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        yield InvalidText(path, _odd(str(value)), f"a name: {_PLAIN}")


def _map(where: str, found: Any, pattern: re.Pattern[str], expected: str) -> Iterator[InvalidText]:
    for key in mapping(found):
        if not (isinstance(key, str) and pattern.fullmatch(key)):
            yield InvalidText(f"{where}.{shown(key)}", f"a key with {_odd(str(key))}", expected)


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{path}.{shown(key)}", inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _texts(f"{path}.{index}", inner)


def _controls(text: str) -> Iterator[str]:
    for position, character in enumerate(text):
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            yield f"the control character U+{ord(character):04X} at position {position}"
            return


def _odd(text: str, good: str = r"[A-Za-z0-9._-]") -> str:
    """The first invalid character of a text."""
    for character in text:
        if not re.fullmatch(good, character):
            printable = character.isprintable() and character != " "
            return f"`{character}`" if printable else f"the character U+{ord(character):04X}"
    return "no characters" if not text else "another form"


def mapping(value: Any) -> Mapping[str, Any]:
    """A part of a template; one that is no mapping is refused elsewhere."""
    return value if isinstance(value, Mapping) else {}


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
