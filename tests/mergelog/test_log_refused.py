"""Logs that are refused by name, and commits in them that are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from mergelog.lake import DELETION_VECTORS, Merged, in_memory, keys, table
from mergelog.orders import MERGE, STITCH, Orders, rows
from mergelog.test_beside import Before
from support.lake.memory_store import Call
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import commit_path
from tandem.delta.log.snapshot import ENGINE, Snapshot, commit_info, remove_of
from tandem.delta.schema import ArrayType, Field, PrimitiveType, StructType
from tandem.errors import AccessDenied, CorruptLog, InvalidSpec, TandemError, UnsupportedFeature
from tandem.mergelog import LogWriter
from tandem.mergelog.log_table import (
    CHECKPOINT_INTERVAL,
    LogSettings,
    MergeLog,
    ensure_log,
    settings_of,
)
from tandem.mergelog.upkeep import catch_up, resolve
from tandem.mergelog.writer import Upload
from tandem.operations.adopt import read_log_status
from tandem.operations.clean_log import clean_with_log
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import Phase, TableStatus

# What a log cannot be made for, and a log of a later version: refused by name, and nothing is
# written. And where a writer must be allowed to write.


LONG = PrimitiveType("long")
KEY = Field("k", LONG)

# Before a log is made


@dataclass(frozen=True)
class Refused:
    """A base table that a log must not be made for, and what the error names."""

    error: type[TandemError]
    names: str
    configuration: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    key: Field = KEY


def feature(
    name: str, configuration: dict[str, str] | None = None, *, column: dict[str, Any] | None = None
) -> Refused:
    """A feature of the table; `column`: of its key column."""
    key = KEY if column is None else Field("k", LONG, metadata=column)
    return Refused(UnsupportedFeature, name, configuration or {}, (name,), key)


def rule(names: str, configuration: dict[str, str] | None = None, **more: Any) -> Refused:
    """A rule of the table that only Spark can evaluate, or nothing here."""
    return replace(feature("checkConstraints", configuration, **more), names=names)


def key(found: Field) -> Refused:
    return Refused(InvalidSpec, "spec.mergeOnRead.keys", key=found)


UNSUITABLE: dict[str, Refused] = {
    "forgets transactions": Refused(
        UnsupportedFeature,
        "delta.setTransactionRetentionDuration",
        {"delta.setTransactionRetentionDuration": "interval 7 days"},
    ),
    "append only": feature("appendOnly", {"delta.appendOnly": "true"}),
    "constraint": rule("sqrt(k) > 1", {"delta.constraints.far": "sqrt(k) > 1"}),
    "constraint beyond the grammar": rule("delta.constraints.far", {"delta.constraints.far": "?"}),
    "invariant": rule(
        "delta.invariants of k", column={"delta.invariants": '{"expression": "k > 0"}'}
    ),
    "row tracking": Refused(
        UnsupportedFeature,
        "rowTracking",
        {"delta.enableRowTracking": "true"},
        ("rowTracking", "domainMetadata"),
    ),
    "generated column": rule("generated column k", column={"delta.generationExpression": "v + 1"}),
    "identity column": feature("identityColumns", column={"delta.identity.start": 1}),
    "iceberg": feature("icebergCompatV2", {"delta.enableIcebergCompatV2": "true"}),
    "unknown feature": feature("newFeature"),
    "nested key": key(Field("k", ArrayType(LONG))),
    "struct as key": key(Field("k", StructType((Field("a", LONG),)))),
    "float as key": key(Field("k", PrimitiveType("double"))),
    "collated key": key(Field("k", PrimitiveType("string"), metadata={"__COLLATIONS": {"k": "x"}})),
    "no such key": key(Field("other", LONG)),
}


@pytest.mark.parametrize("case", UNSUITABLE)
def test_a_base_table_that_cannot_have_a_log_is_refused_before_it_is_made(case: str) -> None:
    refused = UNSUITABLE[case]
    store = in_memory(
        schema=StructType((refused.key, Field("v", PrimitiveType("string")))),
        configuration=DELETION_VECTORS | refused.configuration,
        features=("deletionVectors", *refused.features),
    )
    before = store.paths()
    with pytest.raises(refused.error) as caught:
        Merged(store)
    assert refused.names in str(caught.value)
    assert caught.value.remedy
    assert store.paths() == before


def test_an_ordering_column_may_be_nested_as_little_as_a_key() -> None:
    nested = Field("o", StructType((Field("a", LONG),)))
    store = in_memory(schema=StructType((Field("k", LONG), nested)))
    before = store.paths()
    with pytest.raises(InvalidSpec) as caught:
        Merged(store, ordering="o")
    assert caught.value.field == "spec.mergeOnRead.orderingColumn"
    assert store.paths() == before


def test_of_two_processes_that_make_a_log_with_different_keys_one_is_refused() -> None:
    store = in_memory()
    log = MergeLog(DeltaLog(store))
    made: list[bool] = []

    def make(*columns: str) -> bool:
        return ensure_log(log, LogSettings(columns), now_ms=0, nonce=" ".join(columns))

    def faster(call: Call) -> None:
        if call.name == "put_if_absent" and not made:
            made.append(False)
            made[0] = make("k", "p")

    store.fault = faster
    with pytest.raises(InvalidSpec) as caught:
        make("k")
    assert (caught.value.found, caught.value.expected) == ("keys k", "keys k, p")
    assert made == [True]
    assert (settings_of(log.snapshot()).keys, log.snapshot().version) == (("k", "p"), 0)


# A log of tomorrow


def tomorrow_feature(orders: Orders) -> list[dict[str, Any]]:
    found = orders.log.snapshot().protocol
    features = sorted({*found.writer_features, "tandem.mergeLogV2"})
    return [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}}
    ]


def tomorrow_format(orders: Orders) -> list[dict[str, Any]]:
    found = orders.log.snapshot().metadata
    return [
        {
            "metaData": {
                "id": found.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": found.schema_string,
                "partitionColumns": list(found.partition_columns),
                "configuration": {**found.configuration, "tandem.log.format": "2"},
            }
        }
    ]


TOMORROW: dict[str, Callable[[Orders], list[dict[str, Any]]]] = {
    "unknown feature": tomorrow_feature,
    "newer format": tomorrow_format,
}


def upgrade(orders: Orders, how: str) -> None:
    """As a later version of Tandem upgrades a log."""
    info = {"commitInfo": {"operation": "UPGRADE", "engineInfo": ENGINE + "9"}}
    version = orders.log.log.latest_version() + 1
    lines = [info, *TOMORROW[how](orders)]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    orders.log.store.put(commit_path(version), data)


def written(orders: Orders) -> tuple[int, int, list[str]]:
    """Versions of base table and log, and the data files of both."""
    data = [m.path for m in orders.store.list("") if m.path.endswith(".parquet")]
    return orders.log.base.latest_version(), orders.log.log.latest_version(), data


def spec_of(orders: Orders, operation: str) -> dict[str, Any]:
    return {
        "merge": MERGE,
        "stitch": STITCH,
        "upsert": {"upsert": {"source": orders.source(rows(range(1), "mine", 9))}},
        "delete by key": {"deleteKeys": {"source": orders.source(deletes(orders), "deletes")}},
        "ingest": {"source": orders.source(rows(range(1), "mine", 9))},
        "update": {"update": {"where": "id = 7", "set": {"value": "'mine'"}}},
    }[operation]


def deletes(orders: Orders) -> pa.Table:
    return rows(range(1), "", 9).select(list(settings_of(orders.log.snapshot()).columns))


OPERATIONS = ("merge", "stitch", "upsert", "delete by key", "ingest", "update")


@pytest.mark.parametrize("how", TOMORROW)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_L14_operations_refuse_a_log_of_a_later_version(
    orders: Orders, operation: str, how: str
) -> None:
    spec = spec_of(orders, operation)
    upgrade(orders, how)
    before = written(orders)
    try:
        status = orders.run(spec)
    except UnsupportedFeature as error:  # on opening the log
        message = str(error)
    else:
        assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "UnsupportedFeature")
        message = status.conditions[0].message
    assert "the log of blocks cannot be read" in message
    assert "Upgrade Tandem" in message
    assert written(orders) == before


@pytest.mark.parametrize("how", TOMORROW)
@pytest.mark.parametrize("operation", ["stitch", "upsert"])
def test_L14_a_log_that_is_upgraded_beside_an_operation_gets_no_commit_of_it(
    orders: Orders, operation: str, how: str
) -> None:
    version = orders.log.log.latest_version()
    spec = spec_of(orders, operation)
    status = orders.run(spec, Before(Point.RECONCILE, lambda: upgrade(orders, how)))
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "UnsupportedFeature")
    commits = orders.log.log.commits(version + 1, orders.log.log.latest_version())
    assert not any(commit.adds or commit.removes for commit in commits)


@pytest.mark.parametrize("how", TOMORROW)
def test_L14_a_cleaning_leaves_a_log_of_a_later_version_alone(orders: Orders, how: str) -> None:
    opened = Table(orders.store, orders.log.base, "LakeTable/orders")
    upgrade(orders, how)
    before = written(orders)
    found = clean_with_log(opened, CleaningRules(0))
    assert "Upgrade Tandem" in (found.problem or "")
    assert written(orders) == before


# What a writer may write


def test_a_writer_needs_to_write_below_the_log_only() -> None:
    """Appends, retries, checkpoints and uploads of several processes."""
    store = in_memory()
    merged = Merged(store)

    def guard(call: Call) -> None:
        writes = ("put", "put_if_absent", "delete", "open_output")
        if call.name in writes and not call.path.startswith("_tandem/log/"):
            raise AccessDenied("only the log may be written", resource=call.path)

    store.fault = guard
    with merged.new_writer("w") as writer:
        for batch in range(CHECKPOINT_INTERVAL + 1):
            writer.append(table((batch, "a", None)), keys(batch - 1), batch=batch)
        part = Upload.begin(merged.log).write(merged.log.store, table((7, "b", None)), None)
        writer.append_uploaded([part], batch=99)
    assert merged.log.snapshot().checkpoint_version is not None
    assert {row[0] for row in merged.rows()} == {7, CHECKPOINT_INTERVAL}
    with pytest.raises(AccessDenied):
        store.put("elsewhere", b"")


# A commit in the log that Tandem has not made is refused by name: it may have removed blocks, or
# moved the mark, and views would lack rows without a word. Once it is removed, all is as before.


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
    orders.do(spec, name="later")


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
