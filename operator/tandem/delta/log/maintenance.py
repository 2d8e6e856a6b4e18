"""The maintenance that table properties require after a commit: a checkpoint, and log clean-up.

A failure does not affect the commit: it becomes a line of the report. A checkpoint
is due when `delta.checkpointInterval` commits, of any writer, follow the last one: with several
writers, no single one may commit a version that is a multiple of the interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tandem.delta.log.checkpoint_write import unsupported_reason, write_checkpoint
from tandem.delta.log.cleanup import clean
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import read_hint
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import checkpoint_interval
from tandem.errors import TandemError


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What was done: the version of the checkpoint written, the number of objects removed, and
    notes on failures and on what is left to other writers."""

    checkpoint: int | None = None
    removed: int = 0
    notes: tuple[str, ...] = ()


def maintain(
    log: DeltaLog, snapshot: Snapshot, *, now_ms: int, in_use_from: int | None = None
) -> MaintenanceReport:
    """Do the maintenance that is due after the commit of `snapshot`. Never raises an error of the
    table or its store.

    Clean-up follows a checkpoint only, as in Spark. `in_use_from`: see `plan_cleanup`.
    """
    notes: list[str] = []
    written: int | None = None
    removed = 0
    try:
        if not is_due(log, snapshot):
            return MaintenanceReport()
        reason = unsupported_reason(snapshot.protocol, snapshot.metadata)
        if reason is not None:
            return MaintenanceReport(notes=(f"no checkpoint: {reason}",))
        written = write_checkpoint(log, snapshot, now_ms=now_ms).version
        removed = clean(
            log.store, snapshot, now_ms=now_ms, in_use_from=in_use_from, budget=log.budget
        )
    except (TandemError, ValueError, OSError, pa.ArrowException) as error:
        step = "checkpoint" if written is None else "log clean-up"
        notes.append(f"{step} failed: {error}")
    return MaintenanceReport(written, removed, tuple(notes))


def is_due(log: DeltaLog, snapshot: Snapshot) -> bool:
    """Whether a checkpoint is due. Raises: ValueError for an invalid property, StorageError."""
    interval = checkpoint_interval(snapshot.configuration)
    last = max(read_hint(log.store) or 0, snapshot.checkpoint_version or 0)
    return snapshot.version - last >= interval
