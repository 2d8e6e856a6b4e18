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
    return _copies(template, tmp_path)


@pytest.fixture(scope="session")
def plain_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without deletion vectors, where rows are hidden and changed by edits."""
    return make_template(tmp_path_factory.mktemp("crash") / "plain", vectors=False)


@pytest.fixture
def plain_tables(plain_template: Path, tmp_path: Path) -> Callable[[], CrashTable]:
    """Makes a fresh copy of the table without deletion vectors."""
    return _copies(plain_template, tmp_path)


def _copies(template: Path, folder: Path) -> Callable[[], CrashTable]:
    numbers = itertools.count()
    return lambda: CrashTable.copy(template, folder / f"{next(numbers)}")
