"""What the retained versions of a base table need of its log, beyond the log's newest version.

A version of the log that is brought up to one of the base table has the same blocks as before, or
fewer; only a restore brings older ones back. So what was live at the beginning of the retention,
and after each restore since, is all that a view within the retention can read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.delta.log.listing import read_log
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import BaseHistoryGap, BaseReplaced
from tandem.mergelog.state.base_history import BaseHistory
from tandem.mergelog.state.boundaries import is_restore
from tandem.mergelog.state.log_table import MergeLog


@dataclass(frozen=True, slots=True)
class Retained:
    """`instant` is the oldest version of the log that is read, `blocks` are paths."""

    instant: int
    blocks: frozenset[str]


def retained(log: MergeLog, newest: Snapshot, since_ms: int) -> Retained:
    """What the views of the base versions need that were current at a time (Unix milliseconds) or
    later.

    Args:
        newest: the newest version of the log.
    Raises: LogGap if the base table's log is cleaned up meanwhile, CorruptLog, StorageError.
    """
    history = BaseHistory(log, newest)
    instant, blocks = newest.version, frozenset[str]()
    for version in _versions(log, since_ms):
        try:
            state = history.before(version)
        except (BaseHistoryGap, BaseReplaced):
            continue  # its view is refused by name: nothing makes it readable
        blocks |= state.live.keys()
    return Retained(min(instant, history.oldest_instant), blocks)


def _versions(log: MergeLog, since_ms: int) -> list[int]:
    """The base version that was current then, and the restores since."""
    listing = read_log(log.base.store)
    earliest, latest = listing.earliest, listing.latest
    later = [
        version
        for version, file in listing.commits.items()
        if version > earliest and file.modified_ms > since_ms
    ]
    first = min(later, default=latest + 1) - 1
    commits = log.base.commits(first + 1, latest)
    return [first, *(commit.version for commit in commits if is_restore(commit))]
