"""`tandem maintain`: does once what a LakeTable asks for and an operator would do.

The decisions are those of `tandem.planning.auto`; the operations that they create have the names
that an operator gives them. So a schedule runs once each time that its cron fires, however often
this is called: a later call finds the operation's recorded result. One that failed is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import InvalidSpec
from tandem.mergelog.log_table import MergeLog
from tandem.mergelog.usage import LogReader
from tandem.operations import adopt, runner
from tandem.operations.adopt import is_automatic
from tandem.operations.auto_compaction import TableMemory, decide_drop, rows_ms
from tandem.operations.clean import CleaningOptions, CleaningResult, rules_for
from tandem.operations.clean_log import clean_with_log
from tandem.operations.model import Table
from tandem.operations.ports import Clock, SystemClock
from tandem.operations.runner import RunOptions
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import (
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    TableId,
    schedule_line,
)
from tandem.planning.auto.log import decide_log
from tandem.spec.common import API_VERSION
from tandem.spec.loader import parse
from tandem.spec.resources import LakeTable, Operation, ResourceOutcome, StatusObserver
from tandem.spec.status import OperationStatus
from tandem.spec.table import AutomaticCompaction


@dataclass
class Maintenance:
    """What one call did: the table as it was in the end, the operations that were due, and why no
    more are; each is a sentence. Without a table that can be used there is nothing else."""

    table: ResourceOutcome
    operations: list[ResourceOutcome] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    cleaned: CleaningResult | None = None

    @property
    def outcomes(self) -> list[ResourceOutcome]:
        return [self.table, *self.operations]


def maintain(
    resource: LakeTable,
    options: RunOptions | None = None,
    *,
    also: Operation | None = None,
    observer: StatusObserver | None = None,
    cancel: threading.Event | None = None,
) -> Maintenance:
    """Run what is due on a table, one after the other, and clean it.

    Args:
        options: `plan_only`: plan the first operation that is due, and clean nothing.
        also: runs first, whether something is due or not.
        cancel: as of `runner.run`.

    Raises: InvalidSpec (a time column or property that is invalid), StorageError.
    """
    options = options or RunOptions()
    clock = options.ports.clock if options.ports is not None else SystemClock()
    cancel = cancel or threading.Event()
    execution = replace(options.execution, only_failed=True)
    options = replace(options, again=True, execution=execution)
    [table] = runner.run([resource], options, observer=observer, cancel=cancel)
    done = Maintenance(table)
    if table.status.phase not in runner.GOOD_ENDS:
        return done
    options = replace(options, probe=False)
    opened = adopt.open_table(
        resource, allowed_prefixes=options.allowed_prefixes, environ=options.environ
    )
    due = DueOperations(resource, opened, clock)
    for operation in due.operations(also, done.waits):
        if cancel.is_set():
            break
        done.table, found = runner.run(
            [resource, operation], options, observer=observer, cancel=cancel
        )
        done.operations.append(found)
        due.ended(operation, found)
        if options.plan_only:
            break
    if not cancel.is_set():
        rules = rules_for(opened.log.snapshot().configuration, resource.spec.retention)
        done.cleaned = clean_with_log(
            opened, rules, options=CleaningOptions(dry_run=options.plan_only)
        )
    return done


class DueOperations:
    """What is due on a table, and what of it this process has run."""

    def __init__(self, resource: LakeTable, table: Table, clock: Clock) -> None:
        self._resource = resource
        self._table = table
        self._clock = clock
        self._memory = TableMemory()
        self._children: list[ChildState] = []
        self._child: ChildCompaction | None = None

    def operations(self, first: Operation | None, waits: list[str]) -> Iterator[Operation]:
        """Operations that are due now, each decided after the one before it has ended. In the end
        `waits` says why no more are due."""
        if first is not None:
            yield first
        while True:
            decisions = list(self._decisions())
            self._child = next((child for each in decisions for child in each.create), None)
            if self._child is None:
                waits += [each.why for each in decisions if each.why]
                return
            yield _operation(self._child, self._resource)

    def ended(self, operation: Operation, outcome: ResourceOutcome) -> None:
        """Note how an operation ended: a failed one is not tried twice in one call."""
        child, status = self._child, outcome.status
        if child is None or operation.name != child.name:
            return
        assert isinstance(status, OperationStatus)
        now_ms = self._clock.now_ms()
        message = status.conditions[0].message if status.conditions else ""
        self._children.append(
            ChildState(
                name=child.name,
                line=child.line,
                phase=str(status.phase),
                created_ms=now_ms,
                ended=True,
                ended_ms=now_ms,
                scheduled_ms=child.scheduled_ms,
                retries=child.retries,
                message=message,
                kind=child.kind,
            )
        )

    def _decisions(self) -> Iterator[AutoCompactionDecision]:
        resource, now_ms = self._resource, self._clock.now_ms()
        snapshot = self._table.log.snapshot()
        self._memory.see(snapshot)
        policy = resource.spec.compaction
        if policy is not None:
            yield self._compaction(policy, snapshot, now_ms)
        if rows_ms(resource) is not None:
            table = self._memory.by_chunk(resource, "", snapshot)
            yield decide_drop(resource, table, snapshot, self._children, now_ms)
        log = resource.spec.merge_on_read
        if log is not None and is_automatic(log):
            reader = LogReader(MergeLog(self._table.log))
            if not reader.update():
                raise InvalidSpec(
                    "the table has no log", resource=resource.id, field="spec.mergeOnRead"
                )
            facts, id_ = reader.facts(snapshot), TableId(resource.name, "")
            yield decide_log(log, id_, facts, self._children, (), now_ms)

    def _compaction(
        self, policy: AutomaticCompaction, snapshot: Snapshot, now_ms: int
    ) -> AutoCompactionDecision:
        # `minInterval` spaces automatic compactions; here the caller decides when one starts.
        policy = policy.model_copy(update={"min_interval": 0})
        id_ = TableId(self._resource.name, "")
        # Of each schedule the latest time counts; whether it was dealt with, its operation says.
        since = {schedule_line(id_, policy, each): 0 for each in policy.schedules}
        table = self._memory.at(self._resource, "", snapshot)
        return decide(policy, table, self._children, now_ms, since)


def _operation(child: ChildCompaction, table: LakeTable) -> Operation:
    found = parse(
        {
            "apiVersion": API_VERSION,
            "kind": child.kind,
            "metadata": {"name": child.name, "namespace": table.namespace},
            "spec": dict(child.spec),
        }
    )
    assert isinstance(found, Operation)
    return found
