"""The controller of a LakeTable: adopts it, keeps its status, and cleans it.

Never runs an operation: it creates a resource, which has a controller of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from tandem.errors import InvalidSpec, Reason, TandemError
from tandem.kube.client.events import EventReason, post, traceback_of
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    CachedResource,
    condition,
    generation_of,
    key_of,
    status_of,
    uid_of,
    version_of,
)
from tandem.kube.controllers.preconditions import new_table
from tandem.kube.controllers.status_writer import status_writer
from tandem.kube.controllers.table_children import cancel_missed
from tandem.kube.metrics import families
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.controller_tasks import LogContext, StopSignal, bound_log_context
from tandem.kube.tables.context import TableContext
from tandem.kube.tables.status import compose, remembered_since
from tandem.operations.clean import CleaningOptions, CleaningResult, rules_for
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.clean_log import clean_with_log
from tandem.planning.cleaning import CleaningRules
from tandem.spec.loader import parse
from tandem.spec.status import TableCleaning, TableStatus, rfc3339, unix_ms
from tandem.spec.table import LakeTable

# Cleaning in the operator: bounded rounds for each table, in a worker thread, concurrent with the
# table's operations.
#
# The first round comes some minutes after a start, the next ones when something can be due: at the
# earliest an hour later, at the latest when files removed right after a round are old enough.
# `tandem.planning.cleaning` decides what is deleted; a table without `retention` keeps every file
# that a version has referred to.


_log = structlog.get_logger("tandem.kube.table")
_MOST_FILES = 5_000
_LEAST_MS = 3_600_000
_AGAIN_MS = 60_000
_FAILED_MS = 600_000
"""After a round that failed; doubled with each further one in a row, up to `_LEAST_MS`."""


class CleaningController:
    """The cleaning rounds of one table, run by its controller's task.

    Args:
        body: the LakeTable as it is now.
        wake: wakes the controller when there is something to report.

    Attributes:
        status: what to add to the table's status.
    """

    def __init__(
        self,
        context: OperatorContext,
        table: TableContext,
        body: Callable[[], Body],
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._table = table
        self._body = body
        self._wake = wake
        self._task: asyncio.Task[None] | None = None
        self._asked: CleaningRules | None = None
        self._closed = False
        self._failures = 0
        known = status_of(body()).get("lastCleaning")
        self.status: dict[str, Any] = {"lastCleaning": known} if known is not None else {}
        self._problem = str(known.get("problem", "")) if isinstance(known, Mapping) else ""
        # Not all tables at once, and none before its first refresh.
        wait_ms = int(context.settings.clean_s * 1000 * (1 + hash(table.uid) % 4))
        self._due_ms = max(context.clock.now_ms() + wait_ms, _next_of(known))

    def run_if_due(self) -> float:
        """Begin a round if one is due. Returns in how many seconds to call again."""
        if self._task is not None and not self._task.done():
            return math.inf
        now_ms = self._context.clock.now_ms()
        if now_ms < self._due_ms and not self._changed():
            return (self._due_ms - now_ms) / 1000
        if self._table.table is None or self._table.snapshot is None:
            return math.inf  # it is not ready
        self._task = asyncio.create_task(self._round(), name="clean a table")
        return math.inf

    async def close(self) -> None:
        """Stop a running round before its next step."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self) -> bool:
        """Whether the retention has changed since the last round."""
        if self._asked is None or self._table.resource is None or self._table.snapshot is None:
            return False
        try:
            return self._rules_now() != self._asked
        except TandemError:
            return False

    @property
    def _display(self) -> str:
        table = self._table.table
        return table.display if table is not None else ""

    def _rules_now(self) -> CleaningRules:
        """Raises: InvalidSpec."""
        resource, snapshot = self._table.resource, self._table.snapshot
        assert resource is not None
        assert snapshot is not None
        return rules_for(snapshot.configuration, resource.spec.retention, automatic=True)

    async def _round(self) -> None:
        context, table = self._context, self._table.table
        assert table is not None
        now_ms = context.clock.now_ms()
        self._due_ms = now_ms + min(_FAILED_MS << min(self._failures, 8), _LEAST_MS)
        options = CleaningOptions(
            limit=_MOST_FILES,
            # The first round also finds what an earlier operator left.
            whole_log=self._asked is None,
            may_continue=lambda: not self._closed and context.may_write(),
        )
        dependencies = CleaningDependencies(context.clock, context.processes, context.nonces)
        try:
            rules = self._asked = self._rules_now()
            cleaned = await context.threads(
                self._table.uid, lambda: clean_with_log(table, rules, dependencies, options)
            )
        except TandemError as error:
            self._failures += 1
            self._tell(CleaningResult((), problem=str(error)), now_ms)
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._failures += 1
            context.metrics.count(families.INTERNAL_ERRORS, "table")
            _log.error("a bug: please report it", table=table.display, at=traceback_of(error))
        else:
            self._failures = 0
            self._due_ms = due(cleaned, rules, now_ms)
            self._tell(cleaned, now_ms)
        finally:
            self._wake()

    def _tell(self, cleaned: CleaningResult, now_ms: int) -> None:
        files, size = len(cleaned.garbage), cleaned.size
        self.status = {
            "lastCleaning": TableCleaning(
                time=rfc3339(now_ms),
                files=files,
                bytes=size,
                next_time=rfc3339(self._due_ms),
                problem=cleaned.problem or None,
            ).manifest()
        }
        if cleaned.problem and cleaned.problem != self._problem:
            post(self._body(), EventReason.NOT_CLEANED, cleaned.problem, warning=True)
            _log.warning("not cleaned", table=self._display, problem=cleaned.problem)
        self._problem = cleaned.problem
        self._context.metrics.add(families.CLEANED_FILES, files)
        self._context.metrics.add(families.CLEANED_BYTES, size)
        if files or cleaned.abandoned or cleaned.rolled_back:
            dead, void = len(cleaned.abandoned), len(cleaned.rolled_back)
            message = f"removed {files} files, {size} bytes"
            message += f"; {dead} attempts of processes that died were abandoned" if dead else ""
            message += f"; uploads of {void} writers that died were rolled back" if void else ""
            post(self._body(), EventReason.CLEANED, message)
            _log.info("cleaned", files=files, bytes=size, abandoned=dead, rolled_back=void)


