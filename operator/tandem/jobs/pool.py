"""Pools: one Spark application that runs the jobs of many operations. Its configuration and jobs,
the ConfigMap by which operator and driver agree, which jobs are pooled, and what the driver
does, as a state machine. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, ValidationError

from tandem.jobs.arguments import from_pieces, in_pieces
from tandem.jobs.formats import Format
from tandem.jobs.runner import JobPhase, JobRequest
from tandem.json_types import Json
from tandem.spec.labels import JOB_POOL_LABEL, MANAGED_BY
from tandem.spec.table import Pooling, TableJobs

# The pool's configuration, one of its jobs, and how that ended: JSON in arguments and in the
# pool's ConfigMap. Nothing secret.


_F = TypeVar("_F", bound=Format)

POOL_APP: Final = "job_pool"
"""The application that does the jobs of a pool."""
KUBECONFIG_VARIABLE: Final = "TANDEM_POOL_KUBECONFIG"
"""Environment variable of its driver: the kubeconfig to use, outside of a pod."""


class PoolConfig(Format):
    """What the driver of a pool is started with. Times in seconds.

    `name` is that of the application and of the ConfigMap. All of its jobs have the same
    `storage_options`, and read below `allowed` only (() for anywhere): a job itself names
    neither, so that one that another writer puts into the ConfigMap cannot extend them.
    """

    namespace: str
    name: str
    slots: Annotated[int, Field(gt=0)]
    """Jobs at once."""
    most_jobs: Annotated[int, Field(gt=0)] = 200
    """After so many it takes no more, and ends with the last one."""
    idle_s: Annotated[float, Field(gt=0)] = 300.0
    """It ends when it had no job for so long."""
    oldest_s: Annotated[float, Field(gt=0)] = 12 * 3600.0
    """From this age on it takes no more jobs."""
    drain_s: Annotated[float, Field(gt=0)] = 3600.0
    """How long jobs may go on in a pool that takes no more."""
    storage_options: dict[str, str] = Field(default_factory=dict)
    allowed: tuple[str, ...] = ()


class PooledJob(Format):
    """A job: the application of `spark_apps/` that does it, the table's location, and the path of
    its `job.json` below that. `posted_ms` orders jobs that are seen together."""

    app: str
    location: str
    spec: str
    posted_ms: int


class PooledEnd(Format):
    """How a job ended: the exit code that its own application would have, and one line."""

    code: int
    message: str = ""


def arguments(config: PoolConfig) -> tuple[str, ...]:
    """The configuration as pieces of an argument."""
    return in_pieces(config)


def read_config(pieces: Iterable[str]) -> PoolConfig:
    """The configuration that `arguments` wrote. Raises: InvalidSpec."""
    return from_pieces(PoolConfig, pieces)


def encode(content: Format) -> str:
    return content.model_dump_json(by_alias=True)


def decode(format_: type[_F], text: str) -> _F | None:
    """None if the text is no such thing: another client may write into the ConfigMap."""
    try:
        return format_.model_validate_json(text)
    except ValidationError:
        return None


# The ConfigMap of a pool: its keys, and the patches by which operator and driver change it.
#
#     state        `open`, or `closed`: it takes no more jobs
#     job.<name>   a job; removed by the operator when it needs it no more
#     stop.<name>  the operator wants it to end
#     begun.<name> the driver has begun it
#     end.<name>   how it ended, by the driver
#
# Every patch changes the keys of one side and tests what it relies on, so that neither overwrites
# what the other has written: a job is added only while the pool is open, and a pool is closed only
# if its driver has seen all jobs.


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


# Which jobs are pooled, which pool takes one, and which pool is left over.


LIVE: Final = frozenset({JobPhase.STARTING, JobPhase.RUNNING})
LEFT_S: Final = 600.0
"""A pool without an application is one that is being created, but not after this time."""
OVERDUE_S: Final = 14 * 3600.0
"""A driver that is older than its own limits allow hangs."""
START_S: Final = 600.0
"""How long the application of a pool may start. Its jobs get applications of their own then."""
AVOIDED_S: Final = 300.0
"""For how long no pool is created after one of the same kind has failed."""


@dataclass(frozen=True, slots=True)
class PoolRules:
    """`slots`: jobs at once in a pool, 0 for no pools: an administrator chooses it. `below_bytes`:
    jobs that read at least this much have an application of their own, since they are longer than
    its start; `idle_s`, `most_jobs`: see `PoolConfig`."""

    slots: int = 0
    below_bytes: int = 1 << 30
    idle_s: float = 300.0
    most_jobs: int = 200

    def of_table(self, jobs: TableJobs | None) -> PoolRules:
        """The rules for the jobs of a table, which may have no pools."""
        return replace(self, slots=0) if jobs is not None and jobs.pool is Pooling.NEVER else self


def is_pooled(request: JobRequest, rules: PoolRules) -> bool:
    """Whether a job goes to a pool: a small one, at its first attempt. A second attempt has an
    application of its own, so that what is wrong with a pool costs a job one attempt, and what is
    wrong with a job is seen in a log of its own."""
    return bool(rules.slots) and request.attempt <= 1 and request.input_bytes < rules.below_bytes


def digest_of(*parts: str) -> str:
    """What jobs must have in common to share a pool, short enough for a name."""
    return sha256("\n".join(parts).encode()).hexdigest()[:10]


def choose(
    pools: Iterable[PoolRecord], alive: Collection[str], most_jobs: int
) -> PoolRecord | None:
    """The pool for a job among those with its digest: open, alive, with the fewest jobs to do. None
    if a new one is needed.

    Args:
        alive: the names of the pools whose application may still do a job.
        most_jobs: so many jobs are listed at most. A ConfigMap has a limit of 1 MiB; beyond it the
            driver could not report.
    """
    usable = [
        pool for pool in pools if pool.is_open and pool.name in alive and len(pool.jobs) < most_jobs
    ]
    return min(usable, key=lambda pool: (len(pool.unfinished), pool.name), default=None)


def is_left_over(age_s: float, phase: JobPhase) -> bool:
    """Whether the ConfigMap of a pool of this age can be deleted, given the phase of its
    application: that no longer exists, or never did, or does not end. One that has ended stays as
    long as its driver's log does."""
    if phase is JobPhase.UNKNOWN:
        return age_s > LEFT_S
    return phase in LIVE and age_s > OVERDUE_S


