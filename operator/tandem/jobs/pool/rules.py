"""Which jobs are pooled, which pool takes one, and which pool is left over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from tandem.jobs.pool.records import PoolRecord
from tandem.jobs.runner import JobPhase, JobRequest
from tandem.spec.table import Pooling, TableJobs

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
