"""From one state of the log to the actions that record the next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tandem.delta.actions import Action, AddFile
from tandem.delta.log.commit import remove_of
from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.state.log_table import (
    log_metadata_for,
    log_protocol,
    require_columns,
    settings_of,
)
from tandem.mergelog.state.versions import BlockLogState, txns_of


def transition(
    snapshot: Snapshot,
    state: BlockLogState,
    added: Callable[[str], AddFile],
    *,
    base: Snapshot,
    now_ms: int,
) -> list[Action]:
    """The actions, without a `commitInfo`, that turn a version of the log into `state`.

    Args:
        added: the `add` of a block that is live in `state`, but not in `snapshot`.
        base: the base table as of `state.base`.
        now_ms: Unix milliseconds.
    Raises: InvalidSpec, if the base table lacks a key or the ordering column: with its schema, the
        log could not be read any more.
    """
    require_columns(base, settings_of(snapshot))
    actions: list[Action] = []
    protocol = log_protocol(base, snapshot.protocol)
    metadata = log_metadata_for(snapshot, base)
    if protocol != snapshot.protocol:
        actions.append(protocol)
    if metadata != snapshot.metadata:
        actions.append(metadata)
    actions += [
        txn
        for txn in txns_of(state)
        if txn.app_id not in snapshot.txns or snapshot.txns[txn.app_id].version != txn.version
    ]
    live = set(snapshot.files["path"].to_pylist())
    gone = snapshot.files_by_path(live - state.live.keys())
    actions += [remove_of(add, deletion_ms=now_ms, data_change=False) for add in gone.values()]
    actions += [
        replace(added(path), data_change=True, modified_ms=now_ms)
        for path in state.live
        if path not in live
    ]
    return actions
