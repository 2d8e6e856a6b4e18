"""Foreign writers, statements and compactions of Tandem, and askers, all at once: each answer is of
one version, and has exactly its rows. `TANDEM_STORM_S` sets the seconds of each storm; `make storm`
takes 60."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from index.spread_index import spread
from support.jobs import quick_lake
from support.lake.lake import Lake
from support.lake.rows import rows, table
from support.some import few
from support.waiting import LIMIT_S, await_that
from tandem.delta.actions import AddFile
from tandem.delta.log.files import to_adds
from tandem.delta.scan import scan
from tandem.index import Query, open_index
from tandem.index import rows as rows_
from tandem.index.answers import Splits
from tandem.index.library import IndexReader, condition
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store

SECONDS = float(os.environ.get("TANDEM_STORM_S") or few(5, 60))
ROWS = 3_000
"""Keys are below this, so that what a storm reads does not grow with its length."""
CONDITIONS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "": lambda found: found,
    "id < 1000": lambda found: found.filter(pc.field("id") < 1000),
    "id >= 1500 AND k > 3": lambda found: found.filter(
        (pc.field("id") >= 1500) & (pc.field("k") > 3)
    ),
}


@dataclass
class Storm:
    lake: Lake
    over: threading.Event = field(default_factory=threading.Event)
    counts: list[tuple[int, str, int]] = field(default_factory=list)
    splits: list[tuple[str, Splits]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, act: Callable[[int], None], number: int) -> None:
        turn = 0
        while not self.over.is_set():
            try:
                act(1000 * number + turn)
            except CommitFailedError:
                continue  # of two foreign commits one gives way
            except Exception as error:  # noqa: BLE001 - of a thread; the test shows it
                self.failures.append(repr(error)[:500])
                return
            turn += 1

    # Writers

    def append(self, turn: int) -> None:
        new = rows(range(turn % ROWS, turn % ROWS + 20))
        write_deltalake(self.lake.location, table(new), mode="append")
        self.committed.append(DeltaTable(self.lake.location).version())

    def delete(self, turn: int) -> None:
        DeltaTable(self.lake.location).delete(f"id % 97 = {turn % 97}")

    def change(self, turn: int) -> None:
        target = DeltaTable(self.lake.location)
        target.update(updates={"v": "v + 1"}, predicate=f"id % 89 = {turn % 89}")

    def merge_files(self, _turn: int) -> None:
        """A compaction of another engine."""
        DeltaTable(self.lake.location).optimize.compact()

    def replace(self, turn: int) -> None:
        """Rows of some keys go, and are there once again."""
        first = turn * 37 % ROWS
        where = f"id >= {first} AND id < {first + 100}"
        again = table(rows(range(first, first + 10)))
        write_deltalake(self.lake.location, again, mode="overwrite", predicate=where)

    def compact(self, _turn: int) -> None:
        self.lake.run(self.lake.compaction())

    def remove(self, turn: int) -> None:
        self.lake.run(self.lake.delete(f"id % 101 = {turn % 101}"))

    def set(self, turn: int) -> None:
        self.lake.run(self.lake.update(f"id % 103 = {turn % 103}", v="v + 1"))

    # Askers

    def ask(self, index: IndexReader, turn: int) -> None:
        text = list(CONDITIONS)[turn % len(CONDITIONS)]
        before = max(self.committed, default=0)
        found = index.certain_count(Query(text))
        where = condition(found.rest.head, text)
        count = rows_.count(found, index.store, where)
        self.counts.append((found.version, text, count))
        splits = index.splits(Query(text))
        self.splits.append((text, splits))
        if min(found.version, splits.version) < before:
            self.stale.append(f"{found.version} or {splits.version} after {before}")


@pytest.mark.part(4)
@pytest.mark.parametrize("readers", ["embedded", "server", "executors"])
def test_Xa_each_answer_of_a_storm_has_exactly_the_rows_of_its_version(
    tmp_path: Path, readers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = quick_lake.make(tmp_path / "lake", 4)
    storm = Storm(lake)
    location = lake.location
    with ExitStack() as stack:
        if readers == "executors":
            executors = stack.enter_context(spread({"lake": location}, 2, shard_size=1_000))
            server = executors.server
        else:
            service = IndexService({"lake": lambda: open_index(location)}, AnswerFiles(None))
            server = stack.enter_context(FlightServer(service, "127.0.0.1", 0))
        store = open_store(location)

        def asker() -> IndexReader:
            if readers == "embedded":
                return held
            connection = Connection(f"grpc://127.0.0.1:{server.port}", timeout_s=LIMIT_S)
            return RemoteIndex(connection, "lake", store)

        held = open_index(location)
        acts: list[Callable[[int], None]] = [
            storm.append, storm.append, storm.delete, storm.change, storm.replace,
            storm.merge_files, storm.remove, storm.set, storm.compact,
        ]  # fmt: skip
        acts += [partial(storm.ask, asker()) for _ in range(4)]
        threads = [threading.Thread(target=storm.run, args=(act, n)) for n, act in enumerate(acts)]
        for thread in threads:
            thread.start()
        storm.over.wait(SECONDS)
        # On a busy machine the storm lasts longer, until there are answers of several versions.
        await_that(
            lambda: storm.failures or len({version for version, *_ in [*storm.counts]}) > 3,
            "answers of more than three versions",
        )
        storm.over.set()
        for thread in threads:
            thread.join()
    assert storm.failures == []
    assert storm.stale == []
    assert len({version for version, *_ in storm.counts}) > 3
    if readers == "executors":
        assert not executors.coordinator.refused
    versions = replayed(storm)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{readers}: {SECONDS:g} s, {lake.version:,} commits; {len(storm.counts):,} counts "
            f"and {len(storm.splits):,} splits of {versions:,} versions, each with its rows\n"
        )


def replayed(storm: Storm) -> int:
    """Each answer against a scan of its version. Returns how many versions there were answers
    of."""
    counts, splits = defaultdict(list), defaultdict(list)
    for version, text, count in storm.counts:
        counts[version].append((text, count))
    for text, found in storm.splits:
        splits[found.version].append((text, found))
    files = Files(storm.lake)
    for version in sorted({*counts, *splits}):
        snapshot = storm.lake.log.snapshot(version)
        live = {key(add) for add in snapshot.adds()}
        whole = scan(snapshot, storm.lake.store).read_all()
        expected = {text: chosen(whole).num_rows for text, chosen in CONDITIONS.items()}
        for text, count in counts[version]:
            assert count == expected[text], (version, text)
        for text, found in splits[version]:
            names = [key(add) for add in to_adds(found.files)]
            assert len(set(names)) == len(names), (version, text)
            assert live.issuperset(names), (version, text)
            # All of them are of this version: the number says that no matching row is missing.
            assert files.matching(found, text) == expected[text], (version, text)
    return len({*counts, *splits})


def key(add: AddFile) -> tuple[str, str]:
    vector = add.deletion_vector
    return add.path, "" if vector is None else vector.unique_id


@dataclass
class Files:
    """How many rows of each file match each condition; files never change."""

    lake: Lake
    known: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)

    def matching(self, splits: Splits, text: str) -> int:
        total = 0
        for at, add in enumerate(to_adds(splits.files)):
            if key(add) not in self.known:
                every = splits.slice(at, 1)
                assert every.groups.null_count, "a file of one row group"
                found = rows_.read(every, self.lake.store).read_all()
                self.known[key(add)] = {
                    text: chosen(found).num_rows for text, chosen in CONDITIONS.items()
                }
            total += self.known[key(add)][text]
        return total
