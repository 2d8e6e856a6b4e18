"""Where tables and sources may lie, and whom their stores may talk to: each way out is tried."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import document
from support.some import few
from tandem import spec
from tandem.errors import InvalidSpec, LocationNotAllowed
from tandem.kube.runtime.threads import TableThreads
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.spec.table import LakeTable
from tandem.storage import open_store
from tandem.storage.allowed_locations import OF_THE_POD, require
from tandem.storage.paths import canonical_location

CANARY = "CANARY-4711"
RULES = ("team-a=s3://lake/team-a", "team-b=s3://lake/team-b/", "sand-*=file:///sand/{namespace}")


def table(location: str, namespace: str = "team-a", **storage: Any) -> LakeTable:
    found = spec.parse(
        document("LakeTable", "t", {"location": location, "storage": storage}, namespace=namespace)
    )
    assert isinstance(found, LakeTable)
    return found


OUTSIDE = [
    "s3://lake/team-b/t",  # another namespace's
    "s3://lake/team-a2/t",  # looks alike
    "s3://lake/team-a%2Fx/../../team-b/t",
    "s3://lake/team-a/../team-b/t",
    "s3://lake/team-a/%2e%2e/team-b/t",
    "s3://lake/team-a/%2E%2E/team-b/t",
    "s3://lake/team-a/%252e%252e/team-b/t",
    "s3://lake/team-a/%25252e%25252e/team-b/t",
    "s3://lake/team-a/..%2fteam-b/t",
    "s3://lake/team-a/%2e%2e%2fteam-b",
    "s3://lake/team-a/.",
    "s3://lake/team-a\\..\\team-b",
    "s3://lake/team-a%5c..%5cteam-b",
    "s3://lake/team-a\x00/t",
    "s3://lake/Team-A/t",
    "s3://LAKE/team-a/t",
    "s3://lake2/team-a/t",
    "s3://lake@evil/team-a/t",
    "s3://key:secret@lake/team-a/t",
    "s3://lake/team-a?x=1",
    "s3://lake/team-a#x",
    "s3://lake/team-\u0430/t",  # a Cyrillic a
    "s3://lake\uff0fteam-a/t",
    "s3://lake",
    "s3://",
    "s3:lake/team-a/t",
    "s3:///lake/team-a/t",
    "gs://lake/team-a/t",
    "abfss://lake@team-a/t",
    "http://lake/team-a/t",
    "hdfs://lake/team-a/t",
    "file:///lake/team-a/t",
    "/lake/team-a/t",
    "lake/team-a/t",
    "file:///var/run/secrets/kubernetes.io/serviceaccount",
    "file://lake/team-a/t",
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_a_table_elsewhere_is_refused(location: str) -> None:
    with pytest.raises((LocationNotAllowed, InvalidSpec)) as refused:
        LocationPolicy(RULES).check(table(location))
    assert "secret@" not in str(refused.value)


@pytest.mark.parametrize(
    "location",
    [
        "s3://lake/team-a",
        "s3://lake/team-a/t",
        "s3://lake/team-a/t/",
        "s3://lake//team-a//t",
        "s3://lake/%74eam-a/t",
        "s3://lake/team-a/a b/c=d%2Fe",
    ],
)
def test_a_table_below_is_not_however_it_is_spelled(location: str) -> None:
    assert LocationPolicy(RULES).check(table(location)) == ("s3://lake/team-a",)


def test_each_namespace_has_its_own() -> None:
    rules = LocationPolicy(
        ("*=s3://all", "team-*=gs://teams/{namespace}", "abfss://c@a/x", "team-c=s3://")
    )
    assert rules.prefixes("other") == ("s3://all", "abfss://c@a/x")
    assert rules.prefixes("team-b") == ("s3://all", "gs://teams/team-b", "abfss://c@a/x")
    assert rules.prefixes("team-c")[-1] == "s3://"
    rules.check(table("s3://any/where", "team-c"))
    with pytest.raises(LocationNotAllowed):
        rules.check(table("gs://teams/team-b/t", "team-c"))
    with pytest.raises(LocationNotAllowed, match="no tables in this namespace"):
        LocationPolicy(("team-a=s3://lake",)).check(table("s3://lake/t", "team-b"))
    # A value in a path is no pattern.
    assert LocationPolicy(("s3://lake/dt=1",)).prefixes("x") == ("s3://lake/dt=1",)
    LocationPolicy().check(
        table("s3://any/where", "any-name", options={"endpoint": "http://any:1"})
    )


@pytest.mark.parametrize("rule", ["", "lake", "x=lake", "team-a=s3:///x", "s3://a/../b", "ftp://x"])
def test_an_invalid_rule_ends_the_operator_at_once(rule: str) -> None:
    with pytest.raises(InvalidSpec, match="--allowed-location"):
        LocationPolicy((rule,))


# On a disk: links count


SEGMENTS = st.sampled_from(
    ["..", ".", "%2e%2e", "in", "out", "up", "loop", "x", "", "%2f", "root", "secret", "a b", "%00"]
)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`root` is allowed; `root2` and `secret` beside it are not; links lead everywhere."""
    base = tmp_path_factory.mktemp("disk").resolve()
    for name in ("root/in/x", "root/x", "root2/x", "secret"):
        (base / name).mkdir(parents=True)
    (base / "root/out").symlink_to(base / "secret")
    (base / "root/in/up").symlink_to("..")
    (base / "root/up").symlink_to("..")
    (base / "root/loop").symlink_to("loop")
    (base / "root/in/out").symlink_to(base / "root2")
    (base / "link").symlink_to("root")
    return base


