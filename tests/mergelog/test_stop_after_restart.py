"""A stop request that meets the next process of a statement, before that one has planned: it
reaches the merge that the dead process began for the statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from mergelog.orders import Orders
from mergelog.test_statements_see_the_log import UPDATE
from support.documents import document
from support.jobs.quick_jobs import QuickJobs
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from tandem.delta.log.delta_log import DeltaLog
from tandem.operations.attempt import garbage
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import Point, StopRequest
from tandem.operations.model import Table
from tandem.spec.status import OperationStatus, Phase
from tandem.spec.update import TableUpdate


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
    assert orders.run(UPDATE).phase is Phase.SUCCEEDED


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
