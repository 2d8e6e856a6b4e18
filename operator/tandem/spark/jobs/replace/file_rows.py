"""Which rows of files are in the intervals of a replace: a part of its job.

For files whose times are too many to be read by the engine. Only the time column is read, by the
same code as there, so a task needs Python and no SQL. All rows are reported, deleted or not: a file
never changes, and the answer stays valid whatever commits do. A task reads whole files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tandem.errors import TandemError
from tandem.intervals import IntervalSet
from tandem.jobs.formats import InputFile, JobSpec, ReplaceJob
from tandem.jobs.results import JobResult
from tandem.rowmap.positions import Positions
from tandem.spark.runtime.control import Control, job_table_format
from tandem.spark.runtime.counters import Counter, prefix_of, reported
from tandem.spark.runtime.ipc import to_file
from tandem.spark.runtime.row_files import MATCHES, open_input
from tandem.storage import Store
from tandem.timeline.file_columns import rows_within

if TYPE_CHECKING:
    from pyspark import SparkContext

MOST_TASKS = 1_000
"""A task takes about 20 ms of the driver, also for a file of a few rows."""


def read(
    control: Control, context: SparkContext, inputs: Sequence[InputFile], round_: int
) -> list[Positions]:
    """The rows of each input that are in the intervals of the job's scope.

    Raises: DataFileMissing, StorageError, CountMismatch.
    """
    spec, store = control.spec, control.store

    def task(index: int) -> Positions | TandemError:
        try:
            found = rows_of(store, spec, inputs[index])
        except TandemError as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error
        counter = Counter(store, prefix_of(spec.control_prefix, round_), index)
        counter.add()
        counter.show()
        return found

    def size_of(files: Mapping[int, int]) -> tuple[int, int]:
        return len(files), sum(inputs[index].size for index in files)

    order = range(len(inputs))
    with reported(control, "Reading times", size_of(dict.fromkeys(order, 1)), size_of, round_):
        answers = context.parallelize(order, min(len(order), MOST_TASKS)).map(task).collect()
    found: list[Positions] = []
    for answer in answers:
        if isinstance(answer, TandemError):
            raise answer
        found.append(answer)
    return found


def rows_of(store: Store, spec: JobSpec, input_: InputFile) -> Positions:
    """The rows of a file that are in the intervals of the job's scope: the work of a task.

    Raises: DataFileMissing, StorageError, CountMismatch.
    """
    job = spec.job
    assert isinstance(job, ReplaceJob)
    intervals, table = IntervalSet.from_json(job.scope.intervals), job_table_format(spec.table)
    found, start = [np.empty(0, np.int64)], 0
    with open_input(store, table, input_, [job.scope.time_column]) as reader:
        for batch in reader.batches():
            found.append(np.flatnonzero(rows_within(batch.column(0), intervals)) + start)
            start += batch.num_rows
    return np.concatenate(found)


def with_matches(
    control: Control,
    result: JobResult,
    inputs: Sequence[InputFile],
    found: Sequence[Positions],
) -> JobResult:
    """The result of a round, with the rows that were found in each input."""
    rows = sum(map(len, found))
    matches = pa.table(
        [
            pa.array(np.repeat(np.arange(len(found), dtype=np.int32), [len(f) for f in found])),
            pa.array(np.concatenate([np.empty(0, np.int64), *found])),
            pa.nulls(rows, pa.int32()),
            pa.nulls(rows, pa.int64()),
        ],
        schema=MATCHES,
    )
    sidecar = control.sidecar(result.round, "matches.arrow", to_file(matches))
    read = result.rows_read + sum(input_.rows for input_ in inputs)
    return result.model_copy(update={"matches": sidecar, "rows_read": read, "rows_matched": rows})
