"""Rewrites and edits on tables without deletion vectors."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.lake import Process, loads, message, reconciled, result
from support.lake.plain import (
    Case,
    Hits,
    assert_edited_out,
    deletes,
    edited,
    figures,
    plain,
    set_vectors,
    updates,
)
from support.lake.rewritten import RECOMPRESS, replace_all, rewrite
from support.lake.rows import id_in, join, k_is, plus, without
from tandem.operations.kinds import rewrite as rule
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase
from tandem.timeline.lineage import TAG_GROUP

# Rewrites on tables without deletion vectors, beside writers that make whole files again: N1 to
# N6, N9 and N12. deltalake is the foreign writer, with the protocol that it gives tables by
# default.


FOUR = loads(range(4))


def sort(lake: QuickLake, **more: object) -> Operation:
    layout = {"strategy": "Sort", "columns": ["v"]}
    return lake.compaction("SemiMajor", layout=layout, targetFileSize="1Mi", **more)


# N1: beside deleters at full speed


class Deleter(threading.Thread):
    """Deletes rows by their id at full speed, until it has deleted all that it was given."""

    def __init__(self, lake: QuickLake, ids: list[int]) -> None:
        super().__init__(daemon=True)
        self.lake, self.ids = lake, ids
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for id_ in self.ids:
                while True:
                    try:
                        self.lake.foreign().delete(f"id = {id_}")
                        break
                    except CommitFailedError:
                        continue  # ours, or the other's, changed the file first
        except Exception as error:  # noqa: BLE001 - raised again by the test
            self.error = error


@pytest.mark.parametrize("seed", range(3))
def test_N1_compactions_beside_two_deleters_of_another_engine_all_commit(
    tmp_path: Path, seed: int
) -> None:
    lake = plain(tmp_path, 20)
    rows = loads(range(20))
    ids = random.Random(seed).sample(range(200), 16)
    deleters = [Deleter(lake, ids[0::2]), Deleter(lake, ids[1::2])]
    held = lake.hold(lake.compaction("Major"), Point.READ_RESULT)
    for deleter in deleters:
        deleter.start()
    done = held.finish()
    for deleter in deleters:
        deleter.join()
        assert deleter.error is None
    assert done.phase is Phase.SUCCEEDED, done
    assert reconciled(done).bins_dropped == 0
    # At least the files that no other writer changed are in one file now.
    assert len(lake.log.snapshot().files) <= 1 + 16
    assert_edited_out(lake, without(rows, id_in(ids)))


# N2: inputs go


def test_N2_one_input_is_gone(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    held = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().update({"v": "v + 1"}, predicate="k = 1 AND id < 10")
    done = held.finish()
    after = plus(FOUR, lambda row: row[1] == 1 and row[0] < 10, 1)
    assert done.phase is Phase.SUCCEEDED, done
    assert figures(reconciled(done)) == edited(gone=1)
    assert reconciled(done).rows_masked == 10
    assert (result(done).files_removed, result(done).files_added) == (3, 1)
    assert len(lake.names) == 2
    assert_edited_out(lake, FOUR, after)


@pytest.mark.parametrize("left", [1, 0])
def test_N2_all_inputs_but_one_or_all_are_gone(tmp_path: Path, left: int) -> None:
    lake = plain(tmp_path)
    held = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().update({"v": "v + 1"}, predicate=f"id >= {10 * left}")
    live = set(lake.names)
    done = held.finish()
    assert done.phase is Phase.SUPERSEDED, done
    words = "but one of each output" if left else "all of its inputs"
    assert words in message(done)
    assert set(lake.names) == live
    assert_edited_out(lake, plus(FOUR, lambda row: row[0] >= 10 * left, 1))


def test_N2_one_input_is_left_and_has_deleted_rows_it_is_worth_a_file(tmp_path: Path) -> None:
    """Of an earlier time: the property is off, and vectors are still there."""
    lake = quick_lake.make(tmp_path, 4)
    lake.do(lake.delete("id = 3"))
    set_vectors(lake, on=False)
    lake.first_version = lake.version
    protocol = lake.log.snapshot().protocol
    held = lake.hold(lake.compaction("Major"), Point.RECONCILE)
    lake.foreign().update({"v": "v + 1"}, predicate="id >= 10")
    done = held.succeed()
    assert figures(reconciled(done))["gone"] == 3
    assert not any(add.deletion_vector for add in lake.log.snapshot().adds())
    after = plus(without(FOUR, id_in([3])), lambda row: row[0] >= 10, 1)
    assert_edited_out(lake, after, protocol=protocol)


def test_N2_a_bin_of_which_one_input_is_left_stays_and_the_other_bin_commits(
    tmp_path: Path,
) -> None:
    lake = plain(tmp_path, 8)
    rows = loads(range(8))
    held = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().update({"v": "v + 1"}, predicate="id < 30")
    done = held.succeed()
    assert figures(reconciled(done)) == edited(None)
    assert (result(done).files_removed, result(done).files_added) == (4, 1)
    assert_edited_out(lake, plus(rows, lambda row: row[0] < 30, 1))


# N3: an input comes back


@pytest.mark.parametrize("kind", ["bin-pack", "sort", "segment rewrite"])
def test_N3_an_input_that_was_edited_out_is_restored_before_the_put(
    tmp_path: Path, kind: str
) -> None:
    lake = plain(tmp_path)
    made: dict[str, Callable[[], Operation]] = {
        "bin-pack": lake.compaction,
        "sort": lambda: sort(lake),
        "segment rewrite": lambda: rewrite(lake, *lake.names, **RECOMPRESS),
    }
    operation = made[kind]()
    held = lake.hold(operation, Point.RECONCILE)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 1")
    held.go_on(Point.PUT_COMMIT, skip=1)  # the first one finds the version taken
    lake.foreign().restore(lake.first_version)
    done = held.succeed()
    # From R's bitmaps: nothing is edited any more, and no row is lost.
    edits = 0 if kind == "segment rewrite" else 1
    assert figures(reconciled(done)) == edited(edits or None)
    assert result(done).files_removed == 4
    assert_edited_out(lake, FOUR, plus(FOUR, id_in([1]), 1), FOUR)


# N4: a sorted bin that is hit all the time


HIT = [2 + 10 * number for number in range(8)]
"""A row of each of eight files, all of partition 2."""


def test_N4_a_sorted_bin_is_left_as_it_was_and_others_commit(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 12, properties={}, partition_by=["k"])
    hits = Hits(deletes(lake, *HIT))
    done = lake.do(sort(lake), interceptor=hits)
    assert figures(reconciled(done)) == edited(rule.MOST_LOST, contended=1)
    said = " ".join(result(done).summary or ())
    assert "1 bin left as it was: an edit took" in said
    assert "Enable deletion vectors, use BinPack" in said
    partitions = [add.partition_values["k"] for add in lake.log.snapshot().adds()]
    assert {k: partitions.count(k) for k in "01234"} == {"0": 1, "1": 1, "2": 12, "3": 1, "4": 1}
    assert_edited_out(lake, without(loads(range(12)), id_in(HIT[: hits.done])))


def test_N4_the_only_sorted_bin_ends_as_a_conflict_with_what_helps(tmp_path: Path) -> None:
    lake = plain(tmp_path, 12)
    hits = Hits(deletes(lake, *HIT))
    done = lake.run(sort(lake), interceptor=hits)
    assert done.phase is Phase.FAILED
    assert "other commits changed its rows 5 times before it could be published" in message(done)
    assert hits.done < len(HIT)
    assert_edited_out(lake, without(loads(range(12)), id_in(HIT[: hits.done])))


# N5: a large bin that is hit faster than it is edited


def test_N5_an_output_becomes_two_and_two_more_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "LEAST_PART", 1)
    lake = plain(tmp_path, 16)
    rows = loads(range(16))
    ids = [n * 10 for n in (3, 12, 8, 1, 15, 5)]
    hits = Hits(updates(lake, *ids))
    done = lake.do(lake.compaction("Major"), interceptor=hits)
    assert hits.done == len(ids)
    assert figures(reconciled(done))["dropped"] == 0
    assert figures(reconciled(done))["contended"] is None
    assert figures(reconciled(done))["gone"] == len(ids)
    assert result(done).files_removed == 16 - len(ids)
    assert (result(done).files_added or 0) > 1
    assert_edited_out(lake, plus(rows, id_in(ids), 1))
    # What became several files says of how many it is one.
    tags = [add.tags for add in lake.log.snapshot().adds() if TAG_GROUP in add.tags]
    assert {tag[TAG_GROUP] for tag in tags} == {str(len(tags))}
    assert len(tags) == result(done).files_added
    again = lake.do(lake.compaction("Major"))
    assert result(again).files_added == 1
    assert_edited_out(lake, plus(rows, id_in(ids), 1))


def test_N5_a_small_output_whose_heirs_change_in_each_round_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    """An heir that our own update makes costs no input, and the bin is too small to cut."""
    lake = plain(tmp_path)
    hits = Hits([lambda: lake.do(lake.update("id = 3", v="v + 1"))] * 30)
    done = lake.run(lake.compaction("Major"), interceptor=hits)
    assert done.phase is Phase.FAILED
    assert "1 bin left as it was" in message(done)
    assert "use BinPack" not in message(done)
    assert hits.done == rule.MOST_LOST + 4 + 1
    assert_edited_out(lake, plus(FOUR, id_in([3]), hits.done))


# N6: vectors go off and on

TOGGLES = [
    (before, at, decided)
    for before in (True, False)
    for at in (True, False)
    for decided in (True, False)
]
"""Whether they are on when the operation plans, when it decides, and when it puts."""


def toggled(folder: Path, on: bool) -> QuickLake:
    """Four files of which one has a vector, with vectors on or off by the property."""
    lake = quick_lake.make(folder, 4)
    lake.do(lake.delete("id = 3"))
    if not on:
        set_vectors(lake, on=False)
    lake.first_version = lake.version
    return lake


OF_N6: dict[str, Case] = {
    "bin-pack": (lambda lake: lake.compaction("Major"), lambda rows: rows),
    "sort": (sort, lambda rows: rows),
    "update": (
        lambda lake: lake.update("k = 1", v="v + 15"),
        lambda rows: plus(rows, k_is(1), 15),
    ),
    "delete": (lambda lake: lake.delete("k = 1"), lambda rows: without(rows, k_is(1))),
    "replace": (
        lambda lake: lake.resource(
            "TableReplace", {"replace": {"intervals": ["all"]}, "scope": "AtStart"}
        ),
        lambda _: (),
    ),
}
"""Operations, and the rows after them."""


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", OF_N6)
@pytest.mark.parametrize(("plans", "decides", "puts"), TOGGLES)
def test_N6_vectors_are_switched_between_two_steps(
    tmp_path: Path, kind: str, plans: bool, decides: bool, puts: bool
) -> None:
    lake = toggled(tmp_path, plans)
    protocol = lake.log.snapshot().protocol
    make, after = OF_N6[kind]
    rows = without(FOUR, id_in([3]))
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.foreign().delete("id = 14")
    rows = without(rows, id_in([14]))
    set_vectors(lake, on=decides)
    held.go_on(Point.PUT_COMMIT)
    lake.foreign().delete("id = 24")
    rows = without(rows, id_in([24]))
    set_vectors(lake, on=puts)
    held.succeed()
    adds = lake.commit().adds
    if not puts:
        assert not any(add.deletion_vector for add in adds)
    elif kind in ("update", "delete"):
        # An update that was planned without vectors has parts of rows alone, for edits.
        by_vectors = plans or kind == "delete"
        assert any(add.deletion_vector for add in adds) is by_vectors
    assert_edited_out(lake, after(rows), protocol=protocol)


def test_N6_what_earlier_vectors_hide_is_left_out_once_they_are_off(tmp_path: Path) -> None:
    """A compaction copies deleted rows where it counts on vectors; here they go by an edit."""
    lake = toggled(tmp_path, on=True)
    protocol = lake.log.snapshot().protocol
    held = lake.hold(lake.compaction("Major"), Point.READ_RESULT)
    set_vectors(lake, on=False)
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 0
    [add] = lake.log.snapshot().adds()
    assert add.deletion_vector is None
    assert_edited_out(lake, without(FOUR, id_in([3])), protocol=protocol)


@pytest.mark.parametrize("statement", ["update", "delete"])
def test_N6_a_file_with_an_earlier_vector_is_made_again_without_its_rows(
    tmp_path: Path, statement: str
) -> None:
    lake = toggled(tmp_path, on=False)
    protocol = lake.log.snapshot().protocol
    rows = without(FOUR, id_in([3]))
    if statement == "update":
        done = lake.do(lake.update("id IN (1, 5)", v="v + 15"))
        after = plus(rows, id_in([1, 5]), 15)
    else:
        done = lake.do(lake.delete("id IN (1, 5)"))
        after = without(rows, id_in([1, 5]))
    assert figures(reconciled(done)) == edited()
    assert not any(add.deletion_vector for add in lake.log.snapshot().adds())
    assert_edited_out(lake, after, protocol=protocol)


# N9: an heir with a row that the outputs lack


def test_N9_an_heir_that_has_a_row_which_was_dead_at_the_read_is_left_alone(
    tmp_path: Path,
) -> None:
    lake = toggled(tmp_path, on=False)
    protocol, whole = lake.log.snapshot().protocol, lake.first_version - 2
    assert lake.by_tandem(whole) == FOUR
    compaction = lake.hold(lake.compaction("Major"), Point.READ_RESULT)
    lake.foreign().restore(whole)
    set_vectors(lake, on=False)
    lake.do(lake.update("id = 1", v="v + 15"))
    done = compaction.succeed()
    # Its row 3 is in no output, so it stays, and all that the output has of its input goes.
    assert figures(reconciled(done)) == edited(gone=1)
    assert result(done).files_removed == 3
    assert len(lake.names) == 2
    assert_edited_out(lake, plus(FOUR, id_in([1]), 15), protocol=protocol)


# N12: row maps that are gone

DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "cleaned": None,
    "cut off": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
}


def damage(lake: QuickLake, how: str) -> None:
    """What happens to the newest row map."""
    found = sorted(lake.store.list("_tandem/rowmaps"), key=lambda meta: meta.modified_ms)
    path, act = found[-1].path, DAMAGES[how]
    data = lake.store.get(path)
    lake.store.delete([path])
    if act is not None:
        lake.store.put(path, act(data))


@pytest.mark.parametrize("how", DAMAGES)
def test_N12_without_the_map_of_an_edit_its_file_is_edited_out(tmp_path: Path, how: str) -> None:
    lake = plain(tmp_path)
    compaction = lake.hold(lake.compaction(), Point.READ_RESULT)
    lake.do(lake.update("id = 1", v="v + 15"))
    damage(lake, how)
    done = compaction.succeed()
    assert figures(reconciled(done)) == edited(gone=1)
    after = plus(FOUR, id_in([1]), 15)
    lake.assert_states(FOUR, after)
    lake.store.delete([each.path for each in lake.store.list("_tandem/rowmaps")])
    lake.assert_rows(after)


@pytest.mark.parametrize("how", DAMAGES)
def test_N12_without_the_map_of_an_edit_its_rows_are_evaluated_again(
    tmp_path: Path, how: str
) -> None:
    lake = plain(tmp_path)
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.READ_RESULT)
    lake.do(lake.update("k = 2", v="v + 1"))
    damage(lake, how)
    done = update.succeed()
    assert reconciled(done).rows_evaluated == 40
    once = plus(FOUR, k_is(2), 1)
    lake.assert_states(FOUR, once, plus(once, k_is(1), 15))


@pytest.mark.parametrize("how", DAMAGES)
def test_N12_a_map_is_lost_between_two_edits_of_one_file(tmp_path: Path, how: str) -> None:
    """The chain is broken: the last file cannot be led back to the input."""
    lake = plain(tmp_path)
    compaction = lake.hold(lake.compaction(), Point.READ_RESULT)
    lake.do(lake.update("id = 1", v="v + 15"))
    damage(lake, how)
    lake.do(lake.update("id = 2", v="v + 15"))
    done = compaction.succeed()
    assert figures(reconciled(done)) == edited(gone=1)
    lake.assert_rows(plus(FOUR, id_in([1, 2]), 15))


# N15 and N16: operations that make edits are killed, repeated and lied to, and a vacuum removes
# what no version names yet. One result, and no file is left.


NEW = ((3, 3, -3), (60, 0, 6))

KINDS: dict[str, Case] = {
    "bin-pack": (lambda lake: lake.compaction(), lambda of: of),
    "sort": (
        lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}),
        lambda of: of,
    ),
    "update": (lambda lake: lake.update("k = 1", v="v + 15"), lambda of: plus(of, k_is(1), 15)),
    "delete": (lambda lake: lake.delete("k = 1"), lambda of: without(of, k_is(1))),
    "merge": (lambda lake: lake.merge(NEW), lambda of: join(without(of, id_in([3, 60])), NEW)),
    "replace": (lambda lake: replace_all(lake, NEW), lambda _: NEW),
}
"""An operation, and the rows after it."""
POINTS = (
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.PUT_COMMIT,
    Point.FINISH_JOB,
    Point.CLEAN_UNUSED,
    Point.RECORD_RESULT,
)


@pytest.mark.part(4)
@pytest.mark.parametrize("nth", [1, 2], ids=["first", "second"])
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_N15_each_step_is_cut_off_lost_or_repeated(
    tmp_path: Path, kind: str, point: Point, fault: Fault, nth: int
) -> None:
    """Another engine changes a file before the first edits are published, so that there are two
    rounds of them."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    operation = make(lake)
    strike = StrikeOnce(point, fault, nth)
    hits = Hits(updates(lake, 11))

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        return hits(effect, lambda: strike(effect, call))

    before = lake.version
    try:
        lake.run(operation, interceptor=interceptor)
    except ProcessDied:
        assert fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER)
    done = lake.do(operation)
    rows = plus(FOUR, id_in([11]), 1)
    if hits.done == 0:
        rows = FOUR  # it died before
    expected = after(rows)
    assert_edited_out(lake, expected)
    # It has taken effect once.
    ours = [
        version
        for version in range(before + 1, lake.version + 1)
        if (info := lake.commit(version).info) is not None
        and (info.body.get("tandem") or {}).get("result") is not None
    ]
    assert ours == [result(done).version]


