"""Logs that are damaged, made again, of a later version, or cannot be read."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from mergelog.lake import DELETION_VECTORS, Merged, date_back, in_memory, keys, made, table
from support.documents import document
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Metadata, Protocol, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.errors import (
    AccessDenied,
    BaseHistoryGap,
    BaseReplaced,
    CorruptLog,
    DataFileMissing,
    InvalidSpec,
    NotMergeOnRead,
    ObjectNotFound,
    Reason,
    StorageError,
    TandemError,
    UnsupportedFeature,
)
from tandem.kube.tables.context import TableLog
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log, state_of
from tandem.mergelog.upkeep import catch_up
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter
from tandem.operations.adopt import AdoptedTable, adopt, read_log_status
from tandem.operations.model import Table
from tandem.operations.ports import SystemClock, SystemNonces
from tandem.spec.status import TableStatus
from tandem.spec.table import LakeTable

# What is damaged, gone, or of a later version is refused by name; other engines keep away.


ROW = table((1, "a", None))


def logged(store: MemoryStore) -> Merged:
    merged = Merged(store)
    merged.append(table(*[(key, f"value {key * 7919 % 100}", "p") for key in range(50)]), keys(99))
    return merged


def block_path(store: MemoryStore) -> str:
    (path,) = [path for path in store.paths() if "/blocks/" in path]
    return path


# Blocks


def test_a_missing_block_is_an_error_that_names_it() -> None:
    store = in_memory()
    merged = logged(store)
    path = block_path(store)
    store.delete([path])
    with pytest.raises(DataFileMissing) as caught:
        merged.rows()
    assert path.rsplit("/", 1)[1] in str(caught.value)
    merged.append(ROW)


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_block_that_is_cut_off_is_an_error_that_names_it(left: int) -> None:
    store = in_memory()
    merged = logged(store)
    path = block_path(store)
    store.put(path, store.get(path)[:left])
    with pytest.raises(StorageError) as caught:
        merged.rows()
    assert path.rsplit("/", 1)[1] in str(caught.value)


def test_a_damaged_page_is_never_read_as_other_rows() -> None:
    store = in_memory()
    merged = logged(store)
    path, before = block_path(store), merged.rows()
    good = store.get(path)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    found = set()
    for at in range(4, footer, 3):
        store.put(path, good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        error = read_or_error(merged, before)
        if error is not None:
            assert path.rsplit("/", 1)[1] in str(error)
            found.add(at)
    assert len(found) > (footer - 4) / 3 / 2


def read_or_error(merged: Merged, expected: list[tuple[Any, ...]]) -> StorageError | None:
    try:
        found = merged.rows()
    except StorageError as error:
        return error
    assert found == expected
    return None


def test_a_block_that_no_version_names_is_never_read() -> None:
    store = in_memory()
    merged = logged(store)
    before = merged.rows()
    folder = block_path(store).rsplit("/", 1)[0]
    store.put(f"{folder}/part-00002-left-behind.parquet", b"half a block")
    assert merged.rows() == before


# Later versions, and other tables


def rewrite(store: MemoryStore, change: Callable[[dict[str, Any]], None]) -> None:
    """Change actions of the first commit of the log."""
    path = f"_tandem/log/_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in store.get(path).splitlines()]
    for action in actions:
        change(action)
    store.put(path, "".join(json.dumps(action) + "\n" for action in actions).encode())


def writer_feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"]["writerFeatures"].append("tandem.mergeLogV2")


def reader_feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"]["minReaderVersion"] = 3
        action["protocol"]["readerFeatures"] = ["newFeature"]
        action["protocol"]["writerFeatures"].append("newFeature")


def no_feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"]["writerFeatures"].remove("tandem.mergeLog")


def format_2(action: dict[str, Any]) -> None:
    if "metaData" in action:
        action["metaData"]["configuration"]["tandem.log.format"] = "2"


@pytest.mark.parametrize("change", [writer_feature, reader_feature, no_feature, format_2])
def test_L14_Z18_a_log_of_a_later_version_is_refused_by_readers_and_writers(
    change: Callable[[dict[str, Any]], None],
) -> None:
    store = in_memory()
    merged = logged(store)
    rewrite(store, change)
    before = store.paths()
    for refused in (merged.rows, lambda: LogWriter(merged.log, "new"), lambda: Merged(store)):
        with pytest.raises(UnsupportedFeature):
            refused()
    assert store.paths() == before


@pytest.mark.parametrize("change", [writer_feature, format_2])
def test_L14_a_log_that_is_upgraded_under_a_writer_is_refused(
    change: Callable[[dict[str, Any]], None],
) -> None:
    store = in_memory()
    merged = logged(store)
    rewrite(store, change)
    last = f"_tandem/log/_delta_log/{2:020d}.json"
    upgraded = store.get(f"_tandem/log/_delta_log/{0:020d}.json")
    store.put(last, upgraded)
    with pytest.raises(UnsupportedFeature):
        merged.append(ROW)
    assert merged.log.log.latest_version() == 2


def test_a_table_without_a_log_is_not_merge_on_read() -> None:
    log = MergeLog(Merged(in_memory()).log.base)
    log.store.delete_prefix("_delta_log")
    assert not log.exists()
    for refused in (lambda: MergedView.open(log), lambda: LogWriter(log, "w")):
        with pytest.raises(NotMergeOnRead):
            refused()


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.get("metaData", {}).get("configuration", {}).pop("tandem.log.keys", None),
        lambda a: (
            a.get("metaData", {}).get("configuration", {}).update({"tandem.log.keys": '["other"]'})
        ),
        lambda a: a.get("metaData", {}).get("configuration", {}).pop("tandem.log.baseId", None),
        lambda a: a.get("txn", {}).update(appId="other"),
    ],
    ids=["no keys", "unknown key", "no base id", "no txns"],
)
def test_a_log_that_contradicts_itself_is_corrupt(
    change: Callable[[dict[str, Any]], None],
) -> None:
    store = in_memory()
    merged = Merged(store)
    rewrite(store, change)
    with pytest.raises(CorruptLog):
        merged.rows()


@pytest.mark.parametrize(
    "tags", [{}, {"tandem.log.first": "x"}, {"tandem.log.first": "2"}, {"tandem.log.deletes": "-1"}]
)
def test_a_file_without_the_tags_of_a_block_is_refused(tags: dict[str, str]) -> None:
    store = in_memory()
    merged = logged(store)
    path = f"_tandem/log/_delta_log/{1:020d}.json"
    actions = [json.loads(line) for line in store.get(path).splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["tags"] = {**action["add"]["tags"], **tags} if tags else {}
    store.put(path, "".join(json.dumps(action) + "\n" for action in actions).encode())
    with pytest.raises(CorruptLog):
        merged.rows()


# Settings


def test_a_log_keeps_the_settings_that_it_was_made_with() -> None:
    store = in_memory()
    merged = Merged(store)

    def ensure(*columns: str, ordering: str = "") -> bool:
        settings = LogSettings(columns, ordering)
        return ensure_log(merged.log, settings, now_ms=0, nonce="again")

    assert not ensure("k")
    assert not ensure("K")
    for columns, ordering in ((("v",), ""), (("k", "v"), ""), (("k",), "v")):
        with pytest.raises(InvalidSpec, match="other settings"):
            ensure(*columns, ordering=ordering)


@pytest.mark.parametrize(
    ("columns", "ordering"),
    [((), ""), (("no",), ""), (("k", "K"), ""), (("k",), "no"), (("k",), "k")],
)
def test_a_log_is_not_made_with_wrong_settings(columns: tuple[str, ...], ordering: str) -> None:
    store = in_memory()
    before = store.paths()
    with pytest.raises(InvalidSpec):
        Merged(store, columns, ordering)
    assert store.paths() == before


# The base table


def delta(path: Path) -> DeltaTable:
    return DeltaTable(str(path))


def test_a_column_that_was_added_is_accepted_by_an_open_writer(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", ROW)
    merged.append(table((2, "b", None)))
    delta(tmp_path / "t").alter.add_columns([Field("z", PrimitiveType("integer"))])
    with pytest.raises(InvalidSpec):
        merged.append(table((9, "x", None)).append_column("y", [[1]]))
    merged.append(table((3, "c", None)).append_column("z", [[5]]))
    merged.append(table((2, "B", None)))
    expected = [(1, "a", None, None), (2, "B", None, None), (3, "c", None, 5)]
    assert merged.rows() == expected


def test_an_append_repeats_no_metadata(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", ROW)
    for number in range(3):
        merged.append(table((number, "b", None)))
    for commit in merged.log.log.commits(1, 3):
        assert not any(isinstance(action, Metadata | Protocol) for action in commit.actions)


def test_the_log_gets_the_features_that_a_new_column_needs(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", ROW)
    delta(tmp_path / "t").alter.add_columns([Field("z", PrimitiveType("timestamp_ntz"))])
    merged.append(table((2, "b", None)))
    assert "timestampNtz" in merged.log.snapshot().protocol.reader_features
    assert len(merged.rows()) == 2
    assert delta(tmp_path / "t/_tandem/log").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("commits", range(6))
def test_a_base_table_that_was_made_again_is_refused(tmp_path: Path, commits: int) -> None:
    """With fewer versions than the log has seen, as many, or more."""
    path = tmp_path / "t"
    merged = made(path, ROW)
    for number in range(3):
        write_deltalake(str(path), table((number, "a", None)), mode="append")
    merged.append(table((2, "b", None)))
    shutil.rmtree(path / "_delta_log")
    write_deltalake(str(path), ROW, configuration=DELETION_VECTORS)
    for number in range(commits):
        write_deltalake(str(path), table((number, "a", None)), mode="append")
    before = merged.log.log.latest_version()
    for writer in (merged.writer, merged.new_writer("new")):
        with pytest.raises(BaseReplaced):
            writer.append(table((3, "c", None)), batch=9)
    with pytest.raises(BaseReplaced):
        merged.rows()
    assert merged.log.log.latest_version() == before


def without_history(path: Path) -> int:
    """Remove the commits of a table up to its newest version but one."""
    table_ = delta(path)
    table_.create_checkpoint()
    for version in range(table_.version()):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    return table_.version()


def grow(path: Path) -> None:
    for number in range(3):
        write_deltalake(str(path), table((10 + number, "a", None)), mode="append")


def test_a_gap_in_the_history_of_the_base_is_refused_while_records_are_unmerged(
    tmp_path: Path,
) -> None:
    merged = made(tmp_path / "t", ROW)
    merged.append(table((2, "b", None)))
    grow(tmp_path / "t")
    without_history(tmp_path / "t")
    for refused in (merged.rows, lambda: merged.append(table((3, "c", None)))):
        with pytest.raises(BaseHistoryGap, match="decide which records are valid"):
            refused()
    assert merged.log.log.latest_version() == 1


def test_a_gap_that_may_hide_a_restore_is_refused_although_no_block_is_live(
    tmp_path: Path,
) -> None:
    """The restore brings a merged record back, and its commit is gone."""
    path = tmp_path / "t"
    merged = made(path, ROW)
    merged.append(table((2, "b", None)))
    merge(merged, path, mark=1)
    assert catch_up(merged.log, now_ms=0) == 2
    assert not state_of(merged.log.snapshot()).live
    delta(path).restore(0)
    grow(path)
    without_history(path)
    for refused in (merged.rows, lambda: merged.append(table((3, "c", None)))):
        with pytest.raises(BaseHistoryGap, match="decide which records are valid"):
            refused()


def test_a_gap_is_harmless_while_the_log_is_empty(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", ROW)
    grow(tmp_path / "t")
    without_history(tmp_path / "t")
    assert len(merged.rows()) == 4
    merged.append(table((1, "A", None)))
    assert merged.rows()[0] == (1, "A", None)


def test_a_gap_is_refused_while_merged_deletes_are_in_force(tmp_path: Path) -> None:
    """With an ordering column they hide rows that arrive later, unless a boundary came between."""
    merged = made(tmp_path / "t", ROW, ordering="v")
    merged.append(table((5, "m", None)), table((1, "b", None)).select(["k", "v"]))
    merge(merged, tmp_path / "t", mark=1)
    write_deltalake(str(tmp_path / "t"), table((1, "a", "late")), mode="append")
    merged.append(table((6, "n", None)))
    # Only the deletes are left.
    merge(merged, tmp_path / "t", mark=2)
    view = merged.open()
    assert view.state.live
    assert not view.state.unmerged
    grow(tmp_path / "t")
    without_history(tmp_path / "t")
    with pytest.raises(BaseHistoryGap):
        merged.rows()


def test_a_boundary_whose_files_are_unknown_is_a_gap(tmp_path: Path) -> None:
    """The commit is there, but not the version that it replaced."""
    path = tmp_path / "t"
    merged = made(path, ROW)
    merged.append(table((2, "b", None)))
    write_deltalake(str(path), ROW, mode="overwrite")
    without_history(path)
    with pytest.raises(BaseHistoryGap):
        merged.rows()


def test_a_view_is_opened_by_time(tmp_path: Path) -> None:
    path = tmp_path / "t"
    merged = made(path, ROW)
    merged.append(table((2, "b", None)))
    date_back(path, 0, minutes=10)
    moment = merged.log.base.snapshot().timestamp_ms
    write_deltalake(str(path), ROW, mode="overwrite")
    found = MergedView.open(merged.log, timestamp_ms=moment + 10)
    assert (found.base.version, found.instant) == (0, 1)
    assert found.scan().read_all().num_rows == 2
    assert merged.rows() == [(1, "a", None)]


def merge(merged: Merged, path: Path, mark: int) -> None:
    """A commit of the base table that says what a LogMerge says; its rows do not matter here."""
    log_id = merged.log.snapshot().metadata.id
    properties = CommitProperties(app_transactions=[Transaction(f"tandem.log:{log_id}", mark)])
    nothing = table((1, "a", None)).slice(0, 0)
    write_deltalake(str(path), nothing, mode="append", commit_properties=properties)


def test_a_writer_that_listed_the_base_before_another_one_looks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the metadata of the log nor the base version that it names goes back."""
    store = in_memory()
    merged = Merged(store)
    quick, log = merged.new_writer("quick"), MergeLog(DeltaLog(store))
    slow = LogWriter(log, "slow", pause=lambda _: None)
    base_listed, log_listed = log.base.update, log.update
    overtaken = threading.Event()

    def list_base(snapshot: Snapshot) -> Snapshot:
        found = base_listed(snapshot)
        if not overtaken.is_set():
            base = merged.log.base
            held = base.snapshot()
            info = commit_info("SET TBLPROPERTIES", {}, now_ms=0, previous=held, blind_append=False)
            base.put_commit(1, [info, Txn("other", 1)], token="other")
            quick.append(table((1, "quick", None)), batch=1)
            overtaken.set()
        return found

    def list_log(snapshot: Snapshot) -> Snapshot:
        assert overtaken.wait(60)
        return log_listed(snapshot)

    monkeypatch.setattr(log.base, "update", list_base)
    monkeypatch.setattr(log, "update", list_log)
    slow.append(table((1, "slow", None)), batch=1)
    assert merged.log.snapshot().txns["tandem.log.base"].version == 1
    assert merged.rows() == [(1, "slow", None)]
    assert [block.last for block in MergedView.open(merged.log).state.unmerged] == [1, 2]


