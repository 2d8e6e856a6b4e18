"""Threads compute in turns, wait side by side, and share a turn with one that is stuck in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from support.waiting import LIMIT_S, await_that
from tandem.turns import Turn, Turns, locked, waiting

SHARED_S = 0.5


@dataclass
class Counted:
    """How many are in its block, at most and now."""

    now: int = 0
    most: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def block(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


def side_by_side(*calls: Callable[[], None]) -> None:
    """Raises: what one of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(LIMIT_S)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_so_many_compute_at_once_and_all_wait_at_once(limit: int) -> None:
    turns, computing, together = Turns(limit, LIMIT_S), Counted(), threading.Barrier(8)

    def work() -> None:
        for _ in range(50):
            with Turn(turns), computing.block():
                sum(range(1_000))
            with Turn(turns), waiting():
                together.wait(LIMIT_S)  # none passes unless all wait at the same time

    side_by_side(*[work] * 8)
    assert computing.most <= limit
    assert computing.now == 0


def test_as_many_as_may_compute_do() -> None:
    turns, together = Turns(3, LIMIT_S), threading.Barrier(3)

    def work() -> None:
        with Turn(turns):
            together.wait(LIMIT_S)  # without leaving the turn

    side_by_side(*[work] * 3)


def test_a_block_of_waiting_in_another_ends_nothing() -> None:
    turns, inner, go = Turns(1, LIMIT_S), threading.Event(), threading.Event()

    def work() -> None:
        with Turn(turns), waiting():
            with waiting():
                pass
            inner.set()
            assert go.wait(LIMIT_S)

    def other() -> None:
        assert inner.wait(LIMIT_S)
        with Turn(turns):
            go.set()

    side_by_side(work, other)


def test_one_that_is_stuck_in_its_turn_shares_it_and_gives_it_back_once() -> None:
    turns, stuck, go, computing = (
        Turns(1, SHARED_S),
        threading.Event(),
        threading.Event(),
        Counted(),
    )

    def work() -> None:
        with Turn(turns):
            stuck.set()
            assert go.wait(LIMIT_S)

    with ThreadPoolExecutor(1) as pool:
        first: Future[None] = pool.submit(work)
        assert stuck.wait(LIMIT_S)
        with Turn(turns):
            pass  # after half a second
        go.set()
        first.result(LIMIT_S)

    def compute() -> None:
        for _ in range(100):
            with Turn(turns), computing.block():
                sum(range(1_000))

    side_by_side(*[compute] * 4)
    assert computing.most == 1


def test_one_that_waits_for_a_lock_leaves_its_turn_to_the_holder() -> None:
    turns, lock, held = Turns(1, LIMIT_S), threading.Lock(), threading.Event()
    taken: list[str] = []

    def holds() -> None:
        with Turn(turns), locked(lock):
            with waiting():
                held.set()
                # Until the other one had a turn, and left it for the lock.
                await_that(lambda: len(taken) == 1, "the other begins")
            taken.append("holder")

    def wants() -> None:
        assert held.wait(LIMIT_S)
        with Turn(turns):
            taken.append("begins")
            with locked(lock):
                taken.append("other")
        assert not lock.locked()

    side_by_side(holds, wants)
    assert taken == ["begins", "holder", "other"]


@pytest.mark.parametrize("where", ["turn", "waiting"])
def test_an_error_leaves_the_turn(where: str) -> None:
    turns = Turns(1, LIMIT_S)

    def fail() -> None:
        with Turn(turns):
            if where == "turn":
                raise ValueError(where)
            with waiting():
                raise ValueError(where)

    with pytest.raises(ValueError, match=where):
        fail()
    with pytest.raises(ValueError, match=where):
        side_by_side(fail)
    with Turn(turns), waiting(), Turn(turns):
        pass


def test_without_a_turn_waiting_has_no_effect() -> None:
    with pytest.raises(ValueError, match="as it was"), waiting(), waiting():
        raise ValueError("as it was")
