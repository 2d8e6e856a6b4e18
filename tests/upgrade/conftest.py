"""The release before ours, as it was: its tree, and processes that run its code."""

from __future__ import annotations

import itertools
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.crash.crash_table import CrashTable, make_template
from support.crash.processes import REPOSITORY, ProcessStarter, starter

PREVIOUS = Path(__file__).with_name("previous.txt")


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture(scope="session")
def previous_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commit in `previous.txt`, as far as processes need it. A shallow clone fetches it."""
    commit = PREVIOUS.read_text().strip()
    try:
        _git("cat-file", "-e", f"{commit}^{{commit}}")
    except RuntimeError:
        _git("fetch", "--quiet", "--depth=1", "origin", commit)
    folder = tmp_path_factory.mktemp("previous")
    archive = folder / "tree.tar"
    parts = ("crds", "examples/cluster", "operator", "spark_apps", "tests")
    _git("archive", f"--output={archive}", commit, *parts)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    return folder


@pytest.fixture(scope="session")
def previous(previous_tree: Path) -> Iterator[ProcessStarter]:
    with starter(previous_tree) as made:
        yield made


@pytest.fixture(scope="session")
def ours() -> Iterator[ProcessStarter]:
    with starter() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_process_is_left(previous: ProcessStarter, ours: ProcessStarter) -> Iterator[None]:
    """A test that fails leaves no process to the next one."""
    yield
    previous.abort()
    ours.abort()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four loads of ten rows by deltalake, deletion vectors on."""
    return make_template(tmp_path_factory.mktemp("upgrade") / "template")


@pytest.fixture
def tables(template: Path, tmp_path: Path) -> Callable[[], CrashTable]:
    """Makes a fresh copy of the table."""
    numbers = itertools.count()
    return lambda: CrashTable.copy(template, tmp_path / f"{next(numbers)}")
