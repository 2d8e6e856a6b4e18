"""The change data feed of tables that Tandem changes (R-14, N25): what `deltalake` reads of each
version is the difference of the versions. Spark's reading is in `test_change_feed_spark`.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before
from support.lake import rows as model
from support.lake import timed
from support.lake.feed import FEED, assert_feed, changes_of, counts
from support.lake.lake import DELETION_VECTORS, INSERT_ALL, loads, reason
from support.lake.log_blocks import LogBlocks
from support.lake.plain import Hits, deletes, updates
from support.lake.timed import TimedLake, day, hours
from support.lake.tracking import track
from tandem.delta.change_feed import RESERVED
from tandem.delta.protocol import OperationKind, refusals
from tandem.delta.schema import PHYSICAL_NAME
from tandem.operations.clean import clean
from tandem.operations.machine.events import Point
from tandem.operations.session import carry_out
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

VECTORS = {"by vectors": DELETION_VECTORS, "by edits": {}}
BEFORE, AFTER = "update_preimage", "update_postimage"


@pytest.fixture(params=VECTORS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path, 4, properties={**VECTORS[request.param], **FEED})


def names_change_files(lake: QuickLake) -> bool:
    return bool(lake.commit().change_files)


# What each operation writes


def test_an_update_has_both_images_of_each_row(lake: QuickLake) -> None:
    lake.do(lake.update("k = 1", v="v + 15"))
    [found] = assert_feed(lake)
    assert counts(found) == {BEFORE: 8, AFTER: 8}
    metrics = (lake.commit().info or pytest.fail("no commitInfo")).body["operationMetrics"]
    assert int(metrics["numAddedChangeFiles"]) == len(lake.commit().change_files)
    for line in (lake.path / f"_delta_log/{lake.version:020d}.json").read_text().splitlines():
        if (found := json.loads(line).get("cdc")) is not None:
            assert found["dataChange"] is False
            assert found["path"].startswith("_change_data/tandem-")
            assert (lake.path / found["path"]).stat().st_size == found["size"]


def test_a_delete_names_change_files_only_if_a_file_is_made_again(lake: QuickLake) -> None:
    lake.do(lake.delete("k = 1 AND id < 20"))
    lake.do(lake.delete("id = 2"))
    by_edits = not any(add.deletion_vector for add in lake.commit().adds)
    assert names_change_files(lake) is by_edits
    lake.do(lake.delete("id >= 30"))
    assert not names_change_files(lake)  # a whole file
    shown = [counts(each) for each in assert_feed(lake)]
    assert shown == [{"delete": 4}, {"delete": 1}, {"delete": 10}]


def test_a_merge_has_all_of_its_changes_or_those_that_readers_derive(lake: QuickLake) -> None:
    lake.do(lake.merge(((3, 3, -3), (60, 0, 6), (61, 1, 7))))
    assert names_change_files(lake)
    lake.do(lake.merge(((4, 4, 4), (70, 0, 7)), **INSERT_ALL))
    assert not names_change_files(lake)
    clauses: dict[str, Any] = {
        "whenMatched": [{"where": "t.k = 0", "delete": {}}, {"update": {"set": {"v": "s.v"}}}],
        "whenNotMatchedBySource": [{"where": "t.id > 35", "delete": {}}],
        **INSERT_ALL,
    }
    lake.do(lake.merge(((0, 0, 1), (6, 1, -6), (90, 0, 9)), **clauses))
    assert [counts(each) for each in assert_feed(lake)] == [
        {BEFORE: 1, AFTER: 1, "insert": 2},
        {"insert": 1},
        {"delete": 8, "insert": 1, BEFORE: 1, AFTER: 1},
    ]


def test_rewrites_and_appends_name_none(lake: QuickLake) -> None:
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.do(lake.ingest(loads([9])))
    assert not names_change_files(lake)
    lake.do(lake.compaction("Major"))
    assert not names_change_files(lake)
    shown = [counts(each) for each in assert_feed(lake)]
    assert shown == [{BEFORE: 8, AFTER: 8}, {"insert": 10}, {}]


def test_rows_that_move_to_another_partition(tmp_path: Path) -> None:
    for number, properties in enumerate(VECTORS.values()):
        lake = quick_lake.make(
            tmp_path / str(number), 2, properties={**properties, **FEED}, partition_by=["k"]
        )
        lake.do(lake.update("id IN (1, 2, 7)", k="4", v="v + 1"))
        lake.do(lake.delete("id IN (3, 13)"))
        [moved, _] = assert_feed(lake)
        assert counts(moved) == {BEFORE: 3, AFTER: 3}


def test_change_files_are_in_no_folders_of_partition_values(tmp_path: Path) -> None:
    """`deltalake` 1.6.6 does not decode their paths."""
    schema = model.SCHEMA.append(pa.field("p", pa.string()))
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties=FEED, partition_by=["p"])
    lake.append(model.table(model.rows(range(2))).append_column("p", pa.array(["ü:% c/d", None])))
    lake.first_version = lake.version
    lake.do(lake.update("id >= 0", v="v + 1"))
    assert [counts(found)[AFTER] for found in assert_feed(lake)] == [2]


def test_rows_with_ids_keep_them_and_change_files_have_none(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 2, properties=FEED)
    track(lake)
    lake.first_version = lake.version
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.do(lake.compaction("Major"))
    lake.do(lake.update("k = 2", v="v + 15"))
    assert_feed(lake)
    for version in range(lake.first_version + 1, lake.version + 1):
        for file in lake.commit(version).change_files:
            assert lake.file(file.logged_path).column_names == ["id", "k", "v", "_change_type"]


@pytest.mark.parametrize("vectors", [True, False])
def test_a_replace_and_a_drop(tmp_path: Path, vectors: bool) -> None:
    properties = {**FEED, **(DELETION_VECTORS if vectors else {})}
    made = quick_lake.make(tmp_path, 0, schema=timed.SCHEMA, properties=properties)
    made.time = timed.DAYS
    table = TimedLake(made)
    table.append(hours(day(1), day(2), first=0))
    made.first_version = made.version
    new = hours(day(2), first=500)
    made.do(table.replace(timed.interval(24, 48), rows=new))
    assert names_change_files(made) is not vectors
    # A part of what is left: of a whole file that has a vector, deltalake 1.6.6 shows the rows that
    # were deleted before (Spark, those that were not: `test_change_feed_spark`).
    made.do(table.replace(timed.interval(0, 23)))
    shown = [counts(each) for each in assert_feed(made)]
    assert shown == [{"delete": 24, "insert": 24}, {"delete": 23}]


def test_a_log_merge_tells_updates_from_inserts_and_deletes(lake: QuickLake) -> None:
    log = LogBlocks(lake.location, "w", made=True)
    log.upsert(((3, 3, -3), (60, 0, 6), (11, 1, -11)))
    log.delete(5, 77)
    log.upsert(((61, 1, 7),))
    lake.do(lake.compaction("LogMerge"))
    assert counts(changes_of(lake, lake.version)) == {
        BEFORE: 2, AFTER: 2, "insert": 2, "delete": 1,
    }  # fmt: skip
    assert_feed(lake)


# Beside others


STATEMENTS: dict[str, Callable[[QuickLake], Operation]] = {
    "update": lambda lake: lake.update("k = 1", v="v + 15"),
    "delete": lambda lake: lake.delete("k = 1"),
    "merge": lambda lake: lake.merge(((1, 1, -1), (6, 1, -6), (70, 0, 70))),
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_N25_lost_followed_and_evaluated_rows_have_their_images(
    lake: QuickLake, statement: str
) -> None:
    """One matched row is gone, one has another value, all have moved, and one came."""
    held = lake.hold(STATEMENTS[statement](lake), Point.READ_RESULT)
    lake.do(lake.delete("id = 6"))
    lake.do(lake.update("id IN (11, 2)", k="1", v="v + 1"))
    lake.do(lake.compaction())
    held.succeed()
    *_, found = assert_feed(lake)
    assert counts(found) == {
        "update": {BEFORE: 8, AFTER: 8},
        "delete": {"delete": 8},
        "merge": {BEFORE: 1, AFTER: 1, "insert": 2},
    }[statement]  # fmt: skip


@pytest.mark.parametrize("acts", [deletes, pytest.param(updates, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_N25_change_files_of_an_outdated_decision_are_not_named(
    lake: QuickLake, statement: str, acts: Callable[..., list[Callable[[], object]]]
) -> None:
    """Others commit after the change files were made, right before the put."""
    held = Hits(acts(lake, 1, 6), after=True)
    lake.do(STATEMENTS[statement](lake), interceptor=held)
    assert held.done == 2
    assert_feed(lake)


@pytest.mark.parametrize(
    "statement",
    ["update", *(pytest.param(each, marks=pytest.mark.matrix) for each in ("delete", "merge"))],
)
@pytest.mark.parametrize("vectors", VECTORS)
def test_N25_the_feed_is_switched_on_and_off_before_a_commit(
    tmp_path: Path, statement: str, vectors: str
) -> None:
    lake = quick_lake.make(tmp_path, 4, properties={**VECTORS[vectors], **FEED})
    feed = "delta.enableChangeDataFeed"

    def switch(value: str) -> None:
        lake.foreign().alter.set_table_properties({feed: value})

    switch("false")
    lake.backoff_limit = 1
    lake.do(
        STATEMENTS[statement](lake),
        interceptor=just_before(Point.PUT_COMMIT, lambda: switch("true")),
    )
    lake.first_version = lake.version - 1
    assert_feed(lake)
    lake.do(
        lake.update("k = 2", v="v + 1"),
        interceptor=just_before(Point.PUT_COMMIT, lambda: switch("false")),
    )
    assert not names_change_files(lake)
    lake.assert_clean()


def test_a_statement_that_is_killed_leaves_no_change_files(lake: QuickLake) -> None:
    lake.backoff_limit = 2
    update = lake.update("k = 1", v="v + 15")
    lake.hold(update, Point.PUT_COMMIT).kill()
    assert [m.path for m in lake.store.list("_change_data")]
    lake.do(update)
    assert_feed(lake)


def test_change_files_that_a_vacuum_took_are_made_again(lake: QuickLake) -> None:
    """One without a retention knows no attempt that is about to commit."""
    lake.backoff_limit = 1
    vacuum = just_before(Point.PUT_COMMIT, lambda: lake.store.delete_prefix("_change_data"))
    assert lake.do(lake.update("k = 1", v="v + 15"), interceptor=vacuum).attempt == 2
    assert_feed(lake)


def test_the_driver_makes_change_files_of_large_tables(
    lake: QuickLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry_out, "MOST_HERE", 0)
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.do(lake.merge(((3, 3, -3), (60, 0, 6))))
    first, second = assert_feed(lake)
    assert counts(first) == {BEFORE: 8, AFTER: 8}
    assert counts(second) == {BEFORE: 1, AFTER: 1, "insert": 1}


@pytest.mark.matrix
def test_N25_statements_at_random_beside_one_another(lake: QuickLake) -> None:
    drawn = random.Random(11)
    makers: list[Callable[[], Operation]] = [
        lambda: lake.update(f"k = {drawn.randrange(5)}", v="v * 2 + 1"),
        lambda: lake.update(f"id % 7 = {drawn.randrange(7)}", k="(k + 1) % 5"),
        lambda: lake.delete(f"id = {drawn.randrange(40)}"),
        lambda: lake.merge(((drawn.randrange(60), 2, 1),)),
    ]
    for _ in range(3):
        held = [lake.hold(drawn.choice(makers)(), Point.READ_RESULT) for _ in range(2)]
        lake.do(drawn.choice([*makers, lake.compaction])())
        for each in held:
            each.succeed()
    assert_feed(lake)


# Refusals, cleaning


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_column_of_the_feed_is_refused_by_name(tmp_path: Path, name: str) -> None:
    schema = model.SCHEMA.append(pa.field(name, pa.string()))
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties=FEED)
    done = lake.run(lake.delete("id = 3"))
    assert (done.phase, reason(done)) == (Phase.FAILED, "UnsupportedFeature")
    assert name in str(done.conditions)


def test_a_physical_name_of_change_files_is_refused(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0, properties=FEED)
    snapshot = lake.log.snapshot()
    field = {
        "name": "v",
        "type": "long",
        "nullable": True,
        "metadata": {PHYSICAL_NAME: "_Change_type"},
    }
    metadata = dataclasses.replace(
        snapshot.metadata, schema_string=json.dumps({"type": "struct", "fields": [field]})
    )
    found = dict(refusals(snapshot.protocol, metadata, OperationKind.UPDATE))
    assert found == {"column v": "its physical name is that of a column of change files"}


def test_change_files_go_with_the_version_that_names_them(lake: QuickLake) -> None:
    """Those of others, too."""
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.foreign().update({"v": "v + 1"}, predicate="k = 2")
    theirs = {file.logged_path for file in lake.commit().change_files}
    assert theirs
    named = theirs | {file.logged_path for file in lake.commit(lake.version - 1).change_files}
    week = CleaningRules(7 * DAY_MS, dead_ms=DAY_MS)
    assert not named & {each.file.path for each in clean(lake.table(), week).garbage}
    assert_feed(lake)
    everything = CleaningRules(0, row_maps_ms=0, staging_ms=0, dead_ms=DAY_MS)
    assert named <= {each.file.path for each in clean(lake.table(), everything).garbage}
    assert not list(lake.store.list("_change_data"))
