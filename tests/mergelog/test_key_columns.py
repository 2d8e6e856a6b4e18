"""The keys and the ordering column of a log stay the columns that its records have. What changes
them in the base table is refused until it is undone: no row is taken for another, and none is lost.

Columns are mapped, so that they can be renamed, dropped, and added under a name that was another
one's before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mergelog.orders import MERGE, STITCH, Orders
from mergelog.test_beside import Before
from tandem.delta.actions import Action, Metadata, Protocol, Txn
from tandem.delta.log.snapshot import commit_info
from tandem.delta.schema import Field, PrimitiveType, StructType, to_delta_json
from tandem.errors import CorruptLog, InvalidSpec
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.upkeep import catch_up, record_base, resolve
from tandem.mergelog.versions import MERGED
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter, Upload
from tandem.operations.adopt import read_log_status
from tandem.operations.clean_log import clean_with_log
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import Phase, TableStatus

MAPPED = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.columnMapping.maxColumnId": "9",
}
FEATURES = frozenset({"deletionVectors", "columnMapping"})
Rows = list[tuple[Any, ...]]


def column(name: str, number: int, type_: str = "long") -> Field:
    """A column with the physical name cNUMBER."""
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    return Field(name, PrimitiveType(type_), True, mapping)


KEY, OTHER, ORDER = column("k", 1), column("x", 2), column("o", 3)
AT_FIRST = (KEY, OTHER, ORDER)


@dataclass
class Changing:
    """A table with three mapped columns and a log with three records."""

    folder: Path
    ordering: str = ""

    def __post_init__(self) -> None:
        self.orders = Orders(self.folder)
        self.log: MergeLog = self.orders.log
        base = Metadata("base", to_delta_json(StructType(AT_FIRST)), (), MAPPED)
        self.put("CREATE TABLE", Protocol(3, 7, FEATURES, FEATURES), base)
        self.make_log()
        with self.writer("w") as writer:
            writer.append(rows((1, 7, 1), (2, 7, 1), (3, 7, 1)), batch=0)

    def make_log(self, *keys: str) -> bool:
        settings = LogSettings(keys or ("k",), self.ordering)
        return ensure_log(self.log, settings, now_ms=0, nonce="x")

    def writer(self, name: str) -> LogWriter:
        return LogWriter(self.log, name, pause=lambda _: None)

    def columns(self, *found: Field, operation: str = "RENAME COLUMN", **parameters: str) -> None:
        metadata = replace(
            self.log.base.snapshot().metadata, schema_string=to_delta_json(StructType(found))
        )
        self.put(operation, metadata, **parameters)

    def merged(self) -> None:
        """As a LogMerge: the records up to now are in the base table."""
        log = self.log.snapshot()
        self.put("MERGE", Txn(MERGED + log.metadata.id, log.version))

    def put(self, operation: str, *actions: Action, **parameters: str) -> None:
        version = self.log.base.latest_version() + 1 if self.log.base.exists() else 0
        info = commit_info(operation, parameters, now_ms=0, previous=None, blind_append=False)
        self.log.base.put_commit(version, [info, *actions], token=f"{operation} {version}")

    def view(self, version: int | None = None) -> Rows:
        found = MergedView.open(self.log, version).scan().read_all().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def table(self) -> Table:
        return Table(self.orders.store, self.log.base, "LakeTable/t")


def rows(*found: tuple[Any, ...], names: str = "kxo") -> pa.Table:
    columns = zip(*found, strict=True)
    return pa.table(
        {name: pa.array(each, pa.int64()) for name, each in zip(names, columns, strict=True)}
    )


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    return Changing(tmp_path / "t")


@pytest.fixture
def ordered(tmp_path: Path) -> Changing:
    return Changing(tmp_path / "t", "o")


CHANGES: dict[str, tuple[str, Sequence[Sequence[Field]], str]] = {
    # ordering column, the columns after each statement, what the error says of it
    "key renamed": ("", [(column("key", 1), OTHER, ORDER)], "no such column; c1 is key"),
    "key in another case": ("", [(column("K", 1), OTHER, ORDER)], "K"),
    "another column renamed to the key": (
        "",
        [(column("old", 1), OTHER, ORDER), (column("old", 1), column("k", 2), ORDER)],
        "physical name c2; c1 is old",
    ),
    "key dropped": ("", [(OTHER, ORDER)], "no such column; c1 was dropped"),
    "key dropped and added": (
        "",
        [(OTHER, ORDER), (OTHER, ORDER, column("k", 4))],
        "physical name c4; c1 was dropped",
    ),
    "ordering column renamed": ("o", [(KEY, OTHER, column("at", 3))], "no such column; c3 is at"),
    "ordering column dropped": ("o", [(KEY, OTHER)], "no such column; c3 was dropped"),
    "ordering column dropped and added": (
        "o",
        [(KEY, OTHER), (KEY, OTHER, column("o", 4))],
        "physical name c4; c3 was dropped",
    ),
    "ordering column swapped": (
        "o",
        [(KEY, column("y", 2), OTHER), (KEY, column("o", 2), column("x", 3))],
        "physical name c2; c3 is x",
    ),
    "key widened to a float": ("", [(column("k", 1, "double"), OTHER, ORDER)], "k: double"),
}


def stored(changing: Changing) -> list[str]:
    """Commits of the log, and its blocks."""
    return sorted(meta.path for meta in changing.log.store.list(""))


def append(changing: Changing) -> None:
    """Under the names that the columns have now."""
    names = changing.log.base.snapshot().schema.names
    with changing.writer("another") as writer:
        writer.append(rows(tuple(9 for _ in names), names="".join(n[0] for n in names)), batch=0)


DONE: dict[str, Callable[[Changing], object]] = {
    "view": Changing.view,
    "record base": lambda c: record_base(c.log, now_ms=0),
    "catch up": lambda c: catch_up(c.log, now_ms=0),
    "resolve": lambda c: resolve(c.log, keep=True, now_ms=lambda: 0),
}


@pytest.mark.part(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("done", DONE)
def test_a_changed_key_is_refused_by_name_until_the_change_is_undone(
    tmp_path: Path, change: str, done: str
) -> None:
    ordering, statements, found = CHANGES[change]
    changing = Changing(tmp_path / "t", ordering)
    before, log = changing.view(), stored(changing)
    for columns in statements:
        changing.columns(*columns)
    if done == "resolve" and change in ("key in another case", "key widened to a float"):
        return  # nothing is uncertain, and nothing would be written
    with pytest.raises(InvalidSpec) as caught:
        DONE[done](changing)
    assert found in caught.value.found
    assert caught.value.field in ("k", "o", "spec.mergeOnRead.keys")
    assert "rename the column back" in caught.value.remedy
    assert stored(changing) == log
    changing.columns(*AT_FIRST)
    assert changing.view() == before
    append(changing)
    assert changing.view() == [*before, (9, 9, 9)]


@pytest.mark.parametrize("change", CHANGES)
def test_an_append_after_a_changed_key_is_refused_by_open_and_new_writers(
    tmp_path: Path, change: str
) -> None:
    ordering, statements, _ = CHANGES[change]
    changing = Changing(tmp_path / "t", ordering)
    before = changing.view()
    with changing.writer("open") as writer:
        writer.append(rows((4, 7, 1)), batch=0)
        for columns in statements:
            changing.columns(*columns)
        with pytest.raises(InvalidSpec):
            writer.append(rows((5, 7, 1)), batch=1)
        with pytest.raises(InvalidSpec):
            append(changing)
        assert changing.log.snapshot().version == 2
        changing.columns(*AT_FIRST)
        writer.append(rows((5, 7, 1)), batch=1)
    assert changing.view() == [*before, (4, 7, 1), (5, 7, 1)]


@pytest.mark.parametrize("change", ["another column renamed to the key", "key dropped and added"])
def test_blocks_for_the_keys_before_are_not_committed_after_the_change(
    changing: Changing, change: str
) -> None:
    part = Upload.begin(changing.log).write(changing.log.store, rows((4, 7, 1)), None)
    for columns in CHANGES[change][1]:
        changing.columns(*columns)
    upload = Upload.begin(changing.log)
    after = upload.write(changing.log.store, rows((4,), names="k"), None)
    with changing.writer("stream") as writer, pytest.raises(InvalidSpec, match="physical name c1"):
        writer.append_uploaded([after], batch=0)
    changing.columns(*AT_FIRST)
    with changing.writer("stream") as writer:
        writer.append_uploaded([part], batch=0)
    assert len(changing.view()) == 4


OPERATIONS: dict[str, dict[str, Any]] = {
    "merge": MERGE,
    "upsert": {"upsert": {}},
    "statement": {"delete": {"where": "o = 1"}},
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("change", ["key renamed", "another column renamed to the key"])
@pytest.mark.parametrize("planned", [True, False], ids=["before its commit", "before its plan"])
def test_an_operation_after_a_changed_key_is_refused_by_name(
    changing: Changing, operation: str, change: str, planned: bool
) -> None:
    spec = dict(OPERATIONS[operation])
    if operation == "upsert":
        spec = {"upsert": {"source": changing.orders.source(rows((4, 7, 1)))}}
    before, newest = changing.view(), changing.log.snapshot()

    def statements() -> None:
        for columns in CHANGES[change][1]:
            changing.columns(*columns)

    if planned and operation != "statement":  # whose merge ends before it plans
        status = changing.orders.run(spec, Before(Point.RECONCILE, statements))
    else:
        statements()
        status = changing.orders.run(spec)
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "InvalidSpec"), status
    assert "c1 is " in status.conditions[0].message
    assert changing.log.snapshot().metadata == newest.metadata
    changing.columns(*AT_FIRST)
    assert changing.view() == before
    assert changing.orders.run(MERGE, name="later").phase is Phase.SUCCEEDED
    assert changing.view() == before


def test_a_log_compaction_beside_a_changed_key_changes_no_view(changing: Changing) -> None:
    """It reads blocks by the columns that the log has recorded, and writes no others."""
    with changing.writer("w") as writer:
        writer.append(rows((1, 8, 1)), batch=1)
    before = changing.view()
    for columns in CHANGES["another column renamed to the key"][1]:
        changing.columns(*columns)
    assert changing.orders.run(STITCH).phase is Phase.SUCCEEDED
    changing.columns(*AT_FIRST)
    assert changing.view() == before == [(1, 8, 1), (2, 7, 1), (3, 7, 1)]


def test_status_and_a_cleaning_say_that_a_key_has_changed(changing: Changing) -> None:
    changing.columns(column("key", 1), OTHER, ORDER)
    cleaned = clean_with_log(changing.table(), CleaningRules(0))
    status = read_log_status(changing.table(), None, TableStatus())
    assert status is not None
    for problem in (cleaned.problem, status.problem):
        assert "no such column; c1 is key" in (problem or "")
    with pytest.raises(InvalidSpec, match="rename the column back"):
        changing.make_log()
    changing.columns(*AT_FIRST)
    assert not changing.make_log()
    assert len(changing.view()) == 3


# Without live records


def test_records_that_an_overwrite_without_the_key_made_void_are_back_after_a_restore(
    changing: Changing,
) -> None:
    before, log = changing.view(), stored(changing)
    changing.columns(OTHER, ORDER, operation="WRITE", mode="Overwrite")
    assert changing.view() == []
    cleaned = clean_with_log(changing.table(), CleaningRules(0))
    assert "spec.mergeOnRead.keys" in (cleaned.problem or "")
    assert stored(changing) == log
    changing.columns(*AT_FIRST, operation="RESTORE", version="0")
    assert changing.view() == before


def test_a_restore_brings_records_back_that_have_other_columns_than_later_ones(
    changing: Changing,
) -> None:
    """The key was another column in between."""
    before = changing.view()
    later = (column("k", 4), column("x", 5), column("o", 6))
    changing.columns(*later, operation="REPLACE TABLE")
    append(changing)
    assert changing.view() == [(9, 9, 9)]
    catch_up(changing.log, now_ms=0)
    changing.columns(*AT_FIRST, operation="RESTORE", version="0")
    assert changing.view() == before
    append_as(changing, "after")
    assert changing.view() == [*before, (9, 9, 9)]
    assert changing.view(1) == [(9, 9, 9)]


def append_as(changing: Changing, name: str) -> None:
    with changing.writer(name) as writer:
        writer.append(rows((9, 9, 9)), batch=0)


def test_without_live_records_a_key_may_be_another_column_of_the_same_name(
    changing: Changing,
) -> None:
    changing.merged()
    for columns in CHANGES["key dropped and added"][1]:
        changing.columns(*columns)
    append_as(changing, "after")
    assert changing.view() == [(9, 9, 9)]
    changing.columns(column("key", 4), OTHER, ORDER)
    with pytest.raises(InvalidSpec, match="c4 is key"):
        changing.view()


def test_a_merged_delete_that_is_in_force_keeps_the_ordering_column(ordered: Changing) -> None:
    with ordered.writer("w") as writer:
        writer.append(None, rows((1, 5), names="ko"), batch=1)
    ordered.merged()
    assert ordered.view() == []
    for columns in CHANGES["ordering column dropped and added"][1]:
        ordered.columns(*columns)
    with pytest.raises(InvalidSpec, match="c3 was dropped"):
        ordered.view()


def test_a_key_that_was_renamed_is_refused_without_live_records_too(changing: Changing) -> None:
    """The log keeps the names of its keys."""
    changing.merged()
    changing.columns(column("key", 1), OTHER, ORDER)
    assert changing.view() == []
    with pytest.raises(InvalidSpec, match="have changed in the base table"):
        append(changing)
    with pytest.raises(InvalidSpec, match="other settings"):
        changing.make_log("key")
    changing.columns(*AT_FIRST)
    append_as(changing, "after")
    assert changing.view() == [(9, 9, 9)]


# Logs of before, and damaged ones


def test_records_without_a_key_are_refused_and_not_read_as_one(changing: Changing) -> None:
    """As an earlier version recorded a key that was dropped and added again."""
    for columns in CHANGES["key dropped and added"][1]:
        changing.columns(*columns)
    path = "_delta_log/00000000000000000000.json"
    text = changing.log.store.get(path).decode()
    commit = [json.loads(line) for line in text.splitlines()]
    for action in commit:
        if "metaData" in action:
            schema = action["metaData"]["schemaString"]
            action["metaData"]["schemaString"] = schema.replace('"c1"', '"c4"')
    changing.log.store.put(path, "".join(json.dumps(each) + "\n" for each in commit).encode())
    with pytest.raises(CorruptLog) as caught:
        changing.view()
    assert (caught.value.field, caught.value.found) == ("k", "NULL")
    assert "/1/part-" in caught.value.resource
    status = changing.orders.run(MERGE)
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "CorruptLog")


def test_a_decision_on_a_base_table_without_the_key_writes_nothing(changing: Changing) -> None:
    """The base table was made again, with as many versions."""
    store, log = changing.orders.store, stored(changing)
    store.delete([meta.path for meta in store.list("_delta_log")])
    other = Metadata("other", to_delta_json(StructType((OTHER, ORDER))), (), MAPPED)
    changing.put("CREATE TABLE", Protocol(3, 7, FEATURES, FEATURES), other)
    for keep in (True, False):
        with pytest.raises(InvalidSpec):
            resolve(changing.log, keep=keep, now_ms=lambda: 0)
    assert stored(changing) == log
    key = replace(other, schema_string=to_delta_json(StructType((column("k", 4), OTHER, ORDER))))
    changing.put("ADD COLUMNS", key)
    with pytest.raises(InvalidSpec, match="c1 was dropped"):
        resolve(changing.log, keep=True, now_ms=lambda: 0)
    assert resolve(changing.log, keep=False, now_ms=lambda: 0).decided
    append_as(changing, "after")
    assert changing.view() == [(9, 9, 9)]
