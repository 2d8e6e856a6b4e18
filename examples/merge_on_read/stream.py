"""A stream of Spark into the log of a Delta table, and the merged view as a DataFrame.

python examples/merge_on_read/stream.py /tmp/shop
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tandem import mergelog
from tandem.spark.connector import register


def main(spark: SparkSession, folder: Path) -> None:
    location = str(folder / "orders")
    orders = pa.table({"id": [1, 2, 3], "state": ["new", "new", "new"], "amount": [10, 20, 30]})
    write_deltalake(location, orders, configuration={"delta.enableDeletionVectors": "true"})
    log = mergelog.open_log(location)
    settings = mergelog.LogSettings(keys=("id",))
    mergelog.ensure_log(log, settings, now_ms=time.time_ns() // 1_000_000, nonce=location)

    events = pa.table(
        {
            "id": [2, 4, 1],
            "state": ["paid", "new", None],
            "amount": [20, 40, None],
            "gone": [False, False, True],
        }
    )
    (folder / "events").mkdir()
    pq.write_table(events, folder / "events" / "0.parquet")

    register(spark)
    stream = spark.readStream.schema("id bigint, state string, amount bigint, gone boolean")
    query = (
        stream.parquet(str(folder / "events"))
        .coalesce(1)  # one block for each batch
        .writeStream.format("tandem")
        .option("writer", "shop")
        .option("deletes", "gone")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(location)
    )
    query.awaitTermination()

    reader = spark.read.format("tandem")
    reader.load(location).orderBy("id").show()
    reader.option("columns", "id,state").load(location).where("state = 'paid'").show()


if __name__ == "__main__":
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    main(session, Path(sys.argv[1]).absolute())
