"""Calls that do not depend on one another are made at once, with a bound, and answer in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from support.lake.memory_store import MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.kube.tables.context import RenewableStore
from tandem.storage import open_store
from tandem.storage.store import side_by_side

PATIENCE_S = 300.0


def test_results_come_in_the_order_of_the_calls() -> None:
    calls = [partial(int, number) for number in range(50)]
    for most in (1, 2, 7, 50, 100):
        assert side_by_side(calls, most) == list(range(50))


@pytest.mark.parametrize("most", [2, 5])
def test_as_many_calls_as_allowed_are_made_at_once_and_no_more(most: int) -> None:
    meeting = threading.Barrier(most)
    lock = threading.Lock()
    now = greatest = 0

    def call() -> None:
        nonlocal now, greatest
        with lock:
            now += 1
            greatest = max(greatest, now)
        meeting.wait(PATIENCE_S)  # until all that are allowed are here
        with lock:
            now -= 1

    side_by_side([call] * (3 * most), most)
    assert greatest == most


def test_one_at_a_time_runs_in_the_thread_of_the_caller_and_stops_at_the_first_error() -> None:
    begun: list[int] = []

    def call(number: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        begun.append(number)
        if number == 2:
            raise KeyError(number)

    with pytest.raises(KeyError, match="2"):
        side_by_side([partial(call, number) for number in range(5)], 1)
    assert begun == [0, 1, 2]


def test_the_error_of_the_first_call_counts_whichever_fails_first() -> None:
    late = threading.Event()

    def first() -> None:
        assert late.wait(PATIENCE_S)
        raise ValueError("first")

    def second() -> None:
        late.set()
        raise KeyError("second")

    calls: list[Callable[[], None]] = [first, second]
    with pytest.raises(ValueError, match="first"):
        side_by_side(calls, 2)


def test_what_had_begun_has_ended_when_an_error_is_raised() -> None:
    begun, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def fails() -> None:
        assert begun.wait(PATIENCE_S)
        failed.set()
        raise KeyError("it fails")

    def goes_on() -> None:
        begun.set()
        assert failed.wait(PATIENCE_S)
        ended.set()

    calls: list[Callable[[], None]] = [fails, goes_on]
    with pytest.raises(KeyError):
        side_by_side(calls, 2)
    assert ended.is_set()


def test_nothing_to_call_needs_no_thread() -> None:
    assert side_by_side(list[Callable[[], int]](), 8) == []


def test_an_operation_makes_one_request_at_once_of_a_local_disk_and_several_of_others(
    tmp_path: Path,
) -> None:
    local, other = open_store(str(tmp_path)), MemoryStore()
    assert (
        DeltaLog(local).parallel_requests == DeltaLog(RenewableStore(local)).parallel_requests == 1
    )
    assert (
        DeltaLog(other).parallel_requests == DeltaLog(RenewableStore(other)).parallel_requests > 1
    )
    assert DeltaLog(local).parallel_reads > 1
