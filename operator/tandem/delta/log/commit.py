"""Actions of our commits: the `commitInfo` that each begins with, and the `remove` of a live file.
No I/O, no clock.

`DeltaLog.commit_after` and `DeltaLog.put_commit` publish a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem import __version__
from tandem.delta.actions import AddFile, CommitInfo, RemoveFile
from tandem.delta.log.snapshot import Snapshot, in_commit_timestamps
from tandem.json_types import Json

ENGINE = f"tandem/{__version__}"


def commit_info(
    operation: str,
    parameters: Mapping[str, str],
    *,
    now_ms: int,
    previous: Snapshot | None,
    blind_append: bool,
    isolation: str = "WriteSerializable",
    metrics: Mapping[str, str] | None = None,
    tandem: Mapping[str, Any] | None = None,
) -> CommitInfo:
    """The `commitInfo` of the commit that follows `previous` (None: it creates the table).

    Args:
        operation: Delta's standard name: OPTIMIZE, UPDATE, DELETE, WRITE, …
        parameters: as text, as engines show them in the history.
        now_ms: the time of the attempt, Unix milliseconds.
        blind_append: the commit only adds files, and the table was not read for it.
        tandem: our own facts (operation id, attempt, …), under the key `tandem`.
    """
    body: Json = {}
    if previous is not None and in_commit_timestamps(previous.metadata):
        # Protocol, "Writer Requirements for In-Commit Timestamps": the larger of the two.
        body["inCommitTimestamp"] = max(now_ms, previous.timestamp_ms + 1)
    body |= {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": dict(parameters),
        "isolationLevel": isolation,
        "isBlindAppend": blind_append,
        "engineInfo": ENGINE,
    }
    if previous is not None:
        body["readVersion"] = previous.version
    if metrics:
        body["operationMetrics"] = dict(metrics)
    if tandem:
        body["tandem"] = dict(tandem)
    return CommitInfo(body)


def remove_of(add: AddFile, *, deletion_ms: int, data_change: bool) -> RemoveFile:
    """The `remove` of a live file: with its path as logged, deletion vector and row ids."""
    kept = ("path", "baseRowId", "defaultRowCommitVersion")
    extra = {k: v for k, v in add.extra.items() if k in kept}
    if add.stats is not None:
        extra["stats"] = add.stats
    if add.tags:
        extra["tags"] = dict(add.tags)
    return RemoveFile(
        logged_path=add.logged_path,
        deletion_ms=deletion_ms,
        data_change=data_change,
        deletion_vector=add.deletion_vector,
        partition_values=dict(add.partition_values),
        size=add.size,
        extra=extra,
    )
