"""Records the version of the base table in the log, when no writer does.

Each commit that adds rows records it. Without them, the commits of the base table since the
recorded version grow in number: each reader reads them, and a clean-up may remove some, after which
the log is refused (`BaseHistoryGap`).
"""

from __future__ import annotations

import secrets

from tandem.delta.log.commit import commit_info
from tandem.mergelog.create import put
from tandem.mergelog.state.base_history import BaseHistory, require_same_table
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.instants import LogFacts
from tandem.mergelog.state.log_table import MergeLog

BASE_VERSIONS = 100
"""So many versions of the base table, at most, are not recorded while anything is unmerged."""
BASE_AGE_MS = 3600 * 1000
"""So old, at most, is the first of them."""


def due_ms(facts: LogFacts, now_ms: int) -> int | None:
    """When the base version is to be recorded, in Unix milliseconds; None while that depends on
    commits. Pure."""
    behind = facts.state.base - facts.recorded
    if not facts.state.unmerged or behind <= 0:
        return None
    if behind >= BASE_VERSIONS or facts.moved_ms is None:
        return now_ms
    return facts.moved_ms + BASE_AGE_MS


def record_base(log: MergeLog, now_ms: int) -> bool:
    """Commit to the log what it says as of the newest version of its base table. False if another
    writer committed first: it has recorded a base version, too, or the next call does.

    Raises: NotMergeOnRead, BaseReplaced, BaseHistoryGap, OutcomeUnknown, StorageError.
    """
    snapshot = log.snapshot()
    base = log.base.snapshot()
    history = BaseHistory(log, snapshot)
    state = history.at(base.version)
    require_same_table(base, state)
    actions = transition(snapshot, state, history.restored, base=base, now_ms=now_ms)
    info = commit_info(
        "RECORD BASE",
        {"version": str(base.version)},
        now_ms=now_ms,
        previous=snapshot,
        blind_append=False,
    )
    return put(log, snapshot.version + 1, [info, *actions], secrets.token_hex(8))
