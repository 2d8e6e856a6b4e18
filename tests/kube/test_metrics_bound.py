"""Metrics by themselves: how many series there can be, what they count, what they cost."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from kube.metrics_stage import KINDS, Stage, ended, family_of, of, own
from support.calls import count_calls
from tandem.errors import AccessDenied, LocksUnavailable, Reason, StorageError
from tandem.kube.controllers.reporting import InstrumentedInterceptor
from tandem.kube.metrics import families as families
from tandem.kube.metrics.collectors import MeasuredLocks, verb_and_resource
from tandem.kube.metrics.families import FAMILIES, LOOKED_UP
from tandem.kube.runtime.context import IndexServerFacts
from tandem.kube.runtime.controller_tasks import LogContext
from tandem.kube.runtime.slots import NO_TABLE
from tandem.locks.rules import WHOLE_TABLE, LockRequest, Mode
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import (
    AttemptAdopted,
    CommitLost,
    CommitPut,
    Effect,
    EffectDone,
    Event,
    JobLost,
    LocksGranted,
    LocksWaiting,
    Point,
    RoundDone,
    StartRefused,
)
from tandem.spec.status import (
    AutoCompactionWait,
    OperationResult,
    Phase,
    Plan,
    Reconciled,
    RowsReplaced,
)

ODD = ("", "Nonsense", "x" * 300, 'quo"te', "new\nline")


def storm(stage: Stage, seed: int) -> None:
    """Everything that can happen, with all labels that there are and some that there are not."""
    metrics = stage.metrics
    reasons = [*Reason, *ODD, f"made up {seed}"]
    for kind in KINDS:
        for reason in reasons:
            for phase in (Phase.SUCCEEDED, Phase.SUPERSEDED, Phase.FAILED):
                result = OperationResult(files_added=1, reconciled=Reconciled(rounds=seed + 1))
                metrics.operation_ended(kind, ended(phase, reason, result=result), 1.0)
            metrics.count(families.STEP_FAILURES, reason)
            for outcome in ("Finished", "Stopped", reason):
                metrics.count(families.JOBS_ENDED, kind, outcome)
    for method, code in itertools.product(("GET", "POST", "PATCH", "DELETE", "PUT"), range(600)):
        for url in (
            f"/apis/tandem.dev/v1alpha1/namespaces/n{seed}/laketables/t{seed}/status",
            f"/apis/g{seed}/v1/namespaces/x/kind{seed}s",
            f"/api/v1/namespaces/n{seed}/pods/p{seed}",
            f"/apis/g{seed}",
        ):
            metrics.api_call(method, url, code, 0.01)


def test_a_thousand_operations_and_300_tables_stay_within_the_bound() -> None:
    stage = Stage(shown=100)
    phases = [*Phase, "", "NoPhase"]
    reasons = [*Reason, *ODD]
    for number in range(1_000):
        stage.operation(
            number,
            phases[number % len(phases)],
            KINDS[number % len(KINDS)],
            reason=reasons[number % len(reasons)],
            table=f"t{number % 300}",
        )
    for number in range(300):
        stage.table(
            number, number or None, list(AutoCompactionWait)[number % len(AutoCompactionWait)]
        )
    storm(stage, 1)
    first = stage.series()
    assert len(own(first)) <= families.bound(100)
    per_family = Counter(family_of(name).name for name, _ in own(first))
    assert {f.name: n for f in FAMILIES if (n := per_family[f.name]) > f.bound(100)} == {}
    assert not per_family.keys() - {family.name for family in FAMILIES}
    assert per_family["tandem_table_files"] == 100
    assert of(first, "tandem_tables_files") == sum(range(300))
    assert of(first, "tandem_tables_chunks_due") == 300
    assert of(first, "tandem_operations") == 1_000
    # More of the same, with other names, adds nothing.
    for number in range(1_000, 3_000):
        stage.operation(number, phases[number % len(phases)], KINDS[number % len(KINDS)])
    storm(stage, 2)
    assert len(own(stage.series())) <= len(first)
    assert not [name for name, _ in first if name.endswith("_created")]


def test_index_servers_are_counted_by_whether_they_answer() -> None:
    stage = Stage(shown=0)
    for number in range(60):
        ready = (True, False, None)[number % 3]
        reason = (Reason.SERVING, "a reason of another version", Reason.SUSPENDED)[number % 3]
        facts = IndexServerFacts(ready, reason, tables=2, bytes=100, evictions=1)
        stage.index_servers["n", f"s{number}"] = facts
    series = stage.series()
    assert of(series, "tandem_index_servers", ready="True", reason="Serving") == 20
    assert of(series, "tandem_index_servers", ready="False", reason="Other") == 20
    assert of(series, "tandem_index_servers") == 40
    assert of(series, "tandem_index_servers_tables") == 120
    assert of(series, "tandem_index_servers_held_bytes") == 6_000
    assert of(series, "tandem_index_servers_evictions") == 60


def test_no_series_of_single_tables_where_none_is_asked_for() -> None:
    stage = Stage(shown=0)
    for number in range(5):
        stage.table(number, 10)
    series = stage.series()
    assert not [name for name, _ in series if name.startswith("tandem_table_")]
    assert of(series, "tandem_tables", ready="True") == 5
    assert of(series, "tandem_tables_shown") == 0


def test_every_family_is_counted_or_read_at_scrape_time() -> None:
    stage = Stage()
    stage.table(1, 5, AutoCompactionWait.AT_WORK)
    stage.operation(1, "Succeeded", table="t1", completionTime="2026-11-21T10:00:00Z")
    stage.operation(2, "Running")
    text = stage.text()
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE tandem_")}
    assert exposed == {family.name for family in FAMILIES}
    assert {family for family in FAMILIES if family.per_table} <= LOOKED_UP
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_tables_with_most_files_are_shown_and_stay_until_others_are_much_larger() -> None:
    stage = Stage(shown=2)
    for number, files in enumerate((10, 20, 30)):
        stage.table(number, files)
    assert shown(stage) == {"t1", "t2"}
    facts = stage.tables["n0", "t0"].facts
    assert facts is not None
    stage.tables["n0", "t0"].facts = facts.model_copy(update={"files": 24})
    assert shown(stage) == {"t1", "t2"}
    stage.tables["n0", "t0"].facts = facts.model_copy(update={"files": 26})
    assert shown(stage) == {"t0", "t2"}


def test_when_a_table_was_compacted_is_known_after_the_compaction_is_deleted() -> None:
    stage = Stage()
    stage.table(1, 5)
    name = "tandem_table_last_compaction_timestamp_seconds"
    assert of(stage.series(), name) is None
    stage.operation(1, "Succeeded", table="t1", completionTime="1970-01-02T00:00:00Z")
    stage.operation(51, "Succeeded", table="t1", completionTime="1970-01-01T00:00:10Z")
    stage.operation(101, "Failed", table="t1", completionTime="1970-01-03T00:00:00Z")
    # Files accumulate beside merges of the log.
    merged = {"type": "LogMerge", "completionTime": "1970-01-04T00:00:00Z"}
    stage.operation(151, "Succeeded", table="t1", **merged)
    assert of(stage.series(), name, table_namespace="n1", table="t1") == 86_400
    stage.resource_cache.clear()
    assert of(stage.series(), name) == 86_400
    stage.tables.clear()
    assert of(stage.series(), name) is None


def test_progress_resets_the_unchanged_time() -> None:
    stage = Stage()
    name = "tandem_operation_longest_unchanged_seconds"

    def unchanged() -> float:
        return of(stage.series(), name, kind=KINDS[0], phase="Running") or 0.0

    stage.operation(1, "Running", progress={"bytesDone": 1, "summary": "a"})
    assert unchanged() == 0.0
    stage.operation(
        1, "Running", progress={"bytesDone": 1, "summary": "b"}, reason="WaitingForLock"
    )
    before = unchanged()
    assert before > 0.0
    assert unchanged() > before
    stage.operation(1, "Running", progress={"bytesDone": 2})
    assert unchanged() == 0.0
    stage.operation(1, "Succeeded")
    assert of(stage.series(), name) is None
    assert of(stage.series(), "tandem_operations", phase="Succeeded") == 1


def test_hindrances_are_counted_by_reason() -> None:
    stage = Stage()
    stage.operation(1, "Planned", reason="WaitingForLock")
    stage.operation(2, "Running", reason="Unschedulable")
    stage.operation(3, "Running", reason="Running")
    stage.operation(4, "Failed", reason="JobFailed")
    stage.operation(5, "Suspended", reason="Suspended")
    series = stage.series()
    assert of(series, "tandem_operations_hindered") == 2
    assert of(series, "tandem_operations_hindered", reason="Unschedulable") == 1


def test_slots_and_threads_are_read_at_scrape_time() -> None:
    stage = Stage()
    stage.slots.force(NO_TABLE)

    async def wait() -> None:
        stage.slots.force(NO_TABLE)
        waiting = asyncio.create_task(stage.slots.take(NO_TABLE))
        await asyncio.sleep(0)
        assert stage.slots.waiting == 1
        waiting.cancel()

    asyncio.run(wait())
    assert of(stage.series(), "tandem_jobs_running") == 2
    assert of(stage.series(), "tandem_jobs_limit") == 2


def test_an_ended_operation_is_counted_with_its_effects() -> None:
    stage = Stage()
    reconciled = Reconciled(commits_seen=3, deletes_remapped=7, rows_masked=5, rounds=2)
    result = OperationResult(version=4, files_added=1, files_removed=9, reconciled=reconciled)
    status = ended(Phase.SUCCEEDED, "Committed", result=result)
    stage.metrics.operation_ended(KINDS[0], status, 12.0)
    stage.metrics.operation_ended(KINDS[0], ended(Phase.FAILED, "JobFailed"), None)
    series = stage.series()
    assert of(series, "tandem_operations_ended_total", reason="Committed") == 1
    assert of(series, "tandem_operations_ended_total", outcome="Failed") == 1
    assert of(series, "tandem_operation_duration_seconds_count") == 1
    assert of(series, "tandem_files_removed_total") == 9
    assert of(series, "tandem_reconciled_deletes_total") == 7
    assert of(series, "tandem_reconciled_rows_masked_total") == 5
    assert of(series, "tandem_commit_rounds_sum") == 2


def test_late_rows_of_replaces_and_conflicts_are_counted() -> None:
    stage = Stage()
    replaced = RowsReplaced(start_version=3, rows=24, late=6)
    result = OperationResult(version=4, replaced=replaced)
    for _ in range(2):
        stage.metrics.operation_ended(
            "TableReplace", ended(Phase.SUCCEEDED, "Committed", result=result), 12.0
        )
    at_commit = OperationResult(version=5, replaced=RowsReplaced(rows=24))
    stage.metrics.operation_ended(
        "TableReplace", ended(Phase.SUCCEEDED, "Committed", result=at_commit), 12.0
    )
    stage.metrics.operation_ended("TableReplace", ended(Phase.FAILED, "Conflict"), 1.0)
    series = stage.series()
    assert of(series, "tandem_late_rows_kept_total") == 12
    conflicts = {"kind": "TableReplace", "reason": "Conflict"}
    assert of(series, "tandem_operations_ended_total", **conflicts) == 1


def test_effects_are_counted_by_their_outcome() -> None:
    stage = Stage()
    subject = LogContext(KINDS[0], "n", "m", "t", operation="0123456789abcdef")
    answers: list[Event | Exception] = []

    def interceptor(effect: Effect, call: Any) -> Event:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    observed = InstrumentedInterceptor(stage.metrics, subject, interceptor)

    def happens(point: Point, answer: Event | Exception) -> None:
        answers.append(answer)
        effect = Effect(point, attempt=2)
        if isinstance(answer, Exception):
            with pytest.raises(type(answer)):
                observed(effect, lambda: EffectDone(point))
        else:
            assert observed(effect, lambda: EffectDone(point)) is answer

    happens(Point.ACQUIRE_LOCKS, LocksWaiting(()))
    happens(Point.ACQUIRE_LOCKS, LocksGranted(1))
    happens(Point.START_JOB, StorageError("it failed"))
    happens(Point.START_JOB, StartRefused(Reason.SPARK_MISSING, "no such kind"))
    happens(Point.START_JOB, EffectDone(Point.START_JOB))
    happens(Point.POLL_JOB, JobLost(Reason.OUT_OF_MEMORY, "too little"))
    happens(Point.STOP_JOB, EffectDone(Point.STOP_JOB))  # it was lost before
    happens(Point.ADOPT_ATTEMPT, AttemptAdopted(Plan(read_version=1, inputs=1, input_bytes=1), 0))
    happens(Point.START_JOB, EffectDone(Point.START_JOB))
    happens(Point.POLL_JOB, RoundDone(0))
    happens(Point.PUT_COMMIT, AccessDenied("no"))
    happens(Point.WRITE_SIDECARS, CommitLost(raced=True))
    happens(Point.PUT_COMMIT, CommitLost(raced=True))
    happens(Point.PUT_COMMIT, CommitLost())  # no other writer has the version
    happens(Point.LOOK_UP_COMMIT, CommitLost())
    happens(Point.PUT_COMMIT, CommitPut(OperationResult(version=3)))
    happens(Point.FINISH_JOB, EffectDone(Point.FINISH_JOB))
    series = stage.series()
    assert subject.attempt == 2
    assert of(series, "tandem_lock_wait_seconds_count") == 1
    assert of(series, "tandem_jobs_started_total") == 2
    assert of(series, "tandem_jobs_ended_total", reason="OutOfMemory") == 1
    assert of(series, "tandem_jobs_ended_total", reason="Finished") == 1
    assert of(series, "tandem_jobs_ended_total") == 2
    assert of(series, "tandem_job_duration_seconds_count", outcome="Failed") == 1
    assert of(series, "tandem_job_duration_seconds_count", outcome="Succeeded") == 1
    assert of(series, "tandem_operations_adopted_total") == 1
    assert of(series, "tandem_commit_races_lost_total") == 2
    assert of(series, "tandem_commits_total") == 1
    assert of(series, "tandem_step_failures_total", reason="AccessDenied") == 1
    assert of(series, "tandem_step_duration_seconds_count", step="PutCommit") == 3


class DeadLocks(InProcessLocks):
    dead = False

    def entries(self, table: str) -> Any:
        if self.dead:
            raise LocksUnavailable("away")
        return super().entries(table)


def test_the_lock_store_is_up_when_it_answers() -> None:
    stage, store = Stage(), DeadLocks()
    locks = MeasuredLocks(store, stage.metrics)
    assert of(stage.series(), "tandem_lock_store_up") == 0
    request = LockRequest("t", "o", Mode.EXCLUSIVE, WHOLE_TABLE, owner="me")
    locks.acquire(request)
    assert of(stage.series(), "tandem_lock_store_up") == 1
    store.dead = True
    with pytest.raises(LocksUnavailable):
        locks.entries("t")
    series = stage.series()
    assert of(series, "tandem_lock_store_up") == 0
    assert of(series, "tandem_lock_requests_total", request="entries", outcome="Unavailable") == 1
    assert of(series, "tandem_lock_requests_total", outcome="Answered") == 1
    assert of(series, "tandem_lock_request_duration_seconds_count") == 2


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("GET", "/apis/tandem.dev/v1alpha1/laketables", ("LIST", "laketables")),
        ("GET", "/apis/tandem.dev/v1alpha1/namespaces/n/laketables/t", ("GET", "laketables")),
        ("PATCH", "/apis/tandem.dev/v1/namespaces/n/laketables/t/status", ("PATCH", "laketables")),
        ("GET", "/api/v1/namespaces/n/pods", ("LIST", "pods")),
        ("GET", "/api/v1/namespaces/n/secrets/s", ("GET", "secrets")),
        ("GET", "/apis/tandem.dev/v1alpha1", ("LIST", "Other")),
    ],
)
def test_calls_are_labelled_by_verb_and_resource(
    method: str, url: str, expected: tuple[str, str]
) -> None:
    assert verb_and_resource(method, url) == expected


# About twice of what it takes; a loop over series, operations or tables costs more.
CALLS_PER_OPERATION = 2_000


def test_an_operation_costs_a_bounded_number_of_calls() -> None:
    """What one operation does to the metrics: the requests, effects, threads and locks of a small
    compaction, and its end. The cost of one is the same after a thousand others."""
    stage = Stage()
    locks = MeasuredLocks(InProcessLocks(), stage.metrics)
    result = OperationResult(version=1, files_added=1, reconciled=Reconciled(rounds=1))
    status = ended(Phase.SUCCEEDED, "Committed", result=result)

    def one() -> None:
        observed = InstrumentedInterceptor(
            stage.metrics, LogContext(KINDS[0], "n", "m"), lambda _, call: call()
        )
        for point in Point:
            if point not in (Point.START_JOB, Point.PUT_COMMIT, Point.ADOPT_ATTEMPT):
                observed(Effect(point), lambda: EffectDone(Point.PLAN))
        for _ in range(12):
            stage.metrics.api_call("PATCH", "/apis/tandem.dev/v1/namespaces/n/laketables/t", 200, 1)
        for _ in range(4):
            locks.entries("t")
        stage.metrics.operation_ended(KINDS[0], status, 1.0)

    one()
    early = count_calls(one)
    for _ in range(1_000):
        one()
    assert count_calls(one) <= early < CALLS_PER_OPERATION


def shown(stage: Stage) -> set[str]:
    return {
        dict(labels)["table"] for name, labels in stage.series() if name == "tandem_table_files"
    }
