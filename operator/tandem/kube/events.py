"""Kubernetes Events: the few moments of a resource's life that people want to be told.

Reasons are fixed, messages are those of the status, which hold no secrets. Must be called in
the context of a kopf handler, whose queue posts them in the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import kopf

from tandem.errors import Reason
from tandem.kube.kinds import Body
from tandem.spec.status import ENDED, OperationStatus, Phase

_LONGEST = 1000


class Note(StrEnum):
    """Reasons of events, beside those of `tandem.errors.Reason` with which operations end."""

    WAITING_FOR_LOCK = "WaitingForLock"
    JOB_STARTED = "JobStarted"
    RETRYING = "Retrying"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    CANCELLED = "Cancelled"


def post(body: Body, reason: str, message: str, *, warning: bool = False) -> None:
    """One event about an object."""
    reference: Any = {
        "apiVersion": body.get("apiVersion", "tandem.dev/v1alpha1"),
        "kind": body["kind"],
        "metadata": {
            name: body["metadata"][name]
            for name in ("name", "namespace", "uid", "resourceVersion")
            if name in body["metadata"]
        },
    }
    text = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
    kopf.event(reference, type="Warning" if warning else "Normal", reason=reason, message=text)


class Narrator:
    """Tells the story of one operation from its statuses, each turn once.

    Args:
        known: its status when we came: what it says has been told.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._phase = str(known.get("phase", ""))
        self._attempt = int(known.get("attempt", 0))
        self._waited = self._phase not in ("", Phase.PENDING)
        self._started = {self._attempt} if self._phase in _AT_WORK else set[int]()

    def listen(self, body: Body, status: OperationStatus) -> None:
        """Say what is new."""
        before, self._phase = self._phase, status.phase
        first = status.conditions[0] if status.conditions else None
        reason = first.reason if first is not None else ""
        message = first.message if first is not None else ""
        if status.phase in ENDED:
            if before not in ENDED:
                failed = status.phase is Phase.FAILED
                post(body, reason, message or _summary(status), warning=failed)
            return
        if before == Phase.FAILED:
            post(body, Note.RETRYING, "asked for by annotation")
        if status.phase is Phase.SUSPENDED:
            if before != Phase.SUSPENDED:
                post(body, Note.SUSPENDED, message)
            return
        if before == Phase.SUSPENDED:
            post(body, Note.RESUMED, "spec.suspend is false again")
        if reason == Reason.WAITING_FOR_LOCK and not self._waited:
            self._waited = True
            post(body, Note.WAITING_FOR_LOCK, message)
        if status.attempt and self._attempt and status.attempt > self._attempt:
            post(body, Note.RETRYING, message or f"attempt {status.attempt}", warning=True)
        self._attempt = max(self._attempt, status.attempt)
        if status.phase is Phase.RUNNING and status.attempt not in self._started:
            self._started.add(status.attempt)
            post(body, Note.JOB_STARTED, _job(status))


_AT_WORK = (Phase.RUNNING, Phase.RECONCILING)


def _job(status: OperationStatus) -> str:
    if status.plan is None:
        return f"attempt {status.attempt}"
    plan = status.plan
    return (
        f"attempt {status.attempt}: {plan.inputs} files, {plan.input_bytes} bytes, "
        f"version {plan.read_version}"
    )


def _summary(status: OperationStatus) -> str:
    result = status.result
    if result is None or result.version is None:
        return ""
    parts = [f"version {result.version}"]
    if result.files_added is not None:
        parts.append(f"{result.files_added} files added")
    if result.files_removed is not None:
        parts.append(f"{result.files_removed} removed")
    return ", ".join(parts)
