"""Cleaning a table in memory: what engines left, crashes of the cleaning itself, zombies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from copy import copy

import pytest

from simulator import rows
from simulator.foreign import Intent
from simulator.single import MAKERS, Single
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.memory_store import Call, MemoryStore
from tandem.delta import dv
from tandem.delta.actions import Action, AddFile
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import remove_of
from tandem.errors import OutcomeUnknown
from tandem.operations import attempt_files
from tandem.operations.clean import MARKER, CleaningOptions, CleaningResult, clean
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.execute import ExecutionOptions, open_session
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.model import Table
from tandem.planning.cleaning import DAY_MS, CleaningRules, RemovalReason
from tandem.reconcile.classify import author_of

KEEP = 7 * DAY_MS
RULES = CleaningRules(KEEP)


def means(single: Single) -> CleaningDependencies:
    ports = single.world.ports()
    return CleaningDependencies(ports.clock, ports.processes, ports.nonces, ports.local_claims)


def swept(
    single: Single, *, days: int = 8, rules: CleaningRules = RULES, **options: object
) -> CleaningResult:
    """A cleaning, so many days later."""
    single.world.clock.now += days * DAY_MS
    return clean(single.table, rules, means(single), CleaningOptions(**options))  # type: ignore[arg-type]


def whys(cleaned: CleaningResult) -> Counter[RemovalReason]:
    return Counter(each.why for each in cleaned.garbage)


def shown(store: MemoryStore, version: int | None = None) -> Counter[rows.Row]:
    """All rows of a version. Raises if a file that it names is gone."""
    found: Counter[rows.Row] = Counter()
    for add in DeltaLog(store, parallel_reads=1).snapshot(version).adds():
        vector = add.deletion_vector
        dead = dv.load(store, vector) if vector is not None else ()
        found.update(
            r
            for i, r in enumerate(rows.read(store, add.path, add.partition_values))
            if i not in dead
        )
    return found


def died_at(kind: str, point: Point, fault: Fault = Fault.DIE_BEFORE) -> Single:
    single = Single(kind)
    strike = StrikeOnce(point, fault)
    single.die(strike)
    assert strike.struck
    return single


def beside(single: Single, kind: str) -> Single:
    """Another operation on the same table."""
    other = copy(single)
    other.resource = MAKERS[kind](other)
    return other


def ours(single: Single) -> list[str]:
    return [p for p in single.world.store.paths() if single.operation_id in p]


def foreign(single: Single, actions: list[Action], operation: str) -> None:
    """A commit of others that changes no row."""
    version = single.world.commit(actions, operation, "Apache-Spark/4.2.0 Delta-Lake/4.4.0")
    single.checker.intents[version] = Intent()
    single.checker.catch_up()


def rewritten(single: Single, number: int = 0) -> None:
    """Another writer compacts everything into one file."""
    world, now = single.world, single.world.clock.now_ms()
    live = list(world.log.snapshot().adds())
    found = sorted(shown(world.store).elements())
    path = f"compacted-{number}.parquet"
    add = AddFile(
        path, {}, rows.write(world.store, path, found), now, False, rows.stats(len(found))
    )
    removes = [remove_of(each, deletion_ms=now, data_change=False) for each in live]
    foreign(single, [*removes, add], "OPTIMIZE")


# What goes, and when ---------------------------------------------------------------------------


def test_files_replaced_by_a_compaction_are_removed_after_the_retention() -> None:
    single = Single("compaction")
    single.end()
    replaced = [p for p in single.world.store.paths() if p.startswith("part-")]
    before = shown(single.world.store)
    young = swept(single, days=6)
    assert young.garbage == ()
    assert young.next_ms is not None
    assert 0 < young.next_ms - single.world.clock.now < 2 * DAY_MS
    old = swept(single, days=2)
    assert whys(old)[RemovalReason.REMOVED] == len(replaced) == 6
    assert whys(old)[RemovalReason.ROW_MAP] == 1
    assert whys(old)[RemovalReason.STAGING] > 0
    assert not [p for p in single.world.store.paths() if p.startswith("part-")]
    assert shown(single.world.store) == before
    # The same resource again reports the first result, and does nothing.
    version = single.checker.version
    again = single.end()
    assert again.result is not None
    assert again.result.version == version == single.checker.version
    assert swept(single, days=0).garbage == ()


def test_records_of_a_success_are_removed_after_a_year_and_it_is_not_done_again() -> None:
    single = Single("ingest")
    single.end()
    assert whys(swept(single, days=400))[RemovalReason.RECORD] == 2
    assert [p for p in ours(single) if p.startswith("_tandem")] == []
    version = single.checker.version
    again = single.end()
    assert again.result is not None
    assert again.result.version == version
    assert single.checker.version == version
    # ... and who asks for another run gets one.
    assert single.session(again=True).identity.run == 2


def test_a_second_run_is_known_from_the_log_alone() -> None:
    single = Single("ingest")
    single.end()
    session = single.session(again=True)
    single.checker.batches[session.identity.operation_id] = single.checker.batches[
        single.operation_id
    ] = single.world.jobs.batches["file:///batches/0.csv"]
    while session.advance():
        for driver in single.world.jobs.running():
            single.world.jobs.advance(driver)
    swept(single, days=400)
    assert single.session().identity.run == 2
    assert single.session(again=True).identity.run == 3


def test_the_result_of_a_failure_is_kept_for_ever() -> None:
    single = Single("update")
    single.limit(active_deadline_seconds=1)

    def slow(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.START_JOB:
            single.world.clock.now += 10_000
        return call()

    session = single.session(slow)
    ending = single.drive(session)
    assert ending.reason == "DeadlineExceeded"
    swept(single, days=5000)
    assert single.drive(single.session()) == ending


def test_without_a_retention_only_files_that_no_commit_named_are_removed() -> None:
    single = Single("compaction")
    single.end()
    cleaned = swept(single, rules=CleaningRules(None))
    assert whys(cleaned).keys() == {RemovalReason.STAGING, RemovalReason.ROW_MAP}
    for version in range(single.checker.version + 1):
        shown(single.world.store, version)


def test_uncommitted_files_of_other_writers_are_left_alone() -> None:
    single = Single("compaction")
    single.world.store.put("part-of-another-writer.parquet", b"")
    single.world.store.put("0123456789abcdef-1/part.parquet", b"")
    swept(single, days=1000)
    assert "part-of-another-writer.parquet" in single.world.store.paths()
    assert "0123456789abcdef-1/part.parquet" in single.world.store.paths()


def test_files_that_a_restore_brings_back_stay() -> None:
    single = Single("compaction")
    before = list(single.world.log.snapshot().adds())
    rewritten(single)
    swept(single, days=6)
    now = single.world.clock.now_ms()
    removes = [
        remove_of(add, deletion_ms=now, data_change=True)
        for add in single.world.log.snapshot().adds()
    ]
    foreign(single, [*removes, *before], "RESTORE")
    cleaned = swept(single, days=30)
    assert [g.file.path for g in cleaned.garbage] == ["compacted-0.parquet"]
    for add in before:
        single.world.store.head(add.path)


def test_the_earlier_of_two_clocks_counts() -> None:
    """Ours is a month ahead of the store's."""
    single = Single("compaction")
    single.end()
    ahead = means(single)

    class Ahead:
        def now_ms(self) -> int:
            return single.world.clock.now + 30 * DAY_MS

        def sleep(self, ms: int, wake: threading.Event) -> None:
            raise AssertionError(f"it waits {ms} ms for {wake}")

    paths = set(single.world.store.paths())
    cleaned = clean(
        single.table,
        RULES,
        CleaningDependencies(Ahead(), ahead.processes, ahead.nonces, ahead.local_claims),
    )
    assert cleaned.garbage == ()
    assert set(single.world.store.paths()) - {MARKER} == paths


