"""Versions that readers see, other readers, and many commits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.no_spark import NoSpark
from support.jobs.quick_lake import QuickLake, just_before
from support.lake.lake import batch, difference, loads, reconciled, result
from support.lake.rows import SCHEMA, Row, Rows, id_in, join, k_is, plus, rows, table, without
from support.lake.vectors import encode_inline
from support.parquet import by_fastparquet, go_parquet
from support.parquet.go_parquet import WriteOptions
from support.some import few
from support.values.kinds import tables
from support.values.nested import with_nested
from support.values.operations import OPERATIONS
from support.values.readers import live_files
from tandem.delta.datafiles import copyable as fitness
from tandem.delta.log.codec import encode_action
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.files import EMPTY_REPLAY, fold
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.spark.in_process import InProcessJobs
from tandem.spec.status import Phase
from tandem.storage import open_store

# D54, D55, C8, C9, C16, Z9 and Z19 on real tables: what versions say, and who reads them when.
# Real files, log, engine and foreign writers; jobs without Spark, so that many versions can be
# looked at (`support.jobs.quick_lake`).


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
        replayed = fold(EMPTY_REPLAY, lake.log.commits(0, version)).live
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


# What our operations write, read row by row by Arrow Go and fastparquet, of files that parquet-go
# wrote: types with their extreme values, and nested ones. Filters of other readers:
# `test_values_survive`.


FILES: Mapping[str, WriteOptions] = {
    "plain": {},
    "dictionaries and filters": {
        "encoding": "dictionary",
        "codec": "snappy",
        "bloom": ["text", "i64", "day", "f64"],
    },
    "version 2 pages": {"page_version": 2, "page_bytes": 100},
    "delta encodings": {"encoding": "delta", "page_version": 2, "codec": "gzip"},
    "INT96": {"int96": True, "codec": "brotli"},
}
INDEXED = ("dictionaries and filters", "delta encodings")
"""Of plain pages parquet-go cuts bounds after 16 bytes, and has no bound above sixteen 0xFF."""
READ_BY_FASTPARQUET = ("plain", "dictionaries and filters")
NEEDS_NO_SPARK = ("bin-pack", "sort by a float", "z-order", "update", "segment rewrite")


def rows_of(number: int) -> pa.Table:
    return with_nested(tables()[number], number).drop_columns(["g"])


ROWS = [rows_of(number) for number in range(len(tables()))]


def lake_of(folder: Path, options: WriteOptions) -> QuickLake:
    """A table of files by parquet-go, without statistics in its log."""
    lake = quick_lake.make(folder, 0, schema=ROWS[0].schema)
    for number, written in enumerate(ROWS):
        path = lake.path / f"{number}.parquet"
        go_parquet.write(path, written, **options)
        add = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}
        lake.log_raw({"add": {**add, "modificationTime": 1, "dataChange": True}})
    return lake


def values(rows: pa.Table) -> dict[str, list[str]]:
    """By column; NaN is equal to itself, zeros have a sign, and times are numbers."""
    rows = rows.sort_by("id")
    found = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        elif pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        found[name] = [repr(value) for value in column.to_pylist()]
    return found


def was_copied(path: Path) -> bool:
    return "parquet-go" in pq.read_metadata(path).created_by


@pytest.mark.part(8)
@pytest.mark.parametrize("operation", [*NEEDS_NO_SPARK, "copied row groups"])
@pytest.mark.parametrize("files", FILES)
def test_every_value_survives(
    files: str, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, FILES[files])
    truth = values(pa.concat_tables(ROWS))
    if operation == "copied row groups":
        monkeypatch.setattr(fitness, "GROUP_ROWS", 1)
        resource = OPERATIONS["bin-pack"](lake)
    else:
        resource = OPERATIONS[operation](lake)
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    lake.do(resource, ports=ports)
    written = [Path(path) for path in live_files(lake.path)]
    assert not {path.name for path in written} & {f"{n}.parquet" for n in range(len(ROWS))}
    if operation == "update":
        truth["v"] = ["1"] * len(truth["v"])
    assert values(pa.concat_tables(map(go_parquet.read, written))) == truth
    for path in written:
        if files in INDEXED:
            go_parquet.check(path)
        rows = pq.read_table(path)
        if files in READ_BY_FASTPARQUET or not was_copied(path):
            wanted = by_fastparquet.expected(rows)
            assert by_fastparquet.read(path, wanted) == wanted


def test_deltalakes_filter_on_a_boolean_finds_the_rows_of_our_files(tmp_path: Path) -> None:
    """Its dataset takes a file whose statistics have no bounds of a column for one without rows."""
    schema = pa.schema({"id": pa.int64(), "yes": pa.bool_()})
    lake = quick_lake.make(tmp_path, 0, schema=schema, properties={})
    for load in range(2):
        lake.load(pa.table({"id": [load, load + 10], "yes": [True, None]}, schema=schema))
    ports = Ports(jobs=InProcessJobs(NoSpark()), locks=InProcessLocks())
    for operation in (lake.compaction("Major"), lake.update("id = 0", yes="NOT yes")):
        lake.do(operation, ports=ports)
    for value, ids in ((True, [1]), (False, [0])):
        found = DeltaTable(lake.location).to_pyarrow_table(filters=[("yes", "=", value)])
        assert found["id"].to_pylist() == ids


# Z8, Z10: many who want the same version; many who commit while we are at work. Jobs are not
# Spark's here (`quick_jobs`); files, log, engine and foreign writer are real.


WRITERS = few(20, 60)
COMMITS = few(30, 60)


def test_Z8_many_writers_want_the_same_version(tmp_path: Path) -> None:
    """All stand before the put of the same file, by put-if-absent on the local disk. One gets
    it; the others take the next ones, and no writer's rows are lost or doubled."""
    lake = quick_lake.make(tmp_path, 1)
    wanted = lake.version + 1
    held = [
        lake.hold(lake.ingest(batch(n, 2)), Point.PUT_COMMIT, ports=lake.ports())
        for n in range(10, 10 + WRITERS)
    ]
    for one in held:
        one.go_on()  # none waits for another
    done = [one.finish() for one in held]
    assert {one.phase for one in done} == {Phase.SUCCEEDED}
    assert {one.attempt for one in done} == {1}
    versions = sorted(one.result.version for one in done if one.result and one.result.version)
    assert versions == list(range(wanted, wanted + WRITERS))
    lake.assert_rows_so_far(join(batch(0), *(batch(n, 2) for n in range(10, 10 + WRITERS))))
    assert len(set(lake.names)) == len(lake.names) == WRITERS + 1
    lake.assert_clean()


