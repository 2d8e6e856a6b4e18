"""The operator's side of job pools, killed at each of its calls, and two operators at once: no job
stays without a pool, and no pool without an application.

The calls of the API server are simulated; its rules are those of `test_job_pool_rules.ConfigMap`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from kube.test_job_pool_rules import ConfigMap
from tandem.errors import ClusterUnavailable
from tandem.jobs.pool import LEFT_S, PoolRecord, PoolRules
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.json_types import Json
from tandem.kube.client.api import Api, ApiError, Forbidden, Unavailable
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.job_pool import runner as runner_module
from tandem.kube.job_pool.config_maps import ConfigMaps, PoolsUnusable
from tandem.kube.job_pool.pools import JobPools
from tandem.kube.job_pool.runner import PooledRunner
from tandem.kube.metrics.collectors import Metrics
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement
from tandem.spec.labels import JOB_POOL_LABEL

RULES = PoolRules(slots=2)
PLACEMENT = JobPlacement(JobOwner("v1", "TableCompaction", "m", "u"), "lake", secret_name="keys")
SETTINGS = ApplicationSettings()
ACCOUNT = replace(PLACEMENT, secret_name=None, service_account="one")


class Killed(BaseException):
    """The process ends here."""


class Cluster:
    """ConfigMaps and applications of pools, for all operators. Each call is one step.

    Attributes:
        kill: called before and after each step, in the operator's thread.
    """

    def __init__(self) -> None:
        self.maps: dict[str, ConfigMap] = {}
        self.applications: dict[str, JobPhase] = {}
        self.secret = "1"
        self.kill: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def step(self, call: Callable[[], Any]) -> Any:
        self.kill()
        with self._lock:
            answer = call()
        self.kill()
        return answer

    # As ConfigMaps

    def list(self, _: str, labels: str) -> Sequence[PoolRecord]:
        digest = labels.partition("=")[2]
        found: Sequence[PoolRecord] = self.step(
            lambda: [
                each.record()
                for each in self.maps.values()
                if digest in ("", each.body["metadata"]["labels"][JOB_POOL_LABEL])
            ]
        )
        return found

    def create(self, _: str, body: Json) -> PoolRecord:
        def call() -> PoolRecord:
            made = ConfigMap()
            name = body["metadata"]["name"]
            made.body = {**body, "metadata": {**body["metadata"], **made.body["metadata"]}}
            made.body["metadata"] |= {**body["metadata"], "uid": name, "resourceVersion": "1"}
            assert name not in self.maps
            self.maps[name] = made
            return made.record()

        found: PoolRecord = self.step(call)
        return found

    def secret_version(self, *_: str) -> str:
        return str(self.step(lambda: self.secret))

    def get(self, _: str, name: str) -> PoolRecord | None:
        found: PoolRecord | None = self.step(
            lambda: self.maps[name].record() if name in self.maps else None
        )
        return found

    def patch(self, _: str, name: str, patch: Sequence[Json] | Mapping[str, Any]) -> bool:
        def call() -> bool:
            there = self.maps.get(name)
            if there is None:
                return False
            if isinstance(patch, Mapping):
                there.merge(patch)
                return True
            return there.patch(patch)

        return bool(self.step(call))

    def delete(self, _: str, pool: PoolRecord) -> None:
        def call() -> None:
            self.maps.pop(pool.name, None)
            self.applications.pop(pool.name, None)  # by the garbage collector

        self.step(call)

    # As ApplicationRunner

    def create_application(self, body: Json) -> None:
        def call() -> None:
            name = body["metadata"]["name"]
            if name in self.maps:  # else the garbage collector takes it away
                self.applications[name] = JobPhase.STARTING

        self.step(call)

    def status(self, name: str) -> JobStatus:
        return JobStatus(self.step(lambda: self.applications.get(name, JobPhase.UNKNOWN)))

    def stop(self, name: str) -> None:
        self.step(lambda: self.applications.pop(name, None))

    # What tests look at

    def pools_of(self, job: str) -> tuple[str, ...]:
        return tuple(name for name, each in self.maps.items() if job in each.record().jobs)


class Applications:
    def __init__(self, cluster: Cluster) -> None:
        self.create, self.status = cluster.create_application, cluster.status
        self.stop = cluster.stop


class Own:
    """Jobs that have applications of their own."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, request: JobRequest) -> None:
        self.started.append(request.name)

    def status(self, name: str) -> JobStatus:
        return JobStatus(JobPhase.RUNNING if name in self.started else JobPhase.UNKNOWN)

    def stop(self, name: str) -> None:
        pass


class Operator:
    """A process: what it knows is gone with it."""

    def __init__(self, cluster: Cluster, settings: ApplicationSettings = SETTINGS) -> None:
        none: Any = None
        self.pools = JobPools(
            none, none, KubeflowApplications(settings), ApplicationCache(), RULES, Metrics()
        )
        vars(self.pools)["_maps"] = cluster
        vars(self.pools)["_runner"] = lambda *_: Applications(cluster)
        self.own = Own()

    def runner(self, placement: JobPlacement = PLACEMENT) -> PooledRunner:
        """As each session of an operation has one."""
        return PooledRunner(self.own, self.pools, placement, RULES)


