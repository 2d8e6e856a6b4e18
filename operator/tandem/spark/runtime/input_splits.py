"""Distribution of inputs over Spark's tasks: small ones together, large ones in parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql.datasource import InputPartition

from tandem.spark.runtime.row_files import InputSplit

__all__ = ["InputSplit", "TaskSplits", "task_splits"]


class TaskSplits(InputPartition):
    """The splits that one task reads, in order; `number` is the index of the task."""

    def __init__(self, number: int, splits: tuple[InputSplit, ...]) -> None:
        super().__init__(number)
        self.number = number
        self.splits = splits


def task_splits(sizes: Sequence[int], target: int, whole: Collection[int] = ()) -> list[TaskSplits]:
    """Tasks of about `target` bytes each, in the inputs' order.

    Args:
        sizes: sizes of the inputs in bytes.
        whole: indexes of inputs that cannot be split.
    """
    found: list[tuple[InputSplit, ...]] = []
    together: list[InputSplit] = []
    filled = 0
    for index, size in enumerate(sizes):
        parts = 1 if index in whole else max(1, round(size / target))
        if parts > 1:
            found += [(InputSplit(index, part, parts),) for part in range(parts)]
            continue
        together.append(InputSplit(index))
        filled += size
        if filled >= target:
            found.append(tuple(together))
            together, filled = [], 0
    if together:
        found.append(tuple(together))
    return [TaskSplits(number, shares) for number, shares in enumerate(found)]
