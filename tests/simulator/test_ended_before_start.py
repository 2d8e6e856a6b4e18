"""Operations that ended before their start, or otherwise in several processes: reported once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.foreign import live_rows
from simulator.refusals import about_to_record_ending, each_kind, emptied, ended, repaired, upgraded
from simulator.single import SERIALIZABLE, Single
from simulator.two_drivers import Pair
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call
from tandem.errors import CorruptLog, Reason
from tandem.operations import attempt_files
from tandem.operations.clean import clean
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.machine.events import Effect, Ending, Event, Point, StopRequest
from tandem.operations.session.session import Session
from tandem.planning.cleaning import DAY_MS, CleaningRules

# An operation that was reported as ended before its start does not start afterwards. A process
# that found work stands still before it claims its attempt. Others remove the work, or make the
# table one that is refused; another process of the same operation says so, and its user goes on.
# Found by histories 1067 and 9739 of the big simulation.


Change = Callable[[Single], None]
CHANGES: dict[Change, Reason] = {
    emptied: Reason.NOTHING_TO_DO,
    upgraded: Reason.UNSUPPORTED_FEATURE,
}
each_change = pytest.mark.parametrize("change", CHANGES)


def ended_by_another(pair: Pair, reason: Reason) -> Session:
    """Another process says how it ends."""
    second = pair.session()
    pair.run(second)
    assert ended(second).reason is reason
    return second


@each_change
@each_kind
def test_Z1_a_process_that_planned_before_an_ending_starts_nothing_after_it(
    kind: str, change: Change
) -> None:
    pair = Pair(kind)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    change(pair.single)
    ending = ended_by_another(pair, CHANGES[change]).ending
    for _ in range(4):
        pair.single.foreign("append")  # by a client that relies on the reported ending
    version = pair.single.checker.version
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ALREADY_RUNNING
    assert pair.single.run() == ending
    assert pair.single.checker.version == version


def test_Z1_a_process_that_reads_after_an_ending_reports_the_same() -> None:
    pair = Pair("update")
    late_reader = pair.session()
    pair.until(late_reader, Point.CHECK_EARLIER_OUTCOME)
    version = pair.single.checker.version
    upgraded(pair.single)
    ending = ended_by_another(pair, Reason.UNSUPPORTED_FEATURE).ending
    repaired(pair.single)
    pair.run(late_reader)
    assert late_reader.ending == ending
    assert pair.single.checker.version == version + 2


@each_kind
def test_a_repaired_table_is_changed_by_another_run(kind: str) -> None:
    single = Single(kind)
    upgraded(single)
    refused = single.end()
    assert refused.reason is Reason.UNSUPPORTED_FEATURE
    repaired(single)
    assert single.run() == refused
    again = single.end(again=True)
    assert again.reason is Reason.COMMITTED
    assert single.run() == again


DEAD_CLAIMS = {(Point.CLAIM_ATTEMPT, "after"), (Point.RECORD_RESULT, "before")}
"""After these deaths there is an attempt of unknown outcome."""


@each_change
@each_kind
def test_a_death_before_the_ending_is_recorded_costs_at_most_an_abandonment(
    kind: str, change: Change
) -> None:
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

        single.die(die)
        ending = single.end()
        assert ending.reason is CHANGES[change]
        assert single.run() == ending
        # What we do not know we do not write to, not even that an attempt is dead.
        died = change is emptied and (point, when) in DEAD_CLAIMS
        assert single.checker.version == version + (1 if died else 0)


@each_kind
def test_Z1_a_process_taken_for_dead_records_no_ending(kind: str) -> None:
    """It has claimed, and has something to say; another process takes it for dead, and works."""
    pair = about_to_record_ending(kind)
    second = pair.session()
    pair.until(second, Point.START_JOB)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.run(second)
    pair.check(second)


@each_kind
def test_Z1_an_abandonment_after_the_ending_was_recorded_starts_no_work(kind: str) -> None:
    """The other order: it speaks before it is abandoned."""
    pair = about_to_record_ending(kind)
    second = pair.session()
    pair.until(second, Point.END_ATTEMPT)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.UNSUPPORTED_FEATURE
    version = pair.single.checker.version
    pair.run(second)
    assert second.ending == pair.first.ending
    assert pair.single.checker.version == version


@each_kind
def test_Z1_a_stop_after_the_ending_was_recorded_reports_it(kind: str) -> None:
    """It would close the operation in the log, with another ending than the one reported."""
    pair = about_to_record_ending(kind)
    second = pair.session()
    pair.until(second, Point.CHECK_EARLIER_OUTCOME)
    second.request_stop(StopRequest.DEADLINE)
    pair.until(second, Point.ABANDON_ATTEMPT)
    pair.run(pair.first)
    version = pair.single.checker.version
    pair.run(second)
    assert second.ending == pair.first.ending
    assert pair.single.checker.version == version


def test_Z1_a_lost_record_of_an_ending_is_written_again() -> None:
    single = Single("update")
    upgraded(single)
    ending = single.run()
    result = attempt_files.result(single.operation_id)
    single.world.store.delete([result])
    repaired(single)
    version = single.checker.version
    assert single.run() == ending
    assert result in single.world.store.paths()
    assert single.checker.version == version


@each_kind
def test_Z1_a_process_that_found_nothing_to_do_records_nothing_after_a_commit(kind: str) -> None:
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
def test_Z1_a_later_attempt_that_finds_nothing_to_do_ends_the_operation(kind: str) -> None:
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
def test_Z1_cleaning_keeps_the_claim_that_stops_suspended_processes(change: Change) -> None:
    pair = Pair(SERIALIZABLE)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    change(pair.single)
    ending = ended_by_another(pair, CHANGES[change]).ending
    if change is upgraded:
        repaired(pair.single)
    world = pair.single.world
    world.clock.now += 1_000 * DAY_MS
    ports = world.ports()
    cleaned = clean(
        pair.single.table,
        CleaningRules(0),
        CleaningDependencies(ports.clock, ports.processes, ports.nonces),
    )
    assert cleaned.abandoned == ()
    assert attempt_files.claim(pair.single.operation_id, 1) in world.store.paths()
    version = world.log.latest_version()
    pair.run(pair.first)
    assert world.log.latest_version() == version
    assert pair.single.run() == ending


# All processes of an operation report the same ending, whatever happens to those that end it. An
# ending that could not be recorded says so, and is not final.


# A deadline, before anything was claimed


@each_kind
@pytest.mark.parametrize("point", [Point.CHECK_EARLIER_OUTCOME, Point.PLAN, Point.CLAIM_ATTEMPT])
def test_Z1_a_process_that_planned_before_a_recorded_deadline_starts_nothing(
    kind: str, point: Point
) -> None:
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


def test_a_deadline_does_not_change_the_outcome_of_a_plan() -> None:
    pair = Pair("update")
    emptied(pair.single)
    pair.until(pair.first, Point.CLAIM_ATTEMPT)
    pair.first.request_stop(StopRequest.DEADLINE)
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.NOTHING_TO_DO
    assert pair.single.run() == pair.first.ending


# Two that end it, each in its own way


@pytest.mark.parametrize("closer_first", [True, False])
def test_Z1_closing_and_nothing_to_do_report_the_same_ending(closer_first: bool) -> None:
    pair = Pair("delete")
    pair.until(pair.first, Point.ACQUIRE_LOCKS)
    closer = pair.session()
    pair.until(closer, Point.CHECK_EARLIER_OUTCOME)
    closer.request_stop(StopRequest.DEADLINE)
    pair.until(closer, Point.ABANDON_ATTEMPT)
    emptied(pair.single)
    without_work = pair.session()
    pair.until(without_work, Point.RECORD_RESULT)
    for session in (closer, without_work) if closer_first else (without_work, closer):
        pair.run(session)
    final = pair.single.run()
    assert ended(closer) == ended(without_work) == final


@pytest.mark.parametrize("file", ["/ended.json", "/ending.json"])
def test_Z1_a_process_overtaken_between_two_puts_reports_the_recorded_ending(file: str) -> None:
    """It has put this, and not yet its commit: another one takes it for dead."""
    single = Single("compaction")
    first = single.at(Point.READ_RESULT)
    emptied(single)
    endings: list[Ending] = []

    def overtake(call: Call) -> None:
        if call.when == "after" and call.path.endswith(file):
            single.world.store.fault = None
            single.world.living.clear()
            endings.append(single.drive(single.session()))

    single.world.store.fault = overtake
    ending = single.drive(first)
    assert [ending] == endings
    single.world.living.clear()
    assert single.run() == ending


def test_Z1_a_process_that_is_being_abandoned_records_no_ending() -> None:
    """The other one has put `ended.json`, and not yet its commit."""
    pair = about_to_record_ending("update")
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
def test_Z14_a_process_that_resumes_after_its_record_was_cleaned_records_nothing(
    finished: bool,
) -> None:
    pair = about_to_record_ending("delete")
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
    assert attempt_files.ended(pair.single.operation_id, 1) not in world.store.paths()
    pair.run(pair.first)
    assert ended(pair.first).reason is Reason.ABANDONED
    pair.run(second)
    pair.check(second)


# Deaths, and another run that is asked for


def test_another_run_starts_although_the_record_of_the_first_is_missing() -> None:
    single = Single("delete")
    upgraded(single)

    def die(call: Call) -> None:
        if call.when == "before" and call.path.endswith("/result.json"):
            raise ProcessDied

    single.world.store.fault = die
    single.die()
    single.world.store.fault = None
    repaired(single)
    again = single.end(again=True)
    assert again.reason is Reason.COMMITTED


def test_Z20_an_unreadable_commit_is_not_abandoned_as_a_failure() -> None:
    single = Single("delete")

    def dies(effect: Effect, perform: Callable[[], Event]) -> Event:
        if effect.point is Point.FINISH_JOB:
            raise ProcessDied
        return perform()

    def damaged(effect: Effect, perform: Callable[[], Event]) -> Event:
        if effect.point is Point.FIND_COMMIT:
            raise CorruptLog("a commit in between is damaged")
        return perform()

    single.die(dies)
    version = single.checker.version
    ending = single.end(damaged)
    assert ending.reason is Reason.STORAGE_ERROR
    assert "attempt 1 has committed" in ending.message
    assert "a commit in between is damaged" in ending.message
    assert single.checker.version == version
    single.succeed()


# A log in which no attempt can be abandoned

NOT_CLOSED = "the attempt could not be closed"


@each_kind
def test_an_attempt_that_cannot_be_abandoned_is_continued_later(kind: str) -> None:
    single = Single(kind)
    first = single.at(Point.RECONCILE)
    upgraded(single)
    version = single.checker.version
    ending = single.drive(first)
    assert ending.reason is Reason.UNSUPPORTED_FEATURE
    assert NOT_CLOSED in ending.message
    assert single.checker.version == version
    assert attempt_files.ended(single.operation_id, 1) not in single.world.store.paths()
    repaired(single)
    single.world.living.clear()
    jobs = len(single.world.jobs.drivers)
    final = single.end(jobs_live_on=True)
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
def test_a_stop_request_is_honoured_although_the_attempt_cannot_be_abandoned(
    what: StopRequest, reason: Reason
) -> None:
    single = Single("update")
    first = single.at(Point.POLL_JOB)
    upgraded(single)
    first.request_stop(what)
    ending = single.drive(first)
    assert ending.reason is reason
    assert NOT_CLOSED in ending.message
    repaired(single)
    single.world.living.clear()
    single.succeed()
