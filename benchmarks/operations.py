"""Tandem's operations on a table, as typed in a terminal and on a warm session, and what the files
cost that an engine wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import PATHS, WrongResult, timed

Resources = list[dict[str, Any]]
SCANS = 5


def resources(root: Path, name: str, kind: str, **spec: Any) -> Resources:
    """A table, and one operation on it."""
    api, table = "tandem.dev/v1alpha1", "lineitem"
    return [
        {
            "apiVersion": api,
            "kind": "LakeTable",
            "metadata": {"name": table},
            "spec": {"location": root.as_uri()},
        },
        {
            "apiVersion": api,
            "kind": kind,
            "metadata": {"name": name},
            "spec": {"tableRef": {"name": table}, **spec},
        },
    ]


class Warm:
    """A warm Spark session that does the jobs of operations. `jobs` are the seconds of each job so
    far; `start` the seconds until the session was up. `copies`: whether row groups are copied."""

    def __init__(self, work: Path, *, copies: bool = True) -> None:
        import dataclasses

        from benchmarks.warm import start_ours
        from support.jobs.inline_runner import InlineRunner, as_it_is
        from tandem.jobs.runner import JobRequest
        from tandem.operations import runner as engine
        from tandem.operations.ports import Ports
        from tandem.operations.session.job_control import FileJobs
        from tandem.spark.runtime.control import Control

        def encoding(_request: JobRequest, opened: Control) -> Control:
            job = opened.spec.job.model_copy(update={"reencode": True})
            return dataclasses.replace(opened, spec=opened.spec.model_copy(update={"job": job}))

        self._manifest = work / "tandem.yaml"
        self.start, self._spark = timed(start_ours)
        self._runner = InlineRunner(self._spark, as_it_is if copies else encoding)
        self._options = engine.RunOptions(Ports(jobs=FileJobs(self._runner)), poll_ms=20)

    @property
    def jobs(self) -> list[float]:
        return list(self._runner.seconds.values())

    def perform(self, described: Resources) -> float:
        """Seconds of planning, job and commit. Raises: WrongResult if the operation fails."""
        from tandem.operations import runner as engine
        from tandem.spec import load
        from tandem.spec.status import Phase

        self._manifest.write_text(yaml.safe_dump_all(described))
        took, outcomes = timed(engine.run, load([self._manifest]), self._options)
        status = outcomes[-1].status
        if status.phase is not Phase.SUCCEEDED:
            raise WrongResult(status.model_dump_json())
        return took

    def stop(self) -> None:
        self._spark.stop()


def command(described: Resources, work: Path) -> float:
    """Seconds of `tandem run -f`, as typed in a terminal. Raises: WrongResult if it fails."""
    manifest = work / "run.yaml"
    manifest.write_text(yaml.safe_dump_all(described))
    code = "from tandem.cli.main import main; main()"
    return script(code, "run", "-f", str(manifest), "-q")


def script(code: str, *arguments: str) -> float:
    """Seconds of a Python process. Raises: WrongResult if it fails."""
    took, done = timed(
        subprocess.run,
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WrongResult(done.stdout[-1500:] + done.stderr[-1500:])
    return took


def cost(files: Iterable[Path]) -> dict[str, Any]:
    """How many files, their bytes, and the least CPU seconds to read all columns of all of them, by
    pyarrow on one core."""
    files = list(files)
    size = sum(file.stat().st_size for file in files)
    return {"files": len(files), "bytes": size, "scan": min(_scan(files) for _ in range(SCANS))}


def _scan(files: list[Path]) -> float:
    import pyarrow.parquet as pq

    before = time.process_time()
    for file in files:
        pq.read_table(file, use_threads=False)
    return time.process_time() - before
