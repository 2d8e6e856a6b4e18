"""All kinds in one place; see the modules that define them for their fields."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.spec.common import (
    API_VERSION,
    OPERATIONS,
    LockMode,
    Operation,
    OperationSpec,
    Resource,
)
from tandem.spec.compaction import (
    CompactionType,
    Layout,
    LayoutStrategy,
    TableCompaction,
    TableCompactionSpec,
)
from tandem.spec.index import IndexServer, IndexServerSpec
from tandem.spec.log_compaction import LogCompaction, LogCompactionSpec
from tandem.spec.replace import TableReplace, TableReplaceSpec
from tandem.spec.segment_rewrite import Codec, SegmentRewrite, SegmentRewriteSpec
from tandem.spec.status import ResourceStatus
from tandem.spec.table import LakeTable, LakeTableSpec
from tandem.spec.update import (
    Isolation,
    SourceFormat,
    TableIngest,
    TableIngestSpec,
    TableUpdate,
    TableUpdateSpec,
)

__all__ = [
    "API_VERSION",
    "KINDS",
    "OPERATIONS",
    "AnyKind",
    "AnyResource",
    "Codec",
    "CompactionType",
    "IndexServer",
    "IndexServerSpec",
    "Isolation",
    "LakeTable",
    "LakeTableSpec",
    "Layout",
    "LayoutStrategy",
    "LockMode",
    "LogCompaction",
    "LogCompactionSpec",
    "Operation",
    "OperationSpec",
    "Resource",
    "ResourceOutcome",
    "SegmentRewrite",
    "SegmentRewriteSpec",
    "SourceFormat",
    "StatusObserver",
    "TableCompaction",
    "TableCompactionSpec",
    "TableIngest",
    "TableIngestSpec",
    "TableReplace",
    "TableReplaceSpec",
    "TableUpdate",
    "TableUpdateSpec",
]

AnyResource = LakeTable | Operation
"""What is run, with and without a cluster."""
AnyKind = AnyResource | IndexServer
"""What can be written down: an IndexServer lives in a cluster only."""
StatusObserver = Callable[[AnyResource, ResourceStatus], None]
"""Called whenever the status of a resource changes."""

OPERATIONS.update(
    (model.kind_name, model)
    for model in (
        TableIngest,
        TableCompaction,
        TableUpdate,
        SegmentRewrite,
        LogCompaction,
        TableReplace,
    )
)

KINDS: Final[Mapping[str, type[AnyKind]]] = ChainMap[str, type[Any]](
    OPERATIONS,
    {LakeTable.kind_name: LakeTable, IndexServer.kind_name: IndexServer},
)
"""All kinds by name, `LakeTable` first."""


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """A resource with its final status."""

    resource: AnyResource
    status: ResourceStatus

    def manifest(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return {**self.resource.manifest(), "status": self.status.manifest()}
