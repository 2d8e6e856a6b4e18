"""Tables to attack: real files and a real log, jobs without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("support.tables", "support.quick_lake")

from support import quick_lake  # noqa: E402 - after the line above, to see values
from support.quick_lake import QuickLake  # noqa: E402


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path)
