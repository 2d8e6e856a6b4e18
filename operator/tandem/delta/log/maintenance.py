"""The maintenance that table properties require after a commit: a checkpoint, and log clean-up.

A failure does not affect the commit: it becomes a line of the report. A checkpoint
is due when `delta.checkpointInterval` commits, of any writer, follow the last one: with several
writers, no single one may commit a version that is a multiple of the interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tandem.delta.log import checkpoint as checkpoint_read
from tandem.delta.log import names
from tandem.delta.log.checkpoint_write import unsupported_reason, write_checkpoint
from tandem.delta.log.delta_log import DeltaLog, monotonic_timestamps
from tandem.delta.log.listing import Checkpoint, Listing, read_hint, read_log
from tandem.delta.log.names import LogFileKind
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import checkpoint_interval, cleans_log, log_retention_ms
from tandem.errors import CorruptLog, TandemError
from tandem.storage.store import ObjectInfo, Store

# Removing expired parts of the log (protocol, "Metadata Cleanup").
#
# Only objects before the newest complete checkpoint that is itself older than the retention are
# removed. That checkpoint, its commit and everything after them stay, and the checkpoint is read
# before anything is removed. Commits are removed before checkpoints, and oldest first, so that a
# clean-up that is killed leaves a valid log that begins later.


_DAY_MS = 86_400_000


def plan_cleanup(
    store: Store,
    snapshot: Snapshot,
    *,
    now_ms: int,
    in_use_from: int | None = None,
    retention_ms: int | None = None,
) -> tuple[ObjectInfo, ...]:
    """The objects that may be removed, in this order.

    Args:
        snapshot: the latest one.
        now_ms: Unix milliseconds; the retention counts back from here to midnight UTC.
        in_use_from: the oldest version whose commits a running operation still needs.
        retention_ms: None if the properties of the table decide whether, and when, files expire.
    Raises: ValueError (a property is invalid), CorruptLog (the checkpoint to rely on cannot be
        read), StorageError.
    """
    if retention_ms is None:
        if not cleans_log(snapshot.configuration):
            return ()
        retention_ms = log_retention_ms(snapshot.configuration)
    if "checkpointProtection" in snapshot.protocol.writer_features:
        return ()  # the feature's rules for history are unknown to us
    cutoff = now_ms - retention_ms
    cutoff -= cutoff % _DAY_MS
    listing = read_log(store)
    base = _cutoff_checkpoint(listing, cutoff, in_use_from)
    if base is None:
        return ()
    files = tuple(_expired(store, base.version, cutoff))
    if files:
        checkpoint_read.read(store, base)
    return files


def clean(
    store: Store,
    snapshot: Snapshot,
    *,
    now_ms: int,
    in_use_from: int | None = None,
) -> int:
    """Remove the objects of `plan_cleanup`, then sidecars that no checkpoint refers to any more.
    Returns how many objects were removed. Raises: as `plan_cleanup`."""
    files = plan_cleanup(store, snapshot, now_ms=now_ms, in_use_from=in_use_from)
    if not files:
        return 0
    for file in files:
        store.delete([file.path])
    sidecars = list(_orphaned_sidecars(store, now_ms))
    store.delete(sidecars)
    return len(files) + len(sidecars)


def _cutoff_checkpoint(
    listing: Listing, cutoff_ms: int, in_use_from: int | None
) -> Checkpoint | None:
    """The newest checkpoint not newer than the newest commit not newer than the cut-off."""
    versions = sorted(listing.commits)
    times = monotonic_timestamps([listing.commits[v].modified_ms for v in versions])
    old = [v for v, time in zip(versions, times, strict=True) if time <= cutoff_ms]
    if not old:
        return None
    limit = old[-1] if in_use_from is None else min(old[-1], in_use_from)
    usable = [
        c
        for c in listing.checkpoints
        # Its commit must be there, too: a checkpoint has no commitInfo.
        if c.version <= limit and c.version in listing.commits
    ]
    return usable[-1] if usable else None


def _expired(store: Store, keep_from: int, cutoff_ms: int) -> Iterator[ObjectInfo]:
    commits: list[ObjectInfo] = []
    beside: list[ObjectInfo] = []
    checkpoints: list[ObjectInfo] = []
    for meta in store.list(names.LOG):
        file = names.parse(meta.path.rsplit("/", 1)[-1])
        if file is None or meta.path.count("/") != 1:
            continue
        compacted = file.kind is LogFileKind.COMPACTED and file.version <= keep_from
        if file.version >= keep_from and not compacted:
            continue
        if meta.modified_ms > cutoff_ms:
            continue  # never newer than the retention, whatever its version
        match file.kind:
            case LogFileKind.COMMIT:
                commits.append(meta)
            case LogFileKind.CHECKSUM | LogFileKind.COMPACTED:
                beside.append(meta)
            case _:
                checkpoints.append(meta)
    yield from commits
    yield from beside
    yield from checkpoints


def _orphaned_sidecars(store: Store, now_ms: int) -> Iterator[str]:
    """Sidecars that no remaining checkpoint refers to, and that are older than a day before
    midnight UTC, since a checkpoint may be in progress; none while any checkpoint cannot be
    read."""
    limit = now_ms - _DAY_MS
    limit -= limit % _DAY_MS
    old: list[ObjectInfo] = [m for m in store.list(names.SIDECARS) if m.modified_ms < limit]
    if not old:
        return
    used: set[str] = set()
    for checkpoint in read_log(store).checkpoints:
        try:
            used |= set(checkpoint_read.sidecar_paths(store, checkpoint))
        except CorruptLog:
            return
    yield from (m.path for m in old if m.path not in used)


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
        removed = clean(log.store, snapshot, now_ms=now_ms, in_use_from=in_use_from)
    except (TandemError, ValueError, OSError, MemoryError, pa.ArrowException) as error:
        step = "checkpoint" if written is None else "log clean-up"
        notes.append(f"{step} failed: {str(error) or type(error).__name__}")
    return MaintenanceReport(written, removed, tuple(notes))


def is_due(log: DeltaLog, snapshot: Snapshot) -> bool:
    """Whether a checkpoint is due. Raises: ValueError for an invalid property, StorageError."""
    interval = checkpoint_interval(snapshot.configuration)
    last = max(read_hint(log.store) or 0, snapshot.checkpoint_version or 0)
    return snapshot.version - last >= interval
