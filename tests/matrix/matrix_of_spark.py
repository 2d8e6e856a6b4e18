"""W1, W5 to W8, W10: every cell whose foreign writer is Spark + Delta, in a JVM of its own.

Our jobs run in this process's `SparkSession`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.matrix.cells import Cell, Outcome, Stage, cells, needs_spark


@pytest.mark.parametrize("cell", [c for c in cells() if needs_spark(c) and not c.tracking], ids=str)
def test_W_spark(stage_of_spark: Stage, record: Callable[[Outcome], None], cell: Cell) -> None:
    record(stage_of_spark.play(cell))
