"""The part of the contract of locks that is about intervals: `lock_contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.lock_requests import FIRST_MS, HOUR_MS, TABLE, asked, days, hours, owner
from tandem.intervals import IntervalSet, TimeInterval
from tandem.locks.rules import (
    WHOLE_TABLE,
    CommitLease,
    Granted,
    LockResources,
    Mode,
    Waiting,
    named,
    segment,
    within,
)
from tandem.locks.store import LockStore


class IntervalContract:
    """Inherited by `LockContract`, which each store passes: its class of tests has the fixture
    `locks`, an empty store."""

    def release(self, locks: LockStore, operation: str) -> None:
        locks.release(TABLE, operation, owner(operation))

    def test_S29_intervals_of_any_grain_meet_where_they_overlap(self, locks: LockStore) -> None:
        assert isinstance(locks.acquire(asked("a", Mode.REPLACE, within(days(1)))), Granted)
        hour = asked("b", Mode.REPLACE, within(hours(1, 5, 6)))
        assert locks.acquire(hour) == Waiting(
            (("TableCompaction/a", "interval 2013-02-01T00:00:00Z/2013-02-02T00:00:00Z"),)
        )
        assert isinstance(locks.acquire(asked("c", Mode.REPLACE, within(days(2)))), Granted)
        assert isinstance(locks.acquire(asked("d", Mode.REPLACE, segment("7"))), Waiting)

    def test_S29_names_meet_names_whatever_their_times(self, locks: LockStore) -> None:
        # Two segments of one hour, and one segment that is said to lie elsewhere.
        assert isinstance(
            locks.acquire(asked("a", Mode.REWRITE, segment("7", hours(1, 5, 6)))), Granted
        )
        assert isinstance(
            locks.acquire(asked("b", Mode.REWRITE, segment("8", hours(1, 5, 6)))), Granted
        )
        assert locks.acquire(asked("c", Mode.REWRITE, segment("7", days(2)))) == Waiting(
            (("TableCompaction/a", "segment 7"),)
        )

    def test_S29_a_segment_meets_intervals_where_it_lies_and_everywhere_if_that_is_unknown(
        self, locks: LockStore
    ) -> None:
        assert isinstance(locks.acquire(asked("a", Mode.REPLACE, within(days(1, 3)))), Granted)
        two = asked("b", Mode.REWRITE, named(["7", "8"], hours(2, 0, 24)))
        assert isinstance(locks.acquire(two), Granted)
        three = asked("c", Mode.REWRITE, named(["9"], days(2, 3)))
        assert locks.acquire(three) == Waiting(
            (("TableCompaction/a", "interval 2013-02-03T00:00:00Z/2013-02-04T00:00:00Z"),)
        )
        assert isinstance(locks.acquire(asked("d", Mode.REWRITE, segment("6"))), Waiting)
        # The other way round: who asks for intervals meets the segments that are held.
        self.release(locks, "a")
        assert isinstance(locks.acquire(asked("e", Mode.EXCLUSIVE, within(days(2)))), Waiting)
        assert isinstance(locks.acquire(asked("f", Mode.EXCLUSIVE, within(days(4)))), Waiting)
        for operation in ("c", "d", "e"):
            self.release(locks, operation)
        assert isinstance(locks.acquire(asked("f", Mode.EXCLUSIVE, within(days(4)))), Granted)

    def test_Z17_another_granularity_keeps_held_locks_right(self, locks: LockStore) -> None:
        """Held by hour, asked for by day, month and hour again: intervals are absolute."""
        hourly = asked("a", Mode.REWRITE, within(hours(1, 5, 6)))
        assert isinstance(locks.acquire(hourly), Granted)
        daily = asked("b", Mode.REWRITE, within(days(1)))
        met = (("TableCompaction/a", "interval 2013-02-01T05:00:00Z/2013-02-01T06:00:00Z"),)
        assert locks.acquire(daily) == Waiting(met)
        self.release(locks, "b")
        month = asked("c", Mode.REWRITE, within(days(*range(1, 29))))
        assert locks.acquire(month) == Waiting(met)
        self.release(locks, "c")
        assert isinstance(locks.acquire(asked("d", Mode.REWRITE, within(days(2)))), Granted)
        assert isinstance(locks.acquire(asked("e", Mode.REWRITE, within(hours(1, 6, 7)))), Granted)
        # The segments of a plan at the new granularity say the days that they lie in.
        assert isinstance(locks.acquire(asked("f", Mode.REWRITE, segment("7", days(1)))), Waiting)
        # Who holds the hour asks for its day: it waits for "e", keeps its place, and then holds it.
        self.release(locks, "f")
        assert isinstance(locks.acquire(replace(hourly, resources=within(days(1)))), Waiting)
        self.release(locks, "e")
        assert isinstance(locks.acquire(replace(hourly, resources=within(days(1)))), Granted)
        (held,) = [e for e in locks.entries(TABLE) if e.request.operation == "a"]
        assert held.request.resources == within(days(1))

    def test_Z17_locks_by_segment_and_by_chunk_exclude_each_other(self, locks: LockStore) -> None:
        """`lockGranularity` differs between compactions, also of one table at one time."""
        named = asked("a", Mode.REWRITE, segment("7", days(1)))
        chunk, next_chunk = (
            asked(o, Mode.REWRITE, within(days(d))) for o, d in (("b", 1), ("c", 2))
        )
        assert isinstance(locks.acquire(named), Granted)
        assert isinstance(locks.acquire(chunk), Waiting)
        assert isinstance(locks.acquire(next_chunk), Granted)
        self.release(locks, "a")
        assert isinstance(locks.acquire(chunk), Granted)
        assert isinstance(locks.acquire(named), Waiting)

    def test_S24_a_stream_takes_intervals_one_by_one(self, locks: LockStore) -> None:
        first = locks.acquire(asked("a", Mode.UPDATE, within(days(1))))
        for day in (2, 4, 1, 4):
            assert locks.extend(TABLE, "a", owner("a"), within(days(day))) == first
        (entry,) = locks.entries(TABLE)
        assert entry.request.resources == within(days(1, 2, 4))
        assert isinstance(locks.acquire(asked("b", Mode.REPLACE, within(days(3)))), Granted)
        met = locks.extend(TABLE, "a", owner("a"), within(days(3)))
        assert met == Waiting(
            (("TableCompaction/b", "interval 2013-02-03T00:00:00Z/2013-02-04T00:00:00Z"),)
        )
        assert isinstance(locks.acquire(asked("c", Mode.REPLACE, within(days(2)))), Waiting)

    def test_S24_segments_and_intervals_together_are_intervals(self, locks: LockStore) -> None:
        first = locks.acquire(asked("a", Mode.UPDATE, segment("7", days(1))))
        assert locks.extend(TABLE, "a", owner("a"), within(hours(2, 0, 5))) == first
        (entry,) = locks.entries(TABLE)
        assert entry.request.resources == within(days(1) | hours(2, 0, 5))
        assert isinstance(locks.acquire(asked("b", Mode.REPLACE, segment("9", days(1)))), Waiting)
        # What it held by name is still held: it may ask for it again.
        assert locks.acquire(asked("a", Mode.UPDATE, segment("7", days(1)))) == first

    def test_an_entry_has_at_most_64_intervals_that_cover_all_that_was_asked(
        self, locks: LockStore
    ) -> None:
        even = IntervalSet(
            TimeInterval(FIRST_MS + n * HOUR_MS, FIRST_MS + n * HOUR_MS + HOUR_MS // 2)
            for n in range(300)
        )
        assert isinstance(locks.acquire(asked("a", Mode.REPLACE, within(even))), Granted)
        (entry,) = locks.entries(TABLE)
        assert len(entry.request.resources.intervals) == 64
        assert entry.request.resources.intervals.includes(even)
        for piece in (even.pieces[0], even.pieces[150], even.pieces[-1]):
            late = asked("b", Mode.REPLACE, within(IntervalSet([piece])))
            assert isinstance(locks.acquire(late), Waiting)
            self.release(locks, "b")
        assert isinstance(locks.acquire(asked("b", Mode.REPLACE, within(days(20)))), Granted)

    @pytest.mark.parametrize(
        ("held", "asked_for"),
        [
            (segment("7"), segment("7")),
            (segment("7", days(3)), within(days(1, 3))),
            (segment("7"), within(days(1))),
            (within(days(1, 2)), segment("7", days(2))),
            (within(days(1)), within(hours(1, 5, 6))),
            (within(days(1)), segment("7")),
            (WHOLE_TABLE, within(days(1))),
            (WHOLE_TABLE, segment("7", days(1))),
        ],
    )
    def test_S20_S26_S28_a_higher_priority_revokes_by_name_and_by_interval(
        self, locks: LockStore, held: LockResources, asked_for: LockResources
    ) -> None:
        locks.acquire(asked("a", Mode.REWRITE, held))
        beside = asked("beside", Mode.REWRITE, segment("8", days(9)))
        if held is not WHOLE_TABLE and held != segment("7"):
            assert isinstance(locks.acquire(beside), Granted)
        assert isinstance(locks.acquire(asked("b", Mode.EXCLUSIVE, asked_for)), Waiting)
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED
        urgent = asked("c", Mode.EXCLUSIVE, asked_for, priority=1)
        assert isinstance(locks.acquire(urgent), Waiting)  # never inside a commit
        locks.leave_commit(TABLE, "a", owner("a"))
        assert isinstance(locks.acquire(urgent), Granted)
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.REVOKED

    def test_S27_who_waits_by_interval_is_not_overtaken_by_name(self, locks: LockStore) -> None:
        locks.acquire(asked("a", Mode.REWRITE, segment("1", days(1))))
        assert isinstance(locks.acquire(asked("b", Mode.REWRITE, within(days(1, 2)))), Waiting)
        late = asked("c", Mode.REWRITE, segment("2", days(2)))
        assert isinstance(locks.acquire(late), Waiting)
        assert isinstance(locks.acquire(asked("d", Mode.REWRITE, segment("3", days(3)))), Granted)
        self.release(locks, "a")
        assert isinstance(locks.acquire(late), Waiting)
        assert isinstance(locks.acquire(asked("b", Mode.REWRITE, within(days(1, 2)))), Granted)
