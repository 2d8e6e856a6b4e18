"""Invariants by name, and updates through generations of files, in their pure form.

Where two operations may commit in either order, both run. Layouts are those of
`reconcile.alphabet`: rows keep their order, are sorted, or are put into z-order.
"""

from __future__ import annotations

from itertools import permutations, product

import pytest
from pyroaring import BitMap64

from reconcile.alphabet import RANDOM_UPDATE, UPSERT, by_value, z_order
from reconcile.loaded import Table, deletes, updates
from reconcile.obvious import ObviousMap
from reconcile.rewrites import Layout, finish_rewrite, start_rewrite
from reconcile.statements import Running, Statement, decide, finish_statement, start_statement
from reconcile.theirs import append, foreign, foreign_optimize, purge, restore
from support.present import present
from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile.rewrite import RewriteDecision, rewrite
from tandem.reconcile.statement import ReadyToCommit, Reexecute

ALL = [1, 2, 3, 11, 12, 13, 21, 22, 23, 31, 32, 33]

LAYOUTS: list[Layout | None] = [None, by_value, z_order]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["in order", "sorted", "z-order"])


@pytest.fixture
def table() -> Table:
    """Four segments of three rows."""
    loaded = Table()
    for n in range(4):
        loaded.load(n * 10 + 1, n * 10 + 2, n * 10 + 3)
    return loaded


def compact(
    table: Table, paths: list[str], per_output: int = 99, layout: Layout | None = None
) -> RewriteDecision:
    decision = finish_rewrite(
        table.world, start_rewrite(table.world, paths, per_output, layout=layout)
    )
    table.check()
    return decision


def finish(table: Table, running: Running) -> ReadyToCommit:
    commit = present(finish_statement(table.world, running))
    table.check()
    return commit


# --- Through generations ------------------------------------------------------------------------


def test_C3b_an_update_is_retargeted_through_a_split_and_a_merge_of_files(table: Table) -> None:
    """Three rows a file, one row a file, everything in one file."""
    running = start_statement(table.world, updates(12, 99))
    compact(table, table.visible(), 1)
    assert len(table.visible()) == 12
    (output,) = compact(table, table.visible()).outputs
    commit = finish(table, running)
    assert commit.moved == 1
    assert [*commit.deletes] == [output]
    assert table.values() == sorted([x for x in ALL if x != 12] + [99])


@pytest.mark.parametrize("per_output", [1, 2, 5, 99])
def test_C3b_an_update_is_retargeted_through_a_z_order_after_a_bin_pack(
    table: Table, per_output: int
) -> None:
    running = start_statement(table.world, updates(22, 99))
    compact(table, table.visible()[:3])
    compact(table, table.visible(), per_output, z_order)
    commit = finish(table, running)
    assert commit.rows_matched == commit.moved == 1
    assert table.values() == sorted([x for x in ALL if x != 22] + [99])


def test_C3b_some_updates_finish_between_two_compactions_and_some_after(table: Table) -> None:
    """seg1 → 0.1 → 0.2, an update before each of them, and one that began before all."""
    early = start_statement(table.world, updates(1, 101))
    first = start_rewrite(table.world, table.visible()[:2], 99)
    table.run(updates(11, 111))
    middle = start_statement(table.world, updates(12, 112))
    finish_rewrite(table.world, first)
    second = start_rewrite(table.world, table.visible(), 2, layout=by_value)
    table.run(updates(21, 121))
    finish(table, middle)
    finish_rewrite(table.world, second)
    late = start_statement(table.world, updates(22, 122))
    compact(table, table.visible(), 99, z_order)
    finish(table, late)
    assert finish(table, early).rows_matched == 1
    changed = {1: 101, 11: 111, 12: 112, 21: 121, 22: 122}
    assert table.values() == sorted(changed.get(x, x) for x in ALL)


@layouts
def test_C2b_updates_before_between_and_after_compactions_of_compactions(
    table: Table, layout: Layout | None
) -> None:
    """U1 seg1, U2 seg2, U3 again seg1: before 0.1 ends, and again before 0.2 ends."""
    for round_, per_output in enumerate((2, 99)):
        job = start_rewrite(table.world, table.visible(), per_output, layout=layout)
        for value in (12, 22, 11):
            table.run(updates(value + 100 * round_, value + 100 * (round_ + 1)))
        decision = finish_rewrite(table.world, job)
        # A file of an update that the next one emptied is gone, not marked.
        assert decision.counts.deletes_remapped + decision.counts.rows_masked == 3
        table.check()
    changed = {12: 212, 22: 222, 11: 211}
    assert table.values() == sorted(changed.get(x, x) for x in ALL)


# --- I-4: the order of operations that do not touch each other ----------------------------------


