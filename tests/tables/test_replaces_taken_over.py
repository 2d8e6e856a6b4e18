"""Replaces whose first attempt is not their last: what has changed or gone since their start."""

from __future__ import annotations

from support.lake.lake import Lakes, message, reason
from support.lake.timed import DAYS, TimedLake, day, hours
from support.lake.timed import table as rows_of
from tables.replaced import ALIGNED, DAY_2, MORE, REST, S1, SJ, SR, alone, made
from tandem.locks.store import InProcessLocks
from tandem.operations.clean import clean
from tandem.operations.machine.events import Point
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spec.status import Phase

EVERYTHING_IS_OLD = CleaningRules(0, row_maps_ms=0, staging_ms=0, dead_ms=DAY_MS)


def test_cleaning_keeps_the_row_maps_since_the_start_not_since_the_last_attempt(
    lakes: Lakes,
) -> None:
    """Without its map, a compaction of old rows and late ones is a `Conflict`."""
    table = TimedLake.of(lakes, *ALIGNED)
    table.lake.backoff_limit = 1
    operation = table.replace(DAY_2, rows=SR)
    alone(table, operation, Point.START_JOB).kill()
    table.append(MORE)
    table.lake.do(table.lake.compaction("SemiMajor"))
    table.lake.jobs = table.lake.new_jobs()
    held = alone(table, operation, Point.RECONCILE)
    clean(table.lake.table(), EVERYTHING_IS_OLD)
    done = held.finish()
    assert (done.phase, done.attempt) == (Phase.SUCCEEDED, 2)
    table.assert_shows(REST, MORE, SR)


def test_cleaning_keeps_the_row_maps_since_the_start_version(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED)
    start = table.lake.version
    table.append(MORE)
    table.lake.do(table.lake.compaction("SemiMajor"))
    operation = table.replace(DAY_2, rows=SR, startVersion=start)
    held = alone(table, operation, Point.RECONCILE)
    clean(table.lake.table(), EVERYTHING_IS_OLD)
    held.succeed()
    table.assert_shows(REST, MORE, SR)


def test_another_time_column_than_the_job_checked_the_source_by(lakes: Lakes) -> None:
    """The rows that go are those that the new rows were checked to replace."""
    table = made(lakes)
    # Of the third day by `ts`, of the second one by `day`.
    moved = rows_of(hours(day(2), first=700)).set_column(
        1, "ts", rows_of(hours(day(3), first=700)).column("ts")
    )
    table.lake.append(moved)
    operation = table.replace(DAY_2, rows=SR)
    alone(table, operation, Point.RECONCILE).kill()
    table.lake.time = {**DAYS, "column": "day"}
    table.lake.jobs = table.lake.new_jobs()
    done = table.lake.do(operation, ports=table.lake.ports(locks=InProcessLocks()))
    assert done.attempt == 2
    table.assert_shows(REST, SR)


def test_a_start_whose_deletion_vectors_were_cleaned_is_not_tried_again(lakes: Lakes) -> None:
    """Each attempt would run a job, and end as the first."""
    table = made(lakes)
    table.lake.backoff_limit = 2
    table.lake.do(table.lake.delete("id = 30"))
    start = table.lake.version
    table.lake.do(table.lake.delete("id = 31"))
    clean(table.lake.table(), EVERYTHING_IS_OLD)
    shown, jobs = table.rows(), len(table.lake.jobs.started)
    status = table.lake.run(table.replace(DAY_2, rows=SR, startVersion=start))
    assert reason(status) == "Conflict"
    said = message(status)
    assert f"version {start}" in said
    assert len(table.lake.jobs.started) == jobs + 1
    assert table.rows() == shown


def test_I54_a_record_of_the_start_that_is_gone_is_not_made_again(lakes: Lakes) -> None:
    """By a later start, rows would go that came late."""
    table = made(lakes)
    table.lake.backoff_limit = 1
    held = alone(table, table.replace(DAY_2, rows=SR), Point.READ_RESULT)
    table.append(SJ)
    [record] = [m.path for m in table.lake.store.list("_tandem") if m.path.endswith("/cutoff.json")]
    table.lake.store.delete([record])
    assert reason(held.finish()) == "ManifestInvalid"
    table.assert_shows(S1, SJ)
