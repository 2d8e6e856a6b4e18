"""Tables for scenarios; those that begin with loads of ours are made once and copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lakes
from support.lake.rewritten import two_segments, wide_segment
from support.some import is_whole


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def lakes(tmp_path: Path, templates: Path, request: pytest.FixtureRequest) -> Lakes:
    """Spark does the jobs of tests that are marked `whole`, and reads what they leave."""
    whole = is_whole(request.node)
    spark: Any = request.getfixturevalue("spark") if whole else None
    return Lakes(spark, tmp_path, templates, spark_reads=whole, spark_works=whole)


@pytest.fixture
def quick_lakes(tmp_path: Path, templates: Path) -> Lakes:
    """Whose jobs run without Spark, also with every case."""
    spark: Any = None
    return Lakes(spark, tmp_path, templates, spark_reads=False, spark_works=False)


@pytest.fixture(scope="session")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, QuickLake]:
    """Made once, and copied for every test."""
    return {
        "two": two_segments(tmp_path_factory.mktemp("two")),
        "wide": wide_segment(tmp_path_factory.mktemp("wide")),
    }


@pytest.fixture
def two(rewritten: Mapping[str, QuickLake], tmp_path: Path) -> QuickLake:
    """See `two_segments`."""
    return quick_lake.copy(rewritten["two"], tmp_path)


@pytest.fixture
def wide(rewritten: Mapping[str, QuickLake], tmp_path: Path) -> QuickLake:
    """See `wide_segment`."""
    return quick_lake.copy(rewritten["wide"], tmp_path)
