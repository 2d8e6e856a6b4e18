"""`run` and `plan`: order, dependencies, bad ends, interruption; on a table in memory."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from simulator.jobs import SimulatedJobs
from simulator.rows import Row
from simulator.world import START_MS, VirtualClock
from support.documents import document
from support.lake.memory_store import MemoryStore
from tandem.delta import protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidSpec, Reason
from tandem.jobs.runner import JobStatus
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.runner import RunOptions, plan, run
from tandem.operations.session.job_control import FileJobs
from tandem.spec.loader import parse
from tandem.spec.resources import AnyResource, IndexServer, LakeTable, ResourceOutcome
from tandem.spec.status import OperationResult, OperationStatus, Phase, TableStatus


class EagerJobs(SimulatedJobs):
    """Advances a job whenever its status is read. `hold` keeps all of them from going on."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, random.Random(0), lambda _line: None)
        self.hold = False
        self.lock = threading.Lock()

    def status(self, name: str) -> JobStatus:
        with self.lock:
            for driver in self.drivers.get(name, []):
                if driver.alive and not self.hold:
                    self.advance(driver)
            return super().status(name)


class Bench:
    """A store in memory that LakeTable/t names, and what runs on it."""

    def __init__(self) -> None:
        self.store = MemoryStore("file:///bench")
        self.jobs = EagerJobs(self.store)
        self.ports = Ports(jobs=FileJobs(self.jobs), clock=VirtualClock(START_MS))
        self.log = DeltaLog(self.store)

    def options(self, **fields: Any) -> RunOptions:
        return RunOptions(ports=self.ports, poll_ms=1, open_table=self._open, **fields)

    def _open(self, resource: LakeTable, **_: Any) -> Table:
        return Table(self.store, self.log, resource.id, spec=resource)

    def source(self, number: int) -> dict[str, Any]:
        location = f"file:///batches/{number}.csv"
        rows = [Row(number * 10 + i, i % 4, i) for i in range(6)]
        self.jobs.batches[location] = rows
        return {"source": {"format": "Csv", "location": location}}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def resource(kind: str, name: str, spec: dict[str, Any]) -> AnyResource:
    if kind != "LakeTable":
        spec = {"tableRef": {"name": "t"}, **spec}
    found = parse(document(kind, name, spec))
    assert not isinstance(found, IndexServer)
    return found


def lake(**spec: Any) -> AnyResource:
    columns = [{"name": n, "type": "long"} for n in ("rid", "k", "v")]
    created = {"create": {"schema": columns}, "enableDeletionVectors": True}
    return resource("LakeTable", "t", {"location": "file:///bench", **created, **spec})


def by_name(outcomes: list[ResourceOutcome]) -> dict[str, OperationStatus | TableStatus]:
    return {outcome.resource.id: outcome.status for outcome in outcomes}


def after(*names: str) -> dict[str, Any]:
    kinds = {"i": "TableIngest", "c": "TableCompaction", "u": "TableUpdate"}
    return {"dependsOn": [{"kind": kinds[name[0]], "name": name} for name in names]}


def everything(bench: Bench) -> list[AnyResource]:
    """In an order that is not the one in which they can run."""
    update = {"update": {"where": "k = 1", "set": {"v": "v + 15"}}}
    return [
        resource("TableUpdate", "u", {**update, **after("c")}),
        resource("TableCompaction", "c", {"type": "Major", **after("i0", "i1")}),
        resource("TableIngest", "i0", bench.source(0)),
        resource("TableIngest", "i1", bench.source(1)),
        lake(),
    ]


def test_dependencies_come_first_and_outcomes_keep_the_order_given(bench: Bench) -> None:
    outcomes = run(everything(bench), bench.options())
    assert [o.resource.id for o in outcomes] == [r.id for r in everything(bench)]
    assert {o.status.phase for o in outcomes} == {Phase.SUCCEEDED}
    statuses = by_name(outcomes)
    compacted, updated = statuses["TableCompaction/c"], statuses["TableUpdate/u"]
    assert isinstance(compacted, OperationStatus)
    assert isinstance(updated, OperationStatus)
    assert compacted.plan is not None
    assert compacted.plan.segments == ("0", "1")
    assert compacted.result is not None
    assert compacted.result.segments == ("0.1",)
    assert updated.result is not None
    assert updated.result.rows_affected is not None
    # 6 rows a load with k = 0, 1, 2, 3, 0, 1: two of each load.
    assert updated.result.rows_affected.updated == 4
    assert updated.result.segments == ("2",)


@pytest.mark.parametrize("value", ["true", "TRUE"])
@pytest.mark.parametrize(
    ("key", "feature"),
    [
        ("delta.enableDeletionVectors", "deletionVectors"),
        ("delta.enableChangeDataFeed", "changeDataFeed"),
    ],
)
def test_a_new_table_has_the_features_that_its_properties_enable(
    bench: Bench, key: str, feature: str, value: str
) -> None:
    """Spark refuses a table with the property and without the feature."""
    columns = [{"name": "rid", "type": "long"}]
    create = {"schema": columns, "properties": {key: value}}
    (made,) = run([lake(create=create, enableDeletionVectors=False)], bench.options())
    assert made.status.phase is Phase.SUCCEEDED
    made_protocol = bench.log.snapshot().protocol
    assert feature in made_protocol.writer_features
    assert (feature in made_protocol.reader_features) == (feature == "deletionVectors")


