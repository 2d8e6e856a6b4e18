"""Makes the log of a base table, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from tandem.delta.actions import Action
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.errors import AlreadyExists, InvalidSpec, OutcomeUnknown
from tandem.mergelog.log_table import (
    LogSettings,
    MergeLog,
    new_log,
    require_columns,
    settings_of,
)
from tandem.mergelog.versions import BlockLogState, txns_of

_TRIES = 3
_T = TypeVar("_T")


def ensure_log(log: MergeLog, settings: LogSettings, *, now_ms: int, nonce: str) -> bool:
    """Make the log unless it is there; returns whether this call made it.

    Args:
        settings: `base_id` is ignored.
        now_ms: Unix milliseconds.
        nonce: unique text.
    Raises: InvalidSpec, also if the log has other settings, or their columns have changed in the
        base table; UnsupportedFeature; CorruptLog; OutcomeUnknown.
    """
    base = log.base.snapshot()
    if not log.exists():
        protocol, metadata = new_log(base, settings)
        id_ = UUID(bytes=hashlib.sha256(nonce.encode()).digest()[:16], version=4)
        info = commit_info(
            "CREATE TABLE",
            {"mode": "ErrorIfExists", "partitionBy": json.dumps(metadata.partition_columns)},
            now_ms=now_ms,
            previous=None,
            blind_append=True,
        )
        actions: list[Action] = [info, protocol, replace(metadata, id=str(id_), created_ms=now_ms)]
        actions += txns_of(BlockLogState(base.metadata.id, base.version))
        if put(log, 0, actions, nonce):
            return True
    found = settings_of(log.snapshot())
    if _names(found) != _names(settings):
        raise InvalidSpec(
            "the log of blocks has other settings, and they cannot be changed",
            resource=base.location,
            field="spec.mergeOnRead",
            found=_text(settings),
            expected=_text(found),
            remedy="Restore the settings; or merge the log, remove `_tandem/log`, and apply the "
            "new ones",
        )
    require_columns(base, found)
    return False


def put(log: MergeLog, version: int, actions: list[Action], token: str) -> bool:
    """Commit to the log; False if another writer has committed this version.

    Raises: OutcomeUnknown, if several tries do not tell.
    """

    def try_once() -> bool:
        try:
            log.log.put_commit(version, actions, token=token)
        except AlreadyExists:
            return False
        return True

    return _until_known(log, version, try_once)


def put_after(
    log: MergeLog,
    snapshot: Snapshot,
    actions: Sequence[Action],
    token: str,
    *,
    beside: Executor | None = None,
) -> Snapshot | None:
    """As `put`, right after a version of the log; `beside` as in `DeltaLog.commit_after`.

    Returns: None once it is committed; the newest version, if another writer was faster.
    Raises: OutcomeUnknown; as `MergeLog.snapshot`.
    """
    version = snapshot.version + 1
    return _until_known(
        log, version, lambda: log.commit_after(snapshot, actions, token=token, beside=beside)
    )


def _until_known(log: MergeLog, version: int, try_once: Callable[[], _T]) -> _T:
    """Repeat a put under its token while its outcome is unknown: one that arrived meanwhile is
    recognized as ours. Raises: OutcomeUnknown."""
    for _ in range(_TRIES):
        try:
            return try_once()
        except OutcomeUnknown:
            continue
    raise OutcomeUnknown(
        "whether the commit was made is unknown",
        resource=log.store.location,
        field=f"version {version}",
        remedy="Repeat the batch under its number: it counts once",
    )


def _names(settings: LogSettings) -> tuple[list[str], str]:
    """Names are case-insensitive to Delta."""
    return [key.lower() for key in settings.keys], settings.ordering_column.lower()


def _text(settings: LogSettings) -> str:
    ordering = f", orderingColumn {settings.ordering_column}" if settings.ordered else ""
    return f"keys {', '.join(settings.keys)}{ordering}"