def test_I4_the_order_of_commits_does_not_change_the_rows() -> None:
    """Two compactions, a segment rewrite, an ingest and an update of other rows, each way."""
    results = set()
    for order in permutations(range(5)):
        table = Table()
        files = [table.load(n * 10 + 1, n * 10 + 2) for n in range(5)]
        world = table.world
        jobs = (
            start_rewrite(world, files[:2], 99),
            start_rewrite(world, files[2:3], 99, layout=by_value),
            start_rewrite(world, files[3:], 1, layout=z_order),
        )
        running = start_statement(world, updates(12, 99))
        for number in order:
            if number < 3:
                finish_rewrite(world, jobs[number])
            elif number == 3:
                assert finish_statement(world, running) is not None
            else:
                append(51, 52)(world, None)
        results.add(tuple(table.values()))
    assert results == {(1, 2, 11, 21, 22, 31, 32, 41, 42, 51, 52, 99)}


# --- I-13 … I-21: compaction and update ---------------------------------------------------------


def test_I13_deletes_and_inserts_of_an_update_are_one_commit(table: Table) -> None:
    commit = table.run(Statement("update", lambda x: x < 20, lambda x, _: x + 100))
    before, after = table.world.views[-2:]
    assert set(after) - set(before) == set(commit.inserts)
    assert not set(commit.inserts) & set(commit.deletes)
    assert [len(table.world.rows_at(v)) for v in (-2, -1)] == [12, 12]
    assert commit.rows_matched == sum(deleted.deleted for deleted in commit.deletes.values()) == 6


@layouts
@pytest.mark.parametrize("update_first", [True, False])
def test_I14_the_second_committer_reconciles(
    table: Table, layout: Layout | None, update_first: bool
) -> None:
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    running = start_statement(table.world, updates(12, 99))
    if update_first:
        finish(table, running)
        assert finish_rewrite(table.world, job).counts.deletes_remapped == 1
    else:
        finish_rewrite(table.world, job)
        assert finish(table, running).moved == 1
    table.check()
    assert table.values() == sorted([x for x in ALL if x != 12] + [99])


@layouts
def test_I15_replay_touches_no_file_of_the_update_or_after_it(
    table: Table, layout: Layout | None
) -> None:
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    commit = table.run(Statement("plus", lambda x: x < 20, lambda x, _: x + 1))
    later = table.load(12, 13)
    before = dict(table.world.views[-1])
    decision = finish_rewrite(table.world, job)
    after = table.world.views[-1]
    for path in (*commit.inserts, later):
        assert after[path] == before[path]
    assert set(decision.masks) <= set(decision.outputs)
    table.check()


@layouts
def test_I16_updates_are_replayed_in_order_once_and_again_the_same(
    table: Table, layout: Layout | None
) -> None:
    """The second changes what the first made, so another order would show."""
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    table.run(updates(12, 50))
    table.run(updates(50, 60))
    view = present(table.world.view(table.world.latest))
    assert rewrite(job.inputs, view, job.row_map) == rewrite(job.inputs, view, job.row_map)
    table.run(updates(60, 12))
    decision = finish_rewrite(table.world, job)
    assert decision.counts.deletes_remapped == 1
    table.check()
    assert table.values() == ALL


@layouts
def test_I17_as_many_rows_are_masked_as_were_deleted(table: Table, layout: Layout | None) -> None:
    table.run(deletes(11))  # before it is read: not replayed
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    gone = table.run(deletes(2, 12, 22, 32))
    decision = finish_rewrite(table.world, job)
    assert decision.counts.deletes_remapped == gone.rows_matched == 4
    assert sum(len(mask) for mask in decision.masks.values()) == 4
    table.check()


def test_I17_a_map_that_loses_a_row_publishes_nothing(table: Table) -> None:
    job = start_rewrite(table.world, table.visible(), 5, layout=by_value)
    table.run(deletes(12))
    files = {file.path: (file.rows, file.dead_at_read) for file in job.inputs}
    view = present(table.world.view(table.world.latest))
    for lost in job.places:
        lying = ObviousMap(files, [place for place in job.places if place is not lost])
        with pytest.raises((CountMismatch, RowMapInvalid)):
            rewrite(job.inputs, view, lying)


def test_I18_a_random_statement_is_carried_by_position_or_executed_again(table: Table) -> None:
    running = start_statement(table.world, RANDOM_UPDATE)
    compact(table, table.visible(), 2, z_order)
    assert isinstance(decide(table.world, running), ReadyToCommit)
    foreign(deletes(12), vectors=True)(table.world, None)
    assert isinstance(decide(table.world, running), Reexecute)
    finish(table, running)


def test_I18_a_compaction_replays_a_random_update_by_position(table: Table) -> None:
    job = start_rewrite(table.world, table.visible(), 5, layout=z_order)
    table.run(RANDOM_UPDATE)
    now = table.values()
    finish_rewrite(table.world, job)
    assert table.values() == now
    table.check()


