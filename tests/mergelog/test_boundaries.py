"""What a commit of the base table means for the log: a table of commits as engines write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tandem.delta.actions import Action, AddFile, Commit, CommitInfo, Metadata, RemoveFile, Txn
from tandem.errors import BaseReplaced
from tandem.mergelog.boundaries import (
    BaseChange,
    BaseFiles,
    MergedUpTo,
    RestoreByTime,
    RestoredTo,
    Unaffected,
    Voided,
    advance,
    classify,
)
from tandem.mergelog.versions import Block, BlockLogState

LOG = "the-log"
FILES = BaseFiles(frozenset({"a", "b"}), frozenset({"removed"}))
PARTITIONED = BaseFiles(FILES.live, FILES.removed, partitioned=True)


def commit(
    operation: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    removes: Sequence[str] = (),
    adds: Sequence[str] = (),
    read: int | None = None,
    table_id: str | None = None,
    txns: Mapping[str, int] | None = None,
    version: int = 9,
) -> Commit:
    body: dict[str, Any] = {"operation": operation, "operationParameters": dict(parameters or {})}
    if read is not None:
        body["readVersion"] = read
    actions: list[Action] = [CommitInfo(body)]
    actions += [RemoveFile(path, 0, data_change=True) for path in removes]
    actions += [AddFile(path, {}, 1, 0, data_change=True) for path in adds]
    actions += [Txn(app, number) for app, number in (txns or {}).items()]
    if table_id is not None:
        actions.append(Metadata(table_id, "{}", (), {}))
    return Commit(version, 0, tuple(actions))


def meaning(found: Commit, files: BaseFiles = FILES) -> Any:
    return classify(found, lambda _: files, LOG)


@dataclass(frozen=True)
class Case:
    """`removes` and `adds` are single letters."""

    operation: str
    parameters: Mapping[str, Any]
    removes: str
    adds: str
    expected: Any
    files: BaseFiles = FILES


U, V = Unaffected(), Voided()
OVERWRITE = {"mode": "Overwrite"}
DYNAMIC = {"mode": "Overwrite", "partitionBy": "[]", "isDynamicPartitionOverwrite": True}
CASES = [
    # An append, or a statement on some rows.
    Case("WRITE", {"mode": "Append"}, "", "c", U),
    Case("WRITE", {}, "", "c", U),
    Case("STREAMING UPDATE", {"outputMode": "Append", "queryId": "q"}, "", "c", U),
    Case("COPY INTO", {}, "", "c", U),
    Case("UPDATE", {"predicate": '["(k#1L = 1)"]'}, "ab", "cd", U),
    Case("MERGE", {"mergePredicate": "t.k = s.k"}, "ab", "c", U),
    Case("DELETE", {"predicate": '["(k#11002L > 0)"]'}, "ab", "", U),
    Case("DELETE", {"predicate": "k > 0"}, "ab", "", U),
    Case("WRITE", {**OVERWRITE, "predicate": "k = 1"}, "a", "c", U),
    Case("WRITE", {**OVERWRITE, "partitionBy": "[]", "predicate": "(p <=> 'x')"}, "ab", "c", U),
    Case("WRITE", DYNAMIC, "a", "c", U, PARTITIONED),
    Case("WRITE", DYNAMIC, "ab", "c", U, PARTITIONED),
    Case("WRITE", {**DYNAMIC, "isDynamicPartitionOverwrite": "true"}, "a", "c", U, PARTITIONED),
    Case("CREATE OR REPLACE TABLE AS SELECT", DYNAMIC, "a", "c", U, PARTITIONED),
    # The rows stay.
    Case("OPTIMIZE", {"predicate": "[]", "zOrderBy": '["k"]'}, "ab", "c", U),
    Case("REORG", {"predicate": "[]", "applyPurge": True}, "ab", "c", U),
    Case("VACUUM START", {}, "", "", U),
    Case("VACUUM END", {"status": "COMPLETED"}, "", "", U),
    Case("SET TBLPROPERTIES", {"properties": "{}"}, "", "", U),
    Case("ADD COLUMNS", {"columns": "[]"}, "", "", U),
    # The table as a whole.
    Case("WRITE", OVERWRITE, "ab", "c", V),
    Case("WRITE", {**OVERWRITE, "partitionBy": "[]"}, "ab", "", V),
    Case("WRITE", {**OVERWRITE, "partitionBy": "[]", "predicate": "true"}, "ab", "c", V),
    Case("WRITE", {**OVERWRITE, "canOverwriteSchema": True}, "ab", "c", V),
    Case("WRITE", DYNAMIC, "ab", "c", V),
    Case("STREAMING UPDATE", {"outputMode": "Complete", "queryId": "q"}, "ab", "c", V),
    Case("DELETE", {}, "ab", "", V),
    Case("DELETE", {"predicate": None}, "ab", "", V),
    Case("DELETE", {"predicate": "true"}, "ab", "", V),
    Case("DELETE", {"predicate": "[]"}, "ab", "", V),
    Case("DELETE", {"predicate": '["true"]'}, "ab", "", V),
    Case("TRUNCATE", {}, "ab", "", V),
    Case("REPLACE TABLE", {"partitionBy": "[]"}, "ab", "", V),
    Case("REPLACE TABLE AS SELECT", {"partitionBy": "[]"}, "ab", "c", V),
    Case("CREATE OR REPLACE TABLE", {"mode": "Overwrite"}, "ab", "", V),
    Case("CREATE OR REPLACE TABLE AS SELECT", {"isV1SaveAsTableOverwrite": True}, "ab", "c", V),
    Case("CLONE", {"source": "x"}, "ab", "c", V),
    Case("TRUNCATE", {}, "", "", V, BaseFiles(frozenset())),
    # Restores.
    Case("RESTORE", {"version": 3, "timestamp": None}, "b", "", RestoredTo(3)),
    Case("RESTORE", {"version": "3"}, "b", "", RestoredTo(3)),
    Case("RESTORE", {"version": None, "timestamp": "2026-01-02 03:04:05.678"}, "b", "",
         RestoreByTime("2026-01-02 03:04:05.678")),
    Case("RESTORE", {"datetime": "1767322800000"}, "b", "", RestoreByTime("1767322800000")),
    # Unknown operations that could be neither an overwrite nor a restore.
    Case("", {}, "", "c", U),
    Case("LIQUID MAGIC", {}, "a", "c", U),
    Case("LIQUID MAGIC", {}, "", "a", U),
    Case("LIQUID MAGIC", {}, "", "c", U, BaseFiles(frozenset())),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operation} {case.parameters}")
def test_a_commit_means_what_its_operation_says(case: Case) -> None:
    found = commit(case.operation, case.parameters, removes=case.removes, adds=case.adds)
    assert meaning(found, case.files) == case.expected


REFUSED = [
    Case("WRITE", OVERWRITE, "a", "c", "still live"),
    Case("WRITE", DYNAMIC, "a", "c", "still live"),
    Case("TRUNCATE", {}, "a", "", "still live"),
    Case("DELETE", {}, "", "", "still live"),
    Case("DELETE", {"predicate": "true"}, "ab", "b", "still live"),
    Case("REPLACE TABLE", {}, "b", "", "still live"),
    Case("CLONE", {}, "", "c", "still live"),
    Case("RESTORE", {}, "b", "", "version None, time None"),
    Case("RESTORE", {"version": 9}, "b", "", "version 9"),
    Case("RESTORE", {"version": -1}, "b", "", "version -1"),
    Case("RESTORE", {"version": "three"}, "b", "", "version three"),
    Case("", {}, "ab", "c", "it removes every file"),
    Case("LIQUID MAGIC", {}, "ab", "", "it removes every file"),
    Case("REWIND", {}, "a", "", "it adds removed again"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.operation} {case.parameters}")
def test_a_commit_that_contradicts_its_operation_is_refused(case: Case) -> None:
    adds = ["removed"] if case.operation == "REWIND" else case.adds
    found = commit(case.operation, case.parameters, removes=case.removes, adds=adds)
    with pytest.raises(BaseReplaced) as caught:
        meaning(found, case.files)
    assert case.expected in caught.value.found
    assert "version 9" in str(caught.value)
    assert "tandem log resolve" in caught.value.remedy


def test_an_overwrite_replaces_the_files_that_it_read() -> None:
    """Delta commits it after a blind append without a conflict; the appended file stays."""
    at = {7: FILES, 8: BaseFiles(frozenset({"a", "b", "appended"}))}
    found = commit("WRITE", OVERWRITE, removes="ab", adds="c", read=7)
    assert classify(found, at.__getitem__, LOG) == Voided()
    unread = commit("WRITE", OVERWRITE, removes="ab", adds="c")
    with pytest.raises(BaseReplaced):
        classify(unread, at.__getitem__, LOG)


@pytest.mark.parametrize("read", [-1, 9, 10, "8", None])
def test_a_read_version_that_cannot_be_is_ignored(read: Any) -> None:
    asked = []

    def files_at(version: int) -> BaseFiles:
        asked.append(version)
        return FILES

    classify(commit("WRITE", OVERWRITE, removes="ab", read=read), files_at, LOG)
    assert asked == [8]


def test_an_ordinary_commit_needs_no_look_at_the_files() -> None:
    def files_at(version: int) -> BaseFiles:
        raise AssertionError(version)

    assert classify(commit("OPTIMIZE", removes="ab", adds="c"), files_at, LOG) == Unaffected()
    assert classify(commit("RESTORE", {"version": 1}), files_at, LOG) == RestoredTo(1)


def test_a_merge_of_this_log_moves_the_mark_whatever_its_operation() -> None:
    txns = {"tandem.log:the-log": 7, "tandem.log:another": 8}
    assert meaning(commit("MERGE", removes="ab", txns=txns)) == MergedUpTo(7)
    assert meaning(commit("MERGE", txns={"tandem.log:another": 8})) == Unaffected()


def test_a_commit_without_a_commit_info_is_one_of_an_unknown_operation() -> None:
    bare = Commit(9, 0, tuple(RemoveFile(path, 0, data_change=True) for path in "ab"))
    with pytest.raises(BaseReplaced, match="an unknown operation"):
        meaning(bare)
    odd = Commit(9, 0, (CommitInfo({"operation": None, "operationParameters": "text"}),))
    assert meaning(odd) == Unaffected()


# The fold

ONE = Block("one", 1, 1, 1)
TWO = Block("two", 2, 3, 1, deletes=1)
BEFORE = BlockLogState("base", 5, mark=0, live={"one": ONE, "two": TWO})


def no_history(version: int) -> BlockLogState:
    raise AssertionError(version)


def test_the_id_of_another_table_is_refused_without_a_boundary() -> None:
    assert meaning(commit("SET TBLPROPERTIES", table_id="base")) == Unaffected("base")
    same = advance(BEFORE, [Unaffected("base")], no_history, ordered=False)
    assert same == BlockLogState("base", 6, 0, BEFORE.live)
    with pytest.raises(BaseReplaced, match="metadata of another table"):
        advance(BEFORE, [Unaffected("other")], no_history, ordered=False)


def test_a_boundary_may_bring_the_id_of_another_table() -> None:
    assert meaning(commit("REPLACE TABLE", removes="ab", table_id="new")) == Voided("new")
    changes: list[BaseChange] = [Voided("new"), Unaffected("new")]
    assert advance(BEFORE, changes, no_history, ordered=True) == BlockLogState("new", 7, 0)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_merge_drops_blocks_up_to_its_mark_but_keeps_deletes_with_an_ordering_column(
    ordered: bool,
) -> None:
    found = advance(BEFORE, [MergedUpTo(2)], no_history, ordered=ordered)
    assert found == BlockLogState("base", 6, 2, {"two": TWO})
    found = advance(BEFORE, [MergedUpTo(3)], no_history, ordered=ordered)
    assert found == BlockLogState("base", 6, 3, {"two": TWO} if ordered else {})


def test_a_restore_brings_the_state_of_its_version_back() -> None:
    then = BlockLogState("first", 3, -1, {"one": ONE})
    asked = []

    def history(version: int) -> BlockLogState:
        asked.append(version)
        return then

    found = advance(BEFORE, [Voided("new"), RestoredTo(3)], history, ordered=False)
    assert found == BlockLogState("first", 7, -1, {"one": ONE})
    assert asked == [3]
