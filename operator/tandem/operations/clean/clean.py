"""`tandem clean`, and the rounds of the operator: remove what nobody can need any more.

    list → read the log → declare dead what is dead → read the log and the plans again → delete

Only what was listed at first goes, and only if nothing names it that was read last: whoever
writes meanwhile writes what was not listed, and whoever commits meanwhile is not past any
retention. What may go is decided in `tandem.planning.cleaning`. An attempt that may yet commit is
left alone; one that is dead is abandoned in the log first (design, "Exactly once"). A round that
fails or is killed leaves less garbage, and can be done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tandem.delta import protocol
from tandem.delta.log.names import LOG
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import tombstone_retention_ms
from tandem.errors import InvalidSpec, ManifestInvalid
from tandem.jobs.formats import Format
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import OperationRecord
from tandem.operations.clean import log_history
from tandem.operations.clean.facts import CleaningDependencies, FactsReader
from tandem.operations.model import Identity, Table, Work
from tandem.operations.session.committer import Committer
from tandem.planning.cleaning import (
    DAY_MS,
    CleaningPlan,
    CleaningRules,
    FileCategory,
    Garbage,
    ListedFile,
    attempts_to_abandon,
    decide,
)
from tandem.spec.table import Retention
from tandem.storage.store import Store

MARKER = f"{paths.ROOT}/cleaning.json"
_AT_ONCE = 500


class MarkerRecord(Format):
    """cleaning.json: written before something is removed, so that the store says what time it is,
    and after. All removals up to `handled_ms` have been dealt with."""

    handled_ms: int = -1


@dataclass(frozen=True, slots=True)
class CleaningOptions:
    """`limit`: at most so many files, None for all. `thorough`: read the whole log, not only
    what is new since the last round. `go_on` is asked before each step that changes anything."""

    dry_run: bool = False
    limit: int | None = None
    thorough: bool = True
    go_on: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """`garbage` went, or would go. `abandoned` are attempts that were declared dead before.
    `more` is left beyond the limit; `next_ms` is when more will be due by its age alone."""

    garbage: tuple[Garbage, ...]
    abandoned: tuple[tuple[str, int], ...] = ()
    more: bool = False
    next_ms: int | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(each.file.size for each in self.garbage)


def rules_for(
    configuration: Mapping[str, str], retention: Retention | None, *, automatic: bool = False
) -> CleaningRules:
    """How long this table keeps what.

    Files stay as long as the table's own property says and, if there is one, the LakeTable too;
    its default counts only where nobody says anything. An `automatic` cleaning of a table whose
    LakeTable says nothing of retention leaves alone what a version has ever named.

    Raises: InvalidSpec if the property makes no sense.
    """
    said = "delta.deletedFileRetentionDuration" in configuration
    try:
        own_ms = tombstone_retention_ms(configuration)
    except ValueError as error:
        raise InvalidSpec(
            "a property of the table makes no sense, so nothing is cleaned",
            resource="the table",
            field="delta.deletedFileRetentionDuration",
            found=str(error),
        ) from error
    if retention is None:
        kept_ms = own_ms
        files_ms = None if automatic else own_ms
    else:
        kept_ms = max(retention.files, own_ms if said else 0)
        files_ms = kept_ms
    # A retention of nothing is for files: who works must be able to look away for a day.
    least_ms = max(kept_ms, DAY_MS)
    row_maps_ms = CleaningRules(None).row_maps_ms if retention is None else retention.row_maps
    return CleaningRules(files_ms, row_maps_ms, staging_ms=least_ms, dead_ms=least_ms)


def clean(
    table: Table,
    rules: CleaningRules,
    dependencies: CleaningDependencies | None = None,
    options: CleaningOptions | None = None,
) -> CleaningResult:
    """One round.

    Raises: UnsupportedFeature if the table asks of writers what we do not know, ManifestInvalid
        if the plan of an unfinished operation is damaged, CorruptLog, StorageError. Nothing is
        lost then; what it had not come to is still there.
    """
    return _Round(
        table, rules, dependencies or CleaningDependencies(), options or CleaningOptions()
    ).run()


class _Round:
    def __init__(
        self,
        table: Table,
        rules: CleaningRules,
        dependencies: CleaningDependencies,
        options: CleaningOptions,
    ) -> None:
        self._table = table
        self._store: Store = table.store
        self._rules = rules
        self._dependencies = dependencies
        self._options = options
        self._facts_reader = FactsReader(table, dependencies)

    def run(self) -> CleaningResult:
        marker = self._marker()
        first = self._table.log.snapshot()
        protocol.check(
            first.protocol,
            first.metadata,
            protocol.OperationKind.COMPACTION,
            resource=self._table.display,
        )
        found = self._listed(log_history.live_files(first))
        now_ms = self._dependencies.clock.now_ms()
        unfinished = self._facts_reader.unfinished(first, found)
        gone = attempts_to_abandon(unfinished, now_ms, self._rules)
        if gone and not self._options.dry_run:
            now_ms = self._earlier(now_ms, marker)
            gone = self._declare_dead(first, attempts_to_abandon(unfinished, now_ms, self._rules))
        # Who is dead is in the log now, and who lives may have begun since the listing.
        latest = self._table.log.update(first)
        newer = [paths.found(m) for m in self._store.list(paths.operations())]
        facts = self._facts_reader.facts(
            latest, [*found, *newer], now_ms, self._since(marker, now_ms)
        )
        if self._options.dry_run:
            facts = facts.with_abandoned(gone)
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
            if not (more or self._options.thorough) or garbage:
                self._note(marker, decision, more=more)
        return CleaningResult(garbage, tuple(sorted(gone.items())), more, decision.next_ms)

    def _listed(self, live: frozenset[str]) -> list[ListedFile]:
        """All files but the log, and but those of others that are live: of large tables these
        are most, and none of them can go in this round."""
        files = (m for m in self._store.list("") if not m.path.startswith(f"{LOG}/"))
        return [
            file
            for file in map(paths.found, files)
            if file.part is not FileCategory.OTHER or file.path not in live
        ]

    # When

    def _marker(self) -> MarkerRecord:
        try:
            return records.load(self._store, MARKER, MarkerRecord) or MarkerRecord()
        except ManifestInvalid:
            return MarkerRecord()  # it only saves reading

    def _earlier(self, now_ms: int, marker: MarkerRecord) -> int:
        """The earlier of two clocks, ours and the store's: ages are told by the store's."""
        self._store.put(MARKER, records.encode(marker))
        return min(now_ms, self._store.head(MARKER).modified_ms)

    def _since(self, marker: MarkerRecord, now_ms: int) -> int | None:
        """Since when removals must be known; None for all that the log tells."""
        if self._rules.files_ms is None:
            return now_ms  # nothing goes that was ever named: our latest commits are enough
        if self._options.thorough or marker.handled_ms < 0:
            return None
        return min(marker.handled_ms, now_ms - self._rules.files_ms)

    def _note(self, marker: MarkerRecord, decision: CleaningPlan, *, more: bool) -> None:
        if self._rules.files_ms is not None and not more:
            marker = MarkerRecord(handled_ms=decision.handled_ms)
        self._store.put(MARKER, records.encode(marker))

    # Changing

    def _declare_dead(self, first: Snapshot, gone: Mapping[str, int]) -> dict[str, int]:
        declared: dict[str, int] = {}
        for operation_id, attempt in gone.items():
            if not self._options.go_on():
                break
            record = records.load(self._store, paths.identity(operation_id), OperationRecord)
            identity = Identity(operation_id, "", "", "", "", {})
            if record is not None:
                identity = replace(
                    identity, kind=record.kind, namespace=record.namespace, name=record.name
                )
            work = Work(identity, self._table, latest=first)
            committer = Committer(
                self._table, operation_id, self._dependencies.clock, self._dependencies.nonces
            )
            why = "nobody had worked on it for longer than the retention: abandoned by a cleaning"
            if committer.declare_dead(work, attempt, why, self._dependencies.nonces.nonce()):
                declared[operation_id] = attempt
        return declared

    def _remove(self, garbage: Sequence[Garbage], found: Sequence[ListedFile]) -> int:
        """How many went: all, unless it is told not to go on."""
        removed = 0
        for begin in range(0, len(garbage), _AT_ONCE):
            if not self._options.go_on():
                return removed
            batch = garbage[begin : begin + _AT_ONCE]
            self._store.delete([each.file.path for each in batch])
            removed += len(batch)
        if self._table.location.startswith("file:"):
            self._sweep(garbage, found)
        return removed

    def _sweep(self, garbage: Sequence[Garbage], found: Sequence[ListedFile]) -> None:
        """Disks have folders, and show half-written files to nobody. Of attempts that are over
        and of which nothing is left, these go too."""
        paths = {each.file.path for each in garbage}
        kept = {_folder(file) for file in found if file.path not in paths}
        for folder in sorted({_folder(each.file) for each in garbage} - kept - {""}):
            self._store.delete_prefix(folder)
        self._store.delete_prefix(MARKER)  # what killed writers left of it, never itself


def _folder(file: ListedFile) -> str:
    match file.part:
        case FileCategory.DATA:
            return paths.data(file.operation_id, file.attempt)
        case FileCategory.VECTORS:
            return paths.deletion_vectors(file.operation_id, file.attempt)
        case FileCategory.ROW_MAP:
            return file.path
        case FileCategory.ROUND | FileCategory.ATTEMPT:
            return paths.attempt(file.operation_id, file.attempt)
        case _:
            return ""
