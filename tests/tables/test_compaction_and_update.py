"""CarbonData's scenarios C1 to C3: compactions and updates meet on a real table.

The order of commits is forced: what is held at a point waits there until the other one has
committed. Rows are compared with the serial result, at every version and by every reader.
"""

from __future__ import annotations

import pytest

from support.lake.lake import Lake, Lakes, batch, loads, reconciled, result
from support.lake.rows import Rows, k_is, plus
from support.present import present
from tandem.operations.machine.events import Point
from tandem.timeline.lineage import format_lineage

FOUR = loads(range(4))
BEFORE_COMMIT = (Point.PERSIST_PLAN, Point.RECONCILE, Point.PUT_COMMIT)
"""From the first moment at which its inputs are frozen to the last before its commit."""


def _in_load(number: int) -> str:
    return f"id >= {number * 10} AND id < {number * 10 + 10}"


def _plus_in_load(rows: Rows, number: int, ks: tuple[int, ...], amount: int) -> Rows:
    return plus(rows, lambda row: row[0] // 10 == number and row[1] in ks, amount)


def test_C1a_only_a_compaction_leaves_one_segment(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    assert lake.names == ["0", "1", "2", "3"]
    status = lake.do(lake.compaction())
    assert status.plan is not None
    assert status.plan.segments == ("0", "1", "2", "3")
    assert status.plan.steps == ("0, 1, 2, 3 → 0.1",)
    assert result(status).segments == ("0.1",)
    assert lake.statuses() == {
        "0": "Compacted", "1": "Compacted", "2": "Compacted", "3": "Compacted", "0.1": "Success",
    }  # fmt: skip
    [segment] = lake.live
    assert format_lineage(segment.parents) == "0-3"
    assert segment.rows == 40
    lake.assert_states(FOUR)


def test_C1b_only_update_of_one_segment(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    status = lake.do(lake.update(f"{_in_load(1)} AND k = 1", v="v + 15"))
    assert result(status).segments == ("4",)
    affected = present(result(status).rows_affected)
    assert affected.updated == 2
    # The insert delta is a new segment, the delete delta lies on the old one, in one commit.
    assert lake.names == ["0", "1", "2", "3", "4"]
    assert lake.deleted() == {"1": 2}
    assert lake.statuses()["1"] == "MarkedForUpdate"
    lake.assert_states(FOUR, _plus_in_load(FOUR, 1, (1,), 15))


@pytest.mark.part(4)
@pytest.mark.parametrize("at", BEFORE_COMMIT)
def test_C2_update_commits_during_compaction(lakes: Lakes, at: Point) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), at)
    lake.do(lake.update("k = 1", v="v + 15"))
    done = compaction.finish()
    assert result(done).segments == ("0.1",)
    assert reconciled(done).deletes_remapped == 8
    assert reconciled(done).commits_seen == 1
    assert lake.names == ["0.1", "4"]
    assert lake.deleted() == {"0.1": 8}
    lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))


def test_C2b_several_updates_before_compaction_ends(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.PUT_COMMIT)
    states = [FOUR]
    for number, ks, amount in ((1, (1,), 1), (2, (2,), 10), (1, (1, 2), 100)):
        listed = ", ".join(map(str, ks))
        lake.do(lake.update(f"{_in_load(number)} AND k IN ({listed})", v=f"v + {amount}"))
        states.append(_plus_in_load(states[-1], number, ks, amount))
    done = compaction.finish()
    assert reconciled(done).deletes_remapped == 6  # 2 rows by each; the others are no inputs
    assert lake.names == ["0.1", "5", "6"]  # the third one changed all of segment 4
    assert lake.deleted() == {"0.1": 6}
    lake.assert_states(*states)


def test_C2b_a_compaction_that_loses_the_race_again_and_again(lakes: Lakes) -> None:
    """Masks are computed again in every round; they do not add up."""
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.PUT_COMMIT)
    states = [FOUR]
    for k in (0, 1, 2):
        lake.do(lake.delete(f"k = {k}"))
        states.append(tuple(row for row in states[-1] if row[1] != k))
        compaction.go_on(Point.PUT_COMMIT)
    done = compaction.finish()
    assert reconciled(done).deletes_remapped == 24
    assert reconciled(done).rounds == 4
    assert lake.deleted() == {"0.1": 24}
    lake.assert_states(*states)


@pytest.mark.parametrize("first", ["update", "compaction"])
def test_C2c_update_whose_new_rows_match_its_own_predicate(lakes: Lakes, first: str) -> None:
    lake = lakes.loaded(4)
    update = lake.update("v < 500", v="v + 1")
    if first == "update":
        held = lake.hold(lake.compaction(), Point.RECONCILE)
        changed = lake.do(update)
        assert reconciled(held.finish()).deletes_remapped == 5
    else:
        held = lake.hold(update, Point.RECONCILE)
        lake.do(lake.compaction())
        changed = held.finish()
        assert reconciled(changed).deletes_remapped == 5
    affected = present(result(changed).rows_affected)
    assert affected.updated == 5
    assert lake.names == ["0.1", "4"]
    assert lake.deleted() == {"0.1": 5}  # segment 4 is untouched by any replay
    lake.assert_states(FOUR, plus(FOUR, lambda row: row[2] < 500, 1))


