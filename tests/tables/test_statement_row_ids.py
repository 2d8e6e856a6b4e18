"""Updates, merges and deletes of tables with row tracking: unchanged rows keep id and version,
updated ones the id, with the version of the commit, and inserted ones get ids of their own (R-11),
whatever other writers do meanwhile. Spark + Delta makes the tables and is the judge, but for tests
of Tandem alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lake, QuickClock
from support.lake.rows import rows
from tables.test_compacted_row_ids import again, in_files, quick, with_all_kinds_of_ids
from tables.test_row_tracking import Ids, check_log, ids
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.spark.in_process import InProcessJobs
from tandem.spark.jobs import merge, statement
from tandem.spec.resources import Operation

EACH = pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])


class ArrowLake(QuickLake):
    """Its jobs are the real ones, without Spark."""

    def ports(self, **changes: Any) -> Ports:
        return arrow_ports(**changes)


def arrow_ports(**changes: Any) -> Ports:
    given: dict[str, Any] = {"jobs": InProcessJobs(None), "locks": InProcessLocks()}
    return Ports(**{**given, "clock": QuickClock(), **changes})


def tracked(folder: Path, *, vectors: bool) -> ArrowLake:
    """A table that tracks rows, with three files."""
    made = quick(folder, vectors=vectors)
    lake = ArrowLake(made.location, made.spark, made.sources, made.store)
    lake.first_version = lake.version
    return lake


def assert_ids(
    found: Ids,
    before: Ids,
    version: int,
    *,
    updated: Collection[int] = (),
    deleted: Collection[int] = (),
    inserted: Collection[int] = (),
) -> None:
    """`found` are those of the commit of this version, `before` those of the version before it."""
    highest = max(row_id for row_id, _ in before.values())
    new = {key: found[key] for key in inserted}
    assert all(row_id > highest and own == version for row_id, own in new.values())
    kept = {key: own for key, own in before.items() if key not in deleted}
    assert found == {**kept, **{key: (before[key][0], version) for key in updated}, **new}


@dataclass(frozen=True)
class Statement:
    """`of`: the operation. `hits`: which of the rows it affects. `values`: what it merges."""

    of: Callable[[Lake], Operation]
    hits: Callable[[int, int], bool]
    deletes: bool = False
    values: range = range(0)


STATEMENTS: Mapping[str, Statement] = {
    "update": Statement(lambda lake: lake.update("k = 1", v="v + 1000"), lambda _, k: k == 1),
    "update of all columns": Statement(
        lambda lake: lake.update("k = 1 OR k = 3", id="id", k="k", v="v + 1"),
        lambda _, k: k in (1, 3),
    ),
    "merge": Statement(
        lambda lake: lake.merge(rows(range(5, 40))), lambda n, _: 5 <= n < 40, values=range(5, 40)
    ),
    "delete": Statement(lambda lake: lake.delete("k = 3"), lambda _, k: k == 3, deletes=True),
}
OURS: Mapping[str, Callable[[Lake], object]] = {
    "nothing": lambda lake: lake.version,
    "compaction": lambda lake: lake.do(lake.compaction("Major")),
    "sort": lambda lake: lake.do(
        lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v", "id"]})
    ),
    "delete": lambda lake: lake.do(lake.delete("id IN (6, 8, 23)")),
    "update": lambda lake: lake.do(lake.update("id IN (6, 13)", v="-1")),
    "merge": lambda lake: lake.do(lake.merge(tuple((n, 1, 0) for n in (7, 8, 60, 61)))),
}
MEANWHILE: Mapping[str, Callable[[Lake], object]] = {
    "nothing": lambda lake: lake.version,
    "delete": lambda lake: lake.sql("DELETE FROM TABLE WHERE id IN (0, 16, 21, 31)"),
    "update": lambda lake: lake.sql("UPDATE TABLE SET v = -1 WHERE id IN (6, 7, 24)"),
    "OPTIMIZE": lambda lake: lake.sql("OPTIMIZE TABLE"),
    "compaction": lambda lake: lake.do(lake.compaction("Major")),
}


def check(
    lake: Lake,
    made: Statement,
    act: Callable[[Any], object],
    ports: Ports | None,
    judge: Callable[[Lake], Ids],
) -> None:
    held = lake.hold(made.of(lake), Point.PUT_COMMIT, ports=ports)
    act(lake)
    before, there = in_files(lake), lake.by_tandem()
    held.succeed()
    hit = {n for n, k, _ in there if made.hits(n, k)}
    assert hit
    if made.deletes:
        assert_ids(judge(lake), before, lake.version, deleted=hit)
    else:
        new = {*made.values} - before.keys()
        assert_ids(judge(lake), before, lake.version, updated=hit, inserted=new)


@pytest.fixture(params=["Arrow", "Spark"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What evaluates the statements."""
    if request.param == "Spark":
        monkeypatch.setattr(statement, "_over_arrow", lambda *_: None)
        monkeypatch.setattr(merge, "_over_arrow", lambda *_: None)
    return str(request.param)


@pytest.mark.matrix
@EACH
def test_rows_of_statements_by_spark(
    spark: SparkSession, tmp_path: Path, templates: Path, by: str, vectors: bool
) -> None:
    """Judged by Spark, for each of the statements beside each of the other commits."""
    for name, made in STATEMENTS.items():
        for what, act in MEANWHILE.items():
            lake = with_all_kinds_of_ids(
                spark, tmp_path / f"{name} {what}", templates, vectors=vectors,
                spark_works=by == "Spark",
            )  # fmt: skip
            lake.small = by == "Arrow"
            since = lake.version
            check(lake, made, act, arrow_ports() if by == "Arrow" else None, ids)
            check_log(lake, since)


@EACH
@pytest.mark.parametrize("what", ["nothing", "compaction", "sort", "delete", "update", "merge"])
def test_other_statements_meanwhile(tmp_path: Path, vectors: bool, what: str) -> None:
    for name, made in STATEMENTS.items():
        lake = tracked(tmp_path / name, vectors=vectors)
        check(lake, made, OURS[what], None, in_files)
        check(lake, STATEMENTS["update"], OURS["sort"], None, in_files)


@EACH
@pytest.mark.parametrize("changed", ["baseRowId", "defaultRowCommitVersion"])
def test_ids_that_change_meanwhile(tmp_path: Path, vectors: bool, changed: str) -> None:
    """By a backfill, say: rows that are read again have the new ones."""
    lake = tracked(tmp_path, vectors=vectors)
    by = {"baseRowId": 100, "defaultRowCommitVersion": -1}[changed]
    for made in STATEMENTS.values():
        check(lake, made, lambda lake: again(lake, **{changed: by}), None, in_files)
