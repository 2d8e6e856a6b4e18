"""Which files of a table may be deleted, and why. Pure: facts in, a list out; no I/O, no clock.

A file stays unless it is provably garbage. It is deleted only if no version within the retention,
no unfinished plan and no attempt that may still commit can need it:

| file | is deleted when |
|---|---|
| of an attempt that can never commit | immediately, unless a version refers to it |
| that a commit removed, of Tandem or others | its removal, and its write, are `files_ms` ago |
| of the change data feed, of Tandem or others | as one that the commit that names it removed |
| of a committed attempt, that no version refers to | it is `files_ms` old |
| an appended block that no version refers to | it is `orphans_ms` old, and rolled back |
| of the protocol: claims, plans, jobs, answers | their attempt ended and they are old |
| facts of an attempt's files | no data file of the attempt is left |
| facts of other files | they are `facts_ms` old: footers are read again |
| a row map | its compaction is `row_maps_ms` old and no plan began before it |
| the record of an operation that committed | it is `results_ms` old: the log still has it |
| a hold of a reader | it has ended |

Files that an unfinished plan reads are kept in any case (I-43): everything that was live at its
version or has become live since. A hold keeps the same. Files of other writers that no commit in
the log refers to are never touched: their writer may be about to commit them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tandem.timeline.names import hold_at

DAY_MS = 86_400_000
ALWAYS = -(1 << 62)
"""A time before all others."""
_CLOCKS_MS = 3_600_000
"""Clocks of writers may differ by so much: a checkpoint drops removals by its writer's."""


class FileCategory(StrEnum):
    """The category of a file, by its name alone."""

    DATA = "data"
    VECTORS = "deletion vectors"
    CHANGES = "change files"
    ROW_MAP = "row map"
    ROUND = "round"  # requests to a job, and its answers
    ATTEMPT = "attempt"  # claim, plan, job, progress: all other files of an attempt
    ENDING = "ending"
    RECORD = "record"  # identity and result of an operation
    BLOCK = "block"  # of an append to the log of a merge-on-read table
    HOLD = "hold"  # a reader's pin of a version
    FACTS = "facts"  # about data files, for the index
    PROBE = "probe"
    OTHER = "other"  # of another writer, or unknown


class RemovalReason(StrEnum):
    """Why a file is deleted, for display. The order is that of deletion: records of an operation
    come last, so that an interrupted cleaning can be repeated."""

    ABANDONED = "its attempt was abandoned"
    ROLLED_BACK = "its writer never committed it"
    REMOVED = "removed from the table, past the retention"
    UNNAMED = "no version names it"
    ROW_MAP = "no plan can need this row map"
    FACTS = "the data files that it describes are gone, or it is old"
    STAGING = "its attempt has ended"
    HOLD = "this hold of a reader has ended"
    RECORD = "its operation ended long ago"
    ARCHIVED = "a version of the log, past its retention"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the listing. `operation_id` and `attempt` are "" and 0 if its name has none, as
    are `session` and `upload`; `modified_ms` is from the store."""

    path: str
    size: int
    modified_ms: int
    part: FileCategory = FileCategory.OTHER
    operation_id: str = ""
    attempt: int = 0
    session: str = ""
    upload: int = 0


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A removal, or a change file, which only the history needs from the commit on that names it:
    the file, and the file of its deletion vector ("" for none). `version` is
    that of the commit, or of the checkpoint that is the only record of it: then the version is not
    earlier than the removal."""

    path: str
    vector: str
    removed_ms: int
    version: int


@dataclass(frozen=True, slots=True)
class OperationEnd:
    """What is known of an operation's attempts.

    `succeeded` and `abandoned` are attempts, 0 for none; `closed`: no further attempt may commit.
    `logged`: the log itself shows the success. `version` and `committed_ms` are of the success: if
    its commit is no longer in the log, the first version and time that are not earlier.
    `recorded`: there is a result. `ended_before_start` is the attempt with which the operation
    ended before it started, 0 for none: its claim keeps out processes that planned before and were
    paused since, so it stays.
    """

    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False
    logged: bool = False
    recorded: bool = False
    ended_before_start: int = 0
    version: int = 0
    committed_ms: int = 0

    def can_never_commit(self, attempt: int) -> bool:
        """Whether the attempt has not committed and never can. A log that shows both its success
        and its abandonment contradicts itself: then False."""
        if attempt == self.succeeded:
            return False
        return self.succeeded > 0 or self.closed or self.abandoned >= attempt

    def has_ended(self, attempt: int) -> bool:
        """Whether the attempt has ended."""
        return attempt == self.succeeded or self.can_never_commit(attempt)


