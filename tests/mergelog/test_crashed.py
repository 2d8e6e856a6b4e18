"""A log compaction, a merge or an upsert dies, loses an answer or repeats an effect at any point:
the next run ends it, and its work counts once.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from mergelog.orders import MERGE, STITCH, Orders, rows
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.some import some
from tandem.operations.machine.events import Point
from tandem.spec.status import Phase

POINTS = (
    Point.CLAIM_ATTEMPT,
    Point.PERSIST_PLAN,
    Point.START_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.PUT_COMMIT,
    Point.RECORD_RESULT,
    Point.CLEAN_UNUSED,
    Point.MAINTAIN,
)


CASES = [(point, fault) for point in POINTS for fault in Fault]


@pytest.mark.part(6)
@pytest.mark.parametrize(("point", "fault"), some(CASES, every=5))
@pytest.mark.parametrize("spec", [MERGE, STITCH], ids=["merge", "compaction"])
def test_a_fault_at_any_point_costs_no_record(
    orders: Orders, spec: dict[str, Any], point: Point, fault: Fault
) -> None:
    expected = orders.view()
    strike = StrikeOnce(point, fault)
    with contextlib.suppress(ProcessDied):
        orders.run(spec, strike)
    assert strike.struck
    assert orders.view() == expected
    # An append in between must survive.
    orders.append(rows(range(20, 21), "later", 9))
    status = orders.run(spec)
    assert status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), status
    assert orders.view() == [*expected, (20, 9, "later")]
    if spec is MERGE:
        assert [row for row in orders.base() if row[0] != 20] == expected
        marks = [name for name in orders.log.base.snapshot().txns if "tandem.log:" in name]
        assert len(marks) == 1


@pytest.mark.part(4)
@pytest.mark.parametrize(("point", "fault"), some(CASES, every=5))
def test_a_fault_at_any_point_of_an_upsert_makes_one_instant(
    orders: Orders, point: Point, fault: Fault
) -> None:
    spec = {"upsert": {"source": orders.source(rows(range(10, 16), "mine", 20))}}
    before = orders.view()
    expected = [row for row in before if row[0] < 10] + [(n, 20, "mine") for n in range(10, 16)]
    strike = StrikeOnce(point, fault)
    with contextlib.suppress(ProcessDied):
        orders.run(spec, strike)
    assert strike.struck
    committed = _instants(orders)
    assert orders.view() == (expected if committed else before)
    orders.append(rows(range(15, 16), "later", 20))
    status = orders.run(spec)
    assert status.phase is Phase.SUCCEEDED, status
    assert _instants(orders) == 1
    # The later instant wins.
    assert orders.view() == [*expected[:-1], (15, 20, "later" if committed else "mine")]


def _instants(orders: Orders) -> int:
    """How many versions of the log have blocks of an operation."""
    commits = orders.log.log.commits(1, orders.log.snapshot().version)
    return sum(any("blocks/" not in add.path for add in commit.adds) for commit in commits)
