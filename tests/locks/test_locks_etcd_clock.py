"""The wall clock of etcd jumps by a day, in either direction, while it runs and between two of its
starts: leases count by its monotonic clock, so none ends early and none is kept for longer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from locks.etcd_gateway import Gateway
from support.cluster.etcd_clock import DAY_S, MovedEtcd, start_moved_etcd
from support.lock_requests import TABLE, owner, request
from support.waiting import await_that
from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
from tandem.locks.rules import CommitLease, Mode

TTL_S = 5
LONG_S = 600
pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def etcd() -> Iterator[MovedEtcd]:
    with start_moved_etcd() as moved:
        yield moved


def left_s(gateway: Gateway, lease: str) -> int:
    """The seconds that etcd still gives a lease; -1 if there is none."""
    return int(gateway.post("lease/timetolive", ID=lease)["TTL"])


@pytest.mark.parametrize("restart", [False, True], ids=["while it runs", "between two starts"])
@pytest.mark.parametrize("first", [DAY_S, -DAY_S], ids=["forwards", "backwards"])
def test_leases_neither_end_early_nor_late_when_the_clock_of_etcd_jumps(
    etcd: MovedEtcd, first: int, restart: bool
) -> None:
    etcd.move(0)
    gateway, prefix = Gateway(etcd.member.endpoint), f"/test/{secrets.token_hex(4)}"
    settings = EtcdSettings((etcd.member.endpoint,), prefix, TTL_S)
    lives, dies = EtcdLocks(settings), EtcdLocks(settings)
    lives.acquire(request("lives", Mode.UPDATE, "0"))
    dies.acquire(request("dies", Mode.UPDATE, "1"))
    # One that no process renews, and that lasts longer than this test.
    kept = str(gateway.post("lease/grant", TTL=LONG_S)["ID"])
    for ahead in (first, -first):
        if restart:
            etcd.member.kill()
            etcd.set_ahead(ahead)
            etcd.member.start()
            etcd.await_ahead(ahead)
        else:
            etcd.move(ahead)
        assert 0 < left_s(gateway, kept) <= LONG_S
        held = {entry.request.operation for entry in lives.entries(TABLE)}
        assert "lives" in held
        if ahead == first:
            assert "dies" in held
            dies.close()  # as a process that is killed: it releases nothing
            await_that(
                lambda: {e.request.operation for e in lives.entries(TABLE)} == {"lives"},
                lambda: lives.entries(TABLE),
            )
    # The lock that is renewed was never lost: its owner may commit.
    assert lives.enter_commit(TABLE, "lives", owner("lives")) is CommitLease.ENTERED
    lives.leave_commit(TABLE, "lives", owner("lives"))
    lives.release(TABLE, "lives", owner("lives"))
    assert lives.entries(TABLE) == ()
    lives.close()
    etcd.move(0)
