"""What the driver of a pool does with its ConfigMap, as a state machine.

It is shown each version of the record and the ends of jobs, and says which jobs to begin or to
withdraw, and when to close the pool and to end.

A job that was removed, or that the operator wants to end, is withdrawn: it may have begun. A job
that has begun once does not begin again, whatever the record says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.jobs.pool.formats import PoolConfig, PooledJob
from tandem.jobs.pool.records import PoolRecord


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
