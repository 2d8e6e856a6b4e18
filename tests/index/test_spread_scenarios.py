"""Shards on executors, by scenario, over real Flight and tables: who holds what, what is dropped
and loaded again, and that no answer is another one for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from index.spread_index import ROWS, Lake, Spread, eager, spread, until
from tandem.errors import StorageError, Unreachable
from tandem.index import Query, open_index
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.files import FactsListing
from tandem.index.server import coordinator as coordinator_
from tandem.index.server.client import ChainedIndex
from tandem.index.server.registration import RemoteExecutor
from tandem.storage.store import Store

CONDITIONS = ["id = 7", "id < 1234", "key = 'k77'", "id >= 900 AND id < 1100", "id < 0"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("spread"), [6, 5, 4, 3, 2, 1])


@pytest.fixture
def three(lake: Lake) -> Iterator[Spread]:
    with spread({"lake": lake.location}, 3) as found:
        yield found


def right(server: Spread, lake: Lake) -> None:
    """Every number is that of a scan by the log alone."""
    for where in CONDITIONS:
        assert server.index().count(Query(where)) == lake.expected(where), where


def test_X1_the_first_question_spreads_shards_the_largest_first(three: Spread, lake: Lake) -> None:
    assert three.files() == 1
    # To idle executors first, then to the one with the fewest bytes.
    assert three.owners == {"0": 0, "1": 1, "2": 2, "3": 2, "4": 1, "5": 0}
    right(three, lake)
    assert not three.coordinator.refused


def test_X2_a_second_question_finds_the_shards_where_they_are(three: Spread) -> None:
    three.files()
    owners = three.owners
    before = {key: each.hits for key, each in three.shown().items()}
    three.files("id = 9")
    assert three.owners == owners
    after = three.shown()
    assert all(after[key].hits == hits + 1 for key, hits in before.items())
    assert {each.loads for each in after.values()} == {1}


def test_X3_a_question_about_some_segments_maps_those_alone(three: Spread) -> None:
    assert three.files("id = 3600", segments=("1", "4")) == 1
    assert set(three.owners) == {"1", "4"}


def test_X4_the_size_that_an_executor_reports_replaces_the_estimate(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, [2, 1])
    with spread({"lake": lake.location}, 2) as server:
        server.files()
        registry = server.coordinator.registry
        server.wait_for_sizes()
        assert len(registry.mapping.reported) == 2
        # The next shard goes to the executor with the fewest bytes, as reported.
        big = server.executor(server.owners["0"])
        small = server.executor(server.owners["1"])
        shard = next(s for s in dict(registry.mapping.owners) if s.key == "1")
        registry.beat(small, {shard: 1 << 30})
        lake.add("2", 1)
        server.files("id = 1000")
        assert server.owners["2"] == big.slot


def test_X5_a_shard_that_was_evicted_is_loaded_again_where_it_was(lake: Lake) -> None:
    with spread({"lake": lake.location}, 2, limit_bytes=6_000) as server:
        right(server, lake)
        owners = server.owners
        assert sum(each.bytes for each in server.shown().values()) <= 2 * 6_000
        assert max(each.loads for each in server.shown().values()) > 1
        assert server.files() == 1
        assert server.owners == owners
        right(server, lake)


def test_X6_shards_of_an_executor_that_leaves_go_elsewhere_one_by_one(
    three: Spread, lake: Lake
) -> None:
    three.files()
    three.wait_for_sizes()
    before = three.owners
    three.stop(0)
    until(lambda: three.live == {1, 2}, "it is still counted on")
    assert three.files() == 1
    after = three.owners
    assert {key: slot for key, slot in before.items() if slot} == {
        key: slot for key, slot in after.items() if before[key]
    }
    # Not all to one.
    assert {after[key] for key, slot in before.items() if slot == 0} == {1, 2}
    right(three, lake)


def test_X6_with_no_executor_left_the_log_answers(three: Spread, lake: Lake) -> None:
    three.files()
    for slot in range(3):
        three.stop(slot)
    until(lambda: not three.live, "they are still counted on")
    assert three.files() == 21
    right(three, lake)


def test_I49_an_executor_that_does_not_answer_is_not_chosen_again(
    three: Spread, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.files()
    dead, asked = three.executor(1), []
    reached = three.coordinator.registry.reached(dead)

    def fail(self: RemoteExecutor, *_: Any) -> Any:
        if self is reached:
            asked.append(1)
            raise Unreachable("planted")
        return original(self, *_)

    original = RemoteExecutor.narrow
    monkeypatch.setattr(RemoteExecutor, "narrow", fail)
    assert three.index().count(Query("id < 1234")) == 1234
    assert 1 not in three.live
    assert set(three.owners.values()) == {0, 2}
    right(three, lake)
    assert three.files() == 1
    assert asked == [1]


def test_X7_an_executor_that_returns_is_without_load_and_gets_the_next_shard(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, [2, 2])
    with spread({"lake": lake.location}, 2) as server:
        server.files()
        server.stop(0)
        until(lambda: server.live == {1}, "it is still counted on")
        server.files()
        assert set(server.owners.values()) == {1}
        server.start(0)
        assert server.files() == 1
        assert set(server.owners.values()) == {1}
        lake.add("2", 3)
        assert server.files("id = 2100") == 1
        assert server.owners == {"0": 1, "1": 1, "2": 0}


def test_X8_I50_a_compaction_drops_old_shards_and_primes_the_new_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [1, 1, 1, 1])
    with spread({"lake": lake.location}, 2) as server:
        assert server.files() == 1
        assert set(server.owners) == {"0", "1", "2", "3"}
        lake.lake.run(lake.lake.compaction())
        until(lambda: server.index().count() == 4 * ROWS, "it is not followed")
        until(lambda: set(server.owners) == {"0.1"}, "old shards are still mapped")
        # Before any question needs them.
        until(lambda: "0.1" in server.shown(), "the new shard is not primed")
        until(lambda: server.shown()["0.1"].bytes, "its facts are not read")
        until(lambda: set(server.shown()) == {"0.1"}, "old shards are still held")
        right(server, lake)
        assert server.shown()["0.1"].hits >= 1


def test_without_pre_priming_facts_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [1])
    with spread({"lake": lake.location}, 1, pre_prime=False) as server:
        assert server.files() == 1
        lake.add("1", 1)
        assert server.index().count() == 2 * ROWS
        for _ in range(2):  # what follows a commit, and what follows that
            server.coordinator._background.submit("lake", lambda: None).result()
        assert server.owners.keys() == {"0"}
        assert server.files() == 1
        assert server.owners.keys() == {"0", "1"}


def test_what_is_invalidated_is_loaded_again(three: Spread) -> None:
    assert three.files() == 1
    three.service.ask("InvalidateCache", b"{}")
    until(lambda: not three.shown(), "shards are still held")
    assert three.owners == {}
    assert three.files() == 1
    assert {each.loads for each in three.shown().values()} == {1}


def test_X9_after_an_update_the_facts_of_the_old_file_count_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [2])
    with spread({"lake": lake.location}, 1) as server:
        assert server.index().certain_count(Query("id < 200")).rows == 200
        lake.lake.run(lake.lake.delete("id = 7"))
        found = server.index().certain_count(Query("id < 200"))
        assert found.rows == 0  # which rows are deleted is in the vector
        assert server.index().count(Query("id < 200")) == 199


class Gate:
    """Facts that are not read before it opens."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, store: Store, _listing: FactsListing) -> FactsCache:
        gate = self

        class Waiting(FactsCache):
            def of(self, *given: Any, **named: Any) -> Any:
                gate.open.wait()
                return super().of(*given, **named)

        return Waiting(store, worth_bytes=0)


