"""Cleaning of the log of a merge-on-read table: blocks, uploads of dead writers, old versions.

    record what the base table says → a round as for any table → remove expired versions of the log

Blocks that were stitched, merged or voided are removed files of the log, and stay for its
retention, which is at least the base table's: a restore of the base table needs the log of that
time. What an unfinished LogMerge reads stays, too. A file that no version names may be of a writer
that sleeps: before it is deleted, a rollback keeps its writer from committing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tandem.delta.log.maintenance import maintain, plan_cleanup
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import cleans_log, log_retention_ms
from tandem.delta.protocol import OperationKind
from tandem.errors import InvalidSpec, TandemError
from tandem.mergelog.base_history import retained
from tandem.mergelog.log_table import MergeLog
from tandem.mergelog.upkeep import catch_up, roll_back
from tandem.mergelog.versions import upload_of
from tandem.operations import garbage
from tandem.operations.clean import (
    CleanedTable,
    CleaningOptions,
    CleaningResult,
    CleaningRound,
    clean,
    rules_for,
    store_time,
)
from tandem.operations.clean_facts import CleaningDependencies, NeededFiles, listed
from tandem.operations.model import Table
from tandem.planning.cleaning import (
    DAY_MS,
    CleaningRules,
    FileCategory,
    Garbage,
    ListedFile,
    RemovalReason,
)
from tandem.storage.paths import LOG_FOLDER, object_path
from tandem.storage.store import ObjectInfo

_AT_ONCE = 500


def clean_with_log(
    table: Table,
    rules: CleaningRules,
    dependencies: CleaningDependencies | None = None,
    options: CleaningOptions | None = None,
) -> CleaningResult:
    """One round for a table, and one for its log, if it has one. Paths are relative to the table.
    An error of the log is a `problem` of the result, which has what was done to the table.

    Raises: as `clean`.
    """
    found = clean(table, rules, dependencies, options)
    try:
        # Later: an attempt that was abandoned just now keeps no block any more.
        log = clean_log(table, rules, dependencies, options)
    except TandemError as error:
        return replace(found, problem=str(error))
    if log is None:
        return found
    of_log = (
        replace(each, file=replace(each.file, path=f"{LOG_FOLDER}/{each.file.path}"))
        for each in log.garbage
    )
    due = [each.next_ms for each in (found, log) if each.next_ms is not None]
    return CleaningResult(
        (*found.garbage, *of_log),
        (*found.abandoned, *log.abandoned),
        log.rolled_back,
        found.more or log.more,
        min(due, default=None),
    )


def clean_log(
    base: Table,
    rules: CleaningRules,
    dependencies: CleaningDependencies | None = None,
    options: CleaningOptions | None = None,
) -> CleaningResult | None:
    """One round for the log of a table, None if it has none. Paths are relative to the log.

    Args:
        rules: those of the base table.
    Raises: as `clean`; BaseReplaced, BaseHistoryGap if which records are valid is not certain:
        then nothing is deleted.
    """
    log = MergeLog(base.log)
    if not log.exists():
        return None
    dependencies, options = dependencies or CleaningDependencies(), options or CleaningOptions()
    return _LogRound(base, log, rules, dependencies, options).run()


class CleanedLog(CleanedTable):
    """The log of a table."""

    operation = OperationKind.LOG_COMPACTION

    def __init__(self, base: Table, log: MergeLog) -> None:
        super().__init__(
            replace(base, store=log.store, log=log.log, display=f"{base.display} (log)")
        )
        self._base, self._log = base, log

    def found(self, meta: ObjectInfo) -> ListedFile:
        upload = upload_of(meta.path)
        if upload is None:
            return listed(meta)
        block = ListedFile(meta.path, meta.size, meta.modified_ms, FileCategory.BLOCK)
        return replace(block, session=upload[0], upload=upload[1])

    def needed(self, since_ms: int) -> NeededFiles:
        """What unfinished merges and restored versions of the base table read."""
        merges = merges_of(self._base)
        views = retained(self._log, self._log.snapshot(), since_ms)
        return merges.with_more(NeededFiles((), frozenset(map(object_path, views.blocks))))

    def roll_back(self, uploads: Mapping[str, int], now_ms: int) -> None:
        roll_back(self._log, uploads, now_ms=now_ms)


def merges_of(base: Table) -> NeededFiles:
    """What unfinished merges read of the log: the versions, and the blocks.

    Raises: ManifestInvalid if a plan is damaged.
    """
    reads = garbage.log_reads(base.store, base.log)
    blocks = frozenset(object_path(path) for each in reads for path in each.blocks)
    return NeededFiles(tuple(each.version for each in reads), blocks)


@dataclass(frozen=True)
class _LogRound:
    base: Table
    log: MergeLog
    rules: CleaningRules
    dependencies: CleaningDependencies
    options: CleaningOptions

    def run(self) -> CleaningResult:
        dry_run, may_continue = self.options.dry_run, self.options.may_continue
        clock = self.dependencies.clock
        if not dry_run and may_continue():
            # Blocks that are merged or void leave the log, and their retention begins.
            catch_up(self.log, now_ms=clock.now_ms())
            maintain(self.log.log, self.log.snapshot(), now_ms=clock.now_ms())
        snapshot = self.log.snapshot()
        rules = self._rules(snapshot)
        cleaned = CleanedLog(self.base, self.log)
        result = CleaningRound(cleaned, rules, self.dependencies, self.options).run()
        if result.more:
            return result  # what is left may be known from the versions of the log only
        return self._archive(result, rules)

    def _rules(self, snapshot: Snapshot) -> CleaningRules:
        """Those of the base table, or longer ones: properties that the base table had before may
        still be the log's."""
        if self.rules.files_ms is None:
            return self.rules
        own = rules_for(snapshot.configuration, None).files_ms or 0
        is_set = "delta.deletedFileRetentionDuration" in snapshot.configuration
        files_ms = max(self.rules.files_ms, own if is_set else 0)
        return replace(self.rules, files_ms=files_ms)

    def _archive(self, result: CleaningResult, rules: CleaningRules) -> CleaningResult:
        """Remove versions of the log that are past the retention."""
        now_ms = self.dependencies.clock.now_ms()
        expired = self._expired(rules, now_ms)
        if expired and not self.options.dry_run:
            now_ms = min(now_ms, store_time(self.log.store))
            expired = self._expired(rules, now_ms)
        limit = self.options.limit
        left = None if limit is None else limit - len(result.garbage)
        files = expired[:left]
        removed = len(files) if self.options.dry_run else self._remove(files)
        archived = tuple(
            Garbage(ListedFile(file.path, file.size, file.modified_ms), RemovalReason.ARCHIVED)
            for file in files[:removed]
        )
        more = removed < len(expired)
        return replace(result, garbage=(*result.garbage, *archived), more=more)

    def _expired(self, rules: CleaningRules, now_ms: int) -> tuple[ObjectInfo, ...]:
        """What expires by the longest of the retentions of both tables. A day is the least: see
        `tandem.mergelog.writer.LATE_MS`."""
        snapshot, base = self.log.snapshot(), self.base.log.snapshot()
        try:
            if not cleans_log(base.configuration):
                return ()
            kept_ms = [log_retention_ms(each.configuration) for each in (snapshot, base)]
        except ValueError as error:
            raise InvalidSpec(
                "a property of the table is invalid, so its log is not cleaned",
                resource=self.base.display,
                field="properties",
                found=str(error),
            ) from error
        retention_ms = max(*kept_ms, rules.files_ms or 0, DAY_MS)
        if not self._plan(snapshot, retention_ms, now_ms, None):
            return ()
        # Only now, since to find what restores need reads the base table's commits.
        needed = retained(self.log, snapshot, now_ms - retention_ms - DAY_MS).instant
        unfinished = garbage.uncommitted(garbage.unfinished(self.log.store), snapshot)
        own = [pin.read_version for pin in unfinished]
        in_use_from = min((needed, *own, *merges_of(self.base).reads))
        return self._plan(snapshot, retention_ms, now_ms, in_use_from)

    def _plan(
        self, snapshot: Snapshot, retention_ms: int, now_ms: int, in_use_from: int | None
    ) -> tuple[ObjectInfo, ...]:
        return plan_cleanup(
            self.log.log,
            snapshot,
            now_ms=now_ms,
            in_use_from=in_use_from,
            retention_ms=retention_ms,
        )

    def _remove(self, files: tuple[ObjectInfo, ...]) -> int:
        """How many were removed, in their order: all, unless `may_continue` ended the round."""
        for begin in range(0, len(files), _AT_ONCE):
            if not self.options.may_continue():
                return begin
            self.log.store.delete([file.path for file in files[begin : begin + _AT_ONCE]])
        return len(files)
