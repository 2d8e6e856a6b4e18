"""The resources that people write, and the status that Tandem writes back.

One pydantic model is the source for the command line, the custom resource definitions and
`docs/resources.md`. Nothing here reads a table, starts anything or talks to Kubernetes.
"""

from tandem.spec.identity import spec_hash
from tandem.spec.loader import load, load_text, parse
from tandem.spec.resources import (
    API_VERSION,
    KINDS,
    AnyResource,
    LakeTable,
    Operation,
    SegmentRewrite,
    TableCompaction,
    TableIngest,
    TableUpdate,
    require_built,
)
from tandem.spec.status import OperationStatus, TableStatus

__all__ = [
    "API_VERSION",
    "KINDS",
    "AnyResource",
    "LakeTable",
    "Operation",
    "OperationStatus",
    "SegmentRewrite",
    "TableCompaction",
    "TableIngest",
    "TableStatus",
    "TableUpdate",
    "load",
    "load_text",
    "parse",
    "require_built",
    "spec_hash",
]
