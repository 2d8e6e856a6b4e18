"""Shards of one table list its stored facts once."""

from __future__ import annotations

from pathlib import Path

from tandem.index.facts.files import FOLDER, LISTED_S
from tandem.index.server.executor import SharedListing
from tandem.storage import open_store


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_stored_facts_are_listed_once_for_a_while(tmp_path: Path) -> None:
    store, clock = open_store(tmp_path.as_uri()), Clock()
    shared = SharedListing(store, now=clock)
    store.put(f"{FOLDER}/one.facts", b"1")
    for _ in range(2):
        assert [each.path for each in shared.list(FOLDER)] == [f"{FOLDER}/one.facts"]
        store.put(f"{FOLDER}/two.facts", b"2")
    clock.now = LISTED_S
    assert len(list(shared.list(FOLDER))) == 2


def test_all_else_is_the_store_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    shared = SharedListing(store)
    assert shared.location == store.location
    shared.put("a/b", b"123")
    shared.put_if_absent("a/c", b"4")
    assert shared.get("a/b") == b"123"
    assert shared.get_range("a/b", 1, 1) == b"2"
    assert shared.head("a/b") == store.head("a/b")
    assert [each.path for each in shared.list("a")] == ["a/b", "a/c"]
    assert [each.path for each in shared.list("a", start_after="a/b")] == ["a/c"]
    with shared.open_input("a/b") as source:
        assert source.read() == b"123"
    with shared.open_output("a/d") as sink:
        sink.write(b"5")
    shared.delete(["a/c"])
    assert [each.path for each in store.list("a")] == ["a/b", "a/d"]
    assert shared.delete_prefix("a") == 2
