"""Replaces and log merges of tables with row tracking, beside other writers: rows that stay keep
their ids and versions, those that the log changes their ids, and new ones get others.

Spark + Delta makes the tables, and is the judge at each end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.lake import rows as model
from support.lake.lake import DELETION_VECTORS, Lake, Lakes, reason
from support.lake.rows import Rows
from support.lake.timed import DAYS, SCHEMA, TimedLake, day, hours
from tables.test_compacted_row_ids import in_files, tracked
from tables.test_row_tracking import MARK, Ids, alter, check_log, ids, insert
from tandem import mergelog
from tandem.operations.machine.events import Point

DAY_2 = "2013-03-02"


def mark(lake: Lake) -> int:
    body = lake.log.snapshot().domains["delta.rowTracking"].configuration
    return int(json.loads(body)[MARK])


def check(
    before: Ids, after: Ids, lake: Lake, last: int, *, changed: Collection[int] = (),
    new: Collection[int] = (), gone: Collection[int] = (),
) -> None:  # fmt: skip
    """What R-11 demands of the latest commit: `last` is the mark before it."""
    assert set(after) == {*before, *new} - {*gone}
    for key, (row_id, version) in after.items():
        if key in new:
            assert (row_id > last, version) == (True, lake.version), key
        elif key in changed:
            assert (row_id, version) == (before[key][0], lake.version), key
        else:
            assert (row_id, version) == before[key], key


# Replaces


@pytest.fixture(params=[True, False], ids=["vectors", "no vectors"])
def timed(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, templates: Path
) -> TimedLake:
    """A file of three days, a later one of the second and third whose rows have ids in columns."""
    lakes = Lakes(spark, tmp_path, templates, spark_works=False)
    properties = DELETION_VECTORS if request.param else {}
    lake = TimedLake(lakes.empty(schema=SCHEMA, properties=properties, time=DAYS))
    lake.append(hours(day(1), day(2), day(3), first=0))
    alter(lake.lake, tracking="true")
    for first in (100, 110):
        lake.lake.do(lake.ingest(hours(range(40, 50), first=first)))
    loads = lake.lake.names[1:]
    lake.lake.do(lake.lake.compaction("Custom", custom={"segments": loads}))
    return lake


def of_day_2(ids: Ids) -> set[int]:
    return {n for n in ids if n in range(24, 48) or (n >= 100 and n % 10 < 8)}


Act = Callable[[Lake], object]
NOTHING: Act = lambda lake: lake.version  # noqa: E731
MEANWHILE: Mapping[str, Act] = {
    "nothing": NOTHING,
    "a delete": lambda lake: lake.sql("DELETE FROM TABLE WHERE id IN (3, 30, 109)"),
    "an update": lambda lake: lake.sql("UPDATE TABLE SET day = NULL WHERE id IN (4, 50, 119)"),
    "our compaction": lambda lake: lake.do(lake.compaction("Major")),
    "their compaction": lambda lake: lake.sql("OPTIMIZE TABLE"),
}
REPLACES: Mapping[str, Mapping[str, object]] = {
    "at start": {"scope": "AtStart"},
    "at commit": {"scope": "AtCommit"},
    "drop": {"scope": "AtCommit"},
}


@pytest.mark.parametrize("kind", REPLACES)
def test_rows_that_a_replace_keeps(timed: TimedLake, kind: str) -> None:
    lake = timed.lake
    since = lake.version
    for number, (name, act) in enumerate(MEANWHILE.items()):
        given = None if kind == "drop" else hours(range(30, 36), first=1_000 + 10 * number)
        if number:
            lake.do(timed.ingest(hours(range(40, 50), first=100 * number + 100)))
        held = lake.hold(timed.replace(DAY_2, rows=given, **REPLACES[kind]), Point.PUT_COMMIT)
        act(lake)
        before, last = in_files(lake), mark(lake)
        replaced = of_day_2(before)
        if name == "an update" and kind == "at start":
            assert reason(held.finish()) == "Conflict"
            assert in_files(lake) == before
            continue
        held.succeed()
        check(before, in_files(lake), lake, last, gone=replaced, new=given or ())
    assert ids(lake) == in_files(lake)
    check_log(lake, since)


# Log merges


@pytest.fixture(params=[True, False], ids=["vectors", "no vectors"])
def lake(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, templates: Path
) -> Lake:
    return tracked(spark, tmp_path, templates, vectors=request.param)


def append(lake: Lake, upserts: Rows, deletes: Collection[int] = (), *, ordering: str = "") -> None:
    log = mergelog.open_log(str(lake.path))
    mergelog.ensure_log(log, mergelog.LogSettings(("id",), ordering), now_ms=0, nonce="made once")
    with mergelog.LogWriter(log, f"w{lake.version}", pause=lambda _: None) as writer:
        keys = pa.table({"id": pa.array(sorted(deletes), pa.int64())}) if deletes else None
        writer.append(model.table(upserts), keys, batch=0)


BESIDE: Mapping[str, Act] = {
    "nothing": NOTHING,
    "a delete of a key": lambda lake: lake.sql("DELETE FROM TABLE WHERE id IN (3, 18)"),
    "an insert of a key": lambda lake: insert(lake, 200, 300),
    "an update of a key": lambda lake: lake.sql("UPDATE TABLE SET k = 9 WHERE id IN (13, 19)"),
    "another key": lambda lake: lake.sql("UPDATE TABLE SET id = 400 WHERE id = 13"),
    "our compaction": lambda lake: lake.do(lake.compaction("Major")),
    "their compaction": lambda lake: lake.sql("OPTIMIZE TABLE"),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_rows_of_known_keys_keep_their_ids(lake: Lake, beside: str) -> None:
    since = lake.version
    append(lake, ((3, 7, 1), (13, 7, 1), (25, 7, 1), (31, 7, 1), (200, 7, 1)), {14, 33})
    held = lake.hold(lake.compaction("LogMerge"), Point.PUT_COMMIT)
    BESIDE[beside](lake)
    before, last = in_files(lake), mark(lake)
    held.succeed()
    changed = {3, 13, 25, 31, 200} & {*before}
    new = {3, 13, 25, 31, 200} - changed
    check(before, in_files(lake), lake, last, changed=changed, new=new, gone={14, 33})
    assert ids(lake) == in_files(lake)
    check_log(lake, since)
