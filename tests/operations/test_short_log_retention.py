"""Tables whose checkpoints forget who committed (`delta.setTransactionRetentionDuration`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake, make
from support.lake.lake import DELETION_VECTORS, Lake, batch, loads
from tandem.delta.protocol import FORGETFUL
from tandem.errors import Reason
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims, ProcessId
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

NOW = {FORGETFUL: "interval 0 seconds"}


class _Killed(BaseException):
    """Not caught anywhere in the engine."""


class _ElsewhereProcesses:
    """Another host, which knows nothing of this one."""

    def me(self) -> ProcessId:
        return ProcessId("elsewhere", 7, "then")

    def alive(self, process: ProcessId) -> bool:
        return process == self.me()


def _dies_after_commit(effect: Effect, call: Callable[[], Event]) -> Event:
    event = call()
    if effect.point is Point.PUT_COMMIT:
        raise _Killed
    return event


def _refused(status: OperationStatus) -> None:
    assert status.phase is Phase.FAILED
    assert status.conditions[0].reason == Reason.UNSUPPORTED_FEATURE, status
    assert FORGETFUL in status.conditions[0].message


@pytest.mark.parametrize("made", [Lake.compaction, lambda lake: lake.ingest(batch(9))])
def test_a_table_with_short_log_retention_is_refused(
    tmp_path: Path, made: Callable[[QuickLake], Operation]
) -> None:
    lake = make(tmp_path, 2, properties={**DELETION_VECTORS, **NOW})
    _refused(lake.run(made(lake)))
    assert lake.version == lake.first_version
    lake.assert_rows(loads(range(2)))


def test_a_success_that_left_the_log_is_neither_repeated_nor_deleted(tmp_path: Path) -> None:
    lake = make(tmp_path, 2)
    ingest = lake.ingest(batch(2))
    ports = lake.ports(processes=_ElsewhereProcesses(), local_claims=LocalClaims())
    with pytest.raises(_Killed):
        lake.run(ingest, interceptor=_dies_after_commit, ports=ports)
    lake.foreign().alter.set_table_properties(NOW)
    lake.foreign().create_checkpoint()
    assert lake.log.snapshot().txns == {}, "or this test shows nothing"
    _refused(lake.run(ingest))
    lake.assert_rows(loads(range(3)))
