"""Operations that are killed, doubled, stuck or deceived, and what another run makes of it:
C4 to C6b, Z5, Z6, Z14 and Z20 on real tables.

`Held.kill` is a SIGKILL for the engine: what it held in memory is gone, what it wrote is not.
Its job may live on, as a driver in a cluster does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from support.jobs.runners import (
    dies_after_its_work,
    follows_a_duplicate,
    runs_twice,
)
from support.lake.lake import Lake, Lakes, Process, batch, loads, reason, reconciled, result
from support.lake.rewritten import replace_all, rewrite
from support.lake.rows import Rows, join, k_is, plus
from support.some import some
from tandem.errors import AccessDenied, OutcomeUnknown
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.spec.common import OPERATIONS
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

FOUR = loads(range(4))
NEW = batch(9)
UPDATED = plus(FOUR, k_is(1), 15)
MADE: dict[str, tuple[Callable[[Lake], Operation], Rows]] = {
    "TableCompaction": (lambda lake: lake.compaction(), FOUR),
    "TableUpdate": (lambda lake: lake.update("k = 1", v="v + 15"), UPDATED),
    "TableIngest": (lambda lake: lake.ingest(NEW), join(FOUR, NEW)),
    "SegmentRewrite": (lambda lake: rewrite(lake, "0", "2", sortBy=["v"]), FOUR),
    "TableReplace": (lambda lake: replace_all(lake, NEW), NEW),
}
"""An operation of each kind, and the rows after it."""
KINDS = [kind for kind in OPERATIONS if not OPERATIONS[kind].on_log]
Kill = tuple[Point, bool]
"""Where it dies: a point, and whether the point's effect has been done."""

WITH_RESULT: list[Kill] = [
    (Point.READ_RESULT, False),
    (Point.RECONCILE, True),
    (Point.WRITE_SIDECARS, False),
    (Point.WRITE_SIDECARS, True),
    (Point.PUT_COMMIT, False),
]
COMMITTED: list[Kill] = [
    (Point.PUT_COMMIT, True),
    (Point.FINISH_JOB, True),
    (Point.CLEAN_UNUSED, False),
    (Point.CLEAN_UNUSED, True),
    (Point.RECORD_RESULT, True),
]
EARLY: list[Kill] = [
    (Point.PLAN, True),
    (Point.CLAIM_ATTEMPT, True),
    (Point.PERSIST_PLAN, False),
    (Point.PERSIST_PLAN, True),
    (Point.START_JOB, False),
]


def _patient(lakes: Lakes) -> Lake:
    """An attempt that died counts as a failure; here another one may be made."""
    lake = lakes.loaded(4)
    lake.backoff_limit = 3
    return lake


def _ids(kill: Kill) -> str:
    return f"{'after' if kill[1] else 'before'}-{kill[0]}"


def _kill(lake: Lake, operation: Operation, kill: Kill) -> None:
    lake.hold(operation, kill[0], after=kill[1]).kill()
    # Locks of a process die with it (in etcd: with its lease).
    lake.locks = type(lake.locks)()


# C4: the update fails after its insert delta is written --------------------------------------


