"""What deltalake does wrong beside any compaction, ours or not (W3), and real vacuums on a table
with deletion vectors of ours (W5).

Foreign writers beside our operations are the W matrix: all of it in `tests/matrix`
(`make matrix`), a sample in `test_w_matrix_sample.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.lake import rows as model
from support.lake.lake import Lake, Lakes, loads
from support.lake.rows import Rows, id_in, join, rows, without
from tandem.delta import dv
from tandem.operations.machine.effects import Point

FOUR = loads(range(4))
ONE = rows([77])

ITS_OWN_DEFECTS: dict[str, tuple[Callable[[DeltaTable], object], Rows]] = {
    # what it does during a compaction, and the rows after it (correct would be a refusal)
    "compact": (lambda table: table.optimize.compact(), join(FOUR, FOUR)),
    "z-order": (lambda table: table.optimize.z_order(["id"]), join(FOUR, FOUR)),
    "delete all": (lambda table: table.delete(), FOUR),
    "overwrite": (
        lambda table: write_deltalake(table, model.table(ONE), mode="overwrite"),
        join(FOUR, ONE),
    ),
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
    act, shown = ITS_OWN_DEFECTS[name]
    lake = lakes.foreign(4)
    stale = lake.foreign()
    lake.foreign().optimize.compact()
    act(stale)
    assert lake.by_deltalake() == shown


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
