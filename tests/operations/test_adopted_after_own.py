"""A session whose own attempt has failed takes over the attempt of another process: nothing that
it decided for its own may be taken for a decision about the other's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake, make
from support.lake.lake import loads
from support.lake.rewritten import RECOMPRESS, rewrite
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims, ProcessId
from tandem.spec.resources import Operation


class _Killed(BaseException):
    """Not caught anywhere in the engine."""


@dataclass(frozen=True)
class _ElsewhereProcesses:
    """Another host, which knows nothing of this one."""

    def me(self) -> ProcessId:
        return ProcessId("elsewhere", 7, "then")

    def alive(self, process: ProcessId) -> bool:
        return process == self.me()


def _dies_before_commit(effect: Effect, call: Callable[[], Event]) -> Event:
    if effect.point is Point.ENTER_COMMIT:
        raise _Killed
    return call()


def _rewritten(lake: QuickLake) -> Operation:
    return rewrite(lake, *lake.names, **RECOMPRESS)


@pytest.mark.parametrize("made", [QuickLake.compaction, _rewritten])
def test_an_attempt_of_another_process_is_adopted_after_a_failed_one(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    """I-1: its outputs are published, not those of the decision that was kept in memory."""
    lake = make(tmp_path)
    lake.backoff_limit = 1
    operation = made(lake)
    seen: list[Point] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        seen.append(effect.point)
        if effect.point is Point.PUT_COMMIT and seen.count(effect.point) == 1:
            for path in lake.path.glob(f"*-{effect.attempt}/*.parquet"):
                path.unlink()  # as a vacuum without retention does
        if effect.point is Point.CHECK_EARLIER_OUTCOME and seen.count(effect.point) == 2:
            ports = lake.ports(processes=_ElsewhereProcesses(), local_claims=LocalClaims())
            with pytest.raises(_Killed):
                lake.run(operation, interceptor=_dies_before_commit, ports=ports)
        return call()

    lake.do(operation, interceptor=interceptor)
    assert Point.ADOPT_ATTEMPT in seen
    lake.assert_rows(loads(range(4)))
