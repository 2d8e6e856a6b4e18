"""A clock for operators that tests move."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from tandem.operations.ports import SystemClock


class ShiftedClock:
    """The machine's clock, `ahead_ms` ahead: at first enough that no hour ends during a test."""

    def __init__(self) -> None:
        self._system = SystemClock()
        minute = self._system.now_ms() // 60_000 % 60
        self.ahead_ms = (60 - minute) * 60_000 if minute >= 50 else 0

    def now_ms(self) -> int:
        return self._system.now_ms() + self.ahead_ms

    def sleep(self, ms: int, wake: threading.Event) -> None:
        self._system.sleep(ms, wake)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def pass_an_hour(self) -> None:
        self.ahead_ms += 3600 * 1000
