"""Writes the status of one resource: seldom, never the same twice, and the terminal one reliably.

One writer per resource; once an operation has ended, `ended` follows the generation of its spec. Of
many statuses, only those that may be written are prepared. The caller decides what may be written
at all. Each write names the version of the object that it is based on. So a process that stands
still between its check that it leads and its request cannot overwrite what its successor wrote
meanwhile.

A status is kept small, since an object in a cluster is sent to all of its watchers, and such that
the API server returns it unchanged: a plan over ten thousand segments would be a megabyte in every
event, and more than etcd takes. What is left out is under the table's `_tandem/`, and `tandem plan`
prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tandem.errors import Reason
from tandem.kube.client.api import Api, ApiError, Conflict, Invalid, NotFound, ResourcePath
from tandem.kube.client.events import traceback_of
from tandem.kube.client.resources import (
    Body,
    key_of,
    path,
    status_of,
    uid_of,
    version_number,
    version_of,
)
from tandem.kube.runtime.context import OperatorContext
from tandem.spec.status import Plan, Reconciled

LONGEST_LIST = 40
"""A list holds at most so many names, and then the number of the others."""
_MOST = 2**63 - 1


def truncated_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` with lists of names cut, and without what is only recorded. The writers of a table's
    log choose names and numbers, so those are limited to what JSON and int64 can hold. Pure."""
    short = dict(status)
    if isinstance(plan := short.get("plan"), Mapping):
        short["plan"] = {k: _cut(v) for k, v in plan.items() if k not in Plan.only_recorded}
    if isinstance(result := short.get("result"), Mapping):
        result = {key: _cut(value) for key, value in result.items()}
        if isinstance(reconciled := result.get("reconciled"), Mapping):
            recorded = Reconciled.only_recorded
            result["reconciled"] = {k: v for k, v in reconciled.items() if k not in recorded}
        short["result"] = result
    return {key: _representable(value) for key, value in short.items()}


def _representable(value: Any) -> Any:
    kind = type(value)  # every status comes through here: the common kinds first
    if kind is dict:
        return {_representable(key): _representable(item) for key, item in value.items()}
    if kind is bool or value is None:
        return value
    if isinstance(value, str):
        # Half a surrogate pair would come back as another character.
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-_MOST, min(value, _MOST))
    if isinstance(value, Mapping):
        return {_representable(key): _representable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_representable(item) for item in value]
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        return [*value[:LONGEST_LIST], f"… and {len(value) - LONGEST_LIST} more"]
    return value


_log = structlog.get_logger("tandem.kube.controllers.status_writer")
_PASSING = frozenset({Reason.PENDING, Reason.PLANNED})
_LONGEST_MESSAGE = 4096
_LONGEST_PAUSE_S = 60.0
_RETRY_S = 5.0
_CONFLICT_PAUSES_S = (0.05, 0.2, 0.5)
_NOTEWORTHY = (
    *("phase", "attempt", "startTime", "observedGeneration", "observedRetry"),
    *("version", "runningOperations", "heldLocks", "locks", "lastOperations", "nextCompaction"),
    "lastCleaning",
)

