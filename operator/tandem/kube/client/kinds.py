"""The names of our kinds in Kubernetes, and accessors of fields of their raw objects.

Pure. Reads dictionaries as the API server returns them, which may have any content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandem.kube.client.api import ResourcePath
from tandem.spec.common import GROUP, VERSION, ResourceKey, plural
from tandem.spec.labels import FINALIZER, PLAN_LABEL, RETRY_ANNOTATION
from tandem.spec.resources import LakeTable
from tandem.spec.status import ENDED, Phase

TABLE_KIND: Final = LakeTable.kind_name

Body = Mapping[str, Any]


def path(kind: str, namespace: str | None = None, name: str = "") -> ResourcePath:
    """The path of objects of one of our kinds in the API."""
    return ResourcePath(GROUP, VERSION, plural(kind), namespace, name)


def key_of(body: Body) -> ResourceKey:
    metadata = body["metadata"]
    return (body["kind"], metadata.get("namespace", ""), metadata["name"])


def uid_of(body: Body) -> str:
    return str(body["metadata"]["uid"])


def version_of(body: Body) -> str:
    return str(body["metadata"]["resourceVersion"])


def generation_of(body: Body) -> int:
    return int(body["metadata"].get("generation", 1))


def status_of(body: Body) -> Mapping[str, Any]:
    found = body.get("status")
    return found if isinstance(found, Mapping) else {}


def spec_of(body: Body) -> Mapping[str, Any]:
    found = body.get("spec")
    return found if isinstance(found, Mapping) else {}


def retry_requested(body: Body) -> str:
    """The value of the annotation that has not been answered yet, or ""."""
    requested = (body["metadata"].get("annotations") or {}).get(RETRY_ANNOTATION, "")
    return requested if requested and requested != status_of(body).get("observedRetry") else ""


def is_deleting(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]


def has_finalizer(body: Body) -> bool:
    return FINALIZER in (body["metadata"].get("finalizers") or ())


def is_plan_copy(body: Body) -> bool:
    """Whether it is a dry run that `kubectl tandem plan` has made. The label alone is not enough:
    it must not hide a real operation."""
    labels = body["metadata"].get("labels") or {}
    return PLAN_LABEL in labels and spec_of(body).get("dryRun") is True


def is_active(body: Body) -> bool:
    """Whether an operation needs work: it has not ended, or it has failed and a retry is
    requested."""
    phase = status_of(body).get("phase")
    if phase == Phase.FAILED and retry_requested(body):
        return True
    return phase not in ENDED


def condition(body: Body, type_: str) -> Mapping[str, Any]:
    """A condition of the status; empty if there is none."""
    for item in status_of(body).get("conditions") or ():
        if item.get("type") == type_:
            return dict(item)
    return {}
