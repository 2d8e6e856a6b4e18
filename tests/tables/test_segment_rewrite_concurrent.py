"""Segment rewrites on real tables beside deletes, updates, compactions, restores and each other.

Without Spark (`support.jobs.quick_lake`): a rewrite's tasks need none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import loads, reconciled, result
from support.lake.rewritten import (
    PURGE,
    RECOMPRESS,
    TWO,
    WIDE,
    codecs,
    in_order,
    rewrite,
    segment,
)
from support.lake.rows import id_in, k_is, plus, without
from tandem.operations.machine.events import Point
from tandem.spec.status import Phase


@pytest.mark.parametrize("wish", [PURGE, RECOMPRESS], ids=["purge", "recompress"])
@pytest.mark.parametrize("at", [Point.START_JOB, Point.RECONCILE, Point.PUT_COMMIT])
def test_a_delete_of_ours_commits_beside_a_rewrite(
    two: QuickLake, at: Point, wish: dict[str, Any]
) -> None:
    held = two.hold(rewrite(two, "0", **wish), at)
    two.do(two.delete("k = 3"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 2
    assert two.deleted()["0"] == 2
    two.assert_states(TWO, without(TWO, k_is(3)))


def test_an_update_of_ours_commits_beside_a_rewrite(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0"), Point.RECONCILE)
    two.do(two.update("k IN (1, 4)", v="v + 15"))
    held.succeed()
    assert two.names == ["0", "1", "2"]
    two.assert_states(TWO, plus(TWO, k_is(1, 4), 15))


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_a_rewrite_commits_beside_a_statement(two: QuickLake, kind: str) -> None:
    statement = two.update("k = 1", v="v + 15") if kind == "update" else two.delete("k = 1")
    after = plus(TWO, k_is(1), 15) if kind == "update" else without(TWO, k_is(1))
    held = two.hold(statement, Point.RECONCILE)
    two.do(rewrite(two, "0", **RECOMPRESS))
    two.do(rewrite(two, "1"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 4
    two.assert_states(TWO, after)


def test_a_foreign_delete_takes_one_file_of_a_rewritten_segment(wide: QuickLake) -> None:
    """Copy on write: the file is gone, its rows live on in a foreign segment or not at all."""
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.foreign().delete("id = 12")
    done = held.finish()
    assert reconciled(done).rows_masked == 10
    assert result(done).files_removed == 3
    assert len(segment(wide, "0.1").files) == 3
    assert wide.deleted() == {}
    wide.assert_states(WIDE, without(WIDE, id_in([12])))


def test_a_restored_file_stays_in_its_segment(wide: QuickLake) -> None:
    """It lives on by itself beside the others' new files: still one segment, each row once."""
    wide.do(wide.delete("id < 5"))
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.foreign().restore(wide.version - 1)
    held.succeed()
    assert wide.names == ["0.1", "4"]
    assert len(segment(wide, "0.1").files) == 4
    wide.assert_states(WIDE, without(WIDE, id_in(range(5))), WIDE)
    wide.assert_clean()


def test_a_segment_that_a_compaction_has_replaced_is_skipped(wide: QuickLake) -> None:
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.do(wide.compaction("Custom", custom={"segments": ["0.1", "4"]}))
    done = held.finish()
    assert done.phase is Phase.SUPERSEDED
    assert wide.names == ["0.2"]
    wide.assert_states(WIDE)


def test_a_compaction_meets_a_segment_that_was_rewritten(wide: QuickLake) -> None:
    held = wide.hold(wide.compaction("Custom", custom={"segments": ["0.1", "4"]}), Point.RECONCILE)
    wide.do(rewrite(wide, "0.1", **RECOMPRESS))
    done = held.succeed()
    assert reconciled(done).rows_masked == 40
    assert wide.names == ["0.1", "0.2"]
    wide.assert_states(WIDE)


def test_two_rewrites_of_the_same_segment_one_of_which_wins(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0", **RECOMPRESS), Point.RECONCILE)
    two.do(rewrite(two, "0", "1"))
    assert held.finish().phase is Phase.SUPERSEDED
    assert two.deleted() == {}
    two.assert_states(TWO)


def test_all_rows_go_while_they_are_rewritten(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0"), Point.RECONCILE)
    two.do(two.delete("true"))
    assert held.finish().phase is Phase.SUPERSEDED
    two.assert_states(TWO, ())


def test_rows_are_sorted_within_each_file(wide: QuickLake) -> None:
    """Beside a delete that the rewrite carries along, and an update that meets it: both find
    their rows where they are now."""
    assert not in_order(wide, "0.1")
    held = wide.hold(rewrite(wide, "0.1", sortBy=["K", "id"], **RECOMPRESS), Point.RECONCILE)
    late = wide.hold(wide.update("id IN (1, 13, 31)", v="v + 15"), Point.RECONCILE)
    wide.do(wide.delete("k = 3"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 8
    assert wide.names == ["0.1", "4"]
    assert len(segment(wide, "0.1").files) == 4
    assert in_order(wide, "0.1")
    assert codecs(wide, "0.1") == {"GZIP"}
    late.succeed()
    left = without(WIDE, k_is(3))
    wide.assert_states(WIDE, left, plus(left, id_in([1, 31]), 15))


def test_without_deletion_vectors_what_is_left_of_a_changed_file_is_rewritten(
    tmp_path: Path,
) -> None:
    lake = quick_lake.make(tmp_path, 3, properties={})
    held = lake.hold(rewrite(lake, *lake.names, **RECOMPRESS), Point.RECONCILE)
    lake.foreign().delete("id = 15")
    names = lake.names  # that of the new file among them
    done = held.finish()
    assert (reconciled(done).bins_dropped, reconciled(done).edit_rounds) == (0, 1)
    assert (result(done).files_added, result(done).files_removed) == (3, 3)
    assert set(result(done).segments or ()) == set(names)
    assert lake.names == names
    assert all(codecs(lake, name) == {"GZIP"} for name in names)
    assert lake.deleted() == {}
    lake.assert_rows(without(loads(range(3)), id_in([15])))
    lake.assert_clean()
