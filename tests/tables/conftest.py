"""Tables for scenarios; those that begin with loads of ours are made once and copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytest.register_assert_rewrite("support.tables", "support.held")

from support.tables import Lakes  # noqa: E402 - after the line above, to see values


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def lakes(delta_spark: SparkSession, tmp_path: Path, templates: Path) -> Lakes:
    return Lakes(delta_spark, tmp_path, templates)
