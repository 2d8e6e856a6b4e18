"""Credentials that a catalog vends, and where its token does not go. A proxy stands in for a
catalog that vends them for S3: the test server does so for local folders only, which need none.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from catalogs.managed import compact, delete, lake_table, rows_of
from support.foreign.process import started
from support.http_server import EveryMethod, serving
from support.jobs.job_files import control, input_files
from support.lake.s3 import S3Server
from support.lake.unity import TOKEN, ManagedTable, UnityServer
from support.lake.unity_proxy import Call, Fault, Proxy, Refusal, proxy_before
from support.waiting import await_that
from tandem.catalogs.unity import UnityTable, open_vended_store
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.errors import AccessDenied, ObjectNotFound, StorageError
from tandem.jobs.formats import JobBin, RewriteJob
from tandem.jobs.runner import LOST, JobPhase, JobRequest
from tandem.operations.adopt import open_table
from tandem.spark.local_spark import LocalRunner
from tandem.spark.runtime.control import encode
from tandem.storage import Store, open_store, renewable
from tandem.storage.renewable import (
    CREDENTIALS_VARIABLE,
    RenewableStore,
    Vended,
    VendedStore,
    vended_for,
)

HOUR_MS = 3_600_000


@pytest.fixture
def table(unity_server: UnityServer) -> ManagedTable:
    return unity_server.create_table()


@pytest.fixture
def proxy(unity_server: UnityServer) -> Iterator[Proxy]:
    with proxy_before(unity_server.url) as found:
        yield found


def vend(proxy: Proxy, *credentials: dict[str, Any]) -> None:
    body = json.dumps({"storage-credentials": list(credentials)}).encode()
    proxy.fault = lambda call: Refusal(200, content=body) if call.kind == "CREDENTIALS" else None


def credential(prefix: str, **config: str) -> dict[str, Any]:
    named = {name.replace("_", "-").replace("--", "."): text for name, text in config.items()}
    expires_ms = int(time.time() * 1000) + HOUR_MS
    return {
        "prefix": prefix,
        "operation": "READ_WRITE",
        "config": named,
        "expiration-time-ms": expires_ms,
    }


def of_s3(prefix: str, key: str, secret: str) -> dict[str, Any]:
    return credential(prefix, **{"s3--access_key_id": key, "s3--secret_access_key": secret})


@pytest.mark.parametrize(
    ("folder", "config", "environ"),
    [
        (
            "s3://bucket/tables",
            {"s3--access_key_id": "a", "s3--secret_access_key": "b", "s3--session_token": "c"},
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"},
        ),
        (
            "abfss://c@a.dfs.core.windows.net",
            {"azure--sas_token": "sv=1&sig=x"},
            {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x"},
        ),
        ("gs://bucket/tables", {"gcs--oauth_token": "t"}, {"GOOGLE_BEARER_TOKEN": "t"}),
    ],
)
def test_what_stores_get(
    table: ManagedTable,
    proxy: Proxy,
    folder: str,
    config: dict[str, str],
    environ: dict[str, str],
) -> None:
    vend(proxy, credential(folder, **config))
    found = table.client(proxy.url).credentials(f"{folder}/t")
    assert found.environ == environ
    assert found.expires_ms is not None
    assert not [text for text in environ.values() if repr(text) in repr(found)]


def test_the_longest_prefix_counts(table: ManagedTable, proxy: Proxy) -> None:
    vend(
        proxy,
        of_s3("s3://bucket", "wide", "x"),
        of_s3("s3a://bucket/tables/t/", "narrow", "x"),
        of_s3("s3://bucket/tables/t2", "other", "x"),
        of_s3("dbfs:/tables", "unknown", "x"),
    )
    client = table.client(proxy.url)
    assert client.credentials("s3://bucket/tables/t").environ["AWS_ACCESS_KEY_ID"] == "narrow"
    assert client.credentials("s3://bucket/tables").environ["AWS_ACCESS_KEY_ID"] == "wide"
    with pytest.raises(AccessDenied, match="no credentials for the table's folder"):
        client.credentials("s3://elsewhere/t")


def test_who_may_only_read_gets_credentials_to_read(table: ManagedTable, proxy: Proxy) -> None:
    asked: list[str] = []
    body = json.dumps({"storage-credentials": [of_s3("s3://b", "k", "s")]}).encode()

    def answer(call: Call) -> Fault:
        if call.kind != "CREDENTIALS":
            return None
        asked.append(call.query["operation"])
        return Refusal(403) if asked[-1] == "READ_WRITE" else Refusal(200, content=body)

    proxy.fault = answer
    assert table.client(proxy.url).credentials("s3://b/t").environ["AWS_ACCESS_KEY_ID"] == "k"
    assert asked == ["READ_WRITE", "READ"]
    proxy.fault = lambda _: Refusal(403, "PermissionDeniedException")
    with pytest.raises(AccessDenied, match="EXTERNAL USE SCHEMA"):
        table.client(proxy.url).credentials("s3://b/t")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"storage-credentials": "all"},
        {"storage-credentials": ["all"]},
        {"storage-credentials": [{"config": {}}]},
        {"storage-credentials": [{"prefix": "s3://b", "config": "k"}]},
        {"storage-credentials": [{"prefix": "s3://b", "expiration-time-ms": "soon"}]},
    ],
)
def test_credentials_that_are_none(table: ManagedTable, proxy: Proxy, body: object) -> None:
    content = json.dumps(body).encode()
    proxy.fault = lambda _: Refusal(200, content=content)
    with pytest.raises(StorageError, match="the catalog's answer is not"):
        table.client(proxy.url).credentials("s3://b/t")


@pytest.mark.parametrize(
    ("location", "config", "expected"),
    [
        ("s3://b/t", {}, "s3.access-key-id, s3.secret-access-key"),
        ("s3://b/t", {"s3--access_key_id": "k"}, "s3.secret-access-key"),
        ("s3://b/t", {"gcs--oauth_token": "t"}, "s3.access-key-id, s3.secret-access-key"),
        ("abfss://c@a.dfs.core.windows.net/t", {"azure--sas_token": ""}, "azure.sas-token"),
        ("gs://b/t", {}, "gcs.oauth-token"),
    ],
)
def test_credentials_of_no_store_are_not_replaced_by_those_of_the_process(
    table: ManagedTable,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    location: str,
    config: dict[str, str],
    expected: str,
) -> None:
    """Those of the process are for other tables."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-process")
    vend(proxy, credential(location, **config))
    with pytest.raises(AccessDenied, match=f"expected: {expected}"):
        open_vended_store(table.client(proxy.url), location, {})


