"""`spec.storage.options` and the environment, as settings for a store's client.

Options are stored in resources, plans and job files, so they must not contain secrets, which come
from the environment only. This module must not print or log a value of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.errors import InvalidSpec
from tandem.storage.time_limits import seconds_of

# The allowed options by scheme, and the client's own name for each where it differs.
_CLIENT = frozenset({"allow_http", "timeout", "connect_timeout", "proxy_url"})
_TIMES = frozenset({"timeout", "connect_timeout"})
_STORE: Mapping[str, frozenset[str]] = {
    "file": frozenset(),
    "s3": frozenset(
        {
            "endpoint",
            "region",
            "virtual_hosted_style_request",
            "skip_signature",
            "unsigned_payload",
            "request_payer",
            "server_side_encryption",
            "sse_kms_key_id",
            "sse_bucket_key_enabled",
            "disable_tagging",
            "imdsv1_fallback",
            "metadata_endpoint",
            "disable_bulk_delete",
        }
    ),
    "gs": frozenset({"base_url", "skip_signature"}),
    "abfss": frozenset(
        {
            "account_name",
            "endpoint",
            "tenant_id",
            "client_id",
            "authority_host",
            "use_emulator",
            "use_fabric_endpoint",
            "skip_signature",
            "disable_tagging",
        }
    ),
}
_SYNONYMS = {
    "s3": {"endpoint_url": "endpoint", "default_region": "region"},
    "gs": {"endpoint": "base_url"},
}
# Clients insert these into a host name, or verbatim into a URL: with a slash in it, a region is
# another host.
_NAMES = frozenset({"region", "account_name", "tenant_id", "client_id"})
_URLS = frozenset({"endpoint", "base_url", "proxy_url", "metadata_endpoint", "authority_host"})
_URL_OF = frozenset({"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_AUTHORITY_HOST"})
URL = re.compile(r"(?i)https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?(/[A-Za-z0-9._~/-]*)?")
"""A URL that all parsers read alike; its host and port. Other URLs may make a client panic."""
_PLAIN = re.compile(r"[\x20-\x7e]*")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_JSON = frozenset({"GOOGLE_SERVICE_ACCOUNT_KEY"})
_NAMED_BY = frozenset(
    {
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_CLIENT_ID",
        "AZURE_TENANT_ID",
    }
)
_PREFIX = re.compile(r"^(aws|google|azure|azure_storage)_")
_SECRET = ("secret", "access_key", "account_key", "token", "password", "sas", "credential")
_ALSO_SECRET = re.compile(r"private|service_account|passphrase|(^|_)pass($|_)|(^|_)key$")

# The variables that people and platforms set, by scheme. All other variables of the environment
# are ignored.
_ENVIRONMENT: Mapping[str, frozenset[str]] = {
    "s3": frozenset(
        {
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_ALLOW_HTTP",
            "AWS_ROLE_ARN",
            "AWS_ROLE_SESSION_NAME",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        }
    ),
    "gs": frozenset(
        {
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
        }
    ),
    "abfss": frozenset(
        {
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ACCESS_KEY",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_TOKEN",
            "AZURE_CLIENT_ID",
            "AZURE_CLIENT_SECRET",
            "AZURE_TENANT_ID",
            "AZURE_AUTHORITY_HOST",
            "AZURE_FEDERATED_TOKEN_FILE",
        }
    ),
    "file": frozenset(),
}


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """For obstore: `config` of the store (may hold secrets: not shown), `client` for HTTP."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, object] = field(default_factory=dict)


