"""Scenario rows in their pure form: each is named by its id in the catalogue of scenarios.

Segments are files here; a segment is visible when the latest version has live rows of it.
Where a row leaves open who commits when, both orders run.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from reconcile.loaded import Table, deletes, updates
from reconcile.rewrites import finish_rewrite, start_rewrite
from reconcile.statements import (
    Running,
    Statement,
    finish_statement,
    start_statement,
    step_statement,
)
from reconcile.theirs import foreign, foreign_optimize
from support.present import present
from tandem.reconcile.rewrite import rewrite
from tandem.reconcile.rules import InputFate

PLUS_15 = Statement("x + 15 where x < 10", lambda x: x < 10, lambda x, _: x + 15)
PLUS_1 = Statement("x + 1 where x < 10", lambda x: x < 10, lambda x, _: x + 1)


@pytest.fixture
def four() -> Table:
    """seg0 … seg3."""
    table = Table()
    for n in range(4):
        table.load(n * 10 + 1, n * 10 + 2, n * 10 + 3)
    return table


# --- Compaction and update (CarbonData) ---------------------------------------------------------


def test_C2_update_commits_during_compaction(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    update = four.run(updates(12, 99))
    decision = finish_rewrite(four.world, job)
    assert decision.counts.deletes_remapped == 1
    assert decision.fates["f2"] is InputFate.SUPERSET
    assert [len(mask) for mask in decision.masks.values()] == [1]
    assert four.visible() == sorted([*decision.outputs, *update.inserts])
    assert four.values() == [1, 2, 3, 11, 13, 21, 22, 23, 31, 32, 33, 99]
    four.check()


def test_C2b_several_updates_before_compaction_ends(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    for statement in (updates(12, 112), updates(22, 122), updates(11, 111)):
        four.run(statement)
    decision = finish_rewrite(four.world, job)
    assert decision.counts.deletes_remapped == 3
    assert four.values() == [1, 2, 3, 13, 21, 23, 31, 32, 33, 111, 112, 122]
    four.check()


def test_C2b_a_second_try_of_the_compaction_masks_nothing_twice(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    four.run(deletes(12))
    view = present(four.world.view(four.world.latest))
    first = rewrite(job.inputs, view, job.row_map)
    assert rewrite(job.inputs, view, job.row_map) == first
    four.run(deletes(22))
    assert finish_rewrite(four.world, job).counts.deletes_remapped == 2
    four.check()


def test_C2c_update_whose_new_rows_match_its_own_predicate(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    update = four.run(PLUS_1)
    finish_rewrite(four.world, job)
    assert four.values()[:3] == [2, 3, 4]  # once: 1, 2, 3 became 2, 3, 4
    for path in update.inserts:
        assert four.world.views[-1][path] == BitMap64()
    four.check()


def test_C2c_the_other_way_round_the_update_counts_each_row_once(four: Table) -> None:
    running = start_statement(four.world, PLUS_1)
    finish_rewrite(four.world, start_rewrite(four.world, four.visible(), 99))
    outcome = present(finish_statement(four.world, running))
    assert (outcome.rows_matched, outcome.moved, outcome.masks) == (3, 3, {})
    assert four.values()[:3] == [2, 3, 4]
    four.check()


def test_C2d_update_committed_before_the_compaction_reads(four: Table) -> None:
    four.run(updates(12, 112))
    decision = finish_rewrite(four.world, start_rewrite(four.world, four.visible(), 99))
    assert decision.counts.deletes_remapped == 0
    assert decision.masks == {}
    assert four.values() == [1, 2, 3, 11, 13, 21, 22, 23, 31, 32, 33, 112]
    four.check()


def test_C3_compaction_commits_during_update(four: Table) -> None:
    running = start_statement(four.world, updates(12, 112))
    compacted = finish_rewrite(four.world, start_rewrite(four.world, four.visible(), 99))
    update = present(finish_statement(four.world, running))
    assert list(update.deletes) == list(compacted.outputs)
    assert (update.rows_matched, update.moved) == (1, 1)
    assert update.progress.rounds == 1  # nothing was evaluated again
    assert four.visible() == sorted([*compacted.outputs, *update.inserts])
    assert four.values() == [1, 2, 3, 11, 13, 21, 22, 23, 31, 32, 33, 112]
    four.check()


@pytest.mark.parametrize("per_output", [99, 4, 1], ids=["merged", "split", "row by row"])
def test_C3b_two_compactions_finish_during_the_update(four: Table, per_output: int) -> None:
    running = start_statement(four.world, PLUS_15)
    for size in (per_output, 99):
        finish_rewrite(four.world, start_rewrite(four.world, four.visible(), size))
    update = present(finish_statement(four.world, running))
    assert (update.rows_matched, update.moved, update.progress.rounds) == (3, 3, 1)
    assert four.values() == [11, 12, 13, 16, 17, 18, 21, 22, 23, 31, 32, 33]
    four.check()


def test_C3c_compaction_and_update_on_other_segments(four: Table) -> None:
    olds = four.visible()
    seventh = four.load(5)
    running = start_statement(four.world, updates(5, 55))
    job = start_rewrite(four.world, olds, 99)
    decision = finish_rewrite(four.world, job)
    update = present(finish_statement(four.world, running))
    assert set(decision.fates.values()) == {InputFate.SAME}
    assert (update.moved, update.progress.rounds, list(update.deletes)) == (0, 1, [seventh])
    four.check()


def test_C3d_update_over_compacted_and_not_yet_compacted_segments(four: Table) -> None:
    running = start_statement(four.world, Statement("all", lambda _: True, lambda x, _: x + 500))
    compacted = finish_rewrite(four.world, start_rewrite(four.world, four.visible()[:2], 99))
    update = present(finish_statement(four.world, running))
    assert set(update.deletes) == {*compacted.outputs, "f3", "f4"}
    assert all(file.is_whole for file in update.deletes.values())
    assert (update.rows_matched, update.moved) == (12, 6)
    assert four.visible() == sorted(update.inserts)
    four.check()


# --- Ingestion (Druid) --------------------------------------------------------------------------


def test_D1_ingest_succeeds_and_is_visible() -> None:
    table = Table()
    s1 = table.load(1)
    assert table.visible() == [s1]


def test_D2_ingest_fails_and_shows_nothing() -> None:
    table = Table()
    table.world.write([(1, 1)])  # written, never committed
    assert table.visible() == []


def test_D3_second_ingest_succeeds() -> None:
    table = Table()
    assert [table.load(1), table.load(2)] == table.visible()


def test_D4_second_ingest_fails() -> None:
    table = Table()
    s1 = table.load(1)
    table.world.write([(2, 2)])
    assert table.visible() == [s1]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_D5_two_ingests_in_either_order(order: tuple[int, int]) -> None:
    table = Table()
    for value in order:
        table.load(value)
    assert table.values() == [1, 2]


def test_D6_first_of_two_ingests_dies() -> None:
    table = Table()
    table.world.write([(1, 1)])
    s2 = table.load(2)
    assert table.visible() == [s2]


def test_D7_second_of_two_ingests_dies() -> None:
    table = Table()
    s1 = table.load(1)
    table.world.write([(2, 2)])
    assert table.visible() == [s1]


@pytest.mark.parametrize("dies", [0, 1])
def test_D8_third_ingest_after_one_died(dies: int) -> None:
    table = Table()
    for n in range(2):
        if n == dies:
            table.world.write([(n, n)])
        else:
            table.load(n)
    table.load(3)
    assert table.values() == sorted([1 - dies, 3])


# --- Ingestion and compaction -------------------------------------------------------------------


@pytest.fixture
def one() -> Table:
    table = Table()
    table.load(1, 2, 3)
    return table


def test_D10_compaction_running_hides_nothing(one: Table) -> None:
    start_rewrite(one.world, one.visible(), 99)
    assert one.visible() == ["f1"]


def test_D11_compaction_succeeds_and_shows_its_segment(one: Table) -> None:
    s2 = finish_rewrite(one.world, start_rewrite(one.world, one.visible(), 99)).outputs
    assert one.visible() == list(s2)
    assert one.values() == [1, 2, 3]


def test_D12_compaction_fails_and_shows_nothing(one: Table) -> None:
    start_rewrite(one.world, one.visible(), 99)
    assert one.visible() == ["f1"]
    assert one.values() == [1, 2, 3]


def test_D13_ingest_after_compaction(one: Table) -> None:
    s2 = finish_rewrite(one.world, start_rewrite(one.world, one.visible(), 99)).outputs
    s3 = one.load(4)
    assert one.visible() == sorted([*s2, s3])


def test_D14_ingest_after_failed_compaction(one: Table) -> None:
    start_rewrite(one.world, one.visible(), 99)
    s3 = one.load(4)
    assert one.visible() == sorted(["f1", s3])


@pytest.mark.parametrize("ingest_first", [True, False], ids=["ingest first", "compaction first"])
def test_D15_compaction_starts_first_both_succeed(one: Table, ingest_first: bool) -> None:
    job = start_rewrite(one.world, one.visible(), 99)
    s3 = one.load(4) if ingest_first else ""
    s2 = finish_rewrite(one.world, job).outputs
    s3 = s3 or one.load(4)
    assert one.visible() == sorted([*s2, s3])
    one.check()


def test_D16_compaction_starts_first_ingest_fails(one: Table) -> None:
    job = start_rewrite(one.world, one.visible(), 99)
    one.world.write([(9, 9)])
    s2 = finish_rewrite(one.world, job).outputs
    assert one.visible() == list(s2)


def test_D17_compaction_first_compaction_fails(one: Table) -> None:
    start_rewrite(one.world, one.visible(), 99)
    s3 = one.load(4)
    assert one.visible() == sorted(["f1", s3])
    assert one.values() == [1, 2, 3, 4]


@pytest.mark.parametrize("ingest_first", [True, False], ids=["ingest first", "compaction first"])
def test_D18_ingest_starts_first_both_succeed(one: Table, ingest_first: bool) -> None:
    """The ingest's files are written before the compaction plans; only the commit counts."""
    before = one.visible()
    job = start_rewrite(one.world, before, 99)
    s3 = one.load(4) if ingest_first else ""
    decision = finish_rewrite(one.world, job)
    s3 = s3 or one.load(4)
    assert decision.removes == tuple(before)
    assert one.visible() == sorted([*decision.outputs, s3])
    assert one.values() == [1, 2, 3, 4]


