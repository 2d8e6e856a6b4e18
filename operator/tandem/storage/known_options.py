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


class Kind(Enum):
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


_CLIENT: Mapping[str, Kind] = {
    "allow_http": Kind.SWITCH,
    "allow_invalid_certificates": Kind.SWITCH,
    "connect_timeout": Kind.DURATION,
    "default_content_type": Kind.TEXT,
    "http1_only": Kind.SWITCH,
    "http2_keep_alive_interval": Kind.DURATION,
    "http2_keep_alive_timeout": Kind.DURATION,
    "http2_keep_alive_while_idle": Kind.SWITCH,
    "http2_only": Kind.SWITCH,
    "pool_idle_timeout": Kind.DURATION,
    "pool_max_idle_per_host": Kind.NUMBER,
    "proxy_ca_certificate": Kind.CERTIFICATES,
    "proxy_excludes": Kind.TEXT,
    "proxy_url": Kind.URL,
    "randomize_addresses": Kind.SWITCH,
    "read_timeout": Kind.DURATION,
    "root_certificate": Kind.CERTIFICATES,
    "timeout": Kind.DURATION,
    "user_agent": Kind.TEXT,
}

# A region, an account, a tenant and a client go into a host name, or verbatim into a URL: with a
# slash in it, a region is another host.
_STORE: Mapping[str, Mapping[str, Kind]] = {
    "s3": {
        "access_key_id": Kind.SECRET,
        "checksum_algorithm": Kind.TEXT,
        "conditional_put": Kind.TEXT,
        "container_authorization_token_file": Kind.PROCESS,
        "container_credentials_full_uri": Kind.PROCESS,
        "container_credentials_relative_uri": Kind.PROCESS,
        "copy_if_not_exists": Kind.TEXT,
        "disable_bulk_delete": Kind.SWITCH,
        "disable_tagging": Kind.SWITCH,
        "endpoint": Kind.URL,
        "imdsv1_fallback": Kind.SWITCH,
        "metadata_endpoint": Kind.URL,
        "profile": Kind.PROFILE,
        "region": Kind.NAME,
        "request_payer": Kind.TEXT,
        "role_arn": Kind.PROCESS,
        "role_session_name": Kind.PROCESS,
        "s3_express": Kind.SWITCH,
        "secret_access_key": Kind.SECRET,
        "server_side_encryption": Kind.TEXT,
        "session_token": Kind.SECRET,
        "skip_signature": Kind.SWITCH,
        "sse_bucket_key_enabled": Kind.SWITCH,
        "sse_customer_key_base64": Kind.SECRET,
        "sse_kms_key_id": Kind.TEXT,
        "sts_endpoint": Kind.URL,
        "unsigned_payload": Kind.SWITCH,
        "virtual_hosted_style_request": Kind.SWITCH,
        "web_identity_token_file": Kind.PROCESS,
    },
    "gs": {
        "application_credentials": Kind.PROCESS,
        "base_url": Kind.URL,
        "bearer_token": Kind.SECRET,
        "service_account": Kind.PROCESS,
        "service_account_key": Kind.KEY_FILE,
        "skip_signature": Kind.SWITCH,
    },
    "abfss": {
        "account_key": Kind.SECRET,
        "account_name": Kind.NAME,
        "authority_host": Kind.URL,
        "client_id": Kind.NAME,
        "client_secret": Kind.SECRET,
        "credential_type": Kind.PROCESS,
        "disable_tagging": Kind.SWITCH,
        "encryption_key": Kind.SECRET,
        "endpoint": Kind.URL,
        "fabric_cluster_identifier": Kind.PROCESS,
        "fabric_session_token": Kind.PROCESS,
        "fabric_token_service_url": Kind.PROCESS,
        "fabric_workload_host": Kind.PROCESS,
        "federated_token_file": Kind.PROCESS,
        "msi_endpoint": Kind.URL,
        "msi_resource_id": Kind.PROCESS,
        "object_id": Kind.PROCESS,
        "sas_key": Kind.SECRET,
        "skip_signature": Kind.SWITCH,
        "tenant_id": Kind.NAME,
        "token": Kind.SECRET,
        "use_azure_cli": Kind.PROCESS,
        "use_emulator": Kind.SWITCH,
        "use_fabric_endpoint": Kind.SWITCH,
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


def known(scheme: str) -> dict[str, Kind]:
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
    unsuited = (Kind.SECRET, Kind.KEY_FILE, Kind.PROCESS)
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
    kinds = (Kind.PROCESS, Kind.PROFILE)
    found = {
        name
        for scheme in _VARIABLES
        for name, key in variables(scheme).items()
        if known(scheme)[key] in kinds
    }
    return frozenset(found | set(_OF_THE_FILES))
