"""All kinds in one place, and the hash of a spec. The modules of the kinds define their fields."""

from __future__ import annotations

import hashlib
import json
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
    Codec,
    CompactionType,
    Layout,
    LayoutStrategy,
    SegmentRewrite,
    SegmentRewriteSpec,
    TableCompaction,
    TableCompactionSpec,
)
from tandem.spec.index import IndexServer, IndexServerSpec
from tandem.spec.log_compaction import LogCompaction, LogCompactionSpec
from tandem.spec.replace import TableReplace, TableReplaceSpec
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
    "OUTSIDE_IDENTITY",
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
    "canonical_spec",
    "spec_hash",
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


# The hash of a spec, which is part of an operation's identity.
#
# Two files that mean the same have the same hash: defaults are filled in, sizes and durations
# are numbers, order of keys is irrelevant. What only says how, when or for how long to run is
# left out, so that changing it does not make the operation another one.

OUTSIDE_IDENTITY: Final = frozenset(
    {
        "suspend",
        "priority",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        # How it runs and after what: an update whose Spark memory was raised must not happen
        # a second time because of that.
        "sparkTemplate",
        "dependsOn",
        "lockGranularity",
        "exclusive",
        "maxBytesPerCommit",
        "minRowGroupRows",
    }
)
"""Fields of a spec that are not part of an operation's identity."""


def canonical_spec(resource: Operation) -> dict[str, Any]:
    """The spec with defaults filled in, and without `OUTSIDE_IDENTITY`; plain JSON types."""
    spec = resource.spec.canonical()
    return {key: value for key, value in spec.items() if key not in OUTSIDE_IDENTITY}


def spec_hash(resource: Operation) -> str:
    """SHA-256 in hex of the canonical spec, with kind and API version."""
    canonical = json.dumps(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind_name,
            "spec": canonical_spec(resource),
        },
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
