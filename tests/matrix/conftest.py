"""The stage of the W matrix, and the record of its outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.foreign.process import Process, spark_here, started
from support.matrix.cells import Outcome, Stage
from support.matrix.outcomes import RECORDING
from support.matrix.tables import MatrixTables


@pytest.fixture(scope="session")
def foreign_deltalake() -> Iterator[Process]:
    with started("deltalake") as engine:
        yield engine


@pytest.fixture(scope="session")
def foreign_spark() -> Iterator[Process]:
    """Spark + Delta in a JVM of its own."""
    with started("spark") as engine:
        yield engine


@pytest.fixture(scope="session")
def stage_of_deltalake(
    spark: SparkSession,
    delta_spark: SparkSession,
    foreign_deltalake: Process,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """Here Spark + Delta only reads, in the JVM that our jobs run in."""
    reader = spark_here(delta_spark)
    root = tmp_path_factory.mktemp("matrix-deltalake")
    return Stage(MatrixTables(root, spark, reader), foreign_deltalake, reader)


@pytest.fixture(scope="session")
def stage_of_spark(
    spark: SparkSession,
    foreign_deltalake: Process,
    foreign_spark: Process,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    root = tmp_path_factory.mktemp("matrix-spark")
    return Stage(MatrixTables(root, spark, foreign_spark), foreign_deltalake, foreign_spark)


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest) -> Callable[[Outcome], None]:
    """Append an outcome; `support.matrix.record` makes one table of all."""
    RECORDING.mkdir(parents=True, exist_ok=True)
    worker = getattr(request.config, "workerinput", {}).get("workerid", "alone")
    path: Path = RECORDING / f"{worker}.jsonl"

    def append(outcome: Outcome) -> None:
        with path.open("a") as file:
            file.write(json.dumps(outcome.as_dict()) + "\n")

    return append
