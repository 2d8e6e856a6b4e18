"""`make matrix`: all combinations of operators and types, and many random expressions, evaluated
without Spark and by Spark. `test_local.py` has a part of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from statements.local_oracle import SparkOracle, compiled
from support.statements.tables import combinations, expressions, extreme, tame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = 8


@pytest.fixture(scope="module")
def oracles(spark: SparkSession) -> tuple[SparkOracle, SparkOracle]:
    return SparkOracle(spark, extreme()), SparkOracle(spark, tame())


@pytest.mark.parametrize("part", range(PARTS))
def test_combinations_have_the_values_of_spark(
    oracles: tuple[SparkOracle, SparkOracle], part: int
) -> None:
    found = compiled(combinations()[part::PARTS])
    assert len(found) > 150
    assert [line for oracle in oracles for line in oracle.differences(found)] == []


@pytest.mark.parametrize("seed", range(100, 100 + PARTS))
def test_random_expressions_have_the_values_of_spark(
    oracles: tuple[SparkOracle, SparkOracle], seed: int
) -> None:
    found = compiled(list(itertools.islice(expressions(seed), 2_000)))
    assert len(found) > 600
    assert [line for oracle in oracles for line in oracle.differences(found)] == []