def due(cleaned: CleaningResult, rules: CleaningRules, now_ms: int) -> int:
    """When the next round is due, in Unix milliseconds. Pure."""
    if cleaned.more:
        return now_ms + _AGAIN_MS
    kept = (rules.files_ms, rules.row_maps_ms, rules.staging_ms, rules.dead_ms)
    latest = now_ms + min(each for each in kept if each is not None)
    soonest = latest if cleaned.next_ms is None else min(latest, cleaned.next_ms)
    return max(soonest, now_ms + _LEAST_MS)


def _next_of(known: object) -> int:
    """When an earlier operator meant to clean next (Unix milliseconds); 0 if that is unknown."""
    return unix_ms(known.get("nextTime") if isinstance(known, Mapping) else None) or 0


# The control loop of a LakeTable's resource: refresh, automatic compaction, status, wait.
#
# It wakes when the resource or an operation on it changes. It looks at the log when one of our
# operations has committed, and otherwise at intervals that grow while nothing happens.


_CALM = 0.3
"""Seconds between two rounds: a burst of events causes a single round."""
_IDLE_FACTOR = 1.3
_IDLE_MOST = 6.0
"""An idle table is refreshed up to this many times less often."""
_LEAVE_S = 2.0
"""How long the end of the operator waits for a look that is under way."""


