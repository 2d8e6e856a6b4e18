"""Warm Spark sessions, and Tandem's jobs on one of them.

`tandem run` starts a JVM for each job; a long-lived Spark, like that of its peers in these
measurements, does not. So Tandem is measured both ways.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.runtime import control
from tandem.spark.runtime.control import Control
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


class WarmRunner:
    """A `JobRunner` that runs our jobs in threads on one session; `seconds` has the duration of
    each."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._threads: dict[str, threading.Thread] = {}
        self._codes: dict[str, int] = {}
        self._stops: dict[str, threading.Event] = {}
        self.seconds: dict[str, float] = {}

    def start(self, request: JobRequest) -> None:
        if request.name not in self._threads:
            self._stops[request.name] = threading.Event()
            thread = threading.Thread(
                target=self._body, args=(request,), name=request.name, daemon=True
            )
            self._threads[request.name] = thread
            thread.start()

    def _body(self, request: JobRequest) -> None:
        started = time.perf_counter()
        stop = self._stops[request.name]
        module = importlib.import_module(f"tandem.spark.jobs.{request.app}")

        def work(opened: Control) -> None:
            match request.app:
                case "rewrite":
                    module.run(opened, self._spark.sparkContext)
                case "statement":
                    module.run(opened, self._spark, stop=stop)
                case _:
                    module.run(opened, self._spark)

        opened = control.open_job(
            request.location, request.spec_path, dict(request.storage_options)
        )
        self._codes[request.name] = control.answer(work, opened)
        self.seconds[request.name] = time.perf_counter() - started

    def status(self, name: str) -> JobStatus:
        thread = self._threads.get(name)
        if thread is None:
            return JobStatus(JobPhase.UNKNOWN)
        if thread.is_alive():
            return JobStatus(JobPhase.RUNNING)
        code = self._codes.get(name, 1)
        return JobStatus(JobPhase.ENDED if code == 0 else JobPhase.FAILED, f"exit code {code}")

    def stop(self, name: str) -> None:
        if name in self._threads:
            self._stops[name].set()
            self._threads[name].join()
