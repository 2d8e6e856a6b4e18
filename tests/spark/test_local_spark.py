"""One JVM for all jobs of a process: who waits for it, and who may end it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway

from spark.test_in_process import SMALL
from support.waiting import await_that
from tandem.errors import JobFailed, OutOfMemory, TandemError
from tandem.jobs.runner import JobRequest
from tandem.spark import local_spark
from tandem.spark.local_spark import JvmBounds, LocalSpark, SparkBusy
from tandem.spark.runtime import jvm, session
from tandem.spark.runtime.jvm import LocalJvm


class Context:
    _jsc = None

    def setJobGroup(self, *_: object, **__: object) -> None:
        pass


@dataclass
class Jvm:
    """One that is started by `opened`."""

    said: list[str] = field(default_factory=list)
    opened: threading.Event = field(default_factory=threading.Event)
    alive: bool = True
    log: Path = Path("spark.log")
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def connected(self) -> bool:
        return self.opened.is_set()

    def context(self) -> Any:
        assert self.opened.wait(100)
        if not self.alive:
            raise JobFailed("it was killed")
        return Context()

    def death(self) -> TandemError | None:
        return None

    def kill(self) -> None:
        self.said.append("kill")
        self.alive = False
        self.opened.set()

    def close(self) -> None:
        self.said.append("close")

    def wait_or_kill(self) -> None:
        self.said.append("wait")

    def end(self) -> None:
        self.said.append("end")


@dataclass
class Started:
    spark: LocalSpark
    jvms: list[Jvm]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    jvms: list[Jvm] = []

    def start(*_: object, environ: dict[str, str]) -> Jvm:
        jvms.append(Jvm(environ=environ))
        return jvms[-1]

    monkeypatch.setattr(local_spark, "LocalJvm", start)
    monkeypatch.setattr(local_spark, "_ANSWER_S", 0.05)
    monkeypatch.setattr(local_spark, "_require_none_else", lambda: None)
    monkeypatch.setattr(session, "build_conf", lambda **_: {})
    return Started(LocalSpark(tmp_path), jvms)


@dataclass
class Job:
    """A job that uses Spark until `end`, and then raises `error`, if there is one."""

    spark: LocalSpark
    request: JobRequest
    error: Exception | None = None
    has_spark: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self.spark.job(self.request):
                self.has_spark.set()
                assert self.may_end.wait(100)
                if self.error is not None:
                    raise self.error
        except Exception as error:  # noqa: BLE001 - looked at
            self.failure = error

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(100)
        assert not self.thread.is_alive()


def job(started: Started, name: str, error: Exception | None = None) -> Job:
    return Job(started.spark, replace(SMALL, name=name), error)


def beside_one_that_harmed(started: Started) -> Job:
    """A job whose JVM another job has harmed."""
    harms, stays = job(started, "harms", OutOfMemory("no memory")), job(started, "stays")
    await_that(lambda: started.jvms, "a JVM")
    started.jvms[0].opened.set()
    for each in (harms, stays):
        assert each.has_spark.wait(100)
    harms.end()
    return stays


def test_a_job_that_waits_for_another_jvm_is_cancelled(started: Started) -> None:
    """A JVM that was harmed is used until its last job ends; who is stopped does not wait."""
    stays = beside_one_that_harmed(started)
    waits = job(started, "waits")
    started.spark.cancel("waits")
    waits.thread.join(100)
    assert isinstance(waits.failure, JobFailed)
    stays.end()
    assert stays.failure is None
    assert len(started.jvms) == 1


def test_a_job_with_other_credentials_has_another_jvm(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_key(name: str, key: str) -> Job:
        environ = (("AWS_ACCESS_KEY_ID", key),)
        return Job(started.spark, replace(SMALL, name=name, environ=environ))

    first, same = with_key("first", "1"), with_key("same", "1")
    await_that(lambda: started.jvms, "a JVM")
    started.jvms[0].opened.set()
    assert first.has_spark.wait(100)
    assert same.has_spark.wait(100)
    waits = with_key("waits", "2")
    same.end()
    first.end()
    await_that(lambda: len(started.jvms) == 2, "another JVM")
    assert [jvm.environ["AWS_ACCESS_KEY_ID"] for jvm in started.jvms] == ["1", "2"]
    started.jvms[1].opened.set()
    assert waits.has_spark.wait(100)
    # Rather than with credentials of another table, a job fails.
    monkeypatch.setattr(local_spark, "_PATIENCE_S", 0.05)
    refused = with_key("refused", "3")
    refused.thread.join(100)
    assert isinstance(refused.failure, SparkBusy)
    waits.end()
    assert len(started.jvms) == 2


def test_a_dead_jvm_is_replaced_beside_a_job_that_waits_for_a_round(started: Started) -> None:
    """That job does not notice, and its operation may wait for locks of the one that begins."""
    idle = job(started, "idle")
    await_that(lambda: started.jvms, "a JVM")
    started.jvms[0].opened.set()
    assert idle.has_spark.wait(100)
    started.jvms[0].alive = False
    begins = job(started, "begins")
    await_that(lambda: len(started.jvms) == 2, "another JVM")
    assert started.jvms[0].said == ["end"]
    started.jvms[1].opened.set()
    assert begins.has_spark.wait(100)
    idle.end()
    begins.end()
    assert started.jvms[1].said == []


def test_a_harmed_jvm_is_used_rather_than_awaited_for_long(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_spark, "_PATIENCE_S", 0.05)
    stays = beside_one_that_harmed(started)
    begins = job(started, "begins")
    assert begins.has_spark.wait(100)
    stays.end()
    begins.end()
    assert len(started.jvms) == 1
    after = job(started, "after")
    await_that(lambda: len(started.jvms) == 2, "another JVM")
    started.jvms[1].opened.set()
    assert after.has_spark.wait(100)
    after.end()


def test_no_jvm_is_started_once_spark_is_closed(started: Started) -> None:
    started.spark.close()
    late = job(started, "late")
    late.thread.join(100)
    assert isinstance(late.failure, JobFailed)
    assert started.jvms == []


def test_spark_that_works_has_ended_when_it_is_closed(started: Started) -> None:
    """Or its tasks write files of an attempt that was cleaned, and its folders stay."""
    works = job(started, "works")
    await_that(lambda: started.jvms, "a JVM")
    started.jvms[0].opened.set()
    assert works.has_spark.wait(100)
    started.spark.close()
    assert started.jvms[0].said == ["close", "wait"]
    works.end()


def test_a_jvm_that_starts_is_not_killed_under_a_job_that_came_meanwhile(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job(started, "first")
    await_that(lambda: started.jvms, "a JVM")
    second: list[Job] = []
    asks = local_spark._cancel

    def comes(*asked: Any) -> None:
        second.append(job(started, "second"))
        asks(*asked)

    monkeypatch.setattr(local_spark, "_cancel", comes)
    monkeypatch.setattr(local_spark, "_ANSWER_S", 2.0)
    started.spark.cancel("first")
    assert started.jvms[0].said == []
    started.jvms[0].opened.set()
    assert second[0].has_spark.wait(100)
    first.end()
    second[0].end()


@pytest.fixture
def bounded(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Spark for small jobs."""
    monkeypatch.setattr(session, "build_conf", lambda **_: {"spark.driver.extraJavaOptions": ""})
    spark = LocalSpark(tmp_path, JvmBounds(512 << 20, tmp_path / "files", idle_s=0.05))
    return Started(spark, started.jvms)


