"""What a child may do with which credentials."""

from __future__ import annotations

import pytest

from tandem.jobs.formats import IngestJob
from tandem.kube.runtime.tenants import Tenant, environment, may_read

TENANT = Tenant("team-a")


def test_the_environment_of_a_child() -> None:
    own = {
        "PATH": "/bin",
        "TANDEM_ETCD_PASSWORD": "p",
        "AWS_REGION": "ours",
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AWS_ROLE_ARN": "role",
    }
    assert environment(TENANT, own) == {k: v for k, v in own.items() if "ETCD" not in k}
    secret = {
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
        "AWS_ENDPOINT_URL_STS": "https://elsewhere.example",
        "LD_PRELOAD": "/x.so",
        "PATH": "/x",
    }
    found = environment(Tenant("a", "", "s/1", secret), own)
    assert found == {
        "PATH": "/bin",
        "AWS_REGION": "ours",
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_STS": "https://elsewhere.example",
    }
    # Without credentials of its own it has ours.
    assert environment(Tenant("a", "", "s/2", {"AWS_REGION": "theirs"}), own) == {
        "PATH": "/bin",
        "AWS_REGION": "theirs",
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AWS_ROLE_ARN": "role",
    }


def test_a_secret_replaces_the_identity_of_one_kind_of_store() -> None:
    own = {"AWS_ROLE_ARN": "r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AZURE_STORAGE_SAS_KEY": "s"}
    for secret in (
        {"AWS_SSE_CUSTOMER_KEY_BASE64": "k"},  # it encrypts, and nothing else
        {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"},
    ):
        assert environment(Tenant("a", "", "s/1", secret), own) == {**own, **secret}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("AWS_REGION", "AWS_DEFAULT_REGION"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        ("GOOGLE_ENDPOINT", "GOOGLE_BASE_URL"),
        ("AZURE_TENANT_ID", "AZURE_AUTHORITY_ID"),
    ],
)
def test_an_option_of_a_secret_counts_by_whatever_name(ours: str, theirs: str) -> None:
    own, secret = {ours: "ours"}, {theirs: "theirs"}
    assert environment(Tenant("a", "", "s/1", secret), own) == secret


KEYS = Tenant("a", "", "s/1", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


@pytest.mark.parametrize(
    ("source", "tenant", "bounded", "trusted", "here"),
    [
        ("s3://b/x", KEYS, False, False, True),
        ("s3://b/x", TENANT, True, False, False),  # with the operator's identity
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_REGION": "r"}), False, False, False),
        # Half an identity is none: the client would look for that of the pod, or of the machine.
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_ACCESS_KEY_ID": "k"}), True, False, False),
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_SESSION_TOKEN": "t"}), True, False, False),
        # So is one of another cloud.
        ("gs://b/x", KEYS, True, False, False),
        ("abfss://c@a.dfs.core.windows.net/x", KEYS, True, False, False),
        ("file:///x", KEYS, False, False, False),  # the pod's own token, for example
        ("file:///x", KEYS, True, False, True),
        ("file:///x", TENANT, False, True, True),
    ],
)
def test_whose_sources_a_child_reads(
    source: str, tenant: Tenant, bounded: bool, trusted: bool, here: bool
) -> None:
    job = IngestJob.model_validate(
        {"sourceFormat": "Csv", "sourceLocation": source, "targetFileSize": 1}
    )
    assert may_read(job, tenant, bounded=bounded, trusted=trusted) is here


@pytest.mark.parametrize(
    ("scheme", "secret", "whole"),
    [
        ("s3", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, True),
        ("s3", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": ""}, False),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, True),
        ("gs", {"GOOGLE_SERVICE_ACCOUNT": "/a/file"}, False),
        ("abfss", {"AZURE_STORAGE_SAS_KEY": "s"}, True),
        ("abfss", {"AZURE_STORAGE_CLIENT_ID": "c", "AZURE_STORAGE_CLIENT_SECRET": "s"}, False),
        ("file", {"AWS_ACCESS_KEY_ID": "k"}, False),
    ],
)
def test_what_is_an_identity(scheme: str, secret: dict[str, str], whole: bool) -> None:
    assert Tenant("a", "", "s/1", secret).has_credentials(scheme) is whole


def test_a_tenants_credentials_are_not_shown() -> None:
    assert "hidden" not in repr(Tenant("a", "", "s/1", {"AWS_SECRET_ACCESS_KEY": "hidden"}))
