"""What was told to have found nothing to do does nothing any more, whoever planned it before.

A process that found work sleeps before it claims its attempt. Others take the work away; another
process of the same operation says that there is nothing to do, and its user goes on. Found by
history 1067 of the big simulation.
"""

from __future__ import annotations

import pytest

from simulator.foreign import live_rows
from simulator.single import SERIALIZABLE, Single
from simulator.two_drivers import Pair
from tandem.errors import Reason
from tandem.operations import layout
from tandem.operations.effects import Point
from tandem.operations.known import Means
from tandem.operations.retention import clean
from tandem.operations.session import Session
from tandem.planning.cleaning import DAY_MS, Rules

KINDS = ("compaction", "sort", "z-order", "update", "delete", SERIALIZABLE)


def emptied(single: Single) -> None:
    """Others delete every row: no kind finds anything to do in what is left."""
    while live_rows(single.world):
        single.foreign("delete_by_rewrite")


def told(pair: Pair) -> Session:
    """Another process says that there is nothing to do."""
    second = pair.session()
    pair.run(second)
    assert second.ending is not None
    assert second.ending.reason is Reason.NOTHING_TO_DO, second.ending
    return second


@pytest.mark.parametrize("kind", KINDS)
def test_Z1_who_planned_before_and_sleeps_begins_nothing_after(kind: str) -> None:
    pair = Pair(kind)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    emptied(pair.single)
    ending = told(pair).ending
    for _ in range(4):
        pair.single.foreign("append")  # by whoever was told, and trusts it
    version = pair.single.checker.version
    pair.run(pair.first)
    assert pair.first.ending is not None
    assert pair.first.ending.reason is Reason.ALREADY_RUNNING
    assert pair.single.run() == ending
    assert pair.single.checker.version == version


@pytest.mark.parametrize("kind", KINDS)
def test_Z1_who_found_nothing_and_sleeps_says_nothing_after(kind: str) -> None:
    """The other way round: the second finds work and does it."""
    pair = Pair(kind)
    rows = live_rows(pair.single.world)
    emptied(pair.single)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    for _ in rows:
        pair.single.foreign("append")
    second = pair.session()
    pair.run(second)
    assert second.ending is not None
    assert second.ending.reason is Reason.COMMITTED
    pair.run(pair.first)
    assert pair.first.ending is not None
    assert pair.first.ending.elsewhere
    assert pair.single.run() == second.ending


@pytest.mark.parametrize("kind", KINDS)
def test_Z1_a_later_attempt_that_finds_nothing_speaks_for_the_operation(kind: str) -> None:
    """The first claims, finds nothing, and records it when it has been taken for dead."""
    pair = Pair(kind)
    emptied(pair.single)
    pair.until(pair.first, Point.RECORD_RESULT)
    second = pair.session()
    pair.until(second, Point.RECORD_RESULT)
    pair.run(pair.first)
    pair.run(second)
    assert second.ending is not None
    assert (second.ending.reason, second.ending.attempt) == (Reason.NOTHING_TO_DO, 2)
    version = pair.single.checker.version
    assert pair.single.run() == second.ending
    assert pair.single.checker.version == version


def test_Z1_cleaning_leaves_the_claim_that_keeps_sleepers_out() -> None:
    pair = Pair(SERIALIZABLE)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    emptied(pair.single)
    ending = told(pair).ending
    world = pair.single.world
    world.clock.now += 1_000 * DAY_MS
    ports = world.ports()
    cleaned = clean(pair.single.table, Rules(0), Means(ports.clock, ports.processes, ports.nonces))
    assert cleaned.abandoned == ()
    assert layout.claim(pair.single.operation_id, 1) in world.store.paths()
    version = world.log.latest_version()
    pair.run(pair.first)
    assert world.log.latest_version() == version
    assert pair.single.run() == ending