Offer = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""A status, or what returns it: called once it may be written, if no newer one has come."""


def status_writer(
    context: OperatorContext, body: Body, *, on_gone: Callable[[], None]
) -> StatusWriter:
    """The writer of one object, at the pace of the operator's settings. `on_gone`: as of
    `StatusWriter`."""
    return StatusWriter(
        context.api,
        path(*key_of(body)),
        uid_of(body),
        status_of(body),
        version_of(body),
        pause_s=context.settings.status_s,
        progress_s=context.settings.progress_s,
        allowed=context.may_write,
        on_gone=on_gone,
    )


class StatusWriter:
    """`offer` may be called at any rate. A new phase or reason is written `pause_s` after the last
    write, anything else at growing intervals that begin with `progress_s`.

    Args:
        uid: that of the object; a later object of the same name is not touched.
        known: the status as the API server has it.
        resource_version: that of the object with this status.
        allowed: whether we may still write (we may have lost leadership).
        on_gone: called when a write finds the object gone.
    """

    def __init__(
        self,
        api: Api,
        path: ResourcePath,
        uid: str,
        known: Mapping[str, Any],
        resource_version: str,
        *,
        pause_s: float = 1.0,
        progress_s: float = 5.0,
        first_s: float = 0.2,
        allowed: Callable[[], bool] = lambda: True,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_gone = on_gone
        self._version = resource_version
        self._api = api
        self._path = path
        self._uid = uid
        self._known = dict(known)
        self._wanted: dict[str, Any] | None = None
        self._offered: Offer | None = None
        self._changed = asyncio.Event()
        self._pause_s = pause_s
        self._progress_s = progress_s
        self._next_progress_s = progress_s
        self._allowed = allowed
        self._busy = asyncio.Lock()
        self._last = asyncio.get_running_loop().time() + first_s - pause_s
        self._task: asyncio.Task[None] | None = None
        # The loop itself keeps no task alive.
        self._left: set[asyncio.Task[None]] = set()
        self.gone = False
        self.writes = 0

    @property
    def known(self) -> Mapping[str, Any]:
        """The status as last seen on the server or written."""
        return self._known

    def observe(self, status: Mapping[str, Any], resource_version: str) -> None:
        """The object's status as a watch reports it. Ignored if we have written since. What another
        client has changed is written again."""
        newer = version_number(resource_version) > version_number(self._version)
        if newer and not self._busy.locked():
            self._version = resource_version
            self._known = dict(status)
            if self._task is not None:
                self._changed.set()

    def offer(self, status: Offer) -> None:
        """Write this status soon, unless a newer one comes first."""
        self._offered = status
        if self._task is not None:
            self._changed.set()
        elif self._patch():
            self._changed.set()
            self._task = asyncio.create_task(self._write_on(), name=f"status {self._path.name}")

    async def finish(self, status: Mapping[str, Any]) -> None:
        """Write this status, and none after it. Returns when it is written, the object is gone,
        or we may not write any more; retries until then."""
        await self.close()
        self._offered = None
        while not self.gone and self._allowed():
            self._wanted = carried_over(self._known, truncated_status(status))
            if not self._patch():
                return
            try:
                await self._write()
            except Invalid as error:
                _log.error("status refused", resource=self._path.url(), problem=error.message)
                status = _least(status)
                if not changed_fields(
                    self._known, carried_over(self._known, truncated_status(status))
                ):
                    return
                await asyncio.sleep(_RETRY_S)
            except ApiError as error:
                _log.warning(
                    "status not written yet", resource=self._path.url(), problem=str(error)
                )
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Stop writing; what was offered last may be lost."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _patch(self) -> dict[str, Any]:
        """The fields to set, None for those to remove."""
        offered, self._offered = self._offered, None
        if offered is not None:
            status = offered() if callable(offered) else offered
            self._wanted = carried_over(self._known, truncated_status(status))
        wanted = self._wanted
        if wanted is None:
            return {}
        return {key: wanted.get(key) for key in changed_fields(self._known, wanted)}

    async def _write_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            # Nothing is written before, and what is offered meanwhile mostly replaces this.
            await asyncio.sleep(self._last + self._shortest_pause_s - loop.time())
            self._changed.clear()
            while patch := self._patch():
                if self.gone or not self._allowed():
                    return
                noteworthy = self._is_noteworthy(patch)
                pause = self._pause_s if noteworthy else self._next_progress_s
                left = self._last + pause - loop.time()
                if left > 0:
                    # Something newer, and more urgent, may come meanwhile.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._changed.wait()
                    self._changed.clear()
                    continue
                try:
                    await self._write()
                except Invalid as error:
                    _log.error("status refused", resource=self._path.url(), problem=error.message)
                    self._wanted = None
                except ApiError as error:
                    _log.warning(
                        "status not written", resource=self._path.url(), problem=str(error)
                    )
                    self._last = loop.time() + _RETRY_S
                else:
                    if noteworthy:
                        self._next_progress_s = self._progress_s
                    else:
                        longer = self._next_progress_s * 2
                        self._next_progress_s = min(longer, _LONGEST_PAUSE_S)

    @property
    def _shortest_pause_s(self) -> float:
        return min(self._pause_s, self._next_progress_s)

    def _is_noteworthy(self, patch: Mapping[str, Any]) -> bool:
        wanted = self._wanted or {}
        passing = all(c[2] in _PASSING for c in _points(wanted))
        if self._known.get("phase") and passing and _truths(self._known) == _truths(wanted):
            # A phase that passes soon is written only if it lasts. But a failure that is being
            # retried must be cleared at once, for tools that watch the conditions.
            return False
        if any(key in patch for key in _NOTEWORTHY):
            return True
        return _points(self._known) != _points(wanted)

    async def _write(self) -> None:
        # A write that has begun is not abandoned: the server's state would be unknown.
        writing = asyncio.create_task(self._write_once(), name=f"write {self._path.name}")
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Closed. No caller waits for the write any more, but its exception must be retrieved.
            self._left.add(writing)
            writing.add_done_callback(self._hear_out)
            raise

    def _hear_out(self, writing: asyncio.Task[None]) -> None:
        self._left.discard(writing)
        problem = None if writing.cancelled() else writing.exception()
        if isinstance(problem, ApiError):
            _log.warning("status not written", resource=self._path.url(), problem=str(problem))
        elif problem is not None:
            _log.error("a bug: please report it", at=traceback_of(problem))

    async def _write_once(self) -> None:
        async with self._busy:
            for pause_s in (*_CONFLICT_PAUSES_S, None):
                patch = self._patch()
                if not patch or self.gone or not self._allowed():
                    return
                self.writes += 1
                try:
                    body = await self._api.patch_status(
                        self._path, patch, uid=self._uid, resource_version=self._version
                    )
                except (NotFound, Conflict):
                    if not await self._read_again():
                        self.gone = True
                        self._on_gone()
                        return
                    if pause_s is None:
                        raise
                    await asyncio.sleep(pause_s)
                else:
                    self._take_over(body, patch)
                    return

    def _take_over(self, body: Body, patch: Mapping[str, Any]) -> None:
        self._version = version_of(body)
        # A field that the server has dropped (its schema may be an older one) it would drop
        # the next time, too.
        written = {**status_of(body), **patch}
        self._known = {key: value for key, value in written.items() if value is not None}
        self._last = asyncio.get_running_loop().time()

    async def _read_again(self) -> bool:
        """Learn the current status; False if there is no such object any more, or another one took
        its name."""
        try:
            body = await self._api.get(self._path)
        except NotFound:
            return False
        if uid_of(body) != self._uid:
            return False
        self._version, self._known = version_of(body), dict(status_of(body))
        return True


def carried_over(known: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    """`status` with the old transition times of conditions whose status did not change."""
    before = {item["type"]: item for item in known.get("conditions") or ()}
    conditions = []
    for item in status.get("conditions") or ():
        old = before.get(item["type"])
        if old is not None and old.get("status") == item["status"]:
            item = {**item, "lastTransitionTime": old["lastTransitionTime"]}
        message = item.get("message", "")
        if len(message) > _LONGEST_MESSAGE:
            item = {**item, "message": message[: _LONGEST_MESSAGE - 1] + "…"}
        conditions.append(item)
    return {**status, **({"conditions": conditions} if conditions else {})}


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The fields in which two statuses differ."""
    fields = [*old, *(key for key in new if key not in old)]
    return [key for key in fields if old.get(key) != new.get(key)]


def _points(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in status.get("conditions") or ()]


def _truths(status: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(c["type"], c["status"]) for c in status.get("conditions") or ()}


def _least(status: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a schema of any version accepts."""
    kept = ("observedGeneration", "observedRetry", "phase", "conditions", "completionTime")
    return {key: status[key] for key in kept if key in status}
