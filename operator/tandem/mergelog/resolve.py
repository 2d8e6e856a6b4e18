"""Decisions of the owner of a log: `tandem log resolve`.

Ends an uncertainty about the base table, or gives up the records of blocks whose files are gone: a
restore of the base table to before the retention brings blocks back that were cleaned.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from tandem.delta.log.commit import commit_info
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import BaseHistoryGap, BaseReplaced, DataFileMissing, LogGap
from tandem.mergelog.create import put
from tandem.mergelog.state.base_history import BaseHistory, require_same_table
from tandem.mergelog.state.boundaries import restored_by_number
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.log_table import MergeLog, state_of
from tandem.mergelog.state.versions import Block, BlockLogState, in_order
from tandem.storage.paths import object_path


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
