"""What becomes of an operation with its job: refused, watched, and as others see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from operations.machine_play import RUNNING, play
from simulator.single import MAKERS, SERIALIZABLE, Single
from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.lake.lake import batch
from support.lake.memory_store import MemoryStore
from support.present import present
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import ClusterUnavailable, InvalidSpec, JobRefused, Reason, TandemError
from tandem.jobs.results import JobFailure, JobProgress
from tandem.jobs.runner import SHORT_JOB_BYTES, JobPhase, JobRequest, JobStatus
from tandem.operations import attempt_files
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import (
    EffectDone,
    JobLost,
    JobRunning,
    Point,
    StartRefused,
    StopRequest,
)
from tandem.operations.machine.phases import LONGEST_REFUSAL_MS
from tandem.operations.machine.step import step
from tandem.operations.model import Identity, ProgressBaseline, SourceAccess, Table, Work
from tandem.operations.session import job_control
from tandem.operations.session.job_control import LOOK_EVERY, FileJobs, eta_seconds
from tandem.operations.session.session import Session
from tandem.operations.status import status_of
from tandem.spec.status import OperationStatus, Phase

# A cluster that takes no job for now (a quota, rights, a webhook, a missing kind): the operation
# waits without locks, and starts over. One that is refused for good leaves no trace in the log.


QUOTA = JobRefused("no", found="403 exceeded quota: jobs, limited: count/sparkapplications=0")
LOST = JobRefused("no", found="403 exceeded quota: jobs", certain=False)
GONE = JobRefused("no", found="404 the server has no such kind", reason=Reason.SPARK_MISSING)


@dataclass
class Refusing:
    """The start of jobs, refused as often as there are `answers`; None takes the job and loses the
    answer."""

    single: Single
    answers: list[TandemError | None] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start: Callable[[JobRequest], None] = self.single.world.jobs.start

    def __call__(self, request: JobRequest) -> None:
        if not self.answers:
            self.taken.append(request.name)
            return self.start(request)
        answer = self.answers.pop(0)
        if answer is None:
            self.start(request)
            raise ClusterUnavailable("no answer")
        raise answer


def refusing(single: Single, patch: pytest.MonkeyPatch, *answers: TandemError | None) -> Refusing:
    jobs = Refusing(single, list(answers))
    patch.setattr(single.world.jobs, "start", jobs)
    return jobs


def waiting(single: Single) -> Session:
    """A session whose job was refused and that waits for its next try."""
    session = single.session()
    until_refused(session)
    return session


def until_refused(session: Session) -> None:
    while session.state.refusal is None or session.next_effect is None or not session.wait_ms():
        assert session.advance(sleep=False)


def shown(session: Session) -> OperationStatus:
    return status_of(
        session.state, operation_id="x", generation=1, started_ms=0, now_ms=session.started_ms
    )


def files_of_attempt(single: Single) -> set[str]:
    folder = attempt_files.attempt(single.operation_id, 1) + "/"
    return {meta.path.removeprefix(folder) for meta in single.world.store.list(folder)}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_goes_on_once_its_job_is_taken(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single(kind)
    jobs = refusing(single, monkeypatch, QUOTA, GONE, QUOTA)
    ending = single.end()
    assert ending.phase is Phase.SUCCEEDED
    assert ending.attempt == 1
    assert len(jobs.taken) == single.job_count


def test_it_waits_without_locks_and_says_why_since_when_and_until(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single = Single("compaction")
    refusing(single, monkeypatch, QUOTA, QUOTA)
    session = waiting(single)
    assert single.world.locks.entries(single.table.location) == ()
    # An operator that starts now counts no failed attempt.
    assert files_of_attempt(single) == {"attempt.json"}
    status = shown(session)
    condition = status.conditions[0]
    assert (status.phase, condition.reason) == (Phase.PENDING, Reason.JOB_REFUSED)
    assert condition.message.startswith("no (found: 403 exceeded quota: jobs")
    first = present(session.state.refusal)
    until_refused_again(session)
    second = present(session.state.refusal)
    assert (first.tries, second.tries, second.since_ms) == (1, 2, first.since_ms)
    assert "(since 20" in condition.message
    assert ", tried again at 20" in condition.message


def until_refused_again(session: Session) -> None:
    assert session.state.refusal is not None
    tries = session.state.refusal.tries
    seen: set[tuple[Phase, str]] = set()
    while session.state.refusal.tries == tries:
        assert session.advance(sleep=False)
        status = shown(session)
        seen.add((status.phase, status.conditions[0].reason))
    # What it does for a moment at each try is not worth a write.
    assert seen == {(Phase.PENDING, Reason.JOB_REFUSED)}
    until_refused(session)


def test_its_plan_is_made_again_on_what_the_table_is_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single = Single("compaction")
    refusing(single, monkeypatch, QUOTA)
    session = waiting(single)
    for _ in range(3):
        single.foreign("append")
    inputs = session.state.attempt.plan
    ending = single.drive(session)
    assert ending.phase is Phase.SUCCEEDED
    assert ending.plan is not None
    assert inputs is not None
    assert ending.plan.read_version == inputs.read_version + 3


def test_pauses_grow_to_a_limit_and_differ_between_operations() -> None:
    state, _ = play(RUNNING[:-1])
    longest = []
    for tries in range(12):
        refused = StartRefused(Reason.JOB_REFUSED, "no", spread=(tries % 3) / 2, now_ms=1_000)
        state, effects = step(state, refused)
        assert [effect.point for effect in effects] == [Point.RELEASE_LOCKS]
        state, effects = step(state, EffectDone(Point.RELEASE_LOCKS))
        assert [effect.point for effect in effects] == [Point.READ_TABLE]
        longest.append(effects[0].delay_ms)
    assert longest[:4] == [1_500, 4_000, 10_000, 12_000]
    assert longest[-3:] == [
        *(int(LONGEST_REFUSAL_MS * factor) for factor in (0.75, 1.0, 1.25)),
    ]
    assert state.attempt.failures == 0


@pytest.mark.parametrize(
    ("request_", "phase", "reason"),
    [
        (StopRequest.SUSPEND, Phase.SUSPENDED, Reason.SUSPENDED),
        (StopRequest.CANCEL, Phase.FAILED, Reason.CANCELLED),
        (StopRequest.DEADLINE, Phase.FAILED, Reason.DEADLINE_EXCEEDED),
        (StopRequest.INTERRUPT, Phase.FAILED, Reason.INTERRUPTED),
    ],
)
def test_a_wait_that_is_ended_leaves_nothing_and_the_next_run_succeeds(
    request_: StopRequest, phase: Phase, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single("update")
    version = single.version
    refusing(single, monkeypatch, QUOTA)
    session = waiting(single)
    session.request_stop(request_)
    ending = single.drive(session)
    assert (ending.phase, ending.reason) == (phase, reason)
    assert single.version == version
    assert single.files_left() == []
    single.world.living.clear()
    single.succeed()


def test_a_deadline_ends_it_and_names_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    single = Single("compaction")
    single.limit(active_deadline_seconds=60)
    refusing(single, monkeypatch, *[QUOTA] * 99)
    ending = single.end()
    assert ending.reason is Reason.DEADLINE_EXCEEDED
    assert "exceeded quota" in ending.message
    assert single.commits == 0


@pytest.mark.parametrize("backoff_limit", [0, 3])
def test_refusals_and_restarts_do_not_use_up_attempts(
    backoff_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single("compaction")
    single.limit(backoff_limit=backoff_limit)
    jobs = refusing(single, monkeypatch)
    for _ in range(5):
        jobs.answers = [QUOTA]
        waiting(single)
        single.world.living.clear()
        single.world.locks.expire(single.table.location, single.operation_id)
    jobs.answers = []
    ending = single.end()
    assert ending.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("answers", [[None, QUOTA], [LOST], [None, LOST, QUOTA]])
def test_a_job_that_may_exist_after_all_never_meets_another_plan(
    answers: list[TandemError | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single("compaction")
    refusing(single, monkeypatch, *answers)
    session = waiting(single)
    single.foreign("append")
    ending = single.drive(session)
    assert ending.phase is Phase.SUCCEEDED
    # Another attempt, whose job has another name and other files.
    assert ending.attempt == 2
    assert single.files_left() == []


def test_a_request_that_is_wrong_fails_at_once_and_can_be_corrected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single = Single("compaction")
    version = single.version
    refusing(single, monkeypatch, InvalidSpec("refused", field="spec.sparkTemplate"))
    ending = single.end()
    assert (ending.phase, ending.reason) == (Phase.FAILED, Reason.INVALID_SPEC)
    assert single.version == version
    # The operator's template, which is no part of the resource, is corrected.
    single.world.living.clear()
    single.succeed()


# What the engine makes of a job that is at work, stuck, or gone: progress, time left, reasons.


def running(single: Single) -> Session:
    """A session that waits for its job, which has not begun to work."""
    session = single.session()
    while (effect := session.state.pending.effect) is None or effect.point is not Point.POLL_JOB:
        assert session.advance()
    return session


def say(single: Single, files: int, size: int) -> None:
    """The job says how far it is, of 20 files with 2,000 bytes."""
    progress = JobProgress(files_done=files, files_total=20, bytes_done=size, bytes_total=2_000)
    data = progress.model_dump_json(by_alias=True).encode()
    single.world.store.put(attempt_files.progress(single.operation_id, 1), data)


def test_progress_shows_files_bytes_percent_and_what_is_left() -> None:
    single = Single("compaction")
    session = running(single)
    session.advance()
    assert shown(session).progress is None
    say(single, 0, 0)
    session.advance()
    begun = present(shown(session).progress)
    assert (begun.percent, begun.summary, begun.eta_seconds) == (0, "0/20 files", None)

    single.world.clock.now += 60_000
    say(single, 12, 1_200)
    session.advance()
    half = present(shown(session).progress)
    assert (half.percent, half.files_done, half.bytes_done) == (60, 12, 1_200)
    assert half.eta_seconds == pytest.approx(40, abs=1)
    assert half.summary == f"12/20 files, {half.eta_seconds} s left"


def test_a_job_that_was_taken_over_half_way_is_timed_from_there() -> None:
    single = Single("compaction")
    running(single)
    say(single, 10, 1_000)
    single.world.living.clear()
    session = running(single)
    session.advance()
    single.world.clock.now += 10_000
    say(single, 15, 1_500)
    session.advance()
    progress = present(shown(session).progress)
    assert progress.eta_seconds == pytest.approx(10, abs=1)


def test_no_progress_is_left_after_the_end() -> None:
    single = Single("compaction")
    session = running(single)
    say(single, 0, 0)
    session.advance()
    single.world.clock.now += 60_000
    say(single, 5, 500)
    ending = single.drive(session)
    assert ending.phase is Phase.SUCCEEDED
    progress = present(shown(session).progress)
    assert (progress.percent, progress.summary, progress.eta_seconds) == (100, "20/20 files", None)


@pytest.mark.parametrize(
    ("pace", "done", "now_ms", "seconds"),
    [
        (ProgressBaseline(0, 100, 0, 1_000), 0, 9_000, None),
        (ProgressBaseline(0, 100, 0, 1_000), 100, 9_000, None),
        (ProgressBaseline(0, 100, 0, 1_000), 50, 1_000, None),
        (ProgressBaseline(0, 100, 0, 1_000), 50, 9_000, 8),
        (ProgressBaseline(0, 100, 40, 1_000), 50, 2_000, 5),
        (ProgressBaseline(0, 0, 0, 1_000), 0, 2_000, None),
        (ProgressBaseline(0, 3, 0, 0), 1, 1_001, 3),
    ],
)
def test_time_left_follows_from_the_pace(
    pace: ProgressBaseline, done: int, now_ms: int, seconds: int | None
) -> None:
    assert eta_seconds(pace, done, now_ms) == seconds


@pytest.mark.parametrize("reason", [Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE])
def test_a_job_that_cannot_start_yet_is_waited_for_and_says_why(
    reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single("compaction")
    session = running(single)
    stuck = JobStatus(JobPhase.STARTING, "0/3 nodes are available", reason=reason)
    with monkeypatch.context() as patch:
        patch.setattr(single.world.jobs, "status", lambda _name: stuck)
        for _ in range(50):
            session.advance()
    status = shown(session)
    assert status.phase is Phase.RUNNING
    assert status.conditions[0].reason == reason
    assert status.conditions[0].message == "0/3 nodes are available"
    session.advance()
    assert shown(session).conditions[0].reason == Reason.RUNNING
    single.succeed(session, attempt=1)


@pytest.mark.parametrize("transient", [True, False])
def test_a_job_that_failed_says_why_and_whether_it_may_be_tried_again(
    transient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = Single("compaction")
    session = running(single)
    lost = JobStatus(
        JobPhase.FAILED, "OOMKilled", "kubectl logs x", Reason.OUT_OF_MEMORY, transient
    )
    with monkeypatch.context() as patch:
        patch.setattr(single.world.jobs, "status", lambda _name: lost)
        session.advance()
    closing = present(session.state.outcome.closing)
    assert closing.again is transient
    assert closing.ending.reason is Reason.OUT_OF_MEMORY
    assert closing.ending.message == "OOMKilled (log: kubectl logs x)"


def test_a_later_round_that_fails_is_not_waited_for() -> None:
    """The driver continues after a round that failed: the failure is reported in that round."""
    single = Single(SERIALIZABLE)
    session = running(single)
    single.foreign("append")
    while session.state.job.round == 0 or session.next_effect is None:
        assert session.advance()
        for driver in single.world.jobs.running():
            if session.state.job.round == 0:
                single.world.jobs.advance(driver)
    failure = JobFailure(
        operation_id=single.operation_id,
        attempt=1,
        round=1,
        reason=Reason.STATEMENT_FAILED.value,
        message="division by zero",
        transient=False,
    )
    path = attempt_files.round_file(single.operation_id, 1, 1, "failure.json")
    single.world.store.put(path, failure.model_dump_json(by_alias=True).encode())
    assert single.drive(session).reason is Reason.STATEMENT_FAILED


@pytest.mark.parametrize("why", ["ended", "recorded", "cleaned"])
def test_a_process_taken_for_dead_does_not_wait_for_ever(why: str) -> None:
    """Its driver may wait for more rounds, and say so, long after the result was cleaned away."""
    single = Single("compaction")
    session = running(single)
    store, operation_id = single.world.store, single.operation_id
    if why == "cleaned":
        store.delete([attempt_files.plan(operation_id, 1)])
    else:
        records = {
            "ended": attempt_files.ended(operation_id, 1),
            "recorded": attempt_files.result(operation_id),
        }
        store.put(records[why], b"{}")
    for _ in range(LOOK_EVERY):
        assert session.advance()
    waiting = session.state.pending.effect
    assert waiting is None or waiting.point is not Point.POLL_JOB
    assert session.state.message.startswith("attempt 1 was declared dead")


# The status of a job that a runner reports, as the engine receives it.


LOG = "kubectl logs -n lake x-driver"


@dataclass
class Says:
    """A `JobRunner` that knows one answer."""

    answer: JobStatus

    def start(self, request: JobRequest) -> None:
        raise AssertionError(request)

    def status(self, name: str) -> JobStatus:
        assert name == "tandem-0f-1"
        return self.answer

    def stop(self, name: str) -> None:
        raise AssertionError(name)


def work() -> Work:
    store = MemoryStore()
    identity = Identity("0f", "TableCompaction", "lake", "nightly", "h", {})
    return Work(identity, Table(store, DeltaLog(store), "LakeTable/flights"))


def poll(answer: JobStatus, at: Work | None = None) -> Any:
    return job_control.poll(at or work(), FileJobs(Says(answer)), 1, 0, 0)


@pytest.mark.parametrize(
    ("reason", "transient", "expected"),
    [
        (Reason.OUT_OF_MEMORY, True, Reason.OUT_OF_MEMORY),
        (Reason.IMAGE_PULL_FAILED, False, Reason.IMAGE_PULL_FAILED),
        (None, True, Reason.JOB_FAILED),
    ],
)
def test_a_failure_that_the_runner_distinguishes(
    reason: Reason | None, transient: bool, expected: Reason
) -> None:
    lost = poll(JobStatus(JobPhase.FAILED, "it died", LOG, reason, transient))
    assert lost == JobLost(expected, f"it died (log: {LOG})", transient)


def test_the_message_of_the_job_comes_first() -> None:
    at = work()
    failure = JobFailure(
        operation_id="0f", attempt=1, reason="StatementFailed", message="1 / 0", transient=False
    )
    path = attempt_files.round_file("0f", 1, 0, "failure.json")
    at.table.store.put(path, failure.model_dump_json(by_alias=True).encode())
    lost = poll(JobStatus(JobPhase.FAILED, "exit code 1", reason=Reason.JOB_FAILED), at)
    assert lost == JobLost(Reason.STATEMENT_FAILED, "TableCompaction/nightly: 1 / 0", False)


def test_the_cause_of_a_pending_driver_is_reported() -> None:
    waits = JobStatus(JobPhase.STARTING, "no node: 0/3", LOG, Reason.UNSCHEDULABLE)
    assert poll(waits) == JobRunning(None, (Reason.UNSCHEDULABLE, "no node: 0/3"))
    assert poll(JobStatus(JobPhase.RUNNING, "late")) == JobRunning(None)


def test_the_driver_of_a_statement_alone_is_informed_that_it_may_end(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    for operation, waits in ((lake.compaction("Major"), False), (lake.delete("k = 1"), True)):
        before = {found.path for found in lake.store.list(attempt_files.operations())}
        lake.do(operation)
        made = {found.path for found in lake.store.list(attempt_files.operations())} - before
        assert any(path.endswith("/plan.json") for path in made)
        assert any(path.endswith("/done.json") for path in made) is waits


# What a request says of the size of its job.


@pytest.mark.parametrize("kind", ["ingest", "merge"])
def test_a_request_has_the_size_of_a_source_that_may_be_read(tmp_path: Path, kind: str) -> None:
    lake = quick_lake.make(tmp_path, 1)
    table_bytes = 0 if kind == "ingest" else lake.log.snapshot().size_bytes
    for access, known in ((SourceAccess.FULL, True), (SourceAccess.NONE, False)):
        rows = batch(7)
        resource = lake.ingest(rows) if kind == "ingest" else lake.merge(rows)
        size = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        jobs = QuickJobs()
        ports = lake.ports(jobs=jobs)
        table = replace(lake.table(), source_access=access)
        status = finish(open_session(resource, table, ports, ExecutionOptions()), resource, ports)
        assert status.phase is Phase.SUCCEEDED, status
        [request] = jobs.started
        assert request.size_known is known
        assert request.input_bytes == table_bytes + size.stat().st_size * known
        # The plan is about files of the table.
        assert present(status.plan).input_bytes == table_bytes
        table_bytes = 0 if kind == "ingest" else lake.log.snapshot().size_bytes


def test_a_job_of_an_unknown_size_keeps_the_optimizing_compiler() -> None:
    small = JobRequest("j", "ingest", "", "", input_bytes=1)
    assert small.is_short
    assert not replace(small, size_known=False).is_short
    assert not replace(small, input_bytes=SHORT_JOB_BYTES).is_short
