"""All kinds in one place; see the modules that define them for their fields."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.errors import InvalidSpec
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
from tandem.spec.log_compaction import LogCompaction, LogCompactionSpec
from tandem.spec.problems import InvalidSpecs
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
    "LATER_KINDS",
    "OPERATIONS",
    "AnyResource",
    "Codec",
    "CompactionType",
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
    "require_built",
]

AnyResource = LakeTable | Operation
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

KINDS: Final[Mapping[str, type[AnyResource]]] = ChainMap[str, type[Any]](
    OPERATIONS, {LakeTable.kind_name: LakeTable}
)
"""All kinds by name, `LakeTable` first."""

LATER_KINDS: Final = ("IndexServer",)
"""Kinds whose shape is not fixed yet."""


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """A resource with its final status."""

    resource: AnyResource
    status: ResourceStatus

    def manifest(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return {**self.resource.manifest(), "status": self.status.manifest()}


def require_built(resources: list[AnyResource]) -> None:
    """Refuse what v1alpha1 can say and this version cannot do, before anything starts.

    `compaction` of a `LakeTable` is not refused: the same file must work with and without an
    operator, and without one nothing automatic happens anyway.

    Raises:
        InvalidSpec: names every such field.
    """
    InvalidSpecs.raise_if(
        [problem for resource in resources for problem in _not_built(resource)],
    )


def _not_built(resource: AnyResource) -> list[InvalidSpec]:
    def problem(field: str, found: object, expected: str, remedy: str) -> InvalidSpec:
        return InvalidSpec(
            "not built yet",
            resource=resource.id,
            field=field,
            found=found,
            expected=expected,
            remedy=remedy,
        )

    if isinstance(resource, LakeTable):
        return []
    problems = []
    if resource.spec.lock_mode is LockMode.EXCLUSIVE:
        problems.append(
            problem(
                "spec.lockMode",
                "Exclusive",
                "Concurrent",
                "Remove lockMode: this operation then runs concurrently with writers",
            )
        )
    return problems
