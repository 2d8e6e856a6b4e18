"""A merge in the rule for statements: deletes and updates mixed, rows that it found nowhere, and
what of it is executed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tandem.errors import CountMismatch
from tandem.reconcile.conflicts import Attempts
from tandem.reconcile.matches import FileMatches, InsertFile, RoundResult, round_result
from tandem.reconcile.model import ChangeKind, CommitSummary, FileState, FileView
from tandem.reconcile.statement import (
    Evaluate,
    Policy,
    ReadyToCommit,
    Reexecute,
    StatementConflict,
    Views,
    absorb,
    decide,
    start,
)
from tandem.rowmap.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spec.update import Isolation

MERGE = Policy(inserts=True)


class View:
    """Files by name: how many rows, and which are dead."""

    def __init__(self, **files: tuple[int, Sequence[int]]) -> None:
        self._files = files

    def get(self, path: str) -> FileState | None:
        found = self._files.get(path)
        return None if found is None else FileState(path, found[0], BitMap64(found[1]))


def views(**by_version: FileView) -> Views:
    return lambda version: by_version.get(f"v{version}")


def change(version: int, *files: str, kind: ChangeKind = ChangeKind.CHANGE) -> CommitSummary:
    return CommitSummary(version, kind, frozenset(files), f"the commit of version {version}")


def result(
    rows: Mapping[str, Mapping[int, int | None]],
    *,
    sizes: Sequence[int] = (),
    fresh: Sequence[InsertFile] = (),
    names: str = "i",
) -> RoundResult:
    """`rows` has by file what became of each matched position: None deleted, else the number of
    its row, counted through insert files of these sizes."""
    places = [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    matches = {}
    for path, found in rows.items():
        where = [(-1, -1) if n is None else places[n] for n in found.values()]
        columns = [list(found), [w[0] for w in where], [w[1] for w in where]]
        matches[path] = FileMatches(*(np.array(c, np.int64) for c in columns))
    inserts = tuple(InsertFile(f"{names}{n}", size) for n, size in enumerate(sizes))
    return RoundResult(matches, inserts, tuple(fresh), merged=True)


MIXED = result({"a": {0: None, 1: 0, 3: 1}}, sizes=[2], fresh=[InsertFile("f", 5)])


def test_deletes_updates_and_inserts_are_committed_together() -> None:
    outcome = decide(
        start(3, MIXED), [], view=views(v3=View(a=(4, [2]))), row_maps={}, policy=MERGE
    )
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["a"].is_whole
    assert (outcome.rows_matched, outcome.rows_updated) == (3, 2)
    assert (outcome.inserts, outcome.fresh, dict(outcome.masks)) == (("i0",), ("f",), {})


def test_a_merge_follows_rows_through_a_compaction_and_leaves_later_appends_alone() -> None:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    builder.add_input("b", 2)
    builder.add_input("a", 4, BitMap64([2]))
    builder.add_run("b", 0, 2, "o")
    builder.add_run("a", 0, 4, "o")
    history = views(v3=View(a=(4, [2]), b=(2, [])), v5=View(o=(5, []), c=(4, [])))
    commits = [
        change(4, "a", "b", "o", kind=ChangeKind.MAPPED_REWRITE),
        change(5, "c", kind=ChangeKind.BLIND_APPEND),
    ]
    maps = {"o": builder.build()}
    outcome = decide(start(3, MIXED), commits, view=history, row_maps=maps, policy=MERGE)
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["o"].dead == BitMap64([2, 3, 4])
    assert (outcome.moved, outcome.rows_matched, outcome.rows_updated) == (3, 3, 2)
    serializable = Policy(Isolation.SERIALIZABLE, inserts=True)
    again = decide(start(3, MIXED), commits, view=history, row_maps=maps, policy=serializable)
    assert isinstance(again, Reexecute)
    assert again.at == 5


@pytest.mark.parametrize(
    "commit",
    [
        change(4, "a"),
        change(4),  # a merge that did nothing: it decided by rows that it did not find
        change(4, "z"),  # nothing of ours
        change(4, "a", kind=ChangeKind.GAP),
    ],
)
def test_a_table_change_means_executing_again_at_the_latest_version(commit: CommitSummary) -> None:
    later = change(5, "c", kind=ChangeKind.BLIND_APPEND)
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [2])), v5=View(a=(4, [2]), c=(1, [])))
    outcome = decide(start(3, MIXED), [commit, later], view=history, row_maps={}, policy=MERGE)
    assert isinstance(outcome, Reexecute)
    assert (outcome.at, outcome.attempts) == (5, Attempts(1, 1))
    assert "and recorded no matches is never evaluated in part" in outcome.why
    # A caller that omits it from the policy does not get half a merge either.
    forgotten = decide(start(3, MIXED), [commit], view=history, row_maps={}, policy=Policy())
    assert isinstance(forgotten, Reexecute)


def test_executions_are_counted() -> None:
    progress = start(3, MIXED, attempts=Attempts(4, 4))
    outcome = decide(progress, [change(4, "a")], view=views(), row_maps={}, policy=MERGE)
    assert isinstance(outcome, StatementConflict)
    assert "the commit of version 4" in outcome.why


def test_without_inserts_rows_are_answered_as_those_of_an_update() -> None:
    """Row 0 keeps its result, row 3 is gone, and with it its insert; row 1 of b is evaluated."""
    found = result({"a": {0: None, 1: 0, 3: 1}}, sizes=[2])
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [2, 3]), b=(2, [0])))
    policy = Policy(inserts=False)
    asked = decide(start(3, found), [change(4, "a", "b")], view=history, row_maps={}, policy=policy)
    assert isinstance(asked, Evaluate)
    assert (asked.at, dict(asked.rows)) == (4, {"b": BitMap64([1])})
    more = result({"b": {1: 0}}, sizes=[1], names="j")
    outcome = decide(absorb(asked, more), [], view=history, row_maps={}, policy=policy)
    assert isinstance(outcome, ReadyToCommit)
    assert {path: file.dead for path, file in outcome.deletes.items()} == {
        "a": BitMap64([0, 1, 2, 3]),
        "b": BitMap64([0, 1]),
    }
    assert (outcome.rows_matched, outcome.rows_updated, outcome.progress.lost) == (3, 2, 1)
    assert (outcome.inserts, dict(outcome.masks)) == (("i0", "j0"), {"i0": BitMap64([1])})


def test_an_incomplete_merge_result_is_refused() -> None:
    asked = Evaluate(4, {"a": BitMap64([1])}, start(3, MIXED))
    for progress, found in ((start(3, MIXED), RoundResult()), (start(3, RoundResult()), MIXED)):
        with pytest.raises(ValueError, match="rounds of a merge"):
            absorb(Evaluate(asked.at, asked.rows, progress), found)
    with pytest.raises(CountMismatch, match="inserted what it did not find"):
        absorb(asked, result({}, fresh=[InsertFile("g", 1)]))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (result({"a": {1: 0}}, sizes=[2]), "insert as many"),
        (result({"a": {1: None}}, sizes=[1]), "insert as many"),
        (result({"a": {1: 0}}, sizes=[1], fresh=[InsertFile("i0", 1)]), "names a file twice"),
        (RoundResult(fresh=(InsertFile("f", 1),)), "Only a merge"),
        (result({"a": {1: 0, 2: 0}}, sizes=[2]), "share"),
    ],
)
def test_the_counts_of_a_merge_must_add_up(found: RoundResult, message: str) -> None:
    with pytest.raises(CountMismatch, match=message):
        start(3, found)


@pytest.mark.parametrize(
    ("output", "place", "message"),
    [
        ([0, None], [0, 0], "not there"),  # deleted, and yet somewhere
        ([0, 1], [0, 0], "not there"),
        ([0, None], [1, None], "beyond"),
        ([None, None], [None, None], "insert as many"),
    ],
)
def test_contradictory_matches_of_a_merge_are_refused(
    output: list[int | None], place: list[int | None], message: str
) -> None:
    table = pa.table(
        {
            "input": pa.array([0, 0], pa.int32()),
            "position": pa.array([1, 2], pa.int64()),
            "output": pa.array(output, pa.int32()),
            "output_position": pa.array(place, pa.int64()),
        }
    )
    with pytest.raises(CountMismatch, match=message):
        round_result(table, ["a"], [InsertFile("i", 1)], merged=True)


def test_a_merge_that_lost_a_row_is_not_published() -> None:
    """The rule never drops a merged row; if a view lies, the counts notice."""
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [0, 2])))
    lies = change(4, "a", kind=ChangeKind.MAPPED_REWRITE)
    with pytest.raises(CountMismatch, match="Matched rows are gone"):
        decide(start(3, MIXED), [lies], view=history, row_maps={}, policy=MERGE)


@given(
    fates=st.lists(st.sampled_from(["keep", "delete", "update"]), min_size=1, max_size=12),
    cut=st.integers(1, 5),
    moved=st.booleans(),
)
def test_every_row_is_accounted_for(fates: list[str], cut: int, moved: bool) -> None:
    """What is kept stays live, what is deleted or updated is dead, wherever the rows went."""
    updates = [p for p, fate in enumerate(fates) if fate == "update"]
    rows: dict[int, int | None] = {p: None for p, fate in enumerate(fates) if fate == "delete"}
    rows |= {p: n for n, p in enumerate(updates)}
    sizes = [len(updates[i : i + cut]) for i in range(0, len(updates), cut)]
    found = result({"a": dict(sorted(rows.items()))} if rows else {}, sizes=sizes)
    files = {"a": (len(fates), ())}
    history = {"v3": View(**files)}
    commits, maps, home = [], {}, "a"
    if moved:
        builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
        builder.add_input("a", len(fates))
        builder.add_run("a", 0, len(fates), "o")
        maps, home = {"o": builder.build()}, "o"
        commits = [change(4, "a", "o", kind=ChangeKind.MAPPED_REWRITE)]
        history["v4"] = View(o=(len(fates), ()))
    outcome = decide(start(3, found), commits, view=views(**history), row_maps=maps, policy=MERGE)
    assert isinstance(outcome, ReadyToCommit)
    dead = outcome.deletes[home].dead if rows else BitMap64()
    assert dead == BitMap64(p for p, fate in enumerate(fates) if fate != "keep")
    assert (outcome.rows_matched, outcome.rows_updated) == (len(rows), len(updates))
    assert len(outcome.inserts) == len(sizes)
