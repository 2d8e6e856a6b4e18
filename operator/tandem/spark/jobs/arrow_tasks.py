"""Work over Arrow on the inputs of a round, cut into tasks: Spark's, or one in this thread.

Spark only hands the inputs out, and shows progress; no row becomes one of Spark's. It must not
decide what a task does, nor whether Spark evaluates the round instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tandem.errors import TandemError
from tandem.jobs.formats import InputFile
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.counters import reported
from tandem.spark.runtime.row_files import InputSplit
from tandem.statements.local import NeedsSpark

if TYPE_CHECKING:
    from pyspark import SparkContext

A = TypeVar("A")

MOST_ROWS_HERE: Final = 16_000_000
"""Rows that are evaluated without Spark: each that matches takes about 60 bytes until the round has
its result, and a file of few bytes may have many rows."""

Task = Callable[[int, Sequence[InputSplit]], A]
"""The work of a task, given its number and what it reads."""


def in_tasks(
    control: Control,
    context: SparkContext | None,
    inputs: Sequence[InputFile],
    round_: int,
    stage: str,
    work: Task[A],
) -> list[A]:
    """The answers of all tasks, in their order.

    Args:
        context: hands the tasks out; None: there is one task, in this thread.
        stage: what is going on, for people.
        work: it must not refer to `control`, which stays with the driver.
    Raises: NeedsSpark, also for too many rows for this thread; the TandemError of a task.
    """
    if context is None and sum(i.rows for i in inputs) > MOST_ROWS_HERE:
        raise NeedsSpark("too many rows for one thread")
    tasks = _tasks(inputs, on_spark=context is not None)

    def task(number: int) -> A | NeedsSpark | TandemError:
        try:
            return work(number, tasks[number])
        except (NeedsSpark, TandemError) as error:
            # Returned, not raised: Spark would convert it to a stack trace in a string.
            return error

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        read = [split for number, n in counts.items() for split in tasks[number][:n]]
        size = sum(inputs[split.input].size / split.parts for split in read)
        return int(sum(1 / split.parts for split in read) + 1e-6), int(size)

    total = len(inputs), sum(i.size for i in inputs)
    found: list[A] = []
    with reported(control, stage, total, done, round_):
        order = range(len(tasks))
        if context is None:
            answers = [task(number) for number in order]
        else:
            answers = context.parallelize(order, len(order)).map(task).collect()
        for answer in answers:
            if isinstance(answer, NeedsSpark | TandemError):
                raise answer
            found.append(answer)
    return found


def _tasks(inputs: Sequence[InputFile], *, on_spark: bool) -> list[tuple[InputSplit, ...]]:
    """What each task reads."""
    if not on_spark:
        return [tuple(map(InputSplit, range(len(inputs))))]
    from tandem.spark.runtime.datasource import shares

    return [share.splits for share in shares(inputs)]
