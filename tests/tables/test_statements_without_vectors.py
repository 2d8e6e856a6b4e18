"""Statements, replaces and log merges on tables without deletion vectors: N7, N8, N10, N11, N13,
N14 and N19. Their jobs evaluate, the engine makes files again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake import rows as model
from support.lake import timed
from support.lake.lake import loads, message, reason, reconciled, result
from support.lake.plain import (
    PROTOCOL,
    Case,
    Hits,
    assert_edited_out,
    assert_no_vectors_of_ours,
    edited,
    figures,
    plain,
    updates,
)
from support.lake.rewritten import RECOMPRESS, rewrite
from support.lake.rows import Rows, id_in, join, k_is, plus, without
from support.lake.timed import TimedLake, day, hours
from support.lake.timed import join as timed_join
from support.lake.timed import without as timed_without
from support.lake.vectors import encode_inline
from tandem import mergelog
from tandem.cli.history_model import entries
from tandem.delta.actions import Commit
from tandem.delta.log.snapshot import commit_info, remove_of
from tandem.operations.machine.events import Point
from tandem.operations.session import carry_out
from tandem.spec.resources import Operation
from tandem.spec.status import Phase
from tandem.text import human_bytes
from tandem.timeline.segments import segment_name

FOUR = loads(range(4))
UPDATED = plus(FOUR, k_is(1), 15)

REWRITES: dict[str, Callable[[QuickLake], Operation]] = {
    "bin-pack": lambda lake: lake.compaction(),
    "sort": lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}),
    "z-order": lambda lake: lake.compaction(
        "Major", layout={"strategy": "ZOrder", "columns": ["k", "v"]}
    ),
    "segment rewrite": lambda lake: rewrite(lake, *lake.names, **RECOMPRESS),
}


# N7: our statements and our rewrites


@pytest.mark.parametrize("rewrites", REWRITES)
def test_N7_an_update_commits_while_a_rewrite_runs(tmp_path: Path, rewrites: str) -> None:
    """The edited files go in the places of the inputs, with their new values: nothing is lost."""
    lake = plain(tmp_path)
    held = lake.hold(REWRITES[rewrites](lake), Point.READ_RESULT)
    lake.do(lake.update("k = 1 AND id >= 10", v="v + 15"))
    done = held.finish()
    after = plus(FOUR, lambda row: row[1] == 1 and row[0] >= 10, 15)
    assert done.phase is Phase.SUCCEEDED, done
    assert figures(reconciled(done)) == edited()
    assert result(done).files_removed == 4
    assert len(lake.log.snapshot().files) == (4 if rewrites == "segment rewrite" else 1)
    assert_edited_out(lake, FOUR, after)


@pytest.mark.parametrize("rewrites", REWRITES)
def test_N7_a_rewrite_commits_while_an_update_runs(tmp_path: Path, rewrites: str) -> None:
    lake = plain(tmp_path)
    held = lake.hold(lake.update("k = 1", v="v + 15"), Point.READ_RESULT)
    lake.do(REWRITES[rewrites](lake))
    files = len(lake.log.snapshot().files)
    done = held.succeed()
    assert reconciled(done).rows_evaluated == 0
    assert reconciled(done).deletes_remapped == 8
    assert figures(reconciled(done)) == edited()
    # Rows keep their places: no file is added but those that take the place of others.
    assert len(lake.log.snapshot().files) == files
    assert_edited_out(lake, FOUR, UPDATED)


@pytest.mark.parametrize("rewrites", ["bin-pack", "sort"])
def test_N7_a_chain_of_statements_commits_while_a_rewrite_runs(
    tmp_path: Path, rewrites: str
) -> None:
    lake = plain(tmp_path)
    held = lake.hold(REWRITES[rewrites](lake), Point.READ_RESULT)
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.do(lake.delete("id IN (1, 12)"))
    lake.do(lake.update("k = 2 OR k = 1", v="v * 2"))
    lake.do(lake.merge(((3, 3, -3), (60, 0, 6))))
    rows = without(UPDATED, id_in([1, 12, 3]))
    rows = tuple((i, k, v * 2 if k in (1, 2) else v) for i, k, v in rows)
    after = join(rows, ((3, 3, -3), (60, 0, 6)))
    lake.assert_rows(after)
    done = held.succeed()
    assert figures(reconciled(done)) == edited()
    assert len(lake.log.snapshot().files) == 2  # and the row that the merge inserts
    assert_edited_out(lake, after)


def test_N7_statements_and_rewrites_overtake_each_other(tmp_path: Path) -> None:
    """An update, held over two compactions, one of which is held over another update: it is
    evaluated on the rows that this one changed, and on no others."""
    lake = plain(tmp_path, 8)
    eight = loads(range(8))
    late = lake.hold(lake.update("k = 1", v="v + 15"), Point.READ_RESULT)
    lake.do(lake.compaction())
    major = lake.hold(lake.compaction("Major"), Point.READ_RESULT)
    lake.do(lake.update("k = 2", v="v + 1"))
    major.succeed()
    done = late.succeed()
    assert reconciled(done).rows_evaluated == 16
    once = plus(eight, k_is(2), 1)
    assert_edited_out(lake, eight, once, plus(once, k_is(1), 15))


@pytest.mark.parametrize(
    ("at", "after"),
    [(Point.RECONCILE, True), (Point.WRITE_SIDECARS, True), (Point.PUT_COMMIT, False)],
    ids=str,
)
def test_N7_a_rewrite_is_killed_beside_an_update_and_run_again(
    tmp_path: Path, at: Point, after: bool
) -> None:
    lake = plain(tmp_path)
    lake.backoff_limit = 2
    compaction = lake.compaction()
    held = lake.hold(compaction, Point.READ_RESULT)
    lake.do(lake.update("k = 1", v="v + 15"))
    held.go_on(at, after=after).kill()
    lake.do(lake.update("k = 2", v="v + 1"))
    done = lake.do(compaction)
    assert figures(reconciled(done)) == edited()
    assert len(lake.log.snapshot().files) == 1
    assert_edited_out(lake, plus(UPDATED, k_is(2), 1))


# N8: a statement was evaluated on an heir that a compaction takes over


@pytest.mark.parametrize("rewrites", ["bin-pack", "sort"])
def test_N8_rows_of_an_heir_are_followed_into_the_compaction_that_takes_it(
    tmp_path: Path, rewrites: str
) -> None:
    """The map of the commit leads to the heir, not to the input in whose place it went (R-5)."""
    lake = plain(tmp_path)
    compaction = lake.hold(REWRITES[rewrites](lake), Point.READ_RESULT)
    lake.do(lake.update("k = 1", v="v + 15"))
    late = lake.hold(lake.update("k = 2 OR k = 1", v="v + 1"), Point.READ_RESULT)
    compaction.succeed()
    done = late.succeed()
    assert reconciled(done).rows_evaluated == 0
    assert reconciled(done).deletes_remapped == 16
    after = plus(UPDATED, k_is(1, 2), 1)
    assert_edited_out(lake, FOUR, UPDATED, after)


def test_N8_a_statement_that_was_evaluated_before_the_heir_evaluates_what_it_changed(
    tmp_path: Path,
) -> None:
    lake = plain(tmp_path)
    compaction = lake.hold(lake.compaction(), Point.READ_RESULT)
    late = lake.hold(lake.update("v >= 1500", v="v + 1"), Point.READ_RESULT)
    # Rows that fit only now, and one that fits no more.
    lake.do(lake.update("id IN (1, 2, 30)", v="CASE WHEN id = 30 THEN 0 ELSE v + 5000 END"))
    compaction.succeed()
    done = late.succeed()
    assert reconciled(done).rows_evaluated == 3
    changed = {1: 5100, 2: 5200, 30: 0}
    rows = tuple((i, k, changed.get(i, v)) for i, k, v in FOUR)
    assert_edited_out(lake, plus(rows, lambda row: row[2] >= 1500, 1))


# N10: two statements, one row


@pytest.mark.parametrize("isolation", ["WriteSerializable", "Serializable"])
def test_N10_two_updates_of_one_row_both_count(tmp_path: Path, isolation: str) -> None:
    lake = plain(tmp_path)
    first, second = (
        lake.hold(lake.update("id = 7", isolation=isolation, v="v + 10"), Point.READ_RESULT)
        for _ in range(2)
    )
    for held in (first, second):
        done = held.succeed()
    assert reconciled(done).rows_evaluated == 1
    assert_edited_out(lake, FOUR, plus(FOUR, id_in([7]), 10), plus(FOUR, id_in([7]), 20))


@pytest.mark.parametrize("first", ["update", "delete", "merge"])
@pytest.mark.parametrize("second", ["update", "delete", "merge"])
def test_N10_two_statements_of_one_file_at_once(tmp_path: Path, first: str, second: str) -> None:
    made: dict[str, tuple[Callable[[], Operation], Callable[[Rows], Rows]]] = {
        "update": (lambda: lake.update("k <= 1", v="v * 2 + 1"), doubled),
        "delete": (lambda: lake.delete("k = 1 AND id > 5"), emptied),
        "merge": (lambda: lake.merge(((6, 1, -6), (7, 2, -7), (70, 0, 70))), upserted),
    }
    lake = plain(tmp_path)
    one, other = (lake.hold(made[kind][0](), Point.READ_RESULT) for kind in (first, second))
    one.succeed()
    between = made[first][1](FOUR)
    lake.assert_rows(between)
    other.succeed()
    assert_edited_out(lake, made[second][1](between))


def doubled(of: Rows) -> Rows:
    return tuple((i, k, v * 2 + 1 if k <= 1 else v) for i, k, v in of)


def emptied(of: Rows) -> Rows:
    return without(of, lambda row: row[1] == 1 and row[0] > 5)


def upserted(of: Rows) -> Rows:
    return join(without(of, id_in([6, 7, 70])), ((6, 1, -6), (7, 2, -7), (70, 0, 70)))


# N11: a target gets a vector after its edit was made


@pytest.mark.parametrize("statement", ["update", "delete", "merge"])
def test_N11_a_target_that_gets_a_vector_after_its_edit_is_edited_again(
    tmp_path: Path, statement: str
) -> None:
    """By a writer that takes the feature for the property."""
    lake = quick_lake.make(tmp_path, 4)
    lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    lake.first_version = lake.version
    protocol = lake.log.snapshot().protocol
    cases: dict[str, Case] = {
        "update": (lambda lake: lake.update("k = 1", v="v + 15"), lambda of: plus(of, k_is(1), 15)),
        "delete": (lambda lake: lake.delete("k = 1"), lambda of: without(of, k_is(1))),
        "merge": (lambda lake: lake.merge(((6, 1, -6), (70, 0, 70))), merged),
    }
    make, after = cases[statement]
    held = lake.hold(make(lake), Point.READ_RESULT)
    held.go_on(Point.PUT_COMMIT)
    hide(lake, 1, 2)
    rows = without(FOUR, id_in([1, 2]))
    done = held.succeed()
    assert figures(reconciled(done)) == edited(2)
    assert not any(add.deletion_vector for add in lake.log.snapshot().adds())
    assert_edited_out(lake, after(rows), protocol=protocol)


def merged(of: Rows) -> Rows:
    return join(without(of, id_in([6, 70])), ((6, 1, -6), (70, 0, 70)))


def hide(lake: QuickLake, *ids: int) -> None:
    """Delete rows of the first ten by a vector."""
    snapshot = lake.log.snapshot()
    [add] = [
        add for add in snapshot.adds() if lake.file(add.path)["id"].to_pylist() == list(range(10))
    ]
    hidden = replace(add, deletion_vector=encode_inline(BitMap64(ids)), data_change=True)
    info = commit_info("DELETE", {}, now_ms=1, previous=snapshot, blind_append=False)
    removed = remove_of(add, deletion_ms=1, data_change=True)
    lake.log.put_commit(snapshot.version + 1, (info, removed, hidden), token="other")


# N13: another engine makes our targets again


@pytest.mark.parametrize("statement", ["update", "delete", "merge"])
def test_N13_a_writer_that_is_slower_than_we_is_overtaken(tmp_path: Path, statement: str) -> None:
    lake = plain(tmp_path)
    hits = Hits(updates(lake, 11, 1))
    cases: dict[str, Case] = {
        "update": (lambda lake: lake.update("k = 1", v="v * 2"), times_two),
        "delete": (
            lambda lake: lake.delete("v % 100 = 1"),
            lambda of: without(of, lambda row: row[2] % 100 == 1),
        ),
        "merge": (lambda lake: lake.merge(((11, 1, -11), (70, 0, 70))), merged_11),
    }
    make, after = cases[statement]
    done = lake.do(make(lake), interceptor=hits)
    assert hits.done == 2
    assert (reconciled(done).edit_rounds or 0) <= 3
    assert_edited_out(lake, after(plus(FOUR, id_in([1, 11]), 1)))


def times_two(of: Rows) -> Rows:
    return tuple((i, k, v * 2 if k == 1 else v) for i, k, v in of)


def merged_11(of: Rows) -> Rows:
    return join(without(of, id_in([11, 70])), ((11, 1, -11), (70, 0, 70)))


@pytest.mark.parametrize("statement", ["update", "delete", "merge"])
def test_N13_a_writer_that_is_always_faster_ends_it_as_a_conflict(
    tmp_path: Path, statement: str
) -> None:
    lake = plain(tmp_path)
    hits = Hits(updates(lake, *([1] * 40)))
    conflict = {"conflict": {"maxAttempts": 3}}
    if statement == "update":
        body = {"update": {"where": "k = 1", "set": {"v": "v * 2"}}, **conflict}
        operation = lake.resource("TableUpdate", body)
    elif statement == "delete":
        operation = lake.delete("k = 1", **conflict)
    else:
        source = {"format": "Parquet", "location": lake.source(((1, 1, -1),)).as_uri()}
        merge = {"source": source, "on": "t.id = s.id", "whenMatched": [{"updateAll": {}}]}
        operation = lake.resource("TableUpdate", {"merge": merge, **conflict})
    done = lake.run(operation, interceptor=hits)
    assert (done.phase, reason(done)) == (Phase.FAILED, "Conflict")
    said = message(done)
    if statement == "merge":  # whose job evaluates each round
        assert "3 rounds made no progress; the last was lost to UPDATE by" in said
    else:
        assert "3 rounds of edits made no progress: a round took" in said
        assert "Enable deletion vectors" in said
    assert_edited_out(lake, plus(FOUR, id_in([1]), hits.done))


# N14: how much of a file is hit


@pytest.mark.parametrize("statement", ["update", "delete"])
@pytest.mark.parametrize("where", ["v < 0", "id >= 10 AND id < 20", "true"])
def test_N14_no_row_all_rows_of_a_file_and_all_rows(
    tmp_path: Path, statement: str, where: str
) -> None:
    lake = plain(tmp_path)
    hit = {"v < 0": (), "true": range(40)}.get(where, range(10, 20))
    names = lake.names
    if statement == "update":
        done = lake.do(lake.update(where, v="v + 15"))
        after = plus(FOUR, id_in(hit), 15)
    else:
        done = lake.do(lake.delete(where))
        after = without(FOUR, id_in(hit))
    if not hit:
        assert done.result is None or result(done).files_added == 0
    elif statement == "delete":
        # Whole files go, and none is made again.
        assert figures(reconciled(done)) == edited(None)
        assert (result(done).files_added, result(done).files_removed) == (0, len(hit) // 10)
    else:
        assert (result(done).files_added, result(done).files_removed) == (len(hit) // 10,) * 2
        # Rows keep their places, and files their segments (0082).
        assert lake.names == names
    assert_edited_out(lake, after)


def test_N14_an_edit_keeps_the_segment_of_a_foreign_file(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    names = lake.names
    done = lake.do(lake.update("k = 1", v="v + 15"))
    assert lake.names == names
    assert result(done).segments is None
    # And those of our own.
    lake.do(lake.compaction())
    [add] = lake.log.snapshot().adds()
    tags = dict(add.tags)
    lake.do(lake.delete("id = 9"))
    [add] = lake.log.snapshot().adds()
    changing = {"tandem.rowMap"}
    assert {k: v for k, v in add.tags.items() if k not in changing} == {
        k: v for k, v in tags.items() if k not in changing
    }
    assert segment_name(add) == lake.names[0]
    assert_edited_out(lake, without(UPDATED, id_in([9])))


def test_N14_a_layout_is_kept_unless_one_of_its_columns_is_set(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    lake.do(lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}))
    for where, set_, label in (("k = 1", {"k": "9"}, "Sort:v"), ("k = 9", {"v": "-1"}, None)):
        lake.do(lake.update(where, **set_))
        [add] = lake.log.snapshot().adds()
        assert add.tags.get("tandem.layout") == label
    rows = tuple((i, 9, -1) if k == 1 else (i, k, v) for i, k, v in FOUR)
    assert_edited_out(lake, rows)


@pytest.mark.parametrize("whole", ["some rows", "all rows of a file"])
def test_N14_rows_whose_partition_value_is_set_move(tmp_path: Path, whole: str) -> None:
    lake = quick_lake.make(tmp_path, 4, properties={}, partition_by=["k"])
    where = "id = 7" if whole == "some rows" else "k = 2"
    hit = [7] if whole == "some rows" else [i for i, k, _ in FOUR if k == 2]
    done = lake.do(lake.update(where, k="3"))
    after = join(without(FOUR, id_in(hit)), tuple((i, 3, i * 100) for i in hit))
    assert result(done).rows_affected is not None
    for add in lake.log.snapshot().adds():
        found = lake.file(add.path)["id"].to_pylist()
        wanted = {i for i, k, _ in after if str(k) == add.partition_values["k"]}
        assert {*found} <= wanted
    assert_edited_out(lake, after)


@pytest.mark.parametrize("more", [0, 1])
def test_N14_rows_that_have_the_partition_value_already_stay(tmp_path: Path, more: int) -> None:
    lake = quick_lake.make(tmp_path, 4, properties={}, partition_by=["k"])
    hit = [2, 7, 11]
    set_ = {"k": "2", "v": "v + 1"} if more else {"k": "2"}
    lake.do(lake.update("id IN (2, 7, 11)", **set_))
    changed = tuple((i, 2, v + more) for i, _, v in FOUR if i in hit)
    assert_edited_out(lake, join(without(FOUR, id_in(hit)), changed))


# N19: replaces, drops, log merges; cuts are in `test_cuts`


@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
@pytest.mark.parametrize("drops", [True, False])
def test_N19_a_replace_and_a_drop_of_a_part_of_a_file(
    tmp_path: Path, scope: str, drops: bool
) -> None:
    table = days(tmp_path)
    rows = None if drops else hours(40, 41, first=1_000)
    held = table.lake.hold(table.replace(DAY_2, rows=rows, scope=scope), Point.READ_RESULT)
    late = hours(30, first=2_000)
    table.append(late)
    done = held.succeed()
    kept = late if scope == "AtStart" else {}
    after = timed_join(timed_without(THREE_DAYS, day(2)), rows or {}, kept)
    assert figures(reconciled(done)) == edited()
    assert result(done).replaced is not None
    table.assert_shows(after)
    table.assert_history(THREE_DAYS, timed_join(THREE_DAYS, late), after)
    assert table.lake.log.snapshot().protocol == PROTOCOL
    assert_no_vectors_of_ours(table.lake)


@pytest.mark.parametrize("first", ["statement", "replace"])
@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
def test_N19_a_replace_beside_our_statement_on_the_same_file(
    tmp_path: Path, scope: str, first: str
) -> None:
    """Ages are known by maps, of changed rows, too: an update makes no row younger."""
    table = days(tmp_path)
    new = hours(40, 41, first=1_000)
    replacement = table.lake.hold(table.replace(DAY_2, rows=new, scope=scope), Point.READ_RESULT)
    update = table.lake.hold(
        table.lake.update("id IN (5, 30)", day="DATE'2020-01-01'"), Point.READ_RESULT
    )
    order = [update, replacement] if first == "statement" else [replacement, update]
    for held in order:
        held.succeed()
    table.assert_shows(timed_join(timed_without(THREE_DAYS, day(2)), new))
    table.lake.assert_clean()
    shown = pa.table(table.lake.foreign().scan()).to_pylist()
    assert {row["id"] for row in shown if row["day"].year == 2020} == {5}


@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
@pytest.mark.parametrize("writer", ["delete", "update"])
def test_N19_another_engine_makes_a_file_again_beside_a_replace(
    tmp_path: Path, scope: str, writer: str
) -> None:
    table = days(tmp_path)
    held = table.lake.hold(table.replace(DAY_2, scope=scope), Point.READ_RESULT)
    late = hours(30, 70, first=2_000)
    table.append(late)
    before = timed_join(THREE_DAYS, late)
    left = {id_: hour for id_, hour in before.items() if id_ not in (5, 2_001)}
    if writer == "delete":
        table.lake.foreign().delete("id = 5 OR id = 2001")
    else:
        table.lake.foreign().update({"id": "id + 5000"}, predicate="id = 5 OR id = 2001")
        left |= {5_005: 5, 7_001: 70}
    done = held.finish()
    if scope == "AtStart":
        # It does not say which file's rows are in which.
        assert (done.phase, reason(done)) == (Phase.FAILED, "Conflict")
        table.assert_history(THREE_DAYS, before, left)
        return
    assert done.phase is Phase.SUCCEEDED, done
    table.assert_history(THREE_DAYS, before, left, timed_without(left, day(2)))


def test_N19_a_replace_that_comes_too_late_each_time_is_a_conflict(tmp_path: Path) -> None:
    table = days(tmp_path)

    def hit() -> object:
        return table.lake.foreign().update({"day": "DATE '2020-01-01'"}, predicate="id = 5")

    hits = Hits([hit] * 40)
    done = table.lake.run(table.replace(DAY_2, scope="AtCommit"), interceptor=hits)
    assert (done.phase, reason(done)) == (Phase.FAILED, "Conflict")
    assert "5 rounds of edits made no progress" in message(done)
    table.assert_shows(THREE_DAYS)
    table.lake.assert_clean()


DAY_2 = "2013-03-02"
THREE_DAYS = hours(day(1), day(2), day(3), first=0)


def days(folder: Path) -> TimedLake:
    """One file of three days, without vectors."""
    lake = quick_lake.make(folder, 0, schema=timed.SCHEMA, properties={})
    lake.time = timed.DAYS
    table = TimedLake(lake)
    table.append(THREE_DAYS)
    lake.first_version = lake.version
    return table


@pytest.mark.parametrize("ordering", ["", "v"])
def test_N19_a_log_is_merged_by_edits(tmp_path: Path, ordering: str) -> None:
    lake = plain(tmp_path)
    log = mergelog.open_log(str(lake.path))
    mergelog.ensure_log(log, mergelog.LogSettings(("id",), ordering), now_ms=0, nonce="made once")
    with mergelog.LogWriter(log, "w", pause=lambda _: None) as writer:
        writer.append(model.table(((3, 9, 900), (12, 9, 1), (50, 9, 5))), batch=0)
    plan = lake.run(lake.compaction("LogMerge", dryRun=True)).plan
    assert plan is not None
    assert plan.edits is not None
    assert plan.edits.startswith("rewrites up to 2 files (")
    held = lake.hold(lake.compaction("LogMerge"), Point.READ_RESULT)
    lake.foreign().delete("id = 13")  # makes the file of row 12 again
    lake.do(lake.compaction())
    after = without(FOUR, id_in([13]))
    beaten = {12} if ordering else set()  # it has a lower `v` than the row of the table
    new = tuple(row for row in ((3, 9, 900), (12, 9, 1), (50, 9, 5)) if row[0] not in beaten)
    after = join(without(after, id_in(row[0] for row in new)), new)
    done = held.succeed()
    assert reconciled(done).edit_rounds == 1
    assert_edited_out(lake, after)


# Edits of many bytes are made by the job


@pytest.mark.parametrize("statement", ["update", "delete", "merge"])
def test_a_job_makes_the_edits_of_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(carry_out, "MOST_HERE", 0)
    lake = plain(tmp_path)
    cases: dict[str, Case] = {
        "update": (lambda lake: lake.update("k = 1", v="v + 15"), lambda of: plus(of, k_is(1), 15)),
        "delete": (lambda lake: lake.delete("k = 1"), lambda of: without(of, k_is(1))),
        "merge": (lambda lake: lake.merge(((6, 1, -6), (70, 0, 70))), merged),
    }
    make, after = cases[statement]
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.do(lake.update("id = 16 OR id = 6", v="v + 1"))
    done = held.succeed()
    assert (reconciled(done).edit_rounds or 0) >= 1
    assert_edited_out(lake, after(plus(FOUR, id_in([6, 16]), 1)))


# What a commit says


def test_what_is_logged_of_an_update_by_edits(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    lake.do(lake.update("k = 1 AND id < 20", v="v + 15"))
    commit = lake.commit()
    assert commit.info is not None
    assert commit.info.operation == "UPDATE"
    assert data_changes(commit) == [True] * 4
    before = {add.path: add for add in lake.log.snapshot(lake.version - 1).adds()}
    assert all(remove.logged_path in before for remove in commit.removes)
    for add in commit.adds:
        assert '"numRecords":10' in (add.stats or "")
        assert add.partition_values == {}
        assert not add.deletion_vector
    lake.do(lake.compaction())
    assert not any(data_changes(lake.commit()))
    assert lake.log.snapshot().protocol == PROTOCOL


def test_the_history_counts_no_rows_that_edits_only_moved(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    lake.do(lake.update("id = 3", v="v + 15"))
    lake.do(lake.delete("id = 4"))
    shown = [entry.rows_text for entry in entries([lake.commit(lake.version - 1), lake.commit()])]
    assert shown == ["+1 −1", "−1"]


def data_changes(commit: Commit) -> list[bool]:
    adds = [add.data_change for add in commit.adds]
    return [*adds, *(remove.data_change for remove in commit.removes)]


# Plans


def test_a_plan_tells_what_will_be_copied_and_encoded(tmp_path: Path) -> None:
    """As much as is done where each row group has a match, but for what compresses otherwise."""
    lake = plain(tmp_path)
    drawn = random.Random(7)  # both have a dictionary of a few hundred values
    columns = {name: [drawn.randrange(300) for _ in range(20_000)] for name in ("id", "v")}
    lake.load(pa.table({**columns, "k": [1] * 20_000}).select(["id", "k", "v"]).cast(model.SCHEMA))
    status = lake.do(lake.update("k = 1", v="v + 1"))
    assert status.plan is not None
    files = lake.log.snapshot().files.num_rows
    assert status.plan.edits is not None
    told = re.search(
        r"up to (\d+) files .* only v is encoded: about (.*) at most, and (.*) copied\.",
        status.plan.edits,
    )
    assert told is not None, status.plan.edits
    done = reconciled(status)
    assert done.bytes_encoded is not None
    assert done.bytes_copied is not None
    assert told[1] == str(files)
    assert in_kib(told[2]) == pytest.approx(done.bytes_encoded / 1024, rel=0.15)
    assert in_kib(told[3]) == pytest.approx(done.bytes_copied / 1024, rel=0.15)


def test_a_plan_of_a_delete_tells_an_upper_bound(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    status = lake.do(lake.delete("k = 1"))
    assert status.plan is not None
    size = human_bytes(status.plan.input_bytes)
    assert status.plan.edits is not None
    assert (
        f"others are encoded, up to {size}. With deletion vectors (enableDeletionVectors"
        in status.plan.edits
    )


def test_a_plan_does_not_tell_that_rows_that_move_are_copied(tmp_path: Path) -> None:
    """They leave their file, whose row groups are encoded without them."""
    lake = quick_lake.make(tmp_path, 4, properties={}, partition_by=["k"])
    status = lake.do(lake.update("id = 7", k="3"))
    assert status.plan is not None
    assert status.plan.edits is not None
    assert f"encoded, up to {human_bytes(status.plan.input_bytes)}." in status.plan.edits


def in_kib(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024}[unit]
