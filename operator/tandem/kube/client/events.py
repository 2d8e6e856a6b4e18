"""Kubernetes Events: the few changes of a resource that users want to be informed of.

Reasons are fixed, messages are those of the status, which hold no secrets. Must be called in
the context of a kopf handler, whose queue posts them in the background.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

import kopf
import structlog

from tandem.errors import Reason
from tandem.kube.client.resources import Body, is_deleting, key_of
from tandem.spec.common import API_VERSION
from tandem.spec.status import ENDED, OperationStatus, Phase

_log = structlog.get_logger("tandem.kube.operation")
_LONGEST = 1000
EventSink = Callable[[Body, str, str, bool], None]
_SINK: ContextVar[EventSink | None] = ContextVar("tandem_events", default=None)


def events_go_to(sink: EventSink) -> None:
    """From now on, events posted in this context and in those copied from it go there instead: an
    object, the reason, the message, and whether it is a warning."""
    _SINK.set(sink)


class EventReason(StrEnum):
    """Reasons of events, beside those of `tandem.errors.Reason` with which operations end."""

    WAITING_FOR_LOCK = "WaitingForLock"
    JOB_REFUSED = "JobRefused"
    JOB_STARTED = "JobStarted"
    RETRYING = "Retrying"
    YIELDED = "Yielded"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    CANCELLED = "Cancelled"
    CLEANED = "Cleaned"
    NOT_CLEANED = "NotCleaned"


def post(body: Body, reason: str, message: str, *, warning: bool = False) -> None:
    """Post one event about an object."""
    reference: Any = {
        "apiVersion": body.get("apiVersion", API_VERSION),
        "kind": body["kind"],
        "metadata": {
            name: body["metadata"][name]
            for name in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
            if name in body["metadata"]
        },
    }
    text = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
    sink = _SINK.get()
    if sink is not None:
        sink(reference, str(reason), text, warning)
        return
    kopf.event(
        reference,
        type="Warning" if warning else "Normal",
        reason=reason,
        message=text,
        # A terminating namespace accepts no more events: one try is enough.
        backoffs=() if is_deleting(body) else None,
    )


def traceback_of(error: BaseException) -> str:
    """Where an unexpected error was raised, without its text or variables, which may contain a
    secret."""
    return f"{type(error).__name__}\n" + "".join(traceback.format_tb(error.__traceback__))


class EventRecorder:
    """Posts events of one operation from its statuses, each change once.

    Args:
        known: its status at the start: what it says has been reported before.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._phase = str(known.get("phase", ""))
        self._attempt = int(known.get("attempt", 0))
        self._waited = self._phase not in ("", Phase.PENDING)
        self._refused = _first_reason(known) in _REFUSED
        self._started = {self._attempt} if self._phase in _AT_WORK else set[int]()
        self._resumed = self._phase == Phase.SUSPENDED
        self._yields = _yields(known.get("yields"))

    def record(self, body: Body, status: OperationStatus) -> None:
        """Post what is new in `status`."""
        before, self._phase = self._phase, status.phase
        first = status.conditions[0] if status.conditions else None
        reason = first.reason if first is not None else ""
        message = first.message if first is not None else ""
        if status.phase in ENDED:
            if before not in ENDED:
                # Its owner has requested the cancellation.
                warning = status.phase is Phase.FAILED and reason != Reason.CANCELLED
                post(body, reason, _commit_message(message, status), warning=warning)
            return
        if before == Phase.FAILED:
            _post_event(body, EventReason.RETRYING, "requested by annotation")
        if status.phase is Phase.SUSPENDED:
            if before != Phase.SUSPENDED:
                self._resumed = True
                _post_event(body, EventReason.SUSPENDED, message)
            return
        if before == Phase.SUSPENDED:
            _post_event(body, EventReason.RESUMED, "spec.suspend is false again")
        if reason == Reason.WAITING_FOR_LOCK and not self._waited:
            self._waited = True
            _post_event(body, EventReason.WAITING_FOR_LOCK, message)
        if reason in _REFUSED and status.phase is Phase.PENDING:
            if not self._refused:
                _post_event(body, EventReason.JOB_REFUSED, message, warning=True)
            self._refused = True
        yields = 0 if status.yields is None else status.yields.count
        if yields > self._yields:
            # After the last one it goes on beside writers, as its message says.
            self._yields, self._resumed = yields, True
            _post_event(body, EventReason.YIELDED, message)
        if status.attempt > self._attempt:
            # To resume on request, or after a yield, is not a failure.
            if self._attempt and not self._resumed:
                _post_event(
                    body, EventReason.RETRYING, message or f"attempt {status.attempt}", warning=True
                )
            self._attempt, self._resumed = status.attempt, False
        if status.phase is Phase.RUNNING:
            self._refused = False
        if status.phase is Phase.RUNNING and status.attempt not in self._started:
            self._started.add(status.attempt)
            _post_event(body, EventReason.JOB_STARTED, _job(status))


def _first_reason(known: Mapping[str, Any]) -> str:
    found = known.get("conditions")
    first = found[0] if isinstance(found, list) and found else None
    return str(first.get("reason", "")) if isinstance(first, Mapping) else ""


def _yields(known: object) -> int:
    count = known.get("count") if isinstance(known, Mapping) else 0
    return count if isinstance(count, int) else 0


def _post_event(body: Body, reason: str, message: str, *, warning: bool = False) -> None:
    """Post an event, and log it."""
    kind, namespace, name = key_of(body)
    _log.info(
        "event", kind=kind, namespace=namespace, name=name, reason=str(reason), message=message
    )
    post(body, reason, message, warning=warning)


_REFUSED = (Reason.JOB_REFUSED, Reason.SPARK_MISSING)
_AT_WORK = (Phase.RUNNING, Phase.RECONCILING)


def _job(status: OperationStatus) -> str:
    if status.plan is None:
        return f"attempt {status.attempt}"
    plan = status.plan
    job = f", as SparkApplication/{status.application}" if status.application else ""
    return (
        f"attempt {status.attempt}: {plan.inputs} files, {plan.input_bytes} bytes, "
        f"version {plan.read_version}{job}"
    )


def _commit_message(message: str, status: OperationStatus) -> str:
    """The message of a commit: `committed as version 4: 4971 rows updated, 31 files removed, 2
    added`, and the commits it reconciled with."""
    result = status.result
    if result is None:
        return message
    rows = result.rows_affected
    changed = [("rows", rows.updated, "updated"), ("rows", rows.deleted, "deleted"),
           ("rows", rows.inserted, "inserted"),
           ("rows", rows.upserted or 0, "upserted")] if rows else []  # fmt: skip
    changed += [
        ("files", result.files_removed or 0, "removed"),
        ("files", result.files_added or 0, "added"),
    ]
    changes = ", ".join(f"{count} {what} {how}" for what, count, how in changed if count)
    head, _, met = message.partition(": ")
    return ": ".join(filter(None, [head, "; ".join(filter(None, [changes, met]))]))
