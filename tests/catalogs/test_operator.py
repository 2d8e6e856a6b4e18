"""LakeTables that name their tables by catalog, under a real API server: with a server of Unity
Catalog's API, and one that answers wrongly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from support.cluster.dev_thread import spark_operator
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.foreign.process import started
from support.http_server import EveryMethod, serving
from support.lake.unity import TOKEN, ManagedTable, UnityServer, start_server
from support.waiting import await_that
from tandem.kube.dev import controller
from tandem.storage.renewable import unix_ms

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from support.lake.s3 import S3Server

TABLE = "LakeTable"


@dataclass
class Stage:
    space: Resources
    unity: UnityServer
    folder: Path

    def secret(self, name: str, **texts: str) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
        url = f"/api/v1/namespaces/{self.space.namespace}/secrets"
        self.space.cluster.request("POST", url, body)

    def table(self, name: str, managed: ManagedTable, **catalog: Any) -> None:
        named = {"uri": self.unity.url, "name": managed.full_name, **catalog}
        self.space.create(TABLE, name, {"catalog": {"unity": named}})

    def await_version(self, name: str, version: int) -> None:
        self.space.await_status(TABLE, name, lambda status: status.get("version") == version)

    def message(self, name: str, reason: str) -> str:
        status = self.space.await_reason(TABLE, name, reason)
        return str(condition(status, "Ready")["message"])


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("catalogs")
    space = Resources(cluster, cluster.namespace("catalogs"))
    with start_server() as unity:
        tables = unity.create_table().folder.parents[3]
        settings = quick_settings(
            cluster,
            space.namespace,
            allowed_locations=(tables.as_uri(), (folder / "ours").as_uri()),
            allowed_endpoints=("127.0.0.1",),
        )
        with operating(settings, HeldJobs()):
            yield Stage(space, unity, folder)


def rows(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), folder / "rows.parquet")
    return folder.as_uri()


def test_operations_commit_through_the_catalog(stage: Stage) -> None:
    """And nothing that a run leaves has the token, but the Secret."""
    managed = stage.unity.create_table()
    stage.secret("unity", token=TOKEN)
    stage.table("orders", managed, tokenSecretRef={"name": "unity"})
    status = stage.space.await_reason(TABLE, "orders", "Adopted")
    assert status["location"] == managed.folder.as_uri()
    assert status["version"] == 0

    source = {"format": "Parquet", "location": rows(stage.folder / "ours" / "rows")}
    reference = {"tableRef": {"name": "orders"}}
    stage.space.create("TableIngest", "load", {**reference, "source": source})
    assert stage.space.await_end("TableIngest", "load")["phase"] == "Succeeded"
    stage.space.create("TableUpdate", "purge", {**reference, "delete": {"where": "id = 2"}})
    done = stage.space.await_end("TableUpdate", "purge")
    assert done["result"]["rowsAffected"]["deleted"] == 1
    assert managed.state()["latest-table-version"] == done["result"]["version"] == 2

    stage.space.compaction("tidy", "orders")
    refused = condition(stage.space.await_end("TableCompaction", "tidy"))
    assert refused["reason"] == "CatalogForbids"
    assert "DATA_REORGANIZATION" in refused["message"]

    left = [path.read_bytes() for path in managed.folder.rglob("*") if path.is_file()]
    assert len(left) > 5
    assert not any(TOKEN.encode() in content for content in left)
    for kind in (TABLE, "TableIngest", "TableUpdate", "TableCompaction"):
        assert TOKEN not in json.dumps(stage.space.cluster.request("GET", stage.space.url(kind)))
    events = f"/api/v1/namespaces/{stage.space.namespace}/events"
    assert TOKEN not in json.dumps(stage.space.cluster.request("GET", events))


@pytest.mark.parametrize("table_first", [True, False])
def test_operations_that_are_applied_with_their_table_get_their_locks(
    stage: Stage, *, table_first: bool
) -> None:
    """Before the table is shown as adopted."""
    managed, name = stage.unity.create_table(), f"together-{table_first}".lower()
    with started("duckdb", managed.server.url) as duckdb:
        rows = f"INSERT INTO {managed.full_name} SELECT range, 'v' FROM range(10)"
        duckdb.call("sql", text=rows)
    stage.secret(name, token=TOKEN)
    if table_first:
        stage.table(name, managed, tokenSecretRef={"name": name})
    reference = {"tableRef": {"name": name}}
    stage.space.create("TableUpdate", name, {**reference, "delete": {"where": "id = 2"}})
    stage.space.compaction(name, name)
    if not table_first:
        stage.table(name, managed, tokenSecretRef={"name": name})
    assert stage.space.await_end("TableUpdate", name)["phase"] == "Succeeded"
    refused = condition(stage.space.await_end("TableCompaction", name))
    assert refused["reason"] == "CatalogForbids"


def test_a_secret_that_is_not_there_or_lacks_the_key(stage: Stage) -> None:
    managed = stage.unity.create_table()
    stage.table("absent", managed, tokenSecretRef={"name": "comes-later"})
    said = stage.message("absent", "ReferenceNotFound")
    assert "spec.catalog.unity.tokenSecretRef.name" in said
    assert "Create it, with the token as token" in said
    stage.secret("comes-later", password="x")
    status = stage.space.await_status(
        TABLE, "absent", lambda s: "no such key" in condition(s, "Ready")["message"]
    )
    assert "expected: password" in condition(status, "Ready")["message"]


def test_a_host_that_is_not_allowed_is_not_asked(stage: Stage) -> None:
    """It would get the token."""
    managed = stage.unity.create_table()
    stage.table("elsewhere", managed, uri=stage.unity.url.replace("127.0.0.1", "localhost"))
    said = stage.message("elsewhere", "LocationNotAllowed")
    assert "spec.catalog.unity" in said
    assert "expected: one of 127.0.0.1" in said


def catalog_of(*locations: str) -> type[EveryMethod]:
    """Answers of a catalog that has each table at the first of these places, after three answers at
    the next one, and so on; and manages none."""
    answers = [place for place in locations for _ in range(3)]

    class Catalog(EveryMethod):
        def answer(self) -> None:
            place = answers.pop(0) if len(answers) > 1 else answers[0]
            described = {"table-uuid": "1", "location": place, "properties": {}}
            content = json.dumps({"metadata": described, "latest-table-version": 0}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Catalog


def vending(location: str, environ: Mapping[str, str]) -> type[EveryMethod]:
    """Answers of a catalog that vends credentials for 15 s at a time."""
    config = {
        "s3.access-key-id": environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environ["AWS_SECRET_ACCESS_KEY"],
    }

    class Catalog(EveryMethod):
        def answer(self) -> None:
            body: dict[str, Any] = {
                "metadata": {"table-uuid": "1", "location": location, "properties": {}},
                "latest-table-version": 0,
            }
            if "/credentials" in self.path:
                given = {"prefix": location, "operation": "READ_WRITE", "config": config}
                ends = {"expiration-time-ms": unix_ms() + 15_000}
                body = {"storage-credentials": [{**given, **ends}]}
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Catalog


@pytest.mark.matrix
def test_a_job_has_credentials_for_as_long_as_it_runs(
    cluster: Cluster, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SparkApplication under `tandem dev`, and two operators, one after the other."""
    monkeypatch.setattr(controller, "_RENEW_S", 0.5)
    space, location = Resources(cluster, cluster.namespace("vended")), s3_server.fresh_location()
    jobs = HeldJobs()
    for number in range(3):
        rows = pa.table({"id": [number]})
        write_deltalake(location, rows, mode="append", storage_options=s3_server.storage_options)
    settings = quick_settings(
        cluster, space.namespace, allowed_locations=(location,), allowed_endpoints=("127.0.0.1",)
    )

    def await_others(*known: Any) -> Any:
        """Credentials that the job has not had."""
        url = f"/api/v1/namespaces/{space.namespace}/secrets"

        def found() -> list[Any]:
            return [each["data"] for each in cluster.request("GET", url)["items"]]

        await_that(lambda: [each for each in found() if each not in known], found)
        return found()[0]

    with (
        serving(vending(location, s3_server.environ)) as uri,
        spark_operator(cluster, space.namespace, jobs),
    ):
        catalog = {"unity": {"uri": uri, "name": "main.lake.external"}}
        with jobs.held():
            with operating(settings, jobs, spark=True):
                storage = {"options": s3_server.options}
                space.create(TABLE, "t", {"catalog": catalog, "storage": storage})
                space.compaction("m", "t", type="Major")
                space.await_phase("TableCompaction", "m", "Running")
                await_others(await_others())
            last = await_others()
            with operating(settings, jobs, spark=True):
                await_others(last)
                [request] = vars(jobs)["_waiting"].values()
                # Here is what a process of the job would be.
                monkeypatch.setenv(*request.environ[0])
                jobs.release()
                done = space.await_end("TableCompaction", "m")
    assert done["phase"] == "Succeeded", done
    assert done["attempt"] == 1


