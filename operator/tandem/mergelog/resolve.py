"""Ends an uncertainty about the base table by a decision of its owner: `tandem log resolve`."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tandem.delta.actions import AddFile
from tandem.delta.log.commit import commit_info
from tandem.mergelog.create import put
from tandem.mergelog.state.commits import transition
from tandem.mergelog.state.log_table import MergeLog, state_of
from tandem.mergelog.state.model import LogState


def resolve(log: MergeLog, *, keep: bool, now_ms: Callable[[], int]) -> LogState:
    """Record that the log belongs to the base table as it is now; returns the new state.

    Args:
        keep: whether the unmerged records stay valid. If not, they are void.
        now_ms: the time in Unix milliseconds.
    Raises: NotMergeOnRead, OutcomeUnknown, StorageError.
    """
    while True:
        snapshot = log.snapshot()
        base = log.base.snapshot()
        before = state_of(snapshot)
        live = before.live if keep else {}
        state = LogState(base.metadata.id, base.version, before.mark, live)
        now = now_ms()
        actions = transition(snapshot, state, _no_block_returns, base=base, now_ms=now)
        info = commit_info(
            "RESOLVE",
            {"records": "keep" if keep else "discard"},
            now_ms=now,
            previous=snapshot,
            blind_append=False,
        )
        if put(log, snapshot.version + 1, [info, *actions], secrets.token_hex(8)):
            return state


def _no_block_returns(path: str) -> AddFile:
    raise AssertionError(f"{path} is not live in the version before")