@dataclass(frozen=True, slots=True)
class CleaningFacts:
    """The facts read after the listing.

    Args:
        now_ms: Unix milliseconds, by the earlier of our clock and the store's.
        live: data files and files of deletion vectors that the latest version refers to.
        tombstones: all removals since `known_from_ms`, and since `known_from_version`.
        operations: by id; a missing operation is not known to be Tandem's.
        reads: the version that each unfinished plan reads, and each that a reader holds.
        inputs: the data files that these plans read, or that a version needs beyond those that it
            refers to.
        rolled_back: session → the last upload that can no longer be committed.
    """

    now_ms: int
    live: frozenset[str] = frozenset()
    tombstones: Sequence[Tombstone] = ()
    operations: Mapping[str, OperationEnd] = field(default_factory=dict)
    reads: tuple[int, ...] = ()
    inputs: frozenset[str] = frozenset()
    known_from_ms: int = ALWAYS
    known_from_version: int = 0
    rolled_back: Mapping[str, int] = field(default_factory=dict)

    def with_dead(
        self, abandoned: Mapping[str, int], rolled_back: Mapping[str, int]
    ) -> CleaningFacts:
        """The facts as if these attempts were abandoned and these uploads rolled back: for a dry
        run."""
        known = dict(self.operations)
        for operation_id, attempt in abandoned.items():
            known[operation_id] = replace(known[operation_id], abandoned=attempt)
        rolled_back = {**self.rolled_back, **rolled_back}
        return replace(self, operations=known, rolled_back=rolled_back)


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """How long each kind of file is kept, in milliseconds. `files_ms` None: files that a version
    has ever referred to stay forever. `dead_ms`: after how long an idle attempt counts as dead;
    `orphans_ms`: a block that is not committed; `facts_ms`: facts of files of other writers."""

    files_ms: int | None
    row_maps_ms: int = 7 * DAY_MS
    staging_ms: int = 7 * DAY_MS
    dead_ms: int = 7 * DAY_MS
    results_ms: int = 365 * DAY_MS
    orphans_ms: int = DAY_MS
    facts_ms: int = 30 * DAY_MS


@dataclass(frozen=True, slots=True)
class Garbage:
    file: ListedFile
    why: RemovalReason


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """`garbage` in the order of deletion. `next_ms`: when the next file that is only too young now
    will be old enough; None if there is none. All removals up to `handled_ms` are dealt with once
    the garbage is deleted."""

    garbage: tuple[Garbage, ...]
    next_ms: int | None
    handled_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedAttempt:
    """An attempt that may yet commit. `touched_ms`: when one of its files was last written."""

    operation_id: str
    attempt: int
    touched_ms: int
    alive: bool = False


def attempts_to_abandon(
    attempts: Iterable[UnfinishedAttempt], now_ms: int, rules: CleaningRules
) -> dict[str, int]:
    """Operation → the highest attempt to abandon: all unfinished ones up to it are dead, since
    no process is known to work on them and their files have not changed for long."""
    found: dict[str, int] = {}
    lives: set[str] = set()
    for each in sorted(attempts, key=lambda a: (a.operation_id, a.attempt)):
        if each.alive or now_ms - each.touched_ms < rules.dead_ms:
            lives.add(each.operation_id)
        elif each.operation_id not in lives:
            found[each.operation_id] = each.attempt
    return found


def uploads_to_roll_back(
    found: Iterable[ListedFile], facts: CleaningFacts, rules: CleaningRules
) -> dict[str, int]:
    """Session → the last of its uploads to roll back: no version has ever named a file of it, and
    it is old."""
    judge = _Judge(facts, rules)
    uploads: dict[str, int] = {}
    for file in found:
        if file.part is FileCategory.BLOCK and judge.is_orphan(file):
            uploads[file.session] = max(file.upload, uploads.get(file.session, 0))
    return {
        session: upload
        for session, upload in uploads.items()
        if upload > facts.rolled_back.get(session, 0)
    }


def decide(found: Iterable[ListedFile], facts: CleaningFacts, rules: CleaningRules) -> CleaningPlan:
    """Which of the files found are deleted."""
    judge = _Judge(facts, rules)
    listed = list(found)
    judge.results = {f.operation_id for f in listed if f.path.endswith("/result.json")}
    garbage = [Garbage(f, why) for f in listed if (why := judge.why(f)) is not None]
    garbage += judge.facts_of_nothing(listed, {each.file.path for each in garbage})
    order = list(RemovalReason)
    garbage.sort(key=lambda g: (order.index(g.why), g.file.path))
    return CleaningPlan(tuple(garbage), judge.next_ms, judge.handled_ms)