def test_a_dry_run_changes_nothing_and_reports_the_same() -> None:
    single = died_at("compaction", Point.PUT_COMMIT)
    single.world.clock.now += 8 * DAY_MS
    paths = single.world.store.paths()
    planned = swept(single, days=0, dry_run=True)
    assert single.world.store.paths() == paths
    done = swept(single, days=0)
    assert [g.file.path for g in planned.garbage] == [g.file.path for g in done.garbage]
    assert planned.abandoned == done.abandoned == ((single.operation_id, 1),)


def test_a_limited_round_leaves_the_rest_to_the_next() -> None:
    single = Single("compaction")
    single.end()
    first = swept(single, limit=3, whole_log=False)
    assert len(first.garbage) == 3
    assert first.more
    second = swept(single, days=0, whole_log=False)
    assert not second.more
    assert whys(first)[RemovalReason.REMOVED] + whys(second)[RemovalReason.REMOVED] == 6
    rewritten(single)
    third = swept(single, whole_log=False)
    assert whys(third)[RemovalReason.REMOVED] > 0
    stopped = swept(single, days=400, may_continue=lambda: False)
    assert stopped.garbage == ()
    assert stopped.more


# Unfinished operations -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compaction", "update"])
def test_Z5_files_that_an_unfinished_plan_reads_stay(kind: str) -> None:
    """However old it is: the process lives. Another writer compacts its inputs away meanwhile."""
    single = Single(kind)
    session = single.at(Point.START_JOB)
    rewritten(single)
    cleaned = swept(single, days=100)
    assert whys(cleaned)[RemovalReason.REMOVED] == 0
    ending = single.drive(session)
    # A compaction finds that nothing is left to replace; a statement is evaluated again.
    assert ending.reason in ("Superseded", "Committed"), ending
    later = swept(single)
    assert whys(later)[RemovalReason.REMOVED] == 6
    shown(single.world.store)


