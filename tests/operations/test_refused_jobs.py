"""A cluster that takes no job for now (a quota, rights, a webhook, a missing kind): the operation
waits without locks, and starts over. One that is refused for good leaves no trace in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from operations.machine_play import RUNNING, play
from simulator.single import MAKERS, Single
from support.present import present
from tandem.errors import ClusterUnavailable, InvalidSpec, JobRefused, Reason, TandemError
from tandem.jobs.runner import JobRequest
from tandem.operations.attempt import paths
from tandem.operations.machine.events import EffectDone, Point, StartRefused, StopRequest
from tandem.operations.machine.execution import LONGEST_REFUSAL_MS
from tandem.operations.machine.step import step
from tandem.operations.report.status import status_of
from tandem.operations.session.session import Session
from tandem.spec.status import OperationStatus, Phase

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
    folder = paths.attempt(single.operation_id, 1) + "/"
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
    again = single.end()
    assert again.reason is Reason.COMMITTED


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
    again = single.end()
    assert again.reason is Reason.COMMITTED