def test_a_second_run_reports_the_first_and_again_makes_another(bench: Bench) -> None:
    first = run(everything(bench), bench.options())
    version = bench.log.latest_version()
    second = run(everything(bench), bench.options())
    assert bench.log.latest_version() == version
    for one, two in zip(first, second, strict=True):
        if isinstance(one.status, OperationStatus) and isinstance(two.status, OperationStatus):
            assert one.status.phase == two.status.phase
            repeated = one.status.result or OperationResult()
            assert two.status.result == repeated.model_copy(update={"repeated": True})
    run([everything(bench)[2], everything(bench)[4]], bench.options(again=True))
    assert bench.log.latest_version() == version + 1


def test_plan_changes_nothing(bench: Bench) -> None:
    run([lake(), resource("TableIngest", "i0", bench.source(0))], bench.options())
    run([lake(), resource("TableIngest", "i1", bench.source(1))], bench.options())
    before = bench.store.paths()
    outcomes = plan([lake(), resource("TableCompaction", "c", {"type": "Major"})], bench.options())
    status = by_name(outcomes)["TableCompaction/c"]
    assert isinstance(status, OperationStatus)
    assert status.plan is not None
    assert status.plan.inputs == 4
    assert status.plan.locks == ("Rewrite segment 0", "Rewrite segment 1")
    assert bench.store.paths() == before


def test_plan_of_a_table_that_would_be_created(bench: Bench) -> None:
    outcomes = plan([lake(), resource("TableIngest", "i0", bench.source(0))], bench.options())
    assert bench.store.paths() == ()
    assert by_name(outcomes)["TableIngest/i0"].phase is Phase.PENDING


def test_operations_that_depend_on_a_failure_do_not_start(bench: Bench) -> None:
    bad = resource("TableUpdate", "u", {"delete": {"where": "no_such_column = 1"}})
    next_ = resource("TableCompaction", "c", {"type": "Major", **after("u")})
    free = resource("TableIngest", "i0", bench.source(0))
    statuses = by_name(run([lake(), bad, next_, free], bench.options()))
    assert statuses["TableUpdate/u"].conditions[0].reason == Reason.INVALID_STATEMENT
    assert statuses["TableCompaction/c"].conditions[0].reason == Reason.WAITING_FOR_DEPENDENCY
    assert "TableUpdate/u" in statuses["TableCompaction/c"].conditions[0].message
    assert statuses["TableIngest/i0"].phase is Phase.SUCCEEDED


def test_without_a_table_nothing_starts(bench: Bench) -> None:
    table = lake(create=None)
    statuses = by_name(
        run([table, resource("TableIngest", "i0", bench.source(0))], bench.options())
    )
    assert statuses["LakeTable/t"].conditions[0].reason == Reason.TABLE_NOT_FOUND
    assert statuses["TableIngest/i0"].phase is Phase.FAILED
    assert bench.store.paths() == ()


def test_a_dependency_cycle_is_refused_before_anything_starts(bench: Bench) -> None:
    first = resource("TableIngest", "i0", {**bench.source(0), **after("i1")})
    second = resource("TableIngest", "i1", {**bench.source(1), **after("i0")})
    with pytest.raises(InvalidSpec, match="wait for each other"):
        run([lake(), first, second], bench.options())
    assert bench.store.paths() == ()


def test_cancelled_operations_end_and_say_so(bench: Bench) -> None:
    bench.jobs.hold = True
    cancel = threading.Event()

    def watch(found: AnyResource, status: OperationStatus | TableStatus) -> None:
        if found.id == "TableIngest/i0" and status.phase is Phase.RUNNING:
            cancel.set()

    late = resource("TableCompaction", "c", {"type": "Major", **after("i0")})
    resources = [lake(), resource("TableIngest", "i0", bench.source(0)), late]
    statuses = by_name(run(resources, bench.options(), observer=watch, cancel=cancel))
    assert statuses["LakeTable/t"].phase is Phase.SUCCEEDED
    for name in ("TableIngest/i0", "TableCompaction/c"):
        assert statuses[name].conditions[0].reason == Reason.INTERRUPTED
    bench.jobs.hold = False
    statuses = by_name(run(resources, bench.options()))
    assert {status.phase for status in statuses.values()} == {Phase.SUCCEEDED}


def test_a_table_is_created_once_and_adopted_afterwards(bench: Bench) -> None:
    first, second = run([lake()], bench.options()), run([lake()], bench.options())
    assert first[0].status.conditions[0].reason == Reason.CREATED
    assert second[0].status.conditions[0].reason == Reason.ADOPTED
    assert bench.log.latest_version() == 0


def test_deletion_vectors_are_turned_on_only_when_asked_for(bench: Bench) -> None:
    off = lake(enableDeletionVectors=False, vectors="Only")
    run([off], bench.options())
    delete = resource("TableUpdate", "u", {"delete": {"where": "k = 1"}})
    statuses = by_name(run([off, delete], bench.options()))
    assert statuses["TableUpdate/u"].conditions[0].reason == Reason.DELETION_VECTORS_DISABLED
    statuses = by_name(run([lake(), delete], bench.options()))
    once = "deletion vectors are enabled once an operation has done its work"
    assert statuses["LakeTable/t"].conditions[0].message == once
    # A reported ending stays until another run is requested.
    assert statuses["TableUpdate/u"].conditions[0].reason == Reason.DELETION_VECTORS_DISABLED
    statuses = by_name(run([lake(), delete], bench.options(again=True)))
    assert statuses["TableUpdate/u"].phase is Phase.SUCCEEDED
    snapshot = bench.log.snapshot()
    assert protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)


def test_outcomes_print_as_resources_with_their_status(bench: Bench) -> None:
    [outcome] = run([lake()], bench.options())
    manifest = outcome.manifest()
    assert manifest["kind"] == "LakeTable"
    assert manifest["status"]["phase"] == "Succeeded"
    assert manifest["status"]["version"] == 0
