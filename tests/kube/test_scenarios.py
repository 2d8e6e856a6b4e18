"""CarbonData's and Druid's scenarios, and what must never happen (Z), in a cluster: through the
API server, etcd and, in tests that are marked `whole`, real Spark (`make matrix`: in all).

As on real tables (`tests/tables`), but nothing is called: resources are applied, an operator
with its own service account sees them, and `tandem dev` runs the Spark applications that it
creates. The order is forced by jobs that stand still with their work done until others have
committed. Rows are compared with the serial result at every version, by our reader and
deltalake (that Spark + Delta agrees is tested in `tests/tables`). Afterwards nothing is left: no
lock, lease, finalizer, Spark application or file.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from kube.gates import GatedSpark
from kube.kube_scenarios import Applied, Refused, Table, World
from support.cluster.operator_process import Blow, ProcessStarter, starter
from support.jobs.inline_runner import InlineRunner
from support.lake.lake import Lakes, batch, loads, reconciled, result
from support.lake.log_blocks import LogBlocks
from support.lake.rewritten import ALL, replace_all, rewrite
from support.lake.rows import Rows, join, k_is, plus, without
from support.some import is_whole, some
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.operations.machine.events import Point
from tandem.spec.common import OPERATIONS
from tandem.spec.status import OperationStatus, Phase

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

FOUR = loads(range(4))
UPDATED = plus(FOUR, k_is(1), 15)
NEW = batch(7)
ALL_BLOCKS = {"strategy": "AllBlocks"}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def works(request: pytest.FixtureRequest) -> SparkSession | None:
    """What does the jobs, and reads: Spark in tests that are marked `whole`."""
    return request.getfixturevalue("spark") if is_whole(request.node) else None


@pytest.fixture
def lakes(works: Any, tmp_path: Path, templates: Path) -> Lakes:
    whole = works is not None
    return Lakes(works, tmp_path, templates, spark_reads=whole, spark_works=whole)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    with starter(tmp_path_factory.mktemp("operators")) as made:
        yield made


class Stage:
    """A world with jobs, and one operator by default."""

    def __init__(self, world: World, jobs: GatedSpark, lakes: Lakes) -> None:
        self.world = world
        self.jobs = jobs
        self.lakes = lakes

    def loaded(self, loads: int = 4) -> Table:
        """Segments 0 to `loads` - 1 of ten rows each."""
        return self.world.adopt(self.lakes.loaded(loads))

    def done(self, table: Table, *states: Rows) -> None:
        """The end of every scenario: every version shows one of these states, in this order,
        and nothing is left behind."""
        table.lake.assert_states_so_far(*states)
        table.lake.assert_clean()
        self.world.assert_nothing_left_behind(table)


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(cluster, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def jobs() -> GatedSpark:
    return GatedSpark(None)


@pytest.fixture(scope="module")
def running(world: World, jobs: GatedSpark) -> Iterator[World]:
    """One operator and one `dev` for the scenarios that need no other."""
    with world.dev(jobs), world.operator():
        yield world


@pytest.fixture
def stage(running: World, jobs: GatedSpark, works: SparkSession | None, lakes: Lakes) -> Stage:
    jobs.spark = works
    return Stage(running, jobs, lakes)


@pytest.fixture
def bare(cluster: Cluster, tmp_path: Path, works: SparkSession | None, lakes: Lakes) -> Stage:
    """Nothing runs in it yet."""
    return Stage(World.make(cluster, tmp_path), GatedSpark(works), lakes)


# C: one compaction, one update, and both --------------------------------------------------------


def test_C1a_only_a_compaction_leaves_one_segment(stage: Stage) -> None:
    table = stage.loaded()
    done = table.apply(table.lake.compaction()).succeeded()
    assert done.plan is not None
    assert done.plan.segments == ("0", "1", "2", "3")
    assert result(done).segments == ("0.1",)
    assert table.lake.statuses() == {
        "0": "Compacted", "1": "Compacted", "2": "Compacted", "3": "Compacted", "0.1": "Success",
    }  # fmt: skip
    stage.done(table, FOUR)


def test_C1b_only_update_of_one_segment(stage: Stage) -> None:
    table = stage.loaded()
    update = table.lake.update("id >= 10 AND id < 20 AND k = 1", v="v + 15")
    done = table.apply(update).succeeded()
    assert result(done).segments == ("4",)
    affected = result(done).rows_affected
    assert affected is not None
    assert affected.updated == 2
    assert table.lake.names == ["0", "1", "2", "3", "4"]
    assert table.lake.deleted() == {"1": 2}
    stage.done(table, FOUR, plus(FOUR, lambda row: row[0] // 10 == 1 and row[1] == 1, 15))


@pytest.mark.whole
def test_C2_update_commits_during_compaction(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    gate.reached()
    table.apply(table.lake.update("k = 1", v="v + 15")).succeeded()
    gate.go()
    done = compaction.succeeded()
    assert reconciled(done).deletes_remapped == 8
    assert table.lake.names == ["0.1", "4"]
    assert table.lake.deleted() == {"0.1": 8}
    stage.done(table, FOUR, UPDATED)


def test_C3_compaction_commits_during_update(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("statement")
    update = table.apply(table.lake.update("k = 1", v="v + 15"))
    gate.reached()
    table.apply(table.lake.compaction()).succeeded()
    gate.go()
    done = update.succeeded()
    assert result(done).segments == ("4",)
    assert any(s.startswith("8 rows followed into 0.1") for s in result(done).summary or ())
    assert table.lake.names == ["0.1", "4"]
    assert table.lake.deleted() == {"0.1": 8}
    stage.done(table, FOUR, UPDATED)


@pytest.mark.parametrize("second", ["recomputes", "fails"])
def test_C10_two_compactions_choose_overlapping_inputs(stage: Stage, second: str) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    first = table.apply(table.lake.compaction(), "nightly")
    gate.reached()
    if second == "recomputes":
        other = table.apply(table.lake.compaction(), "at-once")
    else:
        other = table.apply(table.lake.compaction("Custom", custom={"segments": ["1", "2"]}))
    _waits_for(other, first)
    gate.go()
    assert result(first.succeeded()).segments == ("0.1",)
    if second == "recomputes":
        other.succeeded()
        assert other.reason == "NothingToDo"
    else:
        other.failed("UnknownSegment")
    assert table.lake.names == ["0.1"]
    for each in (first, other):
        each.delete()
        each.gone()
    stage.done(table, FOUR)


def _waits_for(operation: Applied, holder: Applied) -> None:
    """It says for whom, and on which segment."""

    def says(status: dict[str, object]) -> bool:
        conditions = str(status.get("conditions"))
        return (
            "WaitingForLock" in conditions and str(holder) in conditions and "segment" in conditions
        )

    operation.wait(says)


def test_C14_an_input_is_locked_by_another_operation(stage: Stage) -> None:
    """The compaction waits, and then plans on what the other one has left (I-28)."""
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    first = table.apply(table.lake.compaction("Custom", custom={"segments": ["2", "3"]}))
    gate.reached()
    second = table.apply(table.lake.compaction("Major", major={"targetSegmentSize": "1Gi"}))
    _waits_for(second, first)
    table.lake.foreign().delete("id < 10")  # and meanwhile segment 0 goes
    table.lake.append(batch(4))
    gate.go()
    made = result(first.succeeded()).segments
    assert made is not None
    done = second.succeeded()
    assert done.plan is not None
    assert made[0] in done.plan.segments
    assert not {"0", "2", "3"} & set(done.plan.segments)  # nothing was done by the stale plan
    assert done.attempt == 1
    without_first = loads([1, 2, 3])
    stage.done(table, FOUR, without_first, join(without_first, batch(4)))


# D: ingests and compactions, each ending well or not ---------------------------------------------


def test_D11_compaction_succeeds_and_shows_its_segment(stage: Stage) -> None:
    table = stage.loaded()
    table.apply(table.lake.compaction()).succeeded()
    assert table.lake.names == ["0.1"]
    stage.done(table, FOUR)


def test_D12_compaction_fails_and_shows_nothing(stage: Stage) -> None:
    """Its driver dies when all of its files lie there."""
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    gate.reached()
    assert table.lake.unreachable()
    gate.die()
    compaction.failed("JobFailed")
    assert table.lake.names == ["0", "1", "2", "3"]
    stage.done(table, FOUR)


@pytest.mark.part(2)
@pytest.mark.parametrize("commits_first", ["ingest", "compaction"])
@pytest.mark.parametrize("scenario", ["D15", "D18"])
def test_D15_D18_both_succeed_whichever_commits_first(
    stage: Stage, scenario: str, commits_first: str
) -> None:
    """D15: the compaction starts first; D18: the ingest does."""
    table = stage.loaded()
    gates = {"ingest": stage.jobs.hold("ingest"), "compaction": stage.jobs.hold("rewrite")}
    operations = {
        "ingest": table.lake.ingest(NEW),
        "compaction": table.lake.compaction(),
    }
    applied = {}
    for kind in ("compaction", "ingest") if scenario == "D15" else ("ingest", "compaction"):
        applied[kind] = table.apply(operations[kind])
        gates[kind].reached()
    last = "compaction" if commits_first == "ingest" else "ingest"
    for kind in (commits_first, last):
        gates[kind].go()
        applied[kind].succeeded()
    assert table.lake.names == ["0.1", "4"]
    stage.done(table, FOUR, join(FOUR, NEW))


def test_D16_compaction_starts_first_ingest_fails(stage: Stage) -> None:
    table = stage.loaded()
    rewriting, ingesting = stage.jobs.hold("rewrite"), stage.jobs.hold("ingest")
    compaction = table.apply(table.lake.compaction())
    rewriting.reached()
    ingest = table.apply(table.lake.ingest(NEW))
    ingesting.reached()
    ingesting.die()
    ingest.failed("JobFailed")
    rewriting.go()
    compaction.succeeded()
    assert table.lake.names == ["0.1"]
    stage.done(table, FOUR)


def test_D17_compaction_first_compaction_fails(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    gate.reached()
    table.apply(table.lake.ingest(NEW)).succeeded()
    gate.die()
    compaction.failed("JobFailed")
    assert table.lake.names == ["0", "1", "2", "3", "4"]  # s1 stays, where Druid lost it
    stage.done(table, FOUR, join(FOUR, NEW))


# Replacement -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
def test_D29_D32_an_append_beside_a_replacement(stage: Stage, scope: str) -> None:
    table = stage.loaded()
    late = batch(8)
    gate = stage.jobs.hold("ingest")
    replacement = table.apply(replace_all(table.lake, NEW, scope=scope))
    gate.reached()
    table.lake.append(late)
    gate.go()
    done = result(replacement.succeeded()).replaced
    assert done is not None
    kept = scope == "AtStart"
    assert (done.rows, done.late) == ((40, 10) if kept else (50, None))
    stage.done(table, FOUR, join(FOUR, late), join(NEW, late) if kept else NEW)


def test_D35_D38_a_compaction_beside_a_replacement(stage: Stage) -> None:
    """The compaction begins first, and commits last: the original rows do not come back."""
    table = stage.loaded()
    rewriting = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    rewriting.reached()
    replacement = table.apply(replace_all(table.lake, NEW))
    replacement.succeeded()
    rewriting.go()
    compaction.reaches("Superseded")
    stage.done(table, FOUR, NEW)


def test_D43_the_second_replacement_waits_and_replaces_the_first(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("ingest")
    first = table.apply(replace_all(table.lake, NEW))
    gate.reached()
    second = table.apply(table.lake.resource("TableReplace", {"replace": ALL}))
    second.wait(lambda status: "WaitingForLock" in str(status.get("conditions")))
    gate.go()
    first.succeeded()
    second.succeeded()
    stage.done(table, FOUR, NEW, ())


def test_D57_an_exclusive_compaction_yields_to_late_rows(stage: Stage) -> None:
    table = stage.loaded()
    late = batch(8)
    how = {"lockMode": "Exclusive", "exclusive": {"maxYields": 3, "backoff": "3s"}}
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction("Major", **how))
    gate.reached()
    table.lake.append(late)
    compaction.wait(lambda status: "nextTry" in status.get("yields", {}))
    gate.go()
    waiting = OperationStatus.model_validate(compaction.status)
    assert waiting.yields is not None
    assert (waiting.phase, waiting.yields.count) == (Phase.PENDING, 1)
    assert waiting.yields.by.startswith("version ")
    assert waiting.conditions[0].reason == "Yielded"
    done = compaction.succeeded()
    assert done.yields is not None
    assert (done.attempt, done.yields.count, done.yields.next_try) == (2, 1, None)
    assert result(done).files_removed == 5
    stage.done(table, FOUR, join(FOUR, late))


def test_D60_a_drop_starts_no_job(stage: Stage) -> None:
    table = stage.loaded()
    started = len(stage.jobs.started)
    drop = table.lake.resource("TableReplace", {"replace": {"segments": ["1", "2"]}})
    done = table.apply(drop).succeeded()
    assert len(stage.jobs.started) == started
    assert result(done).files_removed == 2
    stage.done(table, FOUR, loads((0, 3)))


# Z: what other systems got wrong -----------------------------------------------------------------


Make = Callable[[Table], Applied]
MADE: dict[str, tuple[Make, Rows]] = {
    "TableCompaction": (lambda t: t.apply(t.lake.compaction()), FOUR),
    "TableUpdate": (lambda t: t.apply(t.lake.update("k = 1", v="v + 15")), UPDATED),
    "TableIngest": (lambda t: t.apply(t.lake.ingest(NEW)), join(FOUR, NEW)),
    "SegmentRewrite": (lambda t: t.apply(rewrite(t.lake, "0", "2", sortBy=["v"])), FOUR),
    "LogCompaction": (lambda t: t.apply(t.lake.resource("LogCompaction", ALL_BLOCKS)), FOUR),
    "TableReplace": (lambda t: t.apply(replace_all(t.lake, NEW)), NEW),
}
OF_THE_TABLE = [kind for kind in OPERATIONS if not OPERATIONS[kind].on_log]


def _version(kind: str, table: Table) -> int:
    """The newest version of what operations of a kind commit to."""
    lake = table.lake
    return LogBlocks(lake.location, "w").version if OPERATIONS[kind].on_log else lake.version


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", some(OF_THE_TABLE))
def test_Z1_lease_expires_second_operator_commits_first_comes_back(
    bare: Stage, operators: ProcessStarter, kind: str
) -> None:
    """It stands still for longer than its lease, right before its commit. Another one leads,
    takes over and commits; then the first goes on where it stood."""
    make, after = MADE[kind]
    world = bare.world
    with world.dev(bare.jobs):
        stop = Blow(Point.PUT_COMMIT, signal=int(signal.SIGSTOP))
        first = operators.start(world.order(blows=(stop,), ttl_s=6)).ready()
        table = bare.loaded()
        operation = make(table)
        first.stopped()
        second = operators.start(world.order(instance="pod-1")).ready()
        done = operation.succeeded()
        version = table.lake.version
        assert result(done).version == version
        first.go_on()
        # It has lost its leadership, and ends by itself or stands by: in either case silently.
        second.stop()
        third = operators.start(world.order(election="another", instance="pod-2")).ready()
        world.wait_ready(table)
        assert table.lake.version == version
        assert operation.phase == "Succeeded"
        bare.done(table, *dict.fromkeys([FOUR, after]))
        first.kill()
        third.stop()


class DuplicateDrivers:
    """A Spark operator that starts every driver twice."""

    def __init__(self, spark: SparkSession | None) -> None:
        self.runners = [InlineRunner(spark), InlineRunner(spark)]
        self.names: list[str] = []

    def start(self, request: JobRequest) -> None:
        self.names.append(request.name)
        for runner in self.runners:
            runner.start(request)

    def status(self, name: str) -> JobStatus:
        return self.runners[0].status(name)

    def stop(self, name: str) -> None:
        for runner in self.runners:
            runner.stop(name)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_Z6_two_operators_reconcile_the_same_resource(bare: Stage, kind: str) -> None:
    """Both believe that they lead, both drive the same resource, and every driver starts twice."""
    make, after = MADE[kind]
    world = bare.world
    drivers = DuplicateDrivers(bare.jobs.spark)
    with ExitStack() as both:
        both.enter_context(world.dev(drivers))
        both.enter_context(world.operator(election="left", instance="left"))
        both.enter_context(world.operator(election="right", instance="right"))
        table = bare.loaded()
        if OPERATIONS[kind].on_log:
            log = LogBlocks(table.lake.location, "shop", made=True)
            log.upsert(NEW)
            log.delete(1)
        before = _version(kind, table)
        done = make(table).succeeded()
        for name in drivers.names:
            drivers.stop(name)
        assert result(done).version == _version(kind, table) == before + 1
        table.lake.assert_states_so_far(*dict.fromkeys([FOUR, after]))


@pytest.mark.parametrize("kind", some(OF_THE_TABLE))
def test_Z7_resource_is_deleted_while_its_job_runs(stage: Stage, kind: str) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold()
    operation = MADE[kind][0](table)
    gate.reached()
    operation.delete()
    operation.gone()
    table.apply(table.lake.delete("k = 2")).succeeded()
    stage.done(table, FOUR, without(FOUR, k_is(2)))


def test_Z7_resource_is_paused_while_its_job_runs(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    gate.reached()
    compaction.set(suspend=True)
    compaction.reaches("Suspended")
    table.lake.assert_states_so_far(FOUR)
    assert table.lake.unreachable() == set()
    compaction.set(suspend=False)
    assert result(compaction.succeeded()).segments == ("0.1",)
    stage.done(table, FOUR)


def test_Z7_spec_cannot_change_while_its_job_runs(stage: Stage) -> None:
    table = stage.loaded()
    gate = stage.jobs.hold("statement")
    update = table.apply(table.lake.update("k = 1", v="v + 15"))
    gate.reached()
    with pytest.raises(Refused, match="chang") as refused:
        update.set(update={"where": "k = 2", "set": {"v": "v + 15"}})
    assert refused.value.status == 422
    update.set(priority=7)  # this may change
    gate.go()
    update.succeeded()
    stage.done(table, FOUR, UPDATED)


def test_Z12_no_writer_fails_or_waits_because_of_a_compaction(stage: Stage) -> None:
    """Foreign writers and ours commit during all of it, at once and at their first try."""
    table = stage.loaded()
    gate = stage.jobs.hold("rewrite")
    compaction = table.apply(table.lake.compaction())
    gate.reached()
    states = [FOUR]
    table.lake.append(batch(4))
    states.append(join(states[-1], batch(4)))
    table.lake.foreign().delete("id < 10 AND k = 2")
    states.append(without(states[-1], lambda row: row[0] < 10 and row[1] == 2))
    ingest = table.apply(table.lake.ingest(NEW)).succeeded()
    states.append(join(states[-1], NEW))
    update = table.apply(table.lake.update("k = 1", v="v + 15")).succeeded()
    states.append(plus(states[-1], k_is(1), 15))
    assert (ingest.attempt, update.attempt) == (1, 1)
    gate.go()
    done = compaction.succeeded()
    assert done.attempt == 1
    assert reconciled(done).commits_seen == 4
    assert "0.1" in table.lake.names
    stage.done(table, *states)
