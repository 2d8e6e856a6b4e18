"""Whatever happens to those who end an operation: who is told how, is told the same as all others.

Found by attack. An ending that could not be recorded says so, and is not for good.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.refusals import about_to_speak, each_kind, emptied, ended, mended, upgraded
from simulator.single import Single
from simulator.two_drivers import Pair
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call
from tandem.errors import CorruptLog, Reason
from tandem.operations.attempt import paths
from tandem.operations.clean.clean import clean
from tandem.operations.clean.facts import CleaningDependencies
from tandem.operations.machine.effects import Effect, Point
from tandem.operations.machine.events import Ending, Event, StopRequest
from tandem.planning.cleaning import DAY_MS, CleaningRules

# A deadline, before anything was claimed


@each_kind
@pytest.mark.parametrize("point", [Point.CHECK_EARLIER_OUTCOME, Point.PLAN, Point.CLAIM_ATTEMPT])
def test_Z1_who_planned_before_a_deadline_was_told_begins_nothing(kind: str, point: Point) -> None:
    pair = Pair(kind)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    second = pair.session()
    pair.until(second, point)
    second.request_stop(StopRequest.DEADLINE)
    pair.run(second)
    assert ended(second).reason is Reason.DEADLINE_EXCEEDED
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ALREADY_RUNNING
    assert pair.single.run() == second.ending
    assert pair.single.commits == 0


def test_a_deadline_changes_nothing_in_what_a_plan_came_to() -> None:
    pair = Pair("update")
    emptied(pair.single)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    pair.first.request_stop(StopRequest.DEADLINE)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.NOTHING_TO_DO
    assert pair.single.run() == pair.first.ending


# Two that end it, each in its own way


@pytest.mark.parametrize("closer_first", [True, False])
def test_Z1_who_closes_and_who_has_nothing_to_do_say_the_same(closer_first: bool) -> None:
    pair = Pair("delete")
    pair.until(pair.first, Point.ACQUIRE_LOCKS)
    closer = pair.session()
    pair.until(closer, Point.CHECK_EARLIER_OUTCOME)
    closer.request_stop(StopRequest.DEADLINE)
    pair.until(closer, Point.ABANDON_ATTEMPT)
    emptied(pair.single)
    empty_handed = pair.session()
    pair.until(empty_handed, Point.RECORD_RESULT)
    for session in (closer, empty_handed) if closer_first else (empty_handed, closer):
        pair.run(session)
    final = pair.single.run()
    assert ended(closer) == final
    if closer_first:
        assert ended(empty_handed).reason is Reason.ABANDONED
    else:
        assert ended(empty_handed) == final


@pytest.mark.parametrize("file", ["/ended.json", "/ending.json"])
def test_Z1_who_is_overtaken_between_two_puts_says_what_was_told(file: str) -> None:
    """It has put this, and not yet its commit: another one takes it for dead."""
    single = Single("compaction")
    first = single.session()
    single.until(first, Point.READ_RESULT)
    emptied(single)
    told: list[Ending] = []

    def overtake(call: Call) -> None:
        if call.when == "after" and call.path.endswith(file):
            single.world.store.fault = None
            single.world.living.clear()
            told.append(single.drive(single.session()))

    single.world.store.fault = overtake
    ending = single.drive(first)
    assert [ending] == told
    single.world.living.clear()
    assert single.run() == ending


def test_Z1_who_is_just_being_taken_for_dead_says_nothing() -> None:
    """The other one has put `ended.json`, and not yet its commit."""
    pair = about_to_speak("update")
    store = pair.single.world.store

    def speak(call: Call) -> None:
        if call.when == "after" and call.path.endswith("attempts/1/ended.json"):
            store.fault = None
            pair.run(pair.first)

    second = pair.session()
    store.fault = speak
    pair.run(second)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.check(second)


# Cleaning in between


@pytest.mark.parametrize("finished", [True, False])
def test_Z14_who_comes_back_after_its_record_was_cleaned_says_nothing(finished: bool) -> None:
    pair = about_to_speak("delete")
    world = pair.single.world
    second = pair.session()
    if finished:
        pair.run(second)
    else:
        world.living.add(world.next_pid - 1)
        pair.until(second, Point.PUT_COMMIT)
    world.clock.now += 400 * DAY_MS
    ports = world.ports()
    clean(
        pair.single.table,
        CleaningRules(0),
        CleaningDependencies(ports.clock, ports.processes, ports.nonces),
    )
    pair.single.checker.catch_up()
    assert paths.ended(pair.single.operation_id, 1) not in world.store.paths()
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.run(second)
    pair.check(second)


# Deaths, and another run that is asked for


def test_another_run_is_begun_although_the_record_of_the_first_is_missing() -> None:
    single = Single("delete")
    upgraded(single)

    def die(call: Call) -> None:
        if call.when == "before" and call.path.endswith("/result.json"):
            raise ProcessDied

    single.world.store.fault = die
    assert single.run() is None
    single.world.store.fault = None
    mended(single)
    again = single.run(again=True)
    assert again is not None
    assert again.reason is Reason.COMMITTED


def test_Z20_a_commit_that_cannot_be_read_is_no_failure_to_be_abandoned() -> None:
    single = Single("delete")

    def dies(effect: Effect, perform: Callable[[], Event]) -> Event:
        if effect.point is Point.FINISH_JOB:
            raise ProcessDied
        return perform()

    def damaged(effect: Effect, perform: Callable[[], Event]) -> Event:
        if effect.point is Point.FIND_COMMIT:
            raise CorruptLog("a commit in between is damaged")
        return perform()

    assert single.run(dies) is None
    version = single.checker.version
    ending = single.run(damaged)
    assert ending is not None
    assert ending.reason is Reason.STORAGE_ERROR
    assert "attempt 1 has committed" in ending.message
    assert "a commit in between is damaged" in ending.message
    assert single.checker.version == version
    final = single.run()
    assert final is not None
    assert final.reason is Reason.COMMITTED


# A log in which nobody may be abandoned

UNTOLD = "the attempt could not be closed"


@each_kind
def test_what_cannot_be_abandoned_stays_and_is_gone_on_with(kind: str) -> None:
    single = Single(kind)
    first = single.session()
    single.until(first, Point.RECONCILE)
    upgraded(single)
    version = single.checker.version
    ending = single.drive(first)
    assert ending.reason is Reason.UNSUPPORTED_FEATURE
    assert UNTOLD in ending.message
    assert single.checker.version == version
    assert paths.ended(single.operation_id, 1) not in single.world.store.paths()
    mended(single)
    single.world.living.clear()
    jobs = len(single.world.jobs.drivers)
    final = single.run(jobs_live_on=True)
    assert final is not None
    assert (final.reason, final.attempt) == (Reason.COMMITTED, 1)
    assert len(single.world.jobs.drivers) == jobs


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (StopRequest.SUSPEND, Reason.SUSPENDED),
        (StopRequest.CANCEL, Reason.CANCELLED),
        (StopRequest.INTERRUPT, Reason.INTERRUPTED),
        (StopRequest.DEADLINE, Reason.UNSUPPORTED_FEATURE),
    ],
)
def test_what_is_asked_for_is_done_as_far_as_it_can_be(what: StopRequest, reason: Reason) -> None:
    single = Single("update")
    first = single.session()
    single.until(first, Point.POLL_JOB)
    upgraded(single)
    first.request_stop(what)
    ending = single.drive(first)
    assert ending.reason is reason
    assert UNTOLD in ending.message
    mended(single)
    single.world.living.clear()
    final = single.run()
    assert final is not None
    assert final.reason is Reason.COMMITTED
