"""An operation in a thread of its own, held at named points of the engine by conditions.

`Held` is how a test forces an order: start, hold at a point, let others commit, go on. Nothing
sleeps; a wait that takes too long fails the test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.options import Interceptor
from tandem.spec.status import OperationStatus, Phase

LIMIT_S = 100.0


class Killed(BaseException):
    """What a SIGKILL is to the thread of an engine: nothing after it is done."""


class Held:
    """`run(interceptor)` drives the operation to its end in the calling thread."""

    def __init__(self, name: str, run: Callable[[Interceptor], OperationStatus]) -> None:
        self._changed = threading.Condition()
        self._where: tuple[Point, bool] | None = None
        self._skip = 0
        self._at: Effect | None = None
        self._kill = False
        self._status: OperationStatus | None = None
        self._error: BaseException | None = None
        self._over = False
        self.points: list[Point] = []
        self._run = run
        self._thread = threading.Thread(target=self._body, name=name, daemon=True)

    def start(self, at: Point | None, *, after: bool = False, skip: int = 0) -> Held:
        """Run until it is about to perform `at` (or has just done so), `skip` times passing by."""
        self._arm(at, after, skip)
        self._thread.start()
        self._await_hold(at)
        return self

    def go_on(self, at: Point | None = None, *, after: bool = False, skip: int = 0) -> Held:
        """Let it go on, to another point if given."""
        with self._changed:
            self._arm(at, after, skip)
            self._at = None
            self._changed.notify_all()
        self._await_hold(at)
        return self

    def kill(self) -> None:
        """It is held, and never comes to life again."""
        with self._changed:
            assert self._at is not None
            self._kill = True
            self._at = None
            self._changed.notify_all()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert isinstance(self._error, Killed), self._error

    def finish(self) -> OperationStatus:
        """Let it go on to its end; what it says then."""
        self.go_on()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"stuck; performed {self.points[-5:]}"
        if self._error is not None:
            raise self._error
        assert self._status is not None
        return self._status

    def succeed(self) -> OperationStatus:
        """Let it go on to its end, which must be a success."""
        status = self.finish()
        assert status.phase is Phase.SUCCEEDED, status
        return status

    def _arm(self, at: Point | None, after: bool, skip: int) -> None:
        self._where = None if at is None else (at, after)
        self._skip = skip

    def _await_hold(self, at: Point | None) -> None:
        if at is None:
            return
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._at or self._over, LIMIT_S)
            if self._at is None:
                outcome = self._error or self._status
                raise AssertionError(
                    f"{self._thread.name} {'ended' if arrived else 'hangs'} before {at}: "
                    f"{outcome}; performed {', '.join(self.points)}"
                )

    def _body(self) -> None:
        try:
            self._status = self._run(self._interceptor)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._error = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        self._stand(effect, after=False)
        self.points.append(effect.point)
        event = call()
        self._stand(effect, after=True)
        return event

    def _stand(self, effect: Effect, *, after: bool) -> None:
        with self._changed:
            if self._where != (effect.point, after):
                return
            if self._skip:
                self._skip -= 1
                return
            self._where, self._at = None, effect
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._at is None, LIMIT_S):
                raise AssertionError(f"{effect} was never released")
            if self._kill:
                raise Killed(str(effect))
