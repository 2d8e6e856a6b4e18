"""`tandem clean`, and the cleaning rounds of the operator: delete files that are not needed.

    list → read the log → declare dead attempts and uploads dead → read the log and the plans again
    → delete

A file is deleted only if the first listing contains it and the last reading of the log and the
plans does not refer to it: a file written meanwhile is not in the listing, and a file removed by
a commit meanwhile is still within its retention. `tandem.planning.cleaning` decides what may be
deleted. An attempt that may yet commit is left alone; a dead one is first abandoned in the log
(docs/decisions/0175). A round that fails or is killed leaves less garbage and can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tandem.delta import protocol
from tandem.delta.log.commit_log import MaintenanceRight
from tandem.delta.log.listing import LOG
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import files_kept_ms
from tandem.errors import InvalidSpec, ManifestInvalid
from tandem.jobs.formats import Format
from tandem.mergelog.versions import upload_folder
from tandem.operations import attempt_files
from tandem.operations.attempt_files import OperationRecord
from tandem.operations.clean_facts import (
    CleaningDependencies,
    FactsReader,
    NeededFiles,
    listed,
    live_files,
)
from tandem.operations.model import Identity, Table, Work
from tandem.operations.session.committer import Committer
from tandem.planning.cleaning import (
    DAY_MS,
    CleaningFacts,
    CleaningPlan,
    CleaningRules,
    FileCategory,
    Garbage,
    ListedFile,
    attempts_to_abandon,
    decide,
    uploads_to_roll_back,
)
from tandem.spec.table import Retention
from tandem.storage.paths import LOG_FOLDER
from tandem.storage.store import ObjectInfo, Store
from tandem.timeline.names import HOLDS

MARKER = f"{attempt_files.ROOT}/cleaning.json"
_AT_ONCE = 500


class MarkerRecord(Format):
    """cleaning.json: written before files are deleted, to read the store's clock from the
    object's modification time, and again afterwards. All removals up to `handled_ms` (Unix
    milliseconds) have been dealt with."""

    handled_ms: int = -1


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """`limit`: the most files to delete, None for all. `whole_log`: read the whole log, not only
    what is new since the last round. `may_continue` is called before each step that changes
    anything; False ends the round."""

    dry_run: bool = False
    limit: int | None = None
    whole_log: bool = True
    may_continue: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """`garbage` was deleted, or would be in a dry run. `abandoned` are the attempts that were
    declared dead before, `rolled_back` the sessions of writers and their last dead uploads.
    `more`: garbage beyond the limit is left. `next_ms`: when the next file becomes old enough
    (Unix milliseconds). `problem`: why the log of blocks was not cleaned, or not to its end."""

    garbage: tuple[Garbage, ...]
    abandoned: tuple[tuple[str, int], ...] = ()
    rolled_back: tuple[tuple[str, int], ...] = ()
    more: bool = False
    next_ms: int | None = None
    problem: str = ""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.file.size for each in self.garbage)


def rules_for(
    configuration: Mapping[str, str], retention: Retention | None, *, automatic: bool = False
) -> CleaningRules:
    """How long this table keeps which files.

    Files stay for the longer of the table property and the LakeTable's retention. The property's
    default applies only if neither is set. An `automatic` cleaning of a table whose LakeTable has
    no retention leaves alone every file that any version has referred to.

    Raises: InvalidSpec if the property is not a valid interval.
    """
    try:
        kept_ms = files_kept_ms(configuration, None if retention is None else retention.files)
    except ValueError as error:
        raise InvalidSpec(
            "a property of the table is invalid, so nothing is cleaned",
            resource="the table",
            field="delta.deletedFileRetentionDuration",
            found=str(error),
        ) from error
    files_ms = None if automatic and retention is None else kept_ms
    # A retention of zero applies to files only: a running process may be paused for up to a day.
    least_ms = max(kept_ms, DAY_MS)
    row_maps_ms = CleaningRules(None).row_maps_ms if retention is None else retention.row_maps
    return CleaningRules(files_ms, row_maps_ms, staging_ms=least_ms, dead_ms=least_ms)


def store_time(store: Store, marker: MarkerRecord | None = None) -> int:
    """The store's clock, in Unix milliseconds. Writes the marker."""
    store.put(MARKER, attempt_files.encode(marker or _marker(store)))
    return store.head(MARKER).modified_ms


def _marker(store: Store) -> MarkerRecord:
    try:
        return attempt_files.load(store, MARKER, MarkerRecord) or MarkerRecord()
    except ManifestInvalid:
        return MarkerRecord()  # it is only an optimization


