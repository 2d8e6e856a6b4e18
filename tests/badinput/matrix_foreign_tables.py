"""`make matrix`: all commands and operations on every foreign table.

`test_foreign_tables.py` has a part of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from badinput.test_foreign_tables import (
    SAMPLE,
    no_command_ends_in_a_traceback,
    no_operation_ends_in_a_traceback,
)
from support.foreign.tables import TABLES
from support.jobs.quick_jobs import QuickJobs

REST = [name for name in TABLES if name not in SAMPLE]


@pytest.mark.parametrize("name", REST)
def test_no_command_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    no_command_ends_in_a_traceback(name, tmp_path)


@pytest.mark.parametrize("name", REST)
def test_no_operation_ends_in_a_traceback(name: str, tmp_path: Path, jobs: QuickJobs) -> None:
    no_operation_ends_in_a_traceback(name, tmp_path)
