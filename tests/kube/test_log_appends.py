"""Appends by key in a cluster: `upsert` and `deleteKeys` of a TableUpdate, and a TableIngest into a
merge-on-read table, through API server and etcd, by an operator with its own service account.
Real Spark does the jobs in tests that are marked `whole` (`make matrix`: in all).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kube.gates import GatedSpark
from kube.kube_scenarios import Applied, Table, World
from support.cluster.operator_process import Blow, ProcessStarter, starter
from support.jobs import quick_lake
from support.lake.lake import result
from support.lake.log_blocks import LogBlocks
from support.lake.rows import Rows, id_in, join, rows, table, without
from support.some import is_whole, some
from tandem import mergelog
from tandem.operations.machine.events import Point
from tandem.spec.common import plural
from tandem.spec.status import OperationResult, RowsAffected

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

LOADED = rows(range(20))
FEWEST = 8
"""Batches of a log writer beside operations."""


def merged(before: Rows, upserts: Rows) -> Rows:
    """The last upsert of each id in place of the row with it."""
    last = {row[0]: row for row in upserts}
    return join(without(before, id_in(last)), tuple(last.values()))


@dataclass(frozen=True)
class Append:
    """What an append by key brings, and what it makes of the rows before it."""

    upserts: Rows = ()
    deletes: tuple[int, ...] = ()

    def on(self, before: Rows) -> Rows:
        return without(merged(before, self.upserts), id_in(self.deletes))


class Stage:
    """A table of two loads, with a log that its LakeTable has made."""

    def __init__(
        self, world: World, jobs: GatedSpark, folder: Path, *, wait: bool = True, **settings: Any
    ) -> None:
        self.world, self.jobs = world, jobs
        self.lake = quick_lake.make(folder, loads=2)
        self.table = world.adopt(self.lake, wait=wait, mergeOnRead={"keys": ["id"], **settings})
        self.log = LogBlocks(self.lake.location, "shop")

    def upsert(self, name: str, rows: Rows | pa.Table, **spec: Any) -> Applied:
        return self.by_key(name, "upsert", rows, **spec)

    def delete(self, name: str, *ids: int, **spec: Any) -> Applied:
        keys = pa.table({"id": pa.array(ids, pa.int64())})
        return self.by_key(name, "deleteKeys", keys, **spec)

    def ingest(self, name: str, rows: Rows | pa.Table, **spec: Any) -> Applied:
        return self._apply(name, "TableIngest", {"source": self._source(rows), **spec})

    def by_key(self, name: str, what: str, rows: Rows | pa.Table, **spec: Any) -> Applied:
        return self._apply(name, "TableUpdate", {what: {"source": self._source(rows)}, **spec})

    def _source(self, rows: Rows | pa.Table) -> dict[str, str]:
        return {"format": "Parquet", "location": self.lake.source(rows).as_uri()}

    def _apply(self, name: str, kind: str, body: dict[str, Any]) -> Applied:
        return self.table.apply(self.lake.resource(kind, body), f"{self.table.name}-{name}")

    def shows(self, expected: Rows) -> None:
        """The merged view is this; what others see of the table is what was loaded."""
        assert self.log.view() == expected
        assert self.lake.by_deltalake() == LOADED

    def scanned(self) -> Rows:
        """What `tandem scan` prints. In a process of its own: the operator of this one prints."""
        command = [sys.executable, "-m", "tandem.cli.main", "scan", self.lake.location]
        printed = subprocess.run(
            [*command, "-o", "json"], capture_output=True, timeout=60, check=True
        ).stdout
        found = [json.loads(line) for line in printed.splitlines()]
        return tuple(sorted((row["id"], row["k"], row["v"]) for row in found))

    def blocks_of_none(self) -> set[str]:
        """Files of operations in the log that no version of it names."""
        root = self.lake.path / "_tandem/log"
        log = mergelog.open_log(self.lake.location).log
        named = {add.path for c in log.commits(0, log.latest_version()) for add in c.adds}
        paths = {path.relative_to(root).as_posix() for path in root.glob("*-*/*.parquet")}
        return paths - named

    def done(self, expected: Rows) -> None:
        """The end of every scenario: the merged view is this, and nothing is left behind. Then a
        merge, of which all readers see it."""
        self.shows(expected)
        assert self.blocks_of_none() == set()
        self.table.apply(self.lake.compaction("LogMerge")).succeeded()
        assert self.log.blocks() == []
        assert self.lake.by_deltalake() == self.log.view() == expected
        self.world.assert_nothing_left_behind(self.table)


@pytest.fixture(scope="module")
def jobs() -> GatedSpark:
    return GatedSpark(None)


@pytest.fixture(scope="module")
def world(
    cluster: Cluster, jobs: GatedSpark, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    made = World.make(cluster, tmp_path_factory.mktemp("world"))
    with made.dev(jobs), made.operator():
        yield made


MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(
    request: pytest.FixtureRequest, world: World, jobs: GatedSpark, tmp_path: Path
) -> MakeStage:
    jobs.spark = request.getfixturevalue("spark") if is_whole(request.node) else None
    return lambda **settings: Stage(world, jobs, tmp_path, **settings)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()


@pytest.fixture
def bare(cluster: Cluster, make_stage: MakeStage, jobs: GatedSpark, tmp_path: Path) -> Stage:
    """In a world in which nothing runs yet."""
    return Stage(World.make(cluster, tmp_path), GatedSpark(jobs.spark), tmp_path, wait=False)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


def appended(found: OperationResult, instant: int, **rows: int) -> None:
    """It has appended one block, in one instant, of so many rows."""
    assert (found.blocks_out, found.instants, found.version) == (1, (str(instant),), instant)
    assert found.rows_affected == RowsAffected(**rows)


def test_each_append_by_key_shows_its_rows_when_it_has_ended(
    stage: Stage, cluster: Cluster
) -> None:
    base = stage.lake.version
    first = Append(tuple((n, 0, -n) for n in (*range(5, 10), *range(20, 25))))
    upsert = stage.upsert("upsert", first.upserts)
    appended(result(upsert.succeeded()), 1, upserted=10)
    view = first.on(LOADED)
    stage.shows(view)

    second = Append(deletes=(0, 5, 24, 99))
    appended(result(stage.delete("delete", *second.deletes).succeeded()), 2, deleted=4, upserted=0)
    view = second.on(view)
    stage.shows(view)

    third = Append(tuple((n, 1, 7) for n in (0, 6, 19, 30)))
    appended(result(stage.ingest("ingest", third.upserts).succeeded()), 3, upserted=4)
    view = third.on(view)
    stage.shows(view)
    assert stage.scanned() == view
    assert stage.lake.version == base
    assert stage.log.blocks() == [(1, 1), (2, 2), (3, 3)]

    # As kubectl shows it: the result that a GitOps tool or a person reads.
    shown = cluster.kubectl(
        "get", plural(upsert.kind), upsert.name, "-n", stage.world.space.name,
        "-o", "jsonpath={.status.phase} {.status.result.blocksOut} {.status.result.instants}",
    )  # fmt: skip
    assert shown == 'Succeeded 1 ["1"]'
    stage.done(view)


@pytest.mark.part(2)
@pytest.mark.parametrize("other", ["delete keys", "ingest by key"])
def test_two_at_once_beside_a_log_writer_are_one_order(stage: Stage, other: str) -> None:
    """Both have done their work before either commits. They go at once, while a log writer appends
    to the same keys: the view is what the instants say, in their order."""
    mine = Append(tuple((n, 1, 1) for n in range(10, 30)))
    gates = [stage.jobs.hold("upsert")]
    operations = [(stage.upsert("mine", mine.upserts), mine)]
    gates[0].reached()
    gates.append(stage.jobs.hold("upsert"))
    if other == "delete keys":
        theirs = Append(deletes=tuple(range(0, 40, 3)))
        operations.append((stage.delete("theirs", *theirs.deletes), theirs))
    else:
        theirs = Append(tuple((n, 2, 2) for n in range(0, 40, 3)))
        operations.append((stage.ingest("theirs", theirs.upserts), theirs))
    gates[1].reached()
    before = Append(tuple((n, 3, 0) for n in (9, 12, 15)))
    history = {1: before}
    stage.log.upsert(before.upserts)
    stage.shows(before.on(LOADED))

    over = threading.Event()

    def write() -> dict[int, Append]:
        """Batches whose keys the operations have, too, and their instants, until both are over."""
        found: dict[int, Append] = {}
        log = mergelog.open_log(stage.lake.location)
        with mergelog.LogWriter(log, "beside") as writer:
            while len(found) < FEWEST or not over.is_set():
                n = len(found)
                ids = (n % 10, 10 + n % 20, 12, 100 + n)
                batch = Append(tuple((id_, 4, n) for id_ in ids), (9, 30 + n % 10))
                deletes = pa.table({"id": pa.array(batch.deletes, pa.int64())})
                instant = writer.append(table(batch.upserts), deletes, batch=n).instant
                assert instant is not None
                found[instant] = batch
        return found

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for gate in gates:
            gate.go()
        try:
            for operation, append in operations:
                [instant] = result(operation.succeeded()).instants or ()
                assert int(instant) not in history
                history[int(instant)] = append
        finally:
            over.set()
        written = writing.result()
    assert not written.keys() & history.keys()
    history |= written
    # No version of the log is without rows, and no batch is in two.
    assert sorted(history) == list(range(1, len(written) + 4))
    assert [operation.status["attempt"] for operation, _ in operations] == [1, 1]
    view = LOADED
    for _, append in sorted(history.items()):
        view = append.on(view)
    stage.done(view)


def test_a_log_compaction_beside_an_upsert_disturbs_neither(stage: Stage) -> None:
    stage.log.upsert(((3, 1, 1), (40, 1, 1)))
    stage.log.delete(4)
    gate = stage.jobs.hold("upsert")
    upsert = stage.upsert("upsert", ((3, 2, 2), (4, 2, 2)))
    gate.reached()
    stitch = stage.lake.resource("LogCompaction", {"strategy": "AllBlocks"})
    stage.table.apply(stitch).succeeded()
    gate.go()
    upsert.succeeded()
    assert [first for first, _ in stage.log.blocks()] == [1, 4]
    stage.done(merged(LOADED, ((3, 2, 2), (4, 2, 2), (40, 1, 1))))


def test_an_upsert_whose_driver_dies_counts_once(stage: Stage) -> None:
    """Its blocks are written, and no result: another attempt writes them again."""
    gate = stage.jobs.hold("upsert")
    upsert = stage.upsert("upsert", ((3, 2, 2), (40, 2, 2)), backoffLimit=1)
    gate.reached()
    stage.log.upsert(((3, 1, 1), (41, 1, 1)))
    gate.die()
    done = upsert.succeeded()
    assert done.attempt == 2
    assert result(done).blocks_out == 1
    stage.done(merged(LOADED, ((3, 2, 2), (40, 2, 2), (41, 1, 1))))


@pytest.mark.part(2)
@pytest.mark.parametrize(
    ("kind", "after"), some([("upsert", False), ("delete", True), ("ingest", True)], every=2)
)
def test_an_append_whose_operator_is_killed_at_its_commit_counts_once(
    bare: Stage, operators: ProcessStarter, kind: str, after: bool
) -> None:
    """A log writer appends before the next operator takes over."""
    world = bare.world
    blow = Blow(Point.PUT_COMMIT, after=after)
    with world.dev(bare.jobs):
        first = operators.start(world.order(blows=(blow,), ttl_s=6)).ready()
        world.wait_ready(bare.table)
        rows = ((3, 2, 2), (40, 2, 2))
        append = Append(deletes=(3, 40)) if kind == "delete" else Append(rows)
        if kind == "delete":
            operation = bare.delete("killed", *append.deletes)
        else:
            operation = {"upsert": bare.upsert, "ingest": bare.ingest}[kind]("killed", rows)
        assert first.ended() == -signal.SIGKILL, first.text()
        acknowledged = Append(((3, 1, 1), (41, 1, 1)))
        bare.log.upsert(acknowledged.upserts)
        second = operators.start(world.order()).ready()
        done = operation.succeeded()
        order = (append, acknowledged) if after else (acknowledged, append)
        assert (done.attempt, result(done).instants) == (1, ("1",) if after else ("2",))
        assert len(bare.log.blocks()) == 2
        bare.done(order[1].on(order[0].on(LOADED)))
        second.stop()


@pytest.mark.parametrize("kind", ["upsert", "ingest"])
def test_a_repeated_key_is_refused_and_nothing_is_written(stage: Stage, kind: str) -> None:
    stage.log.upsert(((3, 1, 1),))
    repeated = ((3, 2, 2), (7, 1, 1), (7, 2, 2), (50, 2, 2))
    make = stage.upsert if kind == "upsert" else stage.ingest
    failed = make("twice", table(repeated)).failed("DuplicateKeys")
    [condition] = [c for c in failed.conditions if c.type.value == "Succeeded"]
    field = "spec.upsert.source" if kind == "upsert" else "spec.source"
    assert field in condition.message
    assert "id = 7" in condition.message
    assert failed.result is None
    assert stage.log.blocks() == [(1, 1)]
    stage.done(merged(LOADED, ((3, 1, 1),)))


def test_the_ordering_column_decides_between_rows_of_a_key(make_stage: MakeStage) -> None:
    """In a source, and between it and what is there, whichever is later."""
    stage = make_stage(orderingColumn="v")
    repeated = ((3, 2, 999), (3, 1, 1_000), (7, 1, 699), (50, 1, 2), (50, 2, 1))
    done = stage.upsert("twice", table(repeated)).succeeded()
    assert result(done).rows_affected == RowsAffected(upserted=3)
    stage.done(merged(LOADED, ((3, 1, 1_000), (50, 1, 2))))


def column(name: str, *values: int) -> tuple[str, pa.Array]:
    return name, pa.array(values, pa.int64())


WRONG = {
    "an unknown column": ("upsert", dict([column("id", 3), column("w", 1)]), "w"),
    "no key": ("upsert", dict([column("k", 3), column("v", 1)]), "id"),
    "a delete with more than its key": ("delete", dict([column("id", 3), column("v", 1)]), "v"),
}


@pytest.mark.whole
def test_a_source_that_does_not_fit_is_refused_and_nothing_is_written(stage: Stage) -> None:
    stage.log.upsert(((3, 1, 1),))
    for number, (what, (kind, columns, named)) in enumerate(WRONG.items()):
        source = pa.table(columns)
        if kind == "upsert":
            operation = stage.upsert(f"wrong-{number}", source)
        else:
            operation = stage.by_key(f"wrong-{number}", "deleteKeys", source)
        failed = operation.failed("InvalidSpec")
        [condition] = [c for c in failed.conditions if c.type.value == "Succeeded"]
        assert named in condition.message, (what, condition.message)
        assert failed.result is None
    assert stage.log.blocks() == [(1, 1)]
    stage.done(merged(LOADED, ((3, 1, 1),)))


@pytest.mark.parametrize("kind", ["upsert", "deleteKeys"])
def test_a_table_without_a_log_is_refused_by_name(world: World, tmp_path: Path, kind: str) -> None:
    lake = quick_lake.make(tmp_path, loads=2)
    adopted: Table = world.adopt(lake)
    source = lake.source(table(((3, 1, 1),)).select(["id"] if kind == "deleteKeys" else [0, 1, 2]))
    body = {kind: {"source": {"format": "Parquet", "location": source.as_uri()}}}
    status = adopted.apply(lake.resource("TableUpdate", body)).failed("NotMergeOnRead")
    assert "Set spec.mergeOnRead of its LakeTable" in status.conditions[0].message
    assert (lake.version, lake.by_deltalake()) == (lake.first_version, LOADED)
    world.assert_nothing_left_behind(adopted)
