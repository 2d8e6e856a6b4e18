"""An API server that refuses, forgets, lags, breaks off and is restarted. Operations end as if
nothing had been, each once, and write little more than in good times.

The faults come from a proxy before the real server (`support.cluster.api_proxy`), so that each
strikes a certain request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs
from kube.kube_scenarios import ENDED, Applied, Table, World
from kube.ledger import Ledger
from support.cluster.api_proxy import ApiProxy, CutAfter, CutBefore, Hold, Refuse, Rule, Slow
from support.cluster.api_server import own_cluster
from support.cluster.operator_process import Child, starter
from support.jobs import quick_lake
from support.some import every_case
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

STATUS = "tablecompactions/status"


@dataclass
class Stage:
    """An operator whose every request goes through a proxy; a table; jobs without Spark."""

    world: World
    proxy: ApiProxy
    ledger: Ledger
    table: Table
    jobs: GatedQuickJobs

    def apply(self, kind: str) -> Applied:
        if kind == "compaction":
            self.ledger.append()
        return self.table.apply(self.ledger.make(kind, backoffLimit=3))

    def one_of_each(self) -> list[Applied]:
        return [self.apply(kind) for kind in ("compaction", "update", "ingest")]

    def all_end_well(self, *applied: Applied) -> None:
        for each in applied:
            each.reaches("Succeeded", "Superseded")
        self.ledger.assert_serial()
        self.world.assert_nothing_left_behind(self.table)


@pytest.fixture(scope="module")
def proxied(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
            ) -> Iterator[tuple[World, ApiProxy, GatedQuickJobs]]:  # fmt: skip
    """One operator for all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("world")
    world, jobs = World.make(cluster, folder), GatedQuickJobs()
    with ApiProxy(cluster.operator_kubeconfig) as proxy:
        kubeconfig = str(proxy.kubeconfig(folder))
        with world.dev(jobs), world.operator(in_pod=True, kubeconfig=kubeconfig):
            yield world, proxy, jobs


@pytest.fixture
def stage(proxied: tuple[World, ApiProxy, GatedQuickJobs], tmp_path: Path) -> Iterator[Stage]:
    world, proxy, jobs = proxied
    ledger = Ledger(quick_lake.make(tmp_path))
    yield Stage(world, proxy, ledger, world.adopt(ledger.lake), jobs)
    proxy.end_rules()


Strike = Callable[[ApiProxy], list[Rule]]
REFUSED: dict[str, Strike] = {
    "status writes conflict": lambda p: [
        p.strike(Refuse(409), verb="patch", resource=STATUS, times=3)
    ],
    "status writes fail": lambda p: [p.strike(Refuse(500), verb="patch", resource=STATUS, times=3)],
    "too many requests": lambda p: [p.strike(Refuse(429, retry_after=1), times=3)],
    "creating the Spark application fails": lambda p: [
        p.strike(Refuse(503), verb="create", resource="sparkapplications", times=3)
    ],
    "deleting the Spark application fails": lambda p: [
        p.strike(Refuse(500), verb="delete", resource="sparkapplications", times=2)
    ],
    "events are refused": lambda p: [p.strike(Refuse(403), verb="create", resource="events")],
}
CUT: dict[str, Strike] = {
    f"{word} {verb} {resource}": lambda p, f=fault, v=verb, r=resource: [  # type: ignore[misc]
        p.strike(f(), verb=v, resource=r)
    ]
    for word, fault in (("before", CutBefore), ("after", CutAfter))
    for verb, resource in (
        ("create", "sparkapplications"),
        ("delete", "sparkapplications"),
        ("patch", STATUS),
        ("create", "events"),
    )
}


FAULTS = {**REFUSED, **CUT}
TOGETHER: dict[str, list[str]] = {
    # Of two rules for one request only the first one has an effect.
    "status writes fail": ["status writes fail"],
    "too many requests": ["too many requests"],
    "cut before": [name for name in CUT if name.startswith("before")],
    "cut after": [name for name in CUT if name.startswith("after")],
}
TOGETHER["refused"] = sorted(FAULTS.keys() - {name for each in TOGETHER.values() for name in each})
"""Faults that strike the same three operations."""
STRIKES = {name: [name] for name in FAULTS} if every_case() else TOGETHER


@pytest.mark.part(6)
@pytest.mark.parametrize("name", STRIKES)
def test_a_request_is_refused_or_its_answer_lost(stage: Stage, name: str) -> None:
    rules = [rule for fault in STRIKES[name] for rule in FAULTS[fault](stage.proxy)]
    applied = stage.one_of_each()
    stage.all_end_well(*applied)
    for rule in rules:
        rule.wait()
    # Lost answers make no second job.
    names = [request.name for request in stage.jobs.started]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", ["compaction", "update", "ingest"])
def test_a_resource_costs_few_writes(stage: Stage, kind: str) -> None:
    """Status, events, its Spark application: ten at most."""
    applied = stage.apply(kind)
    applied.succeeded()
    operation = applied.status["operationId"]
    about = [
        call
        for call in stage.proxy.writes()
        if call.about == applied.name or operation in call.about
    ]
    assert 4 <= len(about) <= 10, about
    stage.all_end_well(applied)


