"""Texts of a template that become arguments of `spark-submit`, and which arrive unchanged. Pure.

The Spark operator writes most of a SparkApplication as `--conf KEY=VALUE`, and lists separated by
commas (`buildSparkSubmitArgs`, v2.5.1); `spark-submit` splits at the first `=` and at every comma.
A text with a separator would arrive changed, so it is refused under every template policy.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


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
