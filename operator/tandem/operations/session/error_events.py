"""The event that an exception of an effect becomes. Pure."""

from __future__ import annotations

from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    DataFileMissing,
    ManifestInvalid,
    ObjectNotFound,
    OutputMissing,
    RowMapInvalid,
    StorageError,
    StorageFull,
    TandemError,
    TooLarge,
    Unreachable,
)
from tandem.operations.machine.events import CommitUnknown, Effect, EffectFailed, Event, Point

_FRESH = (ManifestInvalid, RowMapInvalid, OutputMissing, DataFileMissing)
"""Failures that another attempt, with a plan of its own, may not meet."""


def failure_of(effect: Effect, error: TandemError) -> Event:
    """What an error of an effect means to the machine."""
    # A table that is too large waits until it is smaller, or may be larger.
    if isinstance(error, Unreachable | TooLarge):
        return EffectFailed(effect, error.reason, str(error), retryable=True, patient=True)
    lasting = isinstance(error, AccessDenied | StorageFull | ObjectNotFound | AlreadyExists)
    passing = isinstance(error, StorageError) and not lasting
    # The outcome of a put is never assumed: it is looked up first.
    if effect.point is Point.PUT_COMMIT and passing:
        return CommitUnknown()
    fresh = isinstance(error, (*_FRESH, ObjectNotFound))
    return EffectFailed(effect, error.reason, str(error), retryable=passing, fresh=fresh)
