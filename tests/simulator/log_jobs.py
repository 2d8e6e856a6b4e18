"""The jobs of a log, played a task at a time by the functions that Spark's tasks run."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.errors import TandemError
from tandem.jobs.formats import LogMergeJob, StitchJob
from tandem.spark.jobs import log_merge, stitch
from tandem.spark.runtime.control import Control


def log_job(control: Control) -> Iterator[None]:
    """Do a job, and publish its result or its failure."""
    job = control.spec.job
    try:
        if isinstance(job, StitchJob):
            yield from _stitch(control, job)
        elif isinstance(job, LogMergeJob):
            yield from _merge(control, job)
    except TandemError as error:
        control.fail(error)


def _stitch(control: Control, job: StitchJob) -> Iterator[None]:
    runs = []
    for index in range(len(job.runs)):
        runs.append(stitch.stitch_run(control.store, control.spec, index))
        yield
    stitch.publish(control, runs)


def _merge(control: Control, job: LogMergeJob) -> Iterator[None]:
    won = log_merge.log_winners(control.store, control.spec)
    found = []
    for index in range(len(job.inputs)):
        found.append((index, log_merge.match_file(control.store, control.spec, index, won.overlay)))
        yield
    log_merge.publish(control, won, found)