@settings(max_examples=few(133, 400), deadline=None)
@given(parts=st.lists(SEGMENTS, max_size=6), lead=st.sampled_from(["root/", "root", "link/", ""]))
def test_no_spelling_and_no_link_leads_out(disk: Path, parts: list[str], lead: str) -> None:
    location = f"file://{disk}/{lead}{'/'.join(parts)}"
    try:
        require(location, [f"file://{disk}/root"], resource="", field="spec.location")
    except (LocationNotAllowed, InvalidSpec):
        return
    reached = os.path.realpath(canonical_location(location).removeprefix("file://"))
    assert (reached + "/").startswith(f"{disk}/root/")


def test_a_folder_that_is_a_link_out_is_refused_and_one_that_leads_in_is_not(disk: Path) -> None:
    allowed = [f"file://{disk}/root"]
    require(f"file://{disk}/root/in/up/x", allowed, resource="", field="")
    require(f"file://{disk}/link/x", [f"file://{disk}/link"], resource="", field="")
    for out in ("root/out", "root/in/out/x", "root/up/secret", "link/x"):
        with pytest.raises(LocationNotAllowed):
            require(f"file://{disk}/{out}", allowed, resource="", field="")


# Endpoints and Secrets


ENDPOINTS: list[tuple[str, dict[str, str]]] = [
    ("s3", {"endpoint": "http://169.254.169.254"}),
    ("s3", {"AWS_ENDPOINT_URL": "http://evil.example"}),
    ("s3", {"aws_endpoint": "https://minio.svc.evil.example"}),
    ("s3", {"endpoint": "https://minio.svc:9001"}),
    ("s3", {"endpoint": "https://minio.svc.:9000"}),
    ("s3", {"endpoint": "https://evil.example/minio.svc"}),
    ("s3", {"endpoint": "https://evil.example#minio.svc"}),
    ("s3", {"endpoint": "https://evil.example?minio.svc"}),
    ("s3", {"endpoint": "https://evil.example\\.minio.svc:9000"}),
    ("s3", {"endpoint": "https:minio.svc"}),
    ("s3", {"endpoint": "minio.svc:9000"}),
    ("s3", {"endpoint": "ftp://minio.svc:9000"}),
    ("s3", {"endpoint": "http://[::1]:9000"}),
    ("s3", {"endpoint": "http://minio.svc:9000\n.evil.example"}),
    ("s3", {"proxy_url": "http://evil.example"}),
    ("s3", {"metadata_endpoint": "http://evil.example"}),
    ("s3", {"sts_endpoint": "http://evil.example"}),
    ("abfss", {"msi_endpoint": "http://evil.example"}),
    ("gs", {"base_url": "https://evil.example"}),
    ("gs", {"endpoint": "https://evil.example"}),
    ("abfss", {"endpoint": "https://evil.example"}),
    ("abfss", {"authority_host": "https://evil.example"}),
    ("abfss", {"azure_authority_host": "https://evil.example"}),
    ("abfss", {"use_emulator": "true"}),
]
LOCATIONS = {"s3": "s3://lake/t", "gs": "gs://lake/t", "abfss": "abfss://c@acct/t"}
OPEN = LocationPolicy(("s3://", "gs://", "abfss://"), ("minio.svc:9000", "*.store.example"))


