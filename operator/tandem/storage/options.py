"""`spec.storage.options`, Secrets and the environment, as settings for a store's client.

Options are stored in resources, plans and job files, so they must not contain secrets, which come
from the environment or a Secret only. What is set in several places is taken from the option, then
the Secret, then the environment, then the AWS profile. This module must not print or log a value
of the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tandem.errors import InvalidSpec, closest_name
from tandem.remedies import ALLOW_HTTP, CREDENTIALS, SECRETS
from tandem.storage import aws_profile
from tandem.storage.time_limits import seconds_of

# The options that a store's client knows, by scheme: their names, other spellings, and kinds.
#
# Data only, for `tandem.storage.options`. The names are those of obstore 0.12 (`S3Config`,
# `GCSConfig`, `AzureConfig`, `ClientConfig`), without the prefixes of their variables. Left out
# are the name of the bucket, which the location gives, and `default_headers`, which may hold
# anything.


class OptionKind(Enum):
    """What a value is, and so where it may stand and how it is checked."""

    TEXT = "plain text"
    NAME = "letters, digits, . _ -"
    URL = "http://host:port or https://…"
    SWITCH = "true or false"
    DURATION = "a duration such as 30s, 500ms or 2m"
    NUMBER = "an integer"
    CERTIFICATES = "certificates in PEM"
    SECRET = "a secret: in the environment or in a Secret"
    KEY_FILE = "the content of a key file: in the environment or in a Secret"
    PROCESS = "a file or an identity of the process: in its environment only"
    PROFILE = "a profile of the AWS configuration files of the machine"


_CLIENT: Mapping[str, OptionKind] = {
    "allow_http": OptionKind.SWITCH,
    "allow_invalid_certificates": OptionKind.SWITCH,
    "connect_timeout": OptionKind.DURATION,
    "default_content_type": OptionKind.TEXT,
    "http1_only": OptionKind.SWITCH,
    "http2_keep_alive_interval": OptionKind.DURATION,
    "http2_keep_alive_timeout": OptionKind.DURATION,
    "http2_keep_alive_while_idle": OptionKind.SWITCH,
    "http2_only": OptionKind.SWITCH,
    "pool_idle_timeout": OptionKind.DURATION,
    "pool_max_idle_per_host": OptionKind.NUMBER,
    "proxy_ca_certificate": OptionKind.CERTIFICATES,
    "proxy_excludes": OptionKind.TEXT,
    "proxy_url": OptionKind.URL,
    "randomize_addresses": OptionKind.SWITCH,
    "read_timeout": OptionKind.DURATION,
    "root_certificate": OptionKind.CERTIFICATES,
    "timeout": OptionKind.DURATION,
    "user_agent": OptionKind.TEXT,
}

# A region, an account, a tenant and a client go into a host name, or verbatim into a URL: with a
# slash in it, a region is another host.
_STORE: Mapping[str, Mapping[str, OptionKind]] = {
    "s3": {
        "access_key_id": OptionKind.SECRET,
        "checksum_algorithm": OptionKind.TEXT,
        "conditional_put": OptionKind.TEXT,
        "container_authorization_token_file": OptionKind.PROCESS,
        "container_credentials_full_uri": OptionKind.PROCESS,
        "container_credentials_relative_uri": OptionKind.PROCESS,
        "copy_if_not_exists": OptionKind.TEXT,
        "disable_bulk_delete": OptionKind.SWITCH,
        "disable_tagging": OptionKind.SWITCH,
        "endpoint": OptionKind.URL,
        "imdsv1_fallback": OptionKind.SWITCH,
        "metadata_endpoint": OptionKind.URL,
        "profile": OptionKind.PROFILE,
        "region": OptionKind.NAME,
        "request_payer": OptionKind.TEXT,
        "role_arn": OptionKind.PROCESS,
        "role_session_name": OptionKind.PROCESS,
        "s3_express": OptionKind.SWITCH,
        "secret_access_key": OptionKind.SECRET,
        "server_side_encryption": OptionKind.TEXT,
        "session_token": OptionKind.SECRET,
        "skip_signature": OptionKind.SWITCH,
        "sse_bucket_key_enabled": OptionKind.SWITCH,
        "sse_customer_key_base64": OptionKind.SECRET,
        "sse_kms_key_id": OptionKind.TEXT,
        "sts_endpoint": OptionKind.URL,
        "unsigned_payload": OptionKind.SWITCH,
        "virtual_hosted_style_request": OptionKind.SWITCH,
        "web_identity_token_file": OptionKind.PROCESS,
    },
    "gs": {
        "application_credentials": OptionKind.PROCESS,
        "base_url": OptionKind.URL,
        "bearer_token": OptionKind.SECRET,
        "service_account": OptionKind.PROCESS,
        "service_account_key": OptionKind.KEY_FILE,
        "skip_signature": OptionKind.SWITCH,
    },
    "abfss": {
        "account_key": OptionKind.SECRET,
        "account_name": OptionKind.NAME,
        "authority_host": OptionKind.URL,
        "client_id": OptionKind.NAME,
        "client_secret": OptionKind.SECRET,
        "credential_type": OptionKind.PROCESS,
        "disable_tagging": OptionKind.SWITCH,
        "encryption_key": OptionKind.SECRET,
        "endpoint": OptionKind.URL,
        "fabric_cluster_identifier": OptionKind.PROCESS,
        "fabric_session_token": OptionKind.PROCESS,
        "fabric_token_service_url": OptionKind.PROCESS,
        "fabric_workload_host": OptionKind.PROCESS,
        "federated_token_file": OptionKind.PROCESS,
        "msi_endpoint": OptionKind.URL,
        "msi_resource_id": OptionKind.PROCESS,
        "object_id": OptionKind.PROCESS,
        "sas_key": OptionKind.SECRET,
        "skip_signature": OptionKind.SWITCH,
        "tenant_id": OptionKind.NAME,
        "token": OptionKind.SECRET,
        "use_azure_cli": OptionKind.PROCESS,
        "use_emulator": OptionKind.SWITCH,
        "use_fabric_endpoint": OptionKind.SWITCH,
    },
    "file": {},
}
_SYNONYMS: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "default_region": "region",
        "endpoint_url": "endpoint",
        "endpoint_url_s3": "endpoint",
        "endpoint_url_sts": "sts_endpoint",
        "token": "session_token",
    },
    "gs": {"endpoint": "base_url", "service_account_path": "service_account"},
    "abfss": {
        "access_key": "account_key",
        "authority_id": "tenant_id",
        "bearer_token": "token",
        "identity_endpoint": "msi_endpoint",
        "master_key": "account_key",
        "sas_token": "sas_key",
    },
    "file": {},
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "checksum_algorithm": ("SHA256", "sha256", "CRC64NVME", "crc64nvme"),
    # Without the condition two writers could overwrite each other's commits.
    "conditional_put": ("etag",),
    "request_payer": ("true", "false", "requester", "REQUESTER"),
    "server_side_encryption": ("AES256", "aws:kms", "aws:kms:dsse", "sse-c"),
}
"""Options with few values."""
_VARIABLES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "abfss": ("AZURE_STORAGE_", "AZURE_")}
_PREFIX = re.compile(r"^(aws|google|azure_storage|azure)_")
_OF_THE_FILES = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")


def known(scheme: str) -> dict[str, OptionKind]:
    """All options of a scheme, of the store and of its HTTP client."""
    return {**_STORE[scheme], **(_CLIENT if scheme != "file" else {})}


def is_of_client(key: str) -> bool:
    """Whether an option belongs to the HTTP client."""
    return key in _CLIENT


def key_of(scheme: str, name: str) -> str:
    """The one name of an option, which need not exist."""
    key = _PREFIX.sub("", name.lower().replace("-", "_"))
    return _SYNONYMS[scheme].get(key, key)


def closest(scheme: str, key: str) -> str:
    """The option that may stand in a resource and was probably meant, or ""."""
    found = closest_name(key, [*_plain(scheme), *_SYNONYMS[scheme]])
    return key_of(scheme, found)


def expected(scheme: str) -> str:
    """The options that may stand in a resource, for a message."""
    names = sorted(_plain(scheme))
    return "one of " + ", ".join(names) if names else "no options"


def _plain(scheme: str) -> list[str]:
    unsuited = (OptionKind.SECRET, OptionKind.KEY_FILE, OptionKind.PROCESS)
    return [key for key, kind in known(scheme).items() if kind not in unsuited]


def variables(scheme: str) -> dict[str, str]:
    """Variables of the environment by their names: the option that each of them sets, those that
    take precedence last."""
    spellings = {key: key for key in known(scheme)} | dict(_SYNONYMS[scheme])
    # The general endpoint is overridden by that of S3, and a default by a region.
    first = ("default_region", "endpoint", "endpoint_url")
    ordered = sorted(spellings, key=lambda name: (name not in first, name))
    return {
        f"{prefix}{name.upper()}": spellings[name]
        for prefix in _VARIABLES.get(scheme, ())
        for name in ordered
    }


def of_the_process() -> frozenset[str]:
    """Variables that name a file, a credential server or an identity of the process that reads
    them."""
    kinds = (OptionKind.PROCESS, OptionKind.PROFILE)
    found = {
        name
        for scheme in _VARIABLES
        for name, key in variables(scheme).items()
        if known(scheme)[key] in kinds
    }
    return frozenset(found | set(_OF_THE_FILES))


URL = re.compile(r"(?i)https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?(/[A-Za-z0-9._~/-]*)?")
"""A URL that all parsers read alike; its host and port. Other URLs may make a client panic."""
_PATTERNS: Mapping[OptionKind, re.Pattern[str]] = {
    OptionKind.NAME: re.compile(r"[A-Za-z0-9._-]{1,255}"),
    OptionKind.URL: URL,
    OptionKind.NUMBER: re.compile(r"\d{1,9}"),
    OptionKind.CERTIFICATES: re.compile(
        r"[\x09\x0a\x0d\x20-\x7e]*-----BEGIN [\x09\x0a\x0d\x20-\x7e]*"
    ),
    OptionKind.KEY_FILE: re.compile(r".*", re.DOTALL),
}
# Other values go into a header, where control characters make a client panic.
_PLAIN = re.compile(r"[\x20-\x7e]*")
_TRUE, _FALSE = ("true", "1", "yes", "on", "y"), ("false", "0", "no", "off", "n")
_SECRET = ("secret", "access_key", "account_key", "token", "password", "sas", "credential")
_ALSO_SECRET = re.compile(r"private|service_account|passphrase|(^|_)pass($|_)|(^|_)key$")
_STRONGER_THAN_SAS = frozenset({"account_key", "client_secret", "token"})
"""What Azure's client prefers to a shared access signature, of the same Secret, too."""
_ENVIRONMENT, _SECRET_REF, _OPTIONS = "the environment", "secretRef", "options"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """For obstore: `config` of the store (may hold secrets: not shown), `client` for HTTP."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, object] = field(default_factory=dict, repr=False)


def settings(
    scheme: str,
    options: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    process: Mapping[str, str] | None = None,
    *,
    ceiling_s: float | None = None,
) -> StoreSettings:
    """Check `options` and join them with `environ` and the environment of the process.

    Args:
        scheme: of the canonical location.
        options: by the names above; `AWS_REGION` and `region` are the same.
        environ: credentials that replace the process's own variables of the same names.
        process: the process's environment, if not its own.
        ceiling_s: how long a request may take as a whole, in seconds; None for any time.

    Raises:
        InvalidSpec: an option that is secret, unknown for this scheme, or carries credentials; a
            value that no client takes; a profile that cannot be used; an endpoint without TLS
            where that is not allowed.
    """
    if scheme == "file":
        for name in options:
            option_name(scheme, name)
        return StoreSettings()
    own = os.environ if process is None else process
    chosen = _of_variables(scheme, own, _ENVIRONMENT)
    secret = _of_variables(scheme, environ or {}, _SECRET_REF)
    given = _of_options(scheme, options)
    # Where the location names the account, it may differ from that of the environment, which the
    # client reads itself.
    chosen.pop("account_name", None)
    if scheme == "s3":
        named = given.pop("profile", "")
        chosen.pop("profile", None)
        secret.pop("profile", None)
        # What the profile says gives way to the environment, as in AWS's own tools.
        chosen = {**aws_profile.settings_of(named, own, {**chosen, **secret, **given}), **chosen}
    found = {**chosen, **secret, **given}
    for key in ("timeout", "connect_timeout"):
        if ceiling_s is not None and key in found:
            typed = next((name for name in options if key_of(scheme, name) == key), key)
            _require_within(ceiling_s, typed, found[key])
    for key in ("endpoint", "base_url"):
        if key in found:
            _require_allowed(key, found)
    config = {key: value for key, value in found.items() if not is_of_client(key)}
    if scheme == "abfss" and "sas_key" in secret and _STRONGER_THAN_SAS.isdisjoint(secret):
        # Else the client prefers an identity of the process, such as that of its pod.
        config["credential_type"] = "sas_token"
    if "sts_endpoint" in config:
        config["endpoint_url_sts"] = config.pop("sts_endpoint")
    if "endpoint" in config and own.get("AWS_ENDPOINT_URL_S3") and scheme == "s3":
        # The client reads this variable itself, and prefers it to an endpoint.
        config["aws_endpoint_url_s3"] = config["endpoint"]
    kinds = known(scheme)
    client: dict[str, object] = {
        key: value == "true" if kinds[key] is OptionKind.SWITCH else value
        for key, value in found.items()
        if is_of_client(key)
    }
    return StoreSettings(config, client)


def option_name(scheme: str, name: str) -> str:
    """The client's own name of an option. Raises: InvalidSpec if it may not stand in a resource,
    or is unknown."""
    key = key_of(scheme, name)
    kind = known(scheme).get(key)
    if kind is OptionKind.PROCESS:
        raise _bad(
            name,
            "this names a file or an identity of the process, which options must not choose",
            "it in the environment of the process",
            remedy=f"Remove it, and set {_variable(scheme, key)} in the environment of the "
            "process; in a cluster give spec.storage.serviceAccountName",
        )
    if kind in (OptionKind.SECRET, OptionKind.KEY_FILE):
        raise _bad(
            name,
            "options must not contain a secret",
            "options that are not secret",
            remedy=_PUT_SECRETS,
        )
    if kind is not None:
        return key
    if any(word in key for word in _SECRET) or _ALSO_SECRET.search(key):
        raise _bad(
            name,
            "options must not contain a secret",
            "options that are not secret",
            remedy=_PUT_SECRETS,
        )
    near = closest(scheme, key)
    raise _bad(
        name,
        f"no such option for {scheme}://",
        expected(scheme),
        remedy=f"Did you mean {near}?" if near else "Remove it",
    )


def _require_within(ceiling_s: float, name: str, value: str) -> None:
    if (seconds_of(value) or 0.0) > ceiling_s:
        raise InvalidSpec(
            "this is longer than the operator lets a request of a store take",
            field=f"spec.storage.options.{name}",
            found=value,
            expected=f"at most {ceiling_s:g}s (--store-timeout)",
            remedy="Shorten it, or ask the operator's administrator for a longer --store-timeout "
            "(the chart's settings.storeTimeoutSeconds)",
        )


def secret_options(scheme: str, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What a Secret sets: by the names of its keys, the option and its value."""
    named = variables(scheme).items()
    return {name: (key, environ[name]) for name, key in named if environ.get(name)}


