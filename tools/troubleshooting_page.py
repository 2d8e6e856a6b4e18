"""`docs/troubleshooting.md`: what to look at and to do, for every reason that there is.

Used by `generate_docs.py`. What to do is of `tandem.spec.remedies`, which `kubectl tandem` says,
too; here stands only where to look, and what has no reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.errors import Reason
from tandem.spec.remedies import REMEDY

_STATUS: Final = "`kubectl tandem status TABLE`"
_MESSAGE: Final = "the message: `kubectl tandem status`"
_LOG: Final = "the driver's log: `kubectl logs` of the pod in the message"
_EVENTS: Final = "`kubectl get events --field-selector type=Warning`"
_TABLE: Final = "`kubectl describe ltbl/TABLE`"
_HISTORY: Final = "`kubectl tandem history TABLE`"
_SPARK: Final = "`kubectl get sparkapplications`"

LOOK: Final = {
    Reason.PENDING: "`kubectl tandem version`: does an operator run, and serve this namespace?",
    Reason.PLANNED: _STATUS,
    Reason.WAITING_FOR_DEPENDENCY: _MESSAGE + " names what it waits for",
    Reason.WAITING_FOR_LOCK: "`kubectl tandem locks`: who holds which segments, since when",
    Reason.RUNNING: f"{_STATUS}, {_SPARK}",
    Reason.RECONCILING: _STATUS,
    Reason.RETRYING: _MESSAGE + " has the last failure",
    Reason.SUSPENDED: _STATUS,
    Reason.COMMITTED: _HISTORY,
    Reason.ADOPTED: _TABLE,
    Reason.CREATED: _TABLE,
    Reason.DRY_RUN: "`kubectl tandem plan KIND/NAME`",
    Reason.NOTHING_TO_DO: "`kubectl tandem plan KIND/NAME`",
    Reason.SUPERSEDED: _HISTORY,
    Reason.INVALID_SPEC: _MESSAGE + " names field, value and what was expected",
    Reason.INVALID_STATEMENT: _MESSAGE + " has line, column and a caret",
    Reason.REFERENCE_NOT_FOUND: "`kubectl get lake`: is there one of that name?",
    Reason.LOCATION_NOT_ALLOWED: "the chart's `allowedLocations` and `allowedEndpoints`: "
    "`helm get values tandem -n tandem-system`",
    Reason.UNKNOWN_SEGMENT: _STATUS,
    Reason.TABLE_NOT_FOUND: _TABLE,
    Reason.CORRUPT_LOG: _MESSAGE + " names the file",
    Reason.CORRUPT_DELETION_VECTOR: _MESSAGE + " names the file",
    Reason.DATA_FILE_MISSING: _MESSAGE + " names the file",
    Reason.UNSUPPORTED_FEATURE: "[Delta features](features.md)",
    Reason.DELETION_VECTORS_DISABLED: _TABLE,
    Reason.VERSION_NOT_FOUND: "`tandem history LOCATION`",
    Reason.STORE_UNSUITABLE: "the store's own documentation on `If-None-Match`",
    Reason.ACCESS_DENIED: "`kubectl get ltbl/TABLE -o yaml`: `spec.storage`",
    Reason.STORAGE_FULL: "the store's own figures",
    Reason.STORAGE_ERROR: _MESSAGE,
    Reason.LOCKS_UNAVAILABLE: "[TandemLockStoreUnreachable]"
    "(runbooks/TandemLockStoreUnreachable.md)",
    Reason.CLUSTER_UNAVAILABLE: "[TandemApiErrors](runbooks/TandemApiErrors.md)",
    Reason.SPARK_MISSING: _LOG,
    Reason.JOB_FAILED: _LOG,
    Reason.JOB_TIMEOUT: f"{_SPARK}, {_LOG}",
    Reason.OUT_OF_MEMORY: _MESSAGE + " says whose: driver, executor or Python worker",
    Reason.IMAGE_PULL_FAILED: _EVENTS,
    Reason.UNSCHEDULABLE: _EVENTS,
    Reason.JOB_NOT_STARTED: _EVENTS,
    Reason.SUBMISSION_FAILED: f"{_SPARK}, and the Spark operator's log",
    Reason.DRIVER_EVICTED: _EVENTS,
    Reason.JOB_VANISHED: _SPARK,
    Reason.STATEMENT_FAILED: _MESSAGE + " has Spark's condition",
    Reason.SOURCE_CHANGED: _MESSAGE + " names the file, as it was and as it is",
    Reason.SOURCE_UNREADABLE: _MESSAGE + " names the file",
    Reason.MANIFEST_INVALID: _LOG,
    Reason.OUTPUT_MISSING: "who cleans below the table: a vacuum, a life-cycle rule of the bucket",
    Reason.CONFLICT: "`tandem history LOCATION`: the other commit",
    Reason.TABLE_REPLACED: "`tandem history LOCATION`",
    Reason.COUNT_MISMATCH: _MESSAGE,
    Reason.ABANDONED: _HISTORY,
    Reason.DEADLINE_EXCEEDED: _HISTORY,
    Reason.BACKOFF_LIMIT_EXCEEDED: _MESSAGE + " has the last failure",
    Reason.ALREADY_RUNNING: "`kubectl tandem locks`",
    Reason.INTERRUPTED: "only `tandem run`",
    Reason.CANCELLED: "who deleted it: the audit log of the cluster",
    Reason.INTERNAL_ERROR: "the operator's log: `kubectl -n tandem-system logs deployment/"
    "tandem-operator`",
}

_BEGIN: Final = """\
Three commands show nearly everything ([`kubectl tandem`](kubectl.md) is a plugin,
[`tandem`](cli.md) needs no cluster):

