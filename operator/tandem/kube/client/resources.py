"""Our resources as the API server returns them: names of kinds, accessors of fields of raw objects,
which may have any content, and the cache of a summary of each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from tandem.kube.client.api import ResourcePath
from tandem.spec.common import (
    GROUP,
    OPERATIONS,
    PLAN_LABEL,
    PREFIX,
    RETRY_ANNOTATION,
    VERSION,
    ResourceKey,
    plural,
)
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


def version_number(resource_version: str) -> int:
    """A resource version as a number: of two objects, the one written later has the greater one.
    Kubernetes guarantees that since 1.35 (KEP-5504); with etcd it always was so."""
    return int(resource_version) if resource_version.isdecimal() else 0


def generation_of(body: Body) -> int:
    return int(body["metadata"].get("generation", 1))


def status_of(body: Body) -> Mapping[str, Any]:
    found = body.get("status")
    return found if isinstance(found, Mapping) else {}


def spec_of(body: Body) -> Mapping[str, Any]:
    found = body.get("spec")
    return found if isinstance(found, Mapping) else {}


def place_of(table: Body) -> str:
    """Where a LakeTable is: its location, or what it names its catalog and the table in it."""
    spec = spec_of(table)
    return str(spec.get("location") or json.dumps(spec.get("catalog", ""), sort_keys=True))


def is_owned(body: Body, uid: str) -> bool:
    """Whether the object of this uid owns it."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())


def retry_requested(body: Body) -> str:
    """The value of the annotation that has not been answered yet, or ""."""
    requested = (body["metadata"].get("annotations") or {}).get(RETRY_ANNOTATION, "")
    return requested if requested and requested != status_of(body).get("observedRetry") else ""


def is_deleting(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]


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


# The operator's cache of all our resources: a short summary of each, in memory.
#
# Fed by watch events, so it is the cluster's state of some milliseconds ago. Whole objects are
# kept only of resources that need work; of the finished ones, of which there may be tens of
# thousands, only the fields that are listed or waited for.


Wake = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CachedResource:
    """One resource. `type` is that of a TableCompaction, "" for other kinds; `table` is the name
    of its LakeTable (for a LakeTable, its own), `owner` the uid of its owner, `operation` the
    operation id. Times are RFC 3339 as in the API server, "" if not known."""

    uid: str
    kind: str
    type: str
    namespace: str
    name: str
    table: str
    phase: str
    reason: str
    message: str
    generation: int
    observed_generation: int
    resource_version: str
    created: str
    started: str
    completed: str
    ttl_s: int | None
    deleting: bool
    active: bool
    owner: str
    labels: tuple[tuple[str, str], ...]
    version: int | None
    operation: str

    @property
    def key(self) -> ResourceKey:
        return (self.kind, self.namespace, self.name)

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def ended(self) -> bool:
        return self.phase in ENDED and not self.active


def summarize(body: Body) -> CachedResource:
    """The summary of an object as the API server returns it."""
    metadata, spec, status = body["metadata"], spec_of(body), status_of(body)
    kind, namespace, name = key_of(body)
    table = name if kind == TABLE_KIND else str((spec.get("tableRef") or {}).get("name", ""))
    ready = condition(body, "Succeeded" if kind in OPERATIONS else "Ready")
    ttl = spec.get("ttlSecondsAfterFinished")
    labels = dict(metadata.get("labels") or {})
    if not is_plan_copy(body):
        labels.pop(PLAN_LABEL, None)
    active = kind not in OPERATIONS or is_active(body)
    result = status.get("result")
    version = result.get("version") if isinstance(result, Mapping) else None
    return CachedResource(
        uid=uid_of(body),
        kind=intern(kind),
        type=intern(str(spec.get("type", ""))),
        namespace=intern(namespace),
        name=name,
        table=intern(table),
        phase=intern(str(status.get("phase", ""))),
        reason=intern(str(ready.get("reason", ""))),
        # For a success, the reason is enough.
        message=str(ready.get("message", "")) if ready.get("status") == "False" else "",
        generation=generation_of(body),
        observed_generation=int(status.get("observedGeneration", -1)),
        resource_version=metadata["resourceVersion"],
        created=metadata.get("creationTimestamp", ""),
        started=status.get("startTime", ""),
        completed=status.get("completionTime", ""),
        ttl_s=ttl if isinstance(ttl, int) else None,
        deleting=is_deleting(body),
        active=active,
        owner=next((o["uid"] for o in metadata.get("ownerReferences") or ()), ""),
        labels=tuple((k, v) for k, v in sorted(labels.items()) if k.startswith(PREFIX)),
        version=version if isinstance(version, int) else None,
        operation=str(status.get("operationId", "")),
    )


