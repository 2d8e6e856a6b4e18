"""Runs one operation to its end in the calling thread, and returns its status."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.delta.log import maintenance
from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.log_table import MergeLog
from tandem.operations import garbage
from tandem.operations.kinds.batches import batch_of
from tandem.operations.kinds.time_column import ChunkWrites
from tandem.operations.machine.state import Limits, OperationState
from tandem.operations.model import Identity, Table
from tandem.operations.ports import Ports
from tandem.operations.registry import kind_of, left_before, log_of, table_of
from tandem.operations.session.options import Interceptor, PerformerOptions, passthrough
from tandem.operations.session.performer import Performer
from tandem.operations.session.recovery import (
    has_begun,
    has_ended,
    identify,
    is_recorded,
    may_count,
)
from tandem.operations.session.session import Session
from tandem.operations.status import shown_parts, status_of
from tandem.spec.common import LogUse, Operation
from tandem.spec.status import OperationStatus

_LOG = logging.getLogger(__name__)

OnStatus = Callable[[OperationStatus], None]


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """How to run an operation. `again` starts a new run of one that has ended; with
    `only_failed` not of one that has succeeded. `deadline_s`: `activeDeadlineSeconds` of operations
    that name none. `upgrade` enables deletion vectors on its table, before its first commit."""

    again: bool = False
    only_failed: bool = False
    plan_only: bool = False
    poll_ms: int = 300
    lock_wait_s: float = 1.0
    deadline_s: int | None = None
    interceptor: Interceptor = passthrough
    upgrade: Callable[[], None] | None = None

    def deadline_of(self, resource: Operation) -> int | None:
        """Seconds from its start to its commit; None for no limit."""
        own = resource.spec.active_deadline_seconds
        return self.deadline_s if own is None else own


def open_session(
    resource: Operation,
    table: Table,
    ports: Ports,
    execution: ExecutionOptions,
    on_status: OnStatus | None = None,
    *,
    started_ms: int | None = None,
    snapshot: Snapshot | None = None,
) -> Session:
    """A session that has only read the table yet, to determine the operation id.

    `started_ms` is when an earlier process started the operation: `activeDeadlineSeconds` and
    `status.startTime` count from there. A deadline that has passed by now ends the operation
    once it is known that it has not committed.

    `snapshot`, of any version of the table, saves reading the whole log: only what came after
    it is read.

    Raises: TableNotFound, NotMergeOnRead, StorageError.
    """
    lake = table
    table, latest, identity = _opened(resource, table, snapshot, execution)
    spec = resource.spec
    limits = Limits(
        backoff_limit=spec.backoff_limit,
        dry_run=spec.dry_run or execution.plan_only,
        suspended=spec.suspend and not execution.plan_only,
        poll_ms=execution.poll_ms,
        exclusive=resource.exclusive,
    )
    options = PerformerOptions(
        mode=resource.mode,
        lock_wait_s=execution.lock_wait_s,
        priority=resource.lock_priority,
        maintain=lambda table_, snapshot_: _maintain(table_, snapshot_, ports),
        begun_elsewhere=lambda: _begun_elsewhere(resource, lake, table, execution),
        written=ChunkWrites().since_read,
        upgrade=execution.upgrade,
    )
    kind = kind_of(resource, table)
    performer = Performer(identity, table, kind, ports, options, execution.interceptor)
    performer.work.latest = latest
    batch = batch_of(resource)
    performer.work.part = None if batch is None else batch.part
    deadline_s = execution.deadline_of(resource)
    start = ports.clock.now_ms() if started_ms is None else started_ms

    shown: object = None

    def watch(state: OperationState) -> None:
        nonlocal shown
        if on_status is None:
            return
        before, shown = shown, shown_parts(state)
        if shown != before or state.locks.waiting_since_ms:  # how long it waits is shown, too
            on_status(_status(state, identity, resource, start, ports.clock.now_ms()))

    def open_first(first: Operation, changed: Callable[[], None]) -> Session:
        # A run in progress is finished first; it may be that of an earlier process.
        last = identify(first, table, latest, again=False)
        # A batch happens once: if it has ended, that is reported.
        again = batch_of(first) is None and is_recorded(table, last.operation_id)
        options = replace(execution, again=again, only_failed=False)
        return open_session(
            first, table, ports, options, lambda _: changed(), started_ms=start, snapshot=latest
        )

    def open_left(changed: Callable[[], None]) -> Session | None:
        left = left_before(resource, table, identity, latest)
        return None if left is None else open_first(left, changed)

    return Session(
        performer,
        ports.clock,
        limits,
        started_ms=start,
        deadline_ms=None if deadline_s is None else deadline_s * 1000,
        watch=watch,
        identity=identity,
        open_first=open_first,
        open_left=open_left,
    )


def _opened(
    resource: Operation, table: Table, snapshot: Snapshot | None, execution: ExecutionOptions
) -> tuple[Table, Snapshot, Identity]:
    """The table that the operation works on, its latest version, and the operation's identity."""

    def identified(table: Table, snapshot: Snapshot | None) -> tuple[Table, Snapshot, Identity]:
        latest = table.log.snapshot() if snapshot is None else table.log.update(snapshot)
        again, only_failed = execution.again, execution.only_failed
        identity = identify(resource, table, latest, again=again, only_failed=only_failed)
        return table, latest, identity

    of = table_of(resource, table)
    if of is table:
        return identified(table, snapshot)
    found = identified(of, None)
    if resource.on_log or has_ended(of, found[1], found[2].operation_id):
        return found
    # One that began on the table before it had a log, or has ended there, must not begin again.
    before = identified(table, snapshot)
    last = before[2].operation_id
    if not has_begun(table, before[1], last):
        return found
    if not has_begun(of, found[1], found[2].operation_id):
        return before
    return before if may_count(table, before[1], last) else found


