"""The stitch job: replaces each run of a log's blocks by one block, or several if it is large.

One Spark task per run; a context is enough. What a stitched block keeps is decided by
`tandem.mergelog.by_key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.jobs.formats import JobSpec, StitchJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.mergelog.log_table import LogSettings
from tandem.mergelog.stitch import StitchRequest, stitch
from tandem.mergelog.versions import DELETES, Block, BlockRun
from tandem.spark.runtime.control import Control, Counter, Counters, job_table_format, reported
from tandem.spark.runtime.frames import each_in_a_task
from tandem.storage import Store
from tandem.storage.paths import object_path

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class StitchedRun:
    """The result of a task: the files of run `index`, and the records that it read."""

    index: int
    outputs: tuple[OutputFile, ...]
    records_in: int
    records_out: int


def run(control: Control, context: SparkContext | None) -> None:
    """Execute the job, without a context in this thread, and publish its result. Raises:
    TandemError."""
    spec, store, counters = control.spec, control.store, control.counters(0)
    job = spec.job
    assert isinstance(job, StitchJob)

    def size_of(runs: Mapping[int, int]) -> tuple[int, int]:
        sizes = [job.inputs[i].size for at in runs for i in job.runs[at].inputs]
        return len(sizes), sum(sizes)

    order = range(len(job.runs))
    with reported(control, "Stitching", size_of(dict.fromkeys(order, 1)), size_of):
        found = each_in_a_task(
            context, order, lambda index: stitch_run(store, spec, index, counters)
        )
    publish(control, found)


def publish(control: Control, runs: Sequence[StitchedRun]) -> None:
    """Publish the result of a job from those of its runs."""
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(output for each in runs for output in each.outputs),
            rows_read=sum(each.records_in for each in runs),
            rows_written=sum(each.records_out for each in runs),
        )
    )


def stitch_run(
    store: Store, spec: JobSpec, index: int, counters: Counters | None = None
) -> StitchedRun:
    """Stitch one run: the work of a task. Raises: DataFileMissing, StorageError."""
    job = spec.job
    assert isinstance(job, StitchJob)
    run_ = job.runs[index]
    blocks = tuple(
        Block(
            path=object_path(job.inputs[place].logged_path),
            first=first,
            last=last,
            size=job.inputs[place].size,
            group=tuple(sorted(job.inputs[place].partition_values.items())),
        )
        for place, first, last in zip(run_.inputs, run_.first, run_.last, strict=True)
    )
    found = stitch(
        store,
        BlockRun(blocks),
        StitchRequest(job.mark, job.expired, job.max_block_bytes),
        job_table_format(spec.table),
        LogSettings(job.keys, job.ordering_column, ""),
        prefix=spec.data_prefix,
        task=index,
    )
    counter = Counter(counters, index)
    counter.add()
    counter.show()
    outputs = tuple(
        OutputFile(
            path=add.logged_path,
            size=add.size,
            rows=rows,
            modified_ms=add.modified_ms,
            stats=add.stats or "",
            partition_values=dict(add.partition_values),
            run=index,
            deletes=int(add.tags[DELETES]),
        )
        for add, rows in zip(found.adds, found.rows, strict=True)
    )
    return StitchedRun(index, outputs, found.records_in, found.records_out)
