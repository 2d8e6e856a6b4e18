"""Small jobs in child processes: real processes, real tables. What ends a child costs its jobs one
attempt, and nothing else."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tandem.kube.children.pipe import ChildAnswer, ChildCall, Pipe
from tandem.kube.children.supervisor import ChildEnded, ChildProcess, ChildProcesses, PodMemory

from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.waiting import LIMIT_S, await_that
from tandem import errors
from tandem.errors import InvalidSpec, JobFailed, JobRefused, OutOfMemory, Reason, TandemError
from tandem.jobs.formats import IngestJob
from tandem.jobs.port import JobKey, JobPlace
from tandem.jobs.runner import SMALL_BYTES, JobRequest
from tandem.kube.children import supervisor
from tandem.kube.children.child import LEAST_MEMORY, Bounds
from tandem.kube.children.jobs import ClusterJobs, SmallJobRules
from tandem.kube.children.tenants import Tenant, environment, may_read
from tandem.kube.metrics.collectors import Metrics
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.file_jobs import FileJobs
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spark.runtime.control import alive
from tandem.spec.common import Operation
from tandem.spec.status import OperationStatus, Phase

TENANT = Tenant("team-a")
Perform = Callable[[], Event]


@dataclass
class Stage:
    """A table, children, and jobs that run as those of other processes do when they need Spark."""

    lake: QuickLake
    children: ChildProcesses
    spark: QuickJobs = field(default_factory=QuickJobs)
    changes: threading.Event = field(default_factory=threading.Event)

    def jobs(self, tenant: Tenant | None = TENANT, **rules: Any) -> ClusterJobs:
        chosen = SmallJobRules(**{"trusted": True, **rules})
        return ClusterJobs(
            self.children, lambda: tenant, FileJobs(self.spark), chosen, self.changes.set
        )

    def run(
        self,
        operation: Operation,
        interceptor: Interceptor = passthrough,
        jobs: ClusterJobs | None = None,
    ) -> OperationStatus:
        ports = dataclasses.replace(self.lake.ports(), jobs=jobs or self.jobs())
        return self.lake.run(operation, interceptor=interceptor, ports=ports)

    @property
    def child(self) -> ChildProcess:
        [child] = self.children.living()
        return child

    def begin(self, job: str) -> ChildProcess:
        child = self.children.begin(TENANT, job, lambda: None)
        child.call("file", "none")
        return child

    def kill(self) -> None:
        """The child, as the kernel does when memory runs short; until that is noticed."""
        living = self.children.living()
        for child in living:
            os.kill(child.pid, signal.SIGKILL)
        await_that(lambda: all(child.end for child in living), "their ends")


@contextmanager
def staged(folder: Path, bounds: Bounds) -> Iterator[Stage]:
    children = ChildProcesses(bounds, Metrics())
    lake = quick_lake.make(folder)
    lake.backoff_limit = 1
    try:
        yield Stage(lake, children)
        assert not any(child.jobs for child in children.living()), "a job is left in a child"
    finally:
        children.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, Bounds(request_s=60.0)) as made:
        yield made


# What is done in a child

KINDS: dict[str, Callable[[QuickLake], Operation]] = {
    "compaction": lambda lake: lake.compaction("Major"),
    "sort": lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}),
    "update": lambda lake: lake.update("id < 12", v="v + 1"),
    "delete": lambda lake: lake.delete("k = 3"),
    "merge": lambda lake: lake.merge(batch(1) + batch(90)),
    "ingest": lambda lake: lake.ingest(batch(70)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_job_needs_no_spark(stage: Stage, kind: str, tmp_path: Path) -> None:
    twin = quick_lake.make(tmp_path / "twin")
    status = stage.run(KINDS[kind](stage.lake))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert not stage.spark.started
    assert stage.changes.is_set(), "the operator was not told of the result"
    twin.do(KINDS[kind](twin))
    stage.lake.assert_rows(twin.by_tandem())
    stage.lake.assert_clean()


def test_a_job_that_reads_more_has_an_application(stage: Stage) -> None:
    status = stage.run(stage.lake.compaction("Major"), jobs=stage.jobs(most_bytes=10))
    assert status.phase is Phase.SUCCEEDED, status
    assert len(stage.spark.started) == 1


def test_a_job_of_a_table_that_is_not_open_has_an_application(stage: Stage) -> None:
    status = stage.run(stage.lake.compaction("Major"), jobs=stage.jobs(tenant=None))
    assert status.phase is Phase.SUCCEEDED, status
    assert len(stage.spark.started) == 1


# What needs Spark after all


def test_what_needs_spark_has_an_application_in_the_same_attempt(stage: Stage) -> None:
    jobs, places, name = stage.jobs(), list[JobPlace](), ""

    def watch(effect: Effect, perform: Perform) -> Event:
        nonlocal name
        if effect.point is Point.POLL_JOB:
            name = name or next(iter(stage.child.jobs))
            places.append(jobs.place_of(JobKey(name, "", 1, stage.lake.store)))
        return perform()

    status = stage.run(stage.lake.delete("ln(v + 1) > 8"), watch, jobs)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(stage.spark.started) == 1
    # It waits for a slot as soon as it is known, and is started by the poll that has one.
    order = [JobPlace.HERE, JobPlace.WAITS, JobPlace.ELSEWHERE]
    assert [place for n, place in enumerate(places) if place not in places[:n]] == order
    stage.lake.assert_clean()


class _Refusing(QuickJobs):
    """Does not take the first applications."""

    def __init__(self, error: TandemError) -> None:
        super().__init__()
        self.errors = [error, error]

    def start(self, request: JobRequest) -> None:
        if self.errors:
            raise self.errors.pop()
        super().start(request)


@pytest.mark.parametrize("most_bytes", [SMALL_BYTES, 0])
@pytest.mark.parametrize(
    "error",
    [
        JobRefused("a quota"),
        JobRefused("no answer", certain=False),
        JobRefused("no such kind", reason=Reason.SPARK_MISSING),
        InvalidSpec("the template"),
    ],
)
def test_an_application_that_is_refused(stage: Stage, error: TandemError, most_bytes: int) -> None:
    """It is the same whether the job was begun in a child."""
    stage.lake.backoff_limit = 0
    stage.spark = _Refusing(error)
    jobs = stage.jobs(most_bytes=most_bytes)
    status = stage.run(stage.lake.delete("ln(v + 1) > 8"), jobs=jobs)
    if isinstance(error, JobRefused):
        assert status.phase is Phase.SUCCEEDED, status
        assert status.attempt == (1 if error.certain else 3)
    else:
        assert (status.phase, status.attempt) == (Phase.FAILED, 1)
        assert status.conditions[0].reason == Reason.INVALID_SPEC
        assert len(stage.spark.errors) == 1
    stage.lake.assert_clean()


# Deaths


def _at(point: Point, nth: int, strike: Callable[[], None]) -> Interceptor:
    seen = 0

    def intercept(effect: Effect, perform: Perform) -> Event:
        nonlocal seen
        if effect.point is point:
            seen += 1
            if seen == nth:
                strike()
        return perform()

    return intercept


POINTS = (
    Point.START_JOB,
    Point.POLL_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.PUT_COMMIT,
    Point.FINISH_JOB,
    Point.STOP_JOB,
)


@pytest.mark.part(5)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_is_killed_costs_one_attempt(
    stage: Stage, kind: str, point: Point, tmp_path: Path
) -> None:
    stage.run(stage.lake.ingest(batch(50)))  # there is a child
    twin = quick_lake.make(tmp_path / "twin")
    twin.do(twin.ingest(batch(50)))
    status = stage.run(KINDS[kind](stage.lake), _at(point, 1, stage.kill))
    assert status.phase is Phase.SUCCEEDED, status
    assert status.attempt == (2 if point is Point.POLL_JOB else 1)
    assert len(stage.spark.started) == (1 if point is Point.POLL_JOB else 0)
    twin.do(KINDS[kind](twin))
    stage.lake.assert_rows(twin.by_tandem())
    stage.lake.assert_clean()


def test_a_child_that_dies_between_rounds_costs_one_attempt(stage: Stage) -> None:
    """A foreign append asks for a second round of a merge; the child is gone by then."""
    lake = stage.lake

    def strike() -> None:
        lake.append(batch(60))
        stage.kill()

    status = stage.run(lake.update("id >= 0", v="v + 1"), _at(Point.RECONCILE, 1, strike))
    assert status.phase is Phase.SUCCEEDED, status
    lake.assert_clean()


def test_a_death_in_one_child_is_not_noticed_in_another(stage: Stage) -> None:
    other = stage.jobs(tenant=Tenant("team-b"))
    stage.run(stage.lake.ingest(batch(51)), jobs=other)
    stage.run(stage.lake.ingest(batch(52)))
    first, second = stage.children.living()
    os.kill(second.pid, signal.SIGKILL)
    await_that(lambda: second.end, "its end")
    assert not first.end
    before = len(stage.spark.started)
    stage.run(stage.lake.ingest(batch(53)), jobs=other)
    assert len(stage.spark.started) == before
    assert stage.children.living() == [first]


def test_a_source_that_takes_too_much_memory_ends_one_attempt(tmp_path: Path) -> None:
    """Sixty-four million rows in a few kilobytes. The next attempt has an application."""
    bomb = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"id": pa.nulls(64_000_000, pa.int64()).fill_null(1)}), bomb)
    with staged(tmp_path, Bounds(LEAST_MEMORY, 60.0)) as stage:
        source = {"format": "Parquet", "location": bomb.as_uri()}
        ingest = stage.lake.resource("TableIngest", {"source": source, "backoffLimit": 0})
        status = stage.run(ingest)
        assert status.phase is Phase.FAILED, status
        status = stage.run(stage.lake.compaction("Major"))
        assert status.phase is Phase.SUCCEEDED, status.conditions[0].message


def test_a_child_that_hangs_costs_one_attempt(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ANSWER_S", 1.0)
    seen: list[ChildProcess] = []

    def freeze() -> None:
        seen.append(stage.child)
        os.kill(stage.child.pid, signal.SIGSTOP)

    status = stage.run(stage.lake.compaction("Major"), _at(Point.POLL_JOB, 1, freeze))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2), status
    assert seen[0].end == "it did not answer within 1 s"
    assert len(stage.spark.started) == 1
    stage.lake.assert_clean()


def test_a_child_that_takes_no_call_is_killed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that does not fit between the two processes."""
    monkeypatch.setattr(supervisor, "ANSWER_S", 1.0)
    child = stage.begin("one")
    os.kill(child.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(child.call, "file", "x" * 4_000_000)
        assert isinstance(call.exception(LIMIT_S), ChildEnded)
    await_that(lambda: child.end == "it takes no calls", lambda: child.end)
    stage.children.drop("one")


def test_a_child_can_be_killed_when_the_fork_server_has_ended(stage: Stage) -> None:
    """The server ends when it cannot fork; then nothing says how its children end."""
    child = stage.begin("one")
    server = vars(multiprocessing.forkserver._forkserver)["_forkserver_pid"]
    os.kill(server, signal.SIGKILL)
    await_that(lambda: not alive(server), "its end")
    stage.children.begin(Tenant("team-b"), "two", lambda: None).call("file", "none")
    assert child.call("file", "none").result is False
    os.kill(child.pid, signal.SIGSTOP)  # it does not end by itself
    child.kill("a test")
    await_that(lambda: not alive(child.pid) and child.end == "a test", lambda: child.end)
    for job in ("one", "two"):
        stage.children.drop(job)


def _no_descriptor(*_: object) -> Any:
    raise OSError("Too many open files")


def test_without_descriptors_a_job_has_an_application(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vars(stage.children)["_context"], "Pipe", _no_descriptor)
    status = stage.run(stage.lake.compaction("Major"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(stage.spark.started) == 1


def test_a_job_for_which_there_is_no_thread_has_an_application(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, call = stage.begin("one"), ChildProcess.call

    def without(self: ChildProcess, name: str, *arguments: Any, **more: Any) -> ChildAnswer:
        if name == "start":
            raise OutOfMemory("no thread")
        return call(self, name, *arguments, **more)

    monkeypatch.setattr(ChildProcess, "call", without)
    status = stage.run(stage.lake.compaction("Major"))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status
    assert len(stage.spark.started) == 1
    assert stage.child is other
    assert not other.retired
    stage.children.drop("one")


def test_many_jobs_at_once_are_done_within_the_least_memory(tmp_path: Path) -> None:
    """Each waits for its turn in a thread of its own."""
    with staged(tmp_path / "first", Bounds(LEAST_MEMORY, 60.0)) as stage:

        def run(number: int) -> tuple[Phase, int, int]:
            lake = quick_lake.make(tmp_path / str(number))
            lake.count += 1000 * number  # other names
            own = Stage(lake, stage.children)
            status = own.run(lake.update("id < 12", v="v + 1"))
            return status.phase, status.attempt, len(own.spark.started)

        with ThreadPoolExecutor(24) as threads:
            found = list(threads.map(run, range(1, 25)))
        assert found == [(Phase.SUCCEEDED, 1, 0)] * 24


def test_an_operator_that_dies_leaves_no_child(tmp_path: Path) -> None:
    """It is killed, and says nothing to them."""
    script = (
        "from tandem.kube.children.supervisor import ChildProcesses\n"
        "from tandem.kube.children.child import Bounds\n"
        "from tandem.kube.children.tenants import Tenant\n"
        "from tandem.kube.metrics.collectors import Metrics\n"
        "import sys, signal\n"
        "if __name__ == '__main__':\n"
        "    child = ChildProcesses(Bounds(), Metrics()).begin(Tenant('a'), 'job', lambda: None)\n"
        "    child.call('file', 'none')\n"
        "    print(child.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    file = tmp_path / "dies.py"
    file.write_text(script)
    with subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert alive(pid)
        running.kill()
        await_that(lambda: not alive(pid), "its end")


# The processes


def test_an_idle_child_ends_and_another_one_takes_its_place(stage: Stage) -> None:
    first = stage.begin("one")
    stage.children.look(later_s=599.0)
    stage.children.drop("one")
    stage.children.look(later_s=599.0)
    assert first.call("file", "none").result is False
    stage.children.look(later_s=601.0)
    await_that(lambda: first.end == "it was idle", lambda: first.end)
    assert stage.begin("two") is not first
    stage.children.drop("two")


def test_an_idle_child_ends_without_descriptors_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = stage.begin("one")
    stage.children.drop("one")
    with monkeypatch.context() as patched:
        patched.setattr(Pipe, "hang_up", _no_descriptor)
        stage.children.look(later_s=601.0)
        await_that(lambda: child.end == "it was idle", lambda: child.end)


def test_what_an_owner_leaves_is_stopped(stage: Stage) -> None:
    children = stage.children
    child = children.begin(TENANT, "one", lambda: None, "an owner")
    children.begin(TENANT, "two", lambda: None, "another one")
    children.leave("an owner")
    assert child.jobs == {"two"}
    assert children.of_owner("an owner") == []
    stage.kill()
    children.leave("another one")
    assert not child.jobs


def test_a_child_with_a_job_is_not_idle(stage: Stage) -> None:
    child = stage.begin("one")
    stage.children.look(later_s=10_000.0)
    assert child.call("file", "none").result is False
    stage.children.drop("one")


def test_a_distrusted_child_does_its_jobs_and_takes_no_more(stage: Stage) -> None:
    first = stage.begin("one")
    stage.children.suits_not("an operation", first)
    assert not stage.children.suits("an operation")
    assert stage.children.suits("another one")
    assert first.call("file", "none").result is False
    assert stage.begin("two") is not first
    stage.children.drop("one")
    await_that(lambda: first.end, "its end")
    stage.children.drop("two")


@pytest.mark.parametrize(
    ("limit", "used", "cached", "ends"),
    [
        ("1000", 950, 0, True),
        ("1000", 950, 100, False),
        ("max", 950, 0, False),
        (None, 0, 0, False),
    ],
)
def test_the_largest_child_ends_when_memory_runs_short(
    tmp_path: Path, limit: str | None, used: int, cached: int, ends: bool
) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    children = ChildProcesses(Bounds(), Metrics(), pod=PodMemory(tmp_path))
    try:
        child = children.begin(TENANT, "job", lambda: None)
        child.call("file", "none")
        children.look()
        if ends:
            await_that(lambda: child.end, "its end")
            assert "memory" in child.end
            with pytest.raises(ChildEnded):
                child.call("file", "none")
        else:
            assert child.call("file", "none").result is False
    finally:
        children.close()


def test_after_the_end_no_child_is_begun(stage: Stage) -> None:
    stage.children.close()
    with pytest.raises(ChildEnded):
        stage.begin("one")
    assert stage.run(stage.lake.compaction("Major")).phase is Phase.SUCCEEDED


# What is said between them


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no JSON",
        b"[]\n",
        b"{}\n",
        b'{"number":0}\n',
        b'{"number":77,"result":null}\n',
        b'{"number":0,"result":{"status":{"phase":"No phase"}}}\n',
        b'{"number":0,"error":{}}\n',
        b'{"number":"0","result":null}\n',
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_a_child_that_says_something_else_is_killed(frame: bytes) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = _Process()
    changed: list[str] = []
    child = ChildProcess(TENANT, process, Pipe(ours), changed.append)  # type: ignore[arg-type]
    child.jobs.add("job")
    calling = threading.Thread(target=lambda: _raises(child))
    calling.start()
    theirs.recv_bytes()
    theirs.send_bytes(frame)
    calling.join(LIMIT_S)
    assert process.killed.is_set()
    await_that(lambda: changed == ["job"], "a notification of the job")
    theirs.close()


def test_an_error_arrives_as_it_is() -> None:
    ours, theirs = multiprocessing.Pipe()
    told = Pipe(theirs)
    told.send_answer(ChildAnswer(3, error=InvalidSpec("no", resource="r", found="f")), "start")
    answer = Pipe(ours).receive_answer({3: "start"})
    assert isinstance(answer, ChildAnswer)
    assert isinstance(answer.error, InvalidSpec)
    assert str(answer.error) == str(InvalidSpec("no", resource="r", found="f"))
    told.send_answer(ChildAnswer(4, True, b"a\nb"), "file")
    assert Pipe(ours).receive_answer({4: "file"}) == ChildAnswer(4, True, b"a\nb")
    Pipe(ours).send_call(ChildCall(5, "poll", ("job", 2)))
    assert told.receive_call() == ChildCall(5, "poll", ("job", 2))


def test_every_kind_of_error_arrives() -> None:
    """Also one whose constructor wants more than a message."""
    ours, theirs = multiprocessing.Pipe()
    wanting: dict[str, Any] = {"first_available": 1}
    for kind in vars(errors).values():
        if not isinstance(kind, type) or not issubclass(kind, TandemError):
            continue
        wants = signature(kind).parameters
        error = kind("why", **{name: value for name, value in wanting.items() if name in wants})
        Pipe(theirs).send_answer(ChildAnswer(1, error=error), "start")
        answer = Pipe(ours).receive_answer({1: "start"})
        assert isinstance(answer, ChildAnswer)
        assert isinstance(answer.error, TandemError)
        assert (answer.error.reason, str(answer.error)) == (error.reason, str(error))


def test_a_frame_that_is_too_long_is_not_read() -> None:
    ours, theirs = multiprocessing.Pipe()
    theirs.send_bytes(b"x" * 1001)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        Pipe(ours, 1000).receive_answer({})


def test_a_call_that_is_none_ends_no_child(stage: Stage) -> None:
    child = stage.begin("one")
    with pytest.raises(JobFailed), pytest.warns(UserWarning, match="serialized"):
        child.call("poll", "one", "no number")
    assert child.call("file", "none").result is False
    stage.children.drop("one")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGRTMIN + 1])
def test_a_signal_that_ends_a_child_is_named(stage: Stage, number: int) -> None:
    child = stage.begin("one")
    os.kill(child.pid, number)
    await_that(lambda: child.end, "its end")
    assert ("SIGSEGV" if number == signal.SIGSEGV else f"signal {number}") in child.end
    stage.children.drop("one")


def test_many_jobs_at_once_do_not_end_a_small_child(tmp_path: Path) -> None:
    """Each has threads, whose stacks count. What finds no room has an application at once."""
    with staged(tmp_path, Bounds(LEAST_MEMORY, 60.0)) as stage:
        lakes = [quick_lake.make(tmp_path / f"t{n}") for n in range(12)]
        ports = [dataclasses.replace(lake.ports(), jobs=stage.jobs()) for lake in lakes]
        merges = [lake.merge(batch(1) + batch(90)) for lake in lakes]
        with ThreadPoolExecutor(len(lakes)) as pool:
            found = list(pool.map(lambda n: lakes[n].run(merges[n], ports=ports[n]), range(12)))
        assert {(status.phase, status.attempt) for status in found} == {(Phase.SUCCEEDED, 1)}


def test_the_environment_of_a_child() -> None:
    own = {
        "PATH": "/bin",
        "TANDEM_ETCD_PASSWORD": "p",
        "AWS_REGION": "ours",
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AWS_ROLE_ARN": "role",
    }
    assert environment(TENANT, own) == {k: v for k, v in own.items() if "ETCD" not in k}
    secret = {
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
        "AWS_ENDPOINT_URL_STS": "https://elsewhere.example",
        "LD_PRELOAD": "/x.so",
        "PATH": "/x",
    }
    found = environment(Tenant("a", "", "s/1", secret), own)
    assert found == {
        "PATH": "/bin",
        "AWS_REGION": "ours",
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_STS": "https://elsewhere.example",
    }
    # Without credentials of its own it has ours.
    assert environment(Tenant("a", "", "s/2", {"AWS_REGION": "theirs"}), own) == {
        "PATH": "/bin",
        "AWS_REGION": "theirs",
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/token",
        "AWS_ROLE_ARN": "role",
    }


def test_a_secret_replaces_the_identity_of_one_kind_of_store() -> None:
    own = {"AWS_ROLE_ARN": "r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AZURE_STORAGE_SAS_KEY": "s"}
    for secret in (
        {"AWS_SSE_CUSTOMER_KEY_BASE64": "k"},  # it encrypts, and nothing else
        {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"},
    ):
        assert environment(Tenant("a", "", "s/1", secret), own) == {**own, **secret}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("AWS_REGION", "AWS_DEFAULT_REGION"),
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        ("GOOGLE_ENDPOINT", "GOOGLE_BASE_URL"),
        ("AZURE_TENANT_ID", "AZURE_AUTHORITY_ID"),
    ],
)
def test_an_option_of_a_secret_counts_by_whatever_name(ours: str, theirs: str) -> None:
    own, secret = {ours: "ours"}, {theirs: "theirs"}
    assert environment(Tenant("a", "", "s/1", secret), own) == secret


KEYS = Tenant("a", "", "s/1", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


@pytest.mark.parametrize(
    ("source", "tenant", "bounded", "trusted", "here"),
    [
        ("s3://b/x", KEYS, False, False, True),
        ("s3://b/x", TENANT, True, False, False),  # with the operator's identity
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_REGION": "r"}), False, False, False),
        # Half an identity is none: the client would look for that of the pod, or of the machine.
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_ACCESS_KEY_ID": "k"}), True, False, False),
        ("s3://b/x", Tenant("a", "", "s/1", {"AWS_SESSION_TOKEN": "t"}), True, False, False),
        # So is one of another cloud.
        ("gs://b/x", KEYS, True, False, False),
        ("abfss://c@a.dfs.core.windows.net/x", KEYS, True, False, False),
        ("file:///x", KEYS, False, False, False),  # the pod's own token, for example
        ("file:///x", KEYS, True, False, True),
        ("file:///x", TENANT, False, True, True),
    ],
)
def test_whose_sources_a_child_reads(
    source: str, tenant: Tenant, bounded: bool, trusted: bool, here: bool
) -> None:
    job = IngestJob.model_validate(
        {"sourceFormat": "Csv", "sourceLocation": source, "targetFileSize": 1}
    )
    assert may_read(job, tenant, bounded=bounded, trusted=trusted) is here


def _raises(child: ChildProcess) -> None:
    with pytest.raises(ChildEnded):
        child.call("poll", "job", 0)


class _Process:
    """A process that ends when it is killed."""

    pid = 0
    exitcode = -9

    def __init__(self) -> None:
        self.killed = threading.Event()

    def kill(self) -> None:
        self.killed.set()

    def is_alive(self) -> bool:
        return not self.killed.is_set()

    def join(self, _seconds: float) -> None: ...
