"""Jobs as local processes: started once, stopped whole, and never outliving their engine.

`spark-submit` is a stand-in that runs the application with this Python, so that what is tested
is ours and takes milliseconds; the demo and the tests of `tandem run` use the real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.errors import SparkMissing
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark import local_spark
from tandem.spark.local_spark import LocalRunner
from tandem.spark.runtime import session
from tandem.spark.runtime.session import PACKAGE, PARENT, alive

WITHIN_SECONDS = 100.0

APP = """
import json, os, signal, subprocess, sys
from pathlib import Path
from tandem.spark.runtime.session import watch_parent

words = [word for word in sys.argv if word != "--request"]
folder = Path(words[words.index("--spec") + 1])
how = (folder / "how").read_text()
if "deaf" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
watch_parent()
worker = subprocess.Popen(["sleep", "600"])
(folder / f"args-{os.getpid()}").write_text(json.dumps(sys.argv[1:]))
pids = folder / "pids.part"
pids.write_text(json.dumps([os.getpid(), worker.pid]))
pids.replace(folder / "pids")
if "hangs" in how:
    signal.pause()
    while True:
        signal.pause()
worker.kill()
worker.wait()
if "fails" in how:
    print("what went wrong")
    sys.exit(3)
if "dies" in how:
    os.kill(os.getpid(), signal.SIGKILL)
"""

SUBMIT = f"""#!/bin/sh
while [ "${{1%.py}}" = "$1" ]; do shift; done
exec {sys.executable} "$@"
"""


def eventually(test: Callable[[], bool], what: str) -> None:
    """Wait for a condition that another process brings about."""
    pause = threading.Event()
    deadline = time.monotonic() + WITHIN_SECONDS
    while not test():
        assert time.monotonic() < deadline, f"not within {WITHIN_SECONDS} s: {what}"
        pause.wait(0.01)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a stand-in for Spark and one application, `app`."""
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def runner(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRunner]:
    monkeypatch.setattr(local_spark, "spark_home", lambda: home)
    monkeypatch.setattr(local_spark, "STOP_SECONDS", 0.5)
    made = LocalRunner(apps=home / "apps", logs=home / "logs")
    yield made
    made.close()


def request(home: Path, how: str, name: str = "job") -> JobRequest:
    (home / "how").write_text(how)
    return JobRequest(
        name=name,
        app="app",
        location="file:///t",
        spec_path=str(home),
        storage_options=(("region", "eu"),),
    )


def running(home: Path) -> list[int]:
    eventually((home / "pids").exists, "the job runs")
    pids: list[int] = json.loads((home / "pids").read_text())
    return pids


def ended(runner: LocalRunner, name: str = "job") -> JobStatus:
    eventually(lambda: runner.status(name).phase is not JobPhase.RUNNING, "the job ends")
    return runner.status(name)


def zombies() -> list[str]:
    """Children of this process that ended, with all of their threads, and were not reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended while we looked
        threads = int(fields[17])
        if fields[0] == "Z" and threads <= 1 and int(fields[1]) == os.getpid():
            found.append(stat.parent.name)
    return found


def test_starting_twice_starts_once(home: Path, runner: LocalRunner) -> None:
    for _ in range(2):
        runner.start(request(home, "hangs"))
    pids = running(home)
    assert runner.status("job").phase is JobPhase.RUNNING
    [arguments] = home.glob("args-*")
    assert arguments.name == f"args-{pids[0]}"
    given = json.loads(arguments.read_text())
    assert given == ["--location", "file:///t", "--spec", str(home), "--option", "region=eu"]


@pytest.mark.parametrize("how", ["hangs", "hangs, deaf"])
def test_stopping_ends_the_whole_group_and_reaps_it(
    home: Path, runner: LocalRunner, how: str
) -> None:
    runner.start(request(home, how))
    pids = running(home)
    assert os.getpgid(pids[1]) == os.getpgid(pids[0]) != os.getpgid(0)
    runner.stop("job")
    eventually(lambda: not any(alive(pid) for pid in pids), "driver and worker are gone")
    assert zombies() == []
    assert runner.status("job").phase is JobPhase.FAILED
    runner.stop("job")
    runner.stop("never started")


def test_the_outcome_of_a_job_is_reported(home: Path, runner: LocalRunner) -> None:
    runner.start(request(home, "ends"))
    assert ended(runner).phase is JobPhase.ENDED
    runner.start(request(home, "fails", "second"))
    status = ended(runner, "second")
    assert status.phase is JobPhase.FAILED
    assert status.message == "spark-submit ended with exit code 3: what went wrong"
    assert "what went wrong" in Path(status.log).read_text()
    runner.start(request(home, "dies", "third"))
    status = ended(runner, "third")
    assert "was killed by signal 9" in status.message
    assert runner.status("fourth").phase is JobPhase.UNKNOWN
    assert zombies() == []


def test_a_job_may_use_the_machine(
    home: Path, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_spark, "sizes_here", lambda: (6, 4 << 30))
    wanted = request(home, "ends")
    command = runner._start_of(wanted)[0]
    assert {"spark.master=local[6]", "spark.driver.memory=4096m"} <= set(command)
    # What a template asks for stays, and no number of jobs at the same time changes the sizes.
    command = runner._start_of(replace(wanted, cores=3, memory_bytes=2 << 30))[0]
    assert {"spark.master=local[3]", "spark.driver.memory=2048m"} <= set(command)


@pytest.mark.parametrize(
    ("cores", "gib", "sizes"),
    [
        (1, 1, (2, 1)),
        (2, 4, (2, 1)),
        (4, 8, (4, 2)),
        (16, 16, (8, 4)),
        (64, 256, (64, 8)),
    ],
)
def test_sizes_are_shares_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, gib: int, sizes: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(session, "memory_here", lambda: (gib << 30, False))
    found, heap = session.sizes_here()
    assert (found, heap >> 30) == sizes


def test_an_unknown_application_is_named(home: Path, runner: LocalRunner) -> None:
    with pytest.raises(SparkMissing, match=r"other\.py"):
        runner.start(JobRequest(name="x", app="other", location="", spec_path=""))


ENGINE = """
import signal, sys
from pathlib import Path
from tandem.spark import local_spark
from tandem.jobs.port import JobRequest

home = Path(sys.argv[1])
local_spark.spark_home = lambda: home
runner = local_spark.LocalRunner(apps=home / "apps", logs=home / "logs")
runner.start(JobRequest(name="job", app="app", location="file:///t", spec_path=str(home)))
signal.pause()
"""


def test_a_job_whose_engine_was_killed_ends_by_itself(home: Path) -> None:
    request(home, "hangs")
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, str(home)], env=with_package())
    try:
        pids = running(home)
        engine.kill()
        engine.wait()
        eventually(lambda: not any(alive(pid) for pid in pids), "the job ended with its engine")
    finally:
        engine.kill()
        for pid in running(home):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_job_whose_engine_was_gone_before_it_looked_ends_too(home: Path) -> None:
    request(home, "hangs")
    gone = subprocess.Popen(["true"])
    gone.wait()
    job = subprocess.Popen(
        [sys.executable, str(home / "apps" / "app.py"), "--spec", str(home)],
        env={**with_package(), PARENT: str(gone.pid)},
        start_new_session=True,
    )
    assert job.wait(WITHIN_SECONDS) == -signal.SIGKILL


def with_package() -> dict[str, str]:
    package = str(PACKAGE.parent)
    return {**os.environ, "PYTHONPATH": package}
