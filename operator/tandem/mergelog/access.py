"""`open_log`, `open_view` and `scan`: the log and the merged view of a table, by its location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.rows.by_key import MEMORY
from tandem.mergelog.state.log_table import MergeLog
from tandem.mergelog.view import MergedView
from tandem.storage import open_store


def open_log(location: str, options: Mapping[str, str] | None = None) -> MergeLog:
    """The log of the table at a location, which may have none yet.

    Args:
        location: a URL, or an absolute path.
        options: settings of the object store that are not secret. Credentials come from the
            environment.
    Raises: InvalidSpec.
    """
    return MergeLog(DeltaLog(open_store(location, options)))


def open_view(log: MergeLog, version: int | None = None, *, base: bool = False) -> MergedView:
    """The merged view of a table; its base table alone if it has no log, or for `base`.

    Args:
        version: of the base table; None for the newest.
    Raises: as `MergedView.open`; TableNotFound.
    """
    if base or not log.exists():
        return MergedView.of_base(log, version)
    return MergedView.open(log, version)


def scan(
    location: str,
    columns: Sequence[str] | None = None,
    *,
    version: int | None = None,
    options: Mapping[str, str] | None = None,
    memory: int = MEMORY,
) -> pa.RecordBatchReader:
    """The rows of a merge-on-read table as a stream of Arrow batches: for DuckDB, Polars, pandas.

    Args:
        columns: names, in the order wanted; None for all.
        version: of the base table; None for the newest.
        memory: bytes that the index of the log may take; a larger log is read in passes.
    Raises: NotMergeOnRead, VersionNotFound, InvalidSpec, BaseReplaced, BaseHistoryGap.
    """
    return MergedView.open(open_log(location, options), version).scan(columns, memory=memory)
