"""Operations on a log beside writers that commit first, again and again: a lost round costs as few
requests as one of a writer, so that they lose no more often than a writer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mergelog.aged import TestClock
from mergelog.orders import STITCH, Orders, rows
from support.jobs.quick_jobs import QuickJobs
from tandem import mergelog
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.spec.status import Phase
from tandem.storage.local import LocalStore
from tandem.storage.store import ObjectInfo

LOST = 20
PUTS = "_tandem/log/_delta_log/"


class RacedStore(LocalStore):
    """Another writer commits to the log before each of the next puts. `requests` are those since
    the first of them."""

    def __init__(self, folder: Path, race: Callable[[], object]) -> None:
        super().__init__(folder.as_uri())
        self.race = race
        self.left = 0
        self.requests: list[str] = []

    def get(self, path: str) -> bytes:
        self.requests.append(f"get {path}")
        return super().get(path)

    def head(self, path: str) -> ObjectInfo:
        self.requests.append(f"head {path}")
        return super().head(path)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.requests.append(f"list {prefix}")
        return super().list(prefix, start_after=start_after)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if path.startswith(PUTS) and self.left:
            if self.left == LOST:
                self.requests.clear()
            self.left -= 1
            self.race()
        self.requests.append(f"put {path}")
        super().put_if_absent(path, data)


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", ["log compaction", "upsert"])
def test_a_lost_round_is_few_requests_and_needs_no_other_effect(
    orders: Orders, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A put is repeated at once for some seconds, however slow this machine is.
    monkeypatch.setattr(orders, "ports", lambda _=None: Ports(QuickJobs(), clock=TestClock()))
    spec: dict[str, Any] = STITCH
    if kind == "upsert":
        spec = {"upsert": {"source": orders.source(rows(range(30, 32), "mine", 40))}}
    puts: list[int] = []
    with mergelog.LogWriter(orders.log, "busy", pause=lambda _: None) as writer:

        def race() -> None:
            batch = (writer.last_batch or 0) + 1
            writer.append(rows(range(50, 51), "busy", batch), batch=batch)

        store = RacedStore(orders.folder, race)
        orders.store = store

        def count(effect: Effect, call: Callable[[], Event]) -> Event:
            if effect.point is Point.PUT_COMMIT:
                store.left = LOST if not puts else 0
                puts.append(effect.version)
            return call()

        status = orders.run(spec, count)
    assert status.phase is Phase.SUCCEEDED, status
    assert len(puts) == 1
    assert store.left == 0
    last = max(at for at, call in enumerate(store.requests) if call.startswith(f"put {PUTS}"))
    # The put, a look whose commit is there, the newest version, and what is new in it.
    assert last <= 5 * LOST
    assert status.result is not None
    assert status.result.version == puts[0] + LOST
    view = {row[0] for row in orders.view()}
    assert 50 in view
    assert (30 in view) is (kind == "upsert")


def test_a_full_round_leads_to_a_put_however_busy_the_writers_are(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is repeated at once has lost for too long. Writers commit in each full round, too."""
    clock = TestClock()
    monkeypatch.setattr(orders, "ports", lambda _=None: Ports(QuickJobs(), clock=clock))
    rounds: list[Point] = []
    with mergelog.LogWriter(orders.log, "busy", pause=lambda _: None) as writer:

        def race() -> None:
            batch = (writer.last_batch or 0) + 1
            writer.append(rows(range(50, 51), "busy", batch), batch=batch)

        def late() -> None:
            race()
            clock.pass_days(1)

        store = RacedStore(orders.folder, late)
        orders.store = store

        def beside(effect: Effect, call: Callable[[], Event]) -> Event:
            if effect.point is Point.PUT_COMMIT:
                store.left = 2 if Point.PUT_COMMIT not in rounds else 0
                if not store.left:
                    race()
            rounds.append(effect.point)
            assert len(rounds) < 100
            event = call()
            if effect.point is Point.RECONCILE:
                race()
            return event

        status = orders.run(STITCH, beside)
    assert status.phase is Phase.SUCCEEDED, status
    first = rounds.index(Point.PUT_COMMIT)
    assert rounds.count(Point.PUT_COMMIT) == 2
    assert rounds[first + 1 :].count(Point.RECONCILE) == 1