def test_D19_ingest_starts_first_ingest_fails(one: Table) -> None:
    one.world.write([(9, 9)])
    s2 = finish_rewrite(one.world, start_rewrite(one.world, one.visible(), 99)).outputs
    assert one.visible() == list(s2)


def test_D20_ingest_starts_first_compaction_fails(one: Table) -> None:
    start_rewrite(one.world, one.visible(), 99)
    s3 = one.load(4)
    assert one.visible() == sorted(["f1", s3])


# --- Cross-cutting ------------------------------------------------------------------------------


def test_Z2_a_delete_between_plan_and_commit_is_not_missed(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    foreign(deletes(12, 31), vectors=True)(four.world, None)
    finish_rewrite(four.world, job)
    assert four.values() == [1, 2, 3, 11, 13, 21, 22, 23, 32, 33]
    four.check()


def test_Z2_the_window_of_a_statement_begins_where_it_read() -> None:
    """With a fresh view at commit instead, the update of a row rewritten by others is lost."""
    table = Table()
    table.load(11, 12)
    running = start_statement(table.world, updates(12, 112))
    foreign_optimize(99)(table.world, None)
    finish_statement(table.world, running)
    assert table.values() == [11, 112]


@pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copies"])
def test_Z11_the_winning_delete_removes_an_input_completely(four: Table, vectors: bool) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    foreign(deletes(11, 12, 13), vectors=vectors)(four.world, None)
    decision = finish_rewrite(four.world, job)
    assert decision.fates["f2"] is InputFate.GONE
    assert "f2" not in decision.removes
    assert decision.counts.rows_masked == 3
    assert four.values() == [1, 2, 3, 21, 22, 23, 31, 32, 33]
    four.check()


def test_Z11_deletes_remove_all_inputs_completely(four: Table) -> None:
    job = start_rewrite(four.world, four.visible(), 99)
    everything = Statement("delete all", lambda _: True)
    foreign(everything, vectors=True)(four.world, None)
    before = four.world.latest
    decision = finish_rewrite(four.world, job)
    assert decision.superseded
    assert (decision.removes, decision.outputs, four.world.latest) == ((), (), before)


# --- The interleaving is chosen by Hypothesis ---------------------------------------------------


@given(st.data())
def test_C2_C3_any_mixture_of_updates_and_compactions_is_serial(data: st.DataObject) -> None:
    table = Table()
    for n in range(3):
        table.load(*(n * 10 + k for k in range(4)))
    running: list[Running] = []
    jobs = []
    for _ in range(data.draw(st.integers(1, 12), label="steps")):
        match data.draw(st.integers(0, 8), label="action"):
            case 0:
                statement = data.draw(
                    st.sampled_from((PLUS_15, PLUS_1, deletes(1, 12, 23, 24), updates(2, 3)))
                )
                running.append(start_statement(table.world, statement))
            case 1 if running:
                outcome = step_statement(table.world, running[0])
                if isinstance(outcome, Running):
                    running[0] = outcome
            case 2 if running:
                finish_statement(
                    table.world, running.pop(data.draw(st.integers(0, 9)) % len(running))
                )
            case 3:
                paths = [p for p in sorted(table.world.views[-1]) if data.draw(st.booleans())]
                size = data.draw(st.sampled_from((2, 5, 99)))
                jobs.append(start_rewrite(table.world, paths, size))
            case 4 if jobs:
                finish_rewrite(table.world, jobs.pop(data.draw(st.integers(0, len(jobs) - 1))))
            case 5:
                table.load(data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30)))
            case 6:
                foreign(deletes(3, 13, 16, 27), vectors=data.draw(st.booleans()))(table.world, None)
            case 7:
                foreign_optimize(data.draw(st.integers(1, 4)))(table.world, None)
        table.check()
