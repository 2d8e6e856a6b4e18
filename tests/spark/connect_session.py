"""Reads of a table in a session of Spark Connect, in a process of its own: the rows that each way
to read gives, as JSON. For `matrix_under_connect`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_session import DELTA_CONF, delta_jars
from tandem.spark import read
from tandem.spark.connector import register
from tandem.spark.runtime.session import build_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session() -> SparkSession:
    from pyspark.sql import SparkSession

    conf = build_conf(cores=1, memory_bytes=1 << 30, extra_jars=delta_jars())
    builder = SparkSession.builder.config("spark.api.mode", "connect").master("local[1]")
    for key, value in {**conf, **DELTA_CONF}.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Settings that only a new JVM takes are refused by the server, which has taken them.
        warnings.simplefilter("ignore")
        return builder.getOrCreate()


def ways(spark: SparkSession, path: str, where: str) -> Iterator[tuple[str, DataFrame]]:
    yield "delta", spark.read.format("delta").load(path).filter(where)
    ours = spark.read.format("tandem").load(path)
    yield "tandem", ours.filter(where)
    ours.createOrReplaceTempView("ours")
    yield "view", spark.sql("SELECT * FROM ours").filter(where)
    yield "read", read(spark, path, where)
    yield "in tasks", read(spark, path, where, in_tasks=True)


def main(where: str, *paths: str) -> None:
    spark = session()
    found: dict[str, Any] = {"session": type(spark).__module__}
    register(spark)
    for path in paths:
        found[Path(path).name] = {
            name: sorted(repr(row.asDict()) for row in rows.collect())
            for name, rows in ways(spark, path, where)
        }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
