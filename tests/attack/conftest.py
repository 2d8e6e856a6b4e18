"""Tables to attack: real files and a real log, jobs without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path)