def test_X10_files_whose_facts_are_not_there_yet_are_pruned_by_the_log(tmp_path: Path) -> None:
    """They never keep a caller waiting."""
    lake, gate = Lake(tmp_path, [1, 1, 1]), Gate()
    with spread({"lake": lake.location}, 1, facts=gate, budget_s=0.05) as server:
        try:
            assert server.files() == 3
            assert server.index().count(Query("id < 1234")) == 1234
            assert {each.bytes for each in server.shown().values()} == {0}
        finally:
            gate.open.set()
        until(lambda: server.files() == 1, "facts are not used once they are there")
        assert server.live == {0}
        right(server, lake)


def test_X14_two_askers_of_an_unmapped_shard_get_one_executor(three: Spread, lake: Lake) -> None:
    clients = [three.index() for _ in range(6)]
    start = threading.Barrier(len(clients))

    def ask(number: int) -> int:
        start.wait()
        return clients[number].count(Query("id < 1234"))

    with ThreadPoolExecutor(len(clients)) as pool:
        assert list(pool.map(ask, range(len(clients)))) == [1234] * len(clients)
    answers = three.coordinator.shown()
    held = [shard.shard for each in answers.values() for shard in each.shards]
    assert len(held) == len(set(held)) == 6
    assert three.files() == 1
    right(three, lake)


def test_X15_shards_of_unknown_size_go_round_until_they_are_reported(tmp_path: Path) -> None:
    lake = Lake(tmp_path, [3, 1, 1, 1], counted=False)
    with spread({"lake": lake.location}, 2) as server:
        assert server.files() == 1
        assert server.owners == {"0": 0, "1": 1, "2": 0, "3": 1}
        server.wait_for_sizes()
        known = dict(server.coordinator.registry.mapping.sizes)
        sizes = {shard.key: size for shard, size in known.items()}
        assert sizes["0"] > sizes["1"]
        lake.counted = True
        lake.add("4", 1)
        server.files()
        assert server.owners["4"] == 1


