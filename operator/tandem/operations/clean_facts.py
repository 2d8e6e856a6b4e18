"""The facts that cleaning decides on: a table's operations, and the files that were removed.

Only the log determines the state of an attempt: one that is neither committed nor abandoned there
may yet commit, whatever other records say.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import dv
from tandem.delta.actions import DeletionVector, RemoveFile, Txn
from tandem.delta.change_feed import FOLDER, folder_of
from tandem.delta.log import checkpoint as checkpoint_read
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import Checkpoint, Listing
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import tombstone_retention_ms
from tandem.errors import CorruptLog, LocationNotAllowed
from tandem.mergelog.versions import ROLLBACK
from tandem.operations import attempt_files, garbage
from tandem.operations.attempt_files import (
    FACTS,
    ID,
    ROOT,
    AttemptRecord,
    PlanRecord,
    ResultRecord,
    split_attempt,
)
from tandem.operations.garbage import Pin
from tandem.operations.model import Table
from tandem.operations.ports import (
    THIS_PROCESS,
    AttemptKey,
    Clock,
    LocalClaims,
    Nonces,
    Processes,
    ProcessId,
    SystemClock,
    SystemNonces,
    SystemProcesses,
)
from tandem.operations.session import commit_actions, recovery
from tandem.planning.cleaning import (
    ALWAYS,
    CleaningFacts,
    FileCategory,
    ListedFile,
    OperationEnd,
    Tombstone,
    UnfinishedAttempt,
)
from tandem.spec.replace import TableReplace
from tandem.spec.status import Phase
from tandem.storage.paths import is_absolute, object_path, resolve
from tandem.storage.store import ObjectInfo
from tandem.timeline.names import hold_at

# The category of each file of a table, by its name alone. Pure.


_OURS = re.compile(
    rf"(?:(?P<folder>{ROOT}/dv/|{FACTS}/|{folder_of('')})?{ID}-(?P<number>[1-9][0-9]{{0,2}})/"
    rf"|{ROOT}/rowmaps/{ID}-(?P<map>[1-9][0-9]{{0,2}})\.rowmap\Z"
    rf"|{ROOT}/operations/{ID}/(?P<rest>.+)\Z)"
)
_BY_FOLDER = (
    (f"{ROOT}/probe/", FileCategory.PROBE),
    (f"{ROOT}/dv/", FileCategory.VECTORS),
    (f"{FACTS}/", FileCategory.FACTS),
    (folder_of(""), FileCategory.CHANGES),
    (f"{FOLDER}/", FileCategory.CHANGES),
)
_RECORDS = ("operation.json", "result.json", "source.json", "cutoff.json", "batches.json")


def listed(meta: ObjectInfo) -> ListedFile:
    """A file of the listing, with its category."""
    path, size, modified = meta.path, meta.size, meta.modified_ms
    match = _OURS.match(path)
    if match is None:
        part = next((p for start, p in _BY_FOLDER if path.startswith(start)), FileCategory.OTHER)
        if hold_at(path, modified) is not None:
            part = FileCategory.HOLD
        return ListedFile(path, size, modified, part)
    if match["number"]:
        part = dict(_BY_FOLDER).get(match["folder"], FileCategory.DATA)
        return ListedFile(path, size, modified, part, match[2], int(match["number"]))
    if match["map"]:
        return ListedFile(path, size, modified, FileCategory.ROW_MAP, match[4], int(match["map"]))
    split = split_attempt(path)
    if split is not None:
        part = FileCategory.ROUND if split[1].startswith("rounds/") else FileCategory.ATTEMPT
        return ListedFile(path, size, modified, part, match[6], split[0])
    parts = {"ending.json": FileCategory.ENDING, **dict.fromkeys(_RECORDS, FileCategory.RECORD)}
    return ListedFile(path, size, modified, parts.get(match["rest"], FileCategory.OTHER), match[6])


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """Versions that unfinished plans read or readers hold, and files that they or other versions
    need."""

    reads: tuple[int, ...] = ()
    files: frozenset[str] = frozenset()

    def with_more(self, more: NeededFiles) -> NeededFiles:
        return NeededFiles((*self.reads, *more.reads), self.files | more.files)


@dataclass(frozen=True)
class CleaningDependencies:
    """What a cleaning works with."""

    clock: Clock = field(default_factory=SystemClock)
    processes: Processes = field(default_factory=SystemProcesses)
    nonces: Nonces = field(default_factory=SystemNonces)
    local_claims: LocalClaims = THIS_PROCESS


class FactsReader:
    """Gathers the facts of one table."""

    def __init__(self, table: Table, dependencies: CleaningDependencies) -> None:
        self._table = table
        self._store = table.store
        self._dependencies = dependencies

    def facts(
        self,
        latest: Snapshot,
        found: Sequence[ListedFile],
        now_ms: int,
        since_ms: int | None,
        needed: NeededFiles,
    ) -> CleaningFacts:
        """Everything that a decision needs, as of a version; `since_ms` as in
        `HistoryQuery`, `needed` is what others than this table's plans need.

        Raises: ManifestInvalid if the plan of an unfinished operation is damaged, LogGap,
            CorruptLog, StorageError.
        """
        ended = self._ended(latest, found, RemovalHistory())
        needed = needed.with_more(self._plans(found, ended)).with_more(_held(found, now_ms))
        kept_ms = tombstone_retention_ms(latest.configuration)
        feeds = any(file.part is FileCategory.CHANGES for file in found)
        query = HistoryQuery(since_ms, needed.reads, kept_ms, change_files=feeds)
        past = read_removals(self._table.log, latest, query)
        return CleaningFacts(
            now_ms,
            live_files(latest),
            past.tombstones,
            self._ended(latest, found, past),
            needed.reads,
            needed.files,
            past.known_from_ms,
            past.known_from_version,
            {
                app.removeprefix(ROLLBACK): txn.version
                for app, txn in latest.txns.items()
                if app.startswith(ROLLBACK)
            },
        )

    def unfinished(
        self, snapshot: Snapshot, found: Sequence[ListedFile]
    ) -> list[UnfinishedAttempt]:
        """Attempts that have files and may yet commit.

        Raises: ManifestInvalid, LocksUnavailable, StorageError.
        """
        operations = self._ended(snapshot, found, RemovalHistory())
        touched: dict[tuple[str, int], int] = {}
        for file in found:
            known = operations.get(file.operation_id)
            if not file.attempt or known is None or known.has_ended(file.attempt):
                continue
            if file.part is FileCategory.FACTS:
                continue
            if file.attempt == known.ended_before_start:
                continue  # its claim is its only file, and stays
            key = (file.operation_id, file.attempt)
            touched.setdefault(key, 0)
            if file.path != attempt_files.ended(*key):  # recording its end is not work on it
                touched[key] = max(touched[key], file.modified_ms)
        return [
            UnfinishedAttempt(operation_id, attempt, ms, self._lives(operation_id, attempt))
            for (operation_id, attempt), ms in sorted(touched.items())
        ]

    def _lives(self, operation_id: str, attempt: int) -> bool:
        processes = self._dependencies.processes
        key = AttemptKey(processes.me(), self._table.location, operation_id, attempt)
        if self._dependencies.local_claims.busy(key, self):
            return True
        claim = attempt_files.load(
            self._store, attempt_files.claim(operation_id, attempt), AttemptRecord
        )
        if claim is None:
            return False
        process = ProcessId(claim.host, claim.pid, claim.started)
        # If the claim names this process, the attempt is not running: no thread of ours holds it.
        return process != processes.me() and processes.alive(process)

    def _ended(
        self, snapshot: Snapshot, found: Iterable[ListedFile], past: RemovalHistory
    ) -> dict[str, OperationEnd]:
        """Every operation that the log or `_tandem` refers to."""
        attempts: dict[str, set[int]] = defaultdict(set)
        recorded: set[str] = set()
        for file in found:
            if not file.operation_id:
                continue
            attempts[file.operation_id].add(file.attempt)
            if file.path == attempt_files.result(file.operation_id):
                recorded.add(file.operation_id)
        ours = {f for f in map(attempt_files.operation_of_app, snapshot.txns) if f}
        ours |= {
            f.operation_id
            for f in found
            if f.operation_id
            and f.part not in (FileCategory.DATA, FileCategory.CHANGES, FileCategory.FACTS)
        }
        known: dict[str, OperationEnd] = {}
        for operation_id in ours:
            markers = commit_actions.txn_markers(snapshot, operation_id)
            version, when = past.commits.get(operation_id, (past.known_from_version, 0))
            ended = OperationEnd(
                markers.succeeded,
                markers.abandoned,
                markers.closed,
                logged=markers.succeeded > 0,
                recorded=operation_id in recorded,
                version=version,
                committed_ms=when,
            )
            if ended.recorded and not all(ended.has_ended(n) for n in attempts[operation_id] if n):
                ended = self._as_recorded(operation_id, ended)
            known[operation_id] = ended
        return known

    def _as_recorded(self, operation_id: str, ended: OperationEnd) -> OperationEnd:
        """The end as the result records it: the log may expire its `txn`s, by
        `delta.setTransactionRetentionDuration`."""
        result = attempt_files.load(self._store, attempt_files.result(operation_id), ResultRecord)
        if result is None:
            return ended
        if recovery.ending_before_start(self._store, operation_id, result.attempt) is not None:
            return replace(ended, ended_before_start=result.attempt)
        if result.phase == Phase.SUCCEEDED:
            return replace(ended, succeeded=result.attempt)
        return replace(ended, closed=True)

    def _plans(
        self, found: Iterable[ListedFile], operations: Mapping[str, OperationEnd]
    ) -> NeededFiles:
        """Versions and files that unfinished plans read."""
        reads: set[int] = set()
        inputs: set[str] = set()
        for path, operation_id, attempt in sorted(
            {
                (f.path, f.operation_id, f.attempt)
                for f in found
                if f.part is FileCategory.ATTEMPT and f.path.endswith("/plan.json")
            }
        ):
            if operations[operation_id].has_ended(attempt):
                continue
            plan = attempt_files.load(self._store, path, PlanRecord)
            if plan is None:
                continue
            reads.add(plan.read_version)
            if plan.kind == TableReplace.kind_name:
                # It follows rows from its start on, which may be long before its last attempt.
                start = attempt_files.cutoff_of(self._store, operation_id)
                reads.update(() if start is None else (start,))
            pin = Pin(operation_id, attempt, plan.kind, plan.read_version)
            for logged_path in garbage.inputs(self._store, pin):
                inputs.update(protected_paths(object_path(logged_path), self._table.location))
        return NeededFiles(tuple(sorted(reads)), frozenset(inputs))


def _held(found: Iterable[ListedFile], now_ms: int) -> NeededFiles:
    """What readers hold."""
    holds = (hold_at(f.path, f.modified_ms) for f in found if f.part is FileCategory.HOLD)
    return NeededFiles(tuple({hold.version for hold in holds if hold and hold.end_ms > now_ms}))


_HOUR_MS = 3_600_000
_AT_ONCE = 500
"""Commits in memory at a time."""


# What the log still records of removed files. A checkpoint keeps `remove` actions for the table's
# retention; older ones are found in commits only. So reading begins at a checkpoint that is old
# enough for the question, or at version 0.


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
    None for all that the log holds. `kept_ms` is how long checkpoints keep removals.
    `change_files`: these must be known, too, which checkpoints do not keep."""

    since_ms: int | None
    reads: tuple[int, ...]
    kept_ms: int
    change_files: bool = False


