"""What the engine makes of a job that is at work, stuck, or gone: progress, time left, reasons."""

from __future__ import annotations

import pytest

from simulator.single import SERIALIZABLE, Single
from support.present import present
from tandem.errors import Reason
from tandem.jobs.results import JobFailure, JobProgress
from tandem.jobs.runner import JobPhase, JobStatus
from tandem.operations.attempt import paths
from tandem.operations.machine.events import Point
from tandem.operations.model import ProgressBaseline
from tandem.operations.report.status import status_of
from tandem.operations.session.job_control import LOOK_EVERY, eta_seconds
from tandem.operations.session.session import Session
from tandem.spec.status import OperationStatus, Phase


def running(single: Single) -> Session:
    """A session that waits for its job, which has not begun to work."""
    session = single.session()
    while (effect := session.state.pending.effect) is None or effect.point is not Point.POLL_JOB:
        assert session.advance()
    return session


def shown(session: Session) -> OperationStatus:
    return status_of(
        session.state, operation_id="x", generation=1, started_ms=0, now_ms=session.started_ms
    )


def say(single: Single, files: int, size: int) -> None:
    """The job says how far it is, of 20 files with 2,000 bytes."""
    progress = JobProgress(files_done=files, files_total=20, bytes_done=size, bytes_total=2_000)
    data = progress.model_dump_json(by_alias=True).encode()
    single.world.store.put(paths.progress(single.operation_id, 1), data)


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
    ending = single.drive(session)
    assert ending.reason is Reason.COMMITTED
    assert ending.attempt == 1


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
    path = paths.round_file(single.operation_id, 1, 1, "failure.json")
    single.world.store.put(path, failure.model_dump_json(by_alias=True).encode())
    assert single.drive(session).reason is Reason.STATEMENT_FAILED


@pytest.mark.parametrize("why", ["ended", "recorded", "cleaned"])
def test_a_process_taken_for_dead_does_not_wait_for_ever(why: str) -> None:
    """Its driver may wait for more rounds, and say so, long after the result was cleaned away."""
    single = Single("compaction")
    session = running(single)
    store, operation_id = single.world.store, single.operation_id
    if why == "cleaned":
        store.delete([paths.plan(operation_id, 1)])
    else:
        records = {"ended": paths.ended(operation_id, 1), "recorded": paths.result(operation_id)}
        store.put(records[why], b"{}")
    for _ in range(LOOK_EVERY):
        assert session.advance()
    waiting = session.state.pending.effect
    assert waiting is None or waiting.point is not Point.POLL_JOB
    assert session.state.message.startswith("attempt 1 was declared dead")