@pytest.mark.parametrize(("first", "second", "third"), list(product(LAYOUTS, repeat=3)))
def test_I19_retargeting_is_transitive(
    table: Table, first: Layout | None, second: Layout | None, third: Layout | None
) -> None:
    """Splits and merges of files, each in another layout."""
    running = start_statement(table.world, Statement("plus", lambda x: x < 20, lambda x, _: x + 1))
    for per_output, layout in ((2, first), (5, second), (3, third)):
        compact(table, table.visible(), per_output, layout)
    commit = finish(table, running)
    assert commit.rows_matched == commit.moved == 6
    assert table.values() == sorted(x + 1 if x < 20 else x for x in ALL)


def test_I19_a_generation_without_a_map_is_evaluated_again(table: Table) -> None:
    running = start_statement(table.world, updates(12, 99))
    compact(table, table.visible(), 2, by_value)
    foreign_optimize(3)(table.world, None)
    compact(table, table.visible(), 99, z_order)
    finish(table, running)
    assert table.values() == sorted([x for x in ALL if x != 12] + [99])


@layouts
def test_I20_a_delete_may_empty_an_input(table: Table, layout: Layout | None) -> None:
    job = start_rewrite(table.world, table.visible(), 99, layout=layout)
    table.run(deletes(11, 12, 13))
    decision = finish_rewrite(table.world, job)
    assert decision.counts.rows_masked == 3
    table.check()
    assert table.values() == [x for x in ALL if x not in (11, 12, 13)]


@layouts
def test_I20_deletes_may_empty_an_output(table: Table, layout: Layout | None) -> None:
    """Each row is an output: those of deleted rows are not added at all."""
    job = start_rewrite(table.world, table.visible(), 1, layout=layout)
    table.run(deletes(12, 21, 33))
    decision = finish_rewrite(table.world, job)
    assert len(decision.outputs) == 9  # of 12
    assert decision.masks == {}
    table.check()


@layouts
def test_I20_deletes_may_empty_everything(table: Table, layout: Layout | None) -> None:
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    table.run(Statement("delete all", lambda _: True))
    assert finish_rewrite(table.world, job).superseded
    assert table.values() == []


@layouts
def test_I20_an_update_whose_rows_were_all_deleted_changes_nothing(
    table: Table, layout: Layout | None
) -> None:
    running = start_statement(table.world, updates(12, 99))
    compact(table, table.visible(), 5, layout)
    table.run(deletes(12))
    commit = finish(table, running)
    assert commit.rows_matched == 0
    assert commit.inserts == ()
    assert len(commit.dropped_inserts) == 1


@layouts
def test_I21_rows_that_an_update_inserts_survive_its_own_replay(
    table: Table, layout: Layout | None
) -> None:
    """What it makes would match it again."""
    statement = Statement("plus", lambda x: x < 30, lambda x, _: x + 1)
    job = start_rewrite(table.world, table.visible(), 5, layout=layout)
    commit = table.run(statement)
    assert commit.rows_matched == 9
    finish_rewrite(table.world, job)
    table.check()
    assert table.values() == sorted(x + 1 if x < 30 else x for x in ALL)


def test_I21_the_count_is_that_of_rows_that_were_there(table: Table) -> None:
    """Half of its rows go, and come back; the others are purged of nothing."""
    running = start_statement(table.world, Statement("plus", lambda x: x < 20, lambda x, _: x + 1))
    foreign(deletes(1, 2, 11), vectors=True)(table.world, None)
    restore(1)(table.world, None)
    purge(table.world, None)
    assert finish(table, running).rows_matched == 6


@layouts
def test_I21_a_merge_reports_what_it_did(table: Table, layout: Layout | None) -> None:
    running = start_statement(table.world, UPSERT)  # 3 is there, 5 and 7 are not
    compact(table, table.visible(), 5, layout)
    commit = finish(table, running)
    assert (commit.rows_matched, commit.rows_updated) == (1, 1)
    inserted = sum(len(table.world.files[path]) for path in commit.fresh)
    assert inserted == 2
    assert table.values() == sorted([x for x in ALL if x != 3] + [13, 5, 7])


def test_masked_rows_never_accumulate(table: Table) -> None:
    """A row that was deleted and came back is live again, whatever was read in between (I-16)."""
    job = start_rewrite(table.world, table.visible(), 5, layout=by_value)
    foreign(deletes(12), vectors=True)(table.world, None)
    view = present(table.world.view(table.world.latest))
    assert rewrite(job.inputs, view, job.row_map).counts.deletes_remapped == 1
    restore(1)(table.world, None)
    decision = finish_rewrite(table.world, job)
    assert decision.counts.deletes_remapped == 0
    assert table.world.views[-1][decision.outputs[0]] == BitMap64()
    assert table.values() == ALL
    table.check()