@pytest.mark.parametrize(("scheme", "options"), ENDPOINTS, ids=str)
def test_another_endpoint_is_refused(scheme: str, options: dict[str, str]) -> None:
    with pytest.raises(LocationNotAllowed, match="may not use this endpoint"):
        OPEN.check(table(LOCATIONS[scheme], options=options))


def test_an_allowed_endpoint_is_used() -> None:
    for url in ("http://minio.svc:9000", "https://MINIO.svc:9000/", "https://a.store.example"):
        OPEN.check(table("s3://lake/t", options={"endpoint": url, "region": "x"}))
    OPEN.check(table("abfss://c@acct/t", options={"use_emulator": "false"}))
    with pytest.raises(LocationNotAllowed, match="the cloud's own endpoint"):
        LocationPolicy(("s3://",)).check(table("s3://lake/t", options={"endpoint": "http://x"}))
    for wrong in ("http://minio", "minio/x", "a b", ""):
        with pytest.raises(InvalidSpec, match="--allowed-endpoint"):
            LocationPolicy((), (wrong,))


@pytest.mark.parametrize(
    "environ",
    [
        {"AWS_ENDPOINT_URL": f"http://{CANARY}.evil.example"},
        {"AWS_ENDPOINT_URL_S3": f"http://{CANARY}.evil.example"},
        {"AZURE_AUTHORITY_HOST": f"http://{CANARY}.evil.example"},
        {"AWS_ENDPOINT_URL_STS": f"http://{CANARY}.evil.example"},
        {"AWS_METADATA_ENDPOINT": f"http://{CANARY}.evil.example"},
        {"AZURE_IDENTITY_ENDPOINT": f"http://{CANARY}.evil.example"},
        {"GOOGLE_BASE_URL": f"http://{CANARY}.evil.example"},
        {"AZURE_STORAGE_USE_EMULATOR": "yes"},
        {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"gcs_base_url": f"http://{CANARY}.x"})},
        {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"token_uri": f"http://{CANARY}.x"})},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_a_secret_names_no_other_endpoint(environ: dict[str, str]) -> None:
    with pytest.raises(LocationNotAllowed) as refused:
        OPEN.check_endpoints(table("s3://lake/t", secretRef={"name": "keys"}), environ)
    assert CANARY not in str(refused.value)


def test_a_google_service_account_key_is_accepted() -> None:
    key = {"token_uri": "https://oauth2.googleapis.com/token", "private_key": CANARY}
    resource = table("gs://lake/t", secretRef={"name": "keys"})
    OPEN.check_endpoints(resource, {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)})


def test_an_option_chooses_no_profile_and_no_file_of_the_operator() -> None:
    for rules in (LocationPolicy(), OPEN):
        for location, options in (
            ("s3://lake/t", {"profile": "admin"}),
            ("s3://lake/t", {"AWS_PROFILE": "admin"}),
            ("s3://lake/t", {"role_arn": "arn:aws:iam::1:role/admin"}),
            ("gs://lake/t", {"service_account": "/var/run/key.json"}),
            ("abfss://c@acct/t", {"use_azure_cli": "true"}),
        ):
            with pytest.raises(InvalidSpec, match=r"operator's own|of the process"):
                rules.check(table(location, options=options))


