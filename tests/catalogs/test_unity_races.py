"""Tables that Unity Catalog manages, while other engines write to them, and their server dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from catalogs.managed import (
    compact,
    delete,
    lake_table,
    log_of,
    operate,
    rows_of,
    update,
)
from support.foreign.calls import Refused
from support.foreign.process import Process, started
from support.lake.noted import Noted
from support.lake.unity import CATALOG, SCHEMA, TOKEN, ManagedTable, UnityServer
from support.lake.unity_proxy import Call, Fault, FaultOnce, Lost, Proxy, Refusal, proxy_before
from support.waiting import LIMIT_S
from tandem.catalogs.unity import UnityTable
from tandem.delta.actions import Txn
from tandem.delta.log.catalog_log import CatalogLog
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.errors import (
    AlreadyExists,
    OutcomeUnknown,
    Reason,
    StorageError,
    TableNotFound,
    TableReplaced,
)
from tandem.operations.adopt import open_table
from tandem.operations.clean import clean
from tandem.planning.cleaning import CleaningRules
from tandem.storage import Store, open_store

WRITERS, VERSIONS = 8, 200


@pytest.fixture(scope="module")
def duckdb(unity_server: UnityServer) -> Iterator[Process]:
    with proxy_before(unity_server.url) as before, started("duckdb", before.url) as engine:
        yield engine


@pytest.fixture(scope="module")
def foreign_spark(unity_server: UnityServer) -> Iterator[Process]:
    with started("spark", unity_server.url) as engine:
        yield engine


@pytest.fixture
def proxy(unity_server: UnityServer) -> Iterator[Proxy]:
    with proxy_before(unity_server.url) as found:
        yield found


def impatient_log_of(table: ManagedTable, uri: str = "") -> DeltaLog:
    """As `log_of`, of a client that gives up after a second."""
    uri, name = uri or table.server.url, (CATALOG, SCHEMA, table.name)
    client = UnityTable(uri, name, lambda: TOKEN, ceiling_s=1)
    store = open_store(f"file://{table.folder}")
    return DeltaLog(store, commits=CatalogLog(store, client, table.table_id))


def put(log: DeltaLog, snapshot: Snapshot, writer: str, number: int) -> None:
    """A commit whose `txn` says whose it is. Raises: AlreadyExists."""
    info = commit_info("WRITE", {}, now_ms=1, previous=snapshot, blind_append=True)
    version = snapshot.version + 1
    log.put_commit(version, [info, Txn(writer, number)], token=f"{writer}-{number}-{version}")


def test_eight_committers_make_200_versions(unity_server: UnityServer) -> None:
    table = unity_server.create_table()
    won: list[tuple[int, str, int]] = []

    def write(writer: str) -> None:
        log = log_of(table)
        snapshot = log.snapshot()
        for number in range(VERSIONS // WRITERS):
            while True:
                try:
                    put(log, snapshot, writer, number)
                except AlreadyExists:
                    snapshot = log.update(snapshot)
                    continue
                won.append((snapshot.version + 1, writer, number))
                snapshot = log.update(snapshot)
                break

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, [f"writer{n}" for n in range(WRITERS)]))
    # One winner a version, and every acknowledged commit is in the table as its writer's.
    assert sorted(version for version, _, _ in won) == list(range(1, VERSIONS + 1))
    commits = log_of(table).commits(1, VERSIONS)
    found = {
        (commit.version, action.app_id, action.version)
        for commit in commits
        for action in commit.actions
        if isinstance(action, Txn)
    }
    assert found == set(won)
    times = [commit.timestamp_ms for commit in commits]
    assert times == sorted(set(times))
    assert table.state()["latest-table-version"] == VERSIONS


def test_a_commit_takes_five_requests_and_lists_nothing(
    unity_server: UnityServer, proxy: Proxy
) -> None:
    table = unity_server.create_table()
    store = Noted(open_store(f"file://{table.folder}"))
    commits = CatalogLog(cast(Store, store), table.client(proxy.url), table.table_id)
    log = DeltaLog(cast(Store, store), commits=commits)
    snapshot = log.snapshot()
    put(log, snapshot, "ours", 0)
    snapshot = log.update(snapshot)
    store.taken()
    proxy.calls.clear()
    put(log, snapshot, "ours", 1)
    assert proxy.kinds() == ["LOAD", "COMMIT", "REPORT"]
    assert store.taken() == [
        "put_if_absent _delta_log/_staged_commits/ID0002.UUID.json",
        "put_if_absent version 2",
    ]


def count(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return sorted((row["id"], row["v"]) for row in rows)


def appends(
    engine: Process, table: ManagedTable, first: int, source: str, each: Iterable[object]
) -> set[int]:
    """Append ten rows each time; their ids. Raises: Refused, unless another commit came first."""
    low = first
    for _ in each:
        text = f"INSERT INTO {table.full_name} SELECT {source}, 'new' FROM range({low}, {low + 10})"
        while True:
            begun = table.state()["latest-table-version"]
            try:
                engine.call("sql", text=text)
            except Refused:
                if table.state()["latest-table-version"] == begun:
                    raise
                continue
            break
        low += 10
    return {*range(first, low)}


def race(
    table: ManagedTable,
    uri: str,
    duckdb: Process,
    spark: Process | None,
    read: Callable[[], list[list[tuple[int, str]]]],
) -> None:
    """Others append as long as we compact, update and delete, and are refused only where another
    commit came first. Then all see the rows of a serial order: each append once, each row that we
    deleted gone."""
    ours, done = lake_table(table, uri), threading.Event()
    first = appends(duckdb, table, 0, "range", range(4))
    if spark is not None:
        first |= appends(spark, table, 100, "id", range(1))  # it takes its time to begin
    with ThreadPoolExecutor(2) as pool:
        during = iter(done.is_set, True)
        running = [pool.submit(appends, duckdb, table, 10_000, "range", during)]
        if spark is not None:
            running.append(pool.submit(appends, spark, table, 1_000_000, "id", during))
        try:
            compact(ours)
            delete(ours, "id < 1000 AND id % 10 = 3")
            update(ours, "id < 1000 AND id % 10 = 4", v="'ours'")
            compact(ours, layout={"strategy": "Sort", "columns": ["id"]})
        finally:
            done.set()
        added = [each.result() for each in running]
    assert all(added)
    compact(ours)
    expected = sorted(
        (n, "ours" if n < 1_000 and n % 10 == 4 else "new")
        for n in first.union(*added)
        if not (n < 1_000 and n % 10 == 3)
    )
    opened = open_table(ours)
    clean(opened, CleaningRules(files_ms=0))
    for found in (count(rows_of(table)), *read()):
        assert found == expected


def test_F26_ours_beside_duckdb(unity_server: UnityServer, proxy: Proxy, duckdb: Process) -> None:
    table = unity_server.create_table()
    query = f"SELECT * FROM {table.full_name}"
    race(table, proxy.url, duckdb, None, lambda: [count(duckdb.call("query", text=query))])


@pytest.mark.matrix
def test_F26_ours_beside_spark_and_duckdb(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process, foreign_spark: Process
) -> None:
    table = unity_server.create_table()
    query = f"SELECT * FROM {table.full_name}"

    def read() -> list[list[tuple[int, str]]]:
        return [count(engine.call("query", text=query)) for engine in (duckdb, foreign_spark)]

    race(table, proxy.url, duckdb, foreign_spark, read)


@pytest.mark.matrix
def test_F36_row_ids_are_those_that_spark_sees(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process, foreign_spark: Process
) -> None:
    table = unity_server.create_table(row_ids=True)
    query = f"SELECT id, _metadata.row_id AS row_id FROM {table.full_name}"

    def row_ids() -> dict[int, int]:
        return {row["id"]: row["row_id"] for row in foreign_spark.call("query", text=query)}

    appends(duckdb, table, 0, "range", range(3))
    appends(foreign_spark, table, 100, "id", range(2))
    before = row_ids()
    assert len(set(before.values())) == 50
    ours = lake_table(table, proxy.url)
    compact(ours)
    delete(ours, "id = 7")
    after = row_ids()
    assert after == {n: row_id for n, row_id in before.items() if n != 7}
    # The catalog has the mark of our commits; engines that append do not tell it of theirs.
    mark = table.state()["metadata"]["properties"]["delta.rowTracking.rowIdHighWaterMark"]
    assert int(mark) >= max(after.values())
    appends(foreign_spark, table, 200, "id", range(1))
    assert len(set(row_ids().values())) == 59


class KilledAt:
    """Kills the server at the n-th request of a kind, before or after it has carried it out, and
    starts it again."""

    def __init__(self, server: UnityServer, kind: str, when: Lost) -> None:
        self._server, self._kind, self._when = server, kind, when
        self._lock = threading.Lock()
        self.killed = False

    def fault(self, call: Call) -> Fault:
        if call.kind == self._kind and self._when is Lost.BEFORE and self._is_first():
            return Lost.BEFORE
        return None

    def after(self, call: Call, status: int) -> None:
        if call.kind == self._kind and self._when is Lost.AFTER and status < 300:
            self._is_first()

    def _is_first(self) -> bool:
        with self._lock:
            if self.killed:
                return False
            self.killed = True
            self._server.part.restart()
            return True


STEPS = [
    ("LOAD", Lost.BEFORE),
    ("LOAD", Lost.AFTER),
    ("COMMIT", Lost.BEFORE),
    ("COMMIT", Lost.AFTER),
    ("REPORT", Lost.BEFORE),
    ("REPORT", Lost.AFTER),
]


@pytest.mark.parametrize(("kind", "when"), STEPS, ids=lambda found: getattr(found, "name", found))
def test_F27_the_server_is_killed_at_each_step_of_a_commit(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process, kind: str, when: Lost
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(3))
    killing = KilledAt(unity_server, kind, when)
    lost = FaultOnce(kind, Lost.AFTER) if when is Lost.AFTER else None
    proxy.after = killing.after
    proxy.fault = lambda call: killing.fault(call) or (lost(call) if lost else None)
    ours = lake_table(table, proxy.url)
    compact(ours)
    assert killing.killed
    delete(ours, "id = 7")  # the next writer makes up for what is not published or reported
    state = table.state()
    assert (state["latest-table-version"], state["commits"]) == (5, [])
    assert [row["id"] for row in rows_of(table)] == [n for n in range(30) if n != 7]
    seen = duckdb.call("query", text=f"SELECT count(*) AS n FROM {table.full_name}")
    assert seen == [{"n": 29}]


def test_F28_a_lost_answer_commits_once(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(2))
    # Sent again after an answer that came too late, one that never came, and one that lies.
    late, broken = Refusal(504, content=b"<html>"), Refusal(409, "CommitVersionConflictException")
    proxy.fault = FaultOnce("COMMIT", late, Lost.BEFORE, broken, Lost.AFTER)
    compact(lake_table(table, proxy.url))
    assert proxy.kinds().count("COMMIT") == 4
    assert table.state()["latest-table-version"] == 3
    assert [row["id"] for row in rows_of(table)] == list(range(20))


@pytest.mark.parametrize("late", [False, True])
def test_F29_a_commit_that_arrives_after_its_writer_has_given_up(
    unity_server: UnityServer, proxy: Proxy, late: bool
) -> None:
    """Before another writer's commit of the version, or after it."""
    table = unity_server.create_table()
    arrives, answered = threading.Event(), threading.Semaphore(0)

    def held(call: Call) -> Fault:
        if call.kind == "COMMIT":
            assert arrives.wait(LIMIT_S)
        return None

    def seen(call: Call, status: int) -> None:
        if call.kind == "COMMIT":
            answered.release()

    proxy.fault, proxy.after = held, seen
    zombie, living = impatient_log_of(table, proxy.url), log_of(table)
    snapshot = living.snapshot()
    with pytest.raises(OutcomeUnknown):
        put(zombie, snapshot, "zombie", 0)
    if late:
        put(living, snapshot, "living", 0)
    arrives.set()
    for _ in range(proxy.kinds().count("COMMIT")):
        assert answered.acquire(timeout=LIMIT_S)
    if not late:
        with pytest.raises(AlreadyExists):
            put(living, snapshot, "living", 0)
    found = living.update(snapshot)
    assert found.version == 1
    assert set(found.txns) == {"living" if late else "zombie"}
    assert living.is_ours(1, "zombie-0-1") is not late


