"""The store inside one process keeps the contract; leases expire only when a test says so."""

from __future__ import annotations

import pytest

from locks.lock_contract import LockContract
from support.lock_requests import TABLE, owner, request
from tandem.locks.rules import CommitLease, Granted, Mode
from tandem.locks.store import InProcessLocks


class TestInProcessLocks(LockContract):
    @pytest.fixture
    def locks(self) -> InProcessLocks:
        return InProcessLocks()

    def test_Z1_an_expired_lease_frees_all_and_stops_the_holder(
        self, locks: InProcessLocks
    ) -> None:
        locks.acquire(request("a", Mode.REWRITE, "0", "1"))
        locks.expire(TABLE, "a")
        assert isinstance(locks.acquire(request("b", Mode.REWRITE, "1")), Granted)
        assert locks.enter_commit(TABLE, "a", owner("a")) is CommitLease.LOST
