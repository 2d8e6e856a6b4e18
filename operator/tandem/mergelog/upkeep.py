"""Commits to a log that add no records: what the base table says of its blocks, and rollbacks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from tandem.delta.actions import Action, Txn
from tandem.delta.log.commit import commit_info
from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.create import put
from tandem.mergelog.state.base_history import BaseHistory, require_same_table
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.log_table import MergeLog, state_of
from tandem.mergelog.state.model import ROLLBACK


def catch_up(log: MergeLog, *, now_ms: int) -> int | None:
    """Record what the base table's commits mean for the blocks and the mark: merged and void
    blocks leave the log, restored ones are back. Returns the version, None if nothing changes.

    Raises: NotMergeOnRead, BaseReplaced, BaseHistoryGap, OutcomeUnknown, StorageError.
    """
    while True:
        snapshot = log.snapshot()
        base = log.base.snapshot()
        history = BaseHistory(log, snapshot)
        before, state = state_of(snapshot), history.at(base.version)
        require_same_table(base, state)
        if (state.mark, state.live, state.base_id) == (before.mark, before.live, before.base_id):
            return None
        actions = transition(snapshot, state, history.restored, base=base, now_ms=now_ms)
        if _put(log, snapshot, "ADVANCE", actions, now_ms):
            return snapshot.version + 1


def roll_back(log: MergeLog, uploads: Mapping[str, int], *, now_ms: int) -> None:
    """Commit that the uploads of these sessions, up to a number each, are void: their writers
    upload again before they commit.

    Raises: NotMergeOnRead, OutcomeUnknown, StorageError.
    """
    while True:
        snapshot = log.snapshot()
        txns = [
            Txn(ROLLBACK + session, upload, now_ms)
            for session, upload in sorted(uploads.items())
            if (known := snapshot.txns.get(ROLLBACK + session)) is None or known.version < upload
        ]
        if not txns or _put(log, snapshot, "ROLLBACK", txns, now_ms):
            return


def _put(
    log: MergeLog, snapshot: Snapshot, operation: str, actions: Sequence[Action], now_ms: int
) -> bool:
    """Commit right after a version; False if another writer was faster."""
    info = commit_info(operation, {}, now_ms=now_ms, previous=snapshot, blind_append=False)
    return put(log, snapshot.version + 1, [info, *actions], secrets.token_hex(8))
