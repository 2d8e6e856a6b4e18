"""`make matrix` runs every file of which `make test` takes a part of the cases (`support.some`)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def with_a_part() -> set[Path]:
    """The test files that import `support.some`."""
    imported = re.compile(r"^from support\.some import", re.MULTILINE)
    return {path for path in ROOT.glob("tests/**/test_*.py") if imported.search(path.read_text())}


def run_in_full() -> set[Path]:
    """The test files of the command that sets `TANDEM_EVERY_CASE`."""
    makefile = (ROOT / "Makefile").read_text()
    command = makefile.split("TANDEM_EVERY_CASE=1", 1)[1].split("\n\t@", 1)[0]
    given = [path for name in re.findall(r"tests/\S+", command) for path in ROOT.glob(name)]
    return {file for path in given for file in ([path] if path.is_file() else path.rglob("*.py"))}


def test_files_with_a_part_of_their_cases_are_run_in_full_by_make_matrix() -> None:
    assert with_a_part()
    assert sorted(with_a_part() - run_in_full()) == []


def test_tests_that_are_marked_are_run_in_full_by_make_matrix() -> None:
    commands = (ROOT / "Makefile").read_text().split("TANDEM_EVERY_CASE=1 ")[1:]
    run = [command.split("\n\t@", 1)[0] for command in commands]
    assert any("-m 'hypothesis or matrix or part' tests " in command for command in run)


def test_pytest_collects_the_files_of_the_matrix() -> None:
    found = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            *("-o", "python_files=matrix_*.py", "tests"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
