"""The rewrite job: one Spark task per bin, whose answers the driver merges, checks and publishes.

Spark's SQL engine is not involved unless rows are reordered (`reordered`): a context is enough,
which starts faster than a session. A task that runs twice (speculation, a second driver) writes
files that no result lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tandem.errors import TandemError
from tandem.jobs.formats import RewriteJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.rowmap.binary_format import to_bytes
from tandem.rowmap.rowmap import RowMap, merge
from tandem.spark.jobs.rewrite.bins import BinResult, rewrite_bin
from tandem.spark.jobs.rewrite.row_maps import row_map_of
from tandem.spark.runtime.control import Control, output_file
from tandem.spark.runtime.counters import reported
from tandem.spark.runtime.written_facts import store_facts

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(control: Control, context: SparkContext | None) -> None:
    """Execute the job and publish its result; without a context in this thread, one bin after the
    other, which a job that reorders rows cannot. Raises: TandemError."""
    spec = control.spec
    job = spec.job
    assert isinstance(job, RewriteJob)
    if job.layout is not None:
        # Needs a session, which takes longer to start than a context.
        from tandem.spark.jobs.rewrite.reordered import run_sorted

        assert context is not None
        _publish(control, *run_sorted(control, context, job, job.layout))
        return
    results = _run_bins(control, context, job)
    outputs = []
    maps = []
    read = written = 0
    for result in results:
        bin_ = job.bins[result.index]
        outputs += [output_file(file, run=bin_.run) for file in result.files]
        maps.append(row_map_of(spec, job, result))
        read += result.rows_read
        written += sum(file.rows for file in result.files)
    files = (file for result in results for file in result.files)
    store_facts(control.store, spec.table.table_id, files)
    _publish(control, outputs, merge(maps) if maps else None, read, written)


def _publish(
    control: Control,
    outputs: Sequence[OutputFile],
    row_map: RowMap | None,
    read: int,
    written: int,
) -> None:
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(outputs),
            row_map=control.sidecar(0, "rowmap", to_bytes(row_map)) if row_map else None,
            rows_read=read,
            rows_written=written,
        )
    )


def _run_bins(control: Control, context: SparkContext | None, job: RewriteJob) -> list[BinResult]:
    spec, store = control.spec, control.store

    def task(index: int) -> BinResult | TandemError:
        try:
            return rewrite_bin(store, spec, index)
        except TandemError as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        return size_of(i for index, n in counts.items() for i in job.bins[index].inputs[:n])

    def size_of(inputs: Iterable[int]) -> tuple[int, int]:
        sizes = [job.inputs[i].size for i in inputs]
        return len(sizes), sum(sizes)

    # Large bins first: the job ends with its last task.
    order = sorted(range(len(job.bins)), key=lambda i: -size_of(job.bins[i].inputs)[1])
    with reported(control, "Rewriting", size_of(i for b in job.bins for i in b.inputs), done):
        if context is None:
            found = [task(index) for index in order]
        else:
            found = context.parallelize(order, max(len(order), 1)).map(task).collect()
        for answer in found:
            if isinstance(answer, TandemError):
                raise answer
    return sorted((a for a in found if isinstance(a, BinResult)), key=lambda a: a.index)
