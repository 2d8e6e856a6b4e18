"""`docs/troubleshooting.md`: symptoms without a reason. And what to check for each reason, a
column of `docs/reasons.md`.

Used by `generate_docs.py`. Remedies are in `tandem.remedies`, which `kubectl tandem` prints,
too.
"""

from __future__ import annotations

from typing import Final

from tandem.errors import Reason

_STATUS: Final = "`kubectl tandem status TABLE`"
_MESSAGE: Final = "the message"
_LOG: Final = "the driver's log: `kubectl logs` of the pod in the message"
_EVENTS: Final = "`kubectl get events --field-selector type=Warning`"
_TABLE: Final = "`kubectl describe ltbl/TABLE`"
_HISTORY: Final = "`kubectl tandem history TABLE`"
_SPARK: Final = "`kubectl get sparkapplications`"

LOOK: Final = {
    Reason.PENDING: "`kubectl tandem version`: whether an operator serves this namespace",
    Reason.PLANNED: _STATUS,
    Reason.WAITING_FOR_DEPENDENCY: _MESSAGE + " names the resource that it waits for",
    Reason.WAITING_FOR_LOCK: "`kubectl tandem locks`: which operation holds which segments",
    Reason.JOB_REFUSED: _MESSAGE + " has the API server's answer, since when, and the next try",
    Reason.RUNNING: f"{_STATUS}, {_SPARK}",
    Reason.RECONCILING: _STATUS,
    Reason.RETRYING: _MESSAGE + " has the last failure",
    Reason.YIELDED: "`status.yields`: to what, and when it tries again",
    Reason.SUSPENDED: _STATUS,
    Reason.COMMITTED: _HISTORY,
    Reason.ADOPTED: _TABLE,
    Reason.CREATED: _TABLE,
    Reason.SERVING: "`kubectl get ixs -o wide`",
    Reason.DRY_RUN: "`kubectl tandem plan KIND/NAME`",
    Reason.NOTHING_TO_DO: "`kubectl tandem plan KIND/NAME`",
    Reason.SUPERSEDED: _HISTORY,
    Reason.INVALID_SPEC: _MESSAGE + " names field, value and expected value",
    Reason.INVALID_STATEMENT: _MESSAGE + " has line, column and a caret",
    Reason.REFERENCE_NOT_FOUND: "`kubectl get lake`: the names that exist",
    Reason.LOCATION_NOT_ALLOWED: "the chart's `allowedLocations` and `allowedEndpoints`: "
    "`helm get values tandem -n tandem-system`",
    Reason.UNKNOWN_SEGMENT: _STATUS,
    Reason.TABLE_NOT_FOUND: _TABLE,
    Reason.CORRUPT_LOG: _MESSAGE + " names the file",
    Reason.CORRUPT_DELETION_VECTOR: _MESSAGE + " names the file",
    Reason.DATA_FILE_MISSING: _MESSAGE + " names the file",
    Reason.UNSUPPORTED_FEATURE: "[Delta features](features.md)",
    Reason.DELETION_VECTORS_DISABLED: _TABLE,
    Reason.ROW_TRACKING_INCOMPLETE: _TABLE,
    Reason.VERSION_NOT_FOUND: "`tandem history LOCATION`",
    Reason.NOT_MERGE_ON_READ: "`tandem scan LOCATION --base`",
    Reason.DUPLICATE_KEYS: _MESSAGE + " names some of the keys",
    Reason.BASE_REPLACED: "`tandem history LOCATION`",
    Reason.BASE_HISTORY_GAP: "`tandem history LOCATION`",
    Reason.STORE_UNSUITABLE: "the store's own documentation on `If-None-Match`",
    Reason.ACCESS_DENIED: "`kubectl get ltbl/TABLE -o yaml`: `spec.storage`",
    Reason.CATALOG_FORBIDS: "the grants on the table in its catalog",
    Reason.STORAGE_FULL: "the store's own figures",
    Reason.STORAGE_ERROR: _MESSAGE,
    Reason.TOO_LARGE: _MESSAGE + " says what memory was lacking, or how the process ended",
    Reason.LOCKS_UNAVAILABLE: "[TandemLockStoreUnreachable]"
    "(runbooks/TandemLockStoreUnreachable.md)",
    Reason.CLUSTER_UNAVAILABLE: "[TandemApiErrors](runbooks/TandemApiErrors.md)",
    Reason.SPARK_MISSING: "`kubectl get crd sparkapplications.sparkoperator.k8s.io`",
    Reason.JOB_FAILED: _LOG,
    Reason.OUT_OF_MEMORY: _MESSAGE + " names the process: driver, executor or Python worker",
    Reason.IMAGE_PULL_FAILED: _EVENTS,
    Reason.UNSCHEDULABLE: _EVENTS,
    Reason.JOB_NOT_STARTED: _EVENTS,
    Reason.SUBMISSION_FAILED: f"{_SPARK}, and the Spark operator's log",
    Reason.DRIVER_EVICTED: _EVENTS,
    Reason.JOB_VANISHED: _SPARK,
    Reason.STATEMENT_FAILED: _MESSAGE + " has Spark's condition",
    Reason.CONSTRAINT_VIOLATED: _MESSAGE + " has the rule and a row",
    Reason.SOURCE_CHANGED: _MESSAGE + " names the file, and its state before and now",
    Reason.SOURCE_UNREADABLE: _MESSAGE + " names the file",
    Reason.MANIFEST_INVALID: _LOG,
    Reason.OUTPUT_MISSING: "what deletes files of the table: a vacuum, a rule of the bucket",
    Reason.CONFLICT: "`tandem history LOCATION`: the other commit",
    Reason.TABLE_REPLACED: "`tandem history LOCATION`",
    Reason.COUNT_MISMATCH: _MESSAGE,
    Reason.ABANDONED: _HISTORY,
    Reason.DEADLINE_EXCEEDED: _HISTORY,
    Reason.BACKOFF_LIMIT_EXCEEDED: _MESSAGE + " has the last failure",
    Reason.ALREADY_RUNNING: "`kubectl tandem locks`",
    Reason.INTERRUPTED: "only `tandem run`",
    Reason.CANCELLED: "the audit log of the cluster, for the deletion",
    Reason.INTERNAL_ERROR: "the operator's log: `kubectl -n tandem-system logs deployment/"
    "tandem-operator`",
}

