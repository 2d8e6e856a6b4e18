"""What a template may do: the operator's policy, and checks of the settings that it sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from tandem.errors import InvalidSpec
from tandem.json_types import JsonMapping
from tandem.spark.application.allowed_settings import FIELDS, REFUSED, SETTINGS
from tandem.spark.application.template import InvalidText, arguments, mapping, shown

# Checks the fields and settings of a `sparkTemplate` against `allowed_settings`. Pure.


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
    spec = mapping(template.get("spec"))
    for part, prefix in (("sparkConf", ""), ("hadoopConf", "spark.hadoop.")):
        for key in mapping(spec.get(part)):
            if not setting_allowed(f"{prefix}{key}", allowed):
                yield InvalidText(
                    f"spec.{part}.{shown(key)}", why_refused(f"{prefix}{key}"), _SETTINGS
                )
    deps = mapping(spec.get("deps"))
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
    found = (why for pattern, why in _WHY if re.match(pattern, setting, re.IGNORECASE))
    return next(found, NOT_LISTED)


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
            yield InvalidText(where, REFUSED.get(at, NOT_LISTED), _FIELDS)
        elif key in _CONTAINERS:
            for index, item in enumerate(inner if isinstance(inner, list) else []):
                name = mapping(item).get("name", index)
                yield from _walk(f"{where}.{shown(name)}", item, "a container", allowed)
        elif listed == "inner":
            yield from _walk(where, inner, at, allowed)


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


# Checks what a `sparkTemplate` may do under the policy `restricted`. Pure.
#
# Any user who may create operations in a namespace writes a template; the Spark operator, which has
# more privileges, puts the SparkApplication into effect. So a template may only affect the pods of
# its job, and these must conform to the Pod Security Standard `restricted` and use the account of
# the job. What runs inside the pods is not restricted: any image is allowed.
#
# There are two checks. The settings and fields of a template must be on the lists of
# `allowed_settings`. And the resulting pods must be restricted: the application with the template
# is compared with the one without it, so that a resource is not blamed for violations of the
# administrator's own template.


class TemplatePolicy(StrEnum):
    """`any`: everything that the Spark operator accepts."""

    RESTRICTED = "restricted"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Violation:
    """`where` is the path below a SparkApplication. `what` is the whole invalid value, so that the
    same violation by another value is a different one."""

    where: str
    why: str
    what: str


def require_listed(
    template: JsonMapping, *, allowed: tuple[str, ...], resource: str, field: str
) -> None:
    """Check that a template sets only what is on the lists.

    Args:
        allowed: an administrator's additions, `spark.extraListeners` or `spec.batchScheduler`.
    Raises: InvalidSpec that names the first path that is not allowed, and how many more there are.
    """
    found = list(unlisted(template, allowed))
    if found:
        raise InvalidSpec(
            "cannot be set by a template under this operator's template policy",
            resource=resource,
            field=f"{field}.{found[0].path}" if field else found[0].path,
            found=found[0].found,
            expected=found[0].expected,
            remedy=f"{_removal([each.path for each in found])} can allow it by {OPTION} (the "
            f"chart's {VALUE}), or give it to all jobs by --spark-template (jobs.sparkTemplate)",
        )


def _removal(paths: Sequence[str]) -> str:
    """The first part of a remedy: to remove what is refused."""
    more = len(paths) - 1
    what = f"it (and {more} more: {paths[1]}, …)" if more else "it"
    return f"Remove {what}. The operator's administrator"


def require_restricted(
    without: JsonMapping, made: JsonMapping, *, accounts: Iterable[str], resource: str, field: str
) -> None:
    """Check that a template adds no violation.

    Args:
        without, made: `spec` of the application without and with it.
        accounts: service accounts that its pods may have.
    Raises: InvalidSpec that names the path of the first violation, and how many more there are.
    """
    known = set(violations(without, accounts=accounts))
    found = [each for each in violations(made, accounts=accounts) if each not in known]
    if found:
        raise InvalidSpec(
            f"{found[0].why}, which this operator's template policy refuses",
            resource=resource,
            field=f"{field}.{found[0].where}" if field else found[0].where,
            expected="a template within Pod Security restricted and the job's account",
            remedy=f"{_removal([each.where for each in found])} can give it to all jobs by "
            "--spark-template (the chart's jobs.sparkTemplate)",
        )


def violations(spec: JsonMapping, *, accounts: Iterable[str]) -> Iterator[Violation]:
    """All violations in an application's `spec`."""
    allowed = frozenset(accounts) | {""}
    for key, value in mapping(spec.get("sparkConf")).items():
        if "apparmor" in key.lower():
            yield _wrong(f"spec.sparkConf.{key}", "it changes a pod's confinement", value)
    yield from _volumes("spec", spec.get("volumes"))
    for part in ("driver", "executor"):
        yield from _part(f"spec.{part}", mapping(spec.get(part)), allowed, spec.get("volumes"))


