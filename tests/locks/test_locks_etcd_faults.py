"""The store in etcd while etcd is hurt: killed, stopped, wiped, compacted; with TLS and users."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trustme

from cluster_processes import etcd as make_etcd
from cluster_processes import free_ports
from locks.etcd_gateway import Gateway
from support.cluster.etcd import Etcd, start_etcd
from support.lock_requests import LONG_S, TABLE, get, owner, request
from tandem.errors import LocksUnavailable
from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
from tandem.locks.rules import CommitLease, Granted, Mode, Waiting

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
def test_nothing_listens() -> None:
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
