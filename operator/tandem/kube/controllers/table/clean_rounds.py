"""Cleaning in the operator: bounded rounds for each table, in a worker thread, concurrent with the
table's operations.

The first round comes some minutes after a start, the next ones when something can be due: at the
earliest an hour later, at the latest when files removed right after a round are old enough.
`tandem.planning.cleaning` decides what is deleted; a table without `retention` keeps every file
that a version has referred to.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import structlog

from tandem.errors import TandemError
from tandem.kube.client.events import EventReason, post, traceback_of
from tandem.kube.client.kinds import Body, key_of, status_of
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import TableContext
from tandem.operations.clean.block_log import clean_with_log
from tandem.operations.clean.clean import CleaningOptions, CleaningResult, rules_for
from tandem.operations.clean.facts import CleaningDependencies
from tandem.operations.report.status import rfc3339
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import TableCleaning

_log = structlog.get_logger("tandem.kube.controllers.table.clean_rounds")
_MOST_FILES = 5_000
_LEAST_MS = 3_600_000
_AGAIN_MS = 60_000
_FAILED_MS = 600_000
"""After a round that failed; doubled with each further one in a row, up to `_LEAST_MS`."""


class CleaningController:
    """The cleaning rounds of one table, run by its daemon's task.

    Args:
        body: the LakeTable as it is now.
        wake: wakes the daemon when there is something to report.

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
            _, namespace, name = key_of(self._body())
            cleaned = await context.threads(
                namespace,
                name,
                lambda: clean_with_log(table, rules, dependencies, options),
            )
        except TandemError as error:
            self._failures += 1
            self._tell(CleaningResult((), problem=str(error)), now_ms)
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._failures += 1
            context.metrics.internal_errors.count("table")
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
        self._context.metrics.cleaned_files.add(files)
        self._context.metrics.cleaned_bytes.add(size)
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
    time = known.get("nextTime") if isinstance(known, Mapping) else None
    try:
        return int(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return 0
