"""A table to damage, and the engine with jobs that need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from badinput.bad_input import BadLake
from support.jobs.quick_jobs import QuickJobs
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs


@pytest.fixture
def lake(tmp_path: Path) -> BadLake:
    return BadLake(tmp_path).make()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> QuickJobs:
    """`tandem run` in this process uses these jobs; all else of it is as it is in life."""
    quick = QuickJobs()
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=FileJobs(quick)))
    return quick
