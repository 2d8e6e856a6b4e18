"""Looking up a key through Spark: by `format("delta")`, and by `tandem.spark.read`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.harness import WrongResult, timed
from benchmarks.lookup_tables import value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Lookup = Callable[["SparkSession", int], "DataFrame"]

READ, IN_TASKS, DELTA = "tandem.spark.read", "tandem.spark.read, in tasks", 'format("delta")'


def with_delta(
    tables: dict[str, tuple[str, list[int]]], snapshot_partitions: int
) -> dict[str, Any]:
    """In a separate process: the seconds of each lookup, by table.

    Args:
        tables: location, and the keys to look up; the first one is not counted.
        snapshot_partitions: Delta's setting of that name.
    """
    spark = _session(snapshot_partitions)
    found = {}
    for name, (root, keys) in tables.items():

        def look_up(session: SparkSession, key: int, root: str = root) -> DataFrame:
            return session.read.format("delta").load(root).where(f"id = {key}")

        found[name] = _timed(spark, {DELTA: look_up}, keys)
    spark.stop()
    return found


def with_tandem(
    tables: dict[str, tuple[str, list[int]]], snapshot_partitions: int
) -> dict[str, Any]:
    """In a separate process: the same by an index that is held, whose base is written as a server
    does."""
    from tandem.index import open_index
    from tandem.spark import read

    spark = _session(snapshot_partitions)
    found = {}
    for name, (root, keys) in tables.items():
        index = open_index(root)
        index.count()
        if index.table.base_due:
            index.table.write_base()

        def look_up(session: SparkSession, key: int, index: Any = index) -> DataFrame:
            return read(session, index, f"id = {key}")

        def in_tasks(session: SparkSession, key: int, index: Any = index) -> DataFrame:
            return read(session, index, f"id = {key}", in_tasks=True)

        found[name] = _timed(spark, {READ: look_up, IN_TASKS: in_tasks}, keys)
    spark.stop()
    return found


def _session(snapshot_partitions: int) -> SparkSession:
    from benchmarks.warm import start_delta

    spark = start_delta()
    spark.conf.set("spark.databricks.delta.snapshotPartitions", str(snapshot_partitions))
    spark.range(1_000_000).count()
    return spark


def _timed(spark: SparkSession, ways: dict[str, Lookup], keys: list[int]) -> dict[str, Any]:
    """First the seconds of the first lookup, then those of each other one. Raises: WrongResult."""
    seconds: dict[str, list[float]] = {}
    for key in keys:
        for way, look_up in ways.items():
            took, rows = timed(lambda k=key, ask=look_up: ask(spark, k).collect())
            if [tuple(row) for row in rows] != [(key, value_of(key))]:
                raise WrongResult(f"{way} has {rows} for {key}")
            seconds.setdefault(way, []).append(took)
    return {way: {"first": each[0], "seconds": each[1:]} for way, each in seconds.items()}
