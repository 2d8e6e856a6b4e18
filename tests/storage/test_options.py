"""Options hold nothing secret, and only what a store knows."""

from __future__ import annotations

import pickle

import pytest

from tandem.errors import InvalidSpec
from tandem.storage import open_store
from tandem.storage.options import settings


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "secret_access_key",
        "access_key_id",
        "aws_session_token",
        "account_key",
        "azure_storage_sas_key",
        "sas_token",
        "client_secret",
        "google_service_account_key",
        "password",
        "bearer_token",
        "private_key",
        "pass",
    ],
)
@pytest.mark.parametrize("location", ["s3://b/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_secrets_in_options_are_refused_by_name(location: str, name: str) -> None:
    with pytest.raises(InvalidSpec, match="secret") as caught:
        open_store(location, {name: "hunter2"})
    assert name in caught.value.field
    assert "hunter2" not in str(caught.value)
    assert "environment" in caught.value.remedy


def test_credentials_inside_a_value_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="credentials") as caught:
        open_store("s3://b/t", {"endpoint": "https://user:hunter2@host"})
    assert "hunter2" not in str(caught.value)


def test_an_unknown_option_is_reported_with_those_that_exist() -> None:
    with pytest.raises(InvalidSpec) as caught:
        open_store("s3://b/t", {"regoin": "x"})
    assert caught.value.field == "spec.storage.options.regoin"
    assert "region" in caught.value.expected
    with pytest.raises(InvalidSpec):
        open_store("/data", {"region": "x"})
    with pytest.raises(InvalidSpec):
        open_store("s3://b/t", {"allow_http": "perhaps"})


def test_options_and_environment_variables_merge_by_meaning() -> None:
    environ = {"AWS_REGION": "a", "AWS_ACCESS_KEY_ID": "k", "AWS_ALLOW_HTTP": "1", "HOME": "/x"}
    found = settings("s3", {"AWS_ENDPOINT_URL": "http://x", "region": "b"}, environ)
    assert found.config == {"access_key_id": "k", "endpoint": "http://x", "region": "b"}
    assert found.client == {"allow_http": True}
    assert "access_key_id" not in repr(found)


@pytest.mark.parametrize("location", ["s3://b/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_every_kind_of_store_opens_without_a_network(location: str) -> None:
    store = open_store(location, {"skip_signature": "true"})
    assert store.location == location
    assert pickle.loads(pickle.dumps(store)).location == location


def test_the_pickle_of_a_store_carries_no_credentials() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AKIA123", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    store = open_store("s3://b/t", {"region": "r"}, environ=environ)
    assert b"hunter2" not in pickle.dumps(store)
    assert b"AKIA123" not in pickle.dumps(store)
    assert "hunter2" not in repr(store)
