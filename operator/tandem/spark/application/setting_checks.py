"""Checks the fields and settings of a `sparkTemplate` against `allowed_settings`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.spark.application.allowed_settings import FIELDS, REFUSED, SETTINGS
from tandem.spark.application.arguments import InvalidText, arguments, shown

OPTION: Final = "--template-allow"
VALUE: Final = "templateAllow"
NOT_LISTED: Final = "templates may not set it"

_PATTERN = re.compile(r"(?:spark|spec|metadata)(?:\.[A-Za-z0-9_-]+|\.\*)+")
_CONTAINERS: Final = ("containers", "initContainers", "sidecars")
_LOCAL: Final = re.compile(r"local:///[A-Za-z0-9._/+-]+(?:#[A-Za-z0-9._-]+)?")


def check_patterns(patterns: Iterable[str]) -> None:
    """Check that each pattern names settings or fields. Raises: InvalidSpec."""
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise InvalidSpec(
                "names no setting and no field of a template",
                field=OPTION,
                found=pattern,
                expected="`spark.…`, `spec.…` or `metadata.…`, with `*` for a part or the rest",
            )


def unlisted(template: Mapping[str, Any], allowed: tuple[str, ...] = ()) -> Iterator[InvalidText]:
    """The parts of a template that neither the lists here nor an administrator's patterns allow,
    and texts that Spark would substitute.

    Its types are already checked (`template.check`).
    """
    fields = _compiled(allowed)
    for name in ("metadata", "spec"):
        yield from _walk(name, template.get(name), name, fields)
    spec = _mapping(template.get("spec"))
    for part, prefix in (("sparkConf", ""), ("hadoopConf", "spark.hadoop.")):
        for key in _mapping(spec.get(part)):
            if not setting_allowed(f"{prefix}{key}", allowed):
                yield InvalidText(
                    f"spec.{part}.{shown(key)}", why_refused(f"{prefix}{key}"), _SETTINGS
                )
    deps = _mapping(spec.get("deps"))
    for kind in ("jars", "files", "pyFiles", "archives"):
        if fields.fullmatch(f"spec.deps.{kind}"):
            continue
        for item in deps.get(kind) or ():
            if not (isinstance(item, str) and _LOCAL.fullmatch(item) and "/.." not in item):
                yield InvalidText(
                    f"spec.deps.{kind}", _OF_SUBMITTER, "local:///PATH, a file of the image"
                )
    for path, text in arguments(template):
        if "${" in text:
            # Spark substitutes ${env:NAME} and ${system:NAME} when it reads a setting.
            yield InvalidText(
                path, "`${`, which Spark replaces in the Spark operator's pod", "plain text"
            )


def setting_allowed(name: str, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a template may set this Spark setting."""
    return bool(_settings().fullmatch(name) or _compiled(allowed).fullmatch(name))


def why_refused(setting: str) -> str:
    """Why a setting is not on the list, for messages."""
    for pattern, why in _WHY:
        if re.match(pattern, setting, re.IGNORECASE):
            return why
    return NOT_LISTED


_OF_SUBMITTER: Final = "the Spark operator, which submits, would load it with its own rights"
_WHY: Final = (
    (r"spark\.(jars|files|archives|submit)\b", _OF_SUBMITTER),
    (r"spark\.hadoop\.", "the Spark operator, which submits, would use it with its own rights"),
    (r"spark\.(kerberos|security)\.", "it names files of the Spark operator's pod"),
    (r"spark\.(yarn|mesos|deploy|standalone)\.", "it is for another cluster manager"),
    (r"spark\.kubernetes\.", "it does more than shape the job's pods"),
)
_SETTINGS: Final = "a setting of docs/template-policy.md"
_FIELDS: Final = "a field of docs/template-policy.md"


def _walk(path: str, value: Any, place: str, allowed: re.Pattern[str]) -> Iterator[InvalidText]:
    """Fields below `path`; `place` is the path in the notation of `FIELDS`."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        where, at = f"{path}.{shown(key)}", f"{place}.{shown(key)}"
        listed = _fields().get(at)
        if listed == "all" or allowed.fullmatch(where):
            continue
        if listed is None:
            yield InvalidText(where, _reason(at), _FIELDS)
        elif key in _CONTAINERS:
            for index, item in enumerate(inner if isinstance(inner, list) else []):
                name = _mapping(item).get("name", index)
                yield from _walk(f"{where}.{shown(name)}", item, "a container", allowed)
        elif listed == "inner":
            yield from _walk(where, inner, at, allowed)


def _reason(place: str) -> str:
    return REFUSED.get(place, NOT_LISTED)


@lru_cache(maxsize=1)
def _fields() -> dict[str, str]:
    """For each field: `all` (with everything below it), `leaf`, or `inner` (its fields follow)."""
    found: dict[str, str] = {}
    for places, names in FIELDS.items():
        for place in places.split(", "):
            for name in names:
                path = f"{place}.{name.removesuffix('.*')}"
                found[path] = "all" if name.endswith(".*") else "leaf"
    for path in list(found):
        while "." in path:
            path = path.rpartition(".")[0]
            if path != "a container" and found.get(path) != "all":
                found[path] = "inner"
    return found


@lru_cache(maxsize=1)
def _settings() -> re.Pattern[str]:
    return _pattern(name for names in SETTINGS.values() for name in names)


@lru_cache(maxsize=16)
def _compiled(allowed: tuple[str, ...]) -> re.Pattern[str]:
    return _pattern(allowed)


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    """A `*` at the end matches any suffix, elsewhere a part between two dots."""
    parts = []
    for name in names:
        head, rest = (name[:-1], ".+") if name.endswith(".*") else (name, "")
        parts.append(re.escape(head).replace(r"\*", r"[^.]+") + rest)
    return re.compile("|".join(parts) or r"(?!)", re.DOTALL)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
