"""Cleaning real tables, beside deletes, plans and vacuums of others: C15 and Z5. Files, log, engine
and foreign readers are real; the jobs are quick ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs import quick_lake
from support.lake.lake import Lake, batch
from support.lake.rows import plus
from tandem.delta import dv
from tandem.errors import StorageError
from tandem.operations.clean import CleaningOptions, clean, rules_for
from tandem.operations.machine.events import Effect, Event, Point
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spec.table import Retention

EVERYTHING_IS_OLD = CleaningRules(0, row_maps_ms=0, staging_ms=0, dead_ms=DAY_MS)
ROWS = batch(0, 2_000)


def one_file(folder: Path) -> Lake:
    lake = quick_lake.make(folder, 0)
    lake.append(ROWS)
    lake.first_version = lake.version
    return lake


def vectors(lake: Lake) -> set[str]:
    return {m.path for m in lake.store.list("_tandem/dv")}


def live_vectors(lake: Lake) -> set[str]:
    found = (add.deletion_vector for add in lake.log.snapshot().adds())
    return {dv.file_path(each) for each in found if each is not None and each.storage == "u"}


def swept(lake: Lake, rules: CleaningRules) -> set[str]:
    return {each.file.path for each in clean(lake.table(), rules).garbage}


def test_C15_deletion_vectors_of_one_file_are_merged_while_deletes_go_on(tmp_path: Path) -> None:
    lake = one_file(tmp_path)
    held = lake.hold(lake.delete("id % 2 = 0"), Point.PUT_COMMIT)
    lake.do(lake.delete("id % 3 = 0"))
    [first] = live_vectors(lake)
    held.succeed()
    lake.foreign().delete("id % 7 = 0")  # deltalake adds to what both of ours hide
    third = tuple(row for row in ROWS if row[0] % 3)
    both = tuple(row for row in third if row[0] % 2)
    left = tuple(row for row in both if row[0] % 7)
    lake.assert_states(ROWS, third, both, left)
    # Nothing goes that a version within the retention names.
    week = rules_for(lake.log.snapshot().configuration, Retention())
    assert not swept(lake, week) & vectors(lake)
    lake.assert_states_so_far(ROWS, third, both, left)
    assert first in swept(lake, EVERYTHING_IS_OLD)
    assert first not in vectors(lake)
    assert vectors(lake) == live_vectors(lake)
    lake.assert_rows_so_far(left)


def test_C15_vectors_of_rounds_that_lost_are_gone_in_the_end(tmp_path: Path) -> None:
    """Each round writes what has changed since the last one; one commit names few of them."""
    lake = one_file(tmp_path)
    held = lake.hold(lake.delete("id = 0"), Point.PUT_COMMIT)
    for winner in range(1, 4):
        lake.do(lake.delete(f"id = {winner}"))
        held.go_on(Point.PUT_COMMIT)
    assert len(vectors(lake)) == 3 + 4
    held.succeed()
    assert len(vectors(lake)) == 3 + 1
    assert live_vectors(lake) < vectors(lake)
    lake.assert_clean()
    lake.assert_rows_so_far(ROWS[4:])


def test_C15_a_clean_up_that_fails_does_not_fail_the_delete(tmp_path: Path) -> None:
    lake = one_file(tmp_path)
    lake.do(lake.delete("id % 2 = 0"))

    def failing(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point in (Point.CLEAN_UNUSED, Point.MAINTAIN):
            raise StorageError("the store is away", resource=lake.location)
        return call()

    lake.do(lake.delete("id % 3 = 0"), interceptor=failing)
    left = tuple(row for row in ROWS if row[0] % 2 and row[0] % 3)
    lake.assert_rows_so_far(left)
    assert swept(lake, EVERYTHING_IS_OLD)
    lake.assert_rows_so_far(left)


@pytest.mark.parametrize("with_vacuum", [False, True])
def test_Z5_cleaning_between_plan_and_job(tmp_path: Path, with_vacuum: bool) -> None:
    """Others have compacted its inputs away, and vacuum by their rules; ours leaves alone what
    an unfinished plan reads, however old."""
    lake = quick_lake.make(tmp_path, 4)
    before = tuple(lake.by_deltalake())
    held = lake.hold(lake.update("k = 1", v="v + 15"), Point.START_JOB)
    inputs = {add.path for add in lake.log.snapshot().adds()}
    lake.foreign().optimize.compact()
    if with_vacuum:
        lake.foreign().vacuum(dry_run=False)
    dry = clean(lake.table(), EVERYTHING_IS_OLD, options=CleaningOptions(dry_run=True))
    assert swept(lake, EVERYTHING_IS_OLD) == {each.file.path for each in dry.garbage}
    assert {m.path for m in lake.store.list("")} >= inputs
    done = held.succeed()
    assert done.attempt == 1
    after = plus(before, lambda row: row[1] == 1, 15)
    lake.assert_rows_so_far(after)
    assert swept(lake, EVERYTHING_IS_OLD) >= inputs
    lake.assert_rows_so_far(after)