def read_removals(log: DeltaLog, latest: Snapshot, query: HistoryQuery) -> RemovalHistory:
    """The removals and our commits, as far back as `query` requires.

    Raises: LogGap if a clean-up of the log runs meanwhile, CorruptLog, StorageError.
    """
    listing = log.commit_log.tail(0)
    base = _base(listing, latest.version, query)
    past = RemovalHistory()
    first = 0
    location = log.store.location
    if base is not None:
        first = base.version + 1
        written_ms = base.files[0].modified_ms
        past.known_from_ms = written_ms - query.kept_ms
        past.known_from_version = base.version
        for gone in checkpoint_read.read_removes(log.store, base):
            when = gone.deletion_ms or written_ms
            past.tombstones += _tombstones(gone, base.version, when, location)
    for begin in range(first, latest.version + 1, _AT_ONCE):
        for commit in log.commits(begin, min(begin + _AT_ONCE - 1, latest.version)):
            for gone in commit.removes:
                # A writer's wrong clock must not make a removal older than its commit.
                when = max(gone.deletion_ms or 0, commit.timestamp_ms)
                past.tombstones += _tombstones(gone, commit.version, when, location)
            for file in commit.change_files:
                for path in listed_paths(file.path, location):
                    stone = Tombstone(path, "", commit.timestamp_ms, commit.version)
                    past.tombstones.append(stone)
            for action in commit.actions:
                if isinstance(action, Txn):
                    operation = attempt_files.operation_of_app(action.app_id)
                    if action.app_id == attempt_files.success_app(operation):
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
            kept_ms = 0 if query.change_files else query.kept_ms
            keeps_ms = checkpoint.files[0].modified_ms - kept_ms + _HOUR_MS
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