class CleanedTable:
    """What the cleaning of a table depends on. This one: a table of users, without its log of
    blocks."""

    operation = protocol.OperationKind.COMPACTION

    def __init__(self, table: Table) -> None:
        self.table = table

    def found(self, meta: ObjectInfo) -> ListedFile | None:
        """The file with its category; None for one that this cleaning leaves alone."""
        return None if meta.path.startswith(f"{LOG_FOLDER}/") else listed(meta)

    def needed(self, _since_ms: int) -> NeededFiles:
        """What others than its own plans need of it: since a time (Unix milliseconds)."""
        return NeededFiles()

    def roll_back(self, uploads: Mapping[str, int], now_ms: int) -> None:
        """Commit that these uploads, by session, can never be committed any more."""


def clean(
    table: Table,
    rules: CleaningRules,
    dependencies: CleaningDependencies | None = None,
    options: CleaningOptions | None = None,
) -> CleaningResult:
    """One round, without the log of blocks of a merge-on-read table.

    Raises: UnsupportedFeature if the table requires a writer feature that we do not support,
        CatalogForbids, ManifestInvalid if the plan of an unfinished operation is damaged,
        CorruptLog, StorageError. Nothing is lost then; the remaining garbage is left for the next
        round.
    """
    dependencies, options = dependencies or CleaningDependencies(), options or CleaningOptions()
    return CleaningRound(CleanedTable(table), rules, dependencies, options).run()


