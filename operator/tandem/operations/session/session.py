"""One operation in progress: holds the state, performs one effect at a time.

`advance` performs exactly one effect, so that a caller that drives many sessions (a thread each,
an event loop, a simulator that shuffles them) decides on the order and may stop anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tandem.errors import TandemError
from tandem.jobs.port import JobPlace
from tandem.operations.machine.events import (
    Effect,
    EffectFailed,
    Ending,
    Event,
    Point,
    PrerequisiteFound,
    Started,
    StopRequest,
    failure_of,
)
from tandem.operations.machine.state import Limits, OperationState, PartOfWork, Request
from tandem.operations.machine.step import step
from tandem.operations.model import Identity
from tandem.operations.ports import Clock
from tandem.operations.session.performer import Performer
from tandem.spec.common import Operation
from tandem.spec.status import Phase

Watch = Callable[[OperationState], None]
Open = Callable[[Operation, Callable[[], None]], "Session"]
"""Opens an operation on the same table; the second argument is called after each of its steps."""
OpenLeft = Callable[[Callable[[], None]], "Session | None"]
"""Opens the operation that an earlier process has begun for `Open` and has not ended; None if there
is none."""


class Session:
    """`request_stop` may be called from any thread; everything else by one thread at a time.

    A caller that must not block a thread waits `wait_ms()`, or until `on_stop_request` is called,
    then calls `advance(sleep=False)` in a thread, and so on until that answers False.

    Args:
        started_ms: when the operation started, perhaps in an earlier process (Unix milliseconds);
            None: now.
        deadline_ms: how long it may take from its start to its commit; None for no limit.
        watch: called after every step, for progress and status.
        open_first: opens an operation that has to end before this one plans. It is advanced as a
            part of this one: by `advance`, with its delays and its stop requests.
        open_left: opens such an operation if an earlier process has begun it. A stop request may
            come before this session plans, and so before it knows of that operation: it is opened
            only to be stopped.

    Attributes:
        on_stop_request: called after each `request_stop`, in the caller's thread.
    """

    on_stop_request: Callable[[], None] | None = None

    def __init__(
        self,
        performer: Performer,
        clock: Clock,
        limits: Limits,
        *,
        identity: Identity,
        open_first: Open,
        open_left: OpenLeft = lambda _: None,
        started_ms: int | None = None,
        deadline_ms: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.identity = identity
        self.state = OperationState(Request(limits))
        self.started_ms = clock.now_ms() if started_ms is None else started_ms
        self._performer = performer
        self._clock = clock
        self._deadline = None if deadline_ms is None else self.started_ms + deadline_ms
        self._watch = watch
        self._open_first = open_first
        self._open_left = open_left
        self._looked = limits.dry_run
        self._first: Session | None = None
        self._effects: deque[Effect] = deque()
        self._stop_requests: deque[StopRequest] = deque()
        self._wake = threading.Event()
        self._step(Started())

    @property
    def ending(self) -> Ending | None:
        return self.state.outcome.ended

    @property
    def part(self) -> PartOfWork | None:
        """Which batch of an operation it is at work on; None if there is only one."""
        return self._performer.work.part

    @property
    def shown(self) -> OperationState:
        """The state for the status: where it is at work on a batch, with the progress of all."""
        progress = self.state.job.progress
        if self.part is None or progress is None:
            return self.state
        whole = self.part.in_whole(progress)
        return replace(self.state, job=replace(self.state.job, progress=whole))

    @property
    def location(self) -> str:
        """Where the table lies that the next effect works on, under which its locks are: for a log
        compaction the log."""
        first = self._first
        return self._performer.work.table.location if first is None else first.location

    @property
    def next_effect(self) -> Effect | None:
        """The effect that `advance` performs next unless a stop request comes first."""
        if self._first is not None:
            return self._first.next_effect
        return self._effects[0] if self._effects else None

    @property
    def needs_job(self) -> bool:
        """Whether the operation that the next effect belongs to has planned a job, for which
        nothing is stored yet."""
        if self._first is not None:
            return self._first.needs_job
        attempt = self.state.attempt
        return not (attempt.without_job or attempt.persisted)

    @property
    def job_place(self) -> JobPlace:
        """Where the job is done, or would be, that the next effect is about."""
        if self._first is not None:
            return self._first.job_place
        return self._performer.job_place(self._effects[0])

    @property
    def acting(self) -> Identity:
        """The operation that the next effect belongs to: this one, or one that it waits for."""
        return self.identity if self._first is None else self._first.acting

    @property
    def stop_requested(self) -> bool:
        """Whether the next `advance` has a stop request to handle."""
        return bool(self._stop_requests)

    def request_stop(self, request: StopRequest) -> None:
        """Ask the operation to stop. It may have committed before it handles the request."""
        self._stop_requests.append(request)
        if self._first is not None:
            self._first.request_stop(request)
        self._wake.set()
        if self.on_stop_request is not None:
            self.on_stop_request()

    def wait_ms(self) -> int:
        """How long to wait before the next `advance`: the effect's delay, or less if the deadline
        comes first; 0 if a stop is requested."""
        if self._first is not None:
            return self._first.wait_ms()
        if self._stop_requests or not self._effects:
            return 0
        delay = self._effects[0].delay_ms
        if delay and self._deadline is not None:
            delay = min(delay, max(0, self._deadline - self._clock.now_ms()))
        return delay

    def advance(self, *, sleep: bool = True) -> bool:
        """Perform the next effect; False once the operation has ended. Without `sleep` the
        caller has waited already."""
        if self._first is not None:
            return self._advance_first(self._first, sleep=sleep)
        if self._listen():
            return self.state.outcome.ended is None
        if not self._effects:
            return False
        if self.state.request.stop is not None and self._stops_left():
            return True  # suspended by its spec
        delay = self.wait_ms() if sleep else 0
        if delay:
            self._clock.sleep(delay, self._wake)
            if self._listen():
                return self.state.outcome.ended is None
        effect = self._effects.popleft()
        event = self._performer.perform(effect, self.state)
        if isinstance(event, PrerequisiteFound):
            try:
                self._looked = True
                self._first = self._open_first(self._performer.prerequisite, self._show)
            except TandemError as error:
                event = failure_of(effect, error)
            else:
                for request in tuple(self._stop_requests):
                    self._first.request_stop(request)
                return True
        self._step(event)
        return self.state.outcome.ended is None

    def _advance_first(self, first: Session, *, sleep: bool) -> bool:
        """Advance the operation that has to end before this one plans."""
        if first.advance(sleep=sleep):
            return True
        self._first = None
        ending = first.ending
        assert ending is not None
        committed = ending.result is not None and ending.result.version is not None
        done = PrerequisiteFound(first.part.number if committed and first.part is not None else 0)
        if self._stop_requests or self.state.request.stop is not None:
            # The request ended it, or came too late: in both cases it is this operation's turn.
            self._step(done)
        elif ending.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED):
            self._step(done)
        else:
            message = f"{first.identity.display}, which has to end first, failed: {ending.message}"
            if first.part is not None:
                message = f"{first.part} failed: {ending.message}"
            self._step(EffectFailed(Effect(Point.PLAN), ending.reason, message))
        return self.state.outcome.ended is None

    def close(self) -> None:
        """Leave the operation as it is: from now on only another session may advance it. A caller
        that does not drive the session to its end has to call this."""
        if self._first is not None:
            self._first.close()
        self._performer.close()

    def _listen(self) -> bool:
        if self._deadline is not None and self._clock.now_ms() >= self._deadline:
            self._deadline = None
            self._stop_requests.append(StopRequest.DEADLINE)
        if not self._stop_requests:
            return False
        self._wake.clear()
        if self._stops_left():
            return True
        # The pending effect is dropped, unless the answer requests it again.
        self._effects.clear()
        self._step(self._stop_requests.popleft())
        return True

    def _stops_left(self) -> bool:
        """Before a stop request is handled: stop what an earlier process of this operation has
        begun first, else its job would go on. True if there is something, or if that is not known
        yet; the request is handled after it.

        An attempt of this operation is made only after the other one has ended.
        """
        if self._looked or self.state.attempt.number or self.state.outcome.closing is not None:
            return False
        try:
            first = self._open_left(self._show)
        except TandemError as error:
            pending = self.state.pending.effect
            assert pending is not None
            self._effects.clear()
            self._step(failure_of(Effect(pending.point, pending.attempt), error))
            return True
        self._looked = True
        if first is None:
            return False
        self._effects.clear()
        self._first = first
        for request in (*self._stop_requests, self.state.request.stop):
            if request is not None:
                # An interrupt would not wait until that session has found its job.
                interrupt = request is StopRequest.INTERRUPT
                first.request_stop(StopRequest.CANCEL if interrupt else request)
        return True

    def _step(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        self._effects.extend(effects)
        if self.state.outcome.ended is not None:
            self.close()
        self._show()

    def _show(self) -> None:
        """Report the state to the watcher: while another operation has to end first, with the
        attempt, the phase and the progress of that one. An attempt says that work has begun."""
        if self._watch is None:
            return
        if self._first is None or self._first.ending is not None:
            self._watch(self.shown)  # the end of the other operation is not that of this one
            return
        first = self._first
        own = self.state.attempt
        plan, message = own.plan, f"{first.identity.display} has to end first"
        if first.part is not None:
            planned = self._performer.work.planned
            plan, message = None if planned is None else planned.summary, str(first.part)
        if first.state.message:
            message += f": {first.state.message}"
        shown = first.shown
        self._watch(
            replace(
                self.state,
                attempt=replace(own, number=shown.attempt.number, plan=plan),
                phase=shown.phase,
                message=message,
                locks=shown.locks,
                job=shown.job,
                refusal=shown.refusal,
                pending=shown.pending,
            )
        )