@pytest.mark.parametrize("key", sorted(OF_THE_POD))
@pytest.mark.parametrize("rules", [LocationPolicy(), OPEN], ids=["anything goes", "restricted"])
def test_a_secret_does_not_have_the_operator_read_its_own_files(
    key: str, rules: LocationPolicy
) -> None:
    """`AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE` with `…_FULL_URI` would send the operator's own
    token to the host that the Secret names."""
    resource = table("s3://lake/t", secretRef={"name": "keys"})
    with pytest.raises(InvalidSpec) as refused:
        rules.check_endpoints(resource, {key: CANARY})
    assert key in str(refused.value)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("location", "options", "environ"),
    [
        ("s3://lake/t", {"region": "x@evil.example/"}, {}),
        ("s3://lake/t", {"region": "x.evil.example/"}, {}),
        ("s3://lake/t", {"region": "x\n"}, {}),
        ("s3://lake/t", {"aws_default_region": "evil.example#"}, {}),
        ("s3://lake/t", {}, {"AWS_REGION": "x@evil.example/"}),
        ("s3://lake/t", {}, {"AWS_DEFAULT_REGION": "evil.example?"}),
        ("abfss://lake/t", {"account_name": "evil.example/"}, {}),
        ("abfss://lake/t", {}, {"AZURE_STORAGE_ACCOUNT_NAME": "evil.example/"}),
        ("abfss://lake/t", {"tenant_id": "../../x"}, {}),
        ("s3://evil.example\\x/t", {"virtual_hosted_style_request": "true"}, {}),
        ("s3://evil.example:443/t", {}, {}),
        ("s3://evil.example%2fx/t", {}, {}),
        ("gs://evil example/t", {}, {}),
        ("abfss://lake@evil.example:443/t", {}, {}),
        ("abfss://lake@evil.example\n/t", {}, {}),
    ],
    ids=str,
)
def test_no_name_becomes_a_host(
    location: str, options: dict[str, str], environ: dict[str, str]
) -> None:
    """Clients write regions, accounts and buckets into URLs as they are."""
    with pytest.raises(InvalidSpec):
        open_store(location, options, environ=environ)


