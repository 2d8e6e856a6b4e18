"""What deltalake does wrong beside any compaction, ours or not (W3), what foreign writers do that
started before a commit of ours on a table without deletion vectors (N18), and real vacuums on a
table with deletion vectors of ours (W5).

Foreign writers beside our operations are the W matrix: all of it in `tests/matrix`
(`make matrix`), a sample in `test_w_matrix_sample.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from support.foreign.calls import Refused, SparkCalls
from support.jobs import quick_lake
from support.lake import rows as model
from support.lake.lake import Lake, Lakes, loads
from support.lake.rows import Rows, id_in, join, k_is, plus, rows, without
from tandem.delta import dv
from tandem.operations.machine.events import Point

FOUR = loads(range(4))
ONE = rows([77])

ITS_OWN_DEFECTS: dict[str, tuple[Callable[[DeltaTable], object], Rows]] = {
    # what it does during a compaction, and the rows that it means to leave
    "compact": (lambda table: table.optimize.compact(), FOUR),
    "z-order": (lambda table: table.optimize.z_order(["id"]), FOUR),
    "delete all": (lambda table: table.delete(), ()),
    "overwrite": (lambda table: write_deltalake(table, model.table(ONE), mode="overwrite"), ONE),
}


@pytest.mark.parametrize("name", ITS_OWN_DEFECTS)
def test_W3_deltalake_1_6_does_not_see_that_a_compaction_took_its_files(
    lakes: Lakes, name: str
) -> None:
    """A defect of deltalake, without any commit of ours: it commits although another compaction
    (its own here) has replaced the files that it removes, since its conflict check passes by
    removals with dataChange false (delta-rs pull request 3982). Rows are doubled, or survive
    their deletion. So these four may not run beside any compaction. When a case fails,
    deltalake has been fixed: then its cells in the W matrix fail, too, and become usual ones.
    """
    act, meant = ITS_OWN_DEFECTS[name]
    lake = lakes.foreign(4)
    stale = lake.foreign()
    lake.foreign().optimize.compact()
    act(stale)
    # A refusal would be right.
    assert lake.by_deltalake() == join(FOUR, meant)


# N18: foreign writers that started before ours, without vectors -----------------------------------

SOURCE: Rows = tuple((n, n % 5, -n) for n in (38, 39, 40, 41))
"""Two rows that are there, two that are not."""


def merged(table: DeltaTable) -> None:
    merger = table.merge(model.table(SOURCE), "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def replaced_where(table: DeltaTable) -> None:
    write_deltalake(table, model.table(rows([5])), mode="overwrite", predicate="id < 10")


LATE: dict[str, tuple[Callable[[DeltaTable], object], Rows]] = {
    # what deltalake does, and the rows that are right after it
    "append": (
        lambda table: write_deltalake(table, model.table(ONE), mode="append"),
        join(FOUR, ONE),
    ),
    "delete": (lambda table: table.delete("k = 1"), without(FOUR, k_is(1))),
    "update": (
        lambda table: table.update(predicate="k = 2", updates={"v": "v + 15"}),
        plus(FOUR, k_is(2), 15),
    ),
    "merge": (merged, join(without(FOUR, id_in(row[0] for row in SOURCE)), SOURCE)),
    "replace where": (replaced_where, join(without(FOUR, id_in(range(10))), rows([5]))),
    **ITS_OWN_DEFECTS,
}
SPARK_LATE = {
    "insert": ("INSERT INTO {table} SELECT id, id % 5, id * 100 FROM range(77, 78) WHERE {gate}",
               LATE["append"][1]),
    "delete": ("DELETE FROM {table} WHERE k = 1 AND {gate}", LATE["delete"][1]),
    "update": ("UPDATE {table} SET v = v + 15 WHERE k = 2 AND {gate}", LATE["update"][1]),
    "merge": ("MERGE INTO {table} t USING (SELECT id, id % 5 k, -id v FROM range(38, 42) WHERE "
              "{gate}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
              "WHEN NOT MATCHED THEN INSERT *", LATE["merge"][1]),
    "overwrite": ("INSERT OVERWRITE {table} SELECT id, id % 5, id * 100 FROM range(77, 78) "
                  "WHERE {gate}", ONE),
    "replace where": ("INSERT INTO {table} REPLACE WHERE id < 10 SELECT id, id % 5, id * 100 "
                      "FROM range(5, 6) WHERE {gate}", LATE["replace where"][1]),
}  # fmt: skip


def compacted(lake: Lake) -> None:
    lake.do(lake.compaction("Major"))


def rewritten(lake: Lake) -> None:
    """A commit as a statement without vectors makes it: whole files for others, with changed data.
    The values are those that the rows have, so that both orders give the same rows."""
    lake.foreign().update(predicate="k = 3", updates={"v": "v"})


OURS = {"a compaction": compacted, "a statement": rewritten}


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("late", LATE)
def test_N18_deltalake_that_started_before_ours(tmp_path: Path, late: str, ours: str) -> None:
    """It does not see that a compaction took the files that it replaces as a whole, with vectors or
    without; it sees all else, and its next try gives the right rows."""
    act, right = LATE[late]
    lake = quick_lake.make(tmp_path, properties={})
    stale = lake.foreign()
    OURS[ours](lake)
    if late in ITS_OWN_DEFECTS and ours == "a compaction":
        act(stale)
        assert lake.by_deltalake() == join(FOUR, right)
        return
    if late == "append" and ours == "a compaction":
        act(stale)
    else:
        with pytest.raises(CommitFailedError):
            act(stale)
        act(lake.foreign())
    lake.assert_rows(right)


@pytest.mark.matrix
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("late", SPARK_LATE)
def test_N18_spark_that_started_before_ours(
    delta_spark: SparkSession, tmp_path: Path, late: str, ours: str
) -> None:
    text, right = SPARK_LATE[late]
    lake = quick_lake.make(tmp_path, properties={})
    calls, gate = SparkCalls(delta_spark), str(tmp_path / "gate")
    calls.begin(late, text.format(table=lake.sql_name, gate=f"gate(id, '{gate}')"), gate)
    OURS[ours](lake)
    if late == "insert":
        calls.let_go(late)
    else:
        with pytest.raises(Refused, match="DELTA_CONCURRENT_APPEND"):
            calls.let_go(late)
        calls.sql(text.format(table=lake.sql_name, gate="true"))
    lake.assert_rows(right)


# W5: vacuum --------------------------------------------------------------------------------------


def by_spark(lake: Lake) -> None:
    conf = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # By default it lists folders by ten thousand tasks.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in conf.items():
        lake.delta_spark.conf.set(name, value)
    try:
        lake.sql("VACUUM TABLE RETAIN 0 HOURS")
    finally:
        for name in conf:
            lake.delta_spark.conf.unset(name)


def by_deltalake(lake: Lake) -> None:
    lake.foreign().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


@pytest.mark.matrix
@pytest.mark.parametrize("vacuum", [by_spark, by_deltalake])
def test_W5_a_vacuum_accepts_a_table_with_our_small_vectors(
    spark: SparkSession, tmp_path: Path, vacuum: Callable[[Lake], None]
) -> None:
    """That of Spark + Delta 4.4 dies of a vector that lies inline in the log, as the protocol
    allows: so ours never do, however few rows they hide."""
    lake = quick_lake.make(tmp_path)
    lake.spark, lake.spark_reads = spark, True
    lake.do(lake.delete("id = 13"))
    inputs = {add.path for add in lake.log.snapshot().adds()}
    compaction = lake.hold(lake.compaction(), Point.PUT_COMMIT)
    lake.do(lake.delete("id = 27"))
    compaction.finish()
    vacuum(lake)
    left = {meta.path for meta in lake.store.list()}
    assert not inputs & left
    [add] = lake.log.snapshot().adds()
    assert add.deletion_vector is not None
    assert {add.path, dv.file_path(add.deletion_vector)} <= left
    lake.assert_rows(without(FOUR, id_in([13, 27])))