def test_Z5_work_of_another_session_of_this_process_is_left_alone() -> None:
    """Its claim names our own process, so only its local claims show that it is in use."""
    single = Single("compaction")
    ports = single.world.ports()
    own = CleaningDependencies(ports.clock, ports.processes, ports.nonces, ports.local_claims)
    session = open_session(
        single.resource, single.table, ports, ExecutionOptions(poll_ms=1, lock_wait_s=0)
    )
    single.until(session, Point.START_JOB)
    single.world.clock.now += 100 * DAY_MS
    assert clean(single.table, RULES, own).abandoned == ()
    session.close()
    assert clean(single.table, RULES, own).abandoned == ((single.operation_id, 1),)


def test_Z5_cleaning_works_after_a_foreign_vacuum() -> None:
    single = Single("compaction")
    single.end()
    named = {add.path for add in single.world.log.snapshot().adds()}
    store = single.world.store
    store.delete([p for p in store.paths() if not p.startswith("_") and p not in named])
    single.world.clock.now += 8 * DAY_MS
    assert whys(swept(single, days=0))[RemovalReason.REMOVED] == 0
    shown(single.world.store)


def test_C6b_a_row_map_stays_as_long_as_an_older_plan_may_need_it() -> None:
    single = Single("update")
    session = single.at(Point.RECONCILE)
    compaction = beside(single, "compaction")
    assert compaction.drive(compaction.session()).reason == "Committed"
    swept(single, days=100)
    assert [p for p in single.world.store.paths() if p.startswith("_tandem/rowmaps/")]
    ending = single.drive(session)
    assert ending.result is not None
    assert ending.result.reconciled is not None
    assert ending.result.reconciled.rows_evaluated == 0  # the map gave the positions of its rows
    swept(single)
    assert not [p for p in single.world.store.paths() if p.startswith("_tandem/rowmaps/")]


def test_a_damaged_plan_of_an_unfinished_operation_stops_the_cleaning() -> None:
    single = Single("compaction")
    _session = single.at(Point.START_JOB)
    path = attempt_files.plan(single.operation_id, 1)
    single.world.store.put(path, single.world.store.get(path)[:10])
    rewritten(single)
    with pytest.raises(Exception, match="truncated"):
        swept(single, days=100)


# Dead attempts, and those who only seemed dead ------------------------------------------------


@pytest.mark.parametrize("kind", ["compaction", "update", "ingest"])
def test_Z14_an_attempt_of_a_dead_process_is_abandoned_in_the_log_and_then_removed(
    kind: str,
) -> None:
    single = died_at(kind, Point.PUT_COMMIT)
    version = single.checker.version
    left = single.files_left()
    assert left
    assert swept(single, days=6).garbage == ()  # its next run may adopt it
    assert single.files_left() == left
    cleaned = swept(single, days=2)
    assert cleaned.abandoned == ((single.operation_id, 1),)
    assert single.files_left() == []
    single.checker.catch_up()
    assert single.checker.abandoned == {single.operation_id: 1}
    assert single.checker.version == version + 1
    # The log says whose attempt that was, as people know it.
    [abandonment] = single.table.log.commits(version + 1, version + 1)
    assert author_of(abandonment).by == single.resource.id
    # It is planned again, and succeeds.
    ending = single.end()
    assert (ending.reason, ending.attempt) == ("Committed", 2)
    assert single.files_left() == []


