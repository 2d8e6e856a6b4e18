"""What a commit was, by who says so: commits as the engines really write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyroaring import BitMap64

from tandem.delta.actions import (
    Action,
    AddFile,
    Commit,
    CommitInfo,
    DeletionVector,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from tandem.reconcile.classify import classify, describe
from tandem.reconcile.model import ChangeKind
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity

DELTA_RS = {"engineInfo": "delta-rs:py-1.6.6", "clientVersion": "delta-rs.py-1.6.6"}
SPARK = {"engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
TANDEM = {"engineInfo": "tandem/0.1.0"}


def add(path: str, *, data_change: bool = True) -> AddFile:
    return AddFile(path, {}, 10, 0, data_change)


def remove(path: str, *, data_change: bool = True) -> RemoveFile:
    return RemoveFile(path, 0, data_change)


def commit(info: Mapping[str, Any] | None, *actions: Action) -> Commit:
    body = () if info is None else (CommitInfo(info),)
    return Commit(7, 1_700_000_000_000, (*body, *actions))


def row_map(output: str = "out", inputs: tuple[str, ...] = ("a", "b")) -> RowMap:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    for path in inputs:
        builder.add_input(path, 2, BitMap64())
        builder.add_run(path, 0, 2, output)
    return builder.build()


def body(operation: str, engine: Mapping[str, str], mode: str = "", **more: Any) -> dict[str, Any]:
    parameters = {"operationParameters": {"mode": mode} if mode else {}}
    return {"operation": operation, **engine, **parameters, **more}


@pytest.mark.parametrize(
    "info",
    [
        body("WRITE", DELTA_RS, "Append"),
        body("WRITE", SPARK, "Append", isBlindAppend=True),
        body("STREAMING UPDATE", SPARK, isBlindAppend=True),
        body("WRITE", TANDEM, "Append", isBlindAppend=True, tandem={"kind": "TableIngest"}),
    ],
    ids=["delta-rs", "Spark", "streaming", "ours"],
)
def test_blind_appends_are_recognized_unless_they_remove(info: dict[str, Any]) -> None:
    summary = classify(commit(info, add("n")), {})
    assert summary.kind is ChangeKind.BLIND_APPEND
    assert summary.files == {"n"}
    # The same with a removal is an append by name only.
    assert classify(commit(info, add("n"), remove("a")), {}).kind is ChangeKind.CHANGE


def test_an_append_that_merges_a_schema_says_that_the_table_changed() -> None:
    metadata = Metadata("t", "{}", (), {})
    info = body("WRITE", DELTA_RS, "Append")
    summary = classify(commit(info, metadata, add("n")), {})
    assert (summary.kind, summary.table_changed) == (ChangeKind.BLIND_APPEND, ("metadata",))


@pytest.mark.parametrize(
    "info",
    [
        None,
        {},
        body("MERGE", SPARK, isBlindAppend=False),
        body("MERGE", DELTA_RS),
        body("WRITE", SPARK, "Append", isBlindAppend=False),
        body("WRITE", SPARK, "Append"),
        body("WRITE", DELTA_RS, "Overwrite"),
        body("WRITE", {"engineInfo": "unknown/1"}, "Append"),
        body("WRITE", DELTA_RS, "Append", isBlindAppend=False),
        body("WRITE", TANDEM, "Append", isBlindAppend=True, tandem={"kind": "TableUpdate"}),
        body("RESTORE", DELTA_RS),
        body("OPTIMIZE", DELTA_RS),
        body("CREATE TABLE AS SELECT", SPARK, isBlindAppend=True),
    ],
)
def test_commits_that_only_resemble_appends_are_changes(info: dict[str, Any] | None) -> None:
    assert classify(commit(info, add("n")), {}).kind is ChangeKind.CHANGE


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("UPDATE", ChangeKind.NEUTRAL),
        ("DELETE", ChangeKind.NEUTRAL),
        ("ABANDON", ChangeKind.NEUTRAL),
        ("SET TBLPROPERTIES", ChangeKind.NEUTRAL),
        ("VACUUM END", ChangeKind.NEUTRAL),
        ("MERGE", ChangeKind.CHANGE),
        ("RESTORE", ChangeKind.CHANGE),
        ("SOMETHING NEW", ChangeKind.CHANGE),
    ],
)
def test_commits_without_files(operation: str, kind: ChangeKind) -> None:
    protocol = Protocol(1, 2)
    summary = classify(commit(body(operation, SPARK), Txn("a", 1), protocol), {})
    assert (summary.kind, summary.table_changed) == (kind, ("protocol",))


def rewrite_commit(**changes: Any) -> Commit:
    info = body("OPTIMIZE", TANDEM, tandem={"kind": "TableCompaction"})
    return commit(
        {**info, **changes},
        add("out", data_change=False),
        remove("a", data_change=False),
        remove("b", data_change=False),
    )


def test_our_rewrite_with_its_row_map() -> None:
    summary = classify(rewrite_commit(), {"out": row_map()})
    assert summary.kind is ChangeKind.MAPPED_REWRITE
    assert summary.files == {"out", "a", "b"}


def test_a_rewrite_that_says_that_it_changes_rows_is_a_change() -> None:
    info = body("OPTIMIZE", TANDEM, tandem={"kind": "TableCompaction"})
    for says in (
        commit(info, add("out"), remove("a", data_change=False)),
        commit(info, add("out", data_change=False), remove("a")),
    ):
        assert classify(says, {"out": row_map()}).kind is ChangeKind.CHANGE


def test_C6b_a_rewrite_whose_map_is_lost_is_a_change() -> None:
    assert classify(rewrite_commit(), {}).kind is ChangeKind.CHANGE


def test_a_rewrite_that_is_not_what_its_map_says_is_a_change() -> None:
    maps = {"out": row_map(inputs=("a",))}
    assert classify(rewrite_commit(), maps).kind is ChangeKind.CHANGE
    assert classify(rewrite_commit(), {"out": row_map("other")}).kind is ChangeKind.CHANGE
    # Others' commits, also where they copied our tags onto a file.
    for engine in (DELTA_RS, SPARK):
        assert classify(rewrite_commit(**engine), {"out": row_map()}).kind is ChangeKind.CHANGE
    assert (
        classify(rewrite_commit(operation="DELETE"), {"out": row_map()}).kind is ChangeKind.CHANGE
    )


def test_a_new_deletion_vector_names_its_file() -> None:
    vector = DeletionVector("i", "x", 10, 1)
    marked = AddFile("a", {}, 10, 0, True, deletion_vector=vector)
    summary = classify(commit(body("DELETE", SPARK), remove("a"), marked), {})
    assert (summary.kind, set(summary.files)) == (ChangeKind.CHANGE, {"a"})


def test_a_commit_is_described_with_its_writer() -> None:
    text = describe(commit(body("DELETE", DELTA_RS)))
    assert text == "DELETE by delta-rs:py-1.6.6 (version 7, 2023-11-14T22:13:20Z)"
    assert "unknown operation by an unknown engine" in describe(commit(None))
