"""Ingests and upserts by Spark, each of them tried without it before: what is done without Spark is
what Spark does, and what is refused there is refused alike."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from support.jobs import job_files
from tandem.errors import TandemError
from tandem.jobs.formats import UpsertJob
from tandem.jobs.results import JobResult
from tandem.spark.in_process import HeldControl
from tandem.spark.jobs import ingest, upsert
from tandem.spark.runtime.control import Control, translate

run_ingest, run_upsert = ingest.run, upsert.run
"""As they are."""


def rows_of(control: Control, result: JobResult) -> list[str]:
    """The rows of a result's files, in order."""
    job = control.spec.job
    if isinstance(job, UpsertJob):
        control = Control(control.spec.model_copy(update={"table": job.blocks}), control.store)
    found = [
        repr(row)
        for output in result.outputs
        for row in job_files.read_output(control, output.path, output.partition_values).to_pylist()
    ]
    return sorted(found)


class BothWays:
    """`done` counts the jobs that needed no Spark."""

    def __init__(self) -> None:
        self.done = 0

    def ingest(
        self, control: Control, spark: SparkSession, stop: threading.Event | None = None
    ) -> None:
        with self._compared(control):
            run_ingest(control, spark, stop)

    def upsert(self, control: Control, spark: SparkSession) -> None:
        with self._compared(control):
            run_upsert(control, spark)

    def _compared(self, control: Control) -> _Compared:
        return _Compared(self, control)


class _Compared:
    def __init__(self, both: BothWays, control: Control) -> None:
        self._both = both
        self._control = control
        prefix = f"here-{control.spec.data_prefix}"
        spec = control.spec.model_copy(update={"data_prefix": prefix})
        self._held = HeldControl(spec, control.store)
        self._error: TandemError | None = None
        self._is_done = False

    def __enter__(self) -> None:
        here = upsert if isinstance(self._control.spec.job, UpsertJob) else ingest
        try:
            self._is_done = here.run_here(self._held)
        except TandemError as error:
            self._error = error

    def __exit__(self, _: object, raised: BaseException | None, __: object) -> None:
        if raised is not None:
            assert not self._is_done, f"Spark refuses what is done here: {raised}"
            described = translate(raised)
            assert self._error is None or str(self._error) == str(described)
            return
        assert self._error is None, f"Spark does what is refused here: {self._error}"
        if self._is_done:
            self._both.done += 1
            result = self._held.result(0)
            expected = self._control.result(0)
            assert rows_of(self._held, result) == rows_of(self._control, expected)
            assert result.rows_read == expected.rows_read
            assert result.rows_written == expected.rows_written
            self._held.store.delete_prefix(self._held.spec.data_prefix)


@pytest.fixture(autouse=True)
def both_ways(monkeypatch: pytest.MonkeyPatch) -> BothWays:
    """To be imported by a module of tests: all of its ingests and upserts are tried both ways."""
    both = BothWays()
    monkeypatch.setattr(ingest, "run", both.ingest)
    monkeypatch.setattr(upsert, "run", both.upsert)
    return both
