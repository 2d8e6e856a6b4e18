"""Errors of stores, and options that are known."""

from __future__ import annotations

import ast
import os
import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import obstore
import pytest

from support.http_server import EveryMethod, serving
from support.lake.s3 import S3Server
from tandem.errors import (
    AccessDenied,
    InvalidSpec,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage import Store, open_store, probe_put_if_absent
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
from tandem.storage.store_errors import translated

# An error of a store keeps the store's own code, says what to do, and shows no internals.


class _Handler(EveryMethod):
    status, content = 200, b""

    def answer(self) -> None:
        self.body()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.content)


def answering(status: int, body: str) -> AbstractContextManager[str]:
    """A server that answers everything alike; its endpoint."""
    return serving(type("Handler", (_Handler,), {"status": status, "content": body.encode()}))


def opened(scheme: str, endpoint: str) -> Store:
    environ = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg==",
        "GOOGLE_BEARER_TOKEN": "hunter2",
    }
    own = {"region": "x"} if scheme == "s3" else {}
    location = "abfss://lake@acct/t" if scheme == "abfss" else f"{scheme}://lake/t"
    return open_store(
        location, {"endpoint": endpoint, "allow_http": "true", **own}, environ=environ
    )


def xml(code: str, message: str = "The reason,\nin two lines.") -> str:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'


@pytest.mark.part(2)
@pytest.mark.parametrize(
    ("scheme", "status", "code", "kind", "remedy"),
    [
        ("s3", 404, "NoSuchBucket", StorageError, "location"),
        ("s3", 403, "AccessDenied", AccessDenied, "policy"),
        ("s3", 403, "SignatureDoesNotMatch", AccessDenied, "secret key"),
        ("s3", 403, "InvalidAccessKeyId", AccessDenied, "access key"),
        ("s3", 403, "RequestTimeTooSkewed", AccessDenied, "clock"),
        ("s3", 400, "ExpiredToken", AccessDenied, "Renew"),
        ("s3", 400, "AuthorizationHeaderMalformed", AccessDenied, "region"),
        ("gs", 404, "NoSuchBucket", StorageError, "location"),
        ("gs", 403, "AccessDenied", AccessDenied, "policy"),
        ("abfss", 404, "ContainerNotFound", StorageError, "location"),
        ("abfss", 403, "AuthorizationPermissionMismatch", AccessDenied, "Contributor"),
        ("abfss", 403, "AuthenticationFailed", AccessDenied, "policy"),
    ],
)
def test_the_stores_own_code_is_kept(
    scheme: str, status: int, code: str, kind: type[StorageError], remedy: str
) -> None:
    with answering(status, xml(code)) as endpoint:
        store = opened(scheme, endpoint)
        for call in (
            lambda: store.get("a"),
            lambda: list(store.list()),
            lambda: store.put("a", b"1"),
            lambda: store.put_if_absent("a", b"1"),
        ):
            with pytest.raises(kind) as caught:
                call()
            assert code in caught.value.found
            assert "The reason, in two lines." in caught.value.found
            assert remedy in caught.value.remedy
            assert not isinstance(caught.value, ObjectNotFound)
            assert "\n" not in str(caught.value)
            assert "hunter2" not in str(caught.value)


def test_a_code_in_json_is_kept_too() -> None:
    body = '{"error": {"code": 403, "message": "m", "errors": [{"reason": "userProjectMissing"}]}}'
    with answering(403, body) as endpoint, pytest.raises(AccessDenied) as caught:
        opened("gs", endpoint).get("a")
    assert caught.value.found == "403 Forbidden, userProjectMissing"


@pytest.mark.parametrize("body", ["", "<html>proxy", "{", "[1]", '{"error": [1]}', "{" * 20_000])
def test_a_body_that_is_no_answer_of_a_store_is_no_trouble(body: str) -> None:
    with answering(403, body) as endpoint, pytest.raises(AccessDenied) as caught:
        opened("s3", endpoint).get("a")
    assert "403 Forbidden" in caught.value.found
    assert len(caught.value.found) <= 500


def test_a_missing_object_is_no_missing_bucket() -> None:
    with answering(404, xml("NoSuchKey")) as endpoint, pytest.raises(ObjectNotFound) as caught:
        opened("s3", endpoint).get("a")
    assert "NoSuchKey" in caught.value.found


def test_a_store_without_the_condition_is_unsuitable() -> None:
    with answering(501, xml("NotImplemented", "A header is not implemented")) as endpoint:
        store = opened("s3", endpoint)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("a", b"1")
        assert "NotImplemented" in caught.value.found