def is_in_hidden_folder(path: str) -> bool:
    """Whether it lies in a folder that other systems' vacuum ignores, too: logs of other tables,
    whatever a log may say of them. A partition's folder may also begin with `_`."""
    return any(part[:1] in ("_", ".") and "=" not in part for part in path.split("/"))


class _Judge:
    def __init__(self, facts: CleaningFacts, rules: CleaningRules) -> None:
        self._facts = facts
        self._rules = rules
        self._oldest_read = min(facts.reads, default=None)
        self._needed = facts.live | facts.inputs
        self._named = {stone.path for stone in facts.tombstones}
        self._knows_all = False
        self._young: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self.results: set[str] = set()
        self.next_ms: int | None = None
        self.handled_ms = -1
        if rules.files_ms is not None:
            self._classify_removals(rules.files_ms)

    def _classify_removals(self, keep_ms: int) -> None:
        """Classify the removals: needed by a plan, too young, or past the retention."""
        facts = self._facts
        cutoff = self.handled_ms = facts.now_ms - keep_ms
        pinned: set[str] = set()
        for stone in facts.tombstones:
            names = [name for name in (stone.path, stone.vector) if name]
            if self._read_before(stone.version):
                pinned.update(names)
                if stone.removed_ms <= cutoff:
                    self.handled_ms = min(self.handled_ms, stone.removed_ms - 1)
            elif stone.removed_ms > cutoff:
                for name in names:
                    due = stone.removed_ms + keep_ms
                    self._young[name] = max(self._young.get(name, 0), due)
            else:
                for name in names:
                    self._removed[name] = max(self._removed.get(name, 0), stone.removed_ms)
        self._needed |= pinned
        # Only with all removals within the retention known is any other file known not removed.
        reads_known = self._oldest_read is None or facts.known_from_version <= self._oldest_read
        self._knows_all = facts.known_from_ms <= cutoff and reads_known

    def _read_before(self, version: int) -> bool:
        return self._oldest_read is not None and self._oldest_read < version

    def why(self, file: ListedFile) -> RemovalReason | None:
        """Why a file is deleted; None if it stays."""
        operation = self._facts.operations.get(file.operation_id)
        if file.part is FileCategory.PROBE:
            return (
                RemovalReason.STAGING
                if self._is_old(file.modified_ms, self._rules.staging_ms)
                else None
            )
        if file.part is FileCategory.HOLD:
            return self._hold(file)
        if file.part is FileCategory.BLOCK:
            return self._block(file)
        if file.part is FileCategory.FACTS:
            return self._facts_file(file)
        if operation is None or file.part is FileCategory.OTHER:
            return self._of_others(file)
        match file.part:
            case FileCategory.DATA | FileCategory.VECTORS | FileCategory.CHANGES:
                return self._of_ours(file, operation)
            case FileCategory.ROW_MAP:
                return self._row_map(file, operation)
            case FileCategory.ROUND | FileCategory.ATTEMPT:
                return self._staging(file, operation)
            case _:
                return self._record(file, operation)

    def _of_others(self, file: ListedFile) -> RemovalReason | None:
        if file.part is not FileCategory.CHANGES and (
            file.part not in (FileCategory.OTHER, FileCategory.DATA)
            or is_in_hidden_folder(file.path)
        ):
            return None
        if not self._is_free(file):
            return None
        return self._removed_file(file) if file.path in self._removed else None

    def _of_ours(self, file: ListedFile, operation: OperationEnd) -> RemovalReason | None:
        if not operation.has_ended(file.attempt) or file.path in self._needed:
            return None
        if operation.can_never_commit(file.attempt):
            # A version that refers to it contradicts the log, and takes precedence.
            named = file.path in self._young or file.path in self._removed
            return None if named else RemovalReason.ABANDONED
        if not self._is_free(file):
            return None
        if file.path in self._removed:
            return self._removed_file(file)
        return RemovalReason.UNNAMED if self._knows_all and self._is_past(file) else None

    def _hold(self, file: ListedFile) -> RemovalReason | None:
        hold = hold_at(file.path, file.modified_ms)
        return RemovalReason.HOLD if hold is not None and self._is_old(hold.end_ms, 0) else None

    def _facts_file(self, file: ListedFile) -> RemovalReason | None:
        """By itself; of those of attempts the data files decide (`facts_of_nothing`)."""
        old = not file.operation_id and self._is_old(file.modified_ms, self._rules.facts_ms)
        return RemovalReason.FACTS if old else None

    def facts_of_nothing(
        self, found: Iterable[ListedFile], removed: Collection[str]
    ) -> Iterator[Garbage]:
        """The facts of attempts of which no data file is left. Those of a running attempt are
        written after its data files: a listing may show them alone."""
        facts: list[ListedFile] = []
        described: set[tuple[str, int]] = set()
        for file in found:
            if file.part is FileCategory.FACTS and file.operation_id:
                facts.append(file)
            elif file.part is FileCategory.DATA and file.path not in removed:
                described.add((file.operation_id, file.attempt))
        for file in facts:
            operation = self._facts.operations.get(file.operation_id)
            over = operation is not None and operation.has_ended(file.attempt)
            if (file.operation_id, file.attempt) in described:
                continue
            if over or self._is_old(file.modified_ms, self._rules.dead_ms):
                yield Garbage(file, RemovalReason.FACTS)

    def _block(self, file: ListedFile) -> RemovalReason | None:
        if self._is_free(file) and file.path in self._removed:
            return self._removed_file(file)
        void = self._facts.rolled_back.get(file.session, 0) >= file.upload
        return RemovalReason.ROLLED_BACK if self.is_orphan(file) and void else None

    def is_orphan(self, file: ListedFile) -> bool:
        """Whether no version has ever named a file, and it is old enough. If a version did so
        before all that is known, it is past the retention."""
        if file.path in self._needed or file.path in self._named:
            return False
        known = file.modified_ms - _CLOCKS_MS >= self._facts.known_from_ms
        if not known and not (self._knows_all and self._is_past(file)):
            return False
        return self._is_old(file.modified_ms, self._rules.orphans_ms)

    def _row_map(self, file: ListedFile, operation: OperationEnd) -> RemovalReason | None:
        if not operation.has_ended(file.attempt):
            return None
        if operation.can_never_commit(file.attempt):
            return RemovalReason.ABANDONED
        if self._read_before(operation.version):
            return None
        since = max(file.modified_ms, operation.committed_ms)
        return RemovalReason.ROW_MAP if self._is_old(since, self._rules.row_maps_ms) else None

    def _staging(self, file: ListedFile, operation: OperationEnd) -> RemovalReason | None:
        if not operation.has_ended(file.attempt):
            return None
        if file.part is FileCategory.ROUND and operation.can_never_commit(file.attempt):
            return RemovalReason.ABANDONED
        # While the operation may run again, its first attempt determines what later ones read.
        ended = operation.succeeded > 0 or operation.closed or operation.recorded
        keep_ms = self._rules.staging_ms if ended else self._rules.results_ms
        return RemovalReason.STAGING if self._is_old(file.modified_ms, keep_ms) else None

    def _record(self, file: ListedFile, operation: OperationEnd) -> RemovalReason | None:
        if file.part is FileCategory.ENDING:
            over = operation.closed or operation.succeeded > 0
            recorded = over and file.operation_id in self.results
            old = recorded and self._is_old(file.modified_ms, self._rules.staging_ms)
            return RemovalReason.STAGING if old else None
        if not operation.logged:
            return None  # it is the only record of how the operation ended
        since = max(file.modified_ms, operation.committed_ms)
        return RemovalReason.RECORD if self._is_old(since, self._rules.results_ms) else None

    def _removed_file(self, file: ListedFile) -> RemovalReason | None:
        if self._is_past(file):
            return RemovalReason.REMOVED
        # The clocks disagree: the next round must find its removal again.
        self.handled_ms = min(self.handled_ms, self._removed[file.path] - 1)
        return None

    def _is_free(self, file: ListedFile) -> bool:
        """Whether neither a version within the retention nor a plan refers to it."""
        if file.path in self._needed:
            return False
        due = self._young.get(file.path)
        if due is not None:
            self._note(due)
        return due is None

    def _is_past(self, file: ListedFile) -> bool:
        keep_ms = self._rules.files_ms
        return keep_ms is not None and self._is_old(file.modified_ms, keep_ms)

    def _is_old(self, since_ms: int, keep_ms: int) -> bool:
        if self._facts.now_ms - since_ms >= keep_ms:
            return True
        self._note(since_ms + keep_ms)
        return False

    def _note(self, due_ms: int) -> None:
        self.next_ms = due_ms if self.next_ms is None else min(self.next_ms, due_ms)