def settings(
    scheme: str,
    options: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    ceiling_s: float | None = None,
) -> StoreSettings:
    """Check `options` and join them with `environ`.

    Args:
        scheme: of the canonical location.
        options: by the names in `contract.md`; `AWS_REGION` and `region` are the same.
        environ: credentials that replace the process's own variables of the same names; None
            uses the process's environment.
        ceiling_s: how long a request may take as a whole, in seconds; None for any time.

    Raises:
        InvalidSpec: an option that is secret, unknown for this scheme, or carries credentials.
    """
    config: dict[str, str] = {}
    client: dict[str, object] = {}
    for name in sorted(_ENVIRONMENT[scheme]):
        if environ and environ.get(name):
            if name == "AWS_ALLOW_HTTP":
                client["allow_http"] = _truth(name, environ[name])
            elif name in _URL_OF and not URL.fullmatch(environ[name]):
                raise _bad(name, "this is not a URL", "http://host:port or https://…", "secretRef")
            elif name not in _JSON and not _PLAIN.fullmatch(environ[name]):
                # The value goes into a header, where it makes a client panic.
                raise _bad(
                    name, "it holds control or foreign characters", "plain text", "secretRef"
                )
            elif name in _NAMED_BY and not _NAME.fullmatch(environ[name]):
                raise _bad(name, "this is not a valid name", "letters, digits, . _ -", "secretRef")
            else:
                config[name.lower()] = environ[name]
    for name, value in options.items():
        key = option_name(scheme, name)
        if "@" in value and "://" in value:
            raise _bad(name, "an option must not carry credentials", "a URL without user info")
        if key in _URLS and not URL.fullmatch(value):
            raise _bad(name, "this is not a URL", "http://host:port or https://…")
        if key in _NAMES and not _NAME.fullmatch(value):
            raise _bad(name, "this is not a valid name", "letters, digits, . _ -")
        if key in _CLIENT:
            if key in _TIMES:
                _check_time(name, value, ceiling_s)
            client[key] = _truth(name, value) if key == "allow_http" else value
        else:
            # An option overrides every spelling of the variable.
            for spelling in (f"aws_{key}", f"aws_{key}_url", f"aws_default_{key}"):
                config.pop(spelling, None)
            config[key] = value
    return StoreSettings(config, client)


def option_name(scheme: str, name: str) -> str:
    """The client's own name of an option. Raises: InvalidSpec if it is secret or unknown."""
    key = _PREFIX.sub("", name.lower().replace("-", "_"))
    key = _SYNONYMS.get(scheme, {}).get(key, key)
    allowed = _STORE[scheme] | (_CLIENT if scheme != "file" else frozenset())
    if key in allowed:
        return key
    if any(word in key for word in _SECRET) or _ALSO_SECRET.search(key):
        raise _bad(name, "options must not contain a secret", "options that are not secret")
    raise _bad(
        name,
        f"no such option for {scheme}://",
        "one of " + ", ".join(sorted(allowed)) if allowed else "no options",
    )


def _check_time(name: str, value: str, ceiling_s: float | None) -> None:
    seconds = seconds_of(value)
    if seconds is None:
        raise InvalidSpec(
            "this is not a duration",
            field=f"spec.storage.options.{name}",
            found=name,
            expected="a number and a unit, such as 30s or 1m 30s, up to a year",
            remedy="Correct it",
        )
    if ceiling_s is not None and seconds > ceiling_s:
        raise InvalidSpec(
            "this is longer than the operator lets a request of a store take",
            field=f"spec.storage.options.{name}",
            found=value,
            expected=f"at most {ceiling_s:g}s (--store-timeout)",
            remedy="Shorten it, or ask the operator's administrator for a longer --store-timeout "
            "(the chart's settings.storeTimeoutSeconds)",
        )


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false", "1", "0"):
        raise _bad(name, f"{value!r} is neither true nor false", "true or false")
    return value.lower() in ("true", "1")


def _bad(name: str, message: str, expected: str, where: str = "options") -> InvalidSpec:
    return InvalidSpec(
        message,
        field=f"spec.storage.{where}.{name}",
        found=name,
        expected=expected,
        remedy="Put secrets into the environment (AWS_…, GOOGLE_…, AZURE_…) or a Secret"
        if where == "options"
        else "Correct it in the Secret",
    )
