"""The facts of a log that its automatic log compactions and merges go by: which of its versions are
instants, and how many there are since a merge or a log compaction.

Pure. Not every version of a log adds records: log compactions, and commits that only record the
base version, do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.delta.actions import Commit
from tandem.mergelog.state.versions import LAST, BlockLogState


@dataclass(frozen=True, slots=True)
class LogVersion:
    """What counts of one version of a log.

    Attributes:
        time_ms: when it was committed, Unix milliseconds, by the clock of the store.
        appends: whether it adds blocks of its own.
        stitched: of a log compaction, the version that its plan read; otherwise None.
    """

    version: int
    time_ms: int
    appends: bool = False
    stitched: int | None = None


@dataclass(frozen=True, slots=True)
class InstantCounts:
    """Instants since the last merge and since the last log compaction.

    Attributes:
        since: the version that the shorter of both counts begins after, -1 for none.
        compacted_ms: when the last log compaction committed; None for none.
    """

    since_merge: int
    since_compaction: int
    since: int
    compacted_ms: int | None = None

    @property
    def least(self) -> int:
        """The smaller count: what decides whether a log compaction is due (Hudi, pull request
        18306)."""
        return min(self.since_merge, self.since_compaction)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A log as of a version of its base table.

    Attributes:
        log_id: the id of the log.
        newest: its newest version.
        state: what it says as of the base version `state.base`.
        recorded: the base version that it has recorded itself.
        moved_ms: when the base table moved on from there, Unix milliseconds; None if it has not.
        oldest_ms: when the oldest unmerged instant was committed; None if nothing is unmerged.
        unmergeable: why the base table refuses merges, "" if it takes them.
    """

    log_id: str
    newest: int
    state: BlockLogState
    counts: InstantCounts
    recorded: int
    moved_ms: int | None = None
    oldest_ms: int | None = None
    unmergeable: str = ""


def log_version(commit: Commit) -> LogVersion:
    """What counts of a commit of a log. A log compaction is recognized by its blocks, which change
    no data, and not by the name of its operation."""
    appends = any(add.tags.get(LAST) == str(commit.version) for add in commit.adds)
    stitched: int | None = None
    if any(not add.data_change for add in commit.adds):
        tandem = commit.info.body.get("tandem") if commit.info else None
        read = tandem.get("readVersion") if isinstance(tandem, Mapping) else None
        stitched = read if isinstance(read, int) and read < commit.version else commit.version - 1
    return LogVersion(commit.version, commit.timestamp_ms, appends, stitched)


def count_instants(versions: Sequence[LogVersion], mark: int) -> InstantCounts:
    """Count the instants among consecutive versions of a log, in order.

    An instant that was appended after a log compaction was planned, and before its commit, counts
    as later: it is not in a stitched block.
    """
    stitched = max((each.stitched for each in versions if each.stitched is not None), default=-1)
    compacted = [each.time_ms for each in versions if each.stitched is not None]
    return InstantCounts(
        since_merge=sum(each.appends for each in versions if each.version > mark),
        since_compaction=sum(each.appends for each in versions if each.version > stitched),
        since=max(mark, stitched),
        compacted_ms=compacted[-1] if compacted else None,
    )
