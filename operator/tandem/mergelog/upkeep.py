"""Commits to a log that add no records: what the base table says of its blocks, and rollbacks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tandem.delta.actions import Action, Txn
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.errors import BaseHistoryGap, BaseReplaced, DataFileMissing, LogGap
from tandem.mergelog.base_history import (
    BaseHistory,
    base_of,
    require_same_table,
    was_appended,
)
from tandem.mergelog.boundaries import restored_by_number, transition
from tandem.mergelog.log_table import MergeLog, put, state_of
from tandem.mergelog.versions import ROLLBACK, Block, BlockLogState, LogFacts, in_order
from tandem.storage.paths import object_path

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


# Decisions of the owner of a log: `tandem log resolve`.
#
# Ends an uncertainty about the base table, or gives up the records of blocks whose files are gone:
# a restore of the base table to before the retention brings blocks back that were cleaned.


@dataclass(frozen=True, slots=True)
class Resolved:
    """The state of the log.

    Attributes:
        decided: False if nothing was uncertain and no block was gone: nothing was written.
        gone: the blocks without a file, whose records were given up.
    """

    state: BlockLogState
    decided: bool
    gone: tuple[Block, ...] = ()


def resolve(log: MergeLog, *, keep: bool, now_ms: Callable[[], int]) -> Resolved:
    """Record that the log belongs to the base table as it is now; or, if that is certain, drop the
    live blocks whose files are gone. Nothing else is up for decision: a command that is repeated
    takes no record that came after the first one.

    Args:
        keep: whether the unmerged records stay valid. If not, they are void.
        now_ms: the time in Unix milliseconds.
    Raises: InvalidSpec, if the base table lacks a key, or if the records that are kept have other
        keys; DataFileMissing, if it is certain which records are valid, and some to keep are gone;
        NotMergeOnRead, OutcomeUnknown, StorageError.
    """
    while True:
        snapshot = log.snapshot()
        base = log.base.snapshot()
        history = BaseHistory(log, snapshot)
        gone: tuple[Block, ...] = ()
        try:
            state = history.at(base.version)
            require_same_table(base, state)
        except (BaseReplaced, BaseHistoryGap):
            known = _last_certain(log, history, snapshot, base.version)
            live = known.live if keep else {}
        else:
            known, gone = state, _without_file(log, state)
            if not gone:
                return Resolved(state, decided=False)
            if keep:
                raise _cannot_keep(log, gone, state)
            lost = {block.path for block in gone}
            live = {path: block for path, block in state.live.items() if path not in lost}
        state = BlockLogState(base.metadata.id, base.version, known.mark, live, known.columns)
        require_same_table(base, state)
        now = now_ms()
        actions = transition(snapshot, state, history.restored, base=base, now_ms=now)
        info = commit_info(
            "RESOLVE",
            {"records": "keep" if keep else "discard"},
            now_ms=now,
            previous=snapshot,
            blind_append=False,
        )
        if put(log, snapshot.version + 1, [info, *actions], secrets.token_hex(8)):
            return Resolved(state, True, gone)


def _without_file(log: MergeLog, state: BlockLogState) -> tuple[Block, ...]:
    """The live blocks whose files are gone; all of them were there when the state was read."""
    if not state.live:
        return ()
    there = {meta.path for meta in log.store.list()}
    return in_order(block for block in state.live.values() if object_path(block.path) not in there)


def _cannot_keep(log: MergeLog, gone: tuple[Block, ...], state: BlockLogState) -> DataFileMissing:
    return DataFileMissing(
        "the records of blocks that do not exist cannot be kept",
        resource=f"{log.store.location}/{gone[0].path}",
        found=f"{len(gone)} of {len(state.live)} live blocks are missing",
        expected=f"the file of this one, with records of {gone[0].instants}",
        remedy="If a restore of the base table has brought the blocks back, restore the version "
        "before that restore. Otherwise restore the files from a backup, or give up these records "
        "with `tandem log resolve --discard`",
    )


def _last_certain(
    log: MergeLog, history: BaseHistory, snapshot: Snapshot, end: int
) -> BlockLogState:
    """The state as of the last base version before `end` for which it is certain."""
    found = state_of(snapshot)
    begin = found.base
    for version in _restored_by_number(log, begin, end):
        try:
            found, begin = history.at(version), version
        except (BaseReplaced, BaseHistoryGap):
            continue
        break
    # Between two such restores, what is uncertain stays uncertain.
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            found = history.at(middle)
            begin = middle
        except (BaseReplaced, BaseHistoryGap):
            end = middle
    return found


def _restored_by_number(log: MergeLog, begin: int, end: int) -> list[int]:
    """The base versions between two, without both, that restored a version by its number, the
    last one first: each makes certain again what was not."""
    try:
        commits = log.base.commits(begin + 1, end - 1)
    except LogGap:
        return []  # each version after the gap is uncertain
    return [commit.version for commit in reversed(commits) if restored_by_number(commit) >= 0]
