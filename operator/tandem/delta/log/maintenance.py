"""The maintenance that table properties require after a commit: a checkpoint, and log clean-up.

A failure does not affect the commit: it becomes a line of the report. A checkpoint is due when
`delta.checkpointInterval` commits, of any writer, follow the last one: with several writers, no
single one may commit a version that is a multiple of the interval.

Checkpoints are classic V1 ones (protocol, "Checkpoints"; why our own: decision 0002): one Parquet
file with a row for each action. The file actions go from the snapshot's columns to the file without
becoming Python objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandem.delta.actions import Metadata, Protocol, RemoveFile
from tandem.delta.log import checkpoint as checkpoint_read
from tandem.delta.log import codec, files, listing
from tandem.delta.log.commit_log import MaintenanceRight
from tandem.delta.log.delta_log import DeltaLog, monotonic_timestamps
from tandem.delta.log.files import FileKey, Replay, fold
from tandem.delta.log.listing import Checkpoint, Listing, LogFileKind, read_hint, read_log
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import (
    checkpoint_interval,
    cleans_log,
    flag,
    log_retention_ms,
    tombstone_retention_ms,
)
from tandem.delta.protocol import FEATURES, writer_features
from tandem.errors import CorruptLog, TandemError
from tandem.json_types import Json
from tandem.storage.store import ObjectInfo, Store

_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", files.STRINGS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", files.STRINGS),
        ("deletionVector", files.DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", pa.string()),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", files.STRINGS),
        ("size", pa.int64()),
        ("deletionVector", files.DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", files.STRINGS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("createdTime", pa.int64()),
        ("configuration", files.STRINGS),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_DOMAIN = pa.struct(
    [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
)
SCHEMA = pa.schema(
    [
        ("txn", _TXN),
        ("add", _ADD),
        ("remove", _REMOVE),
        ("metaData", _METADATA),
        ("protocol", _PROTOCOL),
        ("domainMetadata", _DOMAIN),
    ]
)
_ADD_SOURCES = {
    "path": "path",
    "partitionValues": "partition_values",
    "size": "size",
    "modificationTime": "modified_ms",
    "dataChange": "data_change",
    "stats": "stats",
    "tags": "tags",
    "deletionVector": "deletion_vector",
    **{field: name for name, (field, _) in files.EXTRA_COLUMNS.items()},
}
_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that was written: `actions` rows, `size` in bytes."""

    version: int
    path: str
    actions: int
    adds: int
    size: int


def unsupported_reason(protocol: Protocol, metadata: Metadata) -> str | None:
    """Why we do not write checkpoints of this table, None if we do. Others still can."""
    unknown = sorted(writer_features(protocol) - FEATURES.keys())
    if unknown:
        return f"unknown table features {', '.join(unknown)} may add actions to keep"
    if protocol.min_reader > 3 or protocol.min_writer > 7:
        return "the protocol is newer than we know"
    if "checkpointProtection" in protocol.writer_features:
        return "checkpointProtection guards this table's checkpoints"
    if flag(metadata.configuration, "delta.checkpoint.writeStatsAsStruct", default=False):
        return "delta.checkpoint.writeStatsAsStruct asks for statistics as columns"
    if not flag(metadata.configuration, "delta.checkpoint.writeStatsAsJson", default=True):
        return "delta.checkpoint.writeStatsAsJson forbids statistics as text"
    return None


def write_checkpoint(log: DeltaLog, snapshot: Snapshot, *, now_ms: int) -> WrittenCheckpoint:
    """Write the classic checkpoint of `snapshot.version` and point `_last_checkpoint` to it.

    Tombstones are kept until `delta.deletedFileRetentionDuration` after `now_ms` (Unix ms).
    The hint is only moved once the file's footer has been read back, and never backwards.
    Raises: ValueError (a property is invalid), CorruptLog, LogGap, StorageError.
    """
    store = log.store
    log.commit_log.publish(snapshot.version)
    oldest = now_ms - tombstone_retention_ms(snapshot.configuration)
    removes = [r for r in _tombstones(log, snapshot) if (r.deletion_ms or 0) > oldest]
    path = listing.checkpoint_path(snapshot.version)
    rows = 0
    with (
        store.open_output(path) as sink,
        pq.ParquetWriter(sink, SCHEMA, compression="snappy") as writer,
    ):
        for batch in _batches(snapshot, removes):
            writer.write_batch(batch)
            rows += batch.num_rows
    size = _check(store, path, rows)
    written = WrittenCheckpoint(snapshot.version, path, rows, snapshot.num_files, size)
    if (read_hint(store) or -1) < snapshot.version:
        store.put(listing.LAST_CHECKPOINT, json.dumps(_hint(written)).encode())
    return written


