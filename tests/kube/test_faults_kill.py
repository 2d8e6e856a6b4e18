"""SIGKILL of a real operator process at every named point of the engine, through API server and
etcd: the next one takes up what it left.

Here one of four points is struck, before or after, with one kind of operation; `make matrix`
strikes all of them so, and `make storm` tries the whole product, lost answers included. What each
chain must show at its end: every operation happened once, every version is explained by them, and
nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs
from kube.kill_chain import REACHED, Chain, Link, links_for
from kube.kube_scenarios import World
from kube.ledger import Ledger
from support.cases import PLAIN
from support.cluster.operator_process import Blow, ProcessStarter, starter
from support.jobs import quick_lake
from support.some import some
from tandem.operations.machine.events import Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


@pytest.fixture
def chain(cluster: Cluster, operators: ProcessStarter, tmp_path: Path) -> Iterator[Chain]:
    world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
    with world.dev(jobs):
        yield Chain(world, operators, Ledger(quick_lake.make(tmp_path)), jobs)
    operators.kill_all()


def kind_at(number: int, point: Point) -> str:
    """Each kind in turn; only statements are evaluated in rounds."""
    return "update" if point is Point.REQUEST_ROUND else PLAIN[number % len(PLAIN)]


@pytest.mark.parametrize("part", some(range(4), every=4))
def test_the_operator_is_killed_at_every_point(chain: Chain, part: int) -> None:
    for number, point in enumerate(REACHED):
        if number % 4 == part:
            kind = kind_at(number // 4, point)
            chain.strike_all(tuple(links_for(point, kind, after=number % 8 < 4)))
    chain.finish()


@pytest.mark.matrix
def test_the_operator_is_killed_while_it_recovers_from_a_kill(chain: Chain) -> None:
    """Again and again at the same place of the same operation."""
    chain.strike(Link("update", Blow(Point.WRITE_SIDECARS)))
    for _ in range(2):
        chain.strike(Link("", Blow(Point.WRITE_SIDECARS, after=True)))
    chain.strike(Link("", Blow(Point.PUT_COMMIT, after=True)))
    chain.strike(Link("", Blow(Point.FIND_COMMIT)))
    chain.finish()