def test_C4_update_fails_after_writing_its_new_segment(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.jobs.next_job = dies_after_its_work
    failed = lake.run(lake.update("k = 1", v="v + 15"))
    assert (failed.phase, reason(failed)) == (Phase.FAILED, "JobFailed")
    assert lake.names == ["0", "1", "2", "3"]
    assert lake.deleted() == {}
    lake.assert_states_so_far(FOUR)
    lake.assert_clean()
    # The number that it would have got was never given out.
    assert result(lake.do(lake.update("k = 1", v="v + 15"))).segments == ("4",)
    lake.assert_states(FOUR, UPDATED)


@pytest.mark.parametrize("kill", some([*EARLY, *WITH_RESULT]), ids=_ids)
def test_C4_update_is_killed_before_its_commit_and_run_again(lakes: Lakes, kill: Kill) -> None:
    lake = _patient(lakes)
    update = lake.update("k = 1", v="v + 15")
    _kill(lake, update, kill)
    lake.assert_states_so_far(FOUR)
    done = lake.do(update)
    assert result(done).segments == ("4",)
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()


@pytest.mark.parametrize("kill", some(COMMITTED, 2), ids=_ids)
def test_C4_update_is_killed_after_its_commit_and_run_again(lakes: Lakes, kill: Kill) -> None:
    """+15 happens once."""
    lake = _patient(lakes)
    update = lake.update("k = 1", v="v + 15")
    _kill(lake, update, kill)
    committed = lake.version
    lake.assert_states_so_far(FOUR, UPDATED)
    done = lake.do(update)
    assert result(done).version == committed == lake.version
    assert result(done).segments == ("4",)
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()


# C5: the compaction is killed when its files are there -----------------------------------------


@pytest.mark.parametrize("kill", some(WITH_RESULT, 2), ids=_ids)
def test_C5_compaction_killed_before_its_commit_is_adopted(lakes: Lakes, kill: Kill) -> None:
    lake = _patient(lakes)
    compaction = lake.compaction()
    _kill(lake, compaction, kill)
    lake.assert_states_so_far(FOUR)
    lake.do(lake.update("k = 1", v="v + 15"))  # a dead process blocks no other
    jobs = len(lake.jobs.started)
    done = lake.do(compaction)
    assert len(lake.jobs.started) == jobs  # the work is not done twice
    assert reconciled(done).deletes_remapped == 8
    assert lake.names == ["0.1", "4"]
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()


@pytest.mark.parametrize("kill", some(COMMITTED, 2), ids=_ids)
def test_C5_compaction_killed_after_its_commit(lakes: Lakes, kill: Kill) -> None:
    """The put was sent, its answer never came."""
    lake = _patient(lakes)
    compaction = lake.compaction()
    _kill(lake, compaction, kill)
    committed = lake.version
    done = lake.do(compaction)
    assert result(done).version == committed == lake.version
    assert result(done).segments == ("0.1",)
    lake.assert_states(FOUR)
    lake.assert_clean()


def test_C5_ingest_killed_after_its_commit_is_not_done_again(lakes: Lakes) -> None:
    lake = _patient(lakes)
    ingest = lake.ingest(NEW)
    _kill(lake, ingest, (Point.PUT_COMMIT, True))
    done = lake.do(ingest)
    assert result(done).version == lake.version
    lake.assert_states(FOUR, join(FOUR, NEW))
    assert len([s for s in lake.live if s.name == "4"]) == 1
    lake.assert_clean()


def test_C5_the_next_run_cleans_attempts_that_it_cannot_adopt(lakes: Lakes) -> None:
    """The dead attempt's job never answered: its files go before another attempt begins."""
    lake = _patient(lakes)
    compaction = lake.compaction()
    lake.jobs.next_job = dies_after_its_work
    _kill(lake, compaction, (Point.POLL_JOB, False))
    assert lake.unreachable()
    done = lake.do(compaction)
    assert done.attempt == 2
    assert lake.names == ["0.1"]
    lake.assert_states(FOUR)
    lake.assert_clean()


# C6: killed half-way through the replay ---------------------------------------------------------


@pytest.mark.parametrize(
    "kill",
    [
        (Point.RECONCILE, True),
        (Point.WRITE_SIDECARS, True),
        (Point.ENTER_COMMIT, True),
        (Point.PUT_COMMIT, False),
    ],
    ids=_ids,
)
def test_C6_compaction_killed_half_way_through_its_replay(lakes: Lakes, kill: Kill) -> None:
    lake = _patient(lakes)
    compaction = lake.compaction()
    held = lake.hold(compaction, Point.RECONCILE)
    lake.do(lake.update("k = 1", v="v + 15"))
    if kill != (Point.RECONCILE, False):
        held.go_on(kill[0], after=kill[1])
    held.kill()
    lake.locks = type(lake.locks)()
    lake.do(lake.delete("k = 2"))  # what it had worked out is out of date
    left = tuple(row for row in UPDATED if row[1] != 2)
    lake.assert_states_so_far(FOUR, UPDATED, left)
    done = lake.do(compaction)
    assert reconciled(done).deletes_remapped == 16
    assert lake.deleted() == {"0.1": 16}
    lake.assert_states(FOUR, UPDATED, left)
    lake.assert_clean()


@pytest.mark.parametrize("driver", ["lives on", "dies too"])
@pytest.mark.parametrize(
    "kill",
    some(
        [
            (Point.REQUEST_ROUND, False),
            (Point.REQUEST_ROUND, True),
            (Point.READ_RESULT, True),
            (Point.PUT_COMMIT, False),
        ]
    ),
    ids=_ids,
)
def test_C6_update_killed_between_its_rounds(lakes: Lakes, kill: Kill, driver: str) -> None:
    lake = _patient(lakes)
    lake.small = False
    update = lake.update("k = 1", v="v * 2")
    held = lake.hold(update, Point.RECONCILE)
    lake.foreign().update(updates={"v": "v + 1000"}, predicate="id < 15")
    foreign = plus(FOUR, lambda row: row[0] < 15, 1000)
    held.go_on(kill[0], after=kill[1])
    held.kill()
    lake.locks = type(lake.locks)()
    if driver == "dies too":
        for request in lake.jobs.started:
            lake.jobs.stop(request.name)
        lake.jobs = lake.new_jobs()
    lake.assert_states_so_far(FOUR, foreign)
    lake.do(update)
    doubled = tuple((i, k, v * 2 if k == 1 else v) for i, k, v in foreign)
    lake.assert_states(FOUR, foreign, doubled)
    lake.assert_clean()


# C6b: the row map is lost -----------------------------------------------------------------------


def _truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [None, _truncate, _flip], ids=["lost", "cut off", "flipped"])
def test_C6b_row_map_in_flight_is_lost_or_corrupt(
    lakes: Lakes, damage: Callable[[bytes], bytes] | None
) -> None:
    lake = _patient(lakes)
    held = lake.hold(lake.compaction(), Point.READ_RESULT)
    lake.do(lake.delete("k = 1"))
    [path] = [m.path for m in lake.store.list("_tandem/operations") if "/0/rowmap-" in m.path]
    data = lake.store.get(path)
    lake.store.delete([path])
    if damage is not None:
        lake.store.put(path, damage(data))
    done = held.finish()
    assert done.phase is Phase.SUCCEEDED, done
    assert done.attempt == 2  # the job is done again, never a guess
    left = tuple(row for row in FOUR if row[1] != 1)
    assert lake.deleted() == {}
    lake.assert_states(FOUR, left)
    lake.assert_clean()


