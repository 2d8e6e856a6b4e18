"""The implementation of each kind of operation: an entry per kind.

Everything else that differs by kind is defined by its model (`tandem.spec.common.Operation`):
names, lock mode, columns, what `plan` prints. Jobs have kinds of their own
(`tandem.jobs.formats.Job`), since several kinds of operations share one.

A kind is imported once one of its operations runs: importing all of them takes longer than a small
compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Final

from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.log_table import MergeLog
from tandem.operations import kinds
from tandem.operations.model import Identity, Kind, Table
from tandem.spec.common import LogUse
from tandem.spec.resources import (
    CompactionType,
    LogCompaction,
    Operation,
    SegmentRewrite,
    TableCompaction,
    TableIngest,
    TableReplace,
    TableUpdate,
)


def _ingest(resource: TableIngest) -> Kind:
    from tandem.operations.kinds.ingest import IngestKind

    return IngestKind(resource)


def _compaction(resource: TableCompaction) -> Kind:
    if resource.spec.type is CompactionType.LOG_MERGE:
        from tandem.operations.kinds.log_merge import LogMergeKind

        return LogMergeKind(resource)
    from tandem.operations.kinds.compaction import CompactionKind

    return CompactionKind(resource)


def _row_level(resource: TableUpdate) -> Kind:
    if resource.spec.merge is None:
        from tandem.operations.kinds.row_level import UpdateKind

        return UpdateKind(resource)
    from tandem.operations.kinds.merge import MergeKind

    return MergeKind(resource)


def _segment_rewrite(resource: SegmentRewrite) -> Kind:
    from tandem.operations.kinds.segment_rewrite import SegmentRewriteKind

    return SegmentRewriteKind(resource)


def _log_compaction(resource: LogCompaction) -> Kind:
    from tandem.operations.kinds.log_compaction import LogCompactionKind

    return LogCompactionKind(resource)


def _replace(resource: TableReplace) -> Kind:
    from tandem.operations.kinds.replace import ReplaceKind

    return ReplaceKind(resource)


def _upsert(resource: TableUpdate | TableIngest) -> Kind:
    from tandem.operations.kinds.upsert import UpsertKind

    return UpsertKind(resource)


PERFORMED_BY: Final[dict[type[Operation], Callable[[Any], Kind]]] = {
    TableIngest: _ingest,
    TableCompaction: _compaction,
    TableUpdate: _row_level,
    SegmentRewrite: _segment_rewrite,
    LogCompaction: _log_compaction,
    TableReplace: _replace,
}


def kind_of(resource: Operation, table: Table) -> Kind:
    """The implementation of a resource's kind on the table that it works on (`table_of`)."""
    of_type = PERFORMED_BY[type(resource)]
    if table.base is not None and resource.log_use is not LogUse.IS_ITS_TABLE:
        of_type = _upsert  # it appends to the log
    return of_type(resource)


def import_kinds() -> None:
    """Import all kinds: a process that lives long, or is forked, does so once, before its work."""
    for module in walk_packages(kinds.__path__, f"{kinds.__name__}."):
        import_module(module.name)


def left_before(
    resource: Operation, table: Table, identity: Identity, snapshot: Snapshot
) -> Operation | None:
    """The operation that an earlier process has begun, since it has to end before this one plans,
    and that has not ended; None if there is none.

    Args:
        table, identity, snapshot: of this one.
    Raises: StorageError.
    """
    if isinstance(resource, TableCompaction):
        from tandem.operations.kinds.batches import left_batch

        return left_batch(resource, table, identity, snapshot)
    if isinstance(resource, TableUpdate) and resource.log_use is LogUse.MERGES_IT_FIRST:
        from tandem.operations.kinds.log_merge import left_merge

        return left_merge(resource, table, identity, snapshot)
    return None


def table_of(resource: Operation, table: Table) -> Table:
    """The table that an operation works on: its own, or that table's log. A TableIngest appends to
    the log if there is one, so that rows replace those of their keys.

    Raises: NotMergeOnRead, UnsupportedFeature.
    """
    match resource.log_use:
        case LogUse.NONE | LogUse.MERGES_IT_FIRST:
            return table
        case LogUse.APPENDS:
            return log_of(table) if MergeLog(table.log).exists() else table
        case LogUse.APPENDS_AND_NEEDS_IT | LogUse.IS_ITS_TABLE:
            return log_of(table)


def log_of(table: Table) -> Table:
    """The log of a table, as the table of an operation.

    Raises: NotMergeOnRead if it has none, UnsupportedFeature if a later version wrote it.
    """
    found = MergeLog(table.log)
    found.snapshot()
    display = f"{table.display} (log)"
    return replace(table, store=found.store, log=found.log, display=display, base=table)
