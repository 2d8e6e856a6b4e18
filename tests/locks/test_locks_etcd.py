"""The store in etcd keeps the contract, against a real server; and what only it can do."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from locks import lock_holder
from locks.etcd_gateway import Gateway
from locks.lock_contract import LockContract
from support.cluster.etcd import Etcd, start_etcd
from support.lock_requests import LONG_S, TABLE, get, in_threads, owner, request
from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.locks.etcd import mirror
from tandem.locks.etcd.client import EtcdConnection
from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
from tandem.locks.rules import NOTHING, CommitLease, EntryState, Granted, Mode, Waiting

Make = Callable[..., EtcdLocks]


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with start_etcd() as etcd:
        yield etcd


@pytest.fixture
def prefix() -> str:
    return f"/test/{secrets.token_hex(4)}"


@pytest.fixture
def make(etcd: Etcd, prefix: str) -> Iterator[Make]:
    """Stores as several processes have them."""
    with ExitStack() as stack:

        def make_one(ttl_s: int = 60) -> EtcdLocks:
            store = EtcdLocks(EtcdSettings(etcd.endpoints, prefix, ttl_s))
            stack.callback(store.close)
            return store

        yield make_one


@pytest.fixture
def locks(make: Make) -> EtcdLocks:
    return make()


def until(holds: Callable[[], bool]) -> None:
    """Wait for what comes by itself."""
    pause = threading.Event()
    for _ in range(int(LONG_S / 0.02)):
        if holds():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come")


class TestEtcdLocks(LockContract):
    @pytest.fixture
    def locks(self, make: Make) -> EtcdLocks:
        return make()


def test_nothing_is_left_behind(etcd: Etcd, prefix: str, make: Make) -> None:
    gateway = Gateway(etcd.endpoints[0])
    before = gateway.leases()
    one, other = make(), make()
    one.acquire(request("a", Mode.REWRITE, "0"))
    other.acquire(request("b", Mode.REWRITE, "0"))  # lost the race, and gives up
    other.acquire(request("a", Mode.REWRITE, "0", owner="restarted"))  # takes over
    one.acquire(request("c", Mode.REWRITE, "0", priority=1))  # revokes
    other.acquire(request("a", Mode.REWRITE, "0", owner="restarted"))  # queues again
    assert len(gateway.keys(prefix)) == 4
    until(lambda: len(gateway.leases() - before) == 3)
    other.release(TABLE, "b", owner("b"))
    one.release(TABLE, "c", owner("c"))
    other.release(TABLE, "a", "restarted")
    until(lambda: gateway.keys(prefix) == [])
    until(lambda: gateway.leases() <= before)


def test_closing_leaves_locks_to_a_successor_but_no_unused_head(
    etcd: Etcd, prefix: str, make: Make
) -> None:
    gateway = Gateway(etcd.endpoints[0])
    first = make()
    first.acquire(request("a", Mode.REWRITE, "0"))
    first.acquire(request("b", Mode.REWRITE, "0", table="file:///other"))
    first.release("file:///other", "b", owner("b"))
    first.close()
    assert [key.rsplit("/", 1)[1] for key in gateway.keys(prefix)] == ["head", "a"]
    second = make()
    assert isinstance(second.acquire(request("a", Mode.REWRITE, "0", owner="next")), Granted)
    assert second.enter_commit(TABLE, "a", "next") is CommitLease.ENTERED
    with pytest.raises(LocksUnavailable, match="closed"):
        first.entries(TABLE)


def test_an_unused_head_is_removed(etcd: Etcd, prefix: str, make: Make) -> None:
    gateway = Gateway(etcd.endpoints[0])
    gateway.put(f"{prefix}/tables/0123456789abcdef/head", "{}")
    make().entries(TABLE)
    until(lambda: gateway.keys(prefix) == [])


def test_stores_see_at_once_what_others_did(make: Make) -> None:
    one, other = make(), make()
    for operation in ("a", "b", "c"):
        assert isinstance(one.acquire(request(operation, Mode.REWRITE, "0")), Granted)
        assert isinstance(other.acquire(request("x", Mode.REWRITE, "0")), Waiting)
        one.release(TABLE, operation, owner(operation))
        assert isinstance(other.acquire(request("x", Mode.REWRITE, "0")), Granted)
        assert isinstance(one.acquire(request(operation, Mode.REWRITE, "0")), Waiting)
        other.release(TABLE, "x", owner("x"))
        assert isinstance(one.acquire(request(operation, Mode.REWRITE, "0")), Granted)
        one.release(TABLE, operation, owner(operation))


def test_waiting_is_fair_across_stores(make: Make) -> None:
    stores = [make() for _ in range(3)]
    stores[0].acquire(request("first", Mode.REWRITE, "0"))
    for number in range(9):
        stores[number % 3].acquire(request(f"op{number}", Mode.REWRITE, "0"))
    order: list[int] = []

    def work(number: int) -> None:
        store = stores[number % 3]
        get(store, request(f"op{number}", Mode.REWRITE, "0"))
        order.append(number)
        store.release(TABLE, f"op{number}", owner(f"op{number}"))

    stores[0].release(TABLE, "first", owner("first"))
    in_threads(*(lambda n=n: work(n) for n in reversed(range(9))))
    assert order == list(range(9))


def test_I27_a_take_over_by_another_process(etcd: Etcd, make: Make) -> None:
    gateway = Gateway(etcd.endpoints[0])
    zombie, next_one = make(), make()
    first = zombie.acquire(request("a", Mode.REWRITE, "0"))
    zombie.acquire(request("b", Mode.REWRITE, "0"))
    leases = gateway.leases()
    second = next_one.acquire(request("a", Mode.REWRITE, "0", owner="next"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert second.token > first.token
    # The zombie's lease is ended, not kept alive by it for ever.
    until(lambda: len(gateway.leases() & leases) == len(leases) - 1)
    assert zombie.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST
    assert zombie.extend(TABLE, "a", owner("a"), NOTHING) == Waiting(())
    zombie.release(TABLE, "a", owner("a"))
    assert [e.request.owner for e in next_one.entries(TABLE)] == ["next", owner("b")]
    assert next_one.enter_commit(TABLE, "a", "next") is CommitLease.ENTERED


def test_a_process_with_the_same_owner_resumes_its_lock(make: Make) -> None:
    first = make()
    granted = first.acquire(request("a", Mode.REWRITE, "0"))
    first.close()
    second = make()
    assert second.acquire(request("a", Mode.REWRITE, "0")) == granted
    assert second.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED
    third = make()
    third.release(TABLE, "a", owner("a"))
    assert third.entries(TABLE) == ()


def test_an_uncontended_lock_is_a_grant_one_transaction_and_a_revocation(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    call = EtcdConnection.call

    async def counted(self: EtcdConnection, method: str, asked: object) -> object:
        called.append(method)
        return await call(self, method, asked)

    monkeypatch.setattr(EtcdConnection, "call", counted)
    store = make()
    for operation in ("a", "b"):
        segments = [f"{operation}{number}" for number in range(1000)]
        assert isinstance(store.acquire(request(operation, Mode.REWRITE, *segments)), Granted)
    assert store.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED
    store.release(TABLE, "a", owner("a"))
    assert called == ["grant", "txn", "grant", "txn", "txn", "revoke"]


def test_S26_more_holders_than_a_transaction_can_mark_are_waited_for(make: Make) -> None:
    store = make()
    count = mirror.MOST_REVOKED + 1
    names = [f"op{number}" for number in range(count)]
    for name in names:
        store.acquire(request(name, Mode.APPEND))
    urgent = request("urgent", Mode.EXCLUSIVE, priority=1)
    assert isinstance(store.acquire(urgent), Waiting)
    assert not any(entry.revoked_by for entry in store.entries(TABLE))
    woken = threading.Event()
    end = store.watch(TABLE, "urgent", woken.set)
    store.release(TABLE, names[0], owner(names[0]))
    assert woken.wait(LONG_S)
    end()
    assert isinstance(store.acquire(urgent), Granted)
    assert sum(bool(entry.revoked_by) for entry in store.entries(TABLE)) == count - 1


def test_a_plan_that_is_too_large_is_refused_and_no_other(make: Make) -> None:
    store = make()
    huge = request("huge", Mode.REWRITE, *(f"segment-{number}" for number in range(120_000)))
    refused: list[InvalidSpec] = []

    def ask_too_much() -> None:
        try:
            store.acquire(huge)
        except InvalidSpec as error:
            refused.append(error)

    def get_one(number: int) -> None:
        get(store, request(f"op{number}", Mode.REWRITE, str(number)))

    in_threads(
        ask_too_much,
        *(partial(get_one, number) for number in range(6)),
    )
    assert "1 MB" in str(refused[0])
    assert len(store.entries(TABLE)) == 6


def test_an_etcd_must_be_named() -> None:
    with pytest.raises(InvalidSpec, match="endpoints"):
        EtcdLocks(EtcdSettings(()))


def test_people_can_read_a_lock(etcd: Etcd, prefix: str, locks: EtcdLocks) -> None:
    locks.acquire(request("default/nightly", Mode.REWRITE, "0", "0.1"))
    gateway = Gateway(etcd.endpoints[0])
    head, entry = gateway.keys(prefix)
    assert head.endswith("/head")
    assert entry.endswith("/operations/default%2Fnightly")
    assert {e.request.operation for e in locks.entries(TABLE)} == {"default/nightly"}


@pytest.mark.parametrize(
    ("value", "says"), [("not ours", "cannot be read"), (json.dumps({"version": 2}), "Upgrade")]
)
def test_unreadable_entries_are_not_ignored(
    etcd: Etcd, prefix: str, locks: EtcdLocks, value: str, says: str
) -> None:
    locks.acquire(request("a", Mode.REWRITE, "0"))
    gateway = Gateway(etcd.endpoints[0])
    (key,) = [key for key in gateway.keys(prefix) if not key.endswith("/head")]
    stranger = key.replace("/operations/a", "/operations/stranger")
    gateway.put(stranger, value)
    gateway.put(key.replace("/operations/a", "/head"), "bumped")
    with pytest.raises(LocksUnavailable, match=says):
        locks.acquire(request("b", Mode.REWRITE, "1"))
    gateway.delete(stranger)
    assert isinstance(locks.acquire(request("b", Mode.REWRITE, "1")), Granted)


def test_Z1_a_holder_that_stood_still_finds_its_lock_lost(
    etcd: Etcd, prefix: str, locks: EtcdLocks
) -> None:
    with lock_holder.holder(etcd.endpoints[0], prefix, ttl_s=5) as holder:
        assert lock_holder.ask_to_commit(holder) == "Entered"
        os.kill(holder.pid, signal.SIGSTOP)
        get(locks, request("b", Mode.REWRITE, "0"))
        os.kill(holder.pid, signal.SIGCONT)
        assert lock_holder.ask_to_commit(holder) == "Lost"
        assert locks.enter_commit(TABLE, "b", owner("b")) is CommitLease.ENTERED


def test_a_lock_is_kept_alive_for_longer_than_its_lease(
    etcd: Etcd, prefix: str, locks: EtcdLocks
) -> None:
    """Two holders with a lease of 5 s, one of them killed: when its lock has expired, the
    other's, which is as old, is still there."""
    asked = request("b", Mode.REWRITE, "1")
    mine = EtcdLocks(EtcdSettings(etcd.endpoints, prefix, ttl_s=5))
    assert isinstance(mine.acquire(asked), Granted)
    with lock_holder.holder(etcd.endpoints[0], prefix, ttl_s=5) as holder:
        holder.kill()
        get(locks, request("c", Mode.REWRITE, "0"))
    assert [e.state for e in locks.entries(TABLE)] == [EntryState.HELD, EntryState.HELD]
    assert mine.enter_commit(TABLE, "b", owner("b")) is CommitLease.ENTERED
    mine.close()
