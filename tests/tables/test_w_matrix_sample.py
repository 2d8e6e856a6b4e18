"""A sample of the W matrix: a foreign action of each row, and every operation of ours.

`make matrix` plays all cells, Spark + Delta in a JVM of its own; here it writes in the session
that tests share, and tables that only Spark can make are left out (they take seconds each).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.foreign.process import Process, spark_here, started
from support.matrix.cells import Cell, Order, Stage
from support.matrix.foreign import FOREIGN
from support.matrix.ours import OURS
from support.matrix.tables import MADE_BY_SPARK, MatrixTables
from support.some import every_case

LEFT_OUT = frozenset(
    {
        "W1-spark-insert",
        "W5-spark-vacuum-without-retention",
        # Both take two minutes: our job waits for a core that theirs holds at its gate.
        "W6-spark-merge",
        "W6-spark-update",
        "W7-spark-optimize-z-order",
        "W8-spark-add-column",
        "W8-spark-constraint",
        "W8-spark-property",
        "W10-change-data-feed-delete",
    }
)
"""Spark's are the dear ones, and deltalake does as much in other cells."""


def sample() -> Iterator[Cell]:
    """Operations in turn; the order of the two changes with every round. Without deletion vectors
    each action meets another operation than with them."""
    names = list(OURS)
    for vectors in (True, False):
        actions = [
            name
            for name, foreign in FOREIGN.items()
            if foreign.shape not in MADE_BY_SPARK and name not in LEFT_OUT and vectors in foreign.on
        ]
        for number, action in enumerate(actions):
            round_, turn = divmod(number + (0 if vectors else 7), len(names))
            yield Cell(names[turn], action, list(Order)[(round_ + turn) % 2], vectors)


def of_each_row() -> list[Cell]:
    """With deletion vectors, then without: one cell of each row of `scenarios.md`, if possible with
    an operation that no row above has, then one of each operation that none of them has; with
    `TANDEM_EVERY_CASE` the whole sample."""
    cells = [*sample()]
    if every_case():
        return cells
    return [cell for on in (True, False) for cell in _few([c for c in cells if c.vectors is on])]


def _few(cells: list[Cell]) -> list[Cell]:
    rows: dict[str, list[Cell]] = {}
    for cell in reversed(cells):
        rows.setdefault(cell.foreign.partition("-")[0], []).append(cell)
    chosen: list[Cell] = []
    for row in reversed(rows.values()):
        met = {cell.ours for cell in chosen}
        chosen.append(next((cell for cell in row if cell.ours not in met), row[0]))
    for name in OURS:
        if all(cell.ours != name for cell in chosen):
            chosen.append(next(cell for cell in cells if cell.ours == name))
    return chosen


@pytest.fixture(scope="module")
def foreign_deltalake() -> Iterator[Process]:
    with started("deltalake") as engine:
        yield engine


@pytest.fixture(scope="module")
def stage(
    spark: SparkSession,
    delta_spark: SparkSession,
    foreign_deltalake: Process,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    foreign_spark = spark_here(delta_spark)
    tables = MatrixTables(tmp_path_factory.mktemp("matrix"), spark, foreign_spark)
    return Stage(tables, foreign_deltalake, foreign_spark)


@pytest.mark.part(6)
@pytest.mark.parametrize("cell", of_each_row(), ids=str)
def test_W1_W2_W3_W4_W5_W6_W7_W8_W10_a_cell_of_each_row(stage: Stage, cell: Cell) -> None:
    stage.play(cell)


def test_every_operation_is_met_in_both_orders() -> None:
    met = {(cell.ours, cell.order, cell.vectors) for cell in sample()}
    assert met == {(name, order, on) for name in OURS for order in Order for on in (True, False)}


@pytest.mark.parametrize("vectors", [True, False])
def test_every_operation_and_row_is_met(vectors: bool) -> None:
    rows = {cell.foreign.partition("-")[0] for cell in sample() if cell.vectors is vectors}
    met = [cell for cell in of_each_row() if cell.vectors is vectors]
    assert {cell.foreign.partition("-")[0] for cell in met} == rows
    assert {cell.ours for cell in met} == set(OURS)
