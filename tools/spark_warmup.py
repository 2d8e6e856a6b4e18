"""What `tools/spark_setup.py` runs so that the JVM loads the classes our jobs need.

Exercises each shape of job once on a few rows (`tandem.spark.jobs.warm`), and with `--tests` Delta
as the tests use it. The archive's name holds a digest of both files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention


def exercise_delta(spark: SparkSession, folder: Path) -> None:
    """What tests do with Delta as the second reader and hostile writer."""
    target = f"delta.`{folder}/delta`"
    spark.sql(
        f"CREATE TABLE {target} (id BIGINT, name STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    for start in (0, 100):
        spark.range(start, start + 100).select(
            "id", F.expr("cast(id AS string) name")
        ).write.format("delta").mode("append").save(f"{folder}/delta")
    spark.sql(f"DELETE FROM {target} WHERE id % 3 = 0")  # noqa: S608 - our own scratch folder
    spark.sql(f"UPDATE {target} SET name = 'x' WHERE id = 4")  # noqa: S608 - our own scratch folder
    spark.sql(f"OPTIMIZE {target}")
    spark.sql(f"SELECT * FROM {target} VERSION AS OF 1").toArrow()  # noqa: S608 - our own scratch folder
    spark.read.format("delta").load(f"{folder}/delta").orderBy("id").collect()


def main() -> None:
    from tandem.spark.jobs.warm import exercise_jobs

    with tempfile.TemporaryDirectory(prefix="tandem-warm-") as name:
        folder = Path(name)
        if sys.argv[1:2] == ["--tests"]:
            from delta_session import start_session

            spark = start_session(record_archive=Path(sys.argv[2]))
            exercise_jobs(spark, folder)
            exercise_delta(spark, folder)
        else:
            from tandem.spark.runtime.session import session

            spark = session("tandem-warm")
            exercise_jobs(spark, folder)
        gateway = spark.sparkContext._gateway
        spark.stop()
        if gateway is not None and gateway.proc is not None:
            # The archive is written when the JVM ends; that it does before we do.
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


if __name__ == "__main__":
    main()
