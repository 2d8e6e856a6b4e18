"""Stores whose credentials are vended: renewed at half of their life, and used until their end."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from support.lake.memory_store import MemoryStore
from tandem.errors import AccessDenied, StorageError
from tandem.storage.renewable import Vended, VendedStore

LIFE_MS = 3_600_000


class Catalog:
    """Vends numbered credentials, and is the clock."""

    def __init__(self, life_ms: int | None = LIFE_MS) -> None:
        self.time_ms = 1_000_000
        self.vended = 0
        self.life_ms = life_ms
        self.failure: StorageError | None = None
        self.opened: list[str] = []
        self.store = MemoryStore()

    def now_ms(self) -> int:
        return self.time_ms

    def vend(self) -> Vended:
        if self.failure is not None:
            raise self.failure
        self.vended += 1
        expires_ms = None if self.life_ms is None else self.time_ms + self.life_ms
        return Vended({"KEY": f"secret-{self.vended}"}, expires_ms)

    def open(self, environ: Mapping[str, str]) -> MemoryStore:
        self.opened.append(environ["KEY"])
        return self.store

    def make(self) -> VendedStore:
        return VendedStore(self.vend, self.open, self.now_ms)


def test_credentials_are_renewed_at_half_of_their_life() -> None:
    catalog = Catalog()
    store = catalog.make()
    store.put("a", b"1")
    catalog.time_ms += LIFE_MS // 2 - 1
    assert store.get("a") == b"1"
    assert catalog.vended == 1
    catalog.time_ms += 1
    assert store.get("a") == b"1"
    assert store.get("a") == b"1"
    assert catalog.opened == ["secret-1", "secret-2"]
    assert store.vended().environ == {"KEY": "secret-2"}


def test_credentials_without_an_end_are_kept() -> None:
    catalog = Catalog(life_ms=None)
    store = catalog.make()
    catalog.time_ms += 1000 * LIFE_MS
    store.put("a", b"1")
    assert catalog.vended == 1


def test_while_the_catalog_is_down_the_last_ones_are_used_until_they_expire() -> None:
    catalog = Catalog()
    store = catalog.make()
    store.put("a", b"1")
    catalog.failure = StorageError("down")
    catalog.time_ms += LIFE_MS // 2
    assert store.get("a") == b"1"
    catalog.time_ms += LIFE_MS // 2 - 1
    assert store.get("a") == b"1"
    catalog.time_ms += 60_000
    with pytest.raises(StorageError, match="down"):
        store.get("a")
    catalog.failure = None
    assert store.get("a") == b"1"
    assert catalog.opened == ["secret-1", "secret-2"]


def test_a_right_that_was_taken_away_ends_with_the_credentials() -> None:
    catalog = Catalog()
    store = catalog.make()
    catalog.failure = AccessDenied("revoked")
    catalog.time_ms += LIFE_MS
    with pytest.raises(AccessDenied, match="revoked"):
        store.put("a", b"1")


def test_others_go_on_while_one_call_renews() -> None:
    catalog = Catalog()
    store = catalog.make()
    store.put("a", b"1")
    asked, answered = threading.Event(), threading.Event()
    vend = catalog.vend

    def slow() -> Vended:
        asked.set()
        assert answered.wait(60)
        return vend()

    store = VendedStore(vend, catalog.open, catalog.now_ms)
    store._vend = slow
    catalog.time_ms += LIFE_MS // 2
    renewing = threading.Thread(target=store.get, args=("a",))
    renewing.start()
    assert asked.wait(60)
    assert store.get("a") == b"1"  # with the last ones, though the catalog has not answered
    answered.set()
    renewing.join()
    assert catalog.opened[-1] == f"secret-{catalog.vended}"


def test_credentials_are_in_no_text() -> None:
    store = Catalog().make()
    assert "secret-1" not in f"{store!r} {store.vended()!r} {store.location}"