class ResourceCache:
    """The cache. To be used in one event loop."""

    def __init__(self) -> None:
        self._summaries: dict[str, CachedResource] = {}
        self._uids: dict[ResourceKey, str] = {}
        self._by_table: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._bodies: dict[str, Body] = {}
        self._watchers: dict[ResourceKey, list[Wake]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._summaries)

    def update(self, body: Body) -> CachedResource:
        """An object was created or changed."""
        return self.put(summarize(body), body)

    def put(self, summary: CachedResource, body: Body | None) -> CachedResource:
        """The same, with its summary; `body` may be left out of one that has ended."""
        other = self.get(summary.key)
        if other is not None and other.uid != summary.uid:
            # The older of the two is gone, even if its deletion was not seen.
            if version_number(other.resource_version) > version_number(summary.resource_version):
                return summary
            self.remove(other.uid)
        self._forget(summary.uid)
        self._summaries[summary.uid] = summary
        self._uids[summary.key] = summary.uid
        self._by_table[summary.namespace, summary.table].add(summary.uid)
        if summary.active and body is not None:
            self._bodies[summary.uid] = body
        self._wake(summary)
        return summary

    def remove(self, uid: str) -> None:
        """An object is gone."""
        summary = self._forget(uid)
        if summary is not None:
            self._wake(summary)

    def clear(self) -> None:
        """Forget everything: all resources are about to be listed again."""
        self._summaries.clear()
        self._uids.clear()
        self._by_table.clear()
        self._bodies.clear()

    def body(self, uid: str) -> Body | None:
        """The whole object if the resource needs work, otherwise None."""
        return self._bodies.get(uid)

    def get(self, key: ResourceKey) -> CachedResource | None:
        uid = self._uids.get(key)
        return self._summaries.get(uid) if uid is not None else None

    def by_uid(self, uid: str) -> CachedResource | None:
        return self._summaries.get(uid)

    def of_table(self, namespace: str, table: str) -> Iterator[CachedResource]:
        """The operations on a table, in no particular order."""
        for uid in self._by_table.get((namespace, table), ()):
            summary = self._summaries[uid]
            if summary.kind != TABLE_KIND:
                yield summary

    def in_namespace(self, kind: str, namespace: str) -> Iterator[CachedResource]:
        """The resources of a kind in a namespace, in no particular order."""
        for summary in self._summaries.values():
            if summary.kind == kind and summary.namespace == namespace:
                yield summary

    def all(self) -> Iterable[CachedResource]:
        return self._summaries.values()

    def watch(self, key: ResourceKey, wake: Wake) -> Callable[[], None]:
        """Have `wake` called, in the loop, on every change of a resource (or of a LakeTable's
        operations); with the name "" of a LakeTable, on changes of any in the namespace. Returns a
        function that ends that."""
        self._watchers[key].append(wake)

        def end() -> None:
            wakes = self._watchers.get(key)
            if wakes is not None and wake in wakes:
                wakes.remove(wake)
                if not wakes:
                    del self._watchers[key]

        return end

    def wake_watchers(self, key: ResourceKey) -> None:
        """Wake the watchers of a resource although it did not change itself."""
        kind, namespace, _ = key
        every = [*self._watchers.get(key, ())]
        if kind == TABLE_KIND:
            every += self._watchers.get((kind, namespace, ""), ())
        for wake in every:
            wake()

    def _forget(self, uid: str) -> CachedResource | None:
        summary = self._summaries.pop(uid, None)
        if summary is None:
            return None
        if self._uids.get(summary.key) == uid:
            del self._uids[summary.key]
        table = (summary.namespace, summary.table)
        self._by_table[table].discard(uid)
        if not self._by_table[table]:
            del self._by_table[table]
        self._bodies.pop(uid, None)
        return summary

    def _wake(self, summary: CachedResource) -> None:
        keys = [summary.key]
        if summary.table and summary.kind != TABLE_KIND:
            keys.append((TABLE_KIND, summary.namespace, summary.table))
        for key in keys:
            self.wake_watchers(key)
