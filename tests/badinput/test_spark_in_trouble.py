"""Real Spark processes and the real command line: no Java, a killed driver, a hanging driver,
a killed engine, an interrupt by the user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from badinput.bad_input import BadLake, Ended, assert_mentions, compaction, update
from support.jobs.quick_jobs import QuickJobs
from support.some import every_case
from tandem.spark.runtime.session import alive

LIMIT_S = 240.0

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


@contextmanager
def tandem_run(lake: BadLake, *operations: dict[str, Any], **env: str) -> Iterator[Any]:
    """`tandem run` as a process; whatever happens, it does not outlive the block."""
    file = lake.write(lake.lake_table(), *operations)
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem.cli.main", "run", "-f", str(file), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: Any) -> Ended:
    out, stderr = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, json.loads(out) if out.strip() else [], stderr)


def until(condition: Callable[[], Any], process: Any) -> Any:
    """What the condition gives once it holds; the process must live until then."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.02)):
        found = condition()
        if found:
            return found
        assert process.poll() is None, process.communicate()
        pause.wait(0.02)
    raise AssertionError("it did not happen")


def until_gone(driver: int) -> None:
    """A JVM ends by itself, in a moment, when its engine has ended."""
    pause = threading.Event()
    for _ in range(int(LIMIT_S / 0.05)):
        if not alive(driver):
            return
        pause.wait(0.05)
    raise AssertionError("it still runs")


def run_again(lake: BadLake, *operations: dict[str, Any]) -> Ended:
    """The same resources once more: what counts is what the engine makes of what was left. Only
    `make matrix` has Spark do the jobs; otherwise these are of the fixture `jobs`."""
    if every_case():
        with tandem_run(lake, *operations) as process:
            return ended(process)
    return lake.run(*operations)


def drivers(process: Any) -> list[int]:
    """The JVMs that this engine started: leaders of groups of their own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == process.pid and b"SparkSubmit" in command:
            found.append(int(entry.name))
    return found


def statement(**spec: Any) -> dict[str, Any]:
    """An update that needs Spark, however small: by the function `greatest`."""
    made = update(v="greatest(v, v) + 15")
    made["spec"] |= spec
    return made


def updated(lake: BadLake) -> tuple[tuple[Any, ...], ...]:
    """The rows after it."""
    return tuple(sorted((i, k, v + 15 if k == 1 else v) for i, k, v in lake.shown(3)))


def statement_is_asked_for(lake: BadLake) -> bool:
    jobs = lake.path.glob("_tandem/operations/*/attempts/1/job.json")
    return any('"Statement"' in job.read_text() for job in jobs)


def test_spark_is_missing(lake: BadLake) -> None:
    env = {"JAVA_HOME": "", "PATH": str(Path(sys.executable).parent)}
    with lake.unharmed(), tandem_run(lake, statement(), **env) as process:
        end = ended(process)
    assert end.code == 1
    condition = end.condition("TableUpdate")
    assert condition["reason"] == "SparkMissing"
    assert_mentions(
        condition["message"], "no Java was found", "found: java", "expected: Java 17 or later",
        "tools/setup-java.sh",
    )  # fmt: skip


def test_a_small_compaction_that_keeps_the_order_of_rows_needs_no_java(lake: BadLake) -> None:
    before = lake.shown()
    env = {"JAVA_HOME": "", "PATH": str(Path(sys.executable).parent)}
    with tandem_run(lake, compaction(), **env) as process:
        end = ended(process)
    assert end.code == 0, end
    assert lake.shown() == before
    assert lake.unreachable() == set()


def test_java_is_too_old(lake: BadLake, tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with lake.unharmed(), tandem_run(lake, statement(), JAVA_HOME=str(home)) as process:
        end = ended(process)
    assert end.code == 1
    condition = end.condition("TableUpdate")
    assert condition["reason"] == "SparkMissing"
    assert_mentions(condition["message"], "11.0.2 is too old", str(java), "Java 17", "setup-java")


@pytest.mark.matrix
def test_the_driver_is_killed(lake: BadLake) -> None:
    """Each attempt has a driver; with `backoffLimit: 1` the second one does the work."""
    with tandem_run(lake, statement(backoffLimit=1)) as process:
        [driver] = until(lambda: drivers(process), process)
        os.kill(driver, signal.SIGKILL)
        end = ended(process)
    assert end.code == 0, end
    assert end.status("TableUpdate")["attempt"] == 2
    assert lake.shown() == updated(lake)
    assert lake.unreachable() == set()


@pytest.mark.matrix
def test_the_driver_is_killed_and_no_attempt_is_left(lake: BadLake) -> None:
    with lake.unharmed(), tandem_run(lake, statement(backoffLimit=0)) as process:
        [driver] = until(lambda: drivers(process), process)
        os.kill(driver, signal.SIGKILL)
        end = ended(process)
    assert end.code == 1
    condition = end.condition("TableUpdate")
    assert condition["reason"] == "JobFailed"
    assert_mentions(condition["message"], "killed by signal 9", "log:")


@pytest.mark.matrix
def test_the_driver_hangs(lake: BadLake) -> None:
    """Stopped by SIGSTOP it answers nothing, not even a request to end."""
    operation = statement(activeDeadlineSeconds=10)
    with lake.unharmed(), tandem_run(lake, operation) as process:
        [driver] = until(lambda: drivers(process), process)
        os.kill(driver, signal.SIGSTOP)
        end = ended(process)
    assert end.code == 1
    condition = end.condition("TableUpdate")
    assert condition["reason"] == "DeadlineExceeded"
    assert_mentions(condition["message"], "activeDeadlineSeconds")
    assert not alive(driver)


@pytest.mark.matrix
def test_the_engine_is_killed_while_spark_works(lake: BadLake, jobs: QuickJobs) -> None:
    """Its driver does not outlive it, the table is as before, and a restart does the work once."""
    before = lake.shown()
    with tandem_run(lake, statement()) as process:
        [driver] = until(lambda: drivers(process), process)
        process.kill()
        process.wait()
        until_gone(driver)
    assert lake.shown() == before
    end = run_again(lake, statement())
    assert end.code == 0, end
    assert lake.shown() == updated(lake)
    assert lake.unreachable() == set()


def test_interrupted_by_the_user(lake: BadLake, jobs: QuickJobs) -> None:
    """130; what had committed is reported as such, the rest as interrupted; run again, only the
    rest is done. (Ctrl-C does the same as SIGTERM: tests/cli/test_cli_run.py.)"""
    second = statement(dependsOn=[{"kind": "TableCompaction", "name": "tidy"}])
    with tandem_run(lake, compaction(), second) as process:
        until(lambda: lake.commit_file(4).exists(), process)
        # The compaction has committed; its driver has gone when the update's comes.
        [driver] = until(lambda: drivers(process) if statement_is_asked_for(lake) else [], process)
        process.send_signal(signal.SIGTERM)
        end = ended(process)
    assert end.code == 130
    assert end.status("TableCompaction")["phase"] == "Succeeded"
    assert end.status("TableCompaction")["result"]["version"] == 4
    condition = end.condition("TableUpdate")
    assert condition["reason"] == "Interrupted"
    assert_mentions(condition["message"], "nothing was committed")
    assert "committed changes stay" in end.stderr
    until_gone(driver)
    assert lake.shown() == lake.shown(3)
    assert lake.unreachable() == set()

    again = run_again(lake, compaction(), second)
    assert again.code == 0
    result = end.status("TableCompaction")["result"]
    assert again.status("TableCompaction")["result"] == {**result, "repeated": True}
    assert lake.shown() == updated(lake)