def test_X16_I50_a_table_that_is_made_again_leaves_no_shard(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "one", [1, 1])
    with spread({"lake": lake.location}, 2) as server:
        assert server.files() == 1
        before = {shard.table for shard in dict(server.coordinator.registry.mapping.owners)}
        lake.lake.path.rename(tmp_path / "away")
        lake = Lake(tmp_path / "one", [1, 1, 1])
        assert server.files() == 1
        right(server, lake)
        after = {shard.table for shard in dict(server.coordinator.registry.mapping.owners)}
        assert len(before) == len(after) == 1
        assert before != after
        until(
            lambda: {each.table_id for each in server.shown().values()} == after,
            "facts of the former table are held",
        )


@pytest.mark.parametrize("problem", [Unreachable, StorageError, RuntimeError, MemoryError])
def test_X18_pre_priming_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    lake, failed = Lake(tmp_path, [1]), []

    def fail(*_: Any) -> None:
        failed.append(1)
        raise problem("planted")

    monkeypatch.setattr(RemoteExecutor, "prime", fail)
    with spread({"lake": lake.location}, 1) as server:
        assert server.files() == 1
        lake.add("1", 1)
        assert server.index().count() == 2 * ROWS
        until(lambda: failed, "it is not tried")
        assert server.files() == 1
        right(server, lake)
        assert server.live == {0}


def test_X19_what_is_shown_is_what_is_held(three: Spread) -> None:
    for where in CONDITIONS:
        three.index().count(Query(where))
    shown = three.shown()
    assert set(shown) == set(three.owners)
    assert {each.table for each in shown.values()} == {"lake"}
    # As many row groups as its files have, each with two columns.
    for key, files in zip(map(str, range(6)), [6, 5, 4, 3, 2, 1], strict=True):
        assert 0.7 < shown[key].bytes / shown["5"].bytes / files < 1.3


def test_X21_the_first_question_of_a_second_client_is_a_hit(three: Spread) -> None:
    three.index().count(Query("id = 7"))
    before = {key: each.hits for key, each in three.shown().items()}
    three.index().count(Query("id = 7"))
    for key, each in three.shown().items():
        assert each.loads == 1
        assert each.hits == before[key] + 1


def test_X13_with_the_coordinator_gone_this_process_answers(lake: Lake) -> None:
    with spread({"lake": lake.location}, 1) as server:
        remote = server.index(timeout_s=60)
        chain = ChainedIndex(remote, lambda: open_index(lake.location))
        assert chain.count(Query("id < 1234")) == 1234
    assert chain.count(Query("id < 1234")) == 1234


def test_one_executor_in_the_process_of_the_coordinator_is_the_same_program(lake: Lake) -> None:
    with spread({"lake": lake.location}, local=True) as server:
        assert server.files() == 1
        right(server, lake)
        assert set(server.owners.values()) == {0}
        assert sum(each.loads for each in server.shown().values()) == 6


def test_row_groups_are_those_that_one_process_finds(three: Spread, lake: Lake) -> None:
    here = open_index(lake.location)
    assert here._facts is not None
    here._facts._worth = 0
    for where in CONDITIONS:
        mine, theirs = here.splits(Query(where)), three.index().splits(Query(where))
        assert theirs.files["path"].to_pylist() == mine.files["path"].to_pylist()
        assert theirs.groups.to_pylist() == mine.groups.to_pylist()
        assert theirs.certain.tolist() == mine.certain.tolist()
        counted, expected = (each.certain_count(Query(where)) for each in (three.index(), here))
        assert counted.rows == expected.rows
        assert counted.rest.groups.to_pylist() == expected.rest.groups.to_pylist()


def test_an_older_version_is_answered_by_the_log(three: Spread, lake: Lake) -> None:
    """Its entries are not those that are held."""
    assert three.files() == 1
    version = lake.lake.version
    assert three.index().count(Query("id < 1234", version=version - 2)) == 1234


def test_segments_share_a_shard_up_to_its_size(lake: Lake) -> None:
    with spread({"lake": lake.location}, 3, shard_size=1 << 20) as server:
        assert server.files() == 1
        assert server.owners == {"0": 0}
    with spread({"lake": lake.location}, 3, shard_size=2_700) as server:
        assert server.files() == 1
        assert list(server.owners) == ["0", "2"]


def test_partition_values_travel_with_the_files(tmp_path: Path) -> None:
    from index.test_row_groups import CONDITIONS as PARTITIONED
    from index.test_row_groups import Lake as Partitioned

    found = Partitioned(tmp_path)
    whole = found.index(row_groups=False)
    with spread({"lake": found.lake.location}, 2, facts=eager) as server:
        for where in PARTITIONED:
            query = Query(where)
            assert server.index().count(query) == whole.count(query), where
            assert server.index().splits(query).groups.to_pylist() == (
                found.index().splits(query).groups.to_pylist()
            ), where
        assert not server.coordinator.refused


def test_a_large_table_is_looked_at_while_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_, "_AT_ONCE", 1)
    lake = Lake(tmp_path, [1, 1])
    with spread({"lake": lake.location}, 1) as server:
        right(server, lake)
        until(lambda: server.files() == 1, "it is never narrowed")
        lake.add("2", 1)
        # What is known stays narrowed.
        assert server.files() <= 2
        until(lambda: server.files() == 1, "the new file is never narrowed")
        right(server, lake)
