"""A client of botocore with the identity and the endpoint of obstore's, where that is certain.

botocore reads configuration files and variables that obstore does not know. So it is given no file
and each setting that decides where a request goes and who makes it. An option that is not among
those known here, such as a certificate, a proxy or encryption with a key of the customer, means
that there is no client: the caller then streams. This module must not print or log a setting.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tandem.storage.options import StoreSettings
from tandem.storage.time_limits import TimeLimits

_KEYS: Final = frozenset({"access_key_id", "secret_access_key", "session_token"})
_CARRIED: Final = _KEYS | {
    "aws_endpoint_url_s3",
    "endpoint",
    "region",
    "virtual_hosted_style_request",
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        # On parts of an upload, or on this client.
        *("conditional_put", "copy_if_not_exists", "disable_bulk_delete", "disable_tagging"),
        *("allow_http", "connect_timeout", "timeout", "read_timeout", "user_agent"),
        *("http1_only", "pool_idle_timeout", "pool_max_idle_per_host", "randomize_addresses"),
    }
)
_OF_THE_PROCESS: Final = frozenset(
    {
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "role_arn",
        "role_session_name",
        "web_identity_token_file",
    }
)
"""botocore finds these identities itself, if the environment names them."""
_METHODS: Final = ("assume-role-with-web-identity", "container-role", "iam-role")
"""Kinds of identities of the process that obstore finds, too, in the same order."""
_DEFAULT_REGION: Final = "us-east-1"
"""obstore's."""
_ATTEMPTS: Final = 4
_NO_FILES: Final = {
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
    "profile": (None, None, None, None),
}
"""Variables of a session: what AWS's files and `AWS_PROFILE` say is among the settings."""
_SHARED_S: Final = 300.0
"""As for obstore's clients: files of credentials may have changed afterwards."""


def carried(settings: StoreSettings, environ: Mapping[str, str]) -> bool:
    """Whether botocore does with these settings what obstore does."""
    config = settings.config
    for key, value in {**config, **settings.client}.items():
        if key in _CARRIED or key in _WITHOUT_EFFECT or value in (False, "false"):
            continue
        # A profile of the configuration files may have set it, too.
        if key in _OF_THE_PROCESS and environ.get(f"AWS_{key.upper()}") == value:
            continue
        return False
    if "container_credentials_full_uri" in config and (
        "container_authorization_token_file" not in config
    ):
        return False  # obstore passes it over
    endpoint = config.get("endpoint", "")
    # obstore wants the bucket in this host, botocore puts it there.
    in_host = bool(endpoint) and config.get("virtual_hosted_style_request") == "true"
    return not in_host and urlsplit(endpoint).path in ("", "/")


def client_of(settings: StoreSettings, limits: TimeLimits) -> Any | None:
    """The client, which threads may share; None where it would not be the same, where botocore is
    not installed, or where there are no credentials.

    Raises: botocore's errors, for settings that it refuses.
    """
    if not carried(settings, os.environ):
        return None
    return _shared(
        frozenset(settings.config.items()),
        limits,
        # The identity may come from there. A client does not survive a fork.
        frozenset(os.environ.items()),
        os.getpid(),
        time.monotonic() // _SHARED_S,
    )


@functools.lru_cache(maxsize=4)
def _shared(config: frozenset[tuple[str, str]], limits: TimeLimits, *_: object) -> Any | None:
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError:
        return None
    found = dict(config)
    session = botocore.session.Session(session_vars=_NO_FILES)
    keys = {}
    if "access_key_id" in found:
        keys = {
            "aws_access_key_id": found["access_key_id"],
            "aws_secret_access_key": found.get("secret_access_key"),
            "aws_session_token": found.get("session_token"),
        }
    else:
        # Of the region, where a role's tokens are issued.
        session.set_config_variable("region", found.get("region", _DEFAULT_REGION))
        identity = session.get_credentials()
        if identity is None or identity.method not in _METHODS:
            return None
    virtual = found.get("virtual_hosted_style_request") == "true"
    return session.create_client(
        "s3",
        region_name=found.get("region", _DEFAULT_REGION),
        endpoint_url=found.get("endpoint"),
        config=Config(
            signature_version="s3v4",
            connect_timeout=limits.connect.total_seconds(),
            read_timeout=limits.one_try.total_seconds(),
            retries={
                "mode": "standard",
                "total_max_attempts": _ATTEMPTS if limits.retries else 1,
            },
            s3={
                "addressing_style": "virtual" if virtual else "path",
                "use_accelerate_endpoint": False,
                "us_east_1_regional_endpoint": "regional",
            },
            # Stores that are not AWS's know no others.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            ignore_configured_endpoint_urls=True,
            use_dualstack_endpoint=False,
            use_fips_endpoint=False,
        ),
        **keys,
    )
