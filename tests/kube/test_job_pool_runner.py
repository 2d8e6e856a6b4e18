"""The operator's side of a job pool, without a cluster: pools that hang, and what is not ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from kube.test_job_pool_rules import ConfigMap, job
from support.waiting import LIMIT_S, await_that
from tandem.errors import ClusterUnavailable, Reason
from tandem.jobs.pool import (
    LEFT_S,
    OVERDUE_S,
    PooledEnd,
    PoolRecord,
    PoolRules,
    post,
    report_begun,
    report_end,
)
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.client.api import ApiError, Invalid, NotFound
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.job_pool import pools as pools_module
from tandem.kube.job_pool import runner as runner_module
from tandem.kube.job_pool.config_maps import ConfigMaps
from tandem.kube.job_pool.pools import JobPools
from tandem.kube.job_pool.runner import PooledRunner
from tandem.kube.metrics.collectors import Metrics
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import JobOwner, JobPlacement
from tandem.turns import Turn, Turns

Json = dict[str, Any]
NAME = "tandem-pool-digest-1"
RULES = PoolRules(slots=2)
STOPPED = PooledEnd(code=1, message="withdrawn")


class Maps:
    """ConfigMaps in memory. A job that is to stop ends at once, as its driver would report."""

    def __init__(self) -> None:
        self.there = {NAME: ConfigMap()}
        self.stops: list[str] = []

    def get(self, _: str, name: str) -> PoolRecord | None:
        found = self.there.get(name)
        return None if found is None else found.record()

    def list(self, _: str, __: str) -> list[PoolRecord]:
        return [found.record() for found in self.there.values()]

    def patch(self, _: str, name: str, patch: Sequence[Json] | Mapping[str, Any]) -> bool:
        there = self.there[name]
        if isinstance(patch, Mapping):
            there.merge(patch)
            return True
        stops = [key.split("/stop.")[1] for step in patch if "/stop." in (key := step["path"])]
        self.stops += stops
        return there.patch(patch) and all(
            there.patch(report_end(name, job(), STOPPED)) for name in stops
        )

    def delete(self, _: str, pool: PoolRecord) -> None:
        del self.there[pool.name]


class Own:
    """No job has an application of its own here."""

    def start(self, request: JobRequest) -> None:
        raise AssertionError(request.name)

    def status(self, name: str) -> JobStatus:
        raise AssertionError(name)

    def stop(self, name: str) -> None:
        raise AssertionError(name)


class Stage:
    def __init__(self, phase: JobPhase, monkeypatch: pytest.MonkeyPatch) -> None:
        self.maps, self.metrics, self.applications = Maps(), Metrics(), ApplicationCache()
        none: Any = None
        self.pools = JobPools(
            none, none, KubeflowApplications(), self.applications, RULES, self.metrics
        )
        vars(self.pools)["_maps"] = self.maps
        self.phases = {NAME: phase}

        class Applications:
            def status(_, name: str) -> JobStatus:  # noqa: N805
                return JobStatus(self.phases.get(name, JobPhase.UNKNOWN))

            def stop(_, name: str) -> None:  # noqa: N805
                del self.phases[name]

        monkeypatch.setattr(self.pools, "_runner", lambda *_: Applications())
        placement = JobPlacement(JobOwner("v1", "TableCompaction", "m", "u"), "lake")
        self.runner = PooledRunner(Own(), self.pools, placement, RULES)
        self.pool = self.maps.there[NAME]
        self.pool.body["metadata"]["name"] = NAME
        assert self.pool.patch(post("a", job()))


def test_a_pool_that_does_not_begin_a_job_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    assert stage.runner.status("a").phase is JobPhase.STARTING
    assert stage.pool.record().is_open
    monkeypatch.setattr(runner_module, "BEGIN_S", -1.0)
    found = stage.runner.status("a")
    assert (found.phase, found.reason) == (JobPhase.FAILED, Reason.JOB_NOT_STARTED)
    # Its driver may hang: the next jobs would wait as long.
    assert not stage.pool.record().is_open


def test_a_job_that_has_begun_ends_before_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(JobPhase.STARTING, monkeypatch)  # the application's status is late
    assert stage.pool.patch(report_begun("a", job()))
    stage.runner.stop("a")
    assert stage.maps.stops == ["a"]
    assert not stage.pool.record().jobs


def test_a_job_of_a_pool_that_starts_is_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(JobPhase.STARTING, monkeypatch)
    stage.runner.stop("a")
    assert not stage.maps.stops
    assert not stage.pool.record().jobs


def leaves_its_turn(call: Callable[[], None], until: Callable[[], object]) -> None:
    """That a call, which waits in the way that is tested, leaves its turn to `until`."""
    turns = Turns(1, 2 * LIMIT_S)  # so that a failure ends
    begun: list[None] = []

    def work() -> None:
        with Turn(turns):
            begun.append(None)
            call()

    def other() -> None:
        with Turn(turns):
            until()

    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(work)
        await_that(lambda: begun, "it begins")
        pool.submit(other).result(LIMIT_S)
        working.result(LIMIT_S)


def test_one_that_waits_for_the_end_of_a_job_leaves_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    assert stage.pool.patch(report_begun("a", job()))
    monkeypatch.setattr(stage.maps, "patch", lambda *_: True)  # the job does not end by itself
    leaves_its_turn(
        lambda: stage.runner.stop("a"),
        lambda: stage.pool.patch(report_end("a", job(), STOPPED)),
    )


def test_one_that_waits_for_another_to_make_a_pool_leaves_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    monkeypatch.setattr(stage.pools, "_digest", lambda *_: "d1")
    others = ExitStack()
    for lock in stage.pools._making:
        others.enter_context(lock)
    request = JobRequest("b", "rewrite", "s3://lake/t", "job.json", attempt=1)
    leaves_its_turn(lambda: stage.runner.start(request), others.close)
    assert "b" in stage.pool.record().jobs


@pytest.mark.parametrize("unsure", [False, True])
@pytest.mark.parametrize("refusal", [Invalid, NotFound])
def test_a_job_that_may_have_been_posted_is_not_taken_for_refused(
    refusal: type[ApiError], unsure: bool
) -> None:
    """The answer of the first try was lost, and the pool is closed by the second."""

    class Server:
        async def patch(self, *_: object) -> Json:
            raise refusal(422, "Invalid", "a test failed", unsure=unsure)

    async def run() -> None:
        maps = ConfigMaps(Server(), asyncio.get_running_loop())  # type: ignore[arg-type]
        posting = asyncio.to_thread(maps.patch, "lake", NAME, post("a", job()))
        if unsure:
            with pytest.raises(ClusterUnavailable):
                await posting
        else:
            assert not await posting

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "age_s", "phase", "stays"),
    [
        ("tandem-pool-digest-2", LEFT_S + 1, JobPhase.UNKNOWN, False),
        ("tandem-pool-digest-2", LEFT_S + 1, JobPhase.RUNNING, True),
        ("tandem-pool-digest-2", OVERDUE_S + 1, JobPhase.RUNNING, False),
        ("tandem-pool-digest-2", OVERDUE_S + 1, JobPhase.ENDED, True),
        # Another client gave it the label.
        ("settings", OVERDUE_S + 1, JobPhase.UNKNOWN, True),
    ],
)
def test_pools_that_are_left_over_are_deleted(
    name: str, age_s: float, phase: JobPhase, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    other = stage.maps.there[name] = ConfigMap()
    other.body["metadata"]["name"] = name
    stage.phases[name] = phase
    monkeypatch.setattr(stage.pools, "_age_s", lambda *_: age_s)
    stage.pools._sweep("lake", [other.record()])
    assert (name in stage.maps.there) == stays


def counted(stage: Stage, name: str, **labels: str) -> float:
    return stage.metrics.registry.get_sample_value(f"tandem_{name}", labels) or 0.0


def application(state: str, kind: str = "ConfigMap", name: str = NAME) -> Json:
    owner = {"kind": kind, "name": name, "uid": "u"}
    metadata = {"name": name, "namespace": "lake", "uid": name, "ownerReferences": [owner]}
    return {"metadata": metadata, "status": {"applicationState": {"state": state}}}


def test_a_pool_that_does_not_start_in_time_ends_and_its_jobs_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(JobPhase.STARTING, monkeypatch)
    assert stage.pool.patch(post("b", job()))
    stage.applications.observe(None, application("SUBMITTED"))
    for name in "ab":
        assert stage.runner.status(name).phase is JobPhase.STARTING
    monkeypatch.setattr(pools_module, "START_S", -1.0)
    for name in "ab":
        found = stage.runner.status(name)
        assert (found.phase, found.reason) == (JobPhase.FAILED, Reason.JOB_NOT_STARTED)
    assert not stage.pool.record().is_open
    stage.runner.stop("a")
    assert NAME in stage.maps.there  # another job is still in it
    stage.runner.stop("b")
    assert not stage.maps.there
    assert not stage.phases
    stage.applications.observe("DELETED", application("SUBMITTED"))
    assert counted(stage, "job_pools_ended_total", reason="NotStarted") == 1
    assert counted(stage, "pooled_jobs_ended_total", outcome="Lost") == 2
    # The next job does not wait for another one of its kind.
    assert stage.pools._has_failed_lately("digest")


def test_a_pool_that_starts_for_too_long_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(JobPhase.STARTING, monkeypatch)
    pools = [stage.pool.record()]
    assert stage.pools._alive("lake", pools) == {NAME}
    monkeypatch.setattr(pools_module, "START_S", -1.0)
    assert stage.pools._alive("lake", pools) == set()
    assert not stage.pool.record().is_open


def test_what_a_pool_does_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    for name in "bcd":
        assert stage.pool.patch(post(name, job()))
    for state in ("", "RUNNING"):
        stage.applications.observe(None, application(state))
    stage.applications.observe(None, application("RUNNING", "TableCompaction", "tandem-pool-other"))
    stage.applications.observe(None, application("", name="tandem-pool-digest-2"))
    for name in "abc":
        assert stage.runner.status(name).phase is JobPhase.STARTING
    for name in "ab":
        assert stage.pool.patch(report_begun(name, job()))
    monkeypatch.setattr(pools_module, "_FRESH_S", -1.0)
    for name in "ab":
        assert stage.runner.status(name).phase is JobPhase.RUNNING
    pools, jobs = stage.pools.counts()
    assert pools == {"Running": 1, "Starting": 1}
    assert jobs == {"Running": 2, "Waiting": 1}
    ends = {"a": PooledEnd(code=0), "b": PooledEnd(code=1, message="failed: OutOfMemory")}
    for name, end in ends.items():
        assert stage.pool.patch(report_end(name, job(), end))
        for _ in range(2):
            stage.runner.status(name)
        stage.runner.stop(name)
    stage.runner.stop("c")
    stage.runner.status("d")
    del stage.maps.there[NAME]
    for _ in range(2):
        stage.runner.status("d")
    found = {
        outcome: counted(stage, "pooled_jobs_ended_total", outcome=outcome)
        for outcome in ("Succeeded", "Failed", "Stopped", "Lost")
    }
    assert found == {"Succeeded": 1, "Failed": 1, "Stopped": 1, "Lost": 1}
    assert not stage.pools.counts()[1]


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        ("MODIFIED", "COMPLETED", "Finished"),
        ("MODIFIED", "FAILED", "Failed"),
        ("DELETED", "RUNNING", "Deleted"),
        ("gone", "", "Deleted"),
    ],
)
def test_the_end_of_a_pool_is_counted_once(
    kind: str, state: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    stage.applications.observe(None, application("RUNNING"))
    if kind == "gone":  # a call finds it so before the watch reports it
        stage.applications.forget("lake", NAME)
    else:
        stage.applications.observe(kind, application(state))
    for again in ("MODIFIED", "DELETED"):
        stage.applications.observe(again, application("COMPLETED"))
    assert counted(stage, "job_pools_ended_total", reason=reason) == 1
    other = {"Finished", "Failed", "Deleted", "NotStarted"} - {reason}
    assert not sum(counted(stage, "job_pools_ended_total", reason=each) for each in other)


def test_a_pool_that_had_ended_before_the_operator_began_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    stage.applications.observe(None, application("COMPLETED"))
    stage.applications.observe("DELETED", application("COMPLETED"))
    assert not counted(stage, "job_pools_ended_total", reason="Finished")
    assert not counted(stage, "job_pools_ended_total", reason="Deleted")


def test_the_age_of_a_pool_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's clock that jumps by a day makes no live pool one that hangs."""
    stage = Stage(JobPhase.RUNNING, monkeypatch)
    stage.pool.body["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    pools = stage.pools._list_all("lake")
    stage.pools._note_listed("lake", pools)
    stage.pools._sweep("lake", pools)
    assert NAME in stage.maps.there
    ticks = time.monotonic() + OVERDUE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: ticks)
    stage.pools._sweep("lake", pools)
    assert NAME not in stage.maps.there
