"""What every `LockStore` must do. A test class for each store inherits `LockContract`.

Times never decide a test: waiting is checked by `wait` returning at once or not at all.
"""

from __future__ import annotations

import threading

import pytest

from tandem.locks.model import (
    WHOLE_TABLE,
    CommitLease,
    EntryState,
    Granted,
    LockRequest,
    Mode,
    Resource,
    Waiting,
    segment,
)
from tandem.locks.port import LockStore

TABLE = "file:///table"
LONG_S = 20.0


def request(
    operation: str,
    mode: Mode = Mode.REWRITE,
    *segments: str,
    priority: int = 0,
    owner: str = "",
    table: str = TABLE,
) -> LockRequest:
    resources: tuple[Resource, ...] = tuple(map(segment, segments)) or (WHOLE_TABLE,)
    return LockRequest(
        table=table,
        operation=operation,
        mode=mode,
        resources=resources,
        owner=owner or f"process of {operation}",
        priority=priority,
        display=f"TableCompaction/{operation}",
    )


def owner(operation: str) -> str:
    return f"process of {operation}"


class LockContract:
    """Inherit, and give the fixture `locks`."""

    @pytest.fixture
    def locks(self) -> LockStore:
        raise NotImplementedError

    def release(self, locks: LockStore, operation: str) -> None:
        locks.release(TABLE, operation, owner(operation))

    def test_C14_a_held_segment_makes_a_rewrite_wait_and_says_for_whom(
        self, locks: LockStore
    ) -> None:
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "0", "1")), Granted)
        answer = locks.acquire(request("b", Mode.REWRITE, "1", "2"))
        assert answer == Waiting((("TableCompaction/a", "segment 1"),))

    def test_S19_disjoint_segments_and_appends_do_not_contend(self, locks: LockStore) -> None:
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "2", "3")), Granted)
        assert isinstance(locks.acquire(request("b", Mode.APPEND)), Granted)
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "5")), Granted)
        assert isinstance(locks.acquire(request("d", Mode.REWRITE, "3")), Waiting)

    def test_an_update_stands_beside_a_rewrite_of_the_same_segment(self, locks: LockStore) -> None:
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "0")), Granted)
        assert isinstance(locks.acquire(request("b", Mode.UPDATE, "0")), Granted)
        assert isinstance(locks.acquire(request("c", Mode.UPDATE, "0")), Granted)

    def test_I26_a_waiter_holds_nothing(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0", "9"))
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "8")), Granted)
        waiting = [e for e in locks.entries(TABLE) if e.request.operation == "b"]
        assert waiting[0].state is EntryState.WAITING
        assert waiting[0].token == 0

    def test_S27_equal_priority_waits_in_order(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0"))
        locks.acquire(request("c", Mode.REWRITE, "0"))
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "0")), Waiting)
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0")), Granted)

    def test_I27_asking_again_changes_nothing(self, locks: LockStore) -> None:
        first = locks.acquire(request("a", Mode.REWRITE, "0"))
        assert locks.acquire(request("a", Mode.REWRITE, "0")) == first
        assert len(locks.entries(TABLE)) == 1

    def test_I27_a_restarted_process_takes_the_entry_over(self, locks: LockStore) -> None:
        first = locks.acquire(request("a", Mode.REWRITE, "0"))
        second = locks.acquire(request("a", Mode.REWRITE, "0", owner="restarted"))
        assert isinstance(first, Granted)
        assert isinstance(second, Granted)
        assert second.token > first.token
        assert len(locks.entries(TABLE)) == 1
        # The first one, back from its stall, can neither commit nor let go of it (Z1).
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST
        self.release(locks, "a")
        assert len(locks.entries(TABLE)) == 1

    def test_S24_extend_is_idempotent_and_under_the_same_token(self, locks: LockStore) -> None:
        granted = locks.acquire(request("a", Mode.REWRITE, "0"))
        for _ in range(2):
            more = (segment("1"), segment("2"))
            assert locks.extend(TABLE, "a", owner("a"), more) == granted
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "2")), Waiting)

    def test_S24_extend_over_a_held_segment_changes_nothing(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1"))
        answer = locks.extend(TABLE, "a", owner("a"), (segment("1"),))
        assert isinstance(answer, Waiting)
        assert locks.entries(TABLE)[0].request.resources == (segment("0"),)

    def test_other_resources_are_not_waited_for_while_holding(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1"))
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "1")), Waiting)
        # It gave up segment 0 when it had to wait, so that this is no deadlock.
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0")), Granted)
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "1")), Granted)

    def test_S26_a_higher_priority_revokes_all_holders(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1"))
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "0", "1", priority=1)), Granted)
        for operation in ("a", "b"):
            assert locks.enter_commit(TABLE, operation, owner(operation)) is CommitLease.REVOKED
        assert locks.enter_commit(TABLE, "c", owner("c")) is CommitLease.ENTERED

    def test_S26_or_none_of_them(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1", priority=1))
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "0", "1", priority=1)), Waiting)
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED

    def test_S28_a_holder_inside_its_commit_is_never_revoked(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED
        urgent = request("b", Mode.REWRITE, "0", priority=9)
        assert isinstance(locks.acquire(urgent), Waiting)
        locks.leave_commit(TABLE, "a", owner("a"))
        assert isinstance(locks.acquire(urgent), Granted)

    def test_a_revoked_holder_that_asks_again_queues_behind(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0", priority=1))
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "0")), Waiting)
        self.release(locks, "b")
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "0")), Granted)

    def test_a_lock_that_was_never_granted_does_not_let_commit(self, locks: LockStore) -> None:
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST
        locks.acquire(request("b", Mode.REWRITE, "0"))
        locks.acquire(request("a", Mode.REWRITE, "0"))
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST

    def test_S20_an_exclusive_lock_waits_for_all_and_lets_nobody_pass(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.APPEND))
        assert isinstance(locks.acquire(request("b", Mode.EXCLUSIVE)), Waiting)
        # Fairness: who comes later does not starve it.
        assert isinstance(locks.acquire(request("c", Mode.APPEND)), Waiting)
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("b", Mode.EXCLUSIVE)), Granted)

    def test_tables_do_not_know_each_other(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.EXCLUSIVE))
        assert isinstance(locks.acquire(request("b", Mode.EXCLUSIVE, table="file:///b")), Granted)

    def test_tokens_rise(self, locks: LockStore) -> None:
        tokens = []
        for operation in ("a", "b", "c"):
            granted = locks.acquire(request(operation, Mode.REWRITE, "0"))
            assert isinstance(granted, Granted)
            tokens.append(granted.token)
            self.release(locks, operation)
        assert tokens == sorted(set(tokens))

    def test_a_release_wakes_who_waits(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0"))
        granted = threading.Event()

        def wait() -> None:
            locks.wait(TABLE, "b", LONG_S)
            if isinstance(locks.acquire(request("b", Mode.REWRITE, "0")), Granted):
                granted.set()

        thread = threading.Thread(target=wait)
        thread.start()
        self.release(locks, "a")
        thread.join(LONG_S)
        assert granted.is_set()

    def test_thirty_two_threads_never_hold_one_segment_together(self, locks: LockStore) -> None:
        holders: list[str] = []
        most: list[int] = []

        def work(name: str) -> None:
            asked = request(name, Mode.REWRITE, "0")
            while not isinstance(locks.acquire(asked), Granted):
                locks.wait(TABLE, name, LONG_S)
            holders.append(name)
            most.append(len(holders))
            holders.remove(name)
            self.release(locks, name)

        threads = [threading.Thread(target=work, args=(f"op{n}",)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert most == [1] * 32
        assert locks.entries(TABLE) == ()
