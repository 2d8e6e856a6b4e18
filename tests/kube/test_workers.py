"""The threads behind the places: a cancelled call gives its own back, and so does a long one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from support.waiting import LIMIT_S, await_that
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.slots import Lane
from tandem.kube.runtime.workers import Workers
from tandem.turns import waiting


def test_a_cancelled_call_gives_its_place_to_another_and_its_result_is_dropped() -> None:
    workers, gate = Workers(1, Metrics()), threading.Event()
    held: Future[bool] = workers.lane(Lane("n", "t")).submit(gate.wait, LIMIT_S)
    waits = workers.lane(Lane("n", "u")).submit(lambda: "done")
    assert (workers.busy, workers.waiting, workers.abandoned) == (1, 1, 0)
    assert held.cancel()
    assert waits.result(LIMIT_S) == "done"
    assert workers.abandoned == 1
    gate.set()
    await_that(lambda: workers.abandoned == 0, "it is still counted")
    assert held.cancelled()
    workers.shutdown()


def test_a_call_that_takes_long_gives_its_place_to_another_and_keeps_its_result() -> None:
    workers, gate = Workers(1, Metrics(), patience_s=0.01), threading.Event()

    async def play() -> bool:
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(workers.watch())
        long = loop.run_in_executor(workers.lane(Lane("a", "t")), gate.wait, LIMIT_S)
        await loop.run_in_executor(workers.lane(Lane("b", "t")), gate.set)
        watching.cancel()
        return await long

    assert asyncio.run(play())
    workers.shutdown()
    assert (workers.busy, workers.long, workers.waiting) == (0, 0, 0)


def test_an_end_runs_what_waits_or_cancels_it() -> None:
    for cancel in (False, True):
        workers, gate = Workers(1, Metrics()), threading.Event()
        first = workers.submit(gate.wait, LIMIT_S)
        late = workers.submit(lambda: "done")
        if cancel:
            workers.shutdown(wait=False, cancel_futures=True)
            assert late.cancelled()
            gate.set()
        else:
            gate.set()
            workers.shutdown()
            assert late.result(0) == "done"
        assert first.result(LIMIT_S)
        with pytest.raises(RuntimeError, match="after shutdown"):
            workers.submit(gate.wait)
        assert workers.waiting == 0


def test_calls_compute_one_after_the_other_and_wait_at_the_same_time() -> None:
    workers, together = Workers(4, Metrics()), threading.Barrier(4)
    computing: list[int] = []

    def call() -> int:
        computing.append(1)
        most = len(computing)
        sum(range(1_000))
        computing.pop()
        with waiting():
            together.wait(LIMIT_S)
        return most

    calls = [workers.lane(Lane(f"n{number}", "t")).submit(call) for number in range(4)]
    assert [each.result(LIMIT_S) for each in calls] == [1] * 4
    workers.shutdown()


def test_a_call_that_is_stuck_stops_no_other() -> None:
    workers, gate = Workers(4, Metrics()), threading.Event()
    stuck = workers.lane(Lane("n", "t")).submit(gate.wait, LIMIT_S)  # it knows nothing of turns
    assert workers.lane(Lane("n", "u")).submit(lambda: "done").result(LIMIT_S) == "done"
    assert not stuck.done()
    gate.set()
    workers.shutdown()