def opened(bounded: Started, name: str) -> Job:
    """A job that has the first JVM."""
    made = job(bounded, name)
    await_that(lambda: bounded.jvms, "a JVM")
    bounded.jvms[0].opened.set()
    assert made.has_spark.wait(100)
    return made


def test_small_jobs_have_a_bounded_jvm_one_after_the_other(bounded: Started) -> None:
    """Also those of which nothing says that they are short."""
    first = opened(bounded, "first")
    second = Job(bounded.spark, replace(SMALL, name="second", size_known=False))
    third = job(bounded, "third")
    bounded.spark.cancel("third")
    third.thread.join(100)
    assert isinstance(third.failure, JobFailed)
    assert not second.has_spark.is_set()
    first.end()
    assert second.has_spark.wait(100)
    second.end()
    assert first.failure is second.failure is None
    assert len(bounded.jvms) == 1


def test_a_small_job_does_not_wait_for_long(
    bounded: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That job may wait for locks of its operation."""
    first = opened(bounded, "first")
    monkeypatch.setattr(local_spark, "_PATIENCE_S", 0.05)
    second = job(bounded, "second")
    second.thread.join(100)
    assert isinstance(second.failure, SparkBusy)
    first.end()
    assert first.failure is None


def test_a_bounded_jvm_that_is_idle_ends(bounded: Started, tmp_path: Path) -> None:
    """The next one finds nothing that it has left."""
    first = opened(bounded, "first")
    second = job(bounded, "second")
    first.end()
    assert second.has_spark.wait(100)
    jvm = bounded.jvms[0]
    assert jvm.said == []
    second.end()
    await_that(lambda: jvm.said == ["end"], lambda: jvm.said)
    left = tmp_path / "files" / "left"
    left.touch()
    third = job(bounded, "third")
    await_that(lambda: len(bounded.jvms) == 2, "another JVM")
    assert not left.exists()
    bounded.jvms[1].opened.set()
    assert third.has_spark.wait(100)
    third.end()


def test_a_jvm_with_the_keys_of_before_is_replaced(bounded: Started) -> None:
    """Once no job uses it."""
    bounded.spark.replace()
    first = opened(bounded, "first")
    bounded.spark.replace()
    second = job(bounded, "second")
    first.end()
    await_that(lambda: len(bounded.jvms) == 2, "another JVM")
    assert bounded.jvms[0].said == ["end"]
    bounded.jvms[1].opened.set()
    assert second.has_spark.wait(100)
    second.end()


def folders(folder: Path) -> list[Path]:
    return list(folder.glob("tandem-*"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def home_of(folder: Path, script: str) -> Callable[[], Path]:
    submit = folder / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    return lambda: folder


def test_a_jvm_that_cannot_be_started_leaves_no_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "spark_home", lambda: temporary / "absent")
    with pytest.raises(FileNotFoundError):
        LocalJvm("tandem", {}, temporary / "log")
    assert folders(temporary) == []


def test_a_jvm_that_is_killed_while_it_starts_leaves_no_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "spark_home", home_of(temporary, "exec sleep 600"))
    starts = LocalJvm("tandem", {}, temporary / "log")
    assert len(folders(temporary)) == 1
    starts.kill()
    assert folders(temporary) == []


def test_a_jvm_without_a_context_is_dead_for_the_next_job(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for what the JVM had already said."""
    says = r"printf '\0\0\0\1\0\0\0\1x' > $_PYSPARK_DRIVER_CONN_INFO_PATH.part"
    moves = "mv $_PYSPARK_DRIVER_CONN_INFO_PATH.part $_PYSPARK_DRIVER_CONN_INFO_PATH"
    monkeypatch.setattr(jvm, "spark_home", home_of(temporary, f"{says}; {moves}; exec sleep 600"))
    monkeypatch.setattr(java_gateway, "launch_gateway", SimpleNamespace)
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    starts = LocalJvm("tandem", {}, temporary / "log")
    with pytest.raises(AttributeError):
        starts.context()
    assert SparkContext._gateway is None
    assert not starts.alive
    with pytest.raises(JobFailed, match="killed by signal 9"):
        starts.context()


_PROGRAM = """
import sys
from pathlib import Path
from tandem.spark.runtime import session
from tandem.spark.runtime.jvm import LocalJvm

started = LocalJvm("tandem", session.build_conf(), Path(sys.argv[1]))
try:
    print(started.context().parallelize([0], 1).map(lambda _: sys.executable).collect()[0])
finally:
    started.end()
"""


def test_tasks_run_on_the_python_of_the_command(tmp_path: Path) -> None:
    """Not on whichever `python3` is on the path: an environment need not be activated."""
    other = tmp_path / "path" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environ = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "log")],
        env={**environ, "PATH": f"{other.parent}:{environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert found.stdout.strip() == sys.executable