def test_a_catalog_that_is_down_does_not_stop_a_table_that_it_only_names(stage: Stage) -> None:
    folder = stage.folder / "ours" / "external"
    loads = [pa.table({"id": [number]}) for number in range(3)]
    write_deltalake(str(folder), loads[0])
    named = {"name": "main.lake.external", "tokenSecretRef": None}
    with serving(catalog_of(folder.as_uri())) as url:
        catalog = {"unity": {**named, "uri": url}}
        stage.space.create(TABLE, "external", {"catalog": catalog})
        stage.space.await_reason(TABLE, "external", "Adopted")
    for version, load in enumerate(loads[1:], start=1):
        write_deltalake(str(folder), load, mode="append")
        stage.await_version("external", version)
    status = stage.space.status(TABLE, "external")
    assert condition(status, "Ready")["status"] == "True"


@pytest.mark.matrix  # the operator asks again after 30 looks for a new version
def test_a_table_is_followed_to_where_its_catalog_has_it_later(stage: Stage) -> None:
    """And operations find it there; unless its location is given, too."""
    places = [stage.folder / "ours" / name for name in ("before", "after")]
    for count, place in enumerate(places, start=1):
        write_deltalake(str(place), pa.table({"id": list(range(count))}))
    before, after = (place.as_uri() for place in places)
    with serving(catalog_of(before, after)) as url:
        named = {"unity": {"uri": url, "name": "main.lake.moved"}}
        stage.space.create(TABLE, "moved", {"catalog": named})
        status = stage.space.await_reason(TABLE, "moved", "Adopted")
        assert (status["location"], status["rows"]) == (before, 1)
        status = stage.space.await_status(TABLE, "moved", lambda s: s["location"] == after)
        assert status["rows"] == 2
        delete = {"tableRef": {"name": "moved"}, "delete": {"where": "id = 1"}}
        stage.space.create("TableUpdate", "there", delete)
        assert stage.space.await_end("TableUpdate", "there")["phase"] == "Succeeded"
    with serving(catalog_of(before, after)) as url:
        named = {"unity": {"uri": url, "name": "main.lake.moved"}}
        stage.space.create(TABLE, "fixed", {"catalog": named, "location": before})
        stage.space.await_reason(TABLE, "fixed", "Adopted")
        assert f"expected: {after}" in stage.message("fixed", "InvalidSpec")


