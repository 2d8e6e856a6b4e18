"""The store in etcd keeps the contract, against a real server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from support.etcd import Etcd, start_etcd
from support.lock_contract import LockContract
from tandem.locks.etcd import EtcdLocks, EtcdSettings


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with start_etcd() as etcd:
        yield etcd


class TestEtcdLocks(LockContract):
    @pytest.fixture
    def locks(self, etcd: Etcd) -> Iterator[EtcdLocks]:
        store = EtcdLocks(EtcdSettings(etcd.endpoints, prefix=f"/test/{secrets.token_hex(4)}"))
        yield store
        store.close()
