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
from tandem.operations.kinds.merge import MergeKind
from tandem.operations.kinds.segment_rewrite import SegmentRewriteKind
from tandem.operations.kinds.update import UpdateKind
from tandem.operations.model import Kind
from tandem.spec.resources import (
    Operation,
    SegmentRewrite,
    TableCompaction,
    TableIngest,
    TableUpdate,
)


def _row_level(resource: TableUpdate) -> Kind:
    return UpdateKind(resource) if resource.spec.merge is None else MergeKind(resource)


PERFORMED_BY: Final[dict[type[Operation], Callable[[Any], Kind]]] = {
    TableIngest: IngestKind,
    TableCompaction: CompactionKind,
    TableUpdate: _row_level,
    SegmentRewrite: SegmentRewriteKind,
}


def kind_of(resource: Operation) -> Kind:
    """The implementation of a resource's kind."""
    return PERFORMED_BY[type(resource)](resource)