@pytest.mark.parametrize(
    ("location", "options", "environ"),
    [
        ("s3://b/t", {"endpoint": "http://a b"}, {}),
        ("s3://b/t", {"endpoint": "http://[::1"}, {}),
        ("s3://b/t", {"endpoint": ""}, {}),
        ("s3://b/t", {"endpoint": "\u00e9://x"}, {}),
        ("s3://b/t", {"timeout": CANARY}, {}),
        ("s3://b/t", {}, {"AWS_ENDPOINT_URL": f"http://{CANARY} x"}),
        ("s3://b/t", {}, {"AWS_ACCESS_KEY_ID": f"{CANARY}\nx"}),
        ("s3://b/t", {}, {"AWS_SESSION_TOKEN": f"{CANARY}\u20ac"}),
        ("gs://b/t", {}, {"GOOGLE_SERVICE_ACCOUNT_KEY": CANARY}),
        ("gs://b/t", {}, {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{CANARY}"}}'}),
        ("abfss://c@a/t", {}, {"AZURE_STORAGE_ACCOUNT_KEY": f"{CANARY}!"}),
    ],
    ids=str,
)
def test_input_that_panics_a_client_is_a_wrong_spec(
    location: str, options: dict[str, str], environ: dict[str, str]
) -> None:
    """A panic is no Exception, and would end the whole operator."""
    right = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "x"}
    with pytest.raises(InvalidSpec) as refused:
        open_store(location, options, environ={**right, **environ})
    assert CANARY not in str(refused.value)


def test_a_remaining_panic_is_an_ordinary_error() -> None:
    class PanicException(BaseException):
        pass

    def panic() -> None:
        raise PanicException

    with pytest.raises(RuntimeError, match="panicked"):
        TableThreads().of("uid").submit(panic).result()


def test_an_option_does_not_lead_to_another_storage_account() -> None:
    for options, environ in (
        ({"account_name": "other"}, {}),
        ({}, {"AZURE_STORAGE_ACCOUNT_NAME": "other"}),
    ):
        with pytest.raises(InvalidSpec, match="several storage accounts"):
            open_store("abfss://c@acct.dfs.core.windows.net/t", options, environ=environ)
    same = {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_ACCOUNT_KEY": "eA=="}
    open_store("abfss://c@acct.dfs.core.windows.net/t", {"account_name": "acct"}, environ=same)


@pytest.mark.parametrize(
    "options",
    [
        {"aws_secret_access_key": CANARY},
        {"access_key_id": CANARY},
        {"AWS_SESSION_TOKEN": CANARY},
        {"sas_key": CANARY},
        {"account_key": CANARY},
        {"google_service_account_key": CANARY},
        {"client_secret": CANARY},
        {"password": CANARY},
        {"credential": CANARY},
        {"bearer_token": CANARY},
        {"endpoint": f"https://u:{CANARY}@minio.svc:9000"},
        {"proxy_url": f"http://{CANARY}@minio.svc:9000"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_look_like_credentials_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        open_store("s3://lake/t", table("s3://lake/t", options=options).spec.storage.options)
    assert CANARY not in str(refused.value)


# Catalogs


def named(kind: str, **entry: str) -> LakeTable:
    found = spec.parse(document("LakeTable", "t", {"catalog": {kind: entry}}, namespace="team-a"))
    assert isinstance(found, LakeTable)
    return found


def of_unity(uri: str) -> LakeTable:
    return named("unity", uri=uri, name="main.sales.orders")


@pytest.mark.parametrize(
    "resource",
    [
        of_unity("https://unity.evil.example"),
        of_unity("https://unity.minio.svc.evil.example"),
        of_unity("https://unity.minio.svc:1"),
        named("hive", uri="thrift://unity.minio.svc", name="a.b"),
        named("glue", region="eu-central-1", name="a.b", endpoint="https://evil.example"),
    ],
    ids=lambda resource: str(resource.spec.catalog.entry.address),
)
def test_a_catalog_elsewhere_is_not_asked(resource: LakeTable) -> None:
    rules = LocationPolicy(RULES, ("unity.minio.svc:443", "*.minio.svc:8080"))
    with pytest.raises(LocationNotAllowed, match="may not use this endpoint"):
        rules.check_catalog(resource, None)
    LocationPolicy().check_catalog(resource, None)


@pytest.mark.parametrize(
    "resource",
    [
        of_unity("https://unity.minio.svc:443/behind/a/proxy"),
        of_unity("http://UNITY.minio.svc:8080"),
        named("hive", uri="thrift://metastore", name="a.b"),
        named("hive", uri="thrift://metastore:9083", name="a.b"),
        named("glue", region="eu-central-1", name="a.b"),
    ],
    ids=lambda resource: str(resource.spec.catalog.entry.address),
)
def test_a_catalog_that_is_allowed(resource: LakeTable) -> None:
    rules = LocationPolicy(RULES, ("unity.minio.svc:443", "*.minio.svc:8080", "metastore:9083"))
    rules.check_catalog(resource, None)
    assert rules.check(resource, "s3://lake/team-a/t") == ("s3://lake/team-a",)
    for place in OUTSIDE:
        with pytest.raises((InvalidSpec, LocationNotAllowed)):
            rules.check(resource, place)


def test_a_namespace_without_locations_asks_no_catalog() -> None:
    rules = LocationPolicy(("team-b=s3://lake/team-b",), ("unity",))
    with pytest.raises(LocationNotAllowed, match="allows no tables in this namespace"):
        rules.check_catalog(of_unity("https://unity"), None)


def test_a_secret_that_points_at_the_pod_is_refused_before_glue_is_asked() -> None:
    resource = spec.parse(
        document(
            "LakeTable",
            "t",
            {
                "catalog": {"glue": {"region": "eu-central-1", "name": "a.b"}},
                "storage": {"secretRef": {"name": "keys"}},
            },
        )
    )
    assert isinstance(resource, LakeTable)
    with pytest.raises(InvalidSpec, match="not where a pod has them"):
        LocationPolicy().check_catalog(resource, {"AWS_ROLE_ARN": CANARY})
