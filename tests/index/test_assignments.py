"""The assignment that threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem.index.server import assignment as rules
from tandem.index.server.assignment import Assignments, Executor, Routes, Shard, ShardMapping

A, B, C = (Executor(slot, f"host_{slot}") for slot in range(3))
_NOT_AT_ONCE_S = 0.3


def shared(*executors: Executor) -> Assignments:
    found = Assignments()
    for executor in executors:
        found.join(executor)
    return found


def test_X14_of_two_askers_of_an_unmapped_shard_one_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one decides, another asks for the same shard and a larger one: alone it would decide
    otherwise."""
    both = shared(A, B)
    small, large = Shard("t", "small", 1), Shard("t", "large", 2)
    decided = rules.assign
    second: list[threading.Thread] = []
    answers: list[Routes] = []

    def interrupted(
        shards: Iterable[Shard], executors: Iterable[Executor], now: ShardMapping
    ) -> ShardMapping:
        found = decided(shards, executors, now)
        if not second:
            second.append(
                threading.Thread(target=lambda: answers.append(both.route([small, large])))
            )
            second[0].start()
            # It must not end before this one has decided.
            second[0].join(_NOT_AT_ONCE_S)
        return found

    monkeypatch.setattr(rules, "assign", interrupted)
    answers.append(both.route([small]))
    second[0].join()
    first, other = sorted(answers, key=lambda routes: len(routes.by_executor))
    assert first.by_executor == {A: (small,)}
    assert other.by_executor == {A: (small,), B: (large,)}
    assert both.now.owners == {small: A, large: B}


def test_X14_many_askers_get_one_executor_for_each_shard() -> None:
    executors = [Executor(slot, f"host_{slot}") for slot in range(7)]
    everywhere = shared(*executors)
    asked = [Shard("t", f"{key}", key % 5) for key in range(200)]
    start = threading.Barrier(8)

    def ask(asker: int) -> dict[Shard, Executor]:
        seen: dict[Shard, Executor] = {}
        start.wait()
        for at in range(0, 200, 10):
            begin = (at + 25 * asker) % 200
            found = everywhere.route(asked[begin : begin + 10])
            assert not found.unassigned
            seen.update((s, e) for e, each in found.by_executor.items() for s in each)
        return seen

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    for seen in answers:
        assert seen.items() <= everywhere.now.owners.items()
    assert set(everywhere.now.owners) == set(asked)


def test_I49_an_executor_that_was_removed_is_in_no_later_answer() -> None:
    three = shared(A, B, C)
    asked = [Shard("t", f"{key}", 10 - key) for key in range(6)]
    before = three.route(asked)
    lost = three.remove(B)
    assert lost == before.by_executor[B]
    assert B not in three.route(asked).by_executor
    assert three.remove(B) == ()
    three.remove(A)
    three.remove(C)
    assert three.route(asked) == Routes({}, tuple(asked))


def test_X7_one_that_joins_again_gets_the_next_new_shard() -> None:
    both = shared(A, B)
    asked = [Shard("t", f"{key}", 1) for key in range(4)]
    both.route(asked)
    both.remove(A)
    both.route(asked)
    both.join(A)
    new = Shard("t", "new", 100)
    assert both.route([new]).by_executor == {A: (new,)}


def test_reports_and_drops_change_the_shared_assignment() -> None:
    both = shared(A, B)
    one, two, other = Shard("t", "1", 5), Shard("t", "2", 4), Shard("u", "1", 3)
    both.route([one, two, other])
    both.report(A, {one: 50, two: 60})
    assert both.now.sizes == {one: 50, two: 4, other: 3}
    both.drop_shards([two])
    assert set(both.now.owners) == {one, other}
    both.drop_table("t")
    assert both.now.owners == {other: B}
    assert both.now.sizes == {other: 3}
