"""Which locations and endpoints an administrator allows for tables and sources.

A prefix is a location, or a bare scheme (`s3://`: every bucket). Whether a location lies below one
is decided on canonical spellings, by whole path segments; on a local disk links are resolved, too.
Without any prefix every location is allowed.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterator, Mapping, Sequence

from tandem.errors import InvalidSpec, LocationNotAllowed
from tandem.storage.options import (
    URL,
    OptionKind,
    known,
    of_the_process,
    option_name,
    secret_options,
    variables,
)
from tandem.storage.paths import (
    SCHEMES,
    canonical_location,
    canonical_prefix,
    is_below,
    split_location,
)


def check_prefixes(prefixes: Sequence[str], *, field: str) -> tuple[str, ...]:
    """The canonical spellings. Raises: InvalidSpec."""
    return tuple(canonical_prefix(prefix, field=field) for prefix in prefixes)


def require(location: str, prefixes: Sequence[str], *, resource: str, field: str) -> None:
    """Check that a location lies below one of the prefixes, if there are any.

    Raises: LocationNotAllowed; InvalidSpec if it is not a location.
    """
    if not prefixes:
        return
    canonical = canonical_location(location, field=field)
    allowed = check_prefixes(prefixes, field="allowedLocations")
    if not any(
        is_below(canonical, prefix) and _leads_below(canonical, prefix) for prefix in allowed
    ):
        raise LocationNotAllowed(
            "this namespace's tables and sources lie elsewhere",
            resource=resource,
            field=field,
            found=canonical,
            expected="below " + " or ".join(allowed),
            remedy="Ask the operator's administrator for an --allowed-location "
            "(the chart's allowedLocations)",
        )


def _leads_below(location: str, prefix: str) -> bool:
    """Whether no link on a local disk leads out. Links above the prefix belong to its owner."""
    scheme, _, path = split_location(location)
    if scheme != "file":
        return True
    root = os.path.realpath(split_location(prefix)[2] or "/")
    return os.path.commonpath([root, os.path.realpath(path or "/")]) == root


_EMULATOR = "http://127.0.0.1:10000"
_KEY_URLS = ("gcs_base_url", "token_uri", "auth_uri")
_OF_GOOGLE = ("*.googleapis.com", "accounts.google.com")

_LONGEST = 128 << 10
"""Bytes of a variable with which Linux starts no process: no JVM, and no container."""
OF_THE_POD = of_the_process()
"""Variables that name a file, a credential server or a role of the process that reads them. From
a Secret they would make the operator read its own files, including its account's token, and send
them to any host that the Secret names."""


def check_secret(environ: Mapping[str, str], *, resource: str, name: str) -> None:
    """Check that a Secret holds credentials, and does not refer to those of the process itself.

    Raises: InvalidSpec, which shows the key and not its value.
    """
    for key in sorted(OF_THE_POD & set(environ)):
        raise InvalidSpec(
            "a Secret must hold the credentials themselves, not where a pod has them",
            resource=resource,
            field="spec.storage.secretRef",
            found=f"{key} in Secret {name}",
            expected="keys such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            remedy="Remove the key; for a workload's identity give storage.serviceAccountName",
        )
    variable = {name for scheme in SCHEMES for name in variables(scheme)}
    for key in sorted(variable & set(environ)):
        long = len(f"{key}={environ[key]}".encode()) >= _LONGEST
        if long or "\0" in environ[key]:
            what = "is too long for a variable" if long else "has a NUL character"
            raise InvalidSpec(
                f"a Secret must hold text, but a value {what}",
                resource=resource,
                field="spec.storage.secretRef",
                found=f"{key} in Secret {name}",
                remedy="Correct the value: the Secret's data must be the base64 of the key itself",
            )


def check_options(options: Mapping[str, str], scheme: str, *, resource: str) -> None:
    """Check that options do not choose a profile of the process itself.

    Raises: InvalidSpec, also for other options that may not stand in a resource.
    """
    for name in options:
        if known(scheme).get(option_name(scheme, name)) is OptionKind.PROFILE:
            raise InvalidSpec(
                "in a cluster a table cannot choose a profile of the operator's own AWS files",
                resource=resource,
                field=f"spec.storage.options.{name}",
                found=name,
                expected="storage.secretRef or storage.serviceAccountName",
                remedy="Remove the option; put the keys into a Secret",
            )


def require_endpoints(
    location: str,
    options: Mapping[str, str],
    environ: Mapping[str, str] | None,
    allowed: Sequence[str],
    *,
    resource: str,
) -> None:
    """Check that options and a Secret send requests to the allowed hosts only.

    Args:
        allowed: `host` or `host:port`, shell patterns.
    Raises: LocationNotAllowed, which shows the value of an option, but not of a Secret.
    """
    scheme = split_location(location)[0]
    found = [*_of_options(scheme, options), *_of_secret(environ or {})]
    for where, shown, url in found:
        patterns = (*allowed, *_OF_GOOGLE) if where.endswith("_uri") else allowed
        if not _matches(url, patterns):
            raise _foreign_endpoint(allowed, resource=resource, field=where, found=shown)


def require_catalog(uri: str, allowed: Sequence[str], *, resource: str, field: str) -> None:
    """Check that a catalog is at one of the allowed hosts.

    Args:
        allowed: as of `require_endpoints`.
    Raises: LocationNotAllowed.
    """
    if not _matches(f"http://{uri.partition('://')[2]}", allowed):
        raise _foreign_endpoint(
            allowed, resource=resource, field=field, found=uri, otherwise="no catalog of this kind"
        )


def _foreign_endpoint(
    allowed: Sequence[str],
    *,
    resource: str,
    field: str,
    found: str,
    otherwise: str = "the cloud's own endpoint",
) -> LocationNotAllowed:
    return LocationNotAllowed(
        "this operator's tables may not use this endpoint",
        resource=resource,
        field=field,
        found=found,
        expected="one of " + ", ".join(allowed) if allowed else otherwise,
        remedy="Ask the operator's administrator for an --allowed-endpoint "
        "(the chart's allowedEndpoints)",
    )


def _of_options(scheme: str, options: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(field, what may be shown, URL) of each."""
    for name, value in options.items():
        key = option_name(scheme, name)
        if key == "use_emulator":
            if value.lower() not in ("false", "0"):
                yield f"spec.storage.options.{name}", value[:200], _EMULATOR
        elif known(scheme)[key] is OptionKind.URL:
            yield f"spec.storage.options.{name}", value[:200], value


def _of_secret(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Of all schemes: a job's source may lie in another kind of store than its table."""
    shown = "a URL in the Secret"
    for scheme in SCHEMES:
        for name, (key, value) in secret_options(scheme, environ).items():
            field, kind = f"spec.storage.secretRef.{name}", known(scheme)[key]
            if key == "use_emulator" and value.lower() not in ("false", "0"):
                yield field, shown, _EMULATOR
            elif kind is OptionKind.URL:
                yield field, shown, value
            elif kind is OptionKind.KEY_FILE:
                for member in _KEY_URLS:
                    if url := _member(value, member):
                        yield f"{field}.{member}", shown, url


def _member(text: str, key: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""  # not a key that a client reads
    return str(found.get(key) or "") if isinstance(found, dict) else ""


def _matches(url: str, patterns: Sequence[str]) -> bool:
    """A URL that two parsers might read differently matches no pattern."""
    found = URL.fullmatch(url.strip())
    if found is None:
        return False
    host, port = found[1].lower(), found[2]
    names = [host, f"{host}:{port}"] if port else [host]
    return any(fnmatch.fnmatchcase(n, p.strip().lower()) for n in names for p in patterns)