def request(name: str) -> JobRequest:
    return JobRequest(name, "rewrite", "s3://lake/t", "job.json", attempt=1, operation_id=name)


class Kill:
    """Kills at the given step, counted from 0."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def killed_at(at: int, cluster: Cluster, work: Callable[[], None]) -> bool:
    """Whether the work was killed before it was done."""
    cluster.kill = Kill(at)
    try:
        work()
    except Killed:
        return True
    finally:
        cluster.kill = lambda: None
    return False


def every_step(run: Callable[[int], bool]) -> int:
    """Run until no kill comes any more; how many steps there were."""
    at = 0
    while run(at):
        at += 1
    return at


def test_an_operator_killed_at_each_step_of_a_start() -> None:
    def run(at: int) -> bool:
        cluster = Cluster()
        first = Operator(cluster)
        was_killed = killed_at(at, cluster, lambda: first.runner().start(request("a")))
        # The next one does not know whether the job was posted. It starts it, and another one.
        second = Operator(cluster)
        runner = second.runner()
        assert runner.status("a").phase in {JobPhase.STARTING, JobPhase.UNKNOWN}
        again = second.runner()
        for each in (again, second.runner()):
            each.start(request("a"))
        again.start(request("b"))
        assert not second.own.started
        (pool,) = cluster.pools_of("a")
        assert cluster.pools_of("b") == (pool,)
        assert again.status("a").phase is JobPhase.STARTING
        # One that has no application takes no jobs, and is swept.
        others = [each.record() for name, each in cluster.maps.items() if name != pool]
        assert len(others) <= 1
        assert not any(each.jobs for each in others)
        vars(second.pools)["_age_s"] = lambda *_: LEFT_S + 1
        again.start(request("c"))
        assert set(cluster.maps) == {pool} | (cluster.applications.keys() - {pool})
        return was_killed

    assert every_step(run) > 8


@pytest.mark.parametrize("begun", [False, True])
def test_an_operator_killed_at_each_step_of_a_stop(begun: bool) -> None:
    def run(at: int) -> bool:
        cluster = Cluster()
        first = Operator(cluster)
        runner = first.runner()
        runner.start(request("a"))
        (pool,) = cluster.pools_of("a")
        cluster.applications[pool] = JobPhase.RUNNING
        there = cluster.maps[pool]
        if begun:
            there.merge({"data": {"begun.a": "", "end.a": '{"code":0}'}})
        else:  # its driver has ended before it could begin it
            cluster.applications[pool] = JobPhase.FAILED
        was_killed = killed_at(at, cluster, lambda: runner.stop("a"))
        second = Operator(cluster).runner()
        second.stop("a")
        assert not cluster.pools_of("a")
        assert not [key for key in there.body["data"] if key != "state"]
        return was_killed

    assert every_step(run) > 3


def test_two_operators_place_the_same_jobs_at_once() -> None:
    """One that has lost its lead and does not know it yet beside the next one: a job may be in two
    pools then, which is harmless, but it is in one, and all that are stopped are gone."""
    cluster = Cluster()
    operators = [Operator(cluster), Operator(cluster)]
    names = [f"job-{number}" for number in range(12)]
    together = threading.Barrier(2)
    failures: list[BaseException] = []

    def work(operator: Operator) -> None:
        try:
            together.wait(60)
            for name in names:
                operator.runner().start(request(name))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=[each]) for each in operators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    for name in names:
        assert 1 <= len(cluster.pools_of(name)) <= 2
    for operator in operators:
        for name in names:
            operator.runner().stop(name)
    assert not any(cluster.pools_of(name) for name in names)


def test_a_secret_that_changes_while_jobs_wait_has_another_pool() -> None:
    cluster = Cluster()
    operator = Operator(cluster)
    operator.runner().start(request("before"))
    cluster.secret = "2"
    operator.runner().start(request("after"))
    (old,), (new,) = cluster.pools_of("before"), cluster.pools_of("after")
    assert old != new
    # Its job stays where it is: it is neither moved nor started a second time.
    again = Operator(cluster).runner()
    again.start(request("before"))
    assert cluster.pools_of("before") == (old,)
    assert len(cluster.maps) == 2


OTHERS: dict[str, tuple[JobPlacement, dict[str, Any], ApplicationSettings]] = {
    "Secret": (replace(PLACEMENT, secret_name="other"), {}, SETTINGS),
    "no Secret": (replace(PLACEMENT, secret_name=None), {}, SETTINGS),
    "service account": (replace(ACCOUNT, service_account="other"), {}, SETTINGS),
    "namespace": (replace(PLACEMENT, namespace="other"), {}, SETTINGS),
    "template": (replace(PLACEMENT, template={"spec": {"driver": {"cores": 1}}}), {}, SETTINGS),
    "image": (PLACEMENT, {}, ApplicationSettings(image="other:2")),
    "storage options": (PLACEMENT, {"storage_options": {"region": "x"}}, SETTINGS),
    "locations": (PLACEMENT, {"allowed_locations": ("s3://lake/",)}, SETTINGS),
}


@pytest.mark.parametrize("what", OTHERS)
def test_jobs_that_differ_in_what_they_may_do_share_no_pool(what: str) -> None:
    cluster = Cluster()
    placement, fields, settings = OTHERS[what]
    first = ACCOUNT if what == "service account" else PLACEMENT
    Operator(cluster).runner(first).start(request("one"))
    Operator(cluster, settings).runner(placement).start(replace(request("two"), **fields))
    assert not set(cluster.pools_of("one")) & set(cluster.pools_of("two"))
    assert len(cluster.maps) == 2


def test_jobs_of_other_resources_and_tables_share_a_pool() -> None:
    cluster = Cluster()
    Operator(cluster).runner().start(request("one"))
    other = replace(PLACEMENT, owner=JobOwner("v1", "TableUpdate", "n", "v"), labels={"a": "b"})
    found = replace(request("two"), location="s3://lake/u", app="statement", input_bytes=7)
    Operator(cluster).runner(other).start(found)
    assert cluster.pools_of("one") == cluster.pools_of("two") != ()


@pytest.mark.parametrize("what", ["ConfigMap", "SparkApplication"])
def test_what_is_deleted_takes_no_job(what: str) -> None:
    cluster = Cluster()
    operator = Operator(cluster)
    runner = operator.runner()
    runner.start(request("a"))
    (pool,) = cluster.pools_of("a")
    if what == "ConfigMap":
        del cluster.maps[pool]
    del cluster.applications[pool]
    assert runner.status("a").phase is JobPhase.FAILED
    runner.stop("a")
    operator.runner().start(request("b"))
    assert pool not in cluster.pools_of("b")
    assert len(cluster.pools_of("b")) == 1


def test_a_job_that_no_pool_takes_starts_by_itself() -> None:
    """Each pool is closed by another client as soon as it is there."""
    cluster = Cluster()
    operator = Operator(cluster)
    patch = cluster.patch

    def closed(namespace: str, name: str, content: Sequence[Json]) -> bool:
        cluster.maps[name].merge({"data": {"state": "closed"}})
        return patch(namespace, name, content)

    vars(cluster)["patch"] = closed
    runner = operator.runner()
    runner.start(request("a"))
    assert operator.own.started == ["a"]
    with pytest.raises(PoolsUnusable):
        operator.pools.place(request("b"), PLACEMENT)
    assert runner.status("a").phase is JobPhase.RUNNING


def pools_refused(*_: object) -> Sequence[PoolRecord]:
    """As the right to list ConfigMaps is missing."""
    raise PoolsUnusable("configmaps is forbidden")


def test_a_job_of_an_earlier_operator_is_not_lost_while_pools_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    Operator(cluster).runner().start(request("a"))
    (pool,) = cluster.pools_of("a")
    second = Operator(cluster)
    runner = second.runner()
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "list", pools_refused)
        for _ in range(2):
            with pytest.raises(ClusterUnavailable, match="this job may be in one"):
                runner.status("a")
    # At once, not five minutes later: it does not count that they lately were refused.
    assert runner.status("a").phase is JobPhase.STARTING
    assert not second.own.started
    assert cluster.pools_of("a") == (pool,)


def test_what_has_an_application_waits_for_no_pools_and_what_is_gone_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rights for pools may never have been granted."""
    cluster = Cluster()
    monkeypatch.setattr(cluster, "list", pools_refused)
    operator = Operator(cluster)
    operator.runner().start(request("a"))
    runner = operator.runner()
    assert runner.status("a").phase is JobPhase.RUNNING
    with pytest.raises(ClusterUnavailable):
        runner.status("gone")
    monkeypatch.setattr(runner_module, "FIND_S", -1.0)
    assert runner.status("gone").phase is JobPhase.UNKNOWN