class TableController:
    """One LakeTable, identified by its uid."""

    def __init__(self, context: OperatorContext, body: Body) -> None:
        self._context = context
        self._uid = uid_of(body)
        self._key = key_of(body)
        self._body = body
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._parsed: tuple[Body, LakeTable] | None = None
        self._leaving = False
        self._living: asyncio.Task[None] | None = None
        known = dict(status_of(body))
        left = {each for each in context.cancelling if each[:2] == self._key[1:]}
        context.cancelling -= left
        ran = (*map(str, known.get("runningOperations") or ()), *(each for *_, each in left))
        self._ran = set(ran)
        """What ran by the last status, or was being cancelled when the last controller ended, until
        it is known what became of it."""
        self._cancelling: asyncio.Task[None] | None = None
        ready = condition(body, "Ready")
        settings = context.settings
        self._writer = status_writer(context, body, on_gone=self._object_gone)
        self._reported = (ready.get("status", ""), ready.get("reason", ""))
        self._locked_since = remembered_since(known)
        self._table = new_table(
            context,
            self._uid,
            adopted=ready.get("status") == "True"
            and ready.get("observedGeneration") == generation_of(body),
        )
        self._interval_s = settings.table_poll_s
        self._cleaning_controller = CleaningController(
            context, self._table, lambda: self._body, self._wake.set
        )

    async def run(self, stopped: StopSignal) -> None:
        """Run until the resource is deleted or the operator stops."""
        kind, namespace, name = self._key
        with bound_log_context(LogContext(kind, namespace, name, table=name)):
            await self._run(stopped)

    async def _run(self, stopped: StopSignal) -> None:
        self._context.tables[self._key[1:]] = self._table
        unwatch = self._context.resource_cache.watch(self._key, self._changed)
        self._table.wake = self._wake.set
        self._changed()  # since this controller was made
        minding = asyncio.create_task(self._await_stop(stopped), name="mind the stop")
        self._living = living = asyncio.create_task(self._live(), name="control a table")
        try:
            await asyncio.wait({living})
            if not living.cancelled():  # by ourselves, since the resource is gone
                living.result()
        finally:
            minding.cancel()
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            await self._cleaning_controller.close()
            if self._cancelling is not None:
                self._cancelling.cancel()
                await asyncio.gather(self._cancelling, return_exceptions=True)
            unwatch()
            self._withdraw()
            await self._writer.close()

    async def _await_stop(self, stopped: StopSignal) -> None:
        await stopped.wait()
        self._leaving = True
        self._wake_at_once()
        await asyncio.sleep(_LEAVE_S)
        if self._living is not None:
            self._living.cancel()

    def _changed(self) -> None:
        body = self._context.resource_cache.body(self._uid)
        if body is not None:
            if generation_of(body) != generation_of(self._body):
                self._urgent.set()
            self._body = body
            self._writer.observe(status_of(body), version_of(body))
        else:
            # At once: no operation may begin on a table whose resource is gone.
            self._withdraw()
            self._writer.gone = True
            self._leaving = True
            if self._living is not None:
                # A store that does not answer would hold a thread for nothing.
                self._living.cancel()
        self._wake.set()

    def _wake_at_once(self) -> None:
        self._urgent.set()
        self._wake.set()

    def _withdraw(self) -> None:
        tables, key = self._context.tables, self._key[1:]
        if tables.get(key) is self._table:
            del tables[key]
            self._context.figures.pop(key, None)

    def _object_gone(self) -> None:
        """The resource is gone, although no watch has reported it: inform those that need it."""
        self._context.gone(self._uid)

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        next_look = 0.0
        generation = -1
        while not self._leaving and self._context.may_write():
            self._wake.clear()
            begun = now = loop.time()
            problem = self._table.problem
            resource = self._parse()
            if resource is not None:
                due = self._table.due or generation_of(self._body) != generation
                if due or now >= next_look:
                    before, log_before = self._table.snapshot, self._table.log_facts
                    self._table.due = False
                    await self._table.refresh(resource)
                    # The operator gives locks only where it knows a table: before operations ask.
                    self._context.show(*self._key[1:], self._table.figures)
                    # The spec may have changed meanwhile: then that one is due at once.
                    generation = resource.metadata.generation
                    same = self._table.snapshot is before and self._table.log_facts is log_before
                    self._pace(due or not same)
                    next_look = loop.time() + self._interval_s
            if self._table.problem != problem:
                self._context.table_changed(*self._key[1:])
            if self._ran and self._table.is_ready and not self._is_cancelling:
                self._cancelling = asyncio.create_task(self._cancel_missed(), name="cancel missed")
            if (
                self._table.locks
                or self._table.log_locks
                or any(o.active for o in self._operations())
            ):
                await self._table.refresh_locks()
            if self._leaving:
                return
            fields, again_s = await self._automate()
            cleaned_s = self._cleaning_controller.run_if_due()
            self._report(fields)
            until = min(next_look, loop.time() + min(cleaned_s, again_s))
            await asyncio.sleep(_CALM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - loop.time())):
                    await self._wake.wait()
            await self._rest(begun + self._context.settings.status_s)

    @property
    def _is_cancelling(self) -> bool:
        return self._cancelling is not None and not self._cancelling.done()

    async def _cancel_missed(self) -> None:
        try:
            settled = await cancel_missed(self._context, self._table, *self._key[1:], self._ran)
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._context.metrics.count(families.INTERNAL_ERRORS, "table")
            _log.error("a bug: please report it", table=self._key[2], at=traceback_of(error))
            return
        if settled:
            self._ran -= settled
            self._wake.set()

    async def _rest(self, until: float) -> None:
        """Let the events of a busy table's operations share a round: its status is not written more
        often. A new spec does not wait, nor does the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._urgent.wait()
        self._urgent.clear()

    def _operations(self) -> Iterator[CachedResource]:
        return self._context.resource_cache.of_table(*self._key[1:])

    def _pace(self, something_happened: bool) -> None:
        poll_s = self._context.settings.table_poll_s
        problem = self._table.problem
        # A look at a table that is too large may cost much, up to the limit.
        patient = problem is not None and problem[0] is Reason.TOO_LARGE
        if something_happened or not (self._table.is_ready or patient):
            self._interval_s = poll_s
        else:
            self._interval_s = min(self._interval_s * _IDLE_FACTOR, poll_s * _IDLE_MOST)

    def _parse(self) -> LakeTable | None:
        body = self._body
        if self._parsed is not None and self._parsed[0] is body:
            return self._parsed[1]
        try:
            resource = parse(body)
        except InvalidSpec as error:
            self._table.refuse(Reason.INVALID_SPEC, str(error), generation_of(body))
            return None
        assert isinstance(resource, LakeTable)
        self._parsed = body, resource
        return resource

    async def _automate(self) -> tuple[dict[str, Any] | None, float]:
        """What the automations add to the status, None if they were not called; and in how many
        seconds to call them again."""
        automations = self._context.automations
        if not automations or not self._table.is_ready:
            return None, math.inf
        fields: dict[str, Any] = {}
        again_s = math.inf
        for automation in automations:
            found, seconds = await automation(self._table, list(self._operations()))
            fields.update(found)
            again_s = min(again_s, seconds)
        return fields, again_s

    def _report(self, fields: dict[str, Any] | None) -> None:
        _, namespace, name = self._key
        # Never report on a spec that arrived during the refresh: its readiness is unknown yet.
        conditions = self._table.conditions
        status: TableStatus = compose(
            self._table.facts,
            conditions,
            conditions[0].observed_generation,
            self._operations(),
            self._table.locks,
            self._locked_since,
            self._context.clock.now_ms(),
            self._table.log_locks,
        )
        manifest = status.manifest()
        # The next operator finds there what it has to cancel.
        also = {named for *table, named in self._context.cancelling if (*table,) == self._key[1:]}
        running = manifest.get("runningOperations", ())
        manifest["runningOperations"] = sorted({*running, *self._ran, *also})
        if fields is not None:
            manifest.update(fields)
        else:
            # The status also records up to when each schedule has run.
            known = self._writer.known
            manifest |= {
                key: known[key] for key in ("nextCompaction", "nextDrop", "log") if key in known
            }
        self._writer.offer({**manifest, **self._cleaning_controller.status})
        self._context.show(*self._key[1:], self._table.figures)
        first = conditions[0]
        ready = (first.status, str(first.reason))
        if ready != self._reported:
            self._reported = ready
            post(self._body, first.reason, first.message, warning=first.status != "True")
            _log.info(
                "table",
                kind=TABLE_KIND,
                namespace=namespace,
                name=name,
                reason=str(first.reason),
                message=first.message,
            )
