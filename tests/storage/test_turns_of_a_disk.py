"""Threads that read a slow disk, such as one that is mounted from a network, leave their turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.waiting import LIMIT_S
from tandem.storage import rooted
from tandem.storage.local import LocalStore
from tandem.storage.rooted import open_store
from tandem.storage.store import Store
from tandem.turns import Turn, Turns

READS = 20


def in_turns(*calls: Callable[[], object]) -> None:
    turns = Turns(1, 2 * LIMIT_S)  # so that a failure ends

    def work(call: Callable[[], object]) -> None:
        with Turn(turns):
            call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for each in [pool.submit(work, call) for call in calls]:
            each.result(LIMIT_S)


def read_before(store: Store) -> None:
    store.put("a", b"x")
    for _ in range(READS):
        assert store.get("a") == b"x"


def test_reads_of_a_slow_disk_wait_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, together, now_s = LocalStore.get, threading.Barrier(2), [0.0]

    def far(store: LocalStore, path: str) -> bytes:
        now_s[0] += 3 * rooted._SLOW_S
        return get(store, path)

    def at_once(store: LocalStore, path: str) -> bytes:
        together.wait(LIMIT_S)
        return get(store, path)

    first, second = open_store(f"{tmp_path}/lake/a"), open_store(f"{tmp_path}/lake/b")
    second.put("a", b"y")
    monkeypatch.setattr(rooted, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(LocalStore, "get", far)
    read_before(first)
    monkeypatch.setattr(LocalStore, "get", at_once)
    # The other table lies beside it.
    in_turns(lambda: first.get("a"), lambda: second.get("a"))


def test_a_listing_of_a_slow_disk_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{tmp_path}/a")
    for number in range(2 * rooted._SLOW_LIST_CHUNK):
        store.put(f"folder/{number:02}", b"")
    before = list(store.list())
    monkeypatch.setattr(rooted, "_SLOW_S", -1.0)
    assert list(store.list()) == before
    assert list(store.list("folder", start_after="folder/03")) == before[4:]


def test_reads_of_a_near_disk_keep_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are many, and they are short."""

    def no() -> None:
        raise AssertionError("a turn was left")

    monkeypatch.setattr(rooted, "_SLOW_S", LIMIT_S)
    monkeypatch.setattr(rooted, "waiting", no)
    store = open_store(f"{tmp_path}/a")
    read_before(store)
    assert [each.path for each in store.list()] == ["a"]
