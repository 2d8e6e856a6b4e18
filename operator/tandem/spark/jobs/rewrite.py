"""The rewrite job: one Spark task per bin, whose answers the driver merges, checks and publishes.

Spark's SQL engine is not involved unless rows are reordered that do not fit into the memory of a
task (`large_bins`): a context is enough, which starts faster than a session. A task that runs twice
(speculation, a second driver) writes files that no result lists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tandem.errors import ManifestInvalid
from tandem.jobs.formats import InputFile, RewriteJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.rowmap.binary_format import to_bytes
from tandem.rowmap.rowmap import RowMap, merge
from tandem.spark.jobs.bins import MEMORY, BinResult, BinTooLarge, rewrite_bin, row_map_of
from tandem.spark.runtime.control import Control, output_file, reported
from tandem.spark.runtime.frames import each_in_a_task, isolated_session
from tandem.spark.runtime.written_facts import store_facts

if TYPE_CHECKING:
    from pyspark import SparkContext


def run(
    control: Control,
    context: SparkContext,
    *,
    memory: int = MEMORY,
    stop: threading.Event | None = None,
) -> None:
    """Execute the job and publish its result.

    Args:
        memory: bytes that a bin may take in a task where rows are reordered (`sorted_bins`).
        stop: ends the service of rounds of edits.
    Raises: TandemError.
    """
    _run(control, context, memory)
    if control.spec.job.serves_rounds:
        from tandem.spark.jobs.statement import serve  # which takes long to import

        serve(control, _no_rows, stop or threading.Event())


def _no_rows(_inputs: Sequence[InputFile], round_: int) -> None:
    raise ManifestInvalid("a rewrite evaluates no rows", field=f"round {round_}")


def run_here(control: Control, *, memory: int = MEMORY) -> bool:
    """Execute the job in this thread, one bin after the other, and publish its result; False if
    rows are to be reordered that take more memory: nothing is published then.

    Raises: TandemError.
    """
    return _run(control, None, memory)


def _run(control: Control, context: SparkContext | None, memory: int) -> bool:
    spec = control.spec
    job = spec.job
    assert isinstance(job, RewriteJob)
    results, large = _run_bins(control, context, job, memory)
    if large and context is None:
        return False
    if large:
        assert context is not None
        results = sorted([*results, *_sorted(control, context, large, memory)], key=_number)
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
    in_store = sum(result.copied_in_store for result in results)
    _publish(control, outputs, merge(maps) if maps else None, read, written, in_store)
    return True


def _sorted(
    control: Control, context: SparkContext, large: Sequence[int], memory: int
) -> list[BinResult]:
    # Needs a session, which takes longer to start than a context.
    from pyspark.sql import SparkSession

    from tandem.spark.jobs.large_bins import sort_large
    from tandem.spark.runtime.frames import SparkExchange

    with isolated_session(SparkSession(context)) as spark:
        return sort_large(control, large, memory, SparkExchange(spark))


def _publish(
    control: Control,
    outputs: Sequence[OutputFile],
    row_map: RowMap | None,
    read: int,
    written: int,
    copied_in_store: int,
) -> None:
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=tuple(outputs),
            row_map=control.side_file(0, "rowmap", to_bytes(row_map)) if row_map else None,
            rows_read=read,
            rows_written=written,
            copied_in_store=copied_in_store,
        )
    )


def _run_bins(
    control: Control, context: SparkContext | None, job: RewriteJob, memory: int
) -> tuple[list[BinResult], list[int]]:
    """(the results, the numbers of bins that are too large), each in the order of the bins. Without
    a context it ends with the first bin that is too large."""
    spec, store, counters = control.spec, control.store, control.counters(0)
    sorts = job.layout is not None

    def task(index: int) -> BinResult | BinTooLarge:
        if sorts:
            from tandem.spark.jobs.sorted_bins import sort_bin

            return sort_bin(store, spec, index, memory, counters)
        return rewrite_bin(store, spec, index, counters)

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        return size_of(i for index, n in counts.items() for i in job.bins[index].inputs[:n])

    def size_of(inputs: Iterable[int]) -> tuple[int, int]:
        sizes = [job.inputs[i].size for i in inputs]
        return len(sizes), sum(sizes)

    # Large bins first: the job ends with its last task.
    order = sorted(range(len(job.bins)), key=lambda i: -size_of(job.bins[i].inputs)[1])
    stage = "Sorting" if sorts else "Rewriting"
    found: list[BinResult | BinTooLarge] = []
    with reported(control, stage, size_of(i for b in job.bins for i in b.inputs), done):
        if context is None:
            for index in order:
                found.append(task(index))
                if isinstance(found[-1], BinTooLarge):
                    break
        else:
            found = each_in_a_task(context, order, task)
    results = sorted((a for a in found if isinstance(a, BinResult)), key=_number)
    return results, sorted(a.index for a in found if isinstance(a, BinTooLarge))


def _number(result: BinResult) -> int:
    return result.index
