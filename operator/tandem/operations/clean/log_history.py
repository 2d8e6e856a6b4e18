"""What the log still records of removed files: which commits removed them and when, and which
commits are ours. The reading side of cleaning.

A checkpoint keeps `remove` actions for the table's retention; older ones are found in commits
only. So reading begins at a checkpoint that is old enough for the question, or at version 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import dv
from tandem.delta.actions import DeletionVector, RemoveFile, Txn
from tandem.delta.log import checkpoint as checkpoint_read
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import Checkpoint, Listing, read_log
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import CorruptLog, LocationNotAllowed
from tandem.operations.attempt import paths
from tandem.planning.cleaning import ALWAYS, Tombstone
from tandem.storage.paths import is_absolute, object_path, resolve

_HOUR_MS = 3_600_000
_AT_ONCE = 500
"""Commits in memory at a time."""


@dataclass
class RemovalHistory:
    """`commits` are those that record a success of ours: operation → version, time (Unix
    milliseconds). All removals since `known_from_ms` and since `known_from_version` are among the
    tombstones."""

    tombstones: list[Tombstone] = field(default_factory=list)
    commits: dict[str, tuple[int, int]] = field(default_factory=dict)
    known_from_ms: int = ALWAYS
    known_from_version: int = 0


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """`since_ms` and `reads`: the time and the versions from which on all removals must be known;
    None for all that the log holds. `kept_ms` is how long checkpoints keep removals."""

    since_ms: int | None
    reads: tuple[int, ...]
    kept_ms: int


def read_removals(log: DeltaLog, latest: Snapshot, query: HistoryQuery) -> RemovalHistory:
    """The removals and our commits, as far back as `query` requires.

    Raises: LogGap if a clean-up of the log runs meanwhile, CorruptLog, StorageError.
    """
    listing = read_log(log.store, 0, log.account())
    base = _base(listing, latest.version, query)
    past = RemovalHistory()
    first = 0
    location = log.store.location
    if base is not None:
        first = base.version + 1
        written_ms = base.files[0].modified_ms
        past.known_from_ms = written_ms - query.kept_ms
        past.known_from_version = base.version
        for gone in checkpoint_read.read_removes(log.store, base, log.account()):
            when = gone.deletion_ms or written_ms
            past.tombstones += _tombstones(gone, base.version, when, location)
    for begin in range(first, latest.version + 1, _AT_ONCE):
        for commit in log.commits(begin, min(begin + _AT_ONCE - 1, latest.version)):
            for gone in commit.removes:
                # A writer's wrong clock must not make a removal older than its commit.
                when = max(gone.deletion_ms or 0, commit.timestamp_ms)
                past.tombstones += _tombstones(gone, commit.version, when, location)
            for action in commit.actions:
                if isinstance(action, Txn):
                    operation = paths.operation_of_app(action.app_id)
                    if action.app_id == paths.success_app(operation):
                        past.commits[operation] = (commit.version, commit.timestamp_ms)
    return past


def _base(listing: Listing, latest: int, query: HistoryQuery) -> Checkpoint | None:
    """The checkpoint to begin at; None to begin at version 0."""
    usable = []
    for checkpoint in reversed(listing.checkpoints):
        if checkpoint.version > latest:
            continue
        if listing.missing(checkpoint.version + 1, latest) is not None:
            break  # older ones need even more commits
        if query.since_ms is not None:
            keeps_ms = checkpoint.files[0].modified_ms - query.kept_ms + _HOUR_MS
            if keeps_ms <= query.since_ms and all(checkpoint.version <= r for r in query.reads):
                return checkpoint
        usable.append(checkpoint)
    if listing.missing(0, latest) is None:
        return None
    if not usable:
        raise CorruptLog("no version can be rebuilt", resource=str(latest))
    return usable[-1]


def _tombstones(
    gone: RemoveFile, version: int, removed_ms: int, location: str
) -> Iterator[Tombstone]:
    vector = gone.deletion_vector
    file = "" if vector is None or vector.storage != "u" else dv.file_path(vector)
    # A file outside of the table is not ours to delete; its deletion vector may be.
    for path in listed_paths(object_path(gone.logged_path), location) or ("",):
        yield Tombstone(path, file, removed_ms, version)


def live_files(snapshot: Snapshot) -> frozenset[str]:
    """Paths, relative to the table, of all data files and deletion vectors of a version."""
    found: set[str] = set()
    location = snapshot.location
    for chunk in snapshot.files["path"].chunks:
        for path in chunk.to_pylist():
            found.update(protected_paths(object_path(path), location))
    for path in _vectors(snapshot.files["deletion_vector"]):
        found.update(protected_paths(path, location))
    return frozenset(found)


def _vectors(column: pa.ChunkedArray) -> Iterator[str]:
    for chunk in column.chunks:
        for storage in ("u", "p"):
            there = pc.equal(pc.struct_field(chunk, "storageType"), storage)
            named = chunk.filter(pc.fill_null(there, False))
            for text in pc.unique(pc.struct_field(named, "pathOrInlineDv")).to_pylist():
                yield dv.file_path(DeletionVector(storage, text, 0, 0))


def protected_paths(path: str, location: str) -> tuple[str, ...]:
    """The paths under which a listing may show a file that must stay. A file that seems to lie
    outside of the table may lie inside (links, another name of the bucket): then every suffix of
    its path is kept."""
    found = listed_paths(path, location)
    if found:
        return found
    parts = path.split("/")
    return tuple("/".join(parts[first:]) for first in range(1, len(parts)))


def listed_paths(path: str, location: str) -> tuple[str, ...]:
    """The paths under which a listing may show a file: as logged, and normalized."""
    if is_absolute(path):
        try:
            return (resolve(path, location).key,)
        except LocationNotAllowed:
            return ()  # of another table
    plain = posixpath.normpath(path)
    return (path,) if plain == path else (path, plain)
