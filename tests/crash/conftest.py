"""ProcessStarters of processes to kill, and a table for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.crash.crash_table import CrashTable, make_template
from support.crash.processes import ProcessStarter, starter


@pytest.fixture(scope="session")
def starters() -> Iterator[tuple[ProcessStarter, ProcessStarter]]:
    with starter() as one, starter() as other:
        yield one, other


@pytest.fixture(autouse=True)
def _no_process_is_left(starters: tuple[ProcessStarter, ProcessStarter]) -> Iterator[None]:
    """A test that fails leaves no process to the next one."""
    yield
    for each in starters:
        each.abort()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four loads of ten rows by deltalake, deletion vectors on."""
    return make_template(tmp_path_factory.mktemp("crash") / "template")


@pytest.fixture
def tables(template: Path, tmp_path: Path) -> Callable[[], CrashTable]:
    """Makes a fresh copy of the table."""
    numbers = itertools.count()
    return lambda: CrashTable.copy(template, tmp_path / f"{next(numbers)}")
