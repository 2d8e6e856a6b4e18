"""D54, D55, C8, C9, C16, Z9 and Z19 on real tables: what versions say, and who reads them when.

Real files, log, engine and foreign writers; jobs without Spark, so that many versions can be
looked at (`support.jobs.quick_lake`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.schema import Field, PrimitiveType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before
from support.lake.lake import difference, loads, reconciled, result
from support.lake.rows import SCHEMA, Rows, k_is, plus, rows, table, without
from support.lake.vectors import encode_inline
from tandem.delta.log.codec import encode_action
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.replay import EMPTY, fold
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase
from tandem.storage import open_store

FOUR = loads(range(4))
ACTIONS: dict[str, Callable[[QuickLake], object]] = {
    "append": lambda lake: lake.append(loads([lake.version + 10])),
    "update": lambda lake: lake.do(lake.update("k = 1", v="v + 15")),
    "delete": lambda lake: lake.do(lake.delete("id < 5")),
    "compact": lambda lake: lake.do(lake.compaction("Major")),
    "foreign delete": lambda lake: lake.foreign().delete("k = 3"),
    "foreign compaction": lambda lake: lake.foreign().optimize.compact(),
    "restore": lambda lake: lake.foreign().restore(max(lake.version - 2, 1)),
    "checkpoint": lambda lake: lake.foreign().create_checkpoint(),
}
_numbers = count()


@given(st.lists(st.sampled_from(sorted(ACTIONS)), min_size=3, max_size=6))
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_D54_replaying_the_log_gives_the_working_set_of_every_version(
    tmp_path: Path, actions: list[str]
) -> None:
    lake = quick_lake.make(tmp_path / str(next(_numbers)))
    for action in actions:
        ACTIONS[action](lake)
    fresh = DeltaLog(open_store(lake.location))
    for version in range(lake.version + 1):
        replayed = fold(EMPTY, lake.log.commits(0, version)).live
        snapshot = fresh.snapshot(version)
        stored = {add.key: add for add in snapshot.adds()}
        assert stored.keys() == replayed.keys()
        assert {k: a.deletion_vector for k, a in stored.items()} == {
            k: a.deletion_vector for k, a in replayed.items()
        }
        foreign = {Path(path).name for path in lake.foreign(version).file_uris()}
        assert foreign == {Path(add.path).name for add in stored.values()}
    assert difference(lake.by_tandem(), lake.by_deltalake()) == ""


def test_D55_an_adopted_table_keeps_its_working_set(tmp_path: Path) -> None:
    """The table had a life before us: appends, deletes, a compaction, a checkpoint."""
    lake = quick_lake.make(tmp_path, 6)
    lake.foreign().delete("k = 2")
    lake.foreign().optimize.compact()
    lake.foreign().create_checkpoint()
    lake.append(loads([9]))
    before, version = lake.by_deltalake(), lake.version
    files = {add.key for add in lake.log.snapshot().adds()}

    live = lake.live
    assert {f.add.key for segment in live for f in segment.files} == files
    assert lake.version == version, "to look at a table is no write"
    assert difference(lake.by_tandem(), before) == ""

    lake.do(lake.compaction("Major"))
    assert difference(lake.by_deltalake(version), before) == ""
    lake.assert_rows(before)
    lake.assert_clean()


@pytest.mark.parametrize("left", [3, 0])
def test_C8_the_commit_finds_inputs_that_were_removed(tmp_path: Path, left: int) -> None:
    """Rows of a removed input are masked in the output; nothing left means superseded."""
    lake = quick_lake.make(tmp_path)
    where = "id >= 10 AND id < 20" if left else "id >= 0"
    interceptor = just_before(Point.PUT_COMMIT, lambda: lake.foreign().delete(where))
    done = lake.run(lake.compaction("Major"), interceptor=interceptor)
    if left:
        assert done.phase is Phase.SUCCEEDED, done
        assert result(done).files_removed == left
        assert reconciled(done).rows_masked == 10
        lake.assert_rows(loads([0, 2, 3]))
    else:
        assert done.phase is Phase.SUPERSEDED, done
        lake.assert_rows(())
    lake.assert_clean()


def test_C9_insert_overwrite_during_a_compaction(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    new = rows(range(100, 107))

    def overwrite() -> None:
        write_deltalake(lake.location, table(new), mode="overwrite")

    interceptor = just_before(Point.PUT_COMMIT, overwrite)
    assert lake.run(lake.compaction("Major"), interceptor=interceptor).phase is Phase.SUPERSEDED
    lake.assert_states(FOUR, new)


def test_C9_a_partition_is_dropped_during_a_compaction(tmp_path: Path) -> None:
    lake = _partitioned(tmp_path)
    before = lake.by_deltalake()
    interceptor = just_before(Point.PUT_COMMIT, lambda: lake.foreign().delete("k = 2"))
    lake.do(lake.compaction("Major"), interceptor=interceptor)
    lake.assert_states(before, without(before, k_is(2)))


def test_C9_a_column_is_added_during_a_compaction(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    field = Field("note", PrimitiveType("string"), nullable=True)
    interceptor = just_before(Point.PUT_COMMIT, lambda: lake.foreign().alter.add_columns(field))
    lake.do(lake.compaction("Major"), interceptor=interceptor)
    shown = pa.table(lake.foreign().scan())
    assert shown.column("note").null_count == shown.num_rows == len(FOUR)
    lake.assert_states(FOUR)


def test_C16_readers_at_every_step_see_the_old_rows_or_the_new(tmp_path: Path) -> None:
    """Both readers look after every effect of a compaction, in the midst of which an update
    commits."""
    lake = quick_lake.make(tmp_path)
    new = plus(FOUR, k_is(1), 15)
    states: list[tuple[Rows, Rows]] = []

    def look() -> None:
        states.append((lake.by_deltalake(), lake.by_tandem()))

    def reading(_effect: Effect, call: Callable[[], Event]) -> Event:
        event = call()
        look()
        return event

    def update() -> None:
        lake.do(lake.update("k = 1", v="v + 15"), interceptor=reading)

    meeting = just_before(Point.PUT_COMMIT, update)
    done = lake.run(
        lake.compaction("Major"),
        interceptor=lambda effect, call: reading(effect, lambda: meeting(effect, call)),
    )
    assert reconciled(done).deletes_remapped == 8
    old = states.count((FOUR, FOUR))
    assert 0 < old < len(states)
    assert states == [(FOUR, FOUR)] * old + [(new, new)] * (len(states) - old)
    lake.assert_states(FOUR, new)


@pytest.mark.matrix
def test_Z9_late_data_for_thirty_days_does_not_block_compaction(
    tmp_path: Path,
) -> None:
    """Each day brings its own rows, and some for an older day, while the compaction of the day
    runs. It succeeds the first time, every time, and files do not pile up."""
    schema = pa.schema([*SCHEMA, ("day", pa.date32())])
    lake = quick_lake.make(tmp_path, 0, schema=schema)
    lake.time = {"column": "day", "granularity": "Day"}
    first, ids = date(2026, 1, 1), count()

    def load(day: int) -> None:
        data = table(rows([next(ids) for _ in range(5)]))
        days = pa.array([first + timedelta(days=day)] * 5, pa.date32())
        lake.append(data.append_column(schema.field("day"), days))

    files = []
    for day in range(30):
        for _ in range(2):
            load(day)
        late = just_before(Point.PUT_COMMIT, partial(load, day * 7 % (day + 1)))
        done = lake.do(lake.compaction(minor={"thresholds": [2]}), interceptor=late)
        assert done.attempt == 1
        files.append(lake.log.snapshot().num_files)
    everything = rows(range(next(ids)))
    lake.assert_rows(everything)
    # Two loads of a day become one file; a late one waits until there is another for its day.
    assert max(after - before for before, after in pairwise(files)) <= 2
    assert files[-1] <= 30 + 30
    lake.assert_clean()


def test_Z19_deletes_in_the_log_in_a_file_and_merged_are_each_remapped(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0)
    size = 3000
    for number in range(3):
        lake.append(loads([number], size))
    before = loads(range(3), size)
    lake.do(lake.delete(f"id >= {2 * size} AND id < {2 * size + 4}"))
    left = without(before, lambda row: 2 * size <= row[0] < 2 * size + 4)
    lake.first_version = lake.version

    def delete() -> None:
        _delete_in_the_log(lake, 7)
        lake.do(lake.delete(f"id >= {size} AND id < {2 * size} AND k IN (1, 3)"))
        lake.do(lake.delete(f"id >= {2 * size} AND id < {2 * size + 9}"))
        vectors = [a.deletion_vector for a in lake.log.snapshot().adds() if a.deletion_vector]
        assert sorted(v.storage for v in vectors) == ["i", "u", "u"]

    done = lake.run(lake.compaction("Major"), interceptor=just_before(Point.PUT_COMMIT, delete))
    assert reconciled(done).deletes_remapped == 1 + 2 * size // 5 + 5
    left_after = tuple(
        row
        for row in left
        if row[0] != 7
        and not (size <= row[0] < 2 * size and row[1] in (1, 3))
        and not 2 * size <= row[0] < 2 * size + 9
    )
    lake.assert_rows(left_after)
    lake.assert_clean()


def _delete_in_the_log(lake: QuickLake, row: int) -> None:
    """By a writer that, unlike Tandem, writes small vectors inline. The row is of load 1."""
    adds = lake.log.snapshot().adds()
    [add] = [a for a in adds if json.loads(a.stats or "{}")["minValues"]["id"] == 0]
    changed = dataclasses.replace(add, deletion_vector=encode_inline(BitMap64([row])))
    removed = {"path": add.logged_path, "deletionTimestamp": 1, "dataChange": True}
    lake.log_raw({"remove": removed}, encode_action(changed), operation="DELETE")


def _partitioned(folder: Path) -> QuickLake:
    """Partitioned by `k`: twenty rows in loads of ten."""
    location = (folder / "partitioned").as_uri()
    for number in range(2):
        write_deltalake(
            location,
            table(loads([number])),
            mode="append",
            partition_by=["k"],
            configuration={"delta.enableDeletionVectors": "true"},
        )
    lake = QuickLake(location, None, folder / "more", open_store(location))  # type: ignore[arg-type]
    lake.first_version = lake.version
    return lake
