"""A command imports what it needs: all of Tandem takes longer to import than a small job to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tandem import mergelog, statements
from tandem.statements import local

MAIN = (
    "import sys\n"
    "from tandem.cli.main import main\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    print(*sys.modules, file=sys.stderr)\n"
)
NEEDED = {"pyarrow.parquet", "pydantic", "tandem.operations.kinds.compaction"}
NOT_NEEDED = {
    "aiohttp",
    "asyncio",
    "deltalake",
    "duckdb",
    "kubernetes",
    "pandas",
    "pyarrow.dataset",
    "pyspark",
    "structlog",
    "yaml",
    "obstore",
    "tandem.index",
    "tandem.kube",
    "tandem.mergelog.view",
    "tandem.operations.kinds.ingest",
    "tandem.operations.kinds.merge",
    "tandem.operations.kinds.replace",
    "tandem.operations.kinds.row_level",
    "tandem.operations.small_rounds",
    "tandem.planning.auto.decide",
    "tandem.planning.cleaning",
    "tandem.spark.jobs.sorted_bins",
    "tandem.spark.runtime.row_files",
    "tandem.spark.jobs.statement",
    "tandem.statements.local.expression",
    "tandem.statements.parser",
}


def run(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_small_compaction_imports_nothing_that_it_does_not_need(table: Path) -> None:
    done = run(MAIN, "compact", table, "-q", "-o", "json")
    assert done.returncode == 0, done.stderr
    _, operation = json.loads(done.stdout)
    assert operation["status"]["result"]["filesAdded"] == 1
    imported = set(done.stderr.splitlines()[-1].split())
    assert imported >= NEEDED
    assert NOT_NEEDED & imported == set()


def test_garbage_is_looked_for_once_all_is_imported_and_not_at_the_end() -> None:
    done = run(
        "import atexit, gc\n"
        "from tandem.cli.main import main\n"
        "atexit.register(lambda: print('at the end', gc.get_freeze_count() > 50_000))\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('enabled', gc.isenabled(), gc.get_threshold()[0] > 700)\n"
        "    print('imported', gc.get_freeze_count() > 50_000)\n"
        "    gc.unfreeze()\n",
        "--version",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["enabled True True", "imported True", "at the end True"]


def test_a_command_that_is_misspelt_is_still_compared_with_all_others() -> None:
    done = run(MAIN, "--log-json", "compcat", "/nowhere")
    assert done.returncode == 2
    assert "Did you mean 'compact'?" in done.stderr


def test_help_before_a_command_is_about_all_of_them() -> None:
    done = run(MAIN, "--help", "compact")
    assert done.returncode == 0
    assert {"compact", "zorder", "table", "index"} <= set(done.stdout.split())
    assert "..." not in done.stdout.partition("Commands:")[2], "what a command does is cut"


@pytest.mark.parametrize("app", ["table", "log", "index"])
def test_help_on_a_group_of_commands_cuts_nothing_off(app: str) -> None:
    done = run(MAIN, app, "--help")
    assert done.returncode == 0
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_structlog_is_configured_although_it_is_imported_later() -> None:
    done = run(
        "from tandem.cli import output\n"
        "output.configure(json=True, verbose=False)\n"
        "import sys\n"
        "assert 'structlog' not in sys.modules\n"
        "import structlog\n"
        "structlog.get_logger().info('half way', files=1)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    line = json.loads(done.stderr)
    assert (line["event"], line["files"], line["level"]) == ("half way", 1, "info")


@pytest.mark.parametrize("package", [mergelog, statements, local], ids=lambda p: p.__name__)
def test_a_package_has_the_names_that_it_exports(package: ModuleType) -> None:
    for name in package.__all__:
        found = getattr(package, name)
        assert getattr(found, "__module__", package.__name__).startswith(package.__name__)
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = package.missing


@pytest.mark.parametrize(
    "words",
    [
        ("history",),
        ("history", "-o", "json"),
        ("history", "-o", "yaml"),
        ("scan", "-o", "json"),
        ("compact", "--dry-run"),
    ],
    ids=" ".join,
)
def test_characters_that_an_encoding_lacks_end_no_command(
    table: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = table.rename(table.with_name("tâble → 1"))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(MAIN, words[0], moved, *words[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    if words == ("history", "-o", "json"):
        assert "\n" in done.stdout
        json.loads(done.stdout)


def test_an_interrupted_import_that_says_something_else_is_an_interrupt() -> None:
    done = run(
        "import os, signal\n"
        "from tandem.cli import main\n"
        # A shell that starts the tests in the background lets them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def broken():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
        "    raise ImportError('cannot load module more than once per process')\n"
        "main._main = broken\n"
        "main.main()\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


@pytest.mark.parametrize("words", [("history",), ("scan", "-o", "json"), ("scan", "-o", "arrow")])
def test_standard_output_that_is_full_is_an_error_of_one_line(
    table: Path, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "tandem.cli.main", words[0], str(table), *words[1:]]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: standard output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_a_path_that_is_no_text_is_an_error_of_two_lines(tmp_path: Path) -> None:
    command: list[str | bytes] = [sys.executable, "-m", "tandem.cli.main", "history"]
    command.append(bytes(tmp_path) + b"/t\xe9")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("not text in this locale's encoding")
    assert len(done.stderr.splitlines()) == 2


def test_closed_streams_end_no_command(table: Path) -> None:
    command = f"exec {sys.executable} -m tandem.cli.main compact {table} >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], timeout=600, check=False)
    assert done.returncode == 0
