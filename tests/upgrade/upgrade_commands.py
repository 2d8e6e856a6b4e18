"""`tandem run` of one release is killed half-way, and that of the other one goes on: real commands,
and real Spark where the release before ours needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.crash.crash_table import FIRST, CrashTable, expected
from support.crash.processes import REPOSITORY
from support.documents import document
from support.waiting import await_that

Tables = Callable[[], CrashTable]
KIND = "update"
"""Not the same if it is done twice."""
LIMIT_S = 900.0


def environ(tree: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(tree / name) for name in ("operator", "tests")),
        "TANDEM_SPARK_APPS": str(tree / "spark_apps"),
    }


def start(tree: Path, file: Path) -> subprocess.Popen[str]:
    """`tandem run` of that release, in a group of its own with its job."""
    return subprocess.Popen(
        [sys.executable, "-m", "tandem.cli.main", "run", "-f", str(file), "-o", "json"],
        env=environ(tree),
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def resources(table: CrashTable) -> Path:
    lake = document("LakeTable", "lake", {"location": table.path.as_uri()})
    file = table.folder / "resources.yaml"
    file.write_text("\n---\n".join(map(json.dumps, (lake, table.resource(KIND)))))
    return file


@pytest.fixture
def kill_when() -> Iterator[Callable[[Path, CrashTable, str], None]]:
    """Starts the command of a release, and kills it and its job once a file of its attempt is
    there. If it was faster, it has ended as a whole."""
    with ExitStack() as stack:

        def run(tree: Path, table: CrashTable, file: str) -> None:
            command = stack.enter_context(start(tree, resources(table)))

            def kill() -> None:
                if command.poll() is None:
                    os.killpg(command.pid, signal.SIGKILL)

            stack.callback(kill)
            pattern = f"_tandem/operations/*/attempts/*/**/{file}"
            await_that(
                lambda: command.poll() is not None or any(table.path.glob(pattern)),
                lambda: f"no {file} below {table.path}",
                LIMIT_S,
            )
            kill()
            output, errors = command.communicate(timeout=LIMIT_S)
            assert any(table.path.glob(pattern)), (output, errors)

        yield run


def assert_finished(tree: Path, table: CrashTable) -> None:
    command = start(tree, resources(table))
    output, errors = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 0, errors
    phases = [each["status"]["phase"] for each in json.loads(output)]
    assert phases == ["Succeeded", "Succeeded"]
    assert table.shown() == expected(KIND, FIRST)
    assert table.successes() == 1
    assert table.unreachable() == set()


def test_each_release_runs_its_own_code(previous_tree: Path) -> None:
    """What all tests here stand on."""
    code = []
    for tree in (previous_tree, REPOSITORY):
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                "import tandem, support; print(tandem.__file__, support.__path__)",
            ],
            env=environ(tree),
            cwd=tree,
            capture_output=True,
            text=True,
            check=True,
        )
        assert str(tree / "operator/tandem/__init__.py") in found.stdout
        assert str(tree / "tests/support") in found.stdout
        code.append({path.read_bytes() for path in (tree / "operator").rglob("*.py")})
    assert code[0] != code[1], "previous.txt names a commit that has our engine"


def assert_finishes(tree: Path, table: CrashTable) -> None:
    """It ends what was killed, and ours has nothing to do after it."""
    assert table.shown() in (FIRST, expected(KIND, FIRST))
    assert_finished(tree, table)
    assert_finished(REPOSITORY, table)


@pytest.mark.parametrize("file", ["job.json", "result.json"])
def test_a_run_of_the_release_before_that_is_killed_is_finished_by_ours(
    previous_tree: Path,
    tables: Tables,
    kill_when: Callable[[Path, CrashTable, str], None],
    file: str,
) -> None:
    table = tables()
    kill_when(previous_tree, table, file)
    assert_finishes(REPOSITORY, table)


# Our results of short jobs are in memory.
@pytest.mark.parametrize("file", ["plan.json", "job.json"])
def test_a_run_of_ours_that_is_killed_is_finished_by_the_release_before(
    previous_tree: Path,
    tables: Tables,
    kill_when: Callable[[Path, CrashTable, str], None],
    file: str,
) -> None:
    table = tables()
    kill_when(REPOSITORY, table, file)
    assert_finishes(previous_tree, table)
