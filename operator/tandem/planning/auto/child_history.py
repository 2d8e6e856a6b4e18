"""The existing children of automatic compaction: which are unfinished, how a line ended, when its
next attempt is due, and which ones are deleted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.planning.auto.model import ChildState
from tandem.spec.fields import format_duration
from tandem.spec.status import Phase
from tandem.spec.table import HistoryLimits

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
