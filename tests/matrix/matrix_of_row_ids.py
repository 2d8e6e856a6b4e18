"""N20, W1 to W8, W10: every cell on tables with row tracking. Spark + Delta, in a JVM of its own,
is the foreign writer, and the judge of row ids and commit versions.

Our jobs run in this process's `SparkSession`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.matrix.cells import Cell, Outcome, Stage, cells


@pytest.mark.parametrize("cell", [c for c in cells() if c.tracking], ids=str)
def test_N20_row_tracking(
    stage_of_spark: Stage, record: Callable[[Outcome], None], cell: Cell
) -> None:
    record(stage_of_spark.play(cell))
