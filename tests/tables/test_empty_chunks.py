"""`status.result.replaced.emptyChunks` on real tables: the chunks that a replace leaves empty."""

from __future__ import annotations

import random

import pytest

from support.lake.held import Held
from support.lake.lake import Lakes, result
from support.lake.timed import Hours, TimedLake, day, hours, interval, moment
from support.present import present
from support.some import EVERY_CASE
from tables.replaced import ALIGNED, DAY_2, S1, made
from tandem.locks.store import InProcessLocks
from tandem.operations.kinds import row_scope
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus

THREE_DAYS = "2013-03-01/2013-03-04"


def left_empty(status: OperationStatus) -> int | None:
    did = present(result(status).replaced)
    return did.empty_chunks


def held(table: TimedLake, operation: Operation) -> Held:
    ports = table.lake.ports(locks=InProcessLocks())
    return table.lake.hold(operation, Point.RECONCILE, ports=ports)


@pytest.mark.parametrize("layout", ["straddling", "aligned"])
def test_days_without_a_row_of_the_source_are_counted(lakes: Lakes, layout: str) -> None:
    """D27, D28: two of the three days have rows again, if only one each."""
    table = made(lakes, layout)
    source = hours(3, 50, first=1_000)
    assert left_empty(table.lake.do(table.replace(THREE_DAYS, rows=source))) == 1
    assert left_empty(table.lake.do(table.replace(THREE_DAYS))) == 2
    assert left_empty(table.lake.do(table.replace(THREE_DAYS, rows=source))) == 0


def test_a_late_row_fills_its_day(lakes: Lakes) -> None:
    table = made(lakes)
    running = held(table, table.replace(THREE_DAYS))
    table.append(hours(30, first=2_000))
    done = running.succeed()
    assert left_empty(done) == 2


def test_a_day_of_which_hours_stay_is_empty_within_the_intervals(lakes: Lakes) -> None:
    table = made(lakes)
    assert left_empty(table.lake.do(table.replace(interval(30, 40)))) == 1


def test_rows_that_were_deleted_before_fill_nothing(lakes: Lakes) -> None:
    """Statistics still have the times of deleted rows."""
    table = made(lakes)
    table.lake.foreign().delete("ts >= '2013-03-02T00:00:00Z'")
    assert left_empty(table.lake.do(table.replace(THREE_DAYS))) == 1


def test_all_intervals_and_rows_without_a_time(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, S1, {900: None, 901: None}, {902: None, 903: 200})
    assert left_empty(table.lake.do(table.replace("all"))) == 4


@pytest.mark.parametrize(
    "what",
    [{"partitions": [{"day": "2013-03-02"}]},
     {"intervals": [DAY_2], "partitions": [{"day": "2013-03-02"}]}],
)  # fmt: skip
def test_it_is_absent_with_partitions(lakes: Lakes, what: dict[str, object]) -> None:
    table = TimedLake.of(lakes, S1, partitioned=True)
    assert left_empty(table.lake.do(table.replace(replaced=what))) is None


def test_it_is_absent_without_a_time_column(lakes: Lakes) -> None:
    table = made(lakes)
    table.lake.time = None
    assert left_empty(table.lake.do(table.replace("all"))) is None


def test_it_is_absent_if_too_many_rows_would_be_read(
    lakes: Lakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_scope, "MOST_NUMBERS", len(S1) - 1)
    table = made(lakes)
    assert left_empty(table.lake.do(table.replace(THREE_DAYS))) is None
    # Files that lie within a day need no reading.
    table = made(lakes, "aligned")
    assert left_empty(table.lake.do(table.replace(THREE_DAYS))) == 3


def test_a_damaged_file_can_be_replaced(lakes: Lakes) -> None:
    """It goes whole, so only the count needs its times."""
    table = made(lakes)
    (file,) = (add.path for add in table.lake.log.snapshot().adds())
    (table.lake.path / file).write_bytes(b"no parquet")
    done = table.lake.do(table.replace(THREE_DAYS, rows=hours(day(1), first=1_000)))
    assert left_empty(done) is None
    table.assert_shows(hours(day(1), first=1_000))


@pytest.mark.part(9)
@pytest.mark.parametrize("seed", range(60 if EVERY_CASE else 6))
def test_it_is_what_the_rows_before_and_after_say(lakes: Lakes, seed: int) -> None:
    """Random loads, updates and late rows, with files of one day and of several."""
    dice = random.Random(seed)
    first_id = iter(range(0, 10_000, 100))

    def load() -> Hours:
        start, days = dice.randrange(6), dice.choice([1, 1, 2, 5])
        found = dice.sample(range(24 * start, 24 * (start + days)), dice.randint(4, 9))
        return hours(found, first=next(first_id))

    table = TimedLake.of(lakes, *(load() for _ in range(dice.randint(1, 4))))
    if dice.random() < 0.5:
        table.lake.foreign().delete(f"id % 3 = {dice.randrange(3)}")
    start = dice.choice([hour for _, hour in table.rows() if hour is not None])
    start = max(0, start - dice.randrange(12))
    end = start + dice.choice([12, 24, 60, 150])
    source = None
    if dice.random() < 0.6:
        source = hours(dice.sample(range(start, end), dice.randint(1, 3)), first=9_000)
    scope = dice.choice(["AtStart", "AtCommit"])
    running = held(table, table.replace(interval(start, end), rows=source, scope=scope))
    for _ in range(dice.randrange(3)):
        table.append(load())
    done = running.succeed()

    def days_at(version: int) -> set[str]:
        rows = (hour for _, hour in table.rows(version) if hour is not None)
        return {f"{moment(hour):%d}" for hour in rows if start <= hour < end}

    version = present(result(done).version)
    assert left_empty(done) == len(days_at(version - 1) - days_at(version))


def test_a_drop_of_aligned_days_reads_no_file(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED)
    for add in table.lake.log.snapshot().adds():
        (table.lake.path / add.path).unlink()
    assert left_empty(table.lake.do(table.replace(THREE_DAYS))) == 3
