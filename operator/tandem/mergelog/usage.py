"""What a log holds, and for how long: the facts that its status shows, and that automatic log
compactions and merges go by.

Does not decide anything (`tandem.planning.auto.log`), and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import (
    BaseHistoryGap,
    BaseReplaced,
    LogGap,
    TableNotFound,
    UnsupportedFeature,
)
from tandem.mergelog.base_history import BaseHistory, require_same_table
from tandem.mergelog.log_table import MergeLog, require_mergeable, state_of
from tandem.mergelog.versions import (
    BlockLogState,
    LogFacts,
    LogVersion,
    count_instants,
    log_version,
)

KEPT = 1_000
"""So many of the newest versions are counted: a count of as many means at least that."""


class LogReader:
    """Reads the facts of one log, each time only what is new. Not thread-safe."""

    def __init__(self, log: MergeLog) -> None:
        self._log = log
        self._snapshot: Snapshot | None = None
        self._history: BaseHistory | None = None
        self._versions: tuple[LogVersion, ...] = ()
        self._from = 0
        self._facts: LogFacts | None = None
        self._refused: tuple[tuple[str, int, int], BaseReplaced | BaseHistoryGap] | None = None
        self._times: dict[tuple[bool, int], int | None] = {}

    def update(self, *, thoroughly: bool = True) -> bool:
        """Read the newest version of the log, before the base table is read. False if the table
        has no log.

        Args:
            thoroughly: list the log, which may have been recreated, and not only look for the
                next commit.
        Raises: UnsupportedFeature, CorruptLog, StorageError.
        """
        before = found = self._snapshot
        if thoroughly:
            self._refused = None
        if before is None:
            if not self._log.exists():
                return False
            found = self._log.snapshot()
        elif thoroughly or self._log.log.commit_log.has(before.version + 1):
            try:
                found = self._log.update(before)
            except TableNotFound:
                self._snapshot = self._facts = None
                return False
        if found is not None and found is not before:
            known = self._history
            self._history = (
                BaseHistory(self._log, found) if known is None else known.following(found)
            )
            self._snapshot = found
        return True

    def facts(self, base: Snapshot) -> LogFacts:
        """The facts as of a version of the base table that was read after `update`; the same
        object as before if nothing changed. So is an error, until a thorough `update`.

        Raises: BaseReplaced, BaseHistoryGap, InvalidSpec, CorruptLog, StorageError.
        """
        snapshot, history = self._snapshot, self._history
        assert snapshot is not None
        assert history is not None
        known = self._facts
        now = (snapshot.metadata.id, snapshot.version, base.version)
        if known is not None and now == (known.log_id, known.newest, known.state.base):
            return known
        if self._refused is not None and self._refused[0] == now:
            # To find that out reads whole versions of the base table.
            raise self._refused[1].with_traceback(None)
        recorded = state_of(snapshot).base
        try:
            state = history.at(base.version)
            require_same_table(base, state)
        except (BaseReplaced, BaseHistoryGap) as error:
            self._refused = now, error
            raise
        self._read_versions(snapshot, state.mark)
        self._facts = LogFacts(
            log_id=snapshot.metadata.id,
            newest=snapshot.version,
            state=state,
            counts=count_instants(self._versions, state.mark),
            recorded=recorded,
            moved_ms=self._time(recorded + 1, base=True) if base.version > recorded else None,
            oldest_ms=self._oldest(state),
            unmergeable=_unmergeable(base),
        )
        return self._facts

    def _read_versions(self, snapshot: Snapshot, mark: int) -> None:
        """Extend the known versions up to a snapshot; they begin after the mark."""
        last = snapshot.version
        first = max(mark + 1, last - KEPT + 1)
        known = self._versions
        if known and first >= self._from and known[-1].version <= last:
            first = max(known[-1].version + 1, first)
        else:
            # At first, after a restore, or the log was recreated.
            known, self._from = (), first
        try:
            commits = self._log.log.commits(first, last)
        except LogGap as gap:
            commits = self._log.log.commits(gap.first_available, last)
        self._versions = (*known, *map(log_version, commits))[-KEPT:]

    def _oldest(self, state: BlockLogState) -> int | None:
        first = min((max(b.first, state.mark + 1) for b in state.unmerged), default=None)
        if first is None:
            return None
        # A block that was stitched across the mark does not say which of its instants is the next.
        later = _appended(self._versions, first)
        if later is not None and self._versions[0].version <= first:
            return later.time_ms
        time_ms = self._time(first, base=False)
        return time_ms if time_ms is not None else self._versions[0].time_ms

    def _time(self, version: int, *, base: bool) -> int | None:
        """When a version of the log, or of the base table, was committed; None if its commit was
        cleaned up."""
        key = (base, version)
        if key not in self._times:
            commit = (self._log.base if base else self._log.log).commit(version)
            self._times = {k: v for k, v in self._times.items() if k[0] is not base}
            self._times[key] = commit.timestamp_ms if commit is not None else None
        return self._times[key]


def _unmergeable(base: Snapshot) -> str:
    try:
        require_mergeable(base)
    except UnsupportedFeature as error:
        return str(error)
    return ""


def _appended(versions: Iterable[LogVersion], first: int) -> LogVersion | None:
    return next((each for each in versions if each.version >= first and each.appends), None)
