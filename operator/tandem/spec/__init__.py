"""The resources that people write, and the status that Tandem writes back.

One pydantic model is the source for the command line, the custom resource definitions and
`docs/resources.md`. Nothing here reads a table, starts anything or talks to Kubernetes.

    table            `LakeTable`
    catalog          how a LakeTable names its table in a catalog
    compaction       `TableCompaction` and `SegmentRewrite`
    update           `TableUpdate` and `TableIngest`
    replace          `TableReplace`
    log_compaction   `LogCompaction`
    common           metadata, the fields that operations share, names of labels, annotations and
                     finalizers
    fields           field types
    resources        all kinds, and the hash of a spec
    index            `IndexServer`, and what a LakeTable says about its index
    status           `status`
    problems         documents, and from pydantic's errors to `InvalidSpec`
    crd              custom resource definitions
    loader           from files to checked resources: `-f`
    yaml_source      YAML with the line of every value
"""

from tandem.spec.loader import load, load_all, load_text, parse
from tandem.spec.resources import (
    API_VERSION,
    KINDS,
    AnyKind,
    AnyResource,
    IndexServer,
    LakeTable,
    LogCompaction,
    Operation,
    ResourceOutcome,
    SegmentRewrite,
    StatusObserver,
    TableCompaction,
    TableIngest,
    TableUpdate,
    spec_hash,
)
from tandem.spec.status import OperationStatus, ResourceStatus, TableStatus

__all__ = [
    "API_VERSION",
    "KINDS",
    "AnyKind",
    "AnyResource",
    "IndexServer",
    "LakeTable",
    "LogCompaction",
    "Operation",
    "OperationStatus",
    "ResourceOutcome",
    "ResourceStatus",
    "SegmentRewrite",
    "StatusObserver",
    "TableCompaction",
    "TableIngest",
    "TableStatus",
    "TableUpdate",
    "load",
    "load_all",
    "load_text",
    "parse",
    "spec_hash",
]