def test_a_location_that_a_catalog_names_is_checked_as_one_that_is_typed(stage: Stage) -> None:
    outside = (stage.folder / "theirs").as_uri()
    managed = stage.unity.create_table()
    with serving(catalog_of(outside)) as url:
        stage.table("outside", managed, uri=url)
        said = stage.message("outside", "LocationNotAllowed")
    assert "spec.catalog" in said
    assert f"found: {outside}" in said


def test_a_location_beside_the_catalog_must_be_its_own(stage: Stage) -> None:
    managed = stage.unity.create_table()
    named = {"uri": stage.unity.url, "name": managed.full_name}
    other = (stage.folder / "ours" / "other").as_uri()
    stage.space.create(TABLE, "other", {"location": other, "catalog": {"unity": named}})
    said = stage.message("other", "InvalidSpec")
    assert f"found: {other}; expected: {managed.folder.as_uri()}" in said
    same = managed.folder.as_uri()
    stage.space.create(TABLE, "same", {"location": same, "catalog": {"unity": named}})
    stage.space.await_reason(TABLE, "same", "Adopted")


def test_a_table_that_its_catalog_manages_has_no_log_of_blocks(stage: Stage) -> None:
    managed = stage.unity.create_table()
    named = {"uri": stage.unity.url, "name": managed.full_name}
    spec = {"catalog": {"unity": named}, "mergeOnRead": {"keys": ["id"]}}
    stage.space.create(TABLE, "blocks", spec)
    assert "spec.mergeOnRead" in stage.message("blocks", "UnsupportedFeature")
