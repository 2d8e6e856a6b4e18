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

from tandem.errors import InvalidSpec
from tandem.storage import aws_profile
from tandem.storage.known_options import (
    CHOICES,
    OptionKind,
    closest,
    expected,
    is_of_client,
    key_of,
    known,
    variables,
)
from tandem.storage.time_limits import seconds_of

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
        options: by the names in `known_options`; `AWS_REGION` and `region` are the same.
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
            remedy='Set allow_http: "true" among the options, or AWS_ALLOW_HTTP=true '
            "(GOOGLE_…, AZURE_…) in the environment or the Secret",
        )


def _variable(scheme: str, key: str) -> str:
    return next(name for name, of in variables(scheme).items() if of == key)


_PUT_SECRETS = "Put secrets into the environment (AWS_…, GOOGLE_…, AZURE_…) or a Secret"


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