def test_F30_the_backlog_of_a_dead_writer_is_cleared(
    unity_server: UnityServer, proxy: Proxy
) -> None:
    table = unity_server.create_table()
    # It stages and ratifies, and publishes nothing: its reports and its files do not arrive.
    proxy.fault = lambda call: Refusal(400) if call.kind == "REPORT" else None
    log = log_of(table, proxy.url)
    snapshot = log.snapshot()
    for number in range(10):
        put(log, snapshot, "dead", number)
        snapshot = log.update(snapshot)
    for published in table.folder.glob("_delta_log/*.json"):
        if int(published.stem) > 0:
            published.unlink()
    assert len(table.state()["commits"]) == 10
    ours = log_of(table)
    snapshot = ours.snapshot()
    put(ours, snapshot, "living", 0)
    assert ours.update(snapshot).txns.keys() >= {"dead", "living"}
    state = table.state()
    assert (state["latest-table-version"], state["commits"]) == (11, [])
    names = sorted(path.stem for path in table.folder.glob("_delta_log/*.json"))
    assert names == [f"{version:020d}" for version in range(12)]


@pytest.mark.parametrize("permitted", [None, [], ["SOMETHING_NEW"], ["DATA_CLEANUP"]])
def test_F33_without_permission_nothing_is_written(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process, permitted: list[str] | None
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(3))
    proxy.permitted = permitted
    before = sorted(path for path in table.folder.rglob("*") if path.is_file())
    ended = operate(lake_table(table, proxy.url), "TableCompaction", type="Major")
    assert ended.status.conditions[0].reason == Reason.CATALOG_FORBIDS
    data = [path for path in table.folder.rglob("*.parquet") if path not in before]
    assert data == []
    assert table.state()["latest-table-version"] == 3
    delete(lake_table(table, proxy.url), "id = 7")  # the right to modify is enough


