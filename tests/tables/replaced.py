"""The table whose second day the tests of replaces replace."""

from __future__ import annotations

from support.lake.held import Held
from support.lake.lake import Lakes
from support.lake.timed import TimedLake, day, hours, without
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation

DAY_2 = "2013-03-02"
S1 = hours(day(1), day(2), day(3), first=0)
SR = hours(range(24, 34), first=1_000)
SJ = hours(range(30, 36), first=2_000)
"""Of the second day, as all that comes late here."""
REST = without(S1, day(2))
ALIGNED = [hours(day(n), first=24 * (n - 1)) for n in (1, 2, 3)]
"""The same rows as `S1`, a file a day."""
MORE = hours(day(2), first=500)
"""More rows of the second day: a compaction puts them together with those of `S1`."""


def made(lakes: Lakes, layout: str = "straddling") -> TimedLake:
    loads = [S1] if layout.startswith("straddling") else ALIGNED
    return TimedLake.of(lakes, *loads, vectors="no vectors" not in layout)


def alone(table: TimedLake, operation: Operation, at: Point = Point.RECONCILE) -> Held:
    """An operation that is held, and that no lock keeps from anything."""
    return table.lake.hold(operation, at, ports=table.lake.ports(locks=InProcessLocks()))