def test_credentials_that_no_process_can_have(table: ManagedTable, proxy: Proxy) -> None:
    for odd in ("a\0b", "a\nb"):
        vend(proxy, of_s3("s3://b", "k", odd))
        with pytest.raises(StorageError, match=r"s3.secret-access-key.*a control character"):
            table.client(proxy.url).credentials("s3://b/t")


IDENTITIES = {
    "a pod": {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "f"},
    "a client": {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": "s"},
    "an account": {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
    "a type": {"AZURE_CREDENTIAL_TYPE": "managed_identity"},
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_signature_of_azure_goes_before_an_identity_of_the_process(
    table: ManagedTable, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, identity: str
) -> None:
    """Azure's client prefers the identity, which may do more than the catalog allows."""
    asked: list[tuple[str, str | None]] = []

    class Handler(EveryMethod):
        def answer(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response_only(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    location = "abfss://c@a.dfs.core.windows.net/t"
    vend(proxy, credential(location, **{"azure--sas_token": "sv=1&sig=vended"}))
    with serving(Handler) as url:
        for name, value in {**IDENTITIES[identity], "AZURE_AUTHORITY_HOST": url}.items():
            monkeypatch.setenv(name, value)
        options = {"endpoint": url, "allow_http": "true"}
        store = open_vended_store(table.client(proxy.url), location, options, ceiling_s=10)
        with pytest.raises(ObjectNotFound):
            store.get("x")
    assert asked == [("/c/t/x?sv=1&sig=vended", None)]


class Clock:
    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms

    def time_ns(self) -> int:
        return self.now_ms() * 1_000_000


def test_a_store_with_vended_credentials_outlives_them(
    table: ManagedTable, proxy: Proxy, s3_server: S3Server
) -> None:
    """Against a real S3 server: the first keys are right, are taken away, and are renewed."""
    location, clock = s3_server.fresh_location(), Clock()
    good = of_s3(location, s3_server.access_key, s3_server.secret_key)
    vend(proxy, good)
    client = table.client(proxy.url)
    store = open_vended_store(client, location, s3_server.options, now_ms=clock.now_ms)
    assert isinstance(store, VendedStore)
    store.put_if_absent("a", b"1")
    vend(proxy, of_s3(location, s3_server.access_key, "expired"))
    assert store.get("a") == b"1"  # not asked again before it is time
    clock.ahead_ms = HOUR_MS // 2 + 60_000
    with pytest.raises(AccessDenied):
        store.get("a")
    clock.ahead_ms += HOUR_MS // 4
    vend(proxy, good)
    assert store.get("a") == b"1"
    assert proxy.kinds().count("CREDENTIALS") == 3
    assert [info.path for info in store.list()] == ["a"]


def test_a_job_outlives_the_credentials_that_its_file_had_first(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its driver and its workers open stores, against a real S3 server."""
    clock, file = Clock(), tmp_path / "credentials.json"
    begin_ms = clock.now_ms()

    def give(good: bool, until_ms: int) -> None:
        secret = s3_server.secret_key if good else "expired"
        environ = {**s3_server.environ, "AWS_SECRET_ACCESS_KEY": secret}
        file.write_bytes(Vended(environ, begin_ms + until_ms).encode())

    monkeypatch.setattr(renewable, "time", clock)
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(file))
    location = s3_server.fresh_location()
    give(True, HOUR_MS)
    store = open_store(location, s3_server.options)
    sent = pickle.dumps(store)
    assert s3_server.secret_key.encode() not in sent
    workers: Store = pickle.loads(sent)
    for each in (store, workers):
        each.put("a", b"1")
    give(False, HOUR_MS)
    assert store.get("a") == workers.get("a") == b"1"  # the file is not read again before its time
    give(True, 2 * HOUR_MS)
    clock.ahead_ms = HOUR_MS + 60_000
    assert store.get("a") == workers.get("a") == b"1"
    file.unlink()
    clock.ahead_ms += HOUR_MS // 2
    assert store.get("a") == b"1"  # with the last ones, as long as they are good
    clock.ahead_ms += HOUR_MS // 2
    with pytest.raises(StorageError, match="file of credentials cannot be read"):
        store.get("a")
    give(False, HOUR_MS)
    with pytest.raises(StorageError, match="credentials of the store are over"):
        store.get("a")
    give(True, 3 * HOUR_MS)
    assert store.get("a") == b"1"


@pytest.mark.matrix
def test_a_job_on_spark_outlives_its_credentials(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver and its workers have them in a file alone, where each is good for 5 s."""
    location, file = s3_server.fresh_location(), tmp_path / "credentials.json"
    for first in (0, 10):
        rows = pa.table({"id": range(first, first + 10)})
        write_deltalake(location, rows, mode="append", storage_options=s3_server.storage_options)
    store = s3_server.open(location)
    snapshot = DeltaLog(store).snapshot()
    bins = (JobBin(inputs=(0, 1)),)
    inputs = input_files(store, snapshot)
    job = control(store, snapshot, RewriteJob(inputs=inputs, bins=bins, target_file_size=1 << 20))
    of_workers = job.spec.table.model_copy(update={"storage_options": s3_server.options})
    store.put(job.path("job.json"), encode(job.spec.model_copy(update={"table": of_workers})))
    request = JobRequest(
        *("outlives", "rewrite", location, job.path("job.json")),
        storage_options=tuple(s3_server.options.items()),
        environ=((CREDENTIALS_VARIABLE, str(file)),),
    )
    for name in s3_server.environ:
        monkeypatch.delenv(name, raising=False)
    runner, given = LocalRunner(logs=tmp_path / "logs"), list[int]()

    def renew() -> bool:
        given.append(renewable.unix_ms() + 5_000)
        fresh = tmp_path / "fresh"
        fresh.write_bytes(Vended(s3_server.environ, given[-1]).encode())
        fresh.replace(file)
        return runner.status(request.name).phase in LOST

    renew()
    runner.start(request)
    await_that(renew, lambda: runner.status(request.name))
    assert runner.status(request.name).phase is JobPhase.ENDED
    assert given[0] < renewable.unix_ms()
    assert store.head(job.round_path(0, "result.json")).size > 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"environ": {}}', '{"secret": "hush"}'])
def test_a_file_without_credentials_is_refused_and_not_repeated(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(content)
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(file))
    with pytest.raises(StorageError, match="cannot be read") as found:
        open_store("s3://b/t", {"region": "us-east-1"})
    assert "hush" not in str(found.value)


def test_operations_on_a_table_in_s3_have_only_what_its_catalog_vends(
    table: ManagedTable, proxy: Proxy, s3_server: S3Server
) -> None:
    with started("duckdb", table.server.url) as duckdb:
        for low in (0, 10, 20):
            text = f"INSERT INTO {table.full_name} SELECT range, 'v' FROM range({low}, {low + 10})"
            duckdb.call("sql", text=text)
    proxy.location = s3_server.fresh_location()
    remote, local = s3_server.open(proxy.location), open_store(f"file://{table.folder}")
    for info in local.list():
        remote.put(info.path, local.get(info.path))
    vend(proxy, of_s3(proxy.location, s3_server.access_key, s3_server.secret_key))
    ours = lake_table(table, proxy.url, storage={"options": s3_server.options})
    compact(ours)
    delete(ours, "id = 3")
    opened = open_table(ours)
    ids = scan(opened.log.snapshot(), opened.store, ["id"]).read_all()["id"].to_pylist()
    assert sorted(ids) == [n for n in range(30) if n != 3]
    # What a job elsewhere would have, and no more.
    vended = vended_for(RenewableStore(opened.store))
    assert vended is not None
    assert vended.environ == s3_server.environ
    assert s3_server.secret_key not in f"{opened!r} {opened.store!r}"


def test_local_folders_need_no_credentials(table: ManagedTable, proxy: Proxy) -> None:
    client = table.client(proxy.url)
    location = client.entry().location
    store = open_vended_store(client, location, {})
    assert any(info.path.endswith("0.json") for info in store.list("_delta_log"))
    assert "CREDENTIALS" not in proxy.kinds()


def test_the_token_of_the_catalog_is_in_nothing_that_a_run_leaves(
    table: ManagedTable, proxy: Proxy, tmp_path: Path
) -> None:
    with started("duckdb", table.server.url) as duckdb:
        for low in (0, 10, 20):
            text = f"INSERT INTO {table.full_name} SELECT range, 'v' FROM range({low}, {low + 10})"
            duckdb.call("sql", text=text)
    home = tmp_path / "home"
    home.mkdir()
    environ = {
        **os.environ,
        "TANDEM_UNITY_TOKEN": TOKEN,
        "TANDEM_CACHE": str(tmp_path / "cache"),
        "HOME": str(home),
    }
    url = f"{proxy.url.replace('http:', 'unity+http:')}/{table.full_name}"
    said, codes = "", list[int]()
    for command in (
        ["compact", url],
        ["delete", url, "--where", "id = 3"],
        ["table", "show", url],
        ["table", "show", url.replace(table.name, "absent")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tandem.cli.main", *command],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        said += done.stdout + done.stderr
        codes.append(done.returncode)
    assert codes == [0, 0, 0, 1], said
    assert TOKEN not in said
    assert {call.token for call in proxy.calls} == {TOKEN}  # it was used
    left = [path for root in (table.folder, tmp_path) for path in root.rglob("*") if path.is_file()]
    assert len(left) > 5
    assert not [path for path in left if TOKEN.encode() in path.read_bytes()]
    assert [row["id"] for row in rows_of(table)] == [n for n in range(30) if n != 3]


def test_the_token_is_in_no_text_of_a_table(table: ManagedTable, proxy: Proxy) -> None:
    opened = open_table(lake_table(table, proxy.url))
    client = UnityTable(proxy.url, ("unity", "lake", table.name), lambda: TOKEN)
    shown = f"{opened!r} {opened.log!r} {opened.log.commit_log!r} {client!r} {client.entry()!r}"
    assert TOKEN not in shown
