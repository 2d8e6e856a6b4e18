"""Fixtures that every layer's tests share. Keep it small: a layer's own live beside its tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The process's one Spark session (UTC, ANSI), with Delta's jars on the class path."""
    from support.spark import start_session

    session = start_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The same session, asked for by tests that use it as a Delta reader or writer."""
    return spark
