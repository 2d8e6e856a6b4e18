"""Profiles of the AWS configuration files, for `s3://` without credentials in the environment.

A profile gives static keys, a token, a region, an endpoint, or a role with the file of a web
identity. What AWS's tools do with further calls (SSO, a role by another profile, a program, MFA) is
left to them: `aws configure export-credentials` prints their result as variables. This module must
not print or log a line of these files.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from tandem.errors import InvalidSpec, closest_name

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_ROLE = {
    "role_arn": "role_arn",
    "role_session_name": "role_session_name",
    "web_identity_token_file": "web_identity_token_file",
}
_PLACES = {"region": "region", "endpoint_url": "endpoint"}
_FOREIGN = ("sso_session", "sso_start_url", "source_profile", "credential_source")
_PROGRAM = "credential_process"
# With one of these in the environment or a Secret, there is an identity already.
_IDENTITY = (
    "access_key_id",
    "web_identity_token_file",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
)


def settings_of(
    named: str, environ: Mapping[str, str], present: Mapping[str, str]
) -> dict[str, str]:
    """The options of the store that the profile sets.

    Args:
        named: the option `profile`, or "". Then `AWS_PROFILE` is used, then `default`, if any.
        environ: the environment of the process.
        present: the options that are set without the profile.

    Raises:
        InvalidSpec: there is no such profile, a file is malformed, or the profile needs AWS's own
            tools.
    """
    variable = environ.get("AWS_PROFILE", "")
    name = named or variable or "default"
    has_identity = any(present.get(key) for key in _IDENTITY)
    if named and has_identity:
        raise InvalidSpec(
            "the option names a profile, and the environment or the Secret holds an identity, too",
            field="spec.storage.options.profile",
            found=named,
            expected="one of them",
            remedy="Remove the option, or unset AWS_ACCESS_KEY_ID",
        )
    if has_identity or present.get("skip_signature") == "true":
        return {}
    profiles = _profiles(environ)
    if name not in profiles:
        if not named and not variable:
            return {}
        raise _unusable(
            "there is no such profile",
            name,
            ", ".join(sorted(profiles)) or "a profile in ~/.aws/config or ~/.aws/credentials",
            f"Did you mean {near}?"
            if (near := closest_name(name, sorted(profiles)))
            else "Correct AWS_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return _settings(name, profiles[name])


def _settings(name: str, profile: Mapping[str, str]) -> dict[str, str]:
    found = {key: profile[of] for of, key in _PLACES.items() if profile.get(of)}
    keys = {key: profile[of] for of, key in _KEYS.items() if profile.get(of)}
    role = {key: profile[of] for of, key in _ROLE.items() if profile.get(of)}
    if "access_key_id" in keys and "secret_access_key" in keys and "role_arn" not in role:
        return {**found, **keys}
    if "web_identity_token_file" in role and "role_arn" in role:
        return {**found, **role}
    foreign = [key for key in (*_FOREIGN, _PROGRAM) if profile.get(key)]
    if foreign or role or keys:
        raise _unusable(
            "this profile needs AWS's own tools (" + ", ".join(foreign or (*keys, *role)) + ")",
            name,
            "aws_access_key_id with aws_secret_access_key, or role_arn with "
            "web_identity_token_file",
            "Type first: unset AWS_PROFILE; "
            f'eval "$(aws configure export-credentials --profile {name} --format env)"',
        )
    return found


def _profiles(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """All profiles of both files; the credentials file has precedence."""
    home = Path(environ.get("HOME") or "/nonexistent")
    config = environ.get("AWS_CONFIG_FILE") or str(home / ".aws/config")
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws/credentials")
    found: dict[str, dict[str, str]] = {}
    for section, values in _sections(config, "AWS_CONFIG_FILE").items():
        kind, _, name = section.partition(" ")
        if section == "default" or kind == "profile":
            found[name.strip().strip("'\"") or section] = values
    for section, values in _sections(credentials, "AWS_SHARED_CREDENTIALS_FILE").items():
        found[section] = {**found.get(section, {}), **values}
    return found


def _sections(file: str, field: str) -> dict[str, dict[str, str]]:
    # As in AWS's own tools: no interpolation, names in any case, a section of its own for each.
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(Path(file).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        # The message of a parser repeats lines of the file.
        raise InvalidSpec(
            "this AWS configuration file cannot be read",
            field=field,
            found=f"{file} ({type(error).__name__})",
            expected="sections such as [default] with lines key = value",
            remedy="Correct the file, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from None
    return {section: dict(parser.items(section)) for section in parser.sections()}


def _unusable(message: str, name: str, wanted: str, remedy: str) -> InvalidSpec:
    return InvalidSpec(message, field="AWS_PROFILE", found=name, expected=wanted, remedy=remedy)
