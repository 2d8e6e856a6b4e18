"""Tables for scenarios; those that begin with loads of ours are made once and copied."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.tables import Lakes


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def lakes(delta_spark: SparkSession, tmp_path: Path, templates: Path) -> Lakes:
    return Lakes(delta_spark, tmp_path, templates)
