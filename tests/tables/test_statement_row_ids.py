"""Updates, merges and deletes of tables with row tracking: unchanged rows keep id and version,
updated ones the id, with the version of the commit, and inserted ones get ids of their own (R-11),
whatever other writers do meanwhile. Spark + Delta makes the tables and is the judge, but for tests
of Tandem alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.jobs.quick_lake import ArrowLake, arrow_ports, of_kind
from support.lake.lake import INSERT_ALL, Lake, Lakes
from support.lake.rows import rows
from support.lake.tracking import in_files
from tables.test_compacted_row_ids import again, quick, with_all_kinds_of_ids
from tables.test_row_tracking import Ids, check_log, ids
from tandem.delta.log.codec import encode_action
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.operations.rounds import NoSmallRounds
from tandem.operations.session import carry_out
from tandem.spark.jobs import merge, statement
from tandem.spec.resources import Operation

EACH = pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])


def tracked(folder: Path, *, vectors: bool) -> ArrowLake:
    """A table that tracks rows, with three files."""
    made = quick(folder, vectors=vectors)
    lake = of_kind(ArrowLake, made.location, made.sources)
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
    "merge with clauses": Statement(
        lambda lake: lake.merge(
            rows(range(5, 40)),
            whenMatched=[
                {"where": "t.k = 1", "update": {"set": {"v": "s.v + 1"}}},
                {"where": "t.k = 3", "update": {"set": {"v": "7", "k": "t.k"}}},
            ],
            whenNotMatchedBySource=[{"where": "t.k = 1", "update": {"set": {"v": "1"}}}],
            **INSERT_ALL,
        ),
        lambda n, k: k == 1 or (k == 3 and 5 <= n < 40),
        values=range(5, 40),
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


@pytest.mark.part(4)
@EACH
@pytest.mark.parametrize("what", ["nothing", "compaction", "sort", "delete", "update", "merge"])
def test_other_statements_meanwhile(tmp_path: Path, vectors: bool, what: str) -> None:
    for name, made in STATEMENTS.items():
        lake = tracked(tmp_path / name, vectors=vectors)
        check(lake, made, OURS[what], None, in_files)
        check(lake, STATEMENTS["update"], OURS["sort"], None, in_files)


@pytest.mark.part(2)
@EACH
@pytest.mark.parametrize("what", ["compaction", "update"])
def test_rounds_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool, what: str
) -> None:
    """It evaluates rows of later versions, and makes the edits."""
    monkeypatch.setattr(carry_out, "MOST_HERE", 0)
    for name, made in STATEMENTS.items():
        lake = tracked(tmp_path / name, vectors=vectors)
        ports = arrow_ports(small_rounds=NoSmallRounds)
        check(lake, made, OURS[what], ports, in_files)


@pytest.mark.matrix
@EACH
def test_partitions_and_mapped_columns(
    spark: SparkSession, tmp_path: Path, templates: Path, vectors: bool
) -> None:
    """Rows that change to another partition are in a file of that one."""
    lake = Lakes(spark, tmp_path, templates, spark_works=False).empty()
    shutil.rmtree(lake.path)
    lake.delta_spark.sql(
        f"CREATE TABLE {lake.sql_name} (id BIGINT, k BIGINT, v BIGINT) USING delta "
        "PARTITIONED BY (k) TBLPROPERTIES ('delta.enableRowTracking' = 'true', "
        f"'delta.enableDeletionVectors' = '{vectors}', 'delta.columnMapping.mode' = 'name')"
    )
    for start in (0, 10, 20):
        values = ", ".join(f"({n}, {n % 5}, 0)" for n in range(start, start + 10))
        lake.sql(f"INSERT INTO TABLE VALUES {values}")
    lake.sql("UPDATE TABLE SET v = 1 WHERE id IN (1, 4, 15)")
    moves: Sequence[tuple[Operation, Callable[[int, int, int], bool], range]] = (
        (lake.update("k = 1", k="k + 1"), lambda _n, k, _v: k == 1, range(0)),
        (lake.update("id < 20", k="id % 2", v="v + 1"), lambda n, _k, _v: n < 20, range(0)),
        (lake.update("v = 2", k="k"), lambda _n, _k, v: v == 2, range(0)),
        (
            lake.merge(tuple((n, n % 3, 5) for n in range(12, 34))),
            lambda n, _k, _v: n >= 12,
            range(30, 34),
        ),
    )
    for number, (operation, hits, new) in enumerate(moves):
        held = lake.hold(operation, Point.PUT_COMMIT, ports=arrow_ports())
        lake.sql(f"DELETE FROM TABLE WHERE id = {number + 5}")
        before, there = ids(lake), lake.by_spark()
        held.succeed()
        updated = {row[0] for row in there if hits(*row)}
        assert updated
        assert_ids(ids(lake), before, lake.version, updated=updated, inserted=new)


@pytest.mark.part(2)
@EACH
@pytest.mark.parametrize("changed", ["baseRowId", "defaultRowCommitVersion"])
def test_ids_that_change_meanwhile(tmp_path: Path, vectors: bool, changed: str) -> None:
    """By a backfill, say: rows that are read again have the new ones."""
    lake = tracked(tmp_path, vectors=vectors)
    by = {"baseRowId": 100, "defaultRowCommitVersion": -1}[changed]
    for made in STATEMENTS.values():
        check(lake, made, lambda lake: again(lake, **{changed: by}), None, in_files)


@EACH
def test_ids_of_rows_of_a_small_round_change(tmp_path: Path, vectors: bool) -> None:
    lake = tracked(tmp_path, vectors=vectors)
    update = lake.update("k = 1", isolation="Serializable", v="v + 1000")
    held = lake.hold(update, Point.PUT_COMMIT)
    lake.do(lake.ingest(rows(range(50, 60))))
    held.go_on(Point.PUT_COMMIT)
    [add] = lake.commit().adds
    lake.log_raw(encode_action(replace(add, extra={**add.extra, "baseRowId": 1_000})))
    before = in_files(lake)
    held.succeed()
    updated = {n for n in before if n % 5 == 1}
    assert_ids(in_files(lake), before, lake.version, updated=updated)


def test_files_of_inserted_rows_have_no_columns_of_ids(tmp_path: Path) -> None:
    """So that a bin-pack need not decode and fill them."""
    lake = tracked(tmp_path, vectors=True)
    lake.do(lake.merge(rows(range(25, 35))))
    names = [set(pq.read_schema(lake.path / add.path).names) for add in lake.commit().adds]
    assert sorted("_Id" in found for found in names) == [False, False, True]