# Pods

_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    }
)
_SELINUX: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_PROFILES: Final = ("RuntimeDefault", "Localhost")
_SPARKS: Final = ("spark-kubernetes-driver", "spark-kubernetes-executor")
_HANDLERS: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def _part(
    where: str, pod: JsonMapping, accounts: frozenset[str], volumes: Any
) -> Iterator[Violation]:
    """Driver or executor: the Spark operator's own fields, and the pod template. `volumes` are
    those of the application, which both can mount."""
    template = mapping(pod.get("template"))
    inner = mapping(template.get("spec"))
    at = f"{where}.template.spec"
    unrestricted = _unrestricted(volumes) | _unrestricted(inner.get("volumes"))
    for path, holder in ((where, pod), (at, inner)):
        for key in ("serviceAccount", "serviceAccountName"):
            if holder.get(key) not in (None, *accounts):
                yield _wrong(f"{path}.{key}", "it is another account than the job's", holder[key])
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if holder.get(key):
                yield _wrong(f"{path}.{key}", "it shares the host's namespaces", holder[key])
    metadata = mapping(template.get("metadata"))
    for path, holder in ((where, pod), (f"{where}.template.metadata", metadata)):
        for key, value in mapping(holder.get("annotations")).items():
            if "apparmor" in key.lower() and value not in ("runtime/default",):
                yield _wrong(f"{path}.annotations.{key}", "it changes a pod's confinement", value)
    yield from _volumes(at, inner.get("volumes"))
    yield from _mounts(where, pod, inner, unrestricted)
    # The webhook's field overrides the template's if both are given; each alone must be valid.
    contexts = [(f"{where}.podSecurityContext", mapping(pod.get("podSecurityContext")))]
    contexts.append((f"{at}.securityContext", mapping(inner.get("securityContext"))))
    for path, context in contexts:
        yield from _forbidden(path, context)
    shared: JsonMapping = {**contexts[1][1], **contexts[0][1]}
    # Spark's own container, in the field and in the template: without the webhook only the
    # latter applies.
    yield from _container(where, {**pod, "name": _SPARKS[0]}, shared)
    for key in ("initContainers", "sidecars"):
        yield from _containers(f"{where}.{key}", pod.get(key), shared)
    for key in ("initContainers", "containers", "ephemeralContainers"):
        yield from _containers(f"{at}.{key}", inner.get(key), contexts[1][1])


def _containers(where: str, found: Any, shared: JsonMapping) -> Iterator[Violation]:
    if found is None:
        return
    if not isinstance(found, list):
        yield _wrong(where, "it is not a list", found)
        return
    for item in found:
        container = mapping(item)
        yield from _container(f"{where}.{container.get('name', '')}", container, shared)


def _container(where: str, container: JsonMapping, shared: JsonMapping) -> Iterator[Violation]:
    """A container, or driver and executor, which have the same fields."""
    context = mapping(container.get("securityContext"))
    at = f"{where}.securityContext"

    def wrong(path: str, why: str) -> Violation:
        # With the whole container: the same violation with another image is a different one. The
        # image and size of Spark's container are free, and left out.
        sparks = container.get("name") in _SPARKS
        return Violation(path, why, _text(context if sparks else container))

    for each in _forbidden(at, context):
        yield wrong(each.where, each.why)
    if context.get("privileged"):
        yield wrong(f"{at}.privileged", "it is privileged")
    if context.get("procMount") not in (None, "Default"):
        yield wrong(f"{at}.procMount", "it unmasks /proc")
    if context.get("allowPrivilegeEscalation") is not False:
        yield wrong(f"{at}.allowPrivilegeEscalation", "it is not false")
    capabilities = mapping(context.get("capabilities"))
    if "ALL" not in _items(capabilities.get("drop")):
        yield wrong(f"{at}.capabilities.drop", "it does not drop ALL")
    if any(each != "NET_BIND_SERVICE" for each in _items(capabilities.get("add"))):
        yield wrong(f"{at}.capabilities.add", "it adds capabilities")
    both = {**shared, **{key: value for key, value in context.items() if value is not None}}
    if both.get("runAsNonRoot") is not True:
        yield wrong(f"{at}.runAsNonRoot", "it is not true")
    if mapping(both.get("seccompProfile")).get("type") not in _PROFILES:
        yield wrong(f"{at}.seccompProfile", "it is not RuntimeDefault")
    for port in _items(container.get("ports")):
        if mapping(port).get("hostPort"):
            yield wrong(f"{where}.ports", "it uses a port of the host")
    handlers = [mapping(container.get(name)) for name in _HANDLERS]
    handlers += [mapping(each) for each in mapping(container.get("lifecycle")).values()]
    for handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            if mapping(handler.get(kind)).get("host"):
                yield wrong(f"{where}.{kind}.host", "it makes the node connect to another host")


