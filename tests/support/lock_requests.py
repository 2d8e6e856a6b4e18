"""Requests for locks, and callers that wait for them: for the contract of locks, and for what
each store has of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace

from tandem.intervals import IntervalSet, TimeInterval
from tandem.locks.rules import WHOLE_TABLE, Granted, LockRequest, LockResources, Mode, named
from tandem.locks.store import LockStore

TABLE = "file:///table"
LONG_S = 100.0


def request(
    operation: str,
    mode: Mode = Mode.REWRITE,
    *names: str,
    priority: int = 0,
    owner: str = "",
    table: str = TABLE,
) -> LockRequest:
    return LockRequest(
        table=table,
        operation=operation,
        mode=mode,
        resources=named(names) or WHOLE_TABLE,
        owner=owner or f"process of {operation}",
        priority=priority,
        display=f"TableCompaction/{operation}",
    )


def asked(operation: str, mode: Mode, resources: LockResources, priority: int = 0) -> LockRequest:
    return replace(request(operation, mode), resources=resources, priority=priority)


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
FIRST_MS = 1_359_676_800_000
"""2013-02-01T00:00:00Z"""


def days(*of_february: int) -> IntervalSet:
    """Whole days of February 2013, UTC."""
    starts = (FIRST_MS + (day - 1) * DAY_MS for day in of_february)
    return IntervalSet(TimeInterval(start, start + DAY_MS) for start in starts)


def hours(day: int, start: int, end: int) -> IntervalSet:
    """From one hour of a day to another."""
    begin = FIRST_MS + (day - 1) * DAY_MS
    return IntervalSet([TimeInterval(begin + start * HOUR_MS, begin + end * HOUR_MS)])


def owner(operation: str) -> str:
    return f"process of {operation}"


def in_threads(*work: Callable[[], None]) -> None:
    """Run all of them at once. An error in one is the test's."""
    with ThreadPoolExecutor(len(work)) as pool:
        done, _ = wait([pool.submit(one) for one in work], LONG_S, FIRST_EXCEPTION)
        errors = [error for future in done if (error := future.exception()) is not None]
        if errors or len(done) < len(work):
            pool.shutdown(wait=False, cancel_futures=True)
            raise errors[0] if errors else TimeoutError("threads wait for each other")


def get(locks: LockStore, asked: LockRequest) -> int:
    """Wait until it is granted."""
    while not isinstance(answer := locks.acquire(asked), Granted):
        locks.wait(asked.table, asked.operation, LONG_S)
    return answer.token
