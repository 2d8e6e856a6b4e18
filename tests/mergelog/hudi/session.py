"""Runs traces on Apache Hudi and prints its rows: `python session.py TRACES ANSWERS`.

Runs in the environment that `tools/setup-hudi.sh` makes, so it imports neither Tandem nor the
tests. Each trace is a merge-on-read table of its own. No table service runs by itself: log
compaction and compaction are steps of the trace.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

SCHEMA = "id LONG, at LONG, value STRING, _hoodie_is_deleted BOOLEAN"
JAR = Path(sys.prefix).parent / "hudi-bundle.jar"


def start() -> SparkSession:
    settings = {
        "spark.jars": str(JAR),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Tables are tiny: most of the time would go into compiling for long runs.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djol.skipHotspotSAAttach=true"
        ),
    }
    builder = SparkSession.builder.master("local[1]").appName("hudi")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def options(name: str, *, ordered: bool) -> dict[str, str]:
    found = {
        "hoodie.table.name": name,
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.keygenerator.class": (
            "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
        ),
        "hoodie.record.merge.mode": "EVENT_TIME_ORDERING" if ordered else "COMMIT_TIME_ORDERING",
        "hoodie.metadata.enable": "false",
        "hoodie.embed.timeline.server": "false",
        "hoodie.compact.inline": "false",
        "hoodie.compact.schedule.inline": "false",
        "hoodie.log.compaction.inline": "false",
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
        # Else updates that come with inserts are written into a small base file, not into its log.
        "hoodie.parquet.small.file.limit": "0",
        # So that a step of the trace always has something to do.
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.log.compaction.blocks.threshold": "1",
        "hoodie.upsert.shuffle.parallelism": "1",
        "hoodie.insert.shuffle.parallelism": "1",
    }
    if ordered:
        found["hoodie.table.ordering.fields"] = "at"
    return found


class Table:
    def __init__(self, spark: SparkSession, folder: Path, trace: dict[str, Any]) -> None:
        self.spark, self.trace = spark, trace
        self.path = f"{folder.as_uri()}/{trace['name']}"
        self.options = options(trace["name"].replace("-", "_"), ordered=trace["ordered"])
        self._write(trace["base"], "overwrite", "insert")

    def _write(self, records: list[list[Any]], mode: str, operation: str) -> None:
        rows = [(*record, record[2] is None) for record in records]
        frame = self.spark.createDataFrame(rows, SCHEMA).coalesce(1)
        writer = frame.write.format("hudi").options(**self.options)
        writer.option("hoodie.datasource.write.operation", operation).mode(mode).save(self.path)

    def step(self, step: list[list[Any]] | str) -> None:
        if isinstance(step, list):
            deletes = self.trace["by_operation"]
            self._write(step, "append", "delete" if deletes else "upsert")
        else:
            self._service(step)

    def _service(self, step: str) -> None:
        jvm: Any = self.spark.sparkContext._jvm
        context = self.spark.sparkContext._jsc
        none = jvm.org.apache.hudi.common.util.Option.empty()
        resolver = jvm.org.apache.hudi.common.table.TableSchemaResolver(self._meta())
        client = jvm.org.apache.hudi.DataSourceUtils.createHoodieClient(
            context,
            resolver.getTableSchema(False).toString(),
            self.path,
            self.options["hoodie.table.name"],
            self.options,
        )
        try:
            if step == "stitch":
                client.logCompact(client.scheduleLogCompaction(none).get(), True)
            else:
                client.compact(client.scheduleCompaction(none).get(), True)
        finally:
            client.close()

    def _meta(self) -> Any:
        jvm: Any = self.spark.sparkContext._jvm
        storage = jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(
            self.spark.sparkContext._jsc.hadoopConfiguration()
        )
        builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        return builder.setConf(storage).setBasePath(self.path).build()

    def rows(self) -> list[list[Any]]:
        found = self.spark.read.format("hudi").load(self.path)
        return sorted([row.id, row.at, row.value] for row in found.collect())


def failure(error: Py4JJavaError) -> str:
    """The class of the innermost cause."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getClass().getName())


def answers(spark: SparkSession, traces: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """For each trace the rows after each step; the error of one that cannot be written or read."""
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tandem-hudi-") as folder:
        for trace in traces:
            table = Table(spark, Path(folder), trace)
            after: list[Any] = []
            for step in trace["steps"]:
                sys.stderr.write(f"{trace['name']}: {len(after) + 1} of {len(trace['steps'])}\n")
                try:
                    table.step(step)
                    after.append(table.rows())
                except Py4JJavaError as error:
                    after.append(failure(error))
                    break
            found[trace["name"]] = after
    return found


if __name__ == "__main__":
    spark = start()
    found = answers(spark, json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(found))
    spark.stop()
