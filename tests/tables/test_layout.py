"""Compactions that sort and z-order, while rows are deleted and updated: C2, C3b and C13 again.

A permuted row map must carry every delete and every update to the same rows as an ordered one
does, in whichever order the two commit, through one rewrite or two.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from support.lake.lake import Lake, Lakes, batch, loads, reason, reconciled, result
from support.lake.rows import Rows, id_in, join, k_is, plus, without
from support.present import present
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.timeline.file_columns import TAG_LAYOUT

FOUR = loads(range(4))
SMALL = 1200
"""Bytes of a file, so that a segment has several."""


def compaction(lake: Lake, strategy: str, columns: list[str], **more: Any) -> Operation:
    return lake.compaction(
        **{
            "type_": "SemiMajor",
            "layout": {"strategy": strategy, "columns": columns},
            "targetFileSize": SMALL,
            **more,
        }
    )


def shown_by_file(lake: Lake, column: str) -> list[tuple[int, int]]:
    """(least, greatest) of a column in each live file, by its statistics."""
    found = []
    for add in lake.log.snapshot().adds():
        stats = json.loads(add.stats or "{}")
        found.append((stats["minValues"][column], stats["maxValues"][column]))
    return sorted(found)


@pytest.mark.whole
def test_a_sort_is_one_segment_of_files_that_do_not_overlap(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    done = lake.do(compaction(lake, "Sort", ["K", "id"]))
    assert result(done).segments == ("0.1",)
    files = shown_by_file(lake, "k")
    assert len(files) > 2
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(files))
    [segment] = lake.live
    assert {file.add.tags[TAG_LAYOUT] for file in segment.files} == {"Sort:k,id"}
    info = present(lake.commit().info)
    assert info.operation == "OPTIMIZE"
    assert info.body["operationParameters"]["zOrderBy"] == "[]"
    # Again, there is nothing to do; in another order, there is.
    assert reason(lake.do(compaction(lake, "Sort", ["k", "id"]))) == "NothingToDo"
    named = {"type_": "Custom", "custom": {"segments": ["0.1"]}}
    lake.do(compaction(lake, "ZOrder", ["k", "v"], **named))
    assert lake.names == ["0.2"]
    info = present(lake.commit().info)
    assert json.loads(info.body["operationParameters"]["zOrderBy"]) == ["k", "v"]
    lake.assert_states(FOUR)


@pytest.mark.parametrize("strategy", ["Sort", "ZOrder"])
def test_C2_deletes_and_updates_commit_during_a_sort(lakes: Lakes, strategy: str) -> None:
    lake = lakes.loaded(4)
    held = lake.hold(compaction(lake, strategy, ["k", "v"]), Point.PUT_COMMIT)
    lake.do(lake.delete("k = 2 AND id < 30"))
    states = [FOUR, without(FOUR, lambda row: row[1] == 2 and row[0] < 30)]
    held.go_on(Point.PUT_COMMIT)
    lake.do(lake.update("k = 1", v="v + 15"))
    states.append(plus(states[-1], k_is(1), 15))
    done = held.finish()
    assert reconciled(done).deletes_remapped == 6 + 8
    assert sum(lake.deleted().values()) == 14
    assert lake.names == ["0.1", "4"]
    lake.assert_states(*states)


@pytest.mark.whole
def test_C3_a_z_order_commits_during_an_update_and_a_delete(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    update = lake.hold(lake.update("k IN (1, 3)", v="v + 15"), Point.RECONCILE)
    delete = lake.hold(lake.delete("id % 7 = 0"), Point.RECONCILE)
    lake.do(compaction(lake, "ZOrder", ["v", "k"]))
    changed = update.finish()
    assert reconciled(changed).deletes_remapped == 16
    states = [FOUR, plus(FOUR, k_is(1, 3), 15)]
    delete.finish()
    states.append(without(states[-1], lambda row: row[0] % 7 == 0))
    lake.assert_states(*states)


def test_C3b_an_update_through_a_bin_pack_and_then_a_z_order(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.do(lake.compaction())
    lake.do(lake.delete("id IN (6, 7)"))
    lake.do(compaction(lake, "ZOrder", ["k", "id"]))
    assert lake.names == ["0.2"]
    changed = update.finish()
    assert reconciled(changed).deletes_remapped == 7, "6 was deleted meanwhile"
    before = without(FOUR, id_in((6, 7)))
    lake.assert_states(FOUR, before, plus(before, k_is(1), 15))


def test_C3b_a_bin_pack_of_sorted_files_replays_deletes_since_the_sort(lakes: Lakes) -> None:
    """The other way round: rows go by a permuted map first, and by an ordered one then."""
    lake = lakes.loaded(4)
    update = lake.hold(lake.update("id >= 30", k="k + 10"), Point.RECONCILE)
    lake.do(compaction(lake, "Sort", ["v"]))
    lake.load(batch(4))
    lake.do(lake.compaction(type_="Major"))
    assert len(lake.names) == 1
    update.finish()
    after = tuple(sorted((i, k + 10 if 30 <= i < 40 else k, v) for i, k, v in loads(range(5))))
    lake.assert_rows(after)
    lake.assert_clean()


@pytest.mark.matrix
@pytest.mark.whole
def test_inputs_that_others_rewrote_stay_beside_the_sorted_files(lakes: Lakes) -> None:
    """GONE and OTHER: all rows of such an input are masked in the sorted files."""
    lake = lakes.foreign(4)
    lake.do(lake.delete("k = 4 AND id < 20"))
    rows = without(FOUR, lambda row: row[1] == 4 and row[0] < 20)
    held = lake.hold(compaction(lake, "ZOrder", ["k", "v"]), Point.RECONCILE)
    lake.foreign().update(updates={"v": "v + 1"}, predicate="id = 3")
    lake.sql("DELETE FROM TABLE WHERE id IN (21, 22)")
    rows = without(plus(rows, id_in((3,)), 1), id_in((21, 22)))
    done = held.finish()
    assert reconciled(done).rows_masked == 8
    assert reconciled(done).deletes_remapped == 2
    lake.assert_rows(rows)
    # And the next one works on what is left.
    lake.do(compaction(lake, "Sort", ["v"]))
    lake.assert_rows(rows)
    assert len(lake.names) == 1
    assert lake.deleted() == {}


@pytest.mark.matrix
@pytest.mark.whole
def test_partitions_are_sorted_apart_while_rows_move_between_them(lakes: Lakes) -> None:
    lake = lakes.empty(partition_by=["k"])
    for number in range(3):
        lake.load(batch(number))
    rows = loads(range(3))
    held = lake.hold(compaction(lake, "Sort", ["v"], targetFileSize="1Mi"), Point.RECONCILE)
    lake.do(lake.update("id IN (0, 1, 11)", k="4"))
    moved = moved_to(rows, (0, 1, 11), 4)
    done = held.finish()
    assert reconciled(done).deletes_remapped == 3
    assert len(result(done).segments or ()) == 5
    lake.assert_rows(moved)
    update = lake.hold(lake.update("k = 4", v="v + 1"), Point.RECONCILE)
    lake.do(compaction(lake, "ZOrder", ["v", "id"], targetFileSize="1Mi"))
    update.finish()
    lake.assert_rows(plus(moved, k_is(4), 1))
    lake.assert_clean()


def moved_to(rows: Rows, ids: tuple[int, ...], k: int) -> Rows:
    return join(
        without(rows, id_in(ids)), tuple((i, k, v) for i, _, v in rows if i in frozenset(ids))
    )


def test_without_deletion_vectors_a_sorted_bin_is_encoded_again(lakes: Lakes) -> None:
    lake = lakes.empty(properties={}, partition_by=["k"])
    for number in range(2):
        lake.append(batch(number))
    rows = loads(range(2))
    held = lake.hold(compaction(lake, "Sort", ["v"], targetFileSize="1Mi"), Point.RECONCILE)
    lake.foreign().delete("id = 7")  # of partition 2
    done = held.finish()
    assert (reconciled(done).bins_dropped, reconciled(done).bins_contended) == (0, None)
    assert reconciled(done).edit_rounds == 1
    assert result(done).files_removed == 10
    assert len(lake.live) == 5
    assert lake.deleted() == {}
    lake.assert_rows(without(rows, id_in((7,))))
    lake.assert_clean()


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["nope"], "no column nope"), (["k"], "partition column"), (["v", "V"], "named twice")],
)
def test_columns_that_cannot_order_rows_are_refused_before_anything_runs(
    lakes: Lakes, columns: list[str], message: str
) -> None:
    lake = lakes.empty(partition_by=["k"])
    status = lake.run(compaction(lake, "Sort", columns))
    assert reason(status) == "InvalidSpec"
    [found] = [c.message for c in status.conditions if c.type.value == "Succeeded"]
    assert message in found
    assert "spec.layout.columns" in found
    assert lake.version == lake.first_version
