"""Drives one `Session` from an event loop: waits in the loop, works in threads.

Effects are performed in threads, one after the other until one has to wait. Delays and waits for
locks or for a job slot are awaited in the loop, so that hundreds of waiting operations need no
thread at all. Effects are opaque here, except for those that take locks or wait for them, start a
job, and no longer need it.

A slot is taken before the locks: an operation that waits for one would hold up others of its table.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from tandem.errors import LocksUnavailable
from tandem.jobs.port import JobPlace
from tandem.kube.runtime.slots import Lane, Slots
from tandem.locks.store import LockStore
from tandem.operations.machine.events import Point
from tandem.operations.session.session import Session

# Requests to the controller of a resource and to its session, and waiting for them.


@dataclass(slots=True)
class Signals:
    """`wake`: look again at once; `leaving`: perform no further effect and leave everything as it
    is for the next session."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    leaving: bool = False

    def leave(self) -> None:
        self.leaving = True
        self.wake.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until something changes, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        self.wake.clear()

    async def acquire(self, lock: asyncio.Lock, is_over: Callable[[], bool]) -> bool:
        """Wait for the lock; False if meanwhile there is nothing left to do."""
        taking = asyncio.ensure_future(lock.acquire())
        while not taking.done() and not is_over():
            waking = asyncio.ensure_future(self.wake.wait())
            await asyncio.wait({taking, waking}, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            if not taking.done():
                self.wake.clear()
        if taking.done():
            return True
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if await taking:
                lock.release()
        return False


_T = TypeVar("_T")
_LOCK_LOOK_S = 15.0
"""How long to rely on a lock's watch before looking again."""
_LOCK_PAUSE_S = 2.0
_SLOT_NEEDED = frozenset(
    {Point.POLL_JOB, Point.READ_RESULT, Point.REQUEST_ROUND, Point.FINISH_JOB}
    | {Point.STOP_JOB, Point.READ_TABLE, Point.RECONCILE, Point.WRITE_SIDECARS}
    | {Point.ENTER_COMMIT, Point.PUT_COMMIT, Point.LOOK_UP_COMMIT, Point.START_JOB}
    | {Point.ACQUIRE_LOCKS, Point.PERSIST_PLAN}
)
"""Before these, a slot that was taken is kept: a job is to start, or its driver may still run."""


class SessionLoop:
    """Drives one session.

    Args:
        slots: where the job takes its slot, for the table `lane`.
        on_queued: called when it has to wait for a slot, as by `Slots.take`.
        deadline_s: loop time after which the session must listen; None for never.
    """

    def __init__(
        self,
        session: Session,
        locks: LockStore,
        slots: Slots,
        lane: Lane,
        pool: Executor,
        signals: Signals,
        *,
        on_queued: Callable[[str], None] = lambda _: None,
        deadline_s: float | None = None,
    ) -> None:
        self._session = session
        self._locks = locks
        self._slots = slots
        self._lane = lane
        self._pool = pool
        self._signals = signals
        self._on_queued = on_queued
        self._deadline_s = deadline_s
        self._has_slot = False
        self._loop = asyncio.get_running_loop()

    async def run(self) -> bool:
        """True when it has ended, False when it was left."""
        session = self._session
        session.on_stop_request = lambda: self._call_soon(self._signals.wake.set)
        try:
            more = True
            while more:
                if not await self._prepare():
                    return False
                more = await self._in_thread(self._advance)
                self._mind_slot()
        finally:
            session.on_stop_request = None
            self._return_slot()
        return True

    def _advance(self) -> bool:
        """In a thread: perform the next effect, and those after it that need no wait in the loop.
        False once the session has ended."""
        while self._session.advance(sleep=False):
            effect = self._session.next_effect
            if (
                self._signals.leaving
                or effect is None
                or self._session.wait_ms()
                or self._needs_loop(effect.point)
                or (self._has_slot and effect.point not in _SLOT_NEEDED)
            ):
                return True
        return False

    async def _prepare(self) -> bool:
        """Wait for what the next effect needs; False if we are to leave."""
        effect = self._session.next_effect
        if effect is not None:
            await self._wait_delay(shorten=effect.point is Point.POLL_JOB)
            if effect.point is Point.AWAIT_LOCKS:
                self._return_slot()
                await self._wait_for_locks()
            elif not self._has_slot and self._starts_job(effect.point):
                await self._wait_for_slot()
            elif effect.point is Point.POLL_JOB and not self._has_slot:
                place = self._session.job_place
                if place is JobPlace.WAITS:
                    await self._wait_for_slot()
                elif place is JobPlace.ELSEWHERE:
                    # It runs already: an earlier operator started it.
                    self._slots.force(self._lane)
                    self._has_slot = True
        return not self._signals.leaving

    def _needs_loop(self, point: Point) -> bool:
        """Whether the loop has to get what an effect needs."""
        if point is Point.AWAIT_LOCKS:
            return True
        if self._has_slot:
            return False
        return self._starts_job(point) or (
            point is Point.POLL_JOB and self._session.job_place is not JobPlace.HERE
        )

    def _starts_job(self, point: Point) -> bool:
        """Whether an effect is about to start a job that takes a slot."""
        begins = point is Point.START_JOB or (
            point is Point.ACQUIRE_LOCKS and self._session.needs_job
        )
        return begins and self._session.job_place is not JobPlace.HERE

    async def _wait_delay(self, *, shorten: bool) -> None:
        until = self._loop.time() + self._session.wait_ms() / 1000
        while not self._signals.leaving:
            self._signals.wake.clear()
            left = min(until - self._loop.time(), self._session.wait_ms() / 1000)
            if left <= 0:
                return
            woken = await self._sleep(left)
            if woken and shorten:
                return

    async def _wait_for_locks(self) -> None:
        wake = self._signals.wake
        wake.clear()
        if self._session.stop_requested:
            return
        location, operation = self._session.location, self._session.acting.operation_id

        def notify() -> None:
            self._call_soon(wake.set)

        try:
            end = await self._in_thread(lambda: self._locks.watch(location, operation, notify))
        except LocksUnavailable:
            await self._sleep(_LOCK_PAUSE_S)
            return
        try:
            await self._sleep(self._until_deadline(_LOCK_LOOK_S))
        finally:
            # May talk to a server: not here.
            await asyncio.shield(self._in_thread(end))

    async def _wait_for_slot(self) -> None:
        turn = asyncio.ensure_future(self._slots.take(self._lane, self._on_queued))
        try:
            while not turn.done() and not self._signals.leaving:
                self._signals.wake.clear()
                if self._session.stop_requested:
                    return
                woken = asyncio.ensure_future(self._signals.wake.wait())
                timeout = self._until_deadline(None)
                await asyncio.wait(
                    {turn, woken}, return_when=asyncio.FIRST_COMPLETED, timeout=timeout
                )
                woken.cancel()
                if timeout is not None and self._loop.time() >= (self._deadline_s or 0):
                    return
        finally:
            if turn.done() and not turn.cancelled():
                self._has_slot = True
            else:
                turn.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await turn

    def _until_deadline(self, most: float | None) -> float | None:
        if self._deadline_s is None:
            return most
        left = max(0.0, self._deadline_s - self._loop.time()) + 0.01
        return left if most is None else min(left, most)

    def _mind_slot(self) -> None:
        """Give the slot back once the job's driver is no longer needed."""
        effect = self._session.next_effect
        if self._has_slot and (effect is None or effect.point not in _SLOT_NEEDED):
            self._return_slot()

    def _return_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slots.give_back(self._lane)

    async def _sleep(self, seconds: float | None) -> bool:
        """Wait until woken (True), at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._signals.wake.wait()
        except TimeoutError:
            return False
        return True

    def _in_thread(self, call: Callable[[], _T]) -> Awaitable[_T]:
        return self._loop.run_in_executor(self._pool, call)

    def _call_soon(self, call: Callable[[], None]) -> None:
        # The loop may be closed when a late event of a watch arrives.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)