def _hint(written: WrittenCheckpoint) -> Json:
    return {
        "version": written.version,
        "size": written.actions,
        "sizeInBytes": written.size,
        "numOfAddFiles": written.adds,
    }


def _check(store: Store, path: str, rows: int) -> int:
    """The size of the file, after reading its footer back."""
    with store.open_input(path) as source:
        try:
            size = source.seek(0, 2)
            found = pq.ParquetFile(source).metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            found = f"{type(error).__name__}: {error}"
    if found != rows:
        store.delete([path])
        raise CorruptLog(
            "the checkpoint that was just written cannot be read back, and was removed",
            resource=path,
            found=found,
            expected=f"{rows} rows",
            remedy="No data is lost: all commits exist. Check the store",
        )
    return size


def _tombstones(log: DeltaLog, snapshot: Snapshot) -> Iterator[RemoveFile]:
    """The tombstones at the snapshot's version: those of the newest checkpoint that can be read,
    then those of the commits since."""
    listing = log.commit_log.tail(0)
    usable = [c for c in listing.checkpoints if c.version <= snapshot.version]
    base, known = -1, dict[FileKey, RemoveFile]()
    for checkpoint in reversed(usable):
        try:
            removes = checkpoint_read.read_removes(
                log.store, checkpoint, parallel=log.parallel_reads
            )
            known = {r.key: r for r in removes}
        except CorruptLog:
            continue
        base = checkpoint.version
        break
    commits = log.commits(base + 1, snapshot.version)
    # Sorted, so that two writers of one checkpoint write the same.
    for _, action in sorted(
        fold(Replay(files=known), commits).files.items(), key=lambda item: str(item[0])
    ):
        if isinstance(action, RemoveFile):
            yield action


def _batches(snapshot: Snapshot, removes: list[RemoveFile]) -> Iterator[pa.RecordBatch]:
    protocol = codec.encode_action(snapshot.protocol)["protocol"]
    metadata = codec.encode_action(snapshot.metadata)["metaData"]
    yield _batch("protocol", _rows([protocol], _PROTOCOL))
    yield _batch("metaData", _rows([metadata], _METADATA))
    txns = [codec.encode_action(snapshot.txns[k])["txn"] for k in sorted(snapshot.txns)]
    if txns:
        yield _batch("txn", _rows(txns, _TXN))
    domains = [snapshot.domains[k] for k in sorted(snapshot.domains)]
    if domains:
        bodies = [codec.encode_action(d)["domainMetadata"] for d in domains]
        yield _batch("domainMetadata", _rows(bodies, _DOMAIN))
    for start in range(0, len(removes), _BATCH):
        yield _batch("remove", _rows(map(_remove, removes[start : start + _BATCH]), _REMOVE))
    for piece in snapshot.files.to_batches(max_chunksize=_BATCH):
        columns = [piece.column(_ADD_SOURCES[f.name]) for f in _ADD]
        columns[_ADD.get_field_index("path")] = files.logged_paths(piece)
        # What a checkpoint says of a file changes no data.
        columns[_ADD.get_field_index("dataChange")] = pc.fill_null(
            pa.nulls(piece.num_rows, pa.bool_()), False
        )
        yield _batch("add", pa.StructArray.from_arrays(columns, fields=list(_ADD)))


def _remove(action: RemoveFile) -> Json:
    body = codec.encode_action(action)["remove"]
    return {k: v for k, v in body.items() if k not in ("stats", "tags")} | {"dataChange": False}


def _rows(bodies: Iterable[Json], type_: pa.StructType) -> pa.Array:
    return pa.array([_known(body, type_) for body in bodies], type_)


def _known(body: Any, type_: pa.DataType) -> Any:
    """The fields that the checkpoint's schema has, with maps in the form that Arrow expects."""
    if body is None:
        return None
    if pa.types.is_map(type_):
        return list(body.items())
    if pa.types.is_struct(type_):
        return {f.name: _known(body.get(f.name), f.type) for f in type_}
    return body


