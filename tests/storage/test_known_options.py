"""Every option of the client can be set, each where it may stand, and none is taken wrongly."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import obstore
import pytest

from tandem.errors import InvalidSpec
from tandem.storage.options import (
    OptionKind,
    is_of_client,
    known,
    of_the_process,
    option_name,
    settings,
    variables,
)
from tandem.storage.remote import RemoteStore

REMOTE = ("s3", "gs", "abfss")
_VALUES: Mapping[OptionKind, str] = {
    OptionKind.TEXT: "text",
    OptionKind.NAME: "name",
    OptionKind.URL: "https://host.example:9000",
    OptionKind.SWITCH: "true",
    OptionKind.DURATION: "30s",
    OptionKind.NUMBER: "4",
}
_OWN_VALUES = {
    "account_key": "eA==",
    "checksum_algorithm": "SHA256",
    "conditional_put": "etag",
    "copy_if_not_exists": "multipart",
    "encryption_key": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "request_payer": "requester",
    "sas_key": "sv=1&sig=x",
    "server_side_encryption": "AES256",
    "s3_express": "false",
    "credential_type": "auto",
    "use_azure_cli": "false",
}


def value_of(key: str, kind: OptionKind) -> str:
    return _OWN_VALUES.get(key) or _VALUES.get(kind) or "x"


_READ_AT_ONCE = (OptionKind.CERTIFICATES, OptionKind.KEY_FILE, OptionKind.PROFILE)
_FILES = ("service_account", "application_credentials")


@pytest.mark.parametrize(
    ("scheme", "key"),
    [
        (scheme, key)
        for scheme in REMOTE
        for key, kind in known(scheme).items()
        if kind not in _READ_AT_ONCE and key not in _FILES
    ],
)
def test_every_option_reaches_the_client_under_a_name_that_it_takes(scheme: str, key: str) -> None:
    kind = known(scheme)[key]
    variable = next(name for name, of in variables(scheme).items() if of == key)
    keys = {"access_key_id": "k", "secret_access_key": "s"} if scheme == "s3" else {}
    found = settings(scheme, {}, {variable: value_of(key, kind)}, process={})
    if is_of_client(key):
        assert key in found.client
    else:
        assert {key, f"endpoint_url_{key[:3]}"} & set(found.config)
    location = {"s3": "s3://b/t", "gs": "gs://b/t", "abfss": "abfss://c@name/t"}[scheme]
    RemoteStore(location, type(found)({**keys, **found.config}, found.client))


@pytest.mark.parametrize("scheme", REMOTE)
def test_the_options_of_a_resource_are_those_that_are_neither_secret_nor_of_a_process(
    scheme: str,
) -> None:
    for key, kind in known(scheme).items():
        if kind in (OptionKind.SECRET, OptionKind.KEY_FILE):
            with pytest.raises(InvalidSpec, match="must not contain a secret"):
                option_name(scheme, key)
        elif kind is OptionKind.PROCESS:
            with pytest.raises(InvalidSpec, match="of the process") as refused:
                settings(scheme, {key: "/etc/passwd"}, process={})
            assert f"_{key.upper()}" in refused.value.remedy
            assert "/etc/passwd" not in str(refused.value)
        else:
            assert option_name(scheme, key) == key


def test_the_client_knows_no_option_that_we_do_not() -> None:
    """The names in the stubs of the installed client, which describe what it takes."""
    stubs = Path(obstore.__file__).parent / "_store"
    places = {"_aws.pyi": "s3", "_gcs.pyi": "gs", "_azure.pyi": "abfss", "_client.pyi": "s3"}
    unknown = set()
    for file, scheme in places.items():
        for node in ast.parse((stubs / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        name = field.target.id.removeprefix("aws_")
                        spellings = {key.split("_", 1)[1].lower() for key in variables(scheme)}
                        if name not in spellings | set(known(scheme)):
                            unknown.add(name)
    # The location names the bucket; headers may hold anything.
    assert unknown == {"bucket", "container_name", "default_headers"}


def test_a_mistyped_option_is_met_with_the_one_that_was_meant() -> None:
    for scheme, typed, meant in (
        ("s3", "regoin", "region"),
        ("s3", "allowHttp", "allow_http"),
        ("s3", "endpont_url", "endpoint"),
        ("gs", "base_ur", "base_url"),
        ("abfss", "acount_name", "account_name"),
        ("abfss", "timout", "timeout"),
    ):
        with pytest.raises(InvalidSpec) as refused:
            settings(scheme, {typed: "x"}, process={})
        assert refused.value.remedy == f"Did you mean {meant}?"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout": "30"}, "30s"),
        ({"timeout": "0s"}, "30s"),
        ({"timeout": "-1s"}, "30s"),
        ({"allow_http": "perhaps"}, "true or false"),
        ({"skip_signature": ""}, "true or false"),
        ({"pool_max_idle_per_host": "many"}, "integer"),
        ({"root_certificate": "/etc/ssl/ca.pem"}, "PEM"),
        ({"conditional_put": "disabled"}, "etag"),
        ({"server_side_encryption": "rot13"}, "aws:kms"),
        ({"region": "x/../evil"}, "letters"),
        ({"user_agent": "a\nb"}, "plain text"),
        ({"region": "a", "AWS_DEFAULT_REGION": "b"}, "region once"),
    ],
    ids=str,
)
def test_a_value_that_the_client_would_not_take_is_refused_with_what_it_takes(
    options: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        settings("s3", options, process={})
    assert expected in refused.value.expected


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on"])
def test_http_is_allowed_alike_by_an_option_a_secret_and_the_environment(text: str) -> None:
    endpoint = {"endpoint": "http://minio:9000"}
    for found in (
        settings("s3", {**endpoint, "allow_http": text}, process={}),
        settings("s3", endpoint, {"AWS_ALLOW_HTTP": text}, process={}),
        settings("s3", endpoint, process={"AWS_ALLOW_HTTP": text}),
        settings(
            "s3", {}, process={"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_ALLOW_HTTP": text}
        ),
    ):
        assert found.client == {"allow_http": True}
        assert found.config["endpoint"] == "http://minio:9000"


@pytest.mark.parametrize(
    ("scheme", "options", "process"),
    [
        ("s3", {"endpoint": "http://minio:9000"}, {}),
        ("s3", {}, {"AWS_ENDPOINT_URL": "http://minio:9000"}),
        ("s3", {}, {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}),
        (
            "s3",
            {"allow_http": "false"},
            {"AWS_ENDPOINT": "http://minio:9000", "AWS_ALLOW_HTTP": "1"},
        ),
        ("gs", {"endpoint": "http://gcs:4443"}, {}),
        ("abfss", {"endpoint": "HTTP://azurite:10000"}, {}),
    ],
)
def test_an_endpoint_without_tls_is_refused_with_the_option_that_allows_it(
    scheme: str, options: dict[str, str], process: dict[str, str]
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        settings(scheme, options, process=process)
    assert refused.value.field == "spec.storage.options.allow_http"
    assert "allow_http" in refused.value.remedy
    assert "builder" not in str(refused.value)


def test_an_option_beats_a_secret_and_a_secret_the_environment() -> None:
    process = {
        "AWS_REGION": "p",
        "AWS_ENDPOINT_URL": "https://p",
        "AWS_ENDPOINT_URL_S3": "https://s3",
    }
    assert settings("s3", {}, process=process).config["endpoint"] == "https://s3"
    found = settings("s3", {"endpoint": "https://o"}, {"AWS_REGION": "s"}, process=process)
    # The client itself would prefer the variable to the option.
    assert found.config == {
        "region": "s",
        "endpoint": "https://o",
        "aws_endpoint_url_s3": "https://o",
    }


def test_a_value_of_the_environment_is_not_repeated_in_an_error() -> None:
    for process in ({"AWS_SESSION_TOKEN": "hunter2\n"}, {"AWS_ENDPOINT_URL": "http://hunter2 x"}):
        with pytest.raises(InvalidSpec) as refused:
            settings("s3", {}, process=process)
        assert "hunter2" not in str(refused.value)
        assert refused.value.field in process


def test_what_belongs_to_a_process_is_known_by_its_variables() -> None:
    assert {
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_USE_AZURE_CLI",
    } <= of_the_process()
    assert not of_the_process() & {"AWS_ACCESS_KEY_ID", "AZURE_CLIENT_ID", "AWS_REGION"}


def test_the_page_has_every_option_and_every_secret() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "object-stores.md").read_text()
    for scheme in REMOTE:
        spellings = variables(scheme)
        for key, kind in known(scheme).items():
            names = {name for name, of in spellings.items() if of == key}
            if kind in (OptionKind.SECRET, OptionKind.KEY_FILE):
                assert any(f"`{name}`" in page for name in names), key
            elif kind is not OptionKind.PROCESS:
                assert f"`{key}`" in page, key
