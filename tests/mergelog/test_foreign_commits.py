"""A commit in the log that Tandem has not made is refused by name: it may have removed blocks, or
moved the mark, and views would lack rows without a word. Once it is removed, all is as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mergelog.lake import Merged, in_memory, table
from mergelog.orders import MERGE, STITCH, Orders, rows
from support.lake.memory_store import Call
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_commit
from tandem.delta.log.commit import commit_info, remove_of
from tandem.delta.log.names import commit_path
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import CorruptLog
from tandem.mergelog import LogWriter
from tandem.mergelog.upkeep import catch_up, resolve
from tandem.operations.clean.block_log import clean_with_log
from tandem.operations.model import Table
from tandem.operations.tables.log_status import read_log_status
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import Phase, TableStatus

Line = dict[str, Any]


def info(operation: str, engine: str = "delta-rs:py-1.6.0") -> Line:
    body = {"timestamp": 0, "operation": operation, "operationParameters": {}}
    return {"commitInfo": {**body, "engineInfo": engine} if engine else body}


def removes(log: Snapshot, *, data_change: bool) -> list[Line]:
    found = [remove_of(add, deletion_ms=0, data_change=data_change) for add in log.adds()]
    return [json.loads(encode_commit([each])) for each in found]


def mark(version: int) -> Line:
    return {"txn": {"appId": "tandem.log.mark", "version": version}}


def properties(log: Snapshot) -> Line:
    changed = {**log.configuration, "tandem.log.orderingColumn": "value"}
    body = {"id": log.metadata.id, "format": {"provider": "parquet", "options": {}}}
    schema = {"schemaString": log.metadata.schema_string, "partitionColumns": []}
    return {"metaData": {**body, **schema, "configuration": changed}}


def again(log: Snapshot) -> Line:
    """A block once more, as of an instant of its own."""
    add = next(log.adds())
    assert isinstance(add, AddFile)
    line: Line = json.loads(encode_commit([add]))
    line["add"]["tags"] = {**add.tags, "tandem.log.first": "5", "tandem.log.last": "5"}
    return line


def own_info(operation: str) -> Line:
    found = commit_info(operation, {}, now_ms=0, previous=None, blind_append=False)
    line: Line = json.loads(encode_commit([found]))
    return line


FOREIGN: dict[str, tuple[Callable[[Snapshot], list[Line]], str]] = {
    "a delete": (
        lambda log: [info("DELETE"), *removes(log, data_change=True)],
        "DELETE by delta-rs",
    ),
    "a compaction": (
        lambda log: [info("OPTIMIZE", "Apache-Spark/4.2"), *removes(log, data_change=False)],
        "OPTIMIZE by Apache-Spark",
    ),
    "a moved mark": (lambda _: [info("WRITE"), mark(4)], "WRITE by delta-rs"),
    "properties": (lambda log: [info("SET TBLPROPERTIES"), properties(log)], "SET TBLPROPERTIES"),
    "an append": (lambda log: [info("WRITE"), again(log)], "WRITE by delta-rs"),
    "nothing": (lambda _: [info("MANUAL UPDATE")], "MANUAL UPDATE by delta-rs"),
    "a commit without an engine": (
        lambda log: [info("DELETE", ""), *removes(log, data_change=True)],
        "DELETE by an unknown engine",
    ),
    "a commit without information": (
        lambda log: removes(log, data_change=True),
        "an unknown operation by an unknown engine",
    ),
    "a delete by tools of ours": (
        lambda log: [own_info("DELETE"), *removes(log, data_change=True)],
        "DELETE, which removes records",
    ),
    "a moved mark by tools of ours": (
        lambda _: [own_info("WRITE"), mark(4)],
        "WRITE, which moves the mark",
    ),
}


def commit(orders: Orders, case: str) -> str:
    """Put the foreign commit; returns the path of its file."""
    log = orders.log.snapshot()
    lines = FOREIGN[case][0](log)
    path = commit_path(log.version + 1)
    orders.log.store.put(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return path


def refusals(orders: Orders, case: str, refused: Callable[[], object]) -> None:
    with pytest.raises(CorruptLog) as caught:
        refused()
    assert caught.value.field == "version 5"
    assert FOREIGN[case][1] in caught.value.found
    assert "Remove this commit" in caught.value.remedy


@pytest.mark.part(3)
@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_commit_in_the_log_is_refused_by_readers_and_writers(
    orders: Orders, case: str
) -> None:
    expected, base = orders.view(), orders.log.base.latest_version()
    writer = LogWriter(orders.log, "open", pause=lambda _: None)
    path = commit(orders, case)
    for refused in (
        orders.view,
        lambda: writer.append(rows(range(1), "mine", 9), batch=0),
        lambda: LogWriter(orders.log, "new"),
        lambda: catch_up(orders.log, now_ms=0),
        lambda: resolve(orders.log, keep=False, now_ms=lambda: 0),
    ):
        refusals(orders, case, refused)
    assert (orders.log.log.latest_version(), orders.log.base.latest_version()) == (5, base)
    orders.log.store.delete([path])
    assert orders.view() == expected
    assert writer.append(rows(range(50, 51), "mine", 9), batch=0).instant == 5
    assert orders.view() == [*expected, (50, 9, "mine")]


@pytest.mark.part(3)
@pytest.mark.parametrize("case", ["a delete", "a moved mark", "a delete by tools of ours"])
@pytest.mark.parametrize("operation", ["merge", "stitch", "upsert", "statement"])
def test_a_foreign_commit_in_the_log_is_refused_by_operations(
    orders: Orders, case: str, operation: str
) -> None:
    source = orders.source(rows(range(1), "mine", 9))
    spec = {
        "merge": MERGE,
        "stitch": STITCH,
        "upsert": {"upsert": {"source": source}},
        "statement": {"delete": {"where": "id = 7"}},
    }[operation]
    expected, base = orders.view(), orders.log.base.latest_version()
    path = commit(orders, case)
    if operation in ("stitch", "upsert"):  # which are operations on the log
        refusals(orders, case, lambda: orders.run(spec))
    else:
        status = orders.run(spec)
        assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "CorruptLog")
        assert FOREIGN[case][1] in status.conditions[0].message
    assert (orders.log.log.latest_version(), orders.log.base.latest_version()) == (5, base)
    orders.log.store.delete([path])
    assert orders.view() == expected
    assert orders.run(spec, name="later").phase is Phase.SUCCEEDED


def test_status_and_a_cleaning_name_a_foreign_commit_in_the_log(orders: Orders) -> None:
    opened = Table(orders.store, orders.log.base, "LakeTable/orders")
    commit(orders, "a delete")
    blocks = {meta.path for meta in orders.log.store.list("blocks")}
    cleaned = clean_with_log(opened, CleaningRules(0))
    status = read_log_status(opened, None, TableStatus())
    assert status is not None
    for problem in (cleaned.problem, status.problem):
        assert "another writer has changed the log of blocks" in (problem or "")
    assert {meta.path for meta in orders.log.store.list("blocks")} == blocks


def test_commits_are_checked_without_a_request_more() -> None:
    """A reader gets each commit after the checkpoint once."""
    store = in_memory()
    merged = Merged(store)
    merged.append(table((1, "a", None)))
    calls: list[Call] = []
    store.fault = calls.append
    merged.log.snapshot()
    reads = ("get", "get_range")  # of `_last_checkpoint` a part
    read = [call.path for call in calls if call.name in reads and call.when == "before"]
    assert sorted(path for path in read if path.endswith(".json")) == [
        f"_tandem/log/{commit_path(version)}" for version in (0, 1)
    ]
    assert sum(call.when == "before" for call in calls) - len(read) == 1  # a listing