_BEGIN: Final = """\
Start with these commands ([`kubectl tandem`](kubectl.md) is a plugin,
[`tandem`](cli.md) needs no cluster):

```sh
kubectl tandem status
kubectl tandem version
kubectl -n tandem-system logs deployment/tandem-operator --tail=100
```

`status` shows problems first, each with its reason and remedy. [Reasons](reasons.md) says what each
reason means, what to check and what to do. [What happens if…](failure-modes.md) lists the effect of
failures. For an alert, see its [runbook](runbooks).
"""

WITHOUT: Final = (
    (
        "a new resource has no phase",
        "no operator serves the namespace (`watch.namespaces`), or none runs; or one of that name "
        "was just deleted, and its job still ends",
        "[TandemOperatorDown](runbooks/TandemOperatorDown.md), "
        "[TandemNoLeader](runbooks/TandemNoLeader.md)",
    ),
    (
        "a pod of Tandem reports `ImagePullBackOff` or `ErrImagePull`",
        "the image is neither on the node nor in a registry of that name",
        "[build it](image.md) and push it: `image.registry`, `imagePullSecrets`",
    ),
    (
        "the bundled etcd's pod stays `Pending`",
        "the cluster has no default storage class",
        "`etcd.bundled.persistence.storageClass`, or "
        "`etcd.bundled.persistence.enabled=false` for trials",
    ),
    (
        "the operator's pod is Ready, and nothing happens",
        "it stands by, or waits for etcd or for the definitions of Tandem",
        "[TandemNoLeader](runbooks/TandemNoLeader.md)",
    ),
    (
        "the operator's pod is not Ready",
        "a watch has died, it ends, or a namespace waits for threads",
        "[its phases](operator.md#monitoring)",
    ),
    (
        "`kubectl` says `forbidden` to you",
        "you have no rights on Tandem's kinds",
        "`rbac.userRoles` of the chart adds them to `view` and `edit`",
    ),
    (
        "the operator's log says `forbidden`",
        "the chart's values do not grant the rights",
        "[TandemApiForbidden](runbooks/TandemApiForbidden.md)",
    ),
    (
        "a resource or a namespace stays `Terminating`",
        "an earlier release has put a finalizer on an operation, and no operator runs",
        "[start one, or remove the finalizer](operator.md#when-something-breaks)",
    ),
    (
        "a change is refused: `cannot be changed`",
        "the spec of an operation is immutable",
        "create another one; [what may change](resources.md)",
    ),
    (
        "an operation applied again does nothing",
        "the same name and spec identify the same operation, which has a result",
        "give it another name",
    ),
    (
        "a compaction skips files",
        "`preserve`, `maxSegmentSize`, `thresholds`, or another chunk",
        "`kubectl tandem plan TableCompaction/NAME`",
    ),
    (
        "files stay on the store",
        "older versions of the table still name them",
        "`spec.retention`, then `tandem clean LOCATION`",
    ),
)
"""Symptoms without a reason: (symptom, usual cause, remedy)."""


def troubleshooting(note: str) -> str:
    """The page."""
    text = "# Troubleshooting\n\n" + note + _BEGIN
    text += "\n## Without a reason\n\n| symptom | usual cause | remedy |\n|---|---|---|\n"
    for row in WITHOUT:
        text += f"| {' | '.join(row)} |\n"
    return text