def test_everything_is_slow(stage: Stage) -> None:
    with stage.proxy.while_(Slow(0.15)):
        stage.all_end_well(*stage.one_of_each())


def test_watches_that_expire_miss_nothing(stage: Stage) -> None:
    """410 within a watch: it lists again and misses nothing."""
    assert stage.proxy.expire_watches() > 0
    stage.all_end_well(*stage.one_of_each())
    assert not stage.world.restarts


@pytest.mark.matrix
def test_watches_are_refused_as_gone(cluster: Cluster, tmp_path: Path) -> None:
    """410 in answer to a watch, which no API server of today says, kills kopf: the operator, or
    the next process of its pod, starts again and misses nothing."""
    world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
    ledger = Ledger(quick_lake.make(tmp_path))
    with (
        world.dev(jobs),
        starter(tmp_path) as operators,
        ApiProxy(cluster.operator_kubeconfig) as proxy,
    ):
        kubeconfig = str(proxy.kubeconfig(tmp_path))
        child = operators.start(world.order(kubeconfig=kubeconfig)).ready()
        stage = Stage(world, proxy, ledger, world.adopt(ledger.lake), jobs)
        refused = proxy.strike(Refuse(410), verb="watch", times=2)
        assert proxy.expire_watches() > 0
        refused.wait(2)

        def goes_on(operator: Child, applied: list[Applied]) -> Child:
            """The operator, or the next one if it dies before all have ended."""
            await_that(
                lambda: not operator.alive or all(each.phase in ENDED for each in applied),
                operator.text,
            )
            if operator.alive:
                return operator
            return operators.start(world.order(kubeconfig=kubeconfig)).ready()

        first = stage.one_of_each()
        child = goes_on(child, first)
        second = stage.one_of_each()
        child = goes_on(child, second)
        stage.all_end_well(*first, *second)
        child.kill()


def test_watches_break_off(stage: Stage) -> None:
    gate = stage.jobs.hold()
    compaction = stage.apply("compaction")
    gate.reached()
    assert stage.proxy.cut_watches() > 0
    gate.go()
    stage.all_end_well(compaction, *stage.one_of_each())


def test_watches_are_stale(stage: Stage) -> None:
    """What is applied is seen late; what is deleted, too. Then all of it at once."""
    stale = stage.proxy.strike(Hold(), verb="watch", times=None)
    assert stage.proxy.cut_watches() > 0
    stale.wait(3)
    applied = stage.one_of_each()
    doomed = stage.ledger.make("delete")
    stage.ledger.forget(doomed)
    deleted = stage.table.apply(doomed)
    deleted.delete()
    stale.end()
    stage.all_end_well(*applied)
    deleted.gone()


def test_a_watch_of_spark_applications_goes_silent(stage: Stage) -> None:
    """No event reports that the driver has died; a periodic read does. (Results are read from
    the table anyway.)"""
    gate = stage.jobs.hold("ingest")
    ingest = stage.apply("ingest")
    gate.reached()
    assert stage.proxy.freeze_watches("sparkapplications") > 0
    gate.go()
    stage.all_end_well(ingest)
    stage.proxy.cut_watches("sparkapplications")


def test_the_deletion_of_a_spark_application_was_missed(stage: Stage) -> None:
    """The next attempt begins once it is not in a list."""
    gate = stage.jobs.hold("ingest")
    ingest = stage.apply("ingest")
    application, _, _ = gate.reached().name.rsplit("-", 2)
    assert stage.proxy.freeze_watches("sparkapplications") > 0
    stage.world.space.delete("SparkApplication", application)
    gate.die()
    assert stage.proxy.expire_watches("sparkapplications") > 0
    assert ingest.succeeded().attempt == 2
    stage.all_end_well(ingest)


def test_the_server_is_away_for_a_while(stage: Stage) -> None:
    gate = stage.jobs.hold("rewrite")
    compaction = stage.apply("compaction")
    gate.reached()
    stage.proxy.close_door()
    gate.go()
    stage.proxy.open_door()
    stage.all_end_well(compaction, *stage.one_of_each())


def test_the_server_is_killed_and_restarted(tmp_path: Path) -> None:
    """For real: connections break, versions of resources remain."""
    with own_cluster() as cluster:
        world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
        ledger = Ledger(quick_lake.make(tmp_path))
        with world.dev(jobs), world.operator(in_pod=True):
            table = world.adopt(ledger.lake)
            gate = jobs.hold("statement")
            update = table.apply(ledger.make("update"))
            gate.reached()
            cluster.part("kube-apiserver").kill()
            gate.go()
            cluster.part("kube-apiserver").start()
            ingest = table.apply(ledger.make("ingest"))
            update.succeeded()
            ingest.succeeded()
            ledger.assert_serial()
            world.assert_nothing_left_behind(table)


def test_a_status_is_not_overwritten_by_the_loser_of_a_race(stage: Stage) -> None:
    """A status write whose answer hangs is not followed by an older one."""
    rule = stage.proxy.strike(Hold(), verb="patch", resource=STATUS)
    compaction = stage.apply("compaction")
    rule.wait()
    rule.end()
    stage.all_end_well(compaction)
    assert compaction.status["observedGeneration"] == 1
