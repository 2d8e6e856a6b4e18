"""The threads that work on tables: fair to namespaces and tables, measured, and in which log lines
keep the subject of the submitting task.

`WorkerPlaces` decides which call runs. To cancel the future of a call that runs abandons it: its
thread goes on until the call returns, but has another place, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.slots import NO_TABLE, FairQueue, Lane
from tandem.turns import Turn, Turns

# Who of the calls on tables may run now. Pure; `Workers` owns the threads and the time.
#
# A store that does not answer holds the thread that asks it, and no thread can be ended from
# outside. So calls that take long leave their place to others, and each room of places is shared
# such that no namespace takes all of it, and of its share no store that may not answer
# (docs/decisions/0169).


PATIENCE_S: Final = 1.0
"""A call that takes longer is a long one."""
LONG_FACTOR: Final = 16
ABANDONED_FACTOR: Final = 4
"""So many places for long and for abandoned calls, for each of the quick ones."""


class Room(StrEnum):
    QUICK = "quick"
    LONG = "long"
    ABANDONED = "abandoned"
    """No caller waits for what these calls return."""


@dataclass(slots=True, eq=False)
class WorkerCall:
    """One call on a table.

    Attributes:
        lane: with the store of the table once it is added.
        look: whether it asks the table's store, as the next ones will.
        work, future: what to run, and what its submitter waits for; unused here.
        room: where it has its place; None before it runs and after its end.
        abandoned: whether no caller waits for it, whichever place it has.
    """

    lane: Lane
    look: bool = False
    work: Callable[[], None] | None = None
    future: Future[Any] | None = None
    submitted_s: float = 0.0
    begun_s: float = 0.0
    room: Room | None = None
    abandoned: bool = False


@dataclass(slots=True)
class _Places:
    size: int
    taken: int = 0
    by_namespace: Counter[str] = field(default_factory=Counter)
    by_store: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def free(self) -> int:
        return self.size - self.taken

    def share(self, namespace: str, of: int | None = None) -> int:
        """How many places a namespace may have in all, of all or of the first `of`: half of those
        that no other has."""
        others = self.taken - self.by_namespace[namespace]
        return (max(0, (self.size if of is None else of) - others) + 1) // 2

    def has_room(self, namespace: str, store: str, share: int, *, humble: bool) -> bool:
        """Whether a store has room in the share of its namespace. A humble one leaves a quarter of
        it to others, and the last place."""
        mine = self.by_namespace[namespace]
        if not humble:
            return mine < share
        return self.by_store[namespace, store] < 3 * (share - mine - 1)

    def take(self, lane: Lane) -> None:
        self.taken += 1
        self.by_namespace[lane.namespace] += 1
        self.by_store[lane.place] += 1

    def give_back(self, lane: Lane) -> None:
        self.taken -= 1
        self.by_namespace -= Counter((lane.namespace,))
        self.by_store -= Counter((lane.place,))


class WorkerPlaces:
    """Places for `limit` quick calls, and more for those that take long. Not thread-safe."""

    def __init__(self, limit: int, *, patience_s: float = PATIENCE_S) -> None:
        self.limit = limit
        self._patience_s = patience_s
        self._rooms = {
            Room.QUICK: _Places(limit),
            Room.LONG: _Places(limit * LONG_FACTOR),
            Room.ABANDONED: _Places(limit * ABANDONED_FACTOR),
        }
        self._waiting: FairQueue[WorkerCall] = FairQueue()
        self._waiting_long: FairQueue[WorkerCall] = FairQueue()
        self._quick: dict[WorkerCall, None] = {}  # in the order in which they began
        self._stores: dict[Lane, str] = {}  # by lanes without store
        self._answering: set[tuple[str, str]] = set()
        self._long_lanes: set[Lane] = set()
        self._abandoned = 0
        self._last_begun_s = float("-inf")

    @property
    def most(self) -> int:
        """How many calls can run at once, over all rooms."""
        return sum(places.size for places in self._rooms.values())

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._waiting_long)

    @property
    def abandoned(self) -> int:
        """Abandoned calls that still run, whichever places they have."""
        return self._abandoned

    def running(self, room: Room | None = None) -> int:
        """Calls that run: in one room, or in all."""
        if room is not None:
            return self._rooms[room].taken
        return sum(places.taken for places in self._rooms.values())

    def lies_in(self, lane: Lane, store: str) -> None:
        """The table of this lane lies in this store from now on."""
        if self._stores.get(lane) != store:
            self.forget(lane)
            self._stores[lane] = store

    def add(self, call: WorkerCall) -> None:
        """Let a call wait for its turn."""
        call.lane = self._with_store(call.lane)
        long = call.lane in self._long_lanes
        (self._waiting_long if long else self._waiting).push(call.lane, call)

    def begin(self, now_s: float) -> WorkerCall | None:
        """The next call that may run, which has its place from now on; None if none may."""
        if self._rooms[Room.QUICK].free:
            call = self._waiting.pop(store_may=self._may_be_quick)
            if call is not None:
                self._last_begun_s = now_s
                self._quick[call] = None
                return self._begin(call, Room.QUICK, now_s)
        call = self._waiting_long.pop(store_may=self._may_be_long)
        return None if call is None else self._begin(call, Room.LONG, now_s)

    def _begin(self, call: WorkerCall, room: Room, now_s: float) -> WorkerCall:
        call.begun_s = now_s
        call.room = room
        self._rooms[room].take(call.lane)
        return call

    def _may_be_quick(self, namespace: str, store: str) -> bool:
        quick, long = self._rooms[Room.QUICK], self._rooms[Room.LONG]
        mine, mine_long = quick.by_namespace[namespace], long.by_namespace[namespace]
        unused = quick.free + mine  # by others
        if 4 * (mine_long + self.limit) <= 3 * long.share(namespace):
            # Its own quick calls can all move to long places in time, even those of one store.
            share = (3 * unused + 3) // 4
        else:
            share = unused // 2  # the last place is left to others
        if not mine and not mine_long:
            share = max(share, 1)
        runs = quick.by_store[namespace, store] + long.by_store[namespace, store]
        humble = runs > 0 and self._is_doubtful(namespace, store)
        return quick.has_room(namespace, store, share, humble=humble)

    def _may_be_long(self, namespace: str, store: str) -> bool:
        # The other half is for quick calls that become long.
        return self._has_long_room(namespace, store, self._rooms[Room.LONG].size // 2)

    def _has_long_room(self, namespace: str, store: str, of: int | None = None) -> bool:
        long = self._rooms[Room.LONG]
        humble = long.by_store[namespace, store] > 0 and self._is_doubtful(namespace, store)
        return long.has_room(namespace, store, long.share(namespace, of), humble=humble)

    def _is_doubtful(self, namespace: str, store: str) -> bool:
        """Whether it is a store, and may not answer."""
        return bool(store) and (namespace, store) not in self._answering

    def move_overdue(self, now_s: float) -> None:
        """Move quick calls that take long to other places, as far as there are."""
        for call in list(self._quick):
            if now_s - call.begun_s < self._patience_s:
                return
            if call.look:
                self._now_long(call.lane)
            if self._has_long_room(*call.lane.place):
                self._move(call, Room.LONG)

    def end(self, call: WorkerCall, now_s: float) -> None:
        """A call that was begun has ended."""
        assert call.room is not None
        self._rooms[call.room].give_back(call.lane)
        call.room = None
        self._quick.pop(call, None)
        if call.abandoned:
            self._abandoned -= 1
        elif call.look and now_s - call.begun_s < self._patience_s:
            self._now_quick(call.lane)
        elif call.look:
            self._now_long(call.lane)

    def abandon(self, call: WorkerCall) -> None:
        """No caller waits for this call any more. If it runs, it leaves its place, as far as there
        are others for abandoned calls."""
        if call.room is None:
            queues = (self._waiting, self._waiting_long)
            any(queue.remove(call.lane, call) for queue in queues)
        elif not call.abandoned:
            call.abandoned = True
            self._abandoned += 1
            places, namespace = self._rooms[Room.ABANDONED], call.lane.namespace
            if places.by_namespace[namespace] < places.share(namespace):
                self._move(call, Room.ABANDONED)

    def _move(self, call: WorkerCall, room: Room) -> None:
        assert call.room is not None
        self._rooms[call.room].give_back(call.lane)
        self._quick.pop(call, None)
        call.room = room
        self._rooms[room].take(call.lane)

    def _with_store(self, lane: Lane) -> Lane:
        return lane._replace(store=self._stores.get(lane, ""))

    def _now_long(self, lane: Lane) -> None:
        self._answering.discard(lane.place)
        if lane not in self._long_lanes:
            self._long_lanes.add(lane)
            for call in self._waiting.take(lane):
                self._waiting_long.push(lane, call)

    def _now_quick(self, lane: Lane) -> None:
        self._answering.add(lane.place)
        self._not_long(lane)

    def _not_long(self, lane: Lane) -> None:
        if lane in self._long_lanes:
            self._long_lanes.remove(lane)
            for call in self._waiting_long.take(lane):
                self._waiting.push(lane, call)

    def drop_waiting(self) -> list[WorkerCall]:
        """Remove all calls that wait."""
        found = [call for queue in (self._waiting, self._waiting_long) for _, call in queue]
        self._waiting, self._waiting_long = FairQueue(), FairQueue()
        return found

    def forget(self, lane: Lane) -> None:
        """A table is gone: a later one of its name is not known."""
        known = self._with_store(lane)
        self._not_long(known)
        self._answering.discard(known.place)  # until the next look at one of its tables
        self._stores.pop(lane, None)

    def oldest_wait_s(self, now_s: float) -> float:
        """How long the call that waits longest has waited; of tables whose last look was quick."""
        return max((now_s - call.submitted_s for _, call in self._waiting), default=0.0)

    def starved(self, now_s: float, after_s: float) -> bool:
        """Whether nothing has begun for so long although the work of a namespace waits of which
        nothing runs. Load alone is never that: then calls end, and others begin."""
        if now_s - self._last_begun_s < after_s:
            return False
        served = (self._rooms[Room.QUICK].by_namespace, self._rooms[Room.LONG].by_namespace)
        return any(
            now_s - call.submitted_s >= after_s
            and not any(lane.namespace in counts for counts in served)
            for lane, call in self._waiting
        )


STARVED_S: Final = 60.0
"""After so long without a begin, waiting work counts as starved."""
_WATCH_S: Final = 0.1
_COMPUTING: Final = 1
"""So many calls compute at once, since so many threads run Python."""
_TURN_S: Final = 0.1
"""A call that has not waited for so long lets others compute, too."""
_PANIC = "PanicException"
"""The class of Rust panics, for example of obstore: a BaseException, which callers do not catch,
so that a panic on one table would end the process. The class cannot be imported."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers(Executor):
    """Threads for `limit` quick calls, and more for those that take long. A call runs in the
    context (`contextvars`) of its submitter. They compute in turns, so that the event loop waits
    for one of them, not for all (docs/decisions/0190). Thread-safe."""

    def __init__(self, limit: int, metrics: Metrics, *, patience_s: float = PATIENCE_S) -> None:
        self.limit = limit
        self._metrics = metrics
        self._places = WorkerPlaces(limit, patience_s=patience_s)
        self._turns = Turns(_COMPUTING, _TURN_S)
        self._threads = ThreadPoolExecutor(self._places.most, thread_name_prefix="tandem")
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._closed = False

    @property
    def busy(self) -> int:
        """How many of the `limit` places are taken."""
        return self._places.running(Room.QUICK)

    @property
    def long(self) -> int:
        """How many calls run that take long, and have places of their own."""
        return self._places.running(Room.LONG)

    @property
    def abandoned(self) -> int:
        """How many calls run that no caller waits for."""
        return self._places.abandoned

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._places.waiting

    @property
    def oldest_wait_s(self) -> float:
        """How long a call has waited at most, in seconds; without tables that are known to take
        long."""
        with self._lock:
            return self._places.oldest_wait_s(time.monotonic())

    @property
    def starved(self) -> bool:
        """Whether work waits of a namespace of which nothing runs, and no call has begun for a
        minute."""
        with self._lock:
            return self._places.starved(time.monotonic(), STARVED_S)

    def lane(self, lane: Lane, *, look: bool = False) -> Executor:
        """An executor for the calls on one table. `look`: they ask its store, so how long they
        take says how long the next ones will."""
        return _LaneExecutor(self, lane, look)

    def lies_in(self, lane: Lane, store: str) -> None:
        """The table lies in this store: any text that is the same for tables of one store."""
        with self._lock:
            self._places.lies_in(lane, store)

    def forget(self, lane: Lane) -> None:
        """The table is gone."""
        with self._lock:
            self._places.forget(lane)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call on no table."""
        return self.submit_to(WorkerCall(NO_TABLE), partial(fn, *args, **kwargs))

    def submit_to(self, call: WorkerCall, function: Callable[[], _T]) -> Future[_T]:
        """Run a function when the call gets its place. Raises: RuntimeError after `shutdown`."""
        context = contextvars.copy_context()
        future: Future[_T] = Future()

        def work() -> None:
            try:
                with Turn(self._turns):
                    result = context.run(function)
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                self._ended(call)
                with suppress(InvalidStateError):  # abandoned
                    future.set_exception(_translated(error))
            else:
                self._ended(call)
                with suppress(InvalidStateError):
                    future.set_result(result)

        call.work, call.future = work, future
        call.submitted_s = time.monotonic()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._places.add(call)
            self._begin()
        future.add_done_callback(lambda done: self._abandon_cancelled(done, call))
        return future

    async def watch(self) -> None:
        """Let calls that take long leave their places, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            with self._lock:
                self._places.move_overdue(time.monotonic())
                self._begin()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Those that wait are begun first, or cancelled."""
        with self._lock:
            self._closed = True
            dropped = self._places.drop_waiting() if cancel_futures else []
            self._drained.wait_for(lambda: not self._places.waiting)
        for call in dropped:
            if call.future is not None:
                call.future.cancel()
        self._threads.shutdown(wait=wait)

    def _begin(self) -> None:
        now_s = time.monotonic()
        while (call := self._places.begin(now_s)) is not None:
            self._metrics.worker_wait.observe(now_s - call.submitted_s)
            assert call.work is not None
            self._threads.submit(call.work)
        if self._closed and not self._places.waiting:
            self._drained.notify_all()

    def _ended(self, call: WorkerCall) -> None:
        with self._lock:
            self._places.end(call, time.monotonic())
            call.work = call.future = None
            self._begin()

    def _abandon_cancelled(self, future: Future[Any], call: WorkerCall) -> None:
        if future.cancelled():
            with self._lock:
                self._places.abandon(call)
                self._begin()


class _LaneExecutor(Executor):
    def __init__(self, workers: Workers, lane: Lane, look: bool) -> None:
        self._workers = workers
        self._lane = lane
        self._look = look

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        return self._workers.submit_to(
            WorkerCall(self._lane, self._look), partial(fn, *args, **kwargs)
        )


def _translated(error: BaseException) -> BaseException:
    if type(error).__name__ != _PANIC:
        return error
    found = RuntimeError("a native library panicked")
    found.__cause__ = error
    return found
