"""`make storm`: every death of the operator that there is, and five hundred resources at once.

Each point of the engine × before, after, answer lost × each kind of operation, in an order that
the seed (STORM_SEED) gives: chains of operators on one table each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.gates import GatedQuickJobs
from kube.kill_chain import REACHED, Chain, Link, links_for
from kube.kube_scenarios import World
from kube.ledger import Ledger
from kube.many import many_at_once
from support.cases import PLAIN
from support.cluster.operator_process import ProcessStarter, starter
from support.jobs import quick_lake
from tandem.operations.machine.events import Point

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

SEED = int(os.environ.get("STORM_SEED", "1"))
PER_CHAIN = 20
NEVER_LOST = {Point.READ_TABLE, Point.PLAN, Point.AWAIT_LOCKS, Point.LOOK_UP_COMMIT}
"""Points whose effects change nothing, and whose answers only say what is there."""


def all_links() -> list[tuple[Link, ...]]:
    """What it takes for each death, shuffled."""
    found = []
    for point in REACHED:
        for kind in PLAIN:
            if point is Point.REQUEST_ROUND and kind != "update":
                continue  # the engine evaluates those rounds itself
            for after in (False, True):
                found.append(tuple(links_for(point, kind, after=after)))
            straight = len(found[-1]) == 1 and not found[-1][0].crowd
            if straight and point not in NEVER_LOST:
                found.append(tuple(links_for(point, kind, after=True, signal=0)))
    random.Random(SEED).shuffle(found)
    return found


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


@pytest.mark.parametrize("first", range(0, len(all_links()), PER_CHAIN))
@pytest.mark.timeout(900)
def test_an_operator_killed_at_every_point(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path, first: int
) -> None:
    world, jobs = World.make(cluster, tmp_path), GatedQuickJobs()
    with world.dev(jobs):
        chain = Chain(world, operators, Ledger(quick_lake.make(tmp_path)), jobs)
        for links in all_links()[first : first + PER_CHAIN]:
            chain.strike_all(links)
        chain.finish(limit_s=180)
    operators.kill_all()


@pytest.mark.timeout(900)
def test_five_hundred_resources_at_once(
    cluster: Cluster, operators: ProcessStarter, tmp_path: Path
) -> None:
    world = World.make(cluster, tmp_path)
    with world.dev(GatedQuickJobs()):
        child = operators.start(world.order()).ready()
        many_at_once(world, tmp_path, 500)
        child.stop()
