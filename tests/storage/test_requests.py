"""Requests to a store: side by side, in turns, and within a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hanging_server import hanging_server
from support.lake.memory_store import MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidSpec, StorageError
from tandem.storage import open_store
from tandem.storage.options import settings
from tandem.storage.renewable import RenewableStore
from tandem.storage.store import side_by_side
from tandem.storage.time_limits import seconds_of, time_limits

# Calls that do not depend on one another are made at once, with a bound, and answer in order.


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


# How long a request of a store may take: by its options, and by the ceiling of the operator.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("1m 30s", 90.0),
        ("1m30sec", 90.0),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("2 hours", 7200.0),
        ("366d", 366 * 86_400.0),
        *(
            (bad, None)
            for bad in ("", "30", "s", "-1s", "0s", "1ns", "1e3s", "\u0663s", "9fortnights")
        ),
        *((bad, None) for bad in ("367d", "999999999999999w", "1s\n", "30s; 5")),
    ],
)
def test_durations_are_read_as_the_client_reads_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@given(
    st.floats(1.0, 3600.0),
    st.none() | st.floats(0.001, 1.0),
)
def test_a_request_takes_no_longer_than_the_ceiling(ceiling_s: float, share: float | None) -> None:
    client = {} if share is None else {"timeout": f"{max(1, int(ceiling_s * share * 1000))}ms"}
    limits = time_limits(client, ceiling_s)
    assert limits.total_s <= ceiling_s + 1e-5
    assert limits.one_try.total_seconds() > 0
    assert limits.connect <= limits.one_try


def test_without_a_ceiling_the_options_decide() -> None:
    limits = time_limits({"timeout": "5m"})
    assert limits.one_try.total_seconds() == 300
    assert limits.retries.total_seconds() == 60
    assert settings("s3", {"timeout": "5m"}).client == {"timeout": "5m"}


@pytest.mark.parametrize("option", ["timeout", "connect_timeout", "AWS_TIMEOUT"])
def test_a_duration_beyond_the_ceiling_is_refused_by_the_name_as_typed(option: str) -> None:
    settings("s3", {option: "60s"}, ceiling_s=60)
    with pytest.raises(InvalidSpec) as refused:
        settings("s3", {option: "61s"}, ceiling_s=60)
    assert refused.value.field == f"spec.storage.options.{option}"
    assert "60s" in refused.value.expected
    with pytest.raises(InvalidSpec, match="not a duration"):
        settings("s3", {option: "soon"})


def test_a_store_that_never_answers_ends_each_kind_of_call_with_an_error() -> None:
    with hanging_server() as server:
        store = open_store("s3://bucket/t", server.options, ceiling_s=0.5)
        calls = (
            lambda: store.get("a"),
            lambda: store.get_range("a", 0, 1),
            lambda: store.head("a"),
            lambda: list(store.list("a")),
            lambda: store.put("a", b""),
            lambda: store.put_if_absent("a", b""),
            lambda: store.delete(["a"]),
        )
        for call in calls:
            with pytest.raises(StorageError):
                call()
        assert len(server.connections) >= len(calls)