@pytest.mark.part(4)
@pytest.mark.parametrize("damage", [None, _truncate, _flip], ids=["lost", "cut off", "flipped"])
def test_C6b_published_row_map_is_lost_or_corrupt(
    lakes: Lakes, damage: Callable[[bytes], bytes] | None
) -> None:
    """The rows can no longer be followed: the statement is evaluated on them again."""
    lake = _patient(lakes)
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.do(lake.compaction())
    [path] = [m.path for m in lake.store.list("_tandem/rowmaps")]
    data = lake.store.get(path)
    lake.store.delete([path])
    if damage is not None:
        lake.store.put(path, damage(data))
    done = update.finish()
    assert done.phase is Phase.SUCCEEDED, done
    assert reconciled(done).rows_evaluated == 40
    assert lake.deleted() == {"0.1": 8}
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()


# Z5: a vacuum without retention -----------------------------------------------------------------


def _vacuum(lake: Lake) -> None:
    lake.foreign().vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )


@pytest.mark.parametrize("kind", ["TableCompaction", "TableUpdate"])
def test_Z5_vacuum_between_plan_and_job(lakes: Lakes, kind: str) -> None:
    """Its inputs are gone from the disk, since another writer compacted and vacuumed."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    held = lake.hold(make(lake), Point.START_JOB)
    lake.foreign().optimize.compact()
    _vacuum(lake)
    done = held.finish()
    assert done.phase is Phase.SUCCEEDED, done
    lake.assert_rows(after)
    assert lake.unreachable() == set()


@pytest.mark.parametrize("kind", KINDS)
def test_Z5_vacuum_between_job_and_commit(lakes: Lakes, kind: str) -> None:
    """What the job wrote is gone, since no version named it yet."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    assert lake.unreachable()
    _vacuum(lake)
    done = held.finish()
    assert done.phase is Phase.SUCCEEDED, done
    assert done.attempt == 2
    lake.assert_rows(after)
    lake.assert_clean()


def test_Z5_a_full_vacuum_keeps_files_that_versions_name(lakes: Lakes) -> None:
    """Deletion vectors and row maps lie in `_`-folders, where vacuum does not look."""
    lake = _patient(lakes)
    held = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.do(lake.delete("id % 3 = 1"))
    held.finish()
    _vacuum(lake)
    lake.assert_rows(tuple(row for row in FOUR if row[0] % 3 != 1))
    assert [m.path for m in lake.store.list("_tandem/rowmaps")]


# Z6: two of the same ------------------------------------------------------------------------------


def _engines(lake: Lake, living: set[int]) -> tuple[Ports, Ports]:
    """Two processes that share nothing but the store and the jobs: not even locks."""
    first = lake.ports(processes=Process(1, living), locks=type(lake.locks)())
    second = lake.ports(processes=Process(2, living), locks=type(lake.locks)())
    return first, second


@pytest.mark.parametrize(
    ("kind", "at"),
    some(
        [
            *product(KINDS, [Point.START_JOB]),
            *product(KINDS[::-1], [Point.RECONCILE]),
            *product(KINDS, [Point.PUT_COMMIT]),
        ]
    ),
)
def test_Z6_a_second_engine_takes_over_from_one_that_only_seemed_dead(
    lakes: Lakes, kind: str, at: Point
) -> None:
    lake = _patient(lakes)
    make, after = MADE[kind]
    operation = make(lake)
    first, second = _engines(lake, living={2})
    zombie = lake.hold(operation, at, ports=first)
    done = lake.do(operation, ports=second)
    committed = lake.version
    late = zombie.finish()
    assert late.phase is Phase.SUCCEEDED
    assert result(late).version == result(done).version
    # Found half-way, its attempt is given up and another made; else it is adopted.
    assert done.attempt == (2 if at is Point.START_JOB else 1)
    assert lake.version == committed
    lake.assert_states(*dict.fromkeys([FOUR, after]))
    lake.assert_clean()


