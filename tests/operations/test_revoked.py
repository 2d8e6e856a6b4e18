"""An operation that lost its locks to one of higher priority publishes nothing (I-25)."""

from __future__ import annotations

from pathlib import Path

from support.jobs import quick_lake
from support.lake.lake import loads
from tandem.locks.rules import WHOLE_TABLE, Granted, LockRequest, Mode
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point


def test_I25_a_revoked_holder_publishes_nothing_until_it_holds_them_again(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    locks = InProcessLocks()
    compaction = lake.hold(
        lake.compaction("Major"), Point.ENTER_COMMIT, ports=lake.ports(locks=locks)
    )
    files = lake.log.snapshot().num_files
    urgent = LockRequest(
        table=lake.location,
        operation="urgent",
        mode=Mode.EXCLUSIVE,
        resources=WHOLE_TABLE,
        owner="urgent",
        priority=100,
    )
    assert isinstance(locks.acquire(urgent), Granted)
    compaction.go_on(Point.AWAIT_LOCKS)
    assert lake.log.snapshot().num_files == files
    locks.release(lake.location, "urgent", "urgent")
    compaction.succeed()
    lake.assert_rows(loads(range(4)))
    lake.assert_clean()
