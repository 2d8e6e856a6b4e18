"""Shards against a slow model: segments keep their shard, new ones fill the last one, and a shard
that has none is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.some import few
from tandem.index.server.shards import NO_SHARD, ShardMap, estimated_bytes

Live = list[tuple[str, int]]
"""Segments with their bytes, in the order of their first entries."""


class Model:
    """Shards as lists; it shares nothing with what it judges.

    Args:
        remembers: segments that do not live keep their place while their shard lives.
    """

    def __init__(self, shard_size: int, *, remembers: bool = False) -> None:
        self.size, self.remembers = shard_size, remembers
        self.shards: list[tuple[str, list[str]]] = []

    def follow(self, live: Live) -> dict[str, str]:
        sizes = dict(live)
        left = [(key, [name for name in held if name in sizes]) for key, held in self.shards]
        if self.remembers:
            alive = {key for key, held in left if held}
            self.shards = [(key, held) for key, held in self.shards if key in alive]
        else:
            self.shards = [(key, held) for key, held in left if held]
        # First those that come back to the shard that has their name.
        known = {name for _, held in self.shards for name in held}
        for name, _ in live:
            for key, held in self.shards:
                if key == name and name not in known:
                    held.append(name)
                    known.add(name)
        for name, size in live:
            if name in known:
                continue
            last = self.shards[-1][1] if self.shards else None
            if last is not None and sum(sizes.get(each, 0) for each in last) + size <= self.size:
                last.append(name)
            else:
                self.shards.append((name, [name]))
        return {name: key for key, held in self.shards for name in held}


def number(name: str) -> int:
    return (hash(name) * 31) % 2**62 - 2**61


def follow(shards: ShardMap, live: Live, shard_size: int) -> ShardMap:
    ids = np.array([number(name) for name, _ in live], np.int64)
    sizes = np.array([size for _, size in live], np.int64)
    shards = shards.only(ids)
    at = shards.of(ids)
    held = {n: int(sizes[at == n].sum()) for n in shards.keys}
    fresh = np.flatnonzero(at == NO_SHARD)
    names = [live[place][0] for place in fresh.tolist()]
    return shards.joined(ids[fresh], sizes[fresh], held, names.__getitem__, shard_size)


NAMES = [f"{n}" for n in range(12)]
VERSIONS = st.lists(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 25)), unique_by=lambda s: s[0]),
    min_size=1,
    max_size=8,
)


@settings(max_examples=few(50, 5_000))
@given(VERSIONS, st.sampled_from([1, 10, 20, 1_000]))
def test_I47_shards_are_those_of_the_model(versions: list[Live], shard_size: int) -> None:
    shards, model = ShardMap(), Model(shard_size)
    for live in versions:
        shards = follow(shards, live, shard_size)
        expected = model.follow(live)
        ids = np.array([number(name) for name, _ in live], np.int64)
        found = {
            name: shards.keys[at]
            for (name, _), at in zip(live, shards.of(ids).tolist(), strict=True)
        }
        assert found == expected
        assert list(shards.keys.values()) == [key for key, _ in model.shards]
        assert len(set(shards.keys.values())) == len(shards.keys)
        assert sorted(shards.segments.tolist()) == sorted(ids.tolist())


def test_a_segment_larger_than_a_shard_is_a_shard_of_its_own() -> None:
    shards = follow(ShardMap(), [("a", 4), ("b", 100), ("c", 4), ("d", 6)], 10)
    assert list(shards.keys.values()) == ["a", "b", "c"]


def test_a_segment_that_grows_keeps_its_shard() -> None:
    before = follow(ShardMap(), [("a", 4), ("b", 4)], 10)
    after = follow(before, [("a", 400), ("b", 4), ("c", 1)], 10)
    assert list(after.keys.values()) == ["a", "c"]
    assert after.of(np.array([number("b")])).tolist() == [0]


def test_a_key_is_never_that_of_two_shards() -> None:
    """The segment that a shard is named after leaves, and comes back."""
    shards = follow(ShardMap(), [("a", 9), ("b", 1)], 10)
    shards = follow(shards, [("b", 1)], 10)
    shards = follow(shards, [("b", 9), ("c", 9), ("a", 9)], 10)
    assert list(shards.keys.values()) == ["a", "c"]
    assert shards.of(np.array([number("a")])).tolist() == [0]


def test_what_is_not_known_has_no_shard() -> None:
    assert ShardMap().of(np.array([1, -5])).tolist() == [NO_SHARD, NO_SHARD]
    shards = follow(ShardMap(), [("a", 1)], 10)
    assert shards.of(np.array([2**62, 0, -(2**62)])).tolist() == [NO_SHARD] * 3


def test_estimates_grow_with_files_and_columns() -> None:
    sizes = np.array([0, 1 << 20, 1 << 30])
    small, large = estimated_bytes(sizes, 1), estimated_bytes(sizes, 50)
    assert (small > 0).all()
    assert (large >= small).all()
    assert large[2] > large[1] == large[0]
