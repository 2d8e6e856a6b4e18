"""The clock of the operator's machine, or of etcd's, jumps while operations run and tables are
cleaned. No lock, no claim and no order of commits depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kube.clocks import ShiftedClock
from kube.gates import GatedQuickJobs
from kube.kube_scenarios import World
from kube.ledger import Ledger
from support.cluster.etcd_clock import DAY_S, start_moved_etcd
from support.jobs import quick_lake
from tandem.operations.machine.events import Effect, Event

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

DAY_MS = 24 * 3600 * 1000
JUMPS = {"forwards": (40, 80), "backwards": (-40, -80), "to and fro": (40, -40, 0)}
"""Days ahead, in turn: longer than any retention."""


class Jumping:
    """Moves the clock before each effect of any operation."""

    def __init__(self, clock: ShiftedClock, days: tuple[int, ...]) -> None:
        self._clock, self._days, self._turn = clock, days, 0

    def __call__(self, _effect: Effect, call: Callable[[], Event]) -> Event:
        self._turn += 1
        self._clock.ahead_ms = self._days[self._turn % len(self._days)] * DAY_MS
        return call()


@pytest.mark.part(3)
@pytest.mark.parametrize("how", JUMPS)
def test_the_operators_clock_jumps(cluster: Cluster, tmp_path: Path, how: str) -> None:
    clock = ShiftedClock()
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    world = World.make(cluster, tmp_path)
    with (
        world.dev(jobs),
        world.operator(Jumping(clock, JUMPS[how]), clock=clock, settings={"clean_s": 0.0}),
    ):
        table = world.adopt(ledger.lake)
        gate = jobs.hold("rewrite")
        applied = [table.apply(ledger.make("compaction", backoffLimit=3))]
        gate.reached()
        ledger.append()
        applied += [table.apply(ledger.make(kind)) for kind in ("update", "delete", "ingest")]
        gate.go()
        for each in applied:
            each.reaches("Succeeded", "Superseded")
        ledger.assert_serial()
        world.assert_nothing_left_behind(table)


@pytest.mark.matrix
def test_the_clock_of_etcd_jumps(cluster: Cluster, tmp_path: Path) -> None:
    """A day ahead, a day behind, and back, while operations hold locks and wait for them; the last
    time, etcd starts again in between. The operator leads all the time."""
    jobs, ledger = GatedQuickJobs(), Ledger(quick_lake.make(tmp_path))
    with start_moved_etcd() as etcd:
        world = World.make(cluster, tmp_path, (etcd.member.endpoint,))
        with world.dev(jobs), world.operator(in_pod=True):
            table = world.adopt(ledger.lake)
            for ahead in (DAY_S, -DAY_S, 0):
                gate = jobs.hold("rewrite")
                ledger.append()
                holds = table.apply(ledger.make("compaction", backoffLimit=0))
                gate.reached()
                ledger.append()
                waits = table.apply(ledger.make("compaction", backoffLimit=0))
                waits.wait(lambda status: "WaitingForLock" in str(status))
                held = world.etcd.locks().keys()
                if ahead:
                    etcd.move(ahead)
                else:
                    etcd.member.kill()
                    etcd.set_ahead(ahead)
                    etcd.member.start()
                assert world.etcd.locks().keys() == held
                gate.go()
                for each in (holds, waits):
                    each.reaches("Succeeded", "Superseded")
            ledger.assert_serial()
            world.assert_nothing_left_behind(table)
    assert world.restarts == []