@dataclass
class Beside:
    """A writer that commits all the time: two of three times an append; else a row is deleted,
    in turn by Tandem (a deletion vector) and by deltalake (the file is rewritten)."""

    lake: QuickLake
    appended: list[Row] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    commits: int = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits % 3:
            self.appended.append((1000 + self.commits, 1, 1))
            self.lake.append((self.appended[-1],))
            return
        victim = len(self.gone)
        self.gone.add(victim)
        if self.commits % 2:
            self.lake.do(self.lake.delete(f"id = {victim}"))
        else:
            self.lake.foreign().delete(f"id = {victim}")

    def rows(self) -> Rows:
        return join(without(loads(range(4)), id_in(self.gone)), tuple(self.appended))


def test_Z10_compaction_as_long_as_many_commits_succeeds_the_first_time(tmp_path: Path) -> None:
    """Sixty commits while the job runs (one a second, if it took a minute), and one more each
    time that we are about to put, for a while."""
    lake = quick_lake.make(tmp_path, 4)
    beside = Beside(lake)

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.READ_RESULT:
            for _ in range(COMMITS):
                beside.commit()
        elif effect.point is Point.PUT_COMMIT and beside.commits < COMMITS + 5:
            beside.commit()
        return call()

    done = lake.do(lake.compaction("SemiMajor"), interceptor=interceptor)
    assert done.attempt == 1
    assert reconciled(done).commits_seen == COMMITS + 5
    lake.assert_rows_so_far(beside.rows())
    lake.do(lake.compaction("SemiMajor"))
    lake.assert_rows_so_far(beside.rows())
    lake.assert_clean()