def _begun_elsewhere(
    resource: Operation, lake: Table, table: Table, execution: ExecutionOptions
) -> str:
    """Why an ingest must not go on with its plan on `table`; "" if it may.

    Processes that open it before and after the log is made work on different tables. Each first
    leaves a trace on its own, an identity on the log and a plan on the base table, and then looks
    for that of the other: at least one of them sees it, and gives up its attempt.
    """
    if resource.log_use is not LogUse.APPENDS:
        return ""
    if table is lake:
        if not MergeLog(lake.log).exists():
            return ""
        of = log_of(lake)
        latest = of.log.snapshot()
        last = identify(resource, of, latest, again=False).operation_id
        return "it has begun on the log" if has_begun(of, latest, last) else ""
    latest = lake.log.snapshot()
    last = identify(
        resource, lake, latest, again=execution.again, only_failed=execution.only_failed
    ).operation_id
    return "it has begun on the table" if may_count(lake, latest, last) else ""


def finish(session: Session, resource: Operation, ports: Ports) -> OperationStatus:
    """Drive a session to its end."""
    try:
        while session.advance():
            pass
    finally:
        session.close()
    return _status(
        session.shown, session.identity, resource, session.started_ms, ports.clock.now_ms()
    )


def _status(
    state: OperationState, identity: Identity, resource: Operation, started_ms: int, now_ms: int
) -> OperationStatus:
    return status_of(
        state,
        operation_id=identity.operation_id,
        generation=resource.metadata.generation,
        started_ms=started_ms,
        now_ms=now_ms,
    )


def _maintain(table: Table, snapshot: Snapshot, ports: Ports) -> None:
    try:
        due = maintenance.is_due(table.log, snapshot)
    except ValueError as error:
        # An invalid property: the operation has committed, and only the checkpoint is left out.
        _LOG.warning("%s: no checkpoint: %s", table.display, error)
        return
    if not due:
        return
    snapshot = table.log.update(snapshot)
    unfinished = garbage.uncommitted(garbage.unfinished(table.store), snapshot)
    reading = [pin.read_version for pin in unfinished]
    maintenance.maintain(
        table.log,
        snapshot,
        now_ms=ports.clock.now_ms(),
        in_use_from=min(reading, default=None),
    )
