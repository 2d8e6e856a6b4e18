"""Operations that fail, are doubled or deceived, and what another run makes of it: on real tables,
what `tests/crash` does not have of C4, C5, C6b, Z5, Z6, Z14 and Z20. There real processes die at
every point.
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
from support.lake.lake import Lake, Lakes, batch, loads, reason, reconciled, result
from support.lake.rewritten import replace_all, rewrite
from support.lake.rows import Rows, join, k_is, plus
from support.some import some
from tandem.errors import AccessDenied, OutcomeUnknown
from tandem.operations.machine.events import Effect, Event, Point
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


def _patient(lakes: Lakes) -> Lake:
    """An attempt that died counts as a failure; here another one may be made."""
    lake = lakes.loaded(4)
    lake.backoff_limit = 3
    return lake


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


# C5: the compaction is killed when its files are there -----------------------------------------


def test_C5_compaction_killed_before_its_commit_is_adopted(lakes: Lakes) -> None:
    lake = _patient(lakes)
    compaction = lake.compaction()
    lake.hold(compaction, Point.PUT_COMMIT).kill()
    # Locks of a process die with it (in etcd: with its lease).
    lake.locks = type(lake.locks)()
    lake.assert_states_so_far(FOUR)
    lake.do(lake.update("k = 1", v="v + 15"))  # a dead process blocks no other
    jobs = len(lake.jobs.started)
    done = lake.do(compaction)
    assert len(lake.jobs.started) == jobs  # the work is not done twice
    assert reconciled(done).deletes_remapped == 8
    assert lake.names == ["0.1", "4"]
    lake.assert_states(FOUR, UPDATED)


# C6b: the row map is lost -----------------------------------------------------------------------


def _truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


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
    done = update.succeed()
    assert reconciled(done).rows_evaluated == 40
    assert lake.deleted() == {"0.1": 8}
    lake.assert_states(FOUR, UPDATED)


# Z5: a vacuum without retention -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TableCompaction", "TableUpdate"])
def test_Z5_vacuum_between_plan_and_job(lakes: Lakes, kind: str) -> None:
    """Its inputs are gone from the disk, since another writer compacted and vacuumed."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    held = lake.hold(make(lake), Point.START_JOB)
    lake.foreign().optimize.compact()
    lake.vacuum()
    held.succeed()
    lake.assert_rows(after)
    assert lake.unreachable() == set()


@pytest.mark.parametrize("kind", KINDS)
def test_Z5_vacuum_between_job_and_commit(lakes: Lakes, kind: str) -> None:
    """What the job wrote is gone, since no version named it yet."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    assert lake.unreachable()
    lake.vacuum()
    done = held.succeed()
    assert done.attempt == 2
    lake.assert_rows(after)
    lake.assert_clean()


def test_Z5_a_full_vacuum_keeps_files_that_versions_name(lakes: Lakes) -> None:
    """Deletion vectors and row maps lie in `_`-folders, where vacuum does not look."""
    lake = _patient(lakes)
    held = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.do(lake.delete("id % 3 = 1"))
    held.finish()
    lake.vacuum()
    lake.assert_rows(tuple(row for row in FOUR if row[0] % 3 != 1))
    assert [m.path for m in lake.store.list("_tandem/rowmaps")]


# Z6: two of the same ------------------------------------------------------------------------------


@pytest.mark.part(4)
@pytest.mark.parametrize(
    ("kind", "start"), some([*product(KINDS, [runs_twice, follows_a_duplicate])])
)
def test_Z6_duplicate_driver_changes_nothing(
    lakes: Lakes, kind: str, start: Callable[..., None]
) -> None:
    """Two drivers of one job do the same work under other names; so do speculative tasks."""
    lake = _patient(lakes)
    make, after = MADE[kind]
    lake.jobs.next_job = start
    lake.do(make(lake))
    for runner in lake.jobs.runners:
        runner.stop(lake.jobs.started[-1].name)
    # Who finishes second leaves files, which the next cleaning finds.
    assert_shown = lake.assert_states if start is follows_a_duplicate else lake.assert_states_so_far
    assert_shown(*dict.fromkeys([FOUR, after]))


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
