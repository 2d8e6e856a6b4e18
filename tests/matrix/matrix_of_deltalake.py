"""W1 to W5, W8, W10: every cell whose foreign writer is deltalake, in a process of its own.

Our jobs run in this process's `SparkSession`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.matrix.cells import Cell, Outcome, Stage, cells, needs_spark


@pytest.mark.parametrize("cell", [c for c in cells() if not needs_spark(c)], ids=str)
def test_W_deltalake(
    stage_of_deltalake: Stage, record: Callable[[Outcome], None], cell: Cell
) -> None:
    record(stage_of_deltalake.play(cell))
