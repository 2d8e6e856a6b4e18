"""Locks in etcd, and its faults."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trustme

from cluster_processes import etcd as make_etcd
from cluster_processes import free_ports
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

# The store in etcd keeps the contract, against a real server; and what only it can do.


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


# The store in etcd while etcd is hurt: killed, stopped, wiped, compacted; with TLS and users.


# Calls that end by themselves after their `timeout_s`, not when etcd is back.
promptly = pytest.mark.timeout(240, func_only=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Etcd]:
    """One member that tests kill and restart, each of them leaving it well."""
    with start_etcd() as etcd:
        yield etcd


@contextmanager
def store(settings: EtcdSettings) -> Iterator[EtcdLocks]:
    made = EtcdLocks(settings)
    try:
        yield made
    finally:
        made.close()


def settings_of(etcd: Etcd, ttl_s: int = 60, timeout_s: float = 4.0) -> EtcdSettings:
    prefix = f"/test/{secrets.token_hex(4)}"
    return EtcdSettings(etcd.endpoints, prefix, ttl_s, timeout_s=timeout_s)


def eventually(call: Callable[[], object]) -> None:
    """The call comes through in the end; until then it says that etcd does not answer."""
    ends = time.monotonic() + LONG_S
    while True:
        try:
            call()
        except LocksUnavailable:
            assert time.monotonic() < ends
        else:
            return


def take_and_release(locks: EtcdLocks, operation: str) -> None:
    asked = request(operation, Mode.REWRITE, operation)
    assert isinstance(locks.acquire(asked), Granted)
    assert locks.enter_commit(TABLE, operation, owner(operation)) is CommitLease.ENTERED
    locks.release(TABLE, operation, owner(operation))


@promptly
def test_locks_are_unavailable_where_nothing_listens() -> None:
    (port,) = free_ports(1)
    with store(EtcdSettings((f"127.0.0.1:{port}",), timeout_s=1.0)) as locks:
        with pytest.raises(LocksUnavailable, match=str(port)):
            locks.acquire(request("a"))
        with pytest.raises(LocksUnavailable):
            locks.entries(TABLE)
        woken = threading.Event()
        locks.watch(TABLE, "a", woken.set)()


@promptly
def test_etcd_is_away_and_comes_back(shared: Etcd) -> None:
    (member,) = shared.members
    settings = settings_of(shared, timeout_s=1.0)
    with store(settings) as locks, store(settings) as other:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        other.acquire(request("b", Mode.REWRITE, "0"))
        woken = threading.Event()
        end = other.watch(TABLE, "b", woken.set)
        member.kill()
        for call in (
            lambda: locks.acquire(request("c", Mode.REWRITE, "1")),
            lambda: locks.enter_commit(TABLE, "a", owner("a")),
            lambda: locks.release(TABLE, "a", owner("a")),
        ):
            with pytest.raises(LocksUnavailable):
                call()
        assert not woken.is_set()
        member.start()
        # A request that had no answer may be repeated.
        eventually(lambda: locks.release(TABLE, "a", owner("a")))
        assert woken.wait(LONG_S)
        end()
        assert isinstance(other.acquire(request("b", Mode.REWRITE, "0")), Granted)
        assert isinstance(locks.acquire(request("c", Mode.REWRITE, "1")), Granted)
        assert locks.enter_commit(TABLE, "c", owner("c")) is CommitLease.ENTERED


def test_events_that_a_watch_missed_are_read_although_etcd_compacted_them(shared: Etcd) -> None:
    (member,) = shared.members
    gateway = Gateway(member.endpoint)
    settings = settings_of(shared)
    with store(settings) as locks, store(settings) as other:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        locks.acquire(request("b", Mode.REWRITE, "0"))
        woken = threading.Event()
        end = locks.watch(TABLE, "b", woken.set)
        (key,) = [key for key in gateway.keys(settings.prefix) if key.endswith("/a")]
        member.restart()
        gateway.delete(key)
        for number in range(20):
            take_and_release(other, f"other{number}")
        gateway.compact()
        assert woken.wait(LONG_S)
        end()
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "0")), Granted)
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST


def test_all_data_is_gone(shared: Etcd) -> None:
    (member,) = shared.members
    settings = settings_of(shared)
    with store(settings) as locks, store(settings) as other:
        for number in range(20):
            take_and_release(locks, f"before{number}")
        locks.acquire(request("a", Mode.REWRITE, "0"))
        other.acquire(request("b", Mode.REWRITE, "0"))
        woken = threading.Event()
        end = other.watch(TABLE, "b", woken.set)
        member.wipe()
        member.start()
        assert woken.wait(LONG_S)
        end()
        get(other, request("b", Mode.REWRITE, "0"))
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST
        assert isinstance(locks.acquire(request("a", Mode.REWRITE, "0")), Waiting)
        other.release(TABLE, "b", owner("b"))
        get(locks, request("a", Mode.REWRITE, "0"))
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED


def test_Z1_a_holder_that_cannot_renew_knows_of_the_loss_without_asking(shared: Etcd) -> None:
    (member,) = shared.members
    with store(settings_of(shared, ttl_s=5, timeout_s=1.0)) as locks:
        locks.acquire(request("a", Mode.REWRITE, "0"))
        # It holds: the watch calls at once; then at its loss.
        calls = threading.Semaphore(0)
        end = locks.watch(TABLE, "a", calls.release)
        assert calls.acquire(timeout=LONG_S)

        def until_lost() -> None:
            while calls.acquire(timeout=LONG_S):
                with suppress(LocksUnavailable):
                    if locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST:
                        return
            raise AssertionError("the loss was never reported")

        member.stop()
        try:
            until_lost()
        finally:
            member.resume()
        end()
        eventually(lambda: locks.acquire(request("a", Mode.REWRITE, "0")))
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED


@pytest.mark.matrix
def test_members_of_three_are_killed_and_stopped() -> None:
    """The leader, another, one that hangs: what was held stays held, who waits is woken."""
    with start_etcd(members=3) as etcd:
        settings = settings_of(etcd, ttl_s=50)
        backwards = replace(settings, endpoints=etcd.endpoints[::-1])
        with store(settings) as locks, store(backwards) as other:
            locks.acquire(request("a", Mode.REWRITE, "0"))
            other.acquire(request("b", Mode.REWRITE, "0"))
            woken = threading.Event()
            end = other.watch(TABLE, "b", woken.set)
            leader = next(m for m in etcd.members if Gateway(m.endpoint).is_leader())
            for number, member in enumerate((leader, etcd.members[0], etcd.members[2])):
                member.kill()
                eventually(partial(take_and_release, locks, f"killed{number}"))
                eventually(partial(take_and_release, other, f"too{number}"))
                member.restart()
            # Alive, but silent: its connections stay open.
            for number, member in enumerate(etcd.members):
                member.stop()
                try:
                    eventually(partial(take_and_release, locks, f"hung{number}"))
                finally:
                    member.resume()
            assert not woken.is_set()
            assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.ENTERED
            locks.release(TABLE, "a", owner("a"))
            assert woken.wait(LONG_S)
            end()
            assert isinstance(other.acquire(request("b", Mode.REWRITE, "0")), Granted)


def test_a_token_that_etcd_forgot_is_requested_again() -> None:
    with start_etcd() as etcd:
        (member,) = etcd.members
        Gateway(member.endpoint).ask_for_passwords("tandem", "right")
        settings = replace(settings_of(etcd, timeout_s=2.0), user="tandem", password="right")
        with store(settings) as locks:
            locks.acquire(request("a", Mode.REWRITE, "0"))
            locks.acquire(request("b", Mode.REWRITE, "0"))
            woken = threading.Event()
            end = locks.watch(TABLE, "b", woken.set)
            member.restart()  # tokens live in its memory
            take_and_release(locks, "c")
            locks.release(TABLE, "a", owner("a"))
            assert woken.wait(LONG_S)
            end()
        for wrong in (replace(settings, password="wrong"), replace(settings, user="")):
            with store(wrong) as locks, pytest.raises(LocksUnavailable, match="the user"):
                locks.acquire(request("a", Mode.REWRITE, "0"))


def test_etcd_asks_for_certificates(tmp_path: Path) -> None:
    authority, certificate, key = _certificates(tmp_path)
    (port,) = free_ports(1)
    etcd = make_etcd(tmp_path, 1)
    (member,) = etcd.members
    # Without TLS, too, for who looks whether it is ready.
    member._command += [
        f"--listen-client-urls=http://{member.endpoint},https://127.0.0.1:{port}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        f"--trusted-ca-file={authority}",
        "--client-cert-auth",
    ]
    settings = EtcdSettings(
        (f"https://127.0.0.1:{port}",),
        ca=authority,
        certificate=certificate,
        key=key,
        timeout_s=2.0,
    )
    anonymous = replace(settings, certificate=None, key=None, timeout_s=0.5)
    etcd.start()
    try:
        with store(settings) as locks:
            take_and_release(locks, "a")
        with store(anonymous) as locks, pytest.raises(LocksUnavailable):
            locks.acquire(request("a"))
        # Certificates expire, and new ones replace them.
        good = certificate.read_bytes(), key.read_bytes()
        _certificates(tmp_path, "stranger")
        certificate.write_bytes((tmp_path / "stranger-cert.pem").read_bytes())
        key.write_bytes((tmp_path / "stranger-key.pem").read_bytes())
        with store(replace(settings, timeout_s=0.5)) as locks:
            with pytest.raises(LocksUnavailable):
                locks.acquire(request("a"))
            certificate.write_bytes(good[0])
            key.write_bytes(good[1])
            eventually(partial(take_and_release, locks, "a"))
    finally:
        etcd.kill()
    with pytest.raises(FileNotFoundError):
        EtcdLocks(replace(settings, ca=tmp_path / "missing")).entries(TABLE)


def _certificates(folder: Path, name: str = "") -> tuple[Path, Path, Path]:
    """(authority, certificate, key): one for the server and its clients, by one authority."""

    prefix = f"{name}-" if name else ""
    files = tuple(folder / f"{prefix}{file}.pem" for file in ("ca", "cert", "key"))
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", common_name="tandem")
    authority.cert_pem.write_to_path(files[0])
    issued.cert_chain_pems[0].write_to_path(files[1])
    issued.private_key_pem.write_to_path(files[2])
    return files[0], files[1], files[2]
