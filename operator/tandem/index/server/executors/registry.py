"""The executors that a coordinator counts on: those that joined, and were heard of lately.

An executor that failed is removed at once, whatever it says of itself, and let in again after a
while: until then it would only cost every caller a deadline. It joins without load (X7).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tandem.index.assignment import Executor
from tandem.index.server.executors.slots import Slot

_log = structlog.get_logger("tandem.index.coordinator")

SILENT_S: Final = 10.0
"""Seconds without a sign of life after which an executor is dead."""

LEFT_OUT_S: Final = 10.0
"""Seconds after which an executor that failed may join again."""


@dataclass
class _Live:
    slot: Slot
    heard: float


class Registry:
    """Thread-safe.

    Args:
        came, gone: are called with each executor that joins or is removed, in that order, and must
            not call the registry.
        left_out_s: see `LEFT_OUT_S`.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        came: Callable[[Executor], None],
        gone: Callable[[Executor], None],
        *,
        left_out_s: float = LEFT_OUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._came, self._gone, self._now = came, gone, now
        self._left_out_s = left_out_s
        self._lock = threading.Lock()
        self._live: dict[Executor, _Live] = {}
        self._failed: dict[str, float] = {}

    def join(self, executor: Executor, slot: Slot) -> bool:
        """Count on an executor, unless it failed lately. Another one of the same slot is dead."""
        with self._lock:
            now = self._now()
            self._failed = {
                each: at for each, at in self._failed.items() if now - at < self._left_out_s
            }
            if executor.id in self._failed:
                return False
            replaced = self._taken([each for each in self._live if each.slot == executor.slot])
            self._live[executor] = _Live(slot, now)
            self._came(executor)
        for each in replaced:
            each.close()
        return True

    def beat(self, executor: Executor) -> bool:
        """A sign of life; False if the executor is not counted on."""
        with self._lock:
            live = self._live.get(executor)
            if live is not None:
                live.heard = self._now()
            return live is not None

    def leave(self, executor: Executor) -> None:
        """It ends."""
        self._remove([executor])

    def fail(self, executor: Executor, problem: object) -> None:
        """It did not answer."""
        with self._lock:
            if executor in self._live:
                self._failed[executor.id] = self._now()
        if self._remove([executor]):
            _log.warning(
                "an executor fails; its shards go elsewhere",
                slot=executor.slot,
                executor=executor.id,
                problem=str(problem),
            )

    def sweep(self) -> None:
        """Remove those that were not heard of."""
        with self._lock:
            since = self._now() - SILENT_S
            silent = [each for each, live in self._live.items() if live.heard < since]
        if silent:
            self._remove(silent)
            _log.warning("executors are silent", executors=[each.id for each in silent])

    def stay(self, executor: Executor) -> None:
        """Count on an executor without signs of life: it is in this process."""
        with self._lock:
            self._live[executor].heard = float("inf")

    def slot(self, executor: Executor) -> Slot | None:
        """How to ask an executor; None if it is dead."""
        live = self._live.get(executor)
        return None if live is None else live.slot

    @property
    def live(self) -> dict[Executor, Slot]:
        """The executors that are counted on, in the order of their slots."""
        with self._lock:
            return {each: self._live[each].slot for each in sorted(self._live)}

    def _remove(self, executors: Sequence[Executor]) -> bool:
        with self._lock:
            gone = self._taken([each for each in executors if each in self._live])
        for slot in gone:
            slot.close()
        return bool(gone)

    def _taken(self, executors: Sequence[Executor]) -> list[Slot]:
        found = [self._live.pop(each).slot for each in executors]
        for each in executors:
            self._gone(each)
        return found
