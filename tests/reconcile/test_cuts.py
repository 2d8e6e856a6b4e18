"""Rewrites that take some rows of a file and leave the others: the rule, line by line; which
commits are mapped rewrites; and rows that others follow through such a commit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from reconcile.alphabet import low
from reconcile.loaded import Table, deletes, updates
from reconcile.replaces import Replace, finish_replace, start_replace
from reconcile.rewrites import finish_rewrite, start_rewrite
from reconcile.statements import finish_statement, start_statement
from tandem.delta.actions import AddFile, Commit, CommitInfo, DeletionVector, RemoveFile
from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile import rewrite as rewrites
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind, FileState
from tandem.reconcile.outcomes import FileDeletes
from tandem.reconcile.rewrite import RewriteDecision, RewriteInput, rewrite
from tandem.reconcile.rules import CUT, InputFate, OutputMask
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity
from tandem.spec.replace import Scope

ROWS = 6
READ = BitMap64([0])
TAKEN = BitMap64([3, 4, 5])
"""Of a file of six rows, whose first one was deleted when read, the last three are taken."""


def the_map(taken: BitMap64 = TAKEN) -> RowMap:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    builder.add_input("a", ROWS, BitMap64(range(ROWS)) - taken)
    builder.add_run("a", 0, ROWS, "out")
    return builder.build()


class View:
    def __init__(self, dead: set[int] | None) -> None:
        self._dead = dead

    def get(self, path: str) -> FileState | None:
        return None if self._dead is None else FileState(path, ROWS, BitMap64(self._dead))


def decided(now: set[int] | None) -> RewriteDecision:
    return rewrite([RewriteInput("a", READ, ROWS, cut=True)], View(now), the_map())


def test_every_change_of_an_input_has_a_rule() -> None:
    assert set(CUT) == set(InputFate)


def test_taken_rows_are_masked_in_the_input() -> None:
    decision = decided({0})
    assert decision.cuts == {"a": FileDeletes("a", ROWS, READ | TAKEN, 3)}
    assert (decision.removes, decision.outputs, decision.masks) == ((), ("out",), {})


def test_more_rows_deleted_only_those_taken_are_masked_in_the_output() -> None:
    decision = decided({0, 1, 4})
    assert decision.cuts == {"a": FileDeletes("a", ROWS, BitMap64([0, 1, 3, 4, 5]), 2)}
    assert decision.masks == {"out": BitMap64([1])}
    assert decision.counts.deletes_remapped == 1


def test_deletes_of_rows_that_stay_leave_the_output_alone() -> None:
    decision = decided({0, 2})
    assert decision.masks == {}
    assert decision.cuts["a"].dead == BitMap64([0, 2, 3, 4, 5])


def test_an_input_that_keeps_no_row_is_removed() -> None:
    decision = decided({0, 1, 2})
    assert (decision.removes, decision.cuts, decision.outputs) == (("a",), {}, ("out",))


def test_taken_rows_that_are_all_deleted_leave_nothing_to_do() -> None:
    decision = decided({0, 3, 4, 5})
    assert decision.superseded
    assert (decision.cuts, decision.outputs) == ({}, ())


@pytest.mark.parametrize("now", [set(), {1}, {1, 3}, None])
def test_fewer_rows_deleted_or_gone_the_input_is_left(now: set[int] | None) -> None:
    assert decided(now).superseded


def test_a_map_that_takes_a_deleted_row_is_refused() -> None:
    inputs = [RewriteInput("a", READ, ROWS, cut=True)]
    with pytest.raises(RowMapInvalid, match="planned state"):
        rewrite(inputs, View({0}), the_map(BitMap64([0, 4])))


def test_I57_counts_refuse_a_cut_that_forgets_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = {**CUT, InputFate.SUPERSET: CUT[InputFate.SAME]}
    monkeypatch.setattr(rewrites, "CUT", forgets)
    assert forgets[InputFate.SUPERSET].mask is OutputMask.NONE
    with pytest.raises(CountMismatch, match="must not change the number of rows"):
        decided({0, 4})


@given(
    st.sets(st.integers(0, ROWS - 1)),
    st.sets(st.integers(0, ROWS - 1)),
    st.none() | st.sets(st.integers(0, ROWS - 1)),
)
def test_I57_a_cut_changes_no_row(read: set[int], chosen: set[int], now: set[int] | None) -> None:
    """Beside the obvious: which rows are live afterwards, in the output or in the input."""
    taken = BitMap64(chosen - read)
    inputs = [RewriteInput("a", BitMap64(read), ROWS, cut=True)]
    row_map = the_map(taken)
    decision = rewrite(inputs, View(now), row_map)
    live = set() if now is None else set(range(ROWS)) - now
    left = set() if "a" in decision.removes else live
    if "a" in decision.cuts:
        left = set(range(ROWS)) - set(decision.cuts["a"].dead)
    moved: list[int] = []
    if decision.outputs:
        shown = BitMap64(range(len(taken))) - decision.masks.get("out", BitMap64())
        moved = list(row_map.backward("out", shown)["a"])
    assert sorted([*left, *moved]) == sorted(live)


# --- Which commits are mapped rewrites -----------------------------------------------------------

VECTORS = {"before": BitMap64([0, 1]), "after": BitMap64([0, 1, 3, 4, 5])}


def vector(name: str) -> DeletionVector:
    return DeletionVector("u", name, 10, len(VECTORS[name]))


def read_vector(found: DeletionVector) -> BitMap64 | None:
    return VECTORS.get(found.path_or_inline)


def cut_commit(*, data_change: bool = False, before: str = "before") -> Commit:
    info = {"operation": "OPTIMIZE", "engineInfo": "tandem/0.1.0", "tandem": {"kind": "x"}}
    return Commit(
        7,
        0,
        (
            CommitInfo(info),
            AddFile("out", {}, 10, 0, False),
            RemoveFile("a", 0, False, vector(before)),
            AddFile("a", {}, 10, 0, data_change, deletion_vector=vector("after")),
        ),
    )


def test_D56_a_cut_is_a_mapped_rewrite() -> None:
    summary = classify(cut_commit(), {"out": the_map()}, read_vector)
    assert summary.kind is ChangeKind.MAPPED_REWRITE
    assert summary.files == {"a", "out"}


@pytest.mark.parametrize(
    "found",
    [
        lambda: classify(cut_commit(), {"out": the_map(BitMap64([3, 4]))}, read_vector),
        lambda: classify(cut_commit(), {"out": the_map(BitMap64([2, 3, 4, 5]))}, read_vector),
        lambda: classify(cut_commit(before="after"), {"out": the_map(BitMap64([2]))}, read_vector),
        lambda: classify(cut_commit(data_change=True), {"out": the_map()}, read_vector),
        lambda: classify(cut_commit(), {}, read_vector),
        lambda: classify(cut_commit(), {"out": the_map()}, lambda _: None),
        lambda: classify(cut_commit(), {"out": the_map()}),
    ],
    ids=["more", "less", "other", "data change", "no map", "vector gone", "no vectors"],
)
def test_a_cut_that_is_not_what_its_map_says_is_a_change(found: Callable[[], object]) -> None:
    assert getattr(found(), "kind", None) is ChangeKind.CHANGE


# --- Rows that others follow through a cut -------------------------------------------------------


@pytest.fixture
def straddling() -> Table:
    """A file with rows of two chunks, below 5 and above, and one of the lower chunk."""
    table = Table()
    table.load(1, 7, 3, 9)
    table.load(2, 4)
    return table


def cut(table: Table) -> rewrites.RewriteDecision:
    return finish_rewrite(table.world, start_rewrite(table.world, table.visible(), 99, takes=low))


def test_D56_what_is_left_of_a_file_that_was_cut_is_valid(straddling: Table) -> None:
    decision = cut(straddling)
    assert list(decision.cuts) == ["f1"]
    assert decision.removes == ("f2",)
    assert straddling.values() == [1, 2, 3, 4, 7, 9]
    straddling.check()


@pytest.mark.parametrize("value", [3, 9])
@pytest.mark.parametrize("update_first", [True, False])
def test_I57_an_update_follows_its_row_through_a_cut(
    straddling: Table, value: int, update_first: bool
) -> None:
    world = straddling.world
    job = start_rewrite(world, straddling.visible(), 99, takes=low)
    running = start_statement(world, updates(value, 50))
    if update_first:
        assert finish_statement(world, running) is not None
        finish_rewrite(world, job)
    else:
        finish_rewrite(world, job)
        committed = finish_statement(world, running)
        assert committed is not None
        assert committed.progress.rows_evaluated == 0  # carried, not evaluated again
    assert straddling.values() == sorted([*({1, 2, 3, 4, 7, 9} - {value}), 50])
    straddling.check()


@pytest.mark.parametrize("delete_first", [True, False])
def test_I57_a_delete_of_taken_rows_and_of_rows_that_stay(
    straddling: Table, delete_first: bool
) -> None:
    world = straddling.world
    job = start_rewrite(world, straddling.visible(), 99, takes=low)
    statements = [start_statement(world, deletes(value)) for value in (3, 9)]
    if not delete_first:
        finish_rewrite(world, job)
    for running in statements:
        assert finish_statement(world, running) is not None
    if delete_first:
        finish_rewrite(world, job)
    assert straddling.values() == [1, 2, 4, 7]
    straddling.check()


def test_D56_two_cuts_share_a_file(straddling: Table) -> None:
    world = straddling.world
    one = start_rewrite(world, ["f1"], 99, takes=low)
    other = start_rewrite(world, ["f1"], 99, takes=lambda row: not low(row))
    assert list(finish_rewrite(world, one).cuts) == ["f1"]
    decision = finish_rewrite(world, other)
    assert (decision.removes, decision.cuts) == (("f1",), {})
    assert straddling.values() == [1, 2, 3, 4, 7, 9]
    straddling.check()


@pytest.mark.parametrize("scope", list(Scope))
def test_I57_a_replace_knows_the_ages_of_rows_that_were_cut(
    straddling: Table, scope: Scope
) -> None:
    """Old rows of both halves are replaced; a late row of either stays, at start."""
    world = straddling.world
    running = start_replace(world, Replace("all", scope, (100,), low=0, high=99))
    straddling.load(0, 8)
    cut(straddling)
    assert finish_replace(world, running) is not None
    late = [0, 8] if scope is Scope.AT_START else []
    assert straddling.values() == sorted([*late, 100])
    straddling.check()
