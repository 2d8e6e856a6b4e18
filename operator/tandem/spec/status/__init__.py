"""What Tandem reports about a resource: its `status`, as the contract spells it.

Models only: decides nothing. Everything but `phase` is optional: what does not apply is absent when
printed.

    conditions    phase and conditions, and the base of all status models
    operation     the status of an operation
    table         the status of a `LakeTable`
    index_server  the status of an `IndexServer`
"""

from tandem.spec.status.conditions import (
    ENDED,
    PLANNED_ONLY,
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    StatusModel,
)
from tandem.spec.status.index_server import (
    IndexServerStatus,
    ServedTable,
    ServerCache,
    ServerExecutors,
    UnservedTable,
)
from tandem.spec.status.operation import (
    OperationResult,
    OperationStatus,
    Plan,
    Progress,
    Reconciled,
    ReconciledCommit,
    RowsAffected,
    RowsReplaced,
    Yielded,
)
from tandem.spec.status.table import (
    LOG_INSTANT,
    MERGES_LOG,
    WHOLE_LOG,
    FinishedOperation,
    LogStatus,
    NextCompaction,
    NextDrop,
    NextLogAction,
    NextRun,
    TableCleaning,
    TableLock,
    TableStatus,
)

__all__ = [
    "ENDED",
    "LOG_INSTANT",
    "MERGES_LOG",
    "PLANNED_ONLY",
    "WHOLE_LOG",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "FinishedOperation",
    "IndexServerStatus",
    "LogStatus",
    "NextCompaction",
    "NextDrop",
    "NextLogAction",
    "NextRun",
    "OperationResult",
    "OperationStatus",
    "Phase",
    "Plan",
    "Progress",
    "Reconciled",
    "ReconciledCommit",
    "ResourceStatus",
    "RowsAffected",
    "RowsReplaced",
    "ServedTable",
    "ServerCache",
    "ServerExecutors",
    "StatusModel",
    "TableCleaning",
    "TableLock",
    "TableStatus",
    "UnservedTable",
    "Yielded",
]

ResourceStatus = OperationStatus | TableStatus
