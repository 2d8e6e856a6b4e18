"""The values of automatic compaction: the input of a decision, its result, and which of the
operations that it has created are unfinished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.intervals import NEVER, IntervalSet
from tandem.planning.auto.child_compactions import ChildCompaction
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.fields import format_duration
from tandem.spec.status import AutoCompactionWait, Phase
from tandem.spec.table import HistoryLimits

# The values of automatic compaction: the input of a decision, and its result.


@dataclass(frozen=True, slots=True)
class ChildState:
    """An existing automatic compaction.

    Attributes:
        phase: "" before its first status.
        segments: the inputs of its plan; None before it has planned.
        chunks: the time chunks that its spec names.
        ended: it has finished and does not continue by itself.
        ended_ms: when it ended.
        message: why it failed.
    """

    name: str
    line: str
    phase: str
    created_ms: int
    ended: bool = False
    ended_ms: int | None = None
    segments: frozenset[str] | None = None
    chunks: IntervalSet = NEVER
    scheduled_ms: int | None = None
    retries: int = 0
    message: str = ""
    deleting: bool = False
    kind: str = TableCompaction.kind_name

    @property
    def failed(self) -> bool:
        return self.ended and self.phase == Phase.FAILED

    @property
    def at_work(self) -> bool:
        """Whether it holds segments, or may do so later."""
        return not self.ended and self.phase != Phase.SUSPENDED

    @property
    def last_ms(self) -> int:
        return self.created_ms if self.ended_ms is None else max(self.created_ms, self.ended_ms)

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, up to when it has been dealt with, and when it fires next (None: never)."""

    line: str
    cron: str
    type: CompactionType
    since_ms: int
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
    """A compaction that is due, and may start at `ready_ms`, which is in the future after a
    failure.

    Attributes:
        why: why not earlier.
        due_ms: None: at once.
        passed: another one was started when it was due.
    """

    child: ChildCompaction
    type: CompactionType
    ready_ms: int
    why: str
    due_ms: int | None = None
    passed: bool = False

    @property
    def rank(self) -> tuple[bool, int, int, str]:
        return (not self.passed, _ORDER.index(self.type), self.due_ms or 0, self.child.line)


_ORDER = (
    CompactionType.MINOR,
    CompactionType.SEMI_MAJOR,
    CompactionType.MAJOR,
    CompactionType.CUSTOM,
    CompactionType.LOG_MERGE,
)


@dataclass(frozen=True, slots=True)
class AutoCompactionDecision:
    """What to do now.

    Attributes:
        create: children to create; at most one, since the next decision depends on it.
        delete: names of finished children beyond the history's limits.
        next_ms: when the next compaction is expected to start; None if that depends on something
            other than time.
        next_what: which one; "" for none.
        why: why nothing is started now; "" if something is.
        hold: the same in one word.
        wake_ms: when to decide again even if nothing else changes; None for never.
        schedules: to be stored, and passed as `since` next time (line → `since_ms`).
        due: labels of the time chunks that are due, the next ones first.
    """

    create: tuple[ChildCompaction, ...] = ()
    delete: tuple[str, ...] = ()
    next_ms: int | None = None
    next_what: str = ""
    why: str = ""
    wake_ms: int | None = None
    schedules: tuple[ScheduleState, ...] = ()
    hold: AutoCompactionWait = AutoCompactionWait.NOTHING
    due: tuple[str, ...] = ()


# The existing children of automatic compaction: which are unfinished, how a line ended, when its
# next attempt is due, and which ones are deleted.


BACKOFF_MS = 60_000
BACKOFF_MAX_MS = 3600_000


def unfinished(children: Iterable[ChildState], line: str) -> ChildState | None:
    return next((child for child in children if child.line == line and not child.ended), None)


def last_ended(children: Iterable[ChildState], line: str) -> ChildState | None:
    ended = [child for child in children if child.line == line and child.ended]
    return max(ended, default=None, key=lambda child: (child.last_ms, child.retries, child.name))


def busy_reason(child: ChildState) -> str:
    return f"{child.display} is {'suspended' if child.phase == Phase.SUSPENDED else 'at work'}."


def backoff_ms(failures: int) -> int:
    """The delay after the last of so many failures in a row, in milliseconds."""
    return min(BACKOFF_MS << min(failures - 1, 30), BACKOFF_MAX_MS) if failures else 0


def after_failure(
    last: ChildState | None, failures: int, unchanged: str = "its segments"
) -> tuple[int, str]:
    """From when on the next attempt may start, and why not earlier.

    Args:
        unchanged: what the last one did not change, if it ended well and yet counts as a failure.
    """
    if last is None or not failures:
        return 0, ""
    wait = backoff_ms(failures)
    end = f"failed: {last.message}" if last.failed and last.message else "failed"
    what = end if last.failed else f"did not change {unchanged}"
    count = f" It failed {failures} times in a row." if failures > 3 else ""
    why = f"{last.display} {what.rstrip('.')}.{count} Next attempt after {format_duration(wait)}."
    return last.last_ms + wait, why


def beyond_history_limits(
    history: HistoryLimits, children: Sequence[ChildState], lines: Iterable[str]
) -> tuple[str, ...]:
    """Finished children beyond the limits, oldest first. The last one of each of the `lines`
    stays: it is the only record of how that line ended."""
    ended = sorted(
        (child for child in children if child.ended and not child.deleting),
        key=lambda child: (child.last_ms, child.name),
        reverse=True,
    )
    last = {found.name for line in lines if (found := last_ended(ended, line)) is not None}
    well = [child for child in ended if not child.failed]
    badly = [child for child in ended if child.failed]
    beyond_ = [*well[history.succeeded :], *badly[history.failed :]]
    oldest_first = sorted(beyond_, key=lambda child: (child.last_ms, child.name))
    return tuple(child.name for child in oldest_first if child.name not in last)
