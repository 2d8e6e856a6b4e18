"""The assignment that threads share."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tandem.index.server.registration import Registry, RemoteExecutor
from tandem.index.server.shards import Executor, Shard, ShardMapping

A, B, C = (Executor(slot, f"host_{slot}") for slot in range(3))
_NOT_AT_ONCE_S = 0.3


class NoConnection:
    """An executor that is not asked."""

    def close(self) -> None:
        """Nothing is open."""


def join(registry: Registry, *executors: Executor) -> None:
    for executor in executors:
        registry.join(executor, cast(RemoteExecutor, NoConnection()))


def shared(*executors: Executor) -> Registry:
    found = Registry()
    join(found, *executors)
    return found


def test_X14_of_two_askers_of_an_unmapped_shard_one_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one decides, another asks for the same shard and a larger one: alone it would decide
    otherwise."""
    both = shared(A, B)
    small, large = Shard("t", "small", 1), Shard("t", "large", 2)
    decided = ShardMapping.route
    second: list[threading.Thread] = []
    answers: list[Mapping[Executor, Sequence[Shard]]] = []

    def interrupted(self: ShardMapping, shards: Iterable[Shard]) -> dict[Executor, list[Shard]]:
        if not second:
            second.append(
                threading.Thread(target=lambda: answers.append(both.route([small, large])))
            )
            second[0].start()
            # It must not end before this one has decided.
            second[0].join(_NOT_AT_ONCE_S)
        return decided(self, shards)

    monkeypatch.setattr(ShardMapping, "route", interrupted)
    answers.append(both.route([small]))
    second[0].join()
    first, other = sorted(answers, key=len)
    assert first == {A: [small]}
    assert other == {A: [small], B: [large]}
    assert both.mapping.owners == {small: A, large: B}


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
            mine = asked[begin : begin + 10]
            found = everywhere.route(mine)
            assert sum(map(len, found.values())) == len(mine)
            seen.update((s, e) for e, each in found.items() for s in each)
        return seen

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    for seen in answers:
        assert seen.items() <= everywhere.mapping.owners.items()
    assert set(everywhere.mapping.owners) == set(asked)


def test_I49_an_executor_that_was_removed_is_in_no_later_answer() -> None:
    three = shared(A, B, C)
    asked = [Shard("t", f"{key}", 10 - key) for key in range(6)]
    before = three.route(asked)
    three.leave(B)
    # Others have them before the next request.
    assert set(three.mapping.owners) >= set(before[B])
    assert B not in three.route(asked)
    three.leave(B)
    three.leave(A)
    three.leave(C)
    assert three.route(asked) == {}


def test_X7_one_that_joins_again_gets_the_next_new_shard() -> None:
    both = shared(A, B)
    asked = [Shard("t", f"{key}", 1) for key in range(4)]
    both.route(asked)
    both.leave(A)
    both.route(asked)
    join(both, A)
    new = Shard("t", "new", 100)
    assert both.route([new]) == {A: [new]}


def test_reports_and_drops_change_the_shared_assignment() -> None:
    both = shared(A, B)
    one, two, other = Shard("t", "1", 5), Shard("t", "2", 4), Shard("u", "1", 3)
    both.route([one, two, other])
    assert both.beat(A, {one: 50, two: 60})
    assert both.mapping.sizes == {one: 50, two: 4, other: 3}
    both.drop("t", ["2"])
    assert set(both.mapping.owners) == {one, other}
    both.drop("t")
    assert both.mapping.owners == {other: B}
    assert both.mapping.sizes == {other: 3}
