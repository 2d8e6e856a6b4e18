"""The jobs of a log, played a task at a time by the functions that Spark's tasks run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mergelog.oracle import Event
from simulator.merge_log import tables_of
from tandem.errors import TandemError
from tandem.jobs.formats import LogMergeJob, StitchJob, UpsertJob
from tandem.spark.jobs import log_merge, stitch, upsert
from tandem.spark.runtime.control import Control


def log_job(control: Control, sources: Mapping[str, Sequence[Event]]) -> Iterator[None]:
    """Do a job, and publish its result or its failure. `sources`: the records of upserts."""
    job = control.spec.job
    try:
        if isinstance(job, StitchJob):
            yield from _stitch(control, job)
        elif isinstance(job, LogMergeJob):
            yield from _merge(control, job)
        elif isinstance(job, UpsertJob):
            yield from _upsert(control, job, sources[job.source_location])
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


def _upsert(control: Control, job: UpsertJob, events: Sequence[Event]) -> Iterator[None]:
    upserts, deletes = tables_of(events, ordered=bool(job.ordering_column))
    rows = (deletes if job.deletes else upserts).sort_by("rid")
    written = []
    half = max(1, rows.num_rows // 2)
    for at in range(0, rows.num_rows, half):
        # As tasks do: each has a range of the keys.
        files = upsert.BlockFiles(control.store, upsert.block_work(control, job))
        written.append(files.write_blocks(rows.slice(at, half).to_batches()))
        yield
    outputs = [file for task in written for file in upsert.outputs_of(task)]
    upsert.publish(control, outputs, rows.num_rows, written[0].repeated)
