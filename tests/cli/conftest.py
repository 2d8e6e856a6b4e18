"""A table that `deltalake` wrote, and the command line as a function."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from cli.invoke import Tandem
from support.jobs.quick_jobs import QuickJobs
from tandem.cli.app import app
from tandem.operations import runner
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs


@pytest.fixture
def tandem() -> Tandem:
    """Runs a command; standard output and standard error are kept apart."""

    def invoke(*words: str | Path, input_: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in words], input=input_)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three loads of three rows; the row with id 4 is deleted by rewriting its file."""
    folder = tmp_path / "table"
    for load in range(3):
        ids = [load * 3 + offset for offset in range(3)]
        write_deltalake(
            str(folder),
            pa.table({"id": pa.array(ids, pa.int64()), "name": ["a", "b", None]}),
            mode="append",
        )
    DeltaTable(str(folder)).delete("id = 4")
    return folder


@pytest.fixture
def quick_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done without Spark; all else is as it is."""
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))
