"""The store for simulations: it fails exactly when and how the test sets."""

from __future__ import annotations

import threading

import pytest

from support.lake.memory_store import Call, MemoryStore
from tandem.errors import (
    AlreadyExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage import probe_put_if_absent


def test_a_fault_before_a_call_means_that_nothing_happened() -> None:
    def full(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == "before":
            raise StorageFull("no room", resource=call.path)

    store = MemoryStore(fault=full)
    with pytest.raises(StorageFull):
        store.put_if_absent("a", b"x")
    assert store.paths() == ()


def test_Z20_a_fault_after_a_put_means_applied_with_the_answer_lost() -> None:
    def lose(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == "after":
            raise OutcomeUnknown("lost", resource=call.path)

    store = MemoryStore(fault=lose)
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("a", b"x")
    assert store.get("a") == b"x"
    store.fault = None
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"y")


def test_a_hook_may_act_as_a_concurrent_writer() -> None:
    def other_writer(call: Call) -> None:
        if call.name == "put_if_absent" and call.when == "before":
            store.fault = None
            store.put("a", b"other")

    store = MemoryStore(fault=other_writer)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"mine")
    assert store.get("a") == b"other"


def test_the_calls_of_a_run_are_the_same_each_time() -> None:
    def run() -> list[Call]:
        seen: list[Call] = []
        store = MemoryStore(fault=seen.append)
        store.put("b", b"1")
        store.put_if_absent("a", b"2")
        list(store.list())
        with store.open_output("c") as output:
            output.write(b"3")
        store.get("c")
        store.delete(["a", "no"])
        return seen

    assert run() == run()
    assert [call.name for call in run() if call.when == "before"] == [
        "put",
        "put_if_absent",
        "list",
        "open_output",
        "get",
        "delete",
        "delete",
    ]


def test_time_is_a_counter_or_the_callers_clock() -> None:
    store = MemoryStore()
    store.put("a", b"")
    store.put("b", b"")
    store.put("a", b"")
    assert [(meta.path, meta.modified_ms) for meta in store.list()] == [("a", 3), ("b", 2)]
    timed = MemoryStore(clock=lambda: 1_700_000_000_000)
    timed.put("a", b"")
    assert timed.head("a").modified_ms == 1_700_000_000_000


def test_copies_are_independent() -> None:
    store = MemoryStore()
    store.put("a", b"1")
    copy = store.copy()
    copy.put("a", b"2")
    copy.put("b", b"3")
    assert (store.get("a"), store.paths()) == (b"1", ("a",))
    with pytest.raises(ObjectNotFound):
        store.get("b")


def test_the_probe_refuses_a_store_that_overwrites() -> None:
    class Overwriting(MemoryStore):
        def put_if_absent(self, path: str, data: bytes) -> None:
            self.put(path, data)

    store = Overwriting()
    with pytest.raises(StoreUnsuitable, match="absent") as caught:
        probe_put_if_absent(store)
    assert "second create" in caught.value.found
    assert store.paths() == ()


def test_the_probe_refuses_a_store_that_is_only_exclusive_one_at_a_time() -> None:
    class CheckThenAct(MemoryStore):
        """Looks first and writes then: two at once both see nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.barriers: dict[str, threading.Barrier] = {}

        def put_if_absent(self, path: str, data: bytes) -> None:
            present = path in self.paths()
            if "race" in path:
                self.barriers.setdefault(path, threading.Barrier(2)).wait(100)
            if present:
                raise AlreadyExists("there is one", resource=path)
            self.put(path, data)

    with pytest.raises(StoreUnsuitable) as caught:
        probe_put_if_absent(CheckThenAct())
    assert "concurrent" in caught.value.found