```sh
kubectl tandem status
kubectl tandem version
kubectl -n tandem-system logs deployment/tandem-operator --tail=100
```

`status` puts problems first, each with its reason and what to do. What a reason means:
[reasons](reasons.md). What is measured to happen when something breaks:
[what happens if…](failure-modes.md). For an alert: [runbooks](runbooks).
"""

WITHOUT: Final = (
    (
        "a new resource has no phase",
        "no operator serves the namespace (`watch.namespaces`), or none runs",
        "[TandemOperatorDown](runbooks/TandemOperatorDown.md), "
        "[TandemNoLeader](runbooks/TandemNoLeader.md)",
    ),
    (
        "a pod of ours says `ImagePullBackOff` or `ErrImagePull`",
        "the image is not on the node, and in no registry of that name",
        "[build it](image.md) and push it: `image.registry`, `imagePullSecrets`",
    ),
    (
        "the bundled etcd's pod stays `Pending`",
        "the cluster has no default storage class",
        "`etcd.bundled.persistence.storageClass`, or "
        "`etcd.bundled.persistence.enabled=false` to try it out",
    ),
    (
        "the operator's pod is not ready",
        "it waits for etcd, or for definitions of the Spark operator",
        "its log says which",
    ),
    (
        "`kubectl` says `forbidden` to you",
        "you have no rights on our kinds",
        "`rbac.userRoles` of the chart adds them to `view` and `edit`",
    ),
    (
        "the operator's log says `forbidden`",
        "rights that the chart's values do not give",
        "[TandemApiForbidden](runbooks/TandemApiForbidden.md)",
    ),
    (
        "a resource or a namespace stays `Terminating`",
        "no operator runs that could take its finalizer off",
        "[start one, or take it off](operator.md#when-something-breaks)",
    ),
    (
        "a change is refused: `cannot be changed`",
        "operations keep their spec",
        "create another one; [what may change](resources.md)",
    ),
    (
        "an operation applied again does nothing",
        "same name and spec are the same operation, and it has its result",
        "give it another name",
    ),
    (
        "a compaction leaves files alone",
        "`preserve`, `maxSegmentSize`, `thresholds`, or another chunk",
        "`kubectl tandem plan TableCompaction/NAME`",
    ),
    (
        "files stay on the store",
        "older versions of the table still name them",
        "`spec.retention`, then `tandem clean LOCATION`",
    ),
)
"""What people see that has no reason: (you see, most often, do)."""


def troubleshooting(note: str, groups: Sequence[tuple[str, Sequence[Reason]]]) -> str:
    """The page; every reason stands in it."""
    looks = dict(LOOK)
    text = "# Troubleshooting\n\n" + note + _BEGIN
    text += "\n## Without a reason\n\n| you see | most often | do |\n|---|---|---|\n"
    for row in WITHOUT:
        text += f"| {' | '.join(row)} |\n"
    text += "\n## By reason\n"
    for heading, members in groups:
        text += f"\n### {heading}\n\n| reason | look at | do |\n|---|---|---|\n"
        for reason in members:
            text += f"| `{reason}` | {looks.pop(reason)} | {REMEDY.get(reason, 'nothing')} |\n"
    assert not looks, f"no such reasons: {looks}"
    return text
