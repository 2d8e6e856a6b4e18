"""The implementation of each kind of operation: an entry per kind.

Everything else that differs by kind is defined by its model (`tandem.spec.common.Operation`):
names, lock mode, columns, what `plan` prints. Jobs have kinds of their own
(`tandem.jobs.formats.Job`), since several kinds of operations share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tandem.operations.kinds.compaction import CompactionKind
from tandem.operations.kinds.ingest import IngestKind
from tandem.operations.kinds.log_compaction import LogCompactionKind, log_of
from tandem.operations.kinds.log_merge import LogMergeKind
from tandem.operations.kinds.merge import MergeKind
from tandem.operations.kinds.segment_rewrite import SegmentRewriteKind
from tandem.operations.kinds.update import UpdateKind
from tandem.operations.model import Kind, Table
from tandem.spec.resources import (
    CompactionType,
    LogCompaction,
    Operation,
    SegmentRewrite,
    TableCompaction,
    TableIngest,
    TableUpdate,
)


def _row_level(resource: TableUpdate) -> Kind:
    return UpdateKind(resource) if resource.spec.merge is None else MergeKind(resource)


def _compaction(resource: TableCompaction) -> Kind:
    if resource.spec.type is CompactionType.LOG_MERGE:
        return LogMergeKind(resource)
    return CompactionKind(resource)


PERFORMED_BY: Final[dict[type[Operation], Callable[[Any], Kind]]] = {
    TableIngest: IngestKind,
    TableCompaction: _compaction,
    TableUpdate: _row_level,
    SegmentRewrite: SegmentRewriteKind,
    LogCompaction: LogCompactionKind,
}


def kind_of(resource: Operation) -> Kind:
    """The implementation of a resource's kind."""
    return PERFORMED_BY[type(resource)](resource)


def table_of(resource: Operation, table: Table) -> Table:
    """The table that an operation works on: its own, or that table's log. Raises: NotMergeOnRead,
    UnsupportedFeature."""
    return log_of(table) if resource.on_log else table
