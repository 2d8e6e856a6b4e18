"""What each reason means, and what to do about it: one source for `docs/reasons.md` and for
`kubectl tandem`. Pure.

A message that comes with a reason knows more (which field, which path); this is the
general part. What messages say of settings is here, too (`Setting`): in a command they are
set by options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tandem.errors import Reason


class Setting(NamedTuple):
    """How a message says that something is to be set: in a resource, and as an option of a
    command. Messages take the first, since they end up in statuses too."""

    in_resource: str
    as_option: str


ENABLE_VECTORS: Final = Setting(
    "Set enableDeletionVectors: true in the LakeTable", "Add --enable-deletion-vectors"
)
HEADER: Final = Setting('set header: "true"', "add --source-option header=true")
NO_HEADER: Final = Setting('if not, header: "false"', "if not, add --source-option header=false")
HEADER_AND_SEP: Final = Setting(
    "correct the options header and sep", "correct --source-option header=… and sep=…"
)
ENCODING: Final = Setting(
    "or another one that options.encoding of the source names", "or --source-option encoding=…"
)
ALLOW_HTTP: Final = Setting(
    'Set allow_http: "true" among the options, or', "Add --option allow_http=true, or set"
)
SKIP_SIGNATURE: Final = Setting('the option skip_signature: "true"', "--option skip_signature=true")
CLONE_SOURCE: Final = Setting(
    "add the location of its source to spec.storage.cloneSources of the LakeTable",
    "add --clone-source with the location of its source",
)
CREDENTIALS: Final = Setting("the environment or the Secret", "the environment")
SECRETS: Final = Setting(
    "the environment (AWS_…, GOOGLE_…, AZURE_…) or a Secret",
    "the environment (AWS_…, GOOGLE_…, AZURE_…)",
)
OF_OPERATIONS: Final = (ENABLE_VECTORS, HEADER, NO_HEADER, HEADER_AND_SEP, ENCODING)
OF_STORES: Final = (ALLOW_HTTP, SKIP_SIGNATURE, CLONE_SOURCE, CREDENTIALS, SECRETS)

MEANING: Final[Mapping[Reason, str]] = {
    Reason.PENDING: "Nothing has happened yet.",
    Reason.PLANNED: "Inputs are chosen and frozen; nothing is locked.",
    Reason.WAITING_FOR_DEPENDENCY: "An operation that it depends on has not succeeded, or its "
    "table is not ready.",
    Reason.WAITING_FOR_LOCK: "A conflicting operation holds a lock.",
    Reason.JOB_REFUSED: "The cluster does not take the job: a quota, the operator's rights, a "
    "webhook. Nothing is locked, and it is tried again.",
    Reason.RUNNING: "The job is running.",
    Reason.RECONCILING: "The result is being reconciled with concurrent commits.",
    Reason.RETRYING: "An attempt failed; another one follows.",
    Reason.YIELDED: "An exclusive attempt gave way to another writer in its chunks; another one "
    "follows at `status.yields.nextTry`.",
    Reason.SUSPENDED: "`spec.suspend` is true.",
    Reason.COMMITTED: "Done: the result is visible in `status.result.version`.",
    Reason.ADOPTED: "The table existed already and is accepted.",
    Reason.CREATED: "The table was created.",
    Reason.SERVING: "The index server answers questions.",
    Reason.DRY_RUN: "Planned only, since `spec.dryRun` is true.",
    Reason.NOTHING_TO_DO: "Nothing matched, so nothing was committed.",
    Reason.SUPERSEDED: "Other commits have replaced its inputs; nothing was committed.",
    Reason.INVALID_SPEC: "A field is invalid, or contradicts another.",
    Reason.INVALID_STATEMENT: "`where` or `set` is not a valid expression.",
    Reason.REFERENCE_NOT_FOUND: "There is no object of the given name.",
    Reason.LOCATION_NOT_ALLOWED: "A path leads out of the table's root, or a location is not one "
    "that this namespace may use.",
    Reason.UNKNOWN_SEGMENT: "No live segment has this name.",
    Reason.TABLE_NOT_FOUND: "There is no Delta table at the location.",
    Reason.CORRUPT_LOG: "A commit or checkpoint is damaged or missing.",
    Reason.CORRUPT_DELETION_VECTOR: "A deletion vector does not match its checksum or count.",
    Reason.DATA_FILE_MISSING: "A file that the log refers to is gone: data, a deletion "
    "vector, or a block.",
    Reason.UNSUPPORTED_FEATURE: "The table, its log or a file of it uses what Tandem does not "
    "support, or must not touch.",
    Reason.DELETION_VECTORS_DISABLED: "The table has deletion vectors off, and its LakeTable "
    "allows nothing else (`vectors: Only`).",
    Reason.ROW_TRACKING_INCOMPLETE: "Row tracking is enabled, but files of the table have no row "
    "ids.",
    Reason.VERSION_NOT_FOUND: "The version is not, or no longer, in the log.",
    Reason.STORE_UNSUITABLE: "The store does not support conditional puts (create if absent).",
    Reason.ACCESS_DENIED: "The store or the catalog refuses access.",
    Reason.CATALOG_FORBIDS: "The table's catalog does not permit this kind of maintenance to us: "
    "what it does not name is forbidden.",
    Reason.STORAGE_FULL: "The store is full.",
    Reason.STORAGE_ERROR: "The store failed in another way.",
    Reason.TOO_LARGE: "Reading the table takes more memory than a process of the operator has, or "
    "ended each process that read it. It is looked at again.",
    Reason.NOT_MERGE_ON_READ: "The table has no log: `spec.mergeOnRead` is not set.",
    Reason.DUPLICATE_KEYS: "Several rows of the source have the same key, and no ordering column "
    "decides which of them wins.",
    Reason.BASE_REPLACED: "Another writer replaced the base table, and it is unclear whether "
    "the unmerged records are still valid.",
    Reason.BASE_HISTORY_GAP: "Commits of the base table that decide which unmerged "
    "records are valid are no longer in its log.",
    Reason.LOCKS_UNAVAILABLE: "etcd, which keeps the locks, cannot be reached. Nothing is "
    "lost; the operation waits.",
    Reason.CLUSTER_UNAVAILABLE: "The Kubernetes API does not answer.",
    Reason.SPARK_MISSING: "Java or Spark is not installed, or a cluster lacks the Spark "
    "operator's definitions, so jobs cannot run.",
    Reason.JOB_FAILED: "The job failed.",
    Reason.OUT_OF_MEMORY: "The driver, an executor, a Python worker or a process of the "
    "operator ran out of memory.",
    Reason.IMAGE_PULL_FAILED: "The driver's image cannot be pulled.",
    Reason.UNSCHEDULABLE: "No node has room for the driver.",
    Reason.JOB_NOT_STARTED: "The driver's container cannot be created; often a Secret is missing.",
    Reason.SUBMISSION_FAILED: "The Spark operator could not submit the job.",
    Reason.DRIVER_EVICTED: "The driver's pod was evicted, or its node was lost.",
    Reason.JOB_VANISHED: "The job or its driver no longer exists, and left no result.",
    Reason.STATEMENT_FAILED: "The statement failed on a row.",
    Reason.CONSTRAINT_VIOLATED: "A row with new values breaks a rule of the table: a CHECK "
    "constraint, an invariant, NOT NULL or a length. Nothing was published.",
    Reason.SOURCE_CHANGED: "The source changed while it was read; nothing was committed.",
    Reason.SOURCE_UNREADABLE: "A file of the source is damaged, truncated, or of another format.",
    Reason.MANIFEST_INVALID: "A job's result is missing, truncated or of another attempt.",
    Reason.OUTPUT_MISSING: "A file that a job wrote was deleted before the commit.",
    Reason.CONFLICT: "The operation conflicts with another commit.",
    Reason.TABLE_REPLACED: "The table was replaced by another one, or rolled back.",
    Reason.COUNT_MISMATCH: "A replay touched an unexpected number of rows.",
    Reason.ABANDONED: "A later attempt declared this one dead.",
    Reason.DEADLINE_EXCEEDED: "`activeDeadlineSeconds` is over.",
    Reason.BACKOFF_LIMIT_EXCEEDED: "The number of failed attempts reached `backoffLimit`.",
    Reason.ALREADY_RUNNING: "Another process runs this operation.",
    Reason.INTERRUPTED: "Stopped by the user.",
    Reason.CANCELLED: "The resource was deleted before the operation had committed.",
    Reason.INTERNAL_ERROR: "A bug: please report it.",
}

_AGAIN: Final = "then `kubectl tandem retry`"

REMEDY: Final[Mapping[Reason, str]] = {
    Reason.PENDING: "Wait. If it stays `Pending`, no operator serves this namespace: `kubectl "
    "tandem version`.",
    Reason.WAITING_FOR_DEPENDENCY: "Check the operation that it waits for; retry that one, or "
    "delete this one.",
    Reason.JOB_REFUSED: "Wait, or lift what refuses: raise the quota, grant the operator's role, "
    "repair the webhook.",
    Reason.WAITING_FOR_LOCK: "Wait, or check the holder: `kubectl tandem locks`. A higher "
    "`priority` goes first.",
    Reason.RETRYING: "Wait; the message says why the last attempt failed.",
    Reason.YIELDED: "Wait: after `exclusive.maxYields` yields it goes on as `Concurrent`. Where "
    "writers never pause, use `lockMode: Concurrent`.",
    Reason.SUSPENDED: "`kubectl tandem resume`.",
    Reason.INVALID_SPEC: "Correct the field that the message names. Operations keep their spec: "
    "create another one.",
    Reason.INVALID_STATEMENT: "Correct the expression and create another operation: "
    "docs/statements.md.",
    Reason.REFERENCE_NOT_FOUND: "Create what the message names, in the same namespace.",
    Reason.LOCATION_NOT_ALLOWED: "Use a location that the operator allows, or have its "
    "administrator allow this one, " + _AGAIN + ".",
    Reason.UNKNOWN_SEGMENT: "Use names from `kubectl tandem status` or `tandem table segments`, "
    "and create another operation.",
    Reason.TABLE_NOT_FOUND: "Correct `spec.location`, or have the table created by `spec.create`; "
    "if it is the source of an operation, create it, " + _AGAIN + ".",
    Reason.CORRUPT_LOG: "Restore the file that the message names from a copy of the store, "
    + _AGAIN
    + "; Tandem touches nothing until then.",
    Reason.CORRUPT_DELETION_VECTOR: "Restore the file that the message names from a copy of the "
    "store, " + _AGAIN + ".",
    Reason.DATA_FILE_MISSING: "Restore the file, or the table to a version without it, "
    + _AGAIN
    + ".",
    Reason.UNSUPPORTED_FEATURE: "Do what the message says, " + _AGAIN + ".",
    Reason.DELETION_VECTORS_DISABLED: "Set `spec.enableDeletionVectors` of the LakeTable, or "
    "`spec.vectors: Auto`, " + _AGAIN + ".",
    Reason.ROW_TRACKING_INCOMPLETE: "Have Spark assign the ids (`ALTER TABLE … SET TBLPROPERTIES "
    "('delta.enableRowTracking' = 'false')`, then `'true'`), " + _AGAIN + ".",
    Reason.VERSION_NOT_FOUND: "Name a version that the log still has: `tandem history`.",
    Reason.NOT_MERGE_ON_READ: "Use an operation for tables without a log.",
    Reason.DUPLICATE_KEYS: "Keep one row of each key in the source, or rows whose values of the "
    "ordering column differ, and create another operation.",
    Reason.BASE_REPLACED: "Decide whether the unmerged records are still valid: `tandem log "
    "resolve`.",
    Reason.BASE_HISTORY_GAP: "Decide whether the unmerged records are still valid: `tandem log "
    "resolve`.",
    Reason.STORE_UNSUITABLE: "Use a store with conditional puts (S3, GCS, ADLS, a local disk).",
    Reason.ACCESS_DENIED: "Check the Secret in `spec.storage` and its permissions on the bucket, "
    "or the token of `spec.catalog` and its grants, " + _AGAIN + ".",
    Reason.CATALOG_FORBIDS: "Have the owner of the table grant what the message names "
    "(`DATA_REORGANIZATION`, `DATA_CLEANUP` or `METADATA_CLEANUP`) in a catalog that has lists of "
    "permitted maintenance, " + _AGAIN + ". Updates, deletes and ingests need no such grant.",
    Reason.STORAGE_FULL: "Free space, " + _AGAIN + ".",
    Reason.STORAGE_ERROR: "Check the store; transient errors are retried automatically.",
    Reason.TOO_LARGE: "Find out what made the table so large. If it is meant to be, raise the "
    "operator's `--table-memory` (the chart's `settings.tableMemory`) and its memory.",
    Reason.LOCKS_UNAVAILABLE: "Check etcd, and the network between it and the operator.",
    Reason.CLUSTER_UNAVAILABLE: "Check the API server.",
    Reason.SPARK_MISSING: "Install Java and Spark, or use the image; in a cluster, install the "
    "Spark operator, or have small jobs done without it: the chart's `workers.spark`.",
    Reason.JOB_FAILED: "Read the driver's log: `kubectl logs` of the pod that the message names, "
    + _AGAIN
    + ".",
    Reason.OUT_OF_MEMORY: "Give it more memory in `sparkTemplate`, in another operation.",
    Reason.IMAGE_PULL_FAILED: "Correct the operator's image or its pull secret, " + _AGAIN + ".",
    Reason.UNSCHEDULABLE: "Add nodes, or request less in `sparkTemplate`.",
    Reason.JOB_NOT_STARTED: "Create the Secret or ConfigMap that the message names, "
    + _AGAIN
    + ".",
    Reason.SUBMISSION_FAILED: "Check the Spark operator's log, and the service account of the "
    "jobs.",
    Reason.DRIVER_EVICTED: "Nothing if the next attempt succeeds; otherwise check the nodes.",
    Reason.JOB_VANISHED: "Find out who deletes SparkApplications or pods, " + _AGAIN + ".",
    Reason.STATEMENT_FAILED: "Guard the statement with CASE WHEN, in another operation.",
    Reason.CONSTRAINT_VIOLATED: "Leave such rows out, or correct the source, in another operation.",
    Reason.SOURCE_CHANGED: "Create another operation, with a source that does not change or the "
    "`version` of a Delta table.",
    Reason.SOURCE_UNREADABLE: "Write the file again, " + _AGAIN + ".",
    Reason.MANIFEST_INVALID: "`kubectl tandem retry`; if it happens again, report it.",
    Reason.OUTPUT_MISSING: "Find out who deletes files below the table, " + _AGAIN + ".",
    Reason.CONFLICT: "`kubectl tandem retry`: it starts again with the latest version.",
    Reason.TABLE_REPLACED: "Create another operation for the table as it is now.",
    Reason.COUNT_MISMATCH: "Nothing was published. Please report it: `kubectl tandem report`.",
    Reason.ABANDONED: "See the later attempt.",
    Reason.DEADLINE_EXCEEDED: "Create it again with a longer deadline, or find out why it took so "
    "long: `kubectl tandem history`.",
    Reason.BACKOFF_LIMIT_EXCEEDED: "Fix the problem in the message, " + _AGAIN + ".",
    Reason.ALREADY_RUNNING: "Wait for the other process.",
    Reason.CANCELLED: "Create it again if it is still wanted.",
    Reason.INTERNAL_ERROR: "`kubectl tandem report`, and attach the bundle to the report.",
}
"""What to do in a cluster. Reasons that need no action have no entry."""

_OR_THE_TABLE: Final = (
    "Fix the resource and run again. If you fixed the table or the source: `{again}`."
)
_AFTER_THAT: Final = "After that, `{again}`."
_TYPED: Final = {
    _OR_THE_TABLE: "Correct the command and run again. If you fixed the table or the source: "
    "`{again}`.",
    _AFTER_THAT: "`{again}`.",  # with the option
}
"""What those read who typed a command with options."""
_FIXED: Final = "Once that is fixed, `{again}`."
_RESTORE: Final = "Restore the file or the table, then `{again}`."

HERE: Final[Mapping[Reason, str]] = {
    Reason.INVALID_SPEC: _OR_THE_TABLE,
    Reason.INVALID_STATEMENT: _OR_THE_TABLE,
    Reason.REFERENCE_NOT_FOUND: _FIXED,
    Reason.LOCATION_NOT_ALLOWED: _FIXED,
    Reason.UNKNOWN_SEGMENT: _OR_THE_TABLE,
    Reason.TABLE_NOT_FOUND: _FIXED,
    Reason.VERSION_NOT_FOUND: _OR_THE_TABLE,
    Reason.STATEMENT_FAILED: _OR_THE_TABLE,
    Reason.CONSTRAINT_VIOLATED: _OR_THE_TABLE,
    Reason.CORRUPT_LOG: "Restore the file that the message names, then `{again}`.",
    Reason.CORRUPT_DELETION_VECTOR: _RESTORE,
    Reason.DATA_FILE_MISSING: _RESTORE,
    Reason.UNSUPPORTED_FEATURE: _FIXED,
    Reason.DELETION_VECTORS_DISABLED: _AFTER_THAT,
    Reason.ROW_TRACKING_INCOMPLETE: _AFTER_THAT,
    Reason.CONFLICT: "To start with the latest version, `{again}`; for a TableUpdate, a higher "
    "`conflict.maxAttempts` allows more rounds.",
    Reason.JOB_FAILED: "Read the log that the message names, then `{again}`.",
    Reason.OUT_OF_MEMORY: "Give it more memory in `sparkTemplate`.",
    Reason.STORAGE_FULL: "Free space, then `{again}`.",
    Reason.ACCESS_DENIED: "Check the credentials in the environment and their permissions; for a "
    "local path, those of this user.",
    Reason.SOURCE_CHANGED: "Do not change the source during the run, or name the `version` of a "
    "Delta table, then `{again}`.",
    Reason.SOURCE_UNREADABLE: "Write the file that the message names again, then `{again}`.",
    Reason.OUTPUT_MISSING: "Find out who deletes files below the table, then `{again}`.",
    Reason.TABLE_REPLACED: "To work on the table as it is now, `{again}`.",
    Reason.BACKOFF_LIMIT_EXCEEDED: "Fix the problem in the message, then `{again}`.",
    Reason.DEADLINE_EXCEEDED: "Set a longer deadline, then `{again}`.",
    Reason.COUNT_MISMATCH: "Nothing was published. Please report it.",
    Reason.INTERNAL_ERROR: "Please report it.",
}
"""What to do without a cluster if the message does not say it. `{again}` is a command."""


def remedy(reason: str) -> str:
    """What to do, "" if nothing is known or needed."""
    return REMEDY.get(Reason(reason), "") if reason in set(Reason) else ""


def remedy_here(reason: str, run: str, again: str, *, typed: bool = False) -> str:
    """What to do about an operation without a cluster, "" where nothing is known or the message
    says it. `run` is the command that was typed, and `again` the one that starts this resource
    again, and no other: it is not repeated if it is what was typed. `typed`: there is no resource,
    but a command with options."""
    if reason not in HERE:
        return ""
    command = "run the command again" if run == again else f"`{again}`"
    text = HERE[Reason(reason)]
    if typed:
        text = _TYPED.get(text, text)
    return text.replace("`{again}`", command)