def test_Z6_second_engine_leaves_a_living_one_alone(lakes: Lakes) -> None:
    lake = _patient(lakes)
    operation = lake.update("k = 1", v="v + 15")
    first, second = _engines(lake, living={1, 2})
    held = lake.hold(operation, Point.RECONCILE, ports=first)
    refused = lake.run(operation, ports=second)
    assert (refused.phase, reason(refused)) == (Phase.FAILED, "AlreadyRunning")
    assert held.finish().phase is Phase.SUCCEEDED
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()


@pytest.mark.part(4)
@pytest.mark.parametrize(
    ("kind", "start"), some([*product(KINDS, [runs_twice, follows_a_duplicate])])
)
def test_Z6_duplicate_driver(lakes: Lakes, kind: str, start: Callable[..., None]) -> None:
    """Two drivers of one job do the same work under other names; so do speculative tasks."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    lake.jobs.next_job = start
    assert lake.run(make(lake)).phase is Phase.SUCCEEDED
    for runner in lake.jobs.runners:
        runner.stop(lake.jobs.started[-1].name)
    lake.assert_states(*dict.fromkeys([FOUR, after]))
    if start is follows_a_duplicate:
        lake.assert_clean()


# Z14: stuck, failed, and what comes after ---------------------------------------------------------


def test_Z14_commit_fails_and_the_next_run_cleans_and_plans_again(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = lake.compaction()

    def no_permission(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT:
            raise AccessDenied("may not write", resource="_delta_log")
        return call()

    failed = lake.run(compaction, interceptor=no_permission)
    assert failed.phase is Phase.FAILED, failed
    lake.assert_states_so_far(FOUR)
    lake.foreign().delete("id < 5")
    left = tuple(row for row in FOUR if row[0] >= 5)
    done = lake.do(compaction)
    assert done.attempt == 2
    assert result(done).segments == ("1.1",)  # the rest of segment 0 is a foreign file now
    lake.assert_states(FOUR, left)
    lake.assert_clean()


def test_Z14_a_stuck_engine_is_replaced_and_resumes_later(lakes: Lakes) -> None:
    lake = _patient(lakes)
    compaction = lake.compaction()
    first, second = _engines(lake, living={2})
    stuck = lake.hold(compaction, Point.START_JOB, ports=first)
    lake.do(lake.delete("k = 1"))
    done = lake.do(compaction, ports=second)
    assert done.attempt == 2  # planned again: the deleted rows were not copied
    assert lake.deleted() == {}
    files = lake.data_files()
    stuck.finish()
    assert lake.data_files() >= files
    lake.assert_states(FOUR, tuple(row for row in FOUR if row[1] != 1))
    lake.assert_clean()


# Z20: the outcome of the put is unknown ----------------------------------------------------------


@pytest.mark.part(2)
@pytest.mark.parametrize(("kind", "arrived"), some([*product(KINDS, [True, False])]))
def test_Z20_outcome_of_the_commit_is_unknown(lakes: Lakes, kind: str, arrived: bool) -> None:
    lake = _patient(lakes)
    before = lake.version
    lost: list[Effect] = []

    def silence(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT and not lost:
            lost.append(effect)
            if arrived:
                call()
            raise OutcomeUnknown("timed out")
        return call()

    make, after = MADE[kind]
    done = lake.do(make(lake), interceptor=silence)
    assert result(done).version == lake.version == before + 1
    lake.assert_states(*dict.fromkeys([FOUR, after]))
    lake.assert_clean()


def test_Z20_the_look_up_of_a_commit_fails_too(lakes: Lakes) -> None:
    """Perhaps committed, perhaps not: nothing is deleted, nothing claimed, and the next run
    finds out."""
    lake = _patient(lakes)
    update = lake.update("k = 1", v="v + 15")

    def silence(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT:
            call()
            raise OutcomeUnknown("timed out")
        if effect.point is Point.LOOK_UP_COMMIT:
            raise OutcomeUnknown("timed out")
        return call()

    unsure = lake.run(update, interceptor=silence)
    assert (unsure.phase, reason(unsure)) == (Phase.FAILED, "StorageError")
    committed = lake.version
    lake.assert_states_so_far(FOUR, UPDATED)
    done = lake.do(update)
    assert result(done).version == committed == lake.version
    lake.assert_states(FOUR, UPDATED)
    lake.assert_clean()