def test_F33_a_permission_that_is_revoked_meanwhile(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(3))

    before, live = len(list(table.folder.rglob("*.parquet"))), files_of(table)

    def revoked(call: Call) -> Fault:
        # The operation has begun: its job's files are there.
        if call.kind == "LOAD" and len(list(table.folder.rglob("*.parquet"))) > before:
            proxy.permitted = ["DATA_CLEANUP"]
        return None

    proxy.fault = revoked
    ended = operate(lake_table(table, proxy.url), "TableCompaction", type="Major")
    assert ended.status.conditions[0].reason == Reason.CATALOG_FORBIDS
    assert files_of(table) == live


def files_of(table: ManagedTable) -> set[str]:
    return {add.path for add in log_of(table).snapshot().adds()}


def test_F35_a_table_that_was_dropped_or_made_again(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(2))
    log = log_of(table, proxy.url)
    snapshot = log.snapshot()
    unity_server.call("DELETE", table.path)
    with pytest.raises(TableNotFound, match="has no such table"):
        open_table(lake_table(table, proxy.url))
    again = unity_server.create_table(table.name)
    assert again.table_id != table.table_id
    with pytest.raises(TableReplaced, match="another table of this name"):
        put(log, snapshot, "late", 0)
    assert again.state()["latest-table-version"] == 0


def test_F40_a_catalog_that_is_down_for_a_while(
    unity_server: UnityServer, proxy: Proxy, duckdb: Process
) -> None:
    table = unity_server.create_table()
    appends(duckdb, table, 0, "range", range(2))
    log = log_of(table)
    snapshot = log.snapshot()
    unity_server.part.kill()
    try:
        with pytest.raises(StorageError, match="did not answer"):
            put(impatient_log_of(table), snapshot, "ours", 0)
    finally:
        unity_server.part.start()
    put(log, snapshot, "ours", 0)
    assert log.update(snapshot).version == 3
