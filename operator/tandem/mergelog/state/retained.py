"""What the retained versions of a base table need of its log, beyond the log's newest version.

A version of the log that is brought up to one of the base table has the same blocks as before, or
fewer; only a restore brings older ones back. So what was live at the beginning of the retention,
and after each restore since, is all that a view within the retention can read.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    listing = read_log(log.base.store, 0, log.base.account())
    times = {listing.earliest: 0}
    times |= {v: file.modified_ms for v, file in listing.commits.items() if v >= listing.earliest}
    first = current_at(times, since_ms)
    commits = log.base.commits(first + 1, listing.latest)
    return [first, *(commit.version for commit in commits if is_restore(commit))]


def current_at(times: Mapping[int, int], time_ms: int) -> int:
    """The version that was current at a time, or an earlier one; the first one if the time is
    before all. Pure.

    Args:
        times: when each version was committed (Unix milliseconds), by any clock: they need not
            ascend.
    """
    later = [version for version, committed_ms in times.items() if committed_ms > time_ms]
    return max(min(times), min(later, default=max(times) + 1) - 1)