def test_C2d_update_committed_before_the_compaction_reads(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.update("k = 1", v="v + 15"))
    done = lake.do(lake.compaction())
    assert reconciled(done).deletes_remapped == 0
    assert lake.names == ["0.1", "4"]
    assert lake.deleted() == {}
    assert [segment.rows for segment in lake.live] == [32, 8]
    lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))


@pytest.mark.part(4)
@pytest.mark.parametrize("at", BEFORE_COMMIT)
def test_C3_compaction_commits_during_update(lakes: Lakes, at: Point) -> None:
    lake = lakes.loaded(4)
    update = lake.hold(lake.update("k = 1", v="v + 15"), at)
    lake.do(lake.compaction())
    done = update.finish()
    assert result(done).segments == ("4",)
    assert reconciled(done).deletes_remapped == 8
    assert reconciled(done).by_segment == {"0.1": 8}
    assert reconciled(done).rows_evaluated == 0
    assert lake.names == ["0.1", "4"]
    assert lake.deleted() == {"0.1": 8}
    _assert_one_commit(lake, {"0.1", "4"})
    lake.assert_states(FOUR, plus(FOUR, k_is(1), 15))


def test_C3_delete_after_compaction_commits(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    delete = lake.hold(lake.delete("k = 1"), Point.RECONCILE)
    lake.do(lake.compaction())
    done = delete.finish()
    assert result(done).segments is None
    assert reconciled(done).by_segment == {"0.1": 8}
    assert lake.names == ["0.1"]
    lake.assert_states(FOUR, tuple(row for row in FOUR if row[1] != 1))


@pytest.mark.parametrize("target", ["128Mi", "1"])
def test_C3b_two_compactions_finish_during_the_update(lakes: Lakes, target: str) -> None:
    """Also when one input is split over several outputs (a target size of one byte)."""
    lake = lakes.loaded(6)
    six = loads(range(6))
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    for names in (["0", "1", "2", "3"], ["0.1", "4", "5"]):
        lake.do(lake.compaction("Custom", custom={"segments": names}, targetFileSize=target))
    assert lake.names == ["0.2"]
    done = update.finish()
    assert result(done).segments == ("6",)
    assert reconciled(done).by_segment == {"0.2": 12}
    assert reconciled(done).rows_evaluated == 0
    assert lake.names == ["0.2", "6"]
    assert lake.deleted() == {"0.2": 12}
    lake.assert_states(six, plus(six, k_is(1), 15))


@pytest.mark.parametrize("first", ["update", "compaction"])
def test_C3c_compaction_and_update_on_other_segments(lakes: Lakes, first: str) -> None:
    lake = lakes.loaded(8)
    eight = loads(range(8))
    compaction = lake.compaction("Custom", custom={"segments": ["0", "1", "2", "3"]})
    update = lake.update("id >= 70", v="v + 15")
    if first == "update":
        held = lake.hold(compaction, Point.RECONCILE)
        changed = lake.do(update)
        compacted = held.finish()
    else:
        held = lake.hold(update, Point.RECONCILE)
        compacted = lake.do(compaction)
        changed = held.finish()
    for done in (changed, compacted):
        found = reconciled(done)
        assert (found.deletes_remapped, found.rows_masked, found.rows_evaluated) == (0, 0, 0)
    assert lake.names == ["0.1", "4", "5", "6", "8"]  # all of segment 7 moved to segment 8
    assert lake.deleted() == {}
    lake.assert_states(eight, plus(eight, lambda row: row[0] >= 70, 15))


def test_C3d_update_over_compacted_and_not_yet_compacted_segments(lakes: Lakes) -> None:
    lake = lakes.loaded(8)
    eight = loads(range(8))
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.do(lake.compaction("Custom", custom={"segments": ["0", "1", "2", "3"]}))
    done = update.finish()
    assert result(done).segments == ("8",)
    assert reconciled(done).deletes_remapped == 8
    assert reconciled(done).by_segment == {"0.1": 8, "4": 2, "5": 2, "6": 2, "7": 2}
    assert lake.names == ["0.1", "4", "5", "6", "7", "8"]
    _assert_one_commit(lake, {"0.1", "4", "5", "6", "7", "8"})
    lake.assert_states(eight, plus(eight, k_is(1), 15))


@pytest.mark.whole
def test_C3_update_and_delete_and_compaction_all_at_once(lakes: Lakes) -> None:
    """Each reads before any of them has committed."""
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    delete = lake.hold(lake.delete("k IN (1, 2) AND v < 2000"), Point.RECONCILE)
    update = lake.hold(lake.update("k IN (1, 3)", v="v + 5000"), Point.RECONCILE)
    lake.append(batch(9))
    changed = plus(FOUR, k_is(1, 3), 5000)
    update.finish()
    compaction.finish()
    delete.finish()
    left = tuple(row for row in changed if not (row[1] in (1, 2) and row[2] < 2000))
    appended = batch(9)  # blind, after all of them
    lake.assert_states(
        FOUR,
        (*FOUR, *appended),
        (*changed, *appended),
        (*left, *appended),
    )


def _assert_one_commit(lake: Lake, touched: set[str]) -> None:
    """The last commit marks rows and adds segments, all of it at once."""
    commit = lake.commit()
    assert {add.tags["tandem.segment"] for add in commit.adds} == touched
    again = {gone.logged_path for gone in commit.removes}
    assert len(again) == sum(1 for add in commit.adds if add.deletion_vector is not None)