# Other engines


def test_deltalake_reads_the_log_and_refuses_to_write_to_it(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", ROW)
    merged.append(table((2, "b", None)), keys(1))
    log = tmp_path / "t" / "_tandem" / "log"
    found = delta(log).to_pyarrow_table().sort_by("k").to_pylist()
    expected = [{"k": 1, "v": None, "p": None}, {"k": 2, "v": "b", "p": None}]
    assert [{key: row[key] for key in "kvp"} for row in found] == expected
    assert [row["__tandem_deleted"] for row in found] == [True, False]
    before = merged.log.log.latest_version()
    rows = delta(log).to_pyarrow_table()
    for statement in (
        lambda: write_deltalake(str(log), rows, mode="append"),
        lambda: delta(log).delete(),
        lambda: delta(log).update(updates={"v": "'u'"}),
        lambda: delta(log).optimize.compact(),
    ):
        with pytest.raises(DeltaError):
            statement()
    assert merged.log.log.latest_version() == before


def test_every_refusal_is_an_error_of_ours() -> None:
    store = in_memory()
    merged = logged(store)
    store.put(f"_tandem/log/_delta_log/{1:020d}.json", b"{")
    with pytest.raises(TandemError):
        merged.rows()


# A log that cannot be read is a problem of the log: the table itself can be used.


KEYS: dict[str, Any] = {"keys": ["k"]}


def failing(error: type[TandemError], *names: str) -> Any:
    def fault(call: Call) -> None:
        if call.path.startswith("_tandem/log/") and (not names or call.name in names):
            raise error("not now", resource=call.path)

    return fault


def adopted(store: MemoryStore) -> tuple[Table, AdoptedTable]:
    resource = LakeTable.model_validate(
        document("LakeTable", "t", {"location": store.location, "mergeOnRead": KEYS})
    )
    opened = Table(store, DeltaLog(store), resource.id, spec=resource)
    return opened, adopt(opened, SystemClock(), SystemNonces(), probe=False)


@pytest.mark.parametrize(
    ("error", "calls"), [(AccessDenied, ()), (ObjectNotFound, ("get", "head"))]
)
def test_a_log_that_cannot_be_read_is_a_problem_of_the_log(
    error: type[TandemError], calls: tuple[str, ...]
) -> None:
    store = in_memory()
    Merged(store).append(table((1, "a", None)))
    store.fault = failing(error, *calls)
    opened, found = adopted(store)
    assert found.reason is Reason.ADOPTED
    log = TableLog(opened.log)
    assert found.snapshot is not None
    for thoroughly in (True, False):
        log.update(thoroughly=thoroughly)
        log.look(found.snapshot)
        assert (log.exists, log.facts) == (True, None)
        assert "not now" in log.problem
    status = read_log_status(opened, opened.spec, TableStatus())
    assert status is not None
    assert "not now" in (status.problem or "")
    store.fault = None
    log.update(thoroughly=True)
    log.look(found.snapshot)
    assert log.facts is not None
    assert log.problem == ""


def test_a_failure_that_may_pass_is_one_of_the_look() -> None:
    store = in_memory()
    Merged(store).append(table((1, "a", None)))
    store.fault = failing(StorageError)
    with pytest.raises(StorageError):
        TableLog(DeltaLog(store)).update(thoroughly=True)


def test_a_log_that_cannot_be_made_is_a_problem_of_the_table() -> None:
    store = in_memory()
    store.fault = failing(AccessDenied, "put", "put_if_absent")
    with pytest.raises(AccessDenied):
        adopted(store)
