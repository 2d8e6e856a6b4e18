"""The options that a store's client knows, by scheme: their names, other spellings, and kinds.

Data only, for `tandem.storage.options`. The names are those of obstore 0.12 (`S3Config`,
`GCSConfig`, `AzureConfig`, `ClientConfig`), without the prefixes of their variables. Left out are
the name of the bucket, which the location gives, and `default_headers`, which may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from tandem.errors import closest_name


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
