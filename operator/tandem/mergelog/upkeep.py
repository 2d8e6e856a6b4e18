"""Commits to a log that add no records: what the base table says of its blocks, and rollbacks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.delta.actions import Action, Txn
from tandem.delta.log.commit import commit_info
from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.create import put
from tandem.mergelog.state.base_history import (
    BaseHistory,
    base_of,
    require_same_table,
    was_appended,
)
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.instants import LogFacts
from tandem.mergelog.state.log_table import MergeLog, state_of
from tandem.mergelog.state.versions import ROLLBACK, BlockLogState

BASE_VERSIONS = 100
"""So many versions of the base table, at most, are not recorded."""
BASE_AGE_MS = 3600 * 1000
"""So old, at most, is the first of them while there is a live block."""
IDLE_AGE_MS = 24 * BASE_AGE_MS
"""So old, at most, is it otherwise."""


def due_ms(facts: LogFacts, now_ms: int) -> int | None:
    """When the base version is to be recorded, in Unix milliseconds; None while that depends on
    commits. Pure.

    Each commit that adds rows records it. Without them, the commits of the base table since the
    recorded version grow in number: each reader reads them, and a clean-up may remove some, after
    which a log with live blocks is refused (`BaseHistoryGap`). With an ordering column, blocks with
    deletes are live after they are merged, too. Without a live block, one of the commits may be a
    restore that brings blocks back.
    """
    behind = facts.state.base - facts.recorded
    if behind >= BASE_VERSIONS:
        return now_ms
    if behind <= 0 or not (facts.state.live or facts.newest):
        return None
    if facts.moved_ms is None:
        return now_ms
    return facts.moved_ms + (BASE_AGE_MS if facts.state.live else IDLE_AGE_MS)


def record_base(log: MergeLog, *, now_ms: int) -> bool:
    """Commit to the log what it says as of the newest version of its base table. False if another
    writer committed first: it has recorded a base version, too, or the next call does.

    Raises: NotMergeOnRead, BaseReplaced, BaseHistoryGap, OutcomeUnknown, StorageError;
        InvalidSpec, if the keys or the ordering column have changed in the base table.
    """
    snapshot = log.snapshot()
    return _record(log, snapshot, _newest(log, BaseHistory(log, snapshot)), now_ms)


def catch_up(log: MergeLog, *, now_ms: int) -> int | None:
    """Record what the base table's commits mean for the blocks and the mark: merged and void
    blocks leave the log, restored ones are back. The base version is recorded, too: without an
    operator nothing else does that for an idle log. Returns the version, None if nothing changes.

    Raises: as `record_base`.
    """
    snapshot = log.snapshot()
    history = BaseHistory(log, snapshot)
    while True:
        newest = _newest(log, history)
        before, state = state_of(snapshot), newest.state
        same = (state.mark, state.live, state.base_id) == (before.mark, before.live, before.base_id)
        if same and (state.base == before.base or not was_appended(snapshot)):
            return None
        if _record(log, snapshot, newest, now_ms):
            return snapshot.version + 1
        # Not from its checkpoint on: the others would be faster each time.
        snapshot = log.update(snapshot)
        history = history.following(snapshot)


def keep_fresh(log: MergeLog, *, now_ms: int) -> bool:
    """Record the base version if that is due, as an operator does; returns whether it was. For
    tables without an operator: each run of a table calls it.

    Raises: as `record_base`.
    """
    snapshot = log.snapshot()
    recorded = base_of(snapshot)
    behind = log.base.latest_version(recorded) - recorded
    if behind <= 0 or not was_appended(snapshot):
        return False
    if behind < BASE_VERSIONS:
        moved = log.base.commit(recorded + 1)
        age_ms = BASE_AGE_MS if snapshot.num_files else IDLE_AGE_MS
        if moved is not None and now_ms < moved.timestamp_ms + age_ms:
            return False
    return record_base(log, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest version of the base table, and what the log says as of it."""

    base: Snapshot
    history: BaseHistory
    state: BlockLogState


def _newest(log: MergeLog, history: BaseHistory) -> _Newest:
    base = log.base.snapshot()
    state = history.at(base.version)
    require_same_table(base, state)
    return _Newest(base, history, state)


def _record(log: MergeLog, snapshot: Snapshot, newest: _Newest, now_ms: int) -> bool:
    actions = transition(
        snapshot, newest.state, newest.history.restored, base=newest.base, now_ms=now_ms
    )
    return _put(log, snapshot, "RECORD BASE", actions, now_ms)


def roll_back(log: MergeLog, uploads: Mapping[str, int], *, now_ms: int) -> None:
    """Commit that the uploads of these sessions, up to a number each, are void: their writers
    upload again before they commit.

    Raises: NotMergeOnRead, OutcomeUnknown, StorageError.
    """
    snapshot = log.snapshot()
    while True:
        txns = [
            Txn(ROLLBACK + session, upload, now_ms)
            for session, upload in sorted(uploads.items())
            if (known := snapshot.txns.get(ROLLBACK + session)) is None or known.version < upload
        ]
        if not txns or _put(log, snapshot, "ROLLBACK", txns, now_ms):
            return
        # Not from its checkpoint on: the others would be faster each time.
        snapshot = log.update(snapshot)


def _put(
    log: MergeLog, snapshot: Snapshot, operation: str, actions: Sequence[Action], now_ms: int
) -> bool:
    """Commit right after a version; False if another writer was faster."""
    info = commit_info(operation, {}, now_ms=now_ms, previous=snapshot, blind_append=False)
    return put(log, snapshot.version + 1, [info, *actions], secrets.token_hex(8))
