"""Which jobs are pooled, which pool takes one, and which pool is left over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from tandem.jobs.pool.records import PoolRecord
from tandem.jobs.runner import JobRequest

LEFT_S: Final = 600.0
"""A pool without an application is one that is being created, but not after this time."""
AVOIDED_S: Final = 300.0
"""For how long no pool is created after one of the same kind has failed."""


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What an administrator chooses. `slots`: jobs at once in a pool, 0 for no pools;
    `below_bytes`: jobs that read at least this much have an application of their own; `idle_s`,
    `most_jobs`: see `PoolConfig`."""

    slots: int = 0
    below_bytes: int = 1 << 30
    idle_s: float = 300.0
    most_jobs: int = 200


def is_pooled(request: JobRequest, rules: PoolRules) -> bool:
    """Whether a job goes to a pool: a small one, at its first attempt. A second attempt has an
    application of its own, so that what is wrong with a pool costs a job one attempt, and what is
    wrong with a job is seen in a log of its own."""
    return bool(rules.slots) and request.attempt <= 1 and request.input_bytes < rules.below_bytes


def digest_of(*parts: str) -> str:
    """What jobs must have in common to share a pool, short enough for a name."""
    return sha256("\n".join(parts).encode()).hexdigest()[:10]


def choose(pools: Iterable[PoolRecord], alive: Collection[str]) -> PoolRecord | None:
    """The pool for a job among those with its digest: open, alive, with the fewest jobs to do. None
    if a new one is needed.

    Args:
        alive: the names of the pools whose application may still do a job.
    """
    usable = [pool for pool in pools if pool.is_open and pool.name in alive]
    return min(usable, key=lambda pool: (len(pool.unfinished), pool.name), default=None)


def is_left_over(age_s: float, *, has_application: bool) -> bool:
    """Whether the ConfigMap of a pool of this age can be deleted: its application no longer exists,
    or never did."""
    return not has_application and age_s > LEFT_S
