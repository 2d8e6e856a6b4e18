"""The executors that a coordinator counts on: those that joined, and were heard of lately; and
which shards they hold.

An executor that failed is removed at once, whatever it says of itself, and let in again after a
while: until then it would only cost every caller a deadline. It joins without load (X7).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import structlog

from tandem.index.server.assignment import Executor, Shard, ShardMapping
from tandem.index.server.executor import ExecutorService
from tandem.index.server.executor_messages import (
    ExecutorCall,
    InvalidateQuestion,
    NarrowQuestion,
    NarrowReply,
    ShardQuestion,
    SlotCache,
    body,
)
from tandem.index.server.messages import one, whole
from tandem.index.server.transport import Connection

_log = structlog.get_logger("tandem.index.coordinator")

SILENT_S: Final = 10.0
"""Seconds without a sign of life after which an executor is dead."""

LEFT_OUT_S: Final = 10.0
"""Seconds after which an executor that failed may join again."""


class RemoteExecutor:
    """An executor behind a connection, with the calls of `ExecutorService`.

    Each raises: a TandemError if there is no answer in time; what executors raise.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float
    ) -> tuple[NarrowReply, pa.Table]:
        message, tables = self._ask(ExecutorCall.NARROW, body(asked, files), timeout_s)
        return whole(NarrowReply, message), one(tables)

    def prime(self, asked: ShardQuestion, files: pa.Table, timeout_s: float) -> None:
        self._ask(ExecutorCall.PRIME, body(asked, files), timeout_s)

    def show(self, timeout_s: float) -> SlotCache:
        message, _ = self._ask(ExecutorCall.SHOW_CACHE, b"{}", timeout_s)
        return whole(SlotCache, message)

    def invalidate(self, gone: InvalidateQuestion, timeout_s: float) -> None:
        self._ask(ExecutorCall.INVALIDATE_CACHE, body(gone), timeout_s)

    def close(self) -> None:
        self._connection.close()

    def _ask(
        self, call: ExecutorCall, data: bytes, timeout_s: float
    ) -> tuple[dict[str, object], list[pa.Table]]:
        return self._connection.ask(call, data, timeout_s=timeout_s)


ReachedExecutor = RemoteExecutor | ExecutorService
"""An executor in another process, or in this one: with `executors: 0` the coordinator has one."""


@dataclass
class _Live:
    reached: ReachedExecutor
    heard: float


class Registry:
    """Thread-safe: of two askers one decides where a shard goes (X14).

    Args:
        left_out_s: see `LEFT_OUT_S`.
    """

    def __init__(self, *, left_out_s: float = LEFT_OUT_S) -> None:
        self._now = time.monotonic
        self._left_out_s = left_out_s
        self._lock = threading.Lock()
        self.mapping = ShardMapping()
        self._live: dict[Executor, _Live] = {}
        self._failed: dict[str, float] = {}

    def join(self, executor: Executor, reached: ReachedExecutor, *, stays: bool = False) -> bool:
        """Count on an executor, unless it failed lately. Another one of the same slot is dead.

        Args:
            stays: without signs of life: it is in this process.
        """
        with self._lock:
            now = self._now()
            self._failed = {
                each: at for each, at in self._failed.items() if now - at < self._left_out_s
            }
            if executor.id in self._failed:
                return False
            replaced = self._taken([each for each in self._live if each.slot == executor.slot])
            self._live[executor] = _Live(reached, float("inf") if stays else now)
            self.mapping.join(executor)
        for each in replaced:
            each.close()
        return True

    def beat(self, executor: Executor, sizes: Mapping[Shard, int]) -> bool:
        """A sign of life, with the bytes that shards were found to need (X4). False if the executor
        is not counted on, and has to join."""
        with self._lock:
            live = self._live.get(executor)
            if live is not None:
                live.heard = self._now()
                self.mapping.report(executor, sizes)
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

    def reached(self, executor: Executor) -> ReachedExecutor | None:
        """How to ask an executor; None if it is dead."""
        live = self._live.get(executor)
        return None if live is None else live.reached

    @property
    def live(self) -> dict[Executor, ReachedExecutor]:
        """The executors that are counted on, in the order of their slots."""
        with self._lock:
            return {each: self._live[each].reached for each in self.mapping.executors}

    def route(self, shards: Iterable[Shard]) -> Mapping[Executor, Sequence[Shard]]:
        """See `ShardMapping.route`. No executor that was removed before the call is in the
        answer."""
        with self._lock:
            return self.mapping.route(shards)

    def drop(self, table: str, keys: Collection[str] = ()) -> None:
        """See `ShardMapping.drop`."""
        with self._lock:
            self.mapping.drop(table, keys)

    def _remove(self, executors: Sequence[Executor]) -> bool:
        with self._lock:
            gone = self._taken([each for each in executors if each in self._live])
        for slot in gone:
            slot.close()
        return bool(gone)

    def _taken(self, executors: Sequence[Executor]) -> list[ReachedExecutor]:
        """With the lock: their shards go elsewhere, one by one (I-49)."""
        found = [self._live.pop(each).reached for each in executors]
        for each in executors:
            self.mapping.route(self.mapping.remove(each))
        return found