def _of_variables(scheme: str, environ: Mapping[str, str], where: str) -> dict[str, str]:
    found = {}
    for name, (key, value) in secret_options(scheme, environ).items():
        found[key] = _value(scheme, key, value, name, where)
    return found


def _of_options(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in options.items():
        key = option_name(scheme, name)
        if "@" in value and "://" in value:
            raise _bad(
                name,
                "an option must not carry credentials",
                "a URL without user info",
                remedy=_PUT_SECRETS,
            )
        if found.get(key, value) != value:
            raise _bad(name, "an option has two values", f"{key} once", remedy="Remove one")
        found[key] = _value(scheme, key, value, name, _OPTIONS)
    return found


def _value(scheme: str, key: str, value: str, name: str, where: str) -> str:
    kind = known(scheme)[key]
    if kind is OptionKind.SWITCH:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise _bad(name, "this is neither true nor false", kind.value, where)
        return "true" if value.lower() in _TRUE else "false"
    if key in CHOICES and value not in CHOICES[key]:
        raise _bad(name, "no such value", " or ".join(CHOICES[key]), where)
    if kind is OptionKind.DURATION:
        fits = seconds_of(value) is not None
    else:
        fits = _PATTERNS.get(kind, _PLAIN).fullmatch(value) is not None
    if not fits:
        message = {
            OptionKind.URL: "this is not a URL",
            OptionKind.NAME: "this is not a valid name",
            OptionKind.DURATION: "this is not a duration",
            OptionKind.NUMBER: "this is not a number",
            OptionKind.CERTIFICATES: "these are not certificates",
        }.get(kind, "it holds control or foreign characters")
        wanted = kind.value if kind in {*_PATTERNS, OptionKind.DURATION} else OptionKind.TEXT.value
        raise _bad(name, message, wanted, where)
    return value


def _require_allowed(key: str, found: Mapping[str, str]) -> None:
    """Check that an endpoint without TLS is allowed: the client would only say that it cannot
    build the request."""
    plain = found[key].lower().startswith("http://")
    emulated = found.get("use_emulator") == "true"
    if plain and found.get("allow_http") != "true" and not emulated:
        raise InvalidSpec(
            "the endpoint is http://, and connections without TLS are not allowed",
            field="spec.storage.options.allow_http",
            found=found[key][:200],
            expected="https://…, or allow_http: true",
            remedy=f"{ALLOW_HTTP.in_resource} AWS_ALLOW_HTTP=true (GOOGLE_…, AZURE_…) in "
            f"{CREDENTIALS.in_resource}",
        )


def _variable(scheme: str, key: str) -> str:
    return next(name for name, of in variables(scheme).items() if of == key)


_PUT_SECRETS = f"Put secrets into {SECRETS.in_resource}"


def _bad(
    name: str, message: str, wanted: str, where: str = _OPTIONS, *, remedy: str = ""
) -> InvalidSpec:
    remedies = {
        _OPTIONS: "Correct the value of the option",
        _SECRET_REF: "Correct it in the Secret",
        _ENVIRONMENT: "Correct it in the environment",
    }
    return InvalidSpec(
        message,
        field=name if where == _ENVIRONMENT else f"spec.storage.{where}.{name}",
        found=name,
        expected=wanted,
        remedy=remedy or remedies[where],
    )
