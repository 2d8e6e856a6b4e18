"""The operator's side of a job pool, without a cluster: pools that hang, and what is not ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kube.test_job_pool_rules import ConfigMap, job
from tandem.errors import ClusterUnavailable, Reason
from tandem.jobs.pool.formats import PooledEnd
from tandem.jobs.pool.records import PoolRecord, post, report_begun, report_end
from tandem.jobs.pool.rules import LEFT_S, OVERDUE_S, PoolRules
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.client.api import ApiError, Invalid, NotFound
from tandem.kube.controllers.operation.spark_jobs import ApplicationCache
from tandem.kube.job_pool import pools as pools_module
from tandem.kube.job_pool import runner as runner_module
from tandem.kube.job_pool.config_maps import ConfigMaps
from tandem.kube.job_pool.pools import JobPools
from tandem.kube.job_pool.runner import PooledRunner
from tandem.spark.application.manifest import JobOwner, JobPlacement, KubeflowApplications

Json = dict[str, Any]
NAME = "tandem-pool-digest-1"
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
        self.maps = Maps()
        none: Any = None
        self.pools = JobPools(
            none, none, KubeflowApplications(), ApplicationCache(), PoolRules(slots=2)
        )
        vars(self.pools)["_maps"] = self.maps
        self.phases = {NAME: phase}

        class Applications:
            def status(_, name: str) -> JobStatus:  # noqa: N805
                return JobStatus(self.phases.get(name, JobPhase.UNKNOWN))

        monkeypatch.setattr(self.pools, "_runner", lambda *_: Applications())
        placement = JobPlacement(JobOwner("v1", "TableCompaction", "m", "u"), "lake")
        self.runner = PooledRunner(Own(), self.pools, placement)
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
    monkeypatch.setattr(pools_module, "_age_s", lambda _: age_s)
    stage.pools._sweep("lake", [other.record()])
    assert (name in stage.maps.there) == stays