def _forbidden(where: str, context: JsonMapping) -> Iterator[Violation]:
    """Violations in a pod's or a container's security context."""
    if context.get("runAsUser") in (0, "0"):
        yield _wrong(f"{where}.runAsUser", "it is root", context)
    if context.get("runAsNonRoot") is False:
        yield _wrong(f"{where}.runAsNonRoot", "it is not true", context)
    for key in ("seccompProfile", "appArmorProfile"):
        if mapping(context.get(key)).get("type") not in (None, *_PROFILES):
            yield _wrong(f"{where}.{key}", "it is unconfined", context)
    selinux = mapping(context.get("seLinuxOptions"))
    if (selinux.get("type") or "") not in _SELINUX or selinux.get("user") or selinux.get("role"):
        yield _wrong(f"{where}.seLinuxOptions", "it changes a pod's confinement", context)
    if mapping(context.get("windowsOptions")).get("hostProcess"):
        yield _wrong(f"{where}.windowsOptions.hostProcess", "it is a process of the host", context)
    for sysctl in _items(context.get("sysctls")):
        if str(mapping(sysctl).get("name")) not in _SYSCTLS:
            yield _wrong(f"{where}.sysctls", "it sets an unsafe sysctl", context)


def _volumes(where: str, found: Any) -> Iterator[Violation]:
    if found is None:
        return
    if not isinstance(found, list):
        yield _wrong(f"{where}.volumes", "it is not a list", found)
        return
    for item in found:
        volume = mapping(item)
        for kind in volume.keys() - {"name"} - _VOLUMES:
            name = volume.get("name", "")
            yield _wrong(f"{where}.volumes.{name}.{kind}", "it is not a restricted volume", volume)


def _unrestricted(volumes: Any) -> frozenset[str]:
    """Names of volumes that only an administrator may declare."""
    found = [mapping(each) for each in _items(volumes)]
    return frozenset(str(v.get("name", "")) for v in found if v.keys() - {"name"} - _VOLUMES)


def _mounts(
    where: str, pod: JsonMapping, inner: JsonMapping, unrestricted: frozenset[str]
) -> Iterator[Violation]:
    """Mounts of unrestricted volumes. A mount in a container of the administrator does not allow it
    in another container, nor in the same one with another image."""
    holders: list[tuple[str, JsonMapping]] = [(where, {**pod, "name": _SPARKS[0]})]
    for at, owner in ((where, pod), (f"{where}.template.spec", inner)):
        for key in ("initContainers", "sidecars", "containers", "ephemeralContainers"):
            for each in _items(owner.get(key)):
                container = mapping(each)
                holders.append((f"{at}.{key}.{container.get('name', '')}", container))
    for path, holder in holders:
        for key in ("volumeMounts", "volumeDevices"):
            for each in _items(holder.get(key)):
                name = str(mapping(each).get("name", ""))
                if name in unrestricted:
                    what = each if holder.get("name") in _SPARKS else holder
                    yield _wrong(f"{path}.{key}.{name}", "it mounts no restricted volume", what)


def _items(value: Any) -> list[Any]:
    """The items of a value that should be a list; any other value counts as one item, which no
    check accepts."""
    if value in (None, (), "", {}):
        return []
    return value if isinstance(value, list) else [value]


def _wrong(where: str, why: str, what: Any) -> Violation:
    return Violation(where, why, _text(what))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
