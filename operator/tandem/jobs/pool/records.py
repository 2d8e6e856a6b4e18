"""The ConfigMap of a pool: its keys, and the patches by which operator and driver change it.

    state        `open`, or `closed`: it takes no more jobs
    job.<name>   a job; removed by the operator when it needs it no more
    stop.<name>  the operator wants it to end
    begun.<name> the driver has begun it
    end.<name>   how it ended, by the driver

Every patch changes the keys of one side and tests what it relies on, so that neither overwrites
what the other has written: a job is added only while the pool is open, and a pool is closed only if
its driver has seen all jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.jobs.pool.formats import PooledEnd, PooledJob, decode, encode
from tandem.json_types import Json
from tandem.spec.labels import JOB_POOL_LABEL, MANAGED_BY

OPEN: Final = "open"
CLOSED: Final = "closed"
_STATE = "state"
_JOB, _STOP, _BEGUN, _END = "job.", "stop.", "begun.", "end."
Patch = list[Json]
"""A JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool's ConfigMap, read. `version` is its `resourceVersion`."""

    name: str
    uid: str
    version: str
    is_open: bool = False
    jobs: Mapping[str, PooledJob] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    ended: Mapping[str, PooledEnd] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    """Names of jobs that are written in another way: by another version."""

    @property
    def unfinished(self) -> frozenset[str]:
        """The names of its jobs that have not ended."""
        return frozenset(self.jobs) - frozenset(self.ended)


def record_of(body: Mapping[str, Any]) -> PoolRecord:
    """What a ConfigMap says. One that is being deleted takes no jobs."""
    metadata, data = body["metadata"], body.get("data") or {}
    jobs = {name: decode(PooledJob, text) for name, text in _under(data, _JOB).items()}
    ends = {name: decode(PooledEnd, text) for name, text in _under(data, _END).items()}
    return PoolRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        version=str(metadata.get("resourceVersion", "")),
        is_open=data.get(_STATE) == OPEN and "deletionTimestamp" not in metadata,
        jobs={name: job for name, job in jobs.items() if job is not None},
        stopped=frozenset(_under(data, _STOP)),
        begun=frozenset(_under(data, _BEGUN)),
        ended={name: end for name, end in ends.items() if end is not None},
        unreadable=frozenset(name for name, job in jobs.items() if job is None),
    )


def new_record(namespace: str, name: str, digest: str) -> Json:
    """The ConfigMap of a new pool, to create."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {MANAGED_BY[0]: MANAGED_BY[1], JOB_POOL_LABEL: digest},
        },
        "data": {_STATE: OPEN},
    }


def post(name: str, job: PooledJob) -> Patch:
    """Add a job. It fails unless the pool is open."""
    return [_test(_STATE, OPEN), _add(_JOB + name, encode(job))]


def ask_to_stop(name: str) -> Patch:
    return [_add(_STOP + name, "")]


def forget(name: str) -> Json:
    """Remove all of a job: a merge patch, which does not fail for what is not there."""
    return {"data": {key + name: None for key in (_JOB, _STOP, _BEGUN, _END)}}


def report_begun(name: str, job: PooledJob) -> Patch:
    """Say that a job has begun. It fails if that job was removed."""
    return [_test(_JOB + name, encode(job)), _add(_BEGUN + name, "")]


def refuse(name: str, end: PooledEnd) -> Patch:
    """Say that a job cannot be read."""
    return [_add(_END + name, encode(end))]


def report_end(name: str, job: PooledJob, end: PooledEnd) -> Patch:
    """Say how a job ended. It fails if that job was removed."""
    return [_test(_JOB + name, encode(job)), _add(_END + name, encode(end))]


def change_nothing(name: str) -> Patch:
    """Succeeds if one may change the ConfigMap."""
    return [{"op": "test", "path": "/metadata/name", "value": name}]


def close(version: str) -> Patch:
    """Take no more jobs. With a version it fails if the ConfigMap has another one by now: there may
    be a job that the driver has not seen."""
    seen = [] if not version else [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    ]  # fmt: skip
    return [*seen, _add(_STATE, CLOSED)]


def _under(data: Mapping[str, Any], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): str(text) for key, text in data.items() if key.startswith(prefix)
    }


def _test(key: str, value: str) -> Json:
    return {"op": "test", "path": f"/data/{key}", "value": value}


def _add(key: str, value: str) -> Json:
    return {"op": "add", "path": f"/data/{key}", "value": value}