REFUSALS = {
    "a quota": Forbidden(403, "Forbidden", "exceeded quota: no-maps"),
    "a token": Forbidden(401, "Unauthorized", "Unauthorized"),
    "a queue": Unavailable(429, "TooManyRequests", "the server has too many requests"),
    "a webhook": Unavailable(500, "InternalError", 'failed calling webhook "down.example.com"'),
}


def _create_refused(error: ApiError) -> None:
    """A ConfigMap is created, from a thread, and the API server answers with the error."""

    class Refusing:
        async def create(self, *_: object) -> Json:
            raise error

    async def on_loop() -> None:
        maps = ConfigMaps(cast(Api, Refusing()), asyncio.get_running_loop())
        await asyncio.to_thread(maps.create, "lake", {})

    asyncio.run(on_loop())


@pytest.mark.parametrize("name", REFUSALS)
def test_a_pool_that_the_api_server_refuses_keeps_no_job_waiting(name: str) -> None:
    """It has an application of its own, and holds no locks until pools are taken again."""
    with pytest.raises(PoolsUnusable):
        _create_refused(REFUSALS[name])


def test_a_pool_of_which_it_is_not_known_whether_it_exists_is_tried_again() -> None:
    with pytest.raises(ClusterUnavailable):
        _create_refused(Unavailable(503, "ServiceUnavailable", "", unsure=True))
