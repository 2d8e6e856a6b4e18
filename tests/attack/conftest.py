"""Tables to attack: real files and a real log, jobs without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import quick_lake
from support.quick_lake import QuickLake


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path)