@pytest.mark.parametrize("kind", ["compaction", "update", "ingest"])
@pytest.mark.parametrize("arrived", [False, True])
def test_Z20_files_of_a_put_of_unknown_outcome_stay(kind: str, arrived: bool) -> None:
    """Until the log says what became of it: by its success, or by its abandonment."""
    single = Single(kind)

    def silent(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT:
            if arrived:
                call()
            raise OutcomeUnknown("timed out")
        if effect.point is Point.LOOK_UP_COMMIT:
            raise OutcomeUnknown("timed out")
        return call()

    ending = single.drive(single.session(silent))
    assert ending.reason == "StorageError"
    written = [p for p in ours(single) if p.startswith(single.operation_id)]
    young = swept(single, days=6)
    assert not [g for g in young.garbage if g.file.path in written]
    single.world.living.clear()
    cleaned = swept(single, days=2)
    single.checker.catch_up()
    if arrived:
        assert cleaned.abandoned == ()
        assert {p for p in written if p in single.checker.named} <= set(single.world.store.paths())
    else:
        assert cleaned.abandoned == ((single.operation_id, 1),)
        assert single.files_left() == []
    shown(single.world.store)
    single.succeed()
    assert single.commits == 1


# Killed, and done again ------------------------------------------------------------------------


def _littered() -> Single:
    """Everything that there is to clean: removed files, a dead attempt, staging, a row map."""
    single = Single("compaction")
    single.end()
    single.foreign("delete_with_vectors")
    single.foreign("update_by_rewrite")
    strike = StrikeOnce(Point.PUT_COMMIT, Fault.DIE_BEFORE)
    beside(single, "update").die(strike)
    single.world.clock.now += 8 * DAY_MS
    return single


def test_a_cleaning_killed_anywhere_leaves_an_intact_table_and_can_be_repeated() -> None:
    single = _littered()
    before = shown(single.world.store)
    whole = single.world.store.copy()
    calls: list[Call] = []

    def sweep(store: MemoryStore, fault: Callable[[Call], None] | None) -> None:
        store.fault = fault
        table = Table(store, DeltaLog(store, parallel_reads=1), "LakeTable/simulated")
        try:
            clean(table, RULES, means(single))
        finally:
            store.fault = None

    sweep(whole, calls.append)
    changing = [c for c in calls if c.name in ("put", "put_if_absent", "delete")]
    assert len(changing) > 30
    left = {p for p in whole.paths() if not p.startswith("_delta_log")}
    for struck in changing:
        store = single.world.store.copy()

        def die(call: Call, struck: Call = struck) -> None:
            if (call.number, call.when) == (struck.number, struck.when):
                raise ProcessDied(str(call))

        with pytest.raises(ProcessDied):
            sweep(store, die)
        assert shown(store) == before
        sweep(store, None)
        assert shown(store) == before
        again = {p for p in store.paths() if not p.startswith("_delta_log")}
        assert again - left <= {MARKER, *(p for p in again if p.endswith("/ended.json"))}
        assert left <= again | {p for p in left if p.endswith("/ended.json")}


@pytest.mark.parametrize("what", ["append", "delete_with_vectors", "update_by_rewrite"])
def test_commits_during_cleaning_lose_nothing(what: str) -> None:
    """Another writer commits before a call of the store, at each call in turn."""
    counted = _littered()
    calls: list[Call] = []
    counted.world.store.fault = calls.append
    clean(counted.table, RULES, means(counted))
    places = [i for i, c in enumerate(calls) if c.when == "before" and c.name != "delete"]
    single = _littered()
    for place in places[::4]:
        left = [place]

        def commit(call: Call, left: list[int] = left) -> None:
            left[0] -= call.when == "before"
            if left[0] < 0:
                single.world.store.fault = None
                single.foreign(what)

        single.world.store.fault = commit
        clean(single.table, RULES, means(single))
        single.world.store.fault = None
        single.checker.catch_up()
        shown(single.world.store)
        single.world.clock.now += 8 * DAY_MS


# Facts for the index -----------------------------------------------------------------------------


def facts_of(single: Single, attempt: int = 1) -> str:
    return f"{attempt_files.facts(single.operation_id, attempt)}/x.facts"


def test_facts_live_as_long_as_the_data_files_of_their_attempt() -> None:
    single = Single("compaction")
    store = single.world.store
    single.end()
    store.put(facts_of(single), b"facts")
    swept(single)
    assert facts_of(single) in store.paths()
    rewritten(single)  # its outputs are removed, and held by the retention
    swept(single, days=6)
    assert facts_of(single) in store.paths()
    assert whys(swept(single, days=2))[RemovalReason.FACTS] == 1
    assert facts_of(single) not in store.paths()


def test_facts_of_an_abandoned_attempt_go_with_its_files() -> None:
    single = died_at("compaction", Point.PUT_COMMIT)
    single.world.store.put(facts_of(single), b"facts")
    swept(single, days=40)
    assert [path for path in ours(single) if "facts" in path] == []


def test_facts_of_another_table_at_the_place_do_not_make_its_operation_ours() -> None:
    single = Single("compaction")
    store = single.world.store
    stranger = "fedcba9876543210"
    store.put(attempt_files.facts(stranger, 1) + "/x.facts", b"facts")
    store.put(attempt_files.data(stranger, 1) + "/part.parquet", b"data")
    cleaned = swept(single, days=40)
    assert stranger not in dict(cleaned.abandoned)
    assert attempt_files.data(stranger, 1) + "/part.parquet" in store.paths()
    store.delete([attempt_files.data(stranger, 1) + "/part.parquet"])
    swept(single, days=1)
    assert [path for path in store.paths() if stranger in path] == []