# What the driver of a pool does with its ConfigMap, as a state machine.
#
# It is shown each version of the record and the ends of jobs, and says which jobs to begin or to
# withdraw, and when to close the pool and to end.
#
# A job that was removed, or that the operator wants to end, is withdrawn: it may have begun. A job
# that has begun once does not begin again, whatever the record says.


@dataclass(frozen=True, slots=True)
class Begin:
    """Do a job, in this slot."""

    name: str
    job: PooledJob
    slot: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """End a job that runs."""

    name: str


@dataclass(frozen=True, slots=True)
class ReportStopped:
    """Report the end of a job that never began."""

    name: str
    job: PooledJob


@dataclass(frozen=True, slots=True)
class Refuse:
    """Report that a job cannot be read."""

    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """Take no more jobs. `version`: only if the record still has it; "" in any case."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """End the driver. `drained` is False if jobs still ran."""

    drained: bool


Action = Begin | Withdraw | ReportStopped | Refuse | Close | End


class Ledger:
    """Args: `now_s` is when the driver began; all times are seconds of one monotonic clock."""

    def __init__(self, config: PoolConfig, now_s: float) -> None:
        self._config = config
        self._began_s = now_s
        self._busy_s = now_s
        """When there was last a job."""
        self._closed_s: float | None = None
        self._closing_s: float | None = None
        """Since when it wants to be closed, without effect."""
        self._record: PoolRecord | None = None
        self._gone = False
        self._is_tainted = False
        self._done: set[str] = set()
        self._withdrawn: set[str] = set()
        self._slots: dict[str, int] = {}
        self._order: dict[str, int] = {}
        """In which order jobs begin: in which they were seen, and of those that were seen together
        by `posted_ms`. That alone would let a job wait behind all others that was posted while the
        operator's clock was ahead."""

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._slots)

    def see(self, record: PoolRecord | None) -> None:
        """The record as it is now; None if the ConfigMap was deleted."""
        self._gone = record is None
        self._record = record
        jobs = {} if record is None else record.jobs
        for name in sorted(jobs.keys() - self._order.keys(), key=lambda n: (jobs[n].posted_ms, n)):
            self._order[name] = len(self._order)

    def ended(self, name: str, now_s: float, *, taints: bool) -> None:
        """A job has ended. `taints`: it may have harmed the process, which takes no more jobs."""
        self._busy_s = now_s
        self._slots.pop(name)
        self._withdrawn.discard(name)
        self._is_tainted = self._is_tainted or taints

    def step(self, now_s: float) -> Sequence[Action]:
        """What to do now. To be called after each `see` and `ended`, and from time to time."""
        actions: list[Action] = []
        record = self._record
        wanted = {} if record is None or self._gone else record.jobs
        stopped = frozenset() if record is None else record.stopped
        for name in sorted(self._slots):
            if (name not in wanted or name in stopped) and name not in self._withdrawn:
                self._withdrawn.add(name)
                actions.append(Withdraw(name))
        if record is not None:
            for name in sorted(record.unreadable - record.ended.keys() - self._done):
                self._done.add(name)
                actions.append(Refuse(name))
        waiting = [] if record is None else sorted(
            (name for name in wanted if name not in record.ended and name not in self._done),
            key=self._order.__getitem__,
        )  # fmt: skip
        for name in waiting:
            if name in stopped:
                self._done.add(name)
                actions.append(ReportStopped(name, wanted[name]))
            elif len(self._slots) < self._config.slots and not self._is_tainted:
                slot = min(set(range(self._config.slots)) - set(self._slots.values()))
                self._done.add(name)
                self._slots[name] = slot
                actions.append(Begin(name, wanted[name], slot))
        open_jobs = bool(self._slots) or any(name not in self._done for name in waiting)
        if open_jobs:
            self._busy_s = now_s
        actions += self._closing(record, now_s, open_jobs)
        return actions

    def _closing(self, record: PoolRecord | None, now_s: float, open_jobs: bool) -> list[Action]:
        config = self._config
        if record is None and not self._gone:
            return []
        if record is None or not record.is_open:
            if self._closed_s is None:
                self._closed_s = now_s
            # A tainted process begins no more jobs: those that wait are lost, and start again.
            if not self._slots and (not open_jobs or self._is_tainted):
                return [End(drained=not open_jobs)]
            overdue = now_s - self._closed_s >= config.drain_s
            return [End(drained=False)] if overdue else []
        closing = self._wanted_close(record, now_s, open_jobs)
        if closing is None:
            self._closing_s = None
            return []
        if self._closing_s is None:
            self._closing_s = now_s
        # It may have no effect: its right was taken away, say.
        if now_s - self._closing_s >= config.drain_s:
            return [End(drained=not open_jobs)]
        return [closing]

    def _wanted_close(self, record: PoolRecord, now_s: float, open_jobs: bool) -> Close | None:
        config = self._config
        if (
            self._is_tainted
            or len(self._done) >= config.most_jobs
            or now_s - self._began_s >= config.oldest_s
        ):
            return Close()
        if not open_jobs and now_s - self._busy_s >= config.idle_s:
            return Close(record.version)
        return None
