"""`tandem run` and `tandem plan` as functions: order resources, run them, report on all of them.

A `LakeTable` comes before the operations that refer to it, and `dependsOn` orders operations;
otherwise they start together, each in its own thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import (
    BaseHistoryGap,
    BaseReplaced,
    InvalidSpec,
    NotMergeOnRead,
    Reason,
    TandemError,
)
from tandem.operations import adopt
from tandem.operations import adopt as tables
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import StopRequest
from tandem.operations.model import SourceAccess, Table
from tandem.operations.ports import Ports, SystemClock
from tandem.operations.session.session import Session
from tandem.operations.status import conditions, repeated
from tandem.spec.common import ResourceKey
from tandem.spec.resources import (
    AnyResource,
    LakeTable,
    Operation,
    ResourceOutcome,
    StatusObserver,
)
from tandem.spec.status import OperationStatus, Phase, ResourceStatus, TableStatus

GOOD_ENDS = frozenset({Phase.SUCCEEDED, Phase.SUPERSEDED})
_GLANCE_S = 0.2
_LATER = "deletion vectors are enabled once an operation has done its work"


@dataclass(frozen=True)
class RunOptions:
    """`parallel` operations at once, 0 for no limit. Without `ports`: this machine's clock and
    processes, locks inside this process, jobs by local Spark. `open_table` is how a LakeTable
    becomes a `Table`. `reads_sources`: sources are checked before a job starts."""

    ports: Ports | None = None
    parallel: int = 0
    again: bool = False
    plan_only: bool = False
    poll_ms: int = 300
    allowed_prefixes: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None
    probe: bool = True
    open_table: Callable[..., Table] = tables.open_table
    reads_sources: bool = False
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)


def run(
    resources: Sequence[AnyResource],
    options: RunOptions | None = None,
    *,
    observer: StatusObserver | None = None,
    cancel: threading.Event | None = None,
) -> list[ResourceOutcome]:
    """Run resources until they have ended; returns the outcomes in the order given.

    Args:
        observer: called from any thread whenever a status changes.
        cancel: once set, operations are requested to stop; they give up what has not committed,
            and are reported. A KeyboardInterrupt in the calling thread, however, is raised at
            once: running operations are then left as if the process had been killed.

    Raises: InvalidSpec before anything starts (circular `dependsOn`).
    """
    options = options or RunOptions()
    if options.ports is not None:
        return _Runner(resources, options, options.ports, observer, cancel).run()
    ports = local_ports()
    outcomes = _Runner(resources, options, ports, observer, cancel).run()
    # An interrupt leaves jobs as if this process had been killed: they end by themselves.
    ports.close()
    return outcomes


def plan(
    resources: Sequence[AnyResource],
    options: RunOptions | None = None,
    *,
    observer: StatusObserver | None = None,
) -> list[ResourceOutcome]:
    """What `run` would do. Changes nothing."""
    return run(resources, replace(options or RunOptions(), plan_only=True), observer=observer)


def local_ports() -> Ports:
    """The ports for this machine, with locks in this process and local Spark."""
    from tandem.spark.in_process import InProcessJobs  # slow imports
    from tandem.spark.local_spark import LocalSpark

    spark = LocalSpark()
    return Ports(jobs=InProcessJobs(spark), close=spark.close)


class _Runner:
    def __init__(
        self,
        resources: Sequence[AnyResource],
        options: RunOptions,
        ports: Ports,
        observer: StatusObserver | None,
        cancel: threading.Event | None,
    ) -> None:
        self._resources = {r.key: r for r in resources}
        self._options = options
        self._ports = ports
        self._observer = observer
        self._cancel = cancel or threading.Event()
        self._needs = {r.key: self._needs_of(r) for r in resources}
        _refuse_cycles(self._needs)
        self._outcomes: dict[ResourceKey, ResourceOutcome] = {}
        self._tables: dict[ResourceKey, Table] = {}
        self._snapshots: dict[ResourceKey, Snapshot] = {}
        """Of a table as it was adopted, for the first operation on it."""
        self._absent: set[ResourceKey] = set()
        self._upgrades: dict[ResourceKey, threading.Lock] = {}
        """Tables that are upgraded once an operation on them has done its work."""
        self._sessions: dict[ResourceKey, Session] = {}
        self._lock = threading.Lock()
        self._stopping = False

    def run(self) -> list[ResourceOutcome]:
        waiting = list(self._resources)
        running: dict[Future[ResourceOutcome], ResourceKey] = {}
        threads = self._options.parallel or max(1, len(waiting))
        pool = ThreadPoolExecutor(threads, thread_name_prefix="operation")
        try:
            while waiting or running:
                if self._cancel.is_set() and not self._stopping:
                    self._stop()
                self._start_ready(pool, waiting, running)
                done, _ = wait(running, timeout=_GLANCE_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._outcomes[running.pop(future)] = future.result()
        except BaseException:
            self._stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        return [self._outcomes[key] for key in self._resources]

    def _start_ready(
        self,
        pool: ThreadPoolExecutor,
        waiting: list[ResourceKey],
        running: dict[Future[ResourceOutcome], ResourceKey],
    ) -> None:
        for key in list(waiting):
            needs = self._needs[key]
            if any(need not in self._outcomes for need in needs) and not self._stopping:
                continue
            waiting.remove(key)
            resource = self._resources[key]
            bad = [n for n in needs if not self._ended_well(n)]
            if self._stopping:
                self._outcomes[key] = _failed(
                    resource, Reason.INTERRUPTED, "interrupted before it started"
                )
            elif bad and not self._options.plan_only:
                message = f"not started, since {_named(bad[0])} did not succeed"
                self._outcomes[key] = _failed(resource, Reason.WAITING_FOR_DEPENDENCY, message)
            elif bad and bad[0][0] == LakeTable.kind_name:
                message = f"not planned, since {_named(bad[0])} cannot be read"
                self._outcomes[key] = _failed(resource, Reason.WAITING_FOR_DEPENDENCY, message)
            else:
                running[pool.submit(self._run_one, resource)] = key

    def _ended_well(self, key: ResourceKey) -> bool:
        outcome = self._outcomes.get(key)
        return outcome is not None and outcome.status.phase in GOOD_ENDS

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
            for session in self._sessions.values():
                session.request_stop(StopRequest.INTERRUPT)

    def _run_one(self, resource: AnyResource) -> ResourceOutcome:
        try:
            if isinstance(resource, LakeTable):
                return self._run_table(resource)
            return self._run_operation(resource)
        except TandemError as error:
            return _failed(resource, error.reason, str(error))

    def _run_table(self, resource: LakeTable) -> ResourceOutcome:
        options = self._options
        table = options.open_table(
            resource, allowed_prefixes=options.allowed_prefixes, environ=options.environ
        )
        if options.reads_sources:
            access = SourceAccess.MAY_COME if options.plan_only else SourceAccess.FULL
            table = replace(table, source_access=access)
        waits = (
            not options.plan_only and self._has_operations(resource) and tables.must_upgrade(table)
        )
        if options.plan_only or waits:
            adopted = tables.preview(table)
        else:
            adopted = self._adopt(table, resource)
        with self._lock:
            self._tables[resource.key] = table
            if waits:
                self._upgrades[resource.key] = threading.Lock()
                adopted = replace(adopted, changed=_LATER)
            if adopted.snapshot is None:
                self._absent.add(resource.key)
            else:
                self._snapshots[resource.key] = adopted.snapshot
        return self._table_outcome(table, resource, adopted)

    def _has_operations(self, resource: LakeTable) -> bool:
        return any(resource.key in needs for needs in self._needs.values())

    def _adopt(self, table: Table, resource: LakeTable) -> tables.AdoptedTable:
        options, ports = self._options, self._ports
        adopted = tables.adopt(table, ports.clock, ports.nonces, probe=options.probe)
        if resource.spec.merge_on_read is not None:
            self._keep_fresh(table)
        return adopted

    def _upgrade(self, table: Table) -> None:
        """Upgrade a table that waits for it."""
        resource = table.spec
        assert resource is not None
        waiting = self._upgrades.get(resource.key)
        if waiting is None:
            return
        with waiting:
            if resource.key not in self._upgrades:
                return
            outcome = self._table_outcome(table, resource, self._adopt(table, resource))
            with self._lock:
                self._outcomes[resource.key] = outcome
                del self._upgrades[resource.key]

    def _make_log_first(self, first: Operation, table: Table) -> OperationStatus | None:
        """Upgrade a table that gets its log with it, if the operation can be planned; the status
        if it cannot."""
        resource = table.spec
        assert resource is not None
        waits = resource.key in self._upgrades and not first.spec.dry_run
        if not waits or resource.spec.merge_on_read is None:
            return None
        planned = self._execute(first, table, None, plan_only=True).status
        assert isinstance(planned, OperationStatus)
        if planned.phase not in GOOD_ENDS and not _lacks_log(planned):
            return planned
        self._upgrade(table)
        return None

    def _table_outcome(
        self, table: Table, resource: LakeTable, adopted: tables.AdoptedTable
    ) -> ResourceOutcome:
        options, ports = self._options, self._ports
        now_ms = ports.clock.now_ms()
        status = tables.status_of_table(table, adopted, now_ms=now_ms)
        if adopted.snapshot is not None:
            preview_ms = now_ms if options.plan_only else None
            log = adopt.read_log_status(table, resource, status, preview_ms)
            status = status.model_copy(update={"log": log})
        if options.plan_only and adopted.snapshot is not None:
            from tandem.operations import auto_compaction

            coming = auto_compaction.preview_next_compaction(resource, adopted.snapshot, now_ms)
            drop = auto_compaction.preview_next_drop(resource, adopted.snapshot, now_ms)
            status = status.model_copy(update={"next_compaction": coming, "next_drop": drop})
        self._report(resource, status)
        return ResourceOutcome(resource, status)

    def _keep_fresh(self, table: Table) -> None:
        # A log that is refused says so in the status, and in each operation that needs it.
        from tandem.mergelog import upkeep
        from tandem.mergelog.log_table import MergeLog

        with contextlib.suppress(BaseReplaced, BaseHistoryGap, InvalidSpec):
            upkeep.keep_fresh(MergeLog(table.log), now_ms=self._ports.clock.now_ms())

    def _run_operation(self, resource: Operation) -> ResourceOutcome:
        table_key = (LakeTable.kind_name, resource.namespace, resource.spec.table_ref.name)
        if table_key in self._absent:
            message = "the table would be created first; there is nothing to plan on yet"
            return ResourceOutcome(
                resource, _ended(resource, Phase.PENDING, Reason.PENDING, message)
            )
        table = self._tables[table_key]
        try:
            refused = self._make_log_first(resource, table)
            if refused is not None:
                self._report(resource, refused)
                return ResourceOutcome(resource, refused)
            with self._lock:
                snapshot = self._snapshots.pop(table_key, None)
            outcome = self._execute(resource, table, snapshot)
            runs = not (self._options.plan_only or resource.spec.dry_run)
            if runs and outcome.status.phase in GOOD_ENDS:
                self._upgrade(table)
        except NotMergeOnRead as error:
            outcome = _failed(resource, error.reason, str(error))
        makes_log = table.spec is not None and table.spec.spec.merge_on_read is not None
        if self._options.plan_only and makes_log and _lacks_log(outcome.status):
            message = "the log would be created first; there is nothing to plan on yet"
            pending = _ended(resource, Phase.PENDING, Reason.PENDING, message)
            return ResourceOutcome(resource, pending)
        return outcome

    def _execute(
        self,
        resource: Operation,
        table: Table,
        snapshot: Snapshot | None,
        *,
        plan_only: bool = False,
    ) -> ResourceOutcome:
        options = self._options
        silent, plan_only = plan_only, plan_only or options.plan_only
        execution = replace(
            options.execution,
            again=options.again,
            plan_only=plan_only,
            poll_ms=options.poll_ms,
            upgrade=self._upgrade_of(table),
        )
        session = open_session(
            resource,
            table,
            self._ports,
            execution,
            on_status=lambda status: None if silent else self._report(resource, status),
            snapshot=snapshot,
        )
        with self._lock:
            self._sessions[resource.key] = session
            if self._stopping:
                session.request_stop(StopRequest.INTERRUPT)
        try:
            status = finish(session, resource, self._ports)
            return ResourceOutcome(resource, repeated(status, session.ending))
        finally:
            with self._lock:
                del self._sessions[resource.key]

    def _upgrade_of(self, table: Table) -> Callable[[], None] | None:
        """What upgrades the table of an operation; None if it does not wait for that."""
        waits = table.spec is not None and table.spec.key in self._upgrades
        return partial(self._upgrade, table) if waits else None

    def _report(self, resource: AnyResource, status: ResourceStatus) -> None:
        if self._observer is not None:
            self._observer(resource, status)

    def _needs_of(self, resource: AnyResource) -> tuple[ResourceKey, ...]:
        if isinstance(resource, LakeTable):
            return ()
        space = resource.namespace
        needs = [(LakeTable.kind_name, space, resource.spec.table_ref.name)]
        needs += [(d.kind, space, d.name) for d in resource.spec.depends_on]
        for need in needs:
            if need not in self._resources:
                raise InvalidSpec(
                    "refers to a resource that is not part of this run",
                    resource=resource.id,
                    field="spec.tableRef" if need is needs[0] else "spec.dependsOn",
                    found=_named(need),
                )
        return tuple(needs)


def _refuse_cycles(needs: Mapping[ResourceKey, tuple[ResourceKey, ...]]) -> None:
    done: set[ResourceKey] = set()
    while len(done) < len(needs):
        ready = {key for key, before in needs.items() if key not in done and done >= set(before)}
        if not ready:
            stuck = sorted(needs.keys() - done)
            raise InvalidSpec(
                "these resources wait for each other",
                resource=_named(stuck[0]),
                field="spec.dependsOn",
                found=", ".join(map(_named, stuck)),
                expected="no cycle",
            )
        done |= ready


def _lacks_log(status: ResourceStatus) -> bool:
    found = {condition.reason for condition in status.conditions}
    return status.phase is Phase.FAILED and Reason.NOT_MERGE_ON_READ in found


def _named(key: ResourceKey) -> str:
    return f"{key[0]}/{key[2]}"


def _failed(resource: AnyResource, reason: Reason, message: str) -> ResourceOutcome:
    return ResourceOutcome(resource, _ended(resource, Phase.FAILED, reason, message))


def _ended(resource: AnyResource, phase: Phase, reason: Reason, message: str) -> ResourceStatus:
    generation = resource.metadata.generation
    found = conditions(phase, reason, message, generation, now_ms=SystemClock().now_ms())
    if isinstance(resource, LakeTable):
        return TableStatus(observed_generation=generation, phase=phase, conditions=found)
    return OperationStatus(observed_generation=generation, phase=phase, conditions=found)
