"""One operation in progress: holds the state, performs one effect at a time.

`advance` performs exactly one effect, so that a caller that drives many sessions (a thread each,
an event loop, a simulator that shuffles them) decides on the order and may stop anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.operations.machine.effects import Effect
from tandem.operations.machine.events import Ending, Event, Started, StopRequest
from tandem.operations.machine.state import Limits, OperationState, Request
from tandem.operations.machine.step import step
from tandem.operations.model import Identity
from tandem.operations.ports import Clock
from tandem.operations.session.performer import Performer

Watch = Callable[[OperationState], None]


class Session:
    """`request_stop` may be called from any thread; everything else by one thread at a time.

    A caller that must not block a thread waits `wait_ms()`, or until `on_stop_request` is called,
    then calls `advance(sleep=False)` in a thread, and so on until that answers False.

    Args:
        started_ms: when the operation started, perhaps in an earlier process (Unix milliseconds);
            None: now.
        deadline_ms: how long it may take from its start to its commit; None for no limit.
        watch: called after every step, for progress and status.

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
        self._effects: deque[Effect] = deque()
        self._stop_requests: deque[StopRequest] = deque()
        self._wake = threading.Event()
        self._step(Started())

    @property
    def ending(self) -> Ending | None:
        return self.state.outcome.ended

    @property
    def location(self) -> str:
        """Where the table lies that it works on, under which its locks are: for a log compaction
        the log."""
        return self._performer.work.table.location

    @property
    def next_effect(self) -> Effect | None:
        """The effect that `advance` performs next unless a stop request comes first."""
        return self._effects[0] if self._effects else None

    @property
    def stop_requested(self) -> bool:
        """Whether the next `advance` has a stop request to handle."""
        return bool(self._stop_requests)

    def request_stop(self, request: StopRequest) -> None:
        """Ask the operation to stop. It may have committed before it handles the request."""
        self._stop_requests.append(request)
        self._wake.set()
        if self.on_stop_request is not None:
            self.on_stop_request()

    def wait_ms(self) -> int:
        """How long to wait before the next `advance`: the effect's delay, or less if the deadline
        comes first; 0 if a stop is requested."""
        if self._stop_requests or not self._effects:
            return 0
        delay = self._effects[0].delay_ms
        if delay and self._deadline is not None:
            delay = min(delay, max(0, self._deadline - self._clock.now_ms()))
        return delay

    def advance(self, *, sleep: bool = True) -> bool:
        """Perform the next effect; False once the operation has ended. Without `sleep` the
        caller has waited already."""
        if self._listen():
            return self.state.outcome.ended is None
        if not self._effects:
            return False
        delay = self.wait_ms() if sleep else 0
        if delay:
            self._clock.sleep(delay, self._wake)
            if self._listen():
                return self.state.outcome.ended is None
        effect = self._effects[0]
        self._effects.popleft()
        self._step(self._performer.perform(effect, self.state))
        return self.state.outcome.ended is None

    def close(self) -> None:
        """Leave the operation as it is: from now on only another session may advance it. A caller
        that does not drive the session to its end has to call this."""
        self._performer.close()

    def _listen(self) -> bool:
        if self._deadline is not None and self._clock.now_ms() >= self._deadline:
            self._deadline = None
            self._stop_requests.append(StopRequest.DEADLINE)
        if not self._stop_requests:
            return False
        self._wake.clear()
        # The pending effect is dropped, unless the answer requests it again.
        self._effects.clear()
        self._step(self._stop_requests.popleft())
        return True

    def _step(self, event: Event) -> None:
        self.state, effects = step(self.state, event)
        self._effects.extend(effects)
        if self.state.outcome.ended is not None:
            self.close()
        if self._watch is not None:
            self._watch(self.state)
