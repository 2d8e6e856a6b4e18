"""What other writers changed in the chunks of an exclusive attempt: a file that was added, removed
or marked there since the attempt's read version.

Reads the log and decides nothing. Commits count, not their net effect: a file that came and went
again between two looks is a write, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem.delta.actions import AddFile, Commit
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import VersionNotFound
from tandem.intervals import IntervalSet
from tandem.operations.kinds.table.lock_times import time_of_locks, times_of_files
from tandem.operations.model import Work
from tandem.reconcile.classify import author_of
from tandem.timeline.chunks import TimeColumn


class ChunkWrites:
    """Looks at one operation's table. Remembers up to which version nothing was written in the
    chunks of an attempt, so that the next look reads only what is new."""

    def __init__(self) -> None:
        self._attempt = 0
        self._seen: Snapshot | None = None

    def since_read(self, work: Work) -> str:
        """The first commit since the plan's read version that changed its chunks, by version,
        operation and author; "" for none. To be called once the plan is persisted.

        Raises: StorageError.
        """
        plan, _ = work.frozen
        log, seen = work.table.log, self._seen if self._attempt == plan.attempt else None
        try:
            seen = seen or _read(work, plan.read_version)
            newest = log.update(seen)
            commits = log.commits(seen.version + 1, newest.version)
        except VersionNotFound:
            after = plan.read_version if seen is None else seen.version
            return f"commits after version {after}, which log clean-up has deleted"
        self._attempt, self._seen = plan.attempt, seen
        assert plan.locks is not None  # all versions that know exclusive attempts record them
        chunks, time = plan.locks.resources.intervals, time_of_locks(work)
        for commit in commits:
            if any(map(chunks.overlaps, _times(commit, seen, time))):
                return _named(commit)
        self._seen = newest
        return ""


def _read(work: Work, version: int) -> Snapshot:
    return work.snapshot if work.snapshot.version == version else work.table.log.snapshot(version)


def _times(commit: Commit, before: Snapshot, time: TimeColumn | None) -> IntervalSet:
    """Where the files lie that a commit changes. `before`: a version before it, since when no file
    came into the chunks."""
    gone = before.files_by_path(file.logged_path for file in commit.removes)
    return _where(commit.adds, time) | _where(tuple(gone.values()), time)


def _where(adds: Iterable[AddFile], time: TimeColumn | None) -> IntervalSet:
    found = tuple(adds)
    return times_of_files(files_.from_adds(found), time) if found else IntervalSet()


def _named(commit: Commit) -> str:
    author = author_of(commit)
    operation = author.operation or "an unknown operation"
    who = author.by or author.engine or "an unknown engine"
    return f"version {commit.version}, {operation} by {who}"
