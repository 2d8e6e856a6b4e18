"""Ends an uncertainty about the base table by a decision of its owner: `tandem log resolve`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from tandem.delta.log.commit import commit_info
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import BaseHistoryGap, BaseReplaced
from tandem.mergelog.create import put
from tandem.mergelog.state.base_history import BaseHistory, require_same_table
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.log_table import MergeLog, state_of
from tandem.mergelog.state.model import LogState


@dataclass(frozen=True, slots=True)
class Resolved:
    """The state of the log. `decided` is False if nothing was uncertain: nothing was written."""

    state: LogState
    decided: bool


def resolve(log: MergeLog, *, keep: bool, now_ms: Callable[[], int]) -> Resolved:
    """Record that the log belongs to the base table as it is now. What is certain is not up for
    decision: a command that is repeated takes no record that came after the first one.

    Args:
        keep: whether the unmerged records stay valid. If not, they are void.
        now_ms: the time in Unix milliseconds.
    Raises: InvalidSpec, if the base table lacks a key, or if the records that are kept have other
        keys; NotMergeOnRead, OutcomeUnknown, StorageError.
    """
    while True:
        snapshot = log.snapshot()
        base = log.base.snapshot()
        history = BaseHistory(log, snapshot)
        try:
            state = history.at(base.version)
            require_same_table(base, state)
        except (BaseReplaced, BaseHistoryGap):
            known = _last_certain(history, snapshot, base.version)
        else:
            return Resolved(state, decided=False)
        live = known.live if keep else {}
        state = LogState(base.metadata.id, base.version, known.mark, live, known.columns)
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
            return Resolved(state, decided=True)


def _last_certain(history: BaseHistory, snapshot: Snapshot, end: int) -> LogState:
    """The state as of the last base version before `end` for which it is certain."""
    found = state_of(snapshot)
    begin = found.base
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            found = history.at(middle)
            begin = middle
        except (BaseReplaced, BaseHistoryGap):
            end = middle
    return found
