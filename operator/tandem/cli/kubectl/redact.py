"""Removes secrets from bug reports. Pure.

What people may have put a secret into is known by its place: variables of an environment,
settings of Spark, options, annotations. There a value stays only if it can be none: a number, a
size, a time, or a setting of ours. Everywhere else texts are searched for what looks like one.
A value removed in one place is removed everywhere else, logs included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tandem.spark.runtime.session import session_conf
from tandem.spec.common import PREFIX

REMOVED: Final = "(removed)"
_HARMLESS = re.compile(
    r"true|false|null|"
    r"-?\d{1,19}(\.\d{1,9})?([kKMGTPE]i?[bB]?|[mbgtp]b?|ms|us|ns|s|h|d|%)?|"
    r"(\d{1,9}(\.\d{1,9})?(h|ms|m|s)){1,4}|"
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})?)?",
)
_SECRET_NAME = re.compile(
    r"secret|password|passwd|passphrase|pwd|token|credential|access.?key|account.?key|"
    r"private.?key|api.?key|encryption.?key|\bsas\b|\bauth",
    re.I,
)
_KEEP_LABELS = (
    PREFIX, "app.kubernetes.io/", "sparkoperator.k8s.io/", "helm.sh/", "kubernetes.io/",
    "spark-", "pod-template-hash", "topology.kubernetes.io/", "node.kubernetes.io/",
)  # fmt: skip
_KEEP_OPTIONS = frozenset(
    {
        *("endpoint", "region", "bucket", "allow_http", "virtual_hosted_style_request"),
        *("aws_endpoint", "aws_region", "aws_allow_http", "aws_virtual_hosted_style_request"),
        *("header", "sep", "delimiter", "quote", "escape", "comment", "encoding", "mode"),
        *("dateformat", "timestampformat", "multiline", "inferschema", "nullvalue", "linesep"),
    }
)
_KEEP_IN_TEMPLATES = frozenset(
    {
        *("apiVersion", "kind", "name", "namespace", "image", "imagePullPolicy", "type", "mode"),
        *("sparkVersion", "pythonVersion", "mainApplicationFile", "restartPolicy", "medium"),
        *("serviceAccount", "serviceAccountName", "memory", "memoryOverhead", "cpu", "coreLimit"),
        *("coreRequest", "mountPath", "subPath", "claimName", "secretName", "secret", "operator"),
        *("effect", "topologyKey", "whenUnsatisfiable", "schedulerName", "priorityClassName"),
        *("runtimeClassName", "storage", "ephemeral-storage", "sizeLimit", "drop", "nodeName"),
        *("containerPort", "protocol", "batchScheduler", "driverPodName", "arguments"),
        *("fieldPath", "resource", "accessModes", "storageClassName", "strategy"),
    }
)
_STATEMENTS = frozenset({"where", "on", "true", "statement"})
"""`true` is what kubectl makes of a bare `on`."""
_EXPRESSIONS = frozenset({"set", "values"})
_TEXTS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)", re.S), REMOVED),
    (re.compile(r"(?<=://)[^/\s@'\"]+@"), f"{REMOVED}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REMOVED),
    (re.compile(r"\beyJ[\w-]{8,}+\.[\w-]++\.[\w-]*"), REMOVED),
    (re.compile(r"\b(?:gh[pousr]_|glpat-|xox[abp]-)[\w-]{10,}"), REMOVED),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I), rf"\1 {REMOVED}"),
    (
        # Without a way back, and from the beginning of a word only: a long word takes no longer.
        re.compile(
            r"(?<![\w.-])((?>[\w.-]*(?:secret|password|passwd|passphrase|token|credential|"
            r"access[_.-]?key|account[_.-]?key|private[_.-]?key|api[_.-]?key|signature|\bsig\b))"
            r"[\w.-]*+[\"']?\s*+[:=]\s*+[\"']?)(?!\(removed\))[^\s\"',;&}\]]+",
            re.I,
        ),
        rf"\1{REMOVED}",
    ),
)  # fmt: skip
_LEAST = 6


def is_harmless(text: str) -> bool:
    """Whether a text can be no secret: a number, a size, a duration, a time, true or false."""
    return _HARMLESS.fullmatch(text) is not None


class Redactor:
    """Of one report. First all objects through `clean`, then everything through `finish`.

    Args:
        statements: take out statements and conditions as well.
    """

    def __init__(self, *, statements: bool = False) -> None:
        self._statements = statements
        self._removed: set[str] = set()

    def clean(self, body: Mapping[str, Any]) -> Any:
        """An object as the API server gives it, without what is or may be secret."""
        found = self._any(dict(body), "")
        metadata = found.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
        return found

    def text(self, text: str) -> str:
        """Without what looks like a secret, and what was taken out elsewhere."""
        for pattern, instead in _TEXTS:
            text = pattern.sub(instead, text)
        for known in sorted(self._removed, key=len, reverse=True):
            text = text.replace(known, REMOVED)
        return text

    def finish(self, value: Any) -> Any:
        """What `clean` gave, or any other data, once all that is removed is known."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.finish(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.finish(item) for item in value]
        return value

    def _remove(self, value: Any) -> str:
        """The value is never seen again, in whatever text it stands."""
        if isinstance(value, Mapping):
            for item in value.values():
                self._remove(item)
        elif isinstance(value, list | tuple):
            for item in value:
                self._remove(item)
        elif isinstance(value, str):
            for word in {value, value.strip()}:
                if len(word) >= _LEAST and not is_harmless(word):
                    self._removed.add(word)
        return REMOVED

    def _kept(self, value: Any, *, keep: bool) -> Any:
        if isinstance(value, bool | int | float) or value is None:
            return value
        if isinstance(value, str) and (keep or is_harmless(value)):
            return value
        return self._remove(value)

    def _any(self, value: Any, key: str, *, template: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {
                name: self._field(name, item, key, template=template)
                for name, item in value.items()
                if name not in ("managedFields", "kubectl.kubernetes.io/last-applied-configuration")
            }
        if isinstance(value, list | tuple):
            return [self._any(item, key, template=template) for item in value]
        if not isinstance(value, str) or not template:
            return value
        return self._kept(value, keep=key in _KEEP_IN_TEMPLATES)

    def _field(self, name: str, value: Any, parent: str, *, template: bool) -> Any:
        if name == "env" and isinstance(value, list):
            return [self._variable(item) for item in value]
        if name in ("command", "args", "data", "stringData", "binaryData", "comment"):
            return self._remove(value)
        if isinstance(value, Mapping):
            keep = _KEEP_MAPPING.get(name)
            if keep is not None:
                return {k: self._kept(v, keep=keep(k)) for k, v in value.items()}
        is_statement = name in _STATEMENTS or parent in _EXPRESSIONS
        if self._statements and is_statement and value is not None:
            return self._remove(value)
        if name == "observedRetry" or (_SECRET_NAME.search(name) and isinstance(value, str)):
            return self._kept(value, keep=name == "secretName")
        inside = (
            template
            or name == "sparkTemplate"
            or (name == "template" and parent != "schedules")
            or (name == "spec" and not parent and self._is_job)
        )
        return self._any(value, name, template=inside)

    def _variable(self, item: Any) -> Any:
        """A variable of an environment: its name, and where it is from."""
        if not isinstance(item, Mapping):
            return self._remove(item)
        return {k: self._remove(v) if k == "value" else v for k, v in item.items()}

    _is_job = False

    def job(self, body: Mapping[str, Any]) -> Any:
        """As `clean`, of a SparkApplication: its whole spec is made of templates."""
        self._is_job = True
        try:
            return self.clean(body)
        finally:
            self._is_job = False


def _is_known_label(key: str) -> bool:
    return key.startswith(_KEEP_LABELS)


def _is_none(_key: str) -> bool:
    return False


_KEEP_MAPPING: Final[Mapping[str, Callable[[str], bool]]] = {
    "annotations": _is_none,
    "labels": _is_known_label,
    "matchLabels": _is_known_label,
    "nodeSelector": _is_known_label,
    "sparkConf": lambda key: key in session_conf(),
    "hadoopConf": _is_none,
    "envVars": _is_none,
    "options": lambda key: key.lower() in _KEEP_OPTIONS,
    "properties": lambda key: key.startswith("delta."),
}
"""Mappings whose values people choose freely, and which of them stay though they are texts."""
