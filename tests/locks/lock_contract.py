"""What every `LockStore` must do. A test class for each store inherits `LockContract`.

Times never decide a test: waiting is checked by `wait` returning at once or not at all.
Which modes may stand beside each other is checked against a table copied by hand.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from locks.lock_contract_intervals import IntervalContract
from support.lock_requests import LONG_S, TABLE, get, in_threads, owner, request
from tandem.locks.rules import (
    CommitLease,
    EntryState,
    Granted,
    LockRequest,
    Mode,
    Waiting,
    named,
    segment,
)
from tandem.locks.store import LockStore

# Written by hand, not read from the rules: requested → held that it may join.
MAY_STAND_BESIDE: dict[Mode, set[Mode]] = {
    Mode.APPEND: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE, Mode.REPLACE},
    Mode.UPDATE: {Mode.APPEND, Mode.UPDATE, Mode.REWRITE},
    Mode.REWRITE: {Mode.APPEND, Mode.UPDATE},
    Mode.REPLACE: {Mode.APPEND, Mode.REWRITE},
    Mode.EXCLUSIVE: set(),
}


def excluded(holders: Iterable[tuple[int, LockRequest]]) -> list[tuple[str, str]]:
    """Pairs of (token, holder) that may not hold together, the later one beside the earlier:
    slow and obvious. Who was granted in the same instant may have been in either order."""

    def may(earlier: LockRequest, later: LockRequest) -> bool:
        return earlier.mode in MAY_STAND_BESIDE[later.mode]

    return [
        (one.operation, other.operation)
        for (first, one), (second, other) in itertools.combinations(holders, 2)
        if one.table == other.table
        and set(one.resources.names) & set(other.resources.names)
        and not (first <= second and may(one, other))
        and not (second <= first and may(other, one))
    ]


class LockContract(IntervalContract):
    """Inherit, and give the fixture `locks`."""

    def test_C14_a_held_segment_makes_a_rewrite_wait_and_names_its_holder(
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
            more = named(["1", "2"])
            assert locks.extend(TABLE, "a", owner("a"), more) == granted
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "2")), Waiting)

    def test_S24_extend_over_a_held_segment_changes_nothing(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1"))
        answer = locks.extend(TABLE, "a", owner("a"), segment("1"))
        assert isinstance(answer, Waiting)
        assert locks.entries(TABLE)[0].request.resources == segment("0")

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

    def test_S26_a_higher_priority_revokes_none_if_one_cannot_be_revoked(
        self, locks: LockStore
    ) -> None:
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

    def test_S20_an_exclusive_lock_waits_for_all_and_is_not_overtaken(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.APPEND))
        assert isinstance(locks.acquire(request("b", Mode.EXCLUSIVE)), Waiting)
        # Fairness: who comes later does not starve it.
        assert isinstance(locks.acquire(request("c", Mode.APPEND)), Waiting)
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("b", Mode.EXCLUSIVE)), Granted)

    def test_locks_of_different_tables_are_independent(self, locks: LockStore) -> None:
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

    def test_a_release_wakes_the_waiter(self, locks: LockStore) -> None:
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

    def test_C10_of_two_compactions_with_a_common_input_one_waits_and_may_then_plan_again(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0", "1", "2", "3"))
        late = request("b", Mode.REWRITE, "2", "3", "4", "5")
        assert locks.acquire(late) == Waiting((("TableCompaction/a", "segment 2"),))
        # It waits with its first plan, and asks with the next one: what is left after "a".
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0.1", "4", "5")), Granted)
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "2", "3")), Granted)

    def test_a_plan_of_a_thousand_segments_is_all_or_nothing(self, locks: LockStore) -> None:
        many = [str(number) for number in range(1000)]
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, *many)), Granted)
        late = locks.acquire(request("b", Mode.REWRITE, "other", "999"))
        assert late == Waiting((("TableCompaction/a", "segment 999"),))
        beside = [str(number) for number in range(1000, 2000)]
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, *beside)), Granted)
        held = [e.request for e in locks.entries(TABLE) if e.state is EntryState.HELD]
        assert [len(r.resources) for r in held] == [1000, 1000]
        assert list(held[0].resources.names) == many

    def test_S20_an_exclusive_lock_of_higher_priority_revokes_segment_locks(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.APPEND))
        assert isinstance(locks.acquire(request("c", Mode.EXCLUSIVE, priority=1)), Granted)
        for operation in ("a", "b"):
            assert locks.enter_commit(TABLE, operation, owner(operation)) is CommitLease.REVOKED

    def test_S25_the_name_of_an_output_is_not_locked(self, locks: LockStore) -> None:
        # It is given out in the commit: who is granted "0.1" meanwhile names a live segment.
        locks.acquire(request("a", Mode.REWRITE, "0", "1", "2", "3"))
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0.1")), Granted)

    def test_Z16_tokens_are_not_issued_twice_after_the_last_release(self, locks: LockStore) -> None:
        first = locks.acquire(request("a", Mode.REWRITE, "0"))
        self.release(locks, "a")
        assert locks.entries(TABLE) == ()
        again = locks.acquire(request("a", Mode.REWRITE, "0"))
        assert isinstance(first, Granted)
        assert isinstance(again, Granted)
        assert again.token > first.token

    def test_I27_a_lock_on_the_same_segments_in_another_mode_is_another_lock(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.UPDATE, "0"))
        locks.acquire(request("b", Mode.UPDATE, "0"))
        assert isinstance(locks.acquire(request("a", Mode.REPLACE, "0")), Waiting)

    def test_I27_a_restarted_waiter_keeps_its_place(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0"))
        locks.acquire(request("c", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0", owner="restarted"))
        assert [e.request.operation for e in locks.entries(TABLE)] == ["a", "b", "c"]
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "0")), Waiting)
        restarted = request("b", Mode.REWRITE, "0", owner="restarted")
        assert isinstance(locks.acquire(restarted), Granted)
        assert locks.enter_commit(TABLE, "b", "restarted") is CommitLease.ENTERED

    def test_I27_a_take_over_takes_back_the_right_to_commit(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.enter_commit(TABLE, "a", owner("a"))
        locks.acquire(request("a", Mode.REWRITE, "0", owner="restarted"))
        assert [e.state for e in locks.entries(TABLE)] == [EntryState.HELD]
        locks.leave_commit(TABLE, "a", owner("a"))
        assert locks.enter_commit(TABLE, "a", "restarted") is CommitLease.ENTERED
        assert [e.state for e in locks.entries(TABLE)] == [EntryState.COMMITTING]

    def test_S24_extend_names_the_holders_and_a_lost_lock_extends_nothing(
        self, locks: LockStore
    ) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "1"))
        met = locks.extend(TABLE, "a", owner("a"), named(["2", "1"]))
        assert met == Waiting((("TableCompaction/b", "segment 1"),))
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "2")), Granted)
        self.release(locks, "a")
        assert locks.extend(TABLE, "a", owner("a"), segment("3")) == Waiting(())
        assert locks.extend(TABLE, "b", "a zombie", segment("3")) == Waiting(())

    def test_S24_a_stream_takes_locks_one_by_one(self, locks: LockStore) -> None:
        first = locks.acquire(request("a", Mode.UPDATE, "0"))
        for number in range(1, 20):
            assert locks.extend(TABLE, "a", owner("a"), segment(str(number))) == first
        (entry,) = locks.entries(TABLE)
        assert list(entry.request.resources.names) == [str(n) for n in range(20)]
        assert isinstance(locks.acquire(request("b", Mode.REPLACE, "19")), Waiting)
        self.release(locks, "a")
        assert isinstance(locks.acquire(request("b", Mode.REPLACE, "19")), Granted)

    def test_a_watch_notifies_the_granted_waiter_and_no_other(self, locks: LockStore) -> None:
        for operation in ("a", "b", "c"):
            locks.acquire(request(operation, Mode.REWRITE, "0"))
        woken = {operation: threading.Event() for operation in ("b", "c")}
        ends = [locks.watch(TABLE, operation, event.set) for operation, event in woken.items()]
        assert not woken["b"].is_set()
        self.release(locks, "a")
        assert woken["b"].wait(LONG_S)
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0")), Granted)
        assert not woken["c"].is_set()
        self.release(locks, "b")
        assert woken["c"].wait(LONG_S)
        for end in ends:
            end()

    def test_a_watch_calls_at_once_if_there_is_nothing_to_wait_for(self, locks: LockStore) -> None:
        for asked_for in (None, request("a", Mode.REWRITE, "0")):
            if asked_for is not None:
                locks.acquire(asked_for)
            woken = threading.Event()
            end = locks.watch(TABLE, "a", woken.set)
            assert woken.wait(LONG_S)
            end()

    def test_a_watch_notifies_a_holder_of_its_loss(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        seen: list[tuple[EntryState, str]] = []
        changed = threading.Event()
        end = locks.watch(TABLE, "a", changed.set)
        locks.acquire(request("b", Mode.REWRITE, "0", priority=1))
        while not any(revoked for _, revoked in seen):
            assert changed.wait(LONG_S)
            changed.clear()
            seen += [(e.state, e.revoked_by) for e in locks.entries(TABLE)]
        end()
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.REVOKED

    def test_a_watch_that_was_ended_is_silent(self, locks: LockStore) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0"))
        silent, woken = threading.Event(), threading.Event()
        locks.watch(TABLE, "b", silent.set)()
        end = locks.watch(TABLE, "b", woken.set)
        self.release(locks, "a")
        assert woken.wait(LONG_S)
        end()
        assert not silent.is_set()

    @pytest.mark.parametrize("seed", range(2))
    def test_no_two_excluded_holders_ever(self, locks: LockStore, seed: int) -> None:
        """Many threads, few segments, all modes: who holds is kept beside the store, and every
        grant is checked against all others."""
        mutex = threading.Lock()
        holding: dict[str, tuple[int, LockRequest]] = {}

        def work(name: str) -> None:
            chance = random.Random(f"{seed}{name}")
            for number in range(4):
                asked_for = request(
                    f"{name}.{number}",
                    chance.choice(list(Mode)),
                    *chance.sample("01234567", chance.randint(1, 3)),
                    table=chance.choice(("file:///one", "file:///other")),
                )
                token = get(locks, asked_for)
                with mutex:
                    holding[asked_for.operation] = (token, asked_for)
                    assert not excluded(holding.values())
                lease = locks.enter_commit(asked_for.table, asked_for.operation, asked_for.owner)
                assert lease is CommitLease.ENTERED
                with mutex:
                    assert not excluded(holding.values())
                    del holding[asked_for.operation]
                locks.release(asked_for.table, asked_for.operation, asked_for.owner)

        in_threads(*(lambda n=n: work(f"op{n}") for n in range(16)))
        assert not holding
        for table in ("file:///one", "file:///other"):
            assert locks.entries(table) == ()

    def test_I24_no_two_excluded_operations_are_inside_their_commits(
        self, locks: LockStore
    ) -> None:
        """With priorities, holders are revoked: not they count, but who entered its commit."""
        mutex = threading.Lock()
        inside: dict[str, tuple[int, LockRequest]] = {}
        committed: list[str] = []

        def work(name: str) -> None:
            chance = random.Random(name)
            asked_for = replace(
                request(name, chance.choice(list(Mode)), *chance.sample("012", 2)),
                priority=chance.randint(0, 3),
            )
            while True:
                token = get(locks, asked_for)
                if locks.enter_commit(TABLE, name, asked_for.owner) is CommitLease.ENTERED:
                    break
            with mutex:
                inside[name] = (token, asked_for)
                assert not excluded(inside.values())
            with mutex:
                del inside[name]
                committed.append(name)
            locks.leave_commit(TABLE, name, asked_for.owner)
            locks.release(TABLE, name, asked_for.owner)

        in_threads(*(lambda n=n: work(f"op{n}") for n in range(24)))
        assert len(committed) == 24
        assert locks.entries(TABLE) == ()
