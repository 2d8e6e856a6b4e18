"""What was told to have ended before it was begun is not begun any more, whoever planned before.

A process that found work sleeps before it claims its attempt. Others take the work away, or make
the table one that is refused; another process of the same operation says so, and its user goes
on. Found by histories 1067 and 9739 of the big simulation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.foreign import live_rows
from simulator.refusals import about_to_speak, each_kind, emptied, ended, mended, upgraded
from simulator.single import SERIALIZABLE, Single
from simulator.two_drivers import Pair
from support.lake.faults import ProcessDied
from tandem.errors import Reason
from tandem.operations.attempt import paths
from tandem.operations.clean.clean import clean
from tandem.operations.clean.facts import CleaningDependencies
from tandem.operations.machine.effects import Effect, Point
from tandem.operations.machine.events import Event
from tandem.operations.session.session import Session
from tandem.planning.cleaning import DAY_MS, CleaningRules

Change = Callable[[Single], None]
CHANGES: dict[Change, Reason] = {
    emptied: Reason.NOTHING_TO_DO,
    upgraded: Reason.UNSUPPORTED_FEATURE,
}
each_change = pytest.mark.parametrize("change", CHANGES)


def told(pair: Pair, reason: Reason) -> Session:
    """Another process says how it ends."""
    second = pair.session()
    pair.run(second)
    assert ended(second).reason is reason
    return second


@each_change
@each_kind
def test_Z1_who_planned_before_and_sleeps_begins_nothing_after(kind: str, change: Change) -> None:
    pair = Pair(kind)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    change(pair.single)
    ending = told(pair, CHANGES[change]).ending
    for _ in range(4):
        pair.single.foreign("append")  # by whoever was told, and trusts it
    version = pair.single.checker.version
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ALREADY_RUNNING
    assert pair.single.run() == ending
    assert pair.single.checker.version == version


def test_Z1_who_has_not_looked_yet_when_it_is_told_hears_the_same() -> None:
    pair = Pair("update")
    sleeper = pair.session()
    pair.until(sleeper, Point.CHECK_EARLIER_OUTCOME)
    version = pair.single.checker.version
    upgraded(pair.single)
    ending = told(pair, Reason.UNSUPPORTED_FEATURE).ending
    mended(pair.single)
    pair.run(sleeper)
    assert sleeper.ending == ending
    assert pair.single.checker.version == version + 2


@each_kind
def test_a_mended_table_is_worked_on_when_that_is_asked_for(kind: str) -> None:
    single = Single(kind)
    upgraded(single)
    refused = single.run()
    assert refused is not None
    assert refused.reason is Reason.UNSUPPORTED_FEATURE
    mended(single)
    assert single.run() == refused
    again = single.run(again=True)
    assert again is not None
    assert again.reason is Reason.COMMITTED
    assert single.run() == again


DEAD_CLAIMS = {(Point.CLAIM_ATTEMPT, "after"), (Point.RECORD_RESULT, "before")}
"""After these deaths there is an attempt of which nobody knows what came of it."""


@each_change
@each_kind
def test_a_death_before_it_is_told_costs_at_most_an_abandonment(kind: str, change: Change) -> None:
    """Whatever is there by then, the next process says the same, as far as it may commit."""
    for point, when in [
        (Point.CLAIM_ATTEMPT, "before"),
        (Point.CLAIM_ATTEMPT, "after"),
        (Point.RECORD_RESULT, "before"),
        (Point.RECORD_RESULT, "after"),
    ]:
        single = Single(kind)
        change(single)
        version = single.checker.version

        def die(
            effect: Effect, perform: Callable[[], Event], at: Point = point, when: str = when
        ) -> Event:
            if effect.point is at and when == "before":
                raise ProcessDied
            event = perform()
            if effect.point is at:
                raise ProcessDied
            return event

        assert single.run(die) is None
        ending = single.run()
        assert ending is not None
        assert ending.reason is CHANGES[change]
        assert single.run() == ending
        # What we do not know we do not write to, not even that an attempt is dead.
        died = change is emptied and (point, when) in DEAD_CLAIMS
        assert single.checker.version == version + (1 if died else 0)


@each_kind
def test_Z1_who_was_taken_for_dead_says_nothing(kind: str) -> None:
    """It has claimed, and has something to say; another process takes it for dead, and works."""
    pair = about_to_speak(kind)
    second = pair.session()
    pair.until(second, Point.START_JOB)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.run(second)
    pair.check(second)


@each_kind
def test_Z1_nobody_works_on_who_took_the_speaker_for_dead_too_late(kind: str) -> None:
    """The other order: it speaks before it is abandoned."""
    pair = about_to_speak(kind)
    second = pair.session()
    pair.until(second, Point.ABANDON_ATTEMPT)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.UNSUPPORTED_FEATURE
    version = pair.single.checker.version
    pair.run(second)
    assert second.ending == pair.first.ending
    assert pair.single.checker.version == version


def test_Z1_the_record_that_got_lost_is_made_up_for() -> None:
    single = Single("update")
    upgraded(single)
    ending = single.run()
    result = paths.result(single.operation_id)
    single.world.store.delete([result])
    mended(single)
    version = single.checker.version
    assert single.run() == ending
    assert result in single.world.store.paths()
    assert single.checker.version == version


@each_kind
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
    assert ended(second).reason is Reason.COMMITTED
    pair.run(pair.first)
    assert ended(pair.first).elsewhere
    assert pair.single.run() == second.ending


@each_kind
def test_Z1_a_later_attempt_that_finds_nothing_speaks_for_the_operation(kind: str) -> None:
    """The first claims, finds nothing, and says nothing since it has been taken for dead."""
    pair = Pair(kind)
    emptied(pair.single)
    pair.until(pair.first, Point.RECORD_RESULT)
    second = pair.session()
    pair.until(second, Point.RECORD_RESULT)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.run(second)
    assert (ended(second).reason, ended(second).attempt) == (Reason.NOTHING_TO_DO, 2)
    version = pair.single.checker.version
    assert pair.single.run() == second.ending
    assert pair.single.checker.version == version


@each_change
def test_Z1_cleaning_leaves_the_claim_that_keeps_sleepers_out(change: Change) -> None:
    pair = Pair(SERIALIZABLE)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    change(pair.single)
    ending = told(pair, CHANGES[change]).ending
    if change is upgraded:
        mended(pair.single)
    world = pair.single.world
    world.clock.now += 1_000 * DAY_MS
    ports = world.ports()
    cleaned = clean(
        pair.single.table,
        CleaningRules(0),
        CleaningDependencies(ports.clock, ports.processes, ports.nonces),
    )
    assert cleaned.abandoned == ()
    assert paths.claim(pair.single.operation_id, 1) in world.store.paths()
    version = world.log.latest_version()
    pair.run(pair.first)
    assert world.log.latest_version() == version
    assert pair.single.run() == ending