class CleaningRound:
    """One round for one table."""

    def __init__(
        self,
        cleaned: CleanedTable,
        rules: CleaningRules,
        dependencies: CleaningDependencies,
        options: CleaningOptions,
    ) -> None:
        self._cleaned = cleaned
        table = self._table = cleaned.table
        self._store: Store = table.store
        self._rules = rules
        self._dependencies = dependencies
        self._options = options
        self._facts_reader = FactsReader(table, dependencies)

    def run(self) -> CleaningResult:
        """Raises: as `clean`."""
        marker = _marker(self._store)
        first = self._table.log.snapshot()
        protocol.check(
            first.protocol,
            first.metadata,
            self._cleaned.operation,
            resource=self._table.display,
            asked="cleaning",
        )
        self._table.log.commit_log.require(MaintenanceRight.DATA_CLEANUP)
        found = self._listed(live_files(first))
        now_ms = self._dependencies.clock.now_ms()
        unfinished = self._facts_reader.unfinished(first, found)
        gone = attempts_to_abandon(unfinished, now_ms, self._rules)
        if gone and not self._options.dry_run:
            now_ms = self._earlier(now_ms, marker)
            gone = self._abandon_unowned(
                first, attempts_to_abandon(unfinished, now_ms, self._rules)
            )
        facts = self._facts(first, found, marker, now_ms)
        void = uploads_to_roll_back(found, facts, self._rules)
        if self._options.dry_run:
            facts = facts.with_dead(gone, void)
        elif void:
            now_ms = self._earlier(now_ms, marker)
            void = self._roll_back(uploads_to_roll_back(found, replace(facts, now_ms=now_ms),
                                                        self._rules), now_ms)  # fmt: skip
            facts = self._facts(first, found, marker, now_ms)
        decision = decide(found, facts, self._rules)
        if decision.garbage and not self._options.dry_run:
            facts = replace(facts, now_ms=self._earlier(now_ms, marker))
            decision = decide(found, facts, self._rules)
        garbage = decision.garbage[: self._options.limit]
        more = len(garbage) < len(decision.garbage)
        if not self._options.dry_run:
            removed = self._remove(garbage, found)
            more = more or removed < len(garbage)
            garbage = garbage[:removed]
            if not (more or self._options.whole_log) or garbage:
                self._note(marker, decision, more=more)
        dead, uploads = tuple(sorted(gone.items())), tuple(sorted(void.items()))
        return CleaningResult(garbage, dead, uploads, more, decision.next_ms)

    def _facts(
        self, first: Snapshot, found: Sequence[ListedFile], marker: MarkerRecord, now_ms: int
    ) -> CleaningFacts:
        """The log as it is now shows what was declared dead. New attempts and holds may have begun
        since the listing: a hold of the latest version is seen by all who see a later one."""
        latest = self._table.log.update(first)
        newer = [
            listed(m) for folder in (attempt_files.operations(), HOLDS)
            for m in self._store.list(folder)
        ]  # fmt: skip
        kept_ms = self._rules.files_ms
        needed = self._cleaned.needed(now_ms if kept_ms is None else now_ms - kept_ms)
        since_ms = self._since(marker, now_ms)
        return self._facts_reader.facts(latest, [*found, *newer], now_ms, since_ms, needed)

    def _listed(self, live: frozenset[str]) -> list[ListedFile]:
        """All files except the log and the live files of other writers: in large tables these
        are the majority, and none of them can be deleted in this round."""
        files = (m for m in self._store.list("") if not m.path.startswith(f"{LOG}/"))
        return [
            file
            for file in map(self._cleaned.found, files)
            if file is not None and (file.part is not FileCategory.OTHER or file.path not in live)
        ]

    # When

    def _earlier(self, now_ms: int, marker: MarkerRecord) -> int:
        """The earlier of our clock and the store's, whose clock stamps the files."""
        return min(now_ms, store_time(self._store, marker))

    def _since(self, marker: MarkerRecord, now_ms: int) -> int | None:
        """The time from which on removals must be known; None for all that the log holds."""
        if self._rules.files_ms is None:
            return now_ms  # no file that a version referred to is deleted: recent commits suffice
        if self._options.whole_log or marker.handled_ms < 0:
            return None
        return min(marker.handled_ms, now_ms - self._rules.files_ms)

    def _note(self, marker: MarkerRecord, decision: CleaningPlan, *, more: bool) -> None:
        if self._rules.files_ms is not None and not more:
            marker = MarkerRecord(handled_ms=decision.handled_ms)
        self._store.put(MARKER, attempt_files.encode(marker))

    # Changing

    def _abandon_unowned(self, first: Snapshot, gone: Mapping[str, int]) -> dict[str, int]:
        declared: dict[str, int] = {}
        for operation_id, attempt in gone.items():
            if not self._options.may_continue():
                break
            record = attempt_files.load(
                self._store, attempt_files.identity(operation_id), OperationRecord
            )
            identity = Identity(operation_id, "", "", "", "", {})
            if record is not None:
                identity = replace(
                    identity, kind=record.kind, namespace=record.namespace, name=record.name
                )
            work = Work(identity, self._table, latest=first)
            committer = Committer(
                self._table, operation_id, self._dependencies.clock, self._dependencies.nonces
            )
            why = "idle for longer than the retention: abandoned while cleaning"
            if committer.abandon_unowned(work, attempt, why, self._dependencies.nonces.nonce()):
                declared[operation_id] = attempt
        return declared

    def _roll_back(self, uploads: Mapping[str, int], now_ms: int) -> dict[str, int]:
        if not uploads or not self._options.may_continue():
            return {}
        self._cleaned.roll_back(uploads, now_ms)
        return dict(uploads)

    def _remove(self, garbage: Sequence[Garbage], found: Sequence[ListedFile]) -> int:
        """How many were deleted: all, unless `may_continue` ended the round."""
        removed = 0
        for begin in range(0, len(garbage), _AT_ONCE):
            if not self._options.may_continue():
                return removed
            # Again: a round may take long.
            self._table.log.commit_log.require(MaintenanceRight.DATA_CLEANUP)
            batch = garbage[begin : begin + _AT_ONCE]
            self._store.delete([each.file.path for each in batch])
            removed += len(batch)
        if self._table.location.startswith("file:"):
            self._sweep(garbage, found)
        return removed

    def _sweep(self, garbage: Sequence[Garbage], found: Sequence[ListedFile]) -> None:
        """Delete what only local disks have and listings do not show, folders and partially
        written files, of ended attempts of which no file is left."""
        paths = {each.file.path for each in garbage}
        kept = {_folder(file) for file in found if file.path not in paths}
        for folder in sorted({_folder(each.file) for each in garbage} - kept - {""}):
            self._store.delete_prefix(folder)
        self._store.delete_prefix(MARKER)  # temporary files of killed writers, never the marker


def _folder(file: ListedFile) -> str:
    match file.part:
        case FileCategory.DATA:
            return attempt_files.data(file.operation_id, file.attempt)
        case FileCategory.VECTORS:
            return attempt_files.deletion_vectors(file.operation_id, file.attempt)
        case FileCategory.CHANGES if file.operation_id:
            return attempt_files.change_files(file.operation_id, file.attempt)
        case FileCategory.FACTS if file.operation_id:
            return attempt_files.facts(file.operation_id, file.attempt)
        case FileCategory.BLOCK:
            return upload_folder(file.session, file.upload)
        case FileCategory.ROW_MAP:
            return file.path
        case FileCategory.ROUND | FileCategory.ATTEMPT:
            return attempt_files.attempt(file.operation_id, file.attempt)
        case _:
            return ""