def _batch(kind: str, values: pa.Array) -> pa.RecordBatch:
    columns = [
        values if field.name == kind else pa.nulls(len(values), field.type) for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


# Removing expired parts of the log (protocol, "Metadata Cleanup").
#
# Only objects before the newest complete checkpoint that is itself older than the retention are
# removed; in a catalog's table also staged files up to its version, which are published or lost to
# others. That checkpoint, its commit and everything after them stay, and the checkpoint is read
# before anything is removed. Commits are removed before checkpoints, and oldest first, so that a
# clean-up that is killed leaves a valid log that begins later.


_DAY_MS = 86_400_000


def plan_cleanup(
    log: DeltaLog,
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
    found = log.commit_log.tail(0)
    base = _cutoff_checkpoint(found, cutoff, in_use_from)
    if base is None:
        return ()
    files = tuple(_expired(log, base.version, cutoff))
    if files:
        checkpoint_read.read(log.store, base)
    return files


def clean(
    log: DeltaLog,
    snapshot: Snapshot,
    *,
    now_ms: int,
    in_use_from: int | None = None,
) -> int:
    """Remove the objects of `plan_cleanup`, then sidecars that no checkpoint refers to any more.
    Returns how many objects were removed. Raises: CatalogForbids, and as `plan_cleanup`."""
    files = plan_cleanup(log, snapshot, now_ms=now_ms, in_use_from=in_use_from)
    if not files:
        return 0
    log.commit_log.require(MaintenanceRight.METADATA_CLEANUP)
    for file in files:
        log.store.delete([file.path])
    sidecars = list(_orphaned_sidecars(log.store, now_ms))
    log.store.delete(sidecars)
    return len(files) + len(sidecars)


def _cutoff_checkpoint(
    found: Listing, cutoff_ms: int, in_use_from: int | None
) -> Checkpoint | None:
    """The newest checkpoint not newer than the newest commit not newer than the cut-off, and older
    than what a catalog has staged files of."""
    versions = sorted(found.commits)
    times = monotonic_timestamps([found.commits[v].modified_ms for v in versions])
    old = [v for v, time in zip(versions, times, strict=True) if time <= cutoff_ms]
    if not old:
        return None
    unpublished = (
        v - 1 for v, meta in found.commits.items() if meta.path.startswith(listing.STAGED)
    )
    limit = min(old[-1], old[-1] if in_use_from is None else in_use_from, *unpublished)
    usable = [
        c
        for c in found.checkpoints
        # Its commit must be there, too: a checkpoint has no commitInfo.
        if c.version <= limit and c.version in found.commits
    ]
    return usable[-1] if usable else None


def _expired(log: DeltaLog, keep_from: int, cutoff_ms: int) -> Iterator[ObjectInfo]:
    commits: list[ObjectInfo] = []
    staged: list[ObjectInfo] = []
    beside: list[ObjectInfo] = []
    checkpoints: list[ObjectInfo] = []
    for meta in log.store.list(listing.LOG):
        folder, _, name = meta.path.rpartition("/")
        file = listing.parse(name)
        is_staged = file is not None and file.kind is LogFileKind.STAGED
        if file is None or folder != (listing.STAGED if is_staged else listing.LOG):
            continue
        if is_staged and not log.commit_log.managed:
            continue  # whose they are, and which are commits, only a catalog knows
        # Of the version itself, its checkpoint and its published commit stay.
        goes = file.version < keep_from or (
            file.version == keep_from and file.kind in (LogFileKind.COMPACTED, LogFileKind.STAGED)
        )
        if not goes:
            continue
        if meta.modified_ms > cutoff_ms:
            continue  # never newer than the retention, whatever its version
        match file.kind:
            case LogFileKind.COMMIT:
                commits.append(meta)
            case LogFileKind.STAGED:
                staged.append(meta)
            case LogFileKind.CHECKSUM | LogFileKind.COMPACTED:
                beside.append(meta)
            case _:
                checkpoints.append(meta)
    yield from commits
    yield from staged
    yield from beside
    yield from checkpoints


def _orphaned_sidecars(store: Store, now_ms: int) -> Iterator[str]:
    """Sidecars that no remaining checkpoint refers to, and that are older than a day before
    midnight UTC, since a checkpoint may be in progress; none while any checkpoint cannot be
    read."""
    limit = now_ms - _DAY_MS
    limit -= limit % _DAY_MS
    old: list[ObjectInfo] = [m for m in store.list(listing.SIDECARS) if m.modified_ms < limit]
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
        removed = clean(log, snapshot, now_ms=now_ms, in_use_from=in_use_from)
    except (TandemError, ValueError, OSError, MemoryError, pa.ArrowException) as error:
        step = "checkpoint" if written is None else "log clean-up"
        notes.append(f"{step} failed: {str(error) or type(error).__name__}")
    return MaintenanceReport(written, removed, tuple(notes))


def is_due(log: DeltaLog, snapshot: Snapshot) -> bool:
    """Whether a checkpoint is due. Raises: ValueError for an invalid property, StorageError."""
    interval = checkpoint_interval(snapshot.configuration)
    last = max(read_hint(log.store) or 0, snapshot.checkpoint_version or 0)
    return snapshot.version - last >= interval
