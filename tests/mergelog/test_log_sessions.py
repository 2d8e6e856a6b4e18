"""Processes of operations on a log: beside its making, after a restart, beside writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from mergelog.aged import TestClock
from mergelog.orders import STITCH, Orders, rows
from mergelog.test_upserts import UPDATE, VECTORS
from support.documents import document
from support.jobs.quick_jobs import QuickJobs
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.operations import garbage
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import Effect, Event, Point, StopRequest
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.operations.session.session import Session
from tandem.spec.status import OperationStatus, Phase
from tandem.spec.update import TableIngest, TableUpdate
from tandem.storage import open_store
from tandem.storage.local import LocalStore
from tandem.storage.store import ObjectInfo

# An ingest whose processes open it before and after the log of its table is made: whatever their
# steps, its rows are loaded once.


LOADED = range(2, 5)


class Lake(Orders):
    """A table without a log, and a source."""

    def __init__(self, folder: Path) -> None:
        write_deltalake(str(folder), rows(range(3), "base", 1), configuration=VECTORS)
        super().__init__(folder)
        self.jobs = QuickJobs()
        source = self.source(rows(LOADED, "loaded", 2))
        self.resource = TableIngest.model_validate(
            document("TableIngest", "load", {"tableRef": {"name": "orders"}, "source": source})
        )

    def open(self) -> Session:
        store = open_store(self.location)
        table = Table(store, DeltaLog(store), "LakeTable/orders")
        return open_session(
            self.resource, table, self.ports(self.jobs), ExecutionOptions(poll_ms=1)
        )

    def make_log(self) -> None:
        settings = mergelog.LogSettings(("id",))
        assert mergelog.ensure_log(self.log, settings, now_ms=0, nonce="made meanwhile")

    def finish(self, session: Session) -> OperationStatus:
        return finish(session, self.resource, self.ports(self.jobs))

    def loads(self) -> tuple[int, int]:
        """How often the rows were loaded into the base table, and into the log."""
        base = self.base().count((3, 2, "loaded"))
        instants = [
            version
            for version in range(1, self.log.snapshot().version + 1)
            if any(self.log.log.commit(version).adds)  # type: ignore[union-attr]
        ]
        return base, len(instants)

    def end(self) -> None:
        """Other processes follow until one reports the end."""
        for _ in range(4):
            status = self.finish(self.open())
            if status.phase is Phase.SUCCEEDED:
                break
        assert status.phase is Phase.SUCCEEDED, status
        assert sum(self.loads()) == 1, self.loads()
        assert {row[0] for row in self.view()} == set(range(5))
        assert self.finish(self.open()).result == status.result


def until(session: Session, point: Point) -> None:
    while session.next_effect is None or session.next_effect.point is not point:
        assert session.advance()


def test_one_that_opened_before_the_log_sees_that_another_has_begun_on_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "t")
    early = lake.open()
    lake.make_log()
    assert lake.finish(lake.open()).phase is Phase.SUCCEEDED
    assert lake.loads() == (0, 1)
    assert lake.finish(early).conditions[0].reason == "Abandoned"
    assert lake.loads() == (0, 1)
    lake.end()


@pytest.mark.parametrize("point", [Point.START_JOB, Point.POLL_JOB, Point.PUT_COMMIT])
def test_one_that_opens_after_the_log_leaves_it_to_one_that_has_a_plan(
    tmp_path: Path, point: Point
) -> None:
    lake = Lake(tmp_path / "t")
    early = lake.open()
    lake.make_log()
    late = lake.open()
    until(early, point)
    assert lake.finish(late).conditions[0].reason == "Abandoned"
    lake.finish(early)
    lake.end()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_their_steps_the_rows_are_loaded_once(tmp_path: Path, seed: int) -> None:
    """Some processes die in between."""
    chance = random.Random(seed)
    lake = Lake(tmp_path / "t")
    at_work = [lake.open() for _ in range(chance.randint(1, 2))]
    for _ in range(chance.randint(0, 8)):
        chance.choice(at_work).advance()
    lake.make_log()
    at_work += [lake.open() for _ in range(chance.randint(1, 2))]
    while at_work:
        session = chance.choice(at_work)
        if chance.random() < 0.03 or not session.advance():
            session.close()
            at_work.remove(session)
    lake.end()


# A stop request that meets the next process of a statement, before that one has planned: it
# reaches the merge that the dead process began for the statement.


@dataclass
class _Jobs(QuickJobs):
    """Jobs that outlive the process that started them, as in a cluster."""

    stopped: list[str] = field(default_factory=list)

    def stop(self, name: str) -> None:
        self.stopped.append(name)


def _restarted(
    orders: Orders,
    jobs: _Jobs,
    request: StopRequest | None,
    *,
    steps: int = 0,
    started_ms: int | None = None,
    **spec: Any,
) -> OperationStatus:
    """The statement in another process, which is asked to stop after some steps."""
    resource = TableUpdate.model_validate(
        document("TableUpdate", "it", {"tableRef": {"name": "orders"}, **UPDATE, **spec})
    )
    table = Table(orders.store, DeltaLog(orders.store), "LakeTable/orders")
    ports = orders.ports(jobs)
    session = open_session(
        resource, table, ports, ExecutionOptions(poll_ms=1), started_ms=started_ms
    )
    for _ in range(steps):
        assert session.advance()
    if request is not None:
        session.request_stop(request)
    return finish(session, resource, ports)


def _died(orders: Orders, jobs: _Jobs, point: Point = Point.START_JOB, **spec: Any) -> None:
    """A process of the statement that dies in the merge before it."""
    with pytest.raises(ProcessDied):
        orders.run({**UPDATE, **spec}, StrikeOnce(point, Fault.DIE_AFTER), jobs=jobs)
    assert garbage.unfinished(orders.store)


@pytest.mark.part(3)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (StopRequest.INTERRUPT, "Interrupted"),
        (StopRequest.CANCEL, "Cancelled"),
        (StopRequest.SUSPEND, "Suspended"),
    ],
)
def test_a_stop_request_ends_the_merge_that_was_begun(
    orders: Orders, request_: StopRequest, reason: str, steps: int
) -> None:
    jobs = _Jobs()
    expected = orders.view()
    _died(orders, jobs)
    status = _restarted(orders, jobs, request_, steps=steps)
    assert status.conditions[0].reason == reason, status
    assert not garbage.unfinished(orders.store)
    assert [job.name for job in jobs.started] == jobs.stopped
    assert orders.view() == expected
    orders.do(UPDATE)


def test_a_suspended_spec_ends_it_too(orders: Orders) -> None:
    jobs = _Jobs()
    _died(orders, jobs)
    status = _restarted(orders, jobs, None, suspend=True)
    assert status.phase is Phase.SUSPENDED, status
    assert not garbage.unfinished(orders.store)
    assert len(jobs.stopped) == 1


def test_a_deadline_that_has_passed_ends_it_too(orders: Orders) -> None:
    jobs = _Jobs()
    _died(orders, jobs, activeDeadlineSeconds=600)
    status = _restarted(orders, jobs, None, started_ms=0, activeDeadlineSeconds=600)
    assert status.conditions[0].reason == "DeadlineExceeded", status
    assert not garbage.unfinished(orders.store)
    assert len(jobs.stopped) == 1


def test_a_merge_that_has_committed_is_recorded_and_the_statement_stops(orders: Orders) -> None:
    jobs = _Jobs()
    _died(orders, jobs, Point.PUT_COMMIT)
    status = _restarted(orders, jobs, StopRequest.CANCEL)
    assert status.conditions[0].reason == "Cancelled", status
    assert not garbage.unfinished(orders.store)
    assert len(jobs.stopped) == 1


def test_without_a_merge_that_was_begun_a_stop_request_opens_nothing(orders: Orders) -> None:
    jobs = _Jobs()
    status = _restarted(orders, jobs, StopRequest.CANCEL)
    assert status.conditions[0].reason == "Cancelled", status
    assert not jobs.stopped


# Operations on a log beside writers that commit first, again and again: a lost round costs as few
# requests as one of a writer, so that they lose no more often than a writer does.


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
    monkeypatch.setattr(
        orders, "ports", lambda _=None: Ports(FileJobs(QuickJobs()), clock=TestClock())
    )
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
    monkeypatch.setattr(orders, "ports", lambda _=None: Ports(FileJobs(QuickJobs()), clock=clock))
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
