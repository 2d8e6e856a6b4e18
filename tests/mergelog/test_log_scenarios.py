"""Scenarios of RFC-48 on real files: a log compaction beside appends, failures and merges."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from mergelog.orders import MERGE, STITCH, Orders, rows
from mergelog.test_beside import Before
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from tandem import mergelog
from tandem.mergelog.log_table import state_of
from tandem.mergelog.versions import Block, in_order
from tandem.operations.machine.events import Point


def blocks(orders: Orders) -> tuple[Block, ...]:
    return in_order(state_of(orders.log.snapshot()).live.values())


def test_L0_a_reader_uses_the_stitched_block_only(orders: Orders) -> None:
    expected = orders.view()
    originals = [Path(orders.location, "_tandem/log", block.path) for block in blocks(orders)]
    orders.run(STITCH)
    for file in originals:
        file.unlink()
    assert orders.view() == expected


def test_L1_I40_a_block_that_is_appended_meanwhile_comes_after_the_stitched_one(
    orders: Orders,
) -> None:
    later = Before(Point.RECONCILE, lambda: orders.append(rows(range(6, 7), "later", 9)))
    orders.run(STITCH, later)
    assert [(block.first, block.last) for block in blocks(orders)] == [(1, 4), (5, 5)]
    assert {row[0]: row[2] for row in orders.view()}[6] == "later"


def test_L2_a_log_compaction_that_fails_leaves_the_originals(orders: Orders) -> None:
    expected, before = orders.view(), blocks(orders)
    with contextlib.suppress(ProcessDied):
        orders.run(STITCH, StrikeOnce(Point.PUT_COMMIT, Fault.DIE_BEFORE))
    assert (blocks(orders), orders.view()) == (before, expected)
    orders.append(rows(range(40, 41), "later", 9))
    assert orders.view() == [*expected, (40, 9, "later")]


def test_L2b_an_append_that_was_never_committed_is_no_block(orders: Orders) -> None:
    dead = mergelog.LogWriter(orders.log, "dead")
    dead._upload(dead._arrange(rows(range(5, 6), "never", 9), None))
    expected = orders.view()
    orders.append(rows(range(40, 41), "later", 9))
    assert orders.view() == [*expected, (40, 9, "later")]


def test_L3_I42_a_large_result_becomes_several_blocks_in_one_commit(orders: Orders) -> None:
    expected, version = orders.view(), orders.log.snapshot().version
    orders.run({**STITCH, "maxBlockBytes": "1Ki"})
    assert orders.log.snapshot().version == version + 1
    found = blocks(orders)
    assert len(found) > 1
    assert {(block.first, block.last) for block in found} == {(1, 4)}
    assert orders.view() == expected
    # They are one run again.
    orders.run(STITCH, name="again")
    assert (len(blocks(orders)), orders.view()) == (1, expected)


@pytest.mark.parametrize("point", [Point.PLAN, Point.START_JOB, Point.PUT_COMMIT])
def test_L4_E13_a_merge_before_a_log_compaction_commits_changes_no_view(
    orders: Orders, point: Point
) -> None:
    expected = orders.view()
    orders.run(STITCH, Before(point, lambda: orders.run(MERGE, name="merge")))
    assert orders.view() == orders.base() == expected
    orders.append(rows(range(6, 7), "later", 9))
    assert {row[0]: row[2] for row in orders.view()}[6] == "later"


def test_L5_I39_a_stitched_block_is_stitched_again(orders: Orders) -> None:
    orders.run(STITCH)
    orders.append(rows(range(5, 7), "later", 9))
    orders.append(rows(range(6, 8), "last", 9), batch=1)
    expected = orders.view()
    orders.run(STITCH, name="again")
    assert [(block.first, block.last) for block in blocks(orders)] == [(1, 7)]
    assert orders.view() == expected


def test_L7_an_append_after_the_plan_is_neither_taken_nor_lost(orders: Orders) -> None:
    later = Before(Point.PERSIST_PLAN, lambda: orders.append(rows(range(6, 7), "later", 9)))
    status = orders.run(STITCH, later)
    assert status.plan is not None
    assert status.plan.inputs == 4
    assert [(block.first, block.last) for block in blocks(orders)] == [(1, 4), (5, 5)]


def test_L9_blocks_that_a_merge_reads_are_left_alone_and_newer_ones_are_not(
    orders: Orders,
) -> None:
    expected = orders.view()

    def beside() -> None:
        for batch, key in enumerate((40, 41)):
            orders.append(rows(range(key, key + 1), "later", 9), batch=batch)
        plan = orders.run(STITCH, name="beside").plan
        assert plan is not None
        assert plan.instants == ("5-6",)

    before = Before(Point.START_JOB, beside)
    orders.do(MERGE, before)
    assert before.done
    assert orders.view() == [*expected, (40, 9, "later"), (41, 9, "later")]
    assert orders.base() == expected


def test_L10_a_second_log_compaction_leaves_planned_blocks_alone(orders: Orders) -> None:
    expected = orders.view()
    second = []

    def beside() -> None:
        second.append(orders.run(STITCH, name="second"))

    orders.do(STITCH, Before(Point.START_JOB, beside))
    assert second[0].result is None
    assert [(block.first, block.last) for block in blocks(orders)] == [(1, 4)]
    assert orders.view() == expected


def test_L12_an_append_that_began_before_a_log_compaction_does_not_abort(orders: Orders) -> None:
    writer = mergelog.LogWriter(orders.log, "slow")
    assert writer.last_batch is None
    orders.run(STITCH)
    writer.append(rows(range(6, 7), "slow", 9), batch=0)
    assert [(block.first, block.last) for block in blocks(orders)] == [(1, 4), (6, 6)]
    assert {row[0]: row[2] for row in orders.view()}[6] == "slow"
