"""Warm Spark sessions.

`tandem run` starts a JVM for each job; a long-lived Spark, like that of its peers in these
measurements, does not. So Tandem is measured both ways.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.spark.runtime.session import build_conf, launch_environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP_BYTES = 4 << 30


def start_ours() -> SparkSession:
    """A session with the settings of our jobs."""
    return _start({})


def start_delta() -> SparkSession:
    """Spark with Delta in its fastest settings: optimizing compiler, a large heap, our codec."""
    from delta_session import DELTA_CONF, delta_jars

    spark = _start(
        {
            **build_conf(short=False, memory_bytes=HEAP_BYTES, extra_jars=delta_jars()),
            **DELTA_CONF,
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        }
    )
    # Sessions of jobs read no files by SQL; the statements of Delta name tables by their path.
    spark.conf.set("spark.sql.runSQLOnFiles", "true")
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _start(conf: Mapping[str, str]) -> SparkSession:
    os.environ.update(launch_environment())
    folder = tempfile.mkdtemp(prefix="tandem-warehouse-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return session(
            "tandem-bench", {**(conf or build_conf()), "spark.sql.warehouse.dir": folder}
        )
