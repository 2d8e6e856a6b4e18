"""Our client of Unity Catalog, against a server of its API."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.lake.unity import CATALOG, SCHEMA, TOKEN, ManagedTable, UnityServer
from support.lake.unity_proxy import ALL_MAINTENANCE, FaultOnce, Lost, Proxy, Refusal, proxy_before
from tandem.catalogs.unity import UnityTable
from tandem.delta.log.commit_log import RatifiedCommit
from tandem.errors import (
    AccessDenied,
    BacklogFull,
    CommitRefused,
    InvalidSpec,
    OutcomeUnknown,
    StorageError,
    TableNotFound,
    UnsupportedFeature,
)


@pytest.fixture
def table(unity_server: UnityServer) -> ManagedTable:
    return unity_server.create_table()


@pytest.fixture
def proxy(unity_server: UnityServer) -> Iterator[Proxy]:
    with proxy_before(unity_server.url) as found:
        yield found


def staged(table: ManagedTable, version: int) -> RatifiedCommit:
    """A commit without data, whose file is in its place."""
    name, now_ms = f"{version:020d}.{uuid.uuid4()}.json", int(time.time() * 1000) + version
    info = {"commitInfo": {"inCommitTimestamp": now_ms, "operation": "WRITE", "txnId": name}}
    folder = table.folder / "_delta_log" / "_staged_commits"
    (folder / name).write_text(json.dumps(info) + "\n")
    return RatifiedCommit(version, name, (folder / name).stat().st_size, now_ms, now_ms)


def ratify(table: ManagedTable, commit: RatifiedCommit, **domains: str) -> None:
    table.client().add_commit(commit, table_id=table.table_id, domains=domains)


def test_a_new_table(table: ManagedTable) -> None:
    client = table.client()
    entry = client.entry()
    assert (entry.table_id, entry.catalog_managed) == (table.table_id, True)
    assert entry.location == f"file://{table.folder}"
    state = client.load()
    assert (state.latest, state.ratified, state.permissions) == (0, (), None)


def test_a_commit_is_ratified_and_reported(table: ManagedTable) -> None:
    client, first = table.client(), staged(table, 1)
    ratify(table, first)
    assert client.load().ratified == (first,)
    second = staged(table, 2)
    ratify(table, second)
    assert (client.load().latest, set(client.load().ratified)) == (2, {first, second})
    client.report_published(1, table_id=table.table_id)
    assert (client.load().latest, client.load().ratified) == (2, (second,))
    client.report_published(2, table_id=table.table_id)
    assert (client.load().latest, client.load().ratified) == (2, ())


def test_the_mark_of_row_ids_is_set_with_the_commit(unity_server: UnityServer) -> None:
    table = unity_server.create_table(row_ids=True)
    domains = {"delta.rowTracking": '{"rowIdHighWaterMark": 41}', "ours": '{"a": 1}'}
    ratify(table, staged(table, 1), **domains)
    properties = table.state()["metadata"]["properties"]
    assert properties["delta.rowTracking.rowIdHighWaterMark"] == "41"


def test_of_eight_commits_of_a_version_one_is_ratified(table: ManagedTable) -> None:
    for version in (1, 2):
        commits = [staged(table, version) for _ in range(8)]

        def send(commit: RatifiedCommit) -> bool:
            try:
                ratify(table, commit)
            except CommitRefused:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = [c for c, ok in zip(commits, pool.map(send, commits), strict=True) if ok]
        [winner] = won
        assert winner in table.client().load().ratified


def test_refusals(table: ManagedTable) -> None:
    with pytest.raises(CommitRefused, match="HTTP 409"):  # another table
        table.client().add_commit(staged(table, 1), table_id=str(uuid.uuid4()), domains={})
    ratify(table, staged(table, 1))
    with pytest.raises(CommitRefused, match="HTTP 400"):  # a gap
        ratify(table, staged(table, 3))
    with pytest.raises(CommitRefused, match="HTTP 409"):
        ratify(table, staged(table, 1))
    with pytest.raises(StorageError, match="took no report"):
        table.client().report_published(5, table_id=table.table_id)


def test_a_backlog_is_full_and_is_cleared(table: ManagedTable) -> None:
    for version in range(1, 11):
        ratify(table, staged(table, version))
    with pytest.raises(BacklogFull, match="HTTP 429"):
        ratify(table, staged(table, 11))
    assert len(table.client().load().ratified) == 10
    table.client().report_published(10, table_id=table.table_id)
    ratify(table, staged(table, 11))
    assert table.client().load().latest == 11


def test_what_was_acknowledged_is_there_after_a_kill(unity_server: UnityServer) -> None:
    table = unity_server.create_table()
    commit = staged(table, 1)
    ratify(table, commit)
    unity_server.part.restart()
    assert table.client().load().ratified == (commit,)


def test_the_permitted_maintenance(table: ManagedTable, proxy: Proxy) -> None:
    client = table.client(proxy.url)
    assert client.load().permissions == frozenset(ALL_MAINTENANCE)
    proxy.permitted = ["DATA_CLEANUP", "SOMETHING_NEW"]
    assert client.load().permissions == frozenset(proxy.permitted)
    proxy.permitted = []
    assert client.load().permissions == frozenset()
    proxy.permitted = None
    assert client.load().permissions is None


def test_no_such_table(table: ManagedTable) -> None:
    for name in ("absent", "a/b", "ä b%20"):
        client = UnityTable(table.server.url, (CATALOG, SCHEMA, name), lambda: TOKEN)
        with pytest.raises(TableNotFound, match="has no such table"):
            client.load()


@pytest.mark.parametrize(
    ("refusal", "error", "message"),
    [
        (Refusal(401, "NotAuthorizedException"), AccessDenied, "does not take the token"),
        (Refusal(403, "PermissionDeniedException"), AccessDenied, "does not allow this"),
        (Refusal(404, "NoSuchTableException"), TableNotFound, "no such table"),
        (Refusal(400, "UnsupportedTableFormatException"), UnsupportedFeature, "a Delta table"),
        (Refusal(501, "NotImplementedException"), UnsupportedFeature, "a Delta table"),
        (Refusal(400, "BadRequestException"), StorageError, "refuses the request"),
        (Refusal(200, content=b"<html>"), StorageError, "not JSON"),
    ],
)
def test_refusals_of_a_read(
    table: ManagedTable, proxy: Proxy, refusal: Refusal, error: type[Exception], message: str
) -> None:
    proxy.fault = FaultOnce("LOAD", refusal)
    with pytest.raises(error, match=message):
        table.client(proxy.url).load()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Refusal(401, "NotAuthorizedException"), AccessDenied),
        (Refusal(403, "PermissionDeniedException"), AccessDenied),
        (Refusal(404, "NoSuchTableException"), TableNotFound),
        (Refusal(400, "InvalidParameterValueException"), CommitRefused),
        (Refusal(409, "CommitVersionConflictException"), CommitRefused),
        (Refusal(409, "UpdateRequirementConflictException"), CommitRefused),
        (Refusal(429, "ResourceExhaustedException"), BacklogFull),
        (Refusal(429), BacklogFull),
        (Refusal(500, "CommitStateUnknownException"), OutcomeUnknown),
        (Refusal(504, content=b"<html>"), OutcomeUnknown),
        (Lost.BEFORE, OutcomeUnknown),
        (Lost.AFTER, OutcomeUnknown),
    ],
)
def test_refusals_of_a_commit(
    table: ManagedTable, proxy: Proxy, fault: Refusal | Lost, error: type[Exception]
) -> None:
    client, commit = table.client(proxy.url), staged(table, 1)
    proxy.fault = FaultOnce("COMMIT", fault)
    with pytest.raises(error) as found:
        client.add_commit(commit, table_id=table.table_id, domains={})
    assert type(found.value) is error
    assert proxy.kinds() == ["COMMIT"]  # never sent twice
    assert client.load().latest == (1 if fault is Lost.AFTER else 0)


def test_a_server_that_is_down_refuses_and_comes_back(unity_server: UnityServer) -> None:
    table = unity_server.create_table()
    client, commit = table.client(), staged(table, 1)
    assert client.load().latest == 0
    unity_server.part.kill()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(client.add_commit, commit, table_id=table.table_id, domains={})
        unity_server.part.start()
        sent.result()  # it was not sent before there was a connection
    assert client.load().ratified == (commit,)


GOOD: dict[str, Any] = {
    "metadata": {
        "table-uuid": "5d6ad3b4-6b8c-4c1e-9a51-0b1f2f3b8a11",
        "location": "s3a://bucket/tables/t/",
        "properties": {"delta.feature.catalogManaged": "supported"},
    },
    "latest-table-version": 1,
    "commits": [
        {
            "version": 1,
            "timestamp": 2,
            "file-name": "a.json",
            "file-size": 3,
            "file-modification-timestamp": 4,
        }
    ],
}
COMMIT: dict[str, Any] = GOOD["commits"][0]


def answering(proxy: Proxy, table: ManagedTable, body: object) -> UnityTable:
    proxy.fault = lambda _: Refusal(200, content=json.dumps(body).encode())
    return table.client(proxy.url)


def test_an_answer_as_the_api_describes_it(table: ManagedTable, proxy: Proxy) -> None:
    client = answering(proxy, table, GOOD)
    assert client.entry().location == "s3://bucket/tables/t"
    assert client.load().ratified == (RatifiedCommit(1, "a.json", 3, 4, 2),)
    external = {**GOOD, "metadata": {**GOOD["metadata"], "properties": {}}}
    assert not answering(proxy, table, external).entry().catalog_managed


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": {**GOOD["metadata"], "table-uuid": 5}}, "table-uuid"),
        ({"latest-table-version": "1"}, "latest-table-version"),
        ({"latest-table-version": True}, "latest-table-version"),
        ({"commits": "all"}, "commits"),
        ({"commits": ["a.json"]}, "commits"),
        ({"commits": [{**COMMIT, "version": None}]}, "version"),
        ({"commits": [{**COMMIT, "file-name": "../../elsewhere.json"}]}, "file-name"),
        ({"commits": [{**COMMIT, "file-name": "a/b.json"}]}, "file-name"),
        ({"commits": [{**COMMIT, "file-name": "a.json\n"}]}, "file-name"),
        ({"commits": [{**COMMIT, "version": -1}]}, "version"),
        ({"commits": [{**COMMIT, "version": 1.0}]}, "version"),
        ({"commits": [{**COMMIT, "file-size": -3}]}, "file-size"),
        ({"commits": [{**COMMIT, "timestamp": 2**63}]}, "timestamp"),
        ({"commits": [COMMIT, {**COMMIT, "file-name": "b.json"}]}, "commits"),
        ({"commits": [COMMIT, {**COMMIT, "version": 3}], "latest-table-version": 3}, "commits"),
        ({"latest-table-version": -1}, "latest-table-version"),
        ({"latest-table-version": 10**30}, "latest-table-version"),
        ({"latest-table-version": f"1{TOKEN}\x1b[2J"}, "latest-table-version"),
        ({"metadata": {**GOOD["metadata"], "table-uuid": ""}}, "table-uuid"),
        ({"allowed-maintenance-operations": "DATA_CLEANUP"}, "allowed-maintenance-operations"),
    ],
)
def test_answers_that_are_none_of_the_api(
    table: ManagedTable, proxy: Proxy, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(StorageError, match=f"{field}: the catalog's answer is not") as found:
        answering(proxy, table, {**GOOD, **change}).load()
    assert TOKEN not in str(found.value)
    assert str(found.value).isprintable()


def test_commits_in_any_order_and_beyond_the_latest_version(
    table: ManagedTable, proxy: Proxy
) -> None:
    commits = [{**COMMIT, "version": v, "file-name": f"{v}.json"} for v in (3, 1, 4, 2)]
    client = answering(proxy, table, {**GOOD, "latest-table-version": 3, "commits": commits})
    assert [each.file_name for each in client.load().ratified] == ["3.json", "1.json", "2.json"]


@pytest.mark.parametrize("name", [(".", "s", "t"), ("c", "..", "t"), ("c", "s", "..")])
def test_names_that_are_steps_of_a_path(name: tuple[str, str, str]) -> None:
    """A server or proxy would ask for another table."""
    with pytest.raises(InvalidSpec, match="a step of a path"):
        UnityTable("http://uc", name, lambda: "")


@pytest.mark.parametrize(
    "location", ["dbfs:/tables/t", "s3://user:password@bucket/t", "relative", "s3://b/../c"]
)
def test_locations_that_no_store_has(table: ManagedTable, proxy: Proxy, location: str) -> None:
    body = {**GOOD, "metadata": {**GOOD["metadata"], "location": location}}
    with pytest.raises(StorageError, match="a location that cannot be used") as found:
        answering(proxy, table, body).entry()
    assert "password" not in str(found.value)


def test_a_table_with_an_iceberg_side_is_refused(table: ManagedTable, proxy: Proxy) -> None:
    with pytest.raises(UnsupportedFeature, match="UniForm"):
        answering(proxy, table, {**GOOD, "uniform": {"iceberg": {}}}).entry()