@pytest.mark.parametrize("status", [404, 403])
def test_a_store_without_credentials_says_which_are_missing(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key the client asks the machine for an identity, which it does not give."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with answering(status, "no role") as endpoint:
        options = {"metadata_endpoint": endpoint, "allow_http": "true", "region": "x"}
        store = open_store("s3://lake/t", options, environ={})
        for call in (
            lambda: store.get("a"),
            lambda: list(store.list()),
            lambda: store.put_if_absent("a", b"1"),
        ):
            with pytest.raises(StorageError, match="no credentials") as caught:
                call()
            assert type(caught.value) is StorageError
            assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caught.value.remedy
            assert "latest" not in str(caught.value), "no request is shown"


@pytest.mark.parametrize(
    ("resource", "url", "message", "remedy"),
    [
        ("s3://b/t/a", "http://169.254.170.2/v2/credentials/7", "no credentials", "AWS_"),
        ("gs://b/t/a", "http://169.254.169.254/computeMetadata/v1/x", "no credentials", "GOOGLE_"),
        ("abfss://c@a/t/a", "http://127.0.0.1:4/metadata/identity/oauth2/token?resource=x",
         "no credentials", "AZURE_"),
        ("s3://b/latest/api/token", "http://127.0.0.1:4/b/latest/api/token", "did not answer",
         "Check the endpoint"),
    ],
)  # fmt: skip
def test_requests_to_the_machine_differ_from_those_to_a_store(
    resource: str, url: str, message: str, remedy: str
) -> None:
    found = translated(TimeoutError(f"Error performing GET {url} in 3s, after 6 retries"), resource)
    assert message in found.message
    assert remedy in found.remedy


def test_a_full_store_is_known_by_its_code() -> None:
    with answering(507, xml("XMinioStorageFull")) as endpoint, pytest.raises(StorageFull) as caught:
        opened("s3", endpoint).put_if_absent("a", b"1")
    assert "XMinioStorageFull" in caught.value.found


def test_a_redirect_to_another_region_says_so() -> None:
    with (
        answering(301, xml("PermanentRedirect")) as endpoint,
        pytest.raises(StorageError, match="another region") as caught,
    ):
        opened("s3", endpoint).get("a")
    assert "region" in caught.value.remedy


def test_the_client_never_says_that_it_could_not_build_a_request() -> None:
    """An endpoint without TLS inside of a key reaches the client unseen."""
    key = (
        '{"gcs_base_url": "http://127.0.0.1:9", "disable_oauth": true, "client_email": "",'
        ' "private_key": "", "private_key_id": ""}'
    )
    store = open_store("gs://lake/t", environ={"GOOGLE_SERVICE_ACCOUNT_KEY": key})
    for call in (lambda: store.get("a"), lambda: store.put_if_absent("a", b"")):
        with pytest.raises(StorageError) as caught:
            call()
        assert "builder error" not in str(caught.value)
        assert "allow_http" in str(caught.value)
    broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    with pytest.raises(InvalidSpec) as refused:
        open_store("s3://lake/t", {"root_certificate": broken})
    assert "builder error" not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "environ", "expected"),
    [
        ("s3://b/t", {"AWS_ACCESS_KEY_ID": "k"}, "without a secret key"),
        ("gs://b/t", {"GOOGLE_SERVICE_ACCOUNT": "/nowhere.json"}, "cannot be opened"),
        ("abfss://c@a/t", {"AZURE_STORAGE_SAS_KEY": "hunter2"}, "query string"),
        ("abfss://c@a/t", {"AZURE_ENCRYPTION_KEY": "hunter2="}, "32 bytes"),
    ],
)
def test_credentials_that_make_no_client_are_explained(
    location: str, environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        open_store(location, environ=environ)
    assert expected in refused.value.found
    assert "hunter2" not in str(refused.value)


def test_a_real_server_names_the_wrong_key_and_the_missing_bucket(s3_server: S3Server) -> None:
    wrong = {**s3_server.environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with pytest.raises(AccessDenied) as denied:
        open_store(s3_server.fresh_location(), s3_server.options, environ=wrong).get("a")
    assert "SignatureDoesNotMatch" in denied.value.found
    nowhere = open_store("s3://no-such-bucket/t", s3_server.options, environ=s3_server.environ)
    with pytest.raises(StorageError) as absent:
        nowhere.get("a")
    assert "NoSuchBucket" in absent.value.found
    with pytest.raises((StorageError, StoreUnsuitable)):
        probe_put_if_absent(nowhere)


# Every option of the client can be set, each where it may stand, and none is taken wrongly.


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


# Options hold nothing secret, and only what a store knows.


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