@pytest.mark.parametrize("at", [Point.RECONCILE, Point.WRITE_SIDECARS, Point.PUT_COMMIT])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "replace"])
def test_N15_two_processes_make_the_same_edits(tmp_path: Path, kind: str, at: Point) -> None:
    """One only seemed dead, and goes on once the other has committed and cleaned up: what it wrote
    since is deleted, too."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    operation = make(lake)
    first, second = (lake.ports(processes=Process(pid, {2})) for pid in (1, 2))
    zombie = lake.hold(operation, Point.READ_RESULT, ports=first)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    zombie.go_on(at)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 21")
    done = lake.do(operation, ports=second)
    late = zombie.finish()
    assert lake.unreachable() == set()
    assert late.phase is Phase.SUCCEEDED
    assert result(late).version == result(done).version
    assert_edited_out(lake, after(plus(FOUR, id_in([11, 21]), 1)))


# N16: vacuum without retention


@pytest.mark.parametrize("at", [Point.WRITE_SIDECARS, Point.PUT_COMMIT])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "replace"])
def test_N16_a_vacuum_between_an_edit_and_the_put(tmp_path: Path, kind: str, at: Point) -> None:
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    held.go_on(at, after=at is Point.WRITE_SIDECARS)
    lake.vacuum()
    done = held.succeed()
    assert done.attempt == 2
    lake.assert_rows(after(plus(FOUR, id_in([11]), 1)))
    assert lake.unreachable() == set()


@pytest.mark.parametrize("kind", ["bin-pack", "update"])
def test_N16_a_vacuum_removes_an_edit_that_is_wanted_again(tmp_path: Path, kind: str) -> None:
    """The edit of a round that was lost, of which nothing has changed since."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    held.go_on(Point.PUT_COMMIT)
    lake.append(((90, 0, 9),))
    lake.vacuum()
    held.succeed()
    lake.assert_rows(join(after(plus(FOUR, id_in([11]), 1)), ((90, 0, 9),)))
    for add in lake.log.snapshot().adds():
        lake.store.head(add.path)


def test_what_edits_are_left_over_goes_at_the_end(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    hits = Hits(updates(lake, 1, 11, 21))
    done = lake.run(lake.compaction(), interceptor=hits)
    assert done.phase is Phase.SUPERSEDED, done
    assert hits.done == 3
    assert_edited_out(lake, plus(FOUR, id_in([1, 11, 21]), 1))
    hits = Hits(updates(lake, 1))
    done = lake.run(lake.compaction(), interceptor=hits)
    assert figures(reconciled(done)) == edited(1, gone=1)
    assert_edited_out(lake, plus(plus(FOUR, id_in([1, 11, 21]), 1), id_in([1]), 1))
