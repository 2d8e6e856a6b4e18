"""The one Spark session that a test process shares, with Delta's jars on its class path.

Starting a session takes seconds; sharing it is what keeps the Spark tests below two minutes.
The product itself never needs Delta's jars: here they make Spark the second oracle.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

from tandem.spark.runtime.session import build_conf, cache_dir, launch_environment

WORKERS = str(Path(__file__).resolve().parent / "spark_workers")

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""4.4.1 is on PyPI, but its jar was never published."""

DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Jobs run without it; tests write delta.`/path` all the time.
    "spark.sql.runSQLOnFiles": "true",
    "spark.databricks.delta.snapshotPartitions": "1",
}

FACTORY_MODE = "spark.sql.codegen.factoryMode"
NO_CODEGEN = "NO_CODEGEN"

JAVA_OPTIONS = "-XX:ReservedCodeCacheSize=240m"
"""With the first compiler tier alone, the JVM reserves 48 MiB for compiled code. A run that lasts
minutes needs more: the JVM then discards methods and compiles them again."""


def delta_jars() -> list[Path]:
    """Delta's jars in the cache, in a fixed order: the class-data archive depends on it."""
    folder = cache_dir() / "jars"
    jars = sorted(folder.glob("io.*.jar"))
    if not any(jar.name.startswith("io.delta_delta-spark") for jar in jars):
        raise FileNotFoundError(
            f"Delta's jars are not in {folder}: run `python tools/spark_setup.py --tests`"
        )
    return jars


def unity_catalog_jar() -> Path:
    """The jar with Spark's catalog for tables in Unity Catalog (`tools/unity`). Its name has a
    digest of what it is made from. Not on the class path of every session: only of one that is a
    client of Unity Catalog."""
    source = Path(__file__).resolve().parent / "unity" / "UCSingleCatalog.scala"
    made_from = source.read_bytes() + DELTA_PACKAGE.encode()
    return cache_dir() / "unity" / f"catalog-{hashlib.sha256(made_from).hexdigest()[:16]}.jar"


@cache
def interpreting(session: SparkSession) -> SparkSession:
    """A session of the same JVM that interprets expressions. To compile them takes longer than to
    read or write a small table. Data skipping works as by default. Returns an interpreting session
    unchanged."""
    if session.conf.get(FACTORY_MODE, None) == NO_CODEGEN:
        return session
    quick = session.newSession()
    quick.conf.set("spark.sql.codegen.wholeStage", "false")
    quick.conf.set(FACTORY_MODE, NO_CODEGEN)
    quick.conf.set("spark.sql.adaptive.enabled", "false")
    quick.conf.set("spark.sql.shuffle.partitions", "1")
    return quick


@contextmanager
def _quick_workers() -> Iterator[None]:
    """The JVM that starts in the block starts Python workers with `spark_workers` on their path."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [WORKERS, before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def unity_conf(url: str) -> dict[str, str]:
    """Settings of a session that has the catalog `unity` of a Unity Catalog, whose tables are local
    folders."""
    catalog = "spark.sql.catalog.unity"
    return {
        "spark.jars": str(unity_catalog_jar()),
        catalog: "io.unitycatalog.spark.UCSingleCatalog",
        f"{catalog}.uri": url,
        f"{catalog}.token": "of-spark",
        f"{catalog}.credentialVending.enabled": "false",
    }


def start_session(
    record_archive: Path | None = None, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Start the shared session. Call once per process (the fixture does)."""
    os.environ.update(launch_environment())
    settings = {
        # Delta keeps the plans of every table that it has seen, and the tests make hundreds: with
        # Spark's 1 GiB the end of a run is mostly garbage collection.
        **build_conf(
            cores=2, memory_bytes=3 << 30, extra_jars=delta_jars(), record_archive=record_archive
        ),
        **DELTA_CONF,
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="tandem-warehouse-"),
        **conf,
    }
    settings["spark.driver.extraJavaOptions"] += f" {JAVA_OPTIONS}"
    builder = SparkSession.builder.appName("tandem-tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # PySpark warns about pandas 3 while it imports; nothing here uses pandas.
        warnings.simplefilter("ignore", FutureWarning)
        with _quick_workers():
            session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
