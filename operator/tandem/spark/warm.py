"""One small run of every shape of job, for the class-data archive (`tools/spark_setup.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def exercise_jobs(spark: SparkSession, folder: Path) -> None:
    """Load the classes that RDD tasks and the Python data source need.

    `folder` is scratch space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spark.sparkContext.parallelize(range(2), 2).map(lambda n: n + 1).collect()
