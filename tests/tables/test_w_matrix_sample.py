"""A sample of the W matrix: a foreign action of each row, and every operation of ours.

`make matrix` plays all cells, Spark + Delta in a JVM of its own; here it writes in the session
that tests share, and tables that only Spark can make are left out (they take seconds each).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.foreign.process import Process, spark_here, started
from support.lake.delta_log import SCHEMA_STRING
from support.matrix.cells import Cell, Order, Stage
from support.matrix.foreign import FOREIGN
from support.matrix.ours import LOG_MERGE, OURS, REFUSED_WITH_TRACKING
from support.matrix.tables import MADE_BY_SPARK, MatrixTables
from support.some import every_case
from tandem.delta.actions import Metadata, Protocol
from tandem.delta.protocol import OperationKind, refusals

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

TRACKED = (
    *("W7-spark-optimize", "W2-spark-update-moves-partitions", "W6-spark-delete"),
    *("W1-spark-insert", "W4-spark-restore", "W5-deltalake-checkpoint"),
)
"""What is done to tables with row tracking, by turns."""


def sample() -> Iterator[Cell]:
    """Operations in turn; the order of the two changes with every round. Without deletion vectors
    each action meets another operation than with them."""
    names = list(OURS)
    for vectors in (True, False):
        actions = [
            name
            for name, foreign in FOREIGN.items()
            if foreign.shape not in MADE_BY_SPARK
            and name not in LEFT_OUT
            and vectors in foreign.on
            and False in foreign.tracking
        ]
        for number, action in enumerate(actions):
            round_, turn = divmod(number + (0 if vectors else 7), len(names))
            yield Cell(names[turn], action, list(Order)[(round_ + turn) % 2], vectors)


def tracked() -> list[Cell]:
    """A cell of each of our operations, with deletion vectors and without."""
    both = [(name, on) for name in OURS for on in (True, False)]
    return [
        Cell(name, TRACKED[turn % len(TRACKED)], Order.FOREIGN_FIRST, on, tracking=True)
        for turn, (name, on) in enumerate(
            each for each in both if each not in REFUSED_WITH_TRACKING
        )
    ]


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


@pytest.mark.part(12)
@pytest.mark.parametrize("cell", tracked(), ids=str)
def test_N20_row_ids_beside_other_writers(stage: Stage, cell: Cell) -> None:
    stage.play(cell)


KINDS = {
    "update": OperationKind.UPDATE,
    "delete": OperationKind.DELETE,
    "drop": OperationKind.DELETE,
    "merge": OperationKind.MERGE,
    LOG_MERGE: OperationKind.MERGE,
    **dict.fromkeys(
        ("replace AtStart", "replace AtCommit", "replace partitions"), OperationKind.REPLACE
    ),
}
"""What tables are asked for; all others are compactions."""


@pytest.mark.parametrize("vectors", [True, False])
def test_the_matrix_plays_every_operation_that_a_table_with_row_tracking_allows(
    vectors: bool,
) -> None:
    features = frozenset({"deletionVectors"}) if vectors else frozenset[str]()
    protocol = Protocol(3, 7, features, features | {"rowTracking", "domainMetadata"})
    names = ("Id", "CommitVersion")
    configuration = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": str(vectors).lower(),
        **{f"delta.rowTracking.materializedRow{name}ColumnName": f"_{name}" for name in names},
    }
    metadata = Metadata("t", SCHEMA_STRING, (), configuration)
    refused = {
        name
        for name in OURS
        if [*refusals(protocol, metadata, KINDS.get(name, OperationKind.COMPACTION))]
    }
    assert refused == {name for name, on in REFUSED_WITH_TRACKING if on is vectors}


def test_every_operation_is_met_in_both_orders() -> None:
    met = {(cell.ours, cell.order, cell.vectors) for cell in sample()}
    assert met == {(name, order, on) for name in OURS for order in Order for on in (True, False)}


@pytest.mark.parametrize("vectors", [True, False])
def test_every_operation_and_row_is_met(vectors: bool) -> None:
    rows = {cell.foreign.partition("-")[0] for cell in sample() if cell.vectors is vectors}
    met = [cell for cell in of_each_row() if cell.vectors is vectors]
    assert {cell.foreign.partition("-")[0] for cell in met} == rows
    assert {cell.ours for cell in met} == set(OURS)
