"""Random histories of requests, reports, deaths, returns and drops against a slow model."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from index.assignment_model import Model, Name, Process
from support.some import few
from tandem.index.server.shards import Executor, Shard, ShardMapping

# Two processes of one slot, and ids that are one another with underscores.
_EXECUTORS = (
    Executor(0, "h_1"),
    Executor(0, "h"),
    Executor(1, "h_1"),
    Executor(1, "h_1_1"),
    Executor(2, ""),
)
_NAMES = [(table, f"{key}") for table in ("t", "t_1") for key in range(8)]
# Few, so that there are ties; and sums beyond 32 and 64 bits.
_SIZES = st.sampled_from([0, 1, 2, 3, 7, 2**31 - 1, 2**63 - 1])

names = st.sampled_from(_NAMES)
executors = st.sampled_from(_EXECUTORS)
requests = st.dictionaries(names, st.none() | _SIZES, max_size=10)
reports = st.dictionaries(names, _SIZES, min_size=1, max_size=6)


def shards_of(request: Mapping[Name, int | None]) -> list[Shard]:
    return [Shard(table, key, size) for (table, key), size in request.items()]


class Histories(RuleBasedStateMachine):
    """What happens to a coordinator, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = ShardMapping()
        self.model = Model()

    @rule(request=requests, data=st.data())
    def ask(self, request: Mapping[Name, int | None], data: st.DataObject) -> None:
        """Known shards stay, and all that are named have an executor if one lives."""
        wanted = shards_of(request)
        before = dict(self.now.owners)
        found = self.now.route(data.draw(st.permutations(wanted)))
        self.model.ask(request)
        for shard, owner in before.items():
            assert self.now.owners[shard] == owner
        assert set(self.now.owners) - set(before) <= set(wanted)
        assert sorted(s for each in found.values() for s in each) == (
            sorted(wanted) if self.now.executors else []
        )

    @rule(executor=executors, sizes=reports)
    def report(self, executor: Executor, sizes: Mapping[Name, int]) -> None:
        """Also of shards that others have, and by executors that are dead."""
        before = dict(self.now.owners)
        self.now.report(executor, {Shard(*name): size for name, size in sizes.items()})
        self.model.report(executor, sizes)
        assert self.now.owners == before

    @rule(executor=executors)
    def die(self, executor: Executor) -> None:
        self.now.remove(executor)
        self.model.die(executor)

    @rule(executor=executors)
    def join(self, executor: Executor) -> None:
        self.now.join(executor)
        self.model.join(executor)

    @rule(executor=executors)
    def restart(self, executor: Executor) -> None:
        """It returns under its name, and holds nothing."""
        self.now.remove(executor)
        self.now.join(executor)
        self.model.die(executor)
        self.model.join(executor)
        assert self.now.loads()[executor] == (0, 0)

    @rule(table=st.sampled_from(["t", "t_1"]))
    def drop_table(self, table: str) -> None:
        self.now.drop(table)
        self.model.drop(name for name in _NAMES if name[0] == table)

    @rule(table=st.sampled_from(["t", "t_1"]), keys=st.sets(st.integers(0, 7), min_size=1))
    def drop_shards(self, table: str, keys: set[int]) -> None:
        gone = [(table, f"{key}") for key in keys]
        self.now.drop(table, [key for _, key in gone])
        self.model.drop(gone)

    @invariant()
    def each_shard_is_where_the_model_has_it(self) -> None:
        held = {(shard.table, shard.key): owner for shard, owner in self.now.owners.items()}
        assert held == {each.name: each.process for each in self.model.held}
        assert set(held.values()) <= set(self.model.live), "none is dead"
        assert self.now.executors == sorted(self.model.live)

    @invariant()
    def sizes_are_those_of_the_model(self) -> None:
        for name in _NAMES:
            assert self.now.sizes.get(Shard(*name)) == self.model.size_of(name)
        for executor, load in self.now.loads().items():
            assert load.bytes == self.model.bytes_of(executor)
        assert {(each.table, each.key) for each in self.now.reported} == set(self.model.reported)


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=few(20, 600), stateful_step_count=30)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), unknown=st.booleans())
def test_E17_many_shards_and_executors_are_assigned_as_by_the_model(
    seed: int, unknown: bool
) -> None:
    random = Random(seed)
    live: list[Process] = [Executor(slot, f"h_{slot}") for slot in range(random.randint(1, 12))]
    request: dict[Name, int | None] = {
        ("t", f"{key}"): None if unknown and random.random() < 0.2 else random.randint(0, 50)
        for key in range(random.randint(0, 80))
    }
    model = Model(live)
    model.ask(request)
    now = ShardMapping([Executor(*each) for each in live])
    now.route(shards_of(request))
    assert {(s.table, s.key): owner for s, owner in now.owners.items()} == {
        each.name: each.process for each in model.held
    }
