"""A cleaning of a table and its log is killed at each call that changes something, and repeated;
others append, stitch, restore and read beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.aged import KEEP, AgedOrders, TestClock
from mergelog.orders import MERGE, STITCH, Rows, make, rows
from mergelog.test_log_cleaning import uploaded
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.memory_store import Call, FaultHook, MemoryStore
from support.some import some
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog import log_table
from tandem.mergelog.log_table import state_of
from tandem.operations.clean import MARKER, CleaningOptions, CleaningResult
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.clean_log import clean_with_log
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.planning.cleaning import CleaningRules, RemovalReason

KINDS = {
    RemovalReason.ABANDONED,
    RemovalReason.ROLLED_BACK,
    RemovalReason.REMOVED,
    RemovalReason.STAGING,
    RemovalReason.ARCHIVED,
}
"""Why files of the table below are removed."""


def littered(orders: AgedOrders) -> None:
    """Stitched and merged blocks, a merge that was restored, a dead log compaction, an orphan, and
    versions of the log beyond its retention."""
    orders.upsert("a", range(20, 21), "a", 6)
    orders.clean()  # a checkpoint
    orders.clock.pass_days(30)
    orders.run(STITCH)
    orders.run(MERGE, name="merge")
    version = orders.log.base.snapshot().version
    orders.clean()
    orders.clock.pass_days(2)
    orders.foreign(lambda location: DeltaTable(location).restore(version - 1))
    orders.run(MERGE, name="again")
    orders.clock.pass_days(3)
    for number in range(4):
        orders.upsert(f"later {number}", range(20 + number, 22 + number), "b", 7)
    orders.run(STITCH, name="later")
    orders.upsert("last", range(30, 31), "c", 8)
    for spec, name in ((STITCH, "dead"), (MERGE, "dead-merge")):
        with pytest.raises(ProcessDied):
            orders.run(spec, StrikeOnce(Point.PUT_COMMIT, Fault.DIE_BEFORE), name=name)
    uploaded(orders, orders.writer("dead"))
    orders.clock.pass_days(7)
    orders.foreign(
        lambda location: write_deltalake(location, rows(range(40, 41), "d", 1), mode="append")
    )
    orders.clock.pass_days(1)


@pytest.fixture(scope="module")
def litter(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryStore, TestClock]:
    """The table as a store in memory, and its clock."""
    folder = tmp_path_factory.mktemp("litter") / "orders"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_table, "CHECKPOINT_INTERVAL", 4)
        orders = AgedOrders(make(folder, "at"))
        littered(orders)
    clock, now = orders.clock, orders.clock.now
    store = MemoryStore(clock=lambda: clock.now)
    for meta in orders.store.list(""):
        clock.now = meta.modified_ms
        store.put(meta.path, Path(folder, meta.path).read_bytes())
    clock.now = now
    return store, clock


def clean(store: MemoryStore, clock: TestClock, rules: CleaningRules) -> CleaningResult:
    table = Table(store, DeltaLog(store, parallel_reads=1), "LakeTable/orders")
    found = clean_with_log(table, rules, CleaningDependencies(clock=clock), CleaningOptions())
    assert not found.problem, found.problem
    return found


def retained(store: MemoryStore, rules: CleaningRules) -> range:
    """The versions of the base table that are retained: those of the last week; or, if no file goes
    that a version has named, of the month for which the log has versions."""
    last = DeltaLog(store).latest_version()
    return range(1 if rules.files_ms is None else last - 1, last + 1)


def views(store: MemoryStore, versions: range) -> list[Rows]:
    log = mergelog.MergeLog(DeltaLog(store, parallel_reads=1))
    return [view(log), *(view(log, version) for version in versions)]


def view(log: mergelog.MergeLog, version: int | None = None) -> Rows:
    found = mergelog.MergedView.open(log, version).scan().read_all()
    return sorted(zip(*(found[name].to_pylist() for name in ("id", "at", "value")), strict=True))


def with_fault(
    store: MemoryStore, clock: TestClock, rules: CleaningRules, fault: FaultHook
) -> None:
    store.fault = fault
    try:
        clean(store, clock, rules)
    finally:
        store.fault = None


def kept(store: MemoryStore) -> set[str]:
    """Without the log's versions and what records how often a cleaning ran."""
    return {
        path
        for path in store.paths()
        if "_delta_log/" not in path and not path.endswith((MARKER, "/ended.json"))
    }


MANY = 40
PARTS = some(range(MANY), every=MANY)
"""Parts of the calls of a cleaning: a test strikes at one of many."""


@pytest.mark.part(2)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rules", [KEEP, CleaningRules(None)], ids=["retention", "none"])
def test_a_cleaning_killed_anywhere_changes_no_view_and_can_be_repeated(
    litter: tuple[MemoryStore, TestClock], rules: CleaningRules, part: int
) -> None:
    original, clock = litter
    versions = retained(original, rules)
    before, whole = views(original, versions), original.copy()
    calls: list[Call] = []
    with_fault(whole, clock, rules, calls.append)
    assert views(whole, versions) == before
    changing = [c for c in calls if c.name in ("put", "put_if_absent", "delete")]
    assert len(changing) > 30
    for struck in changing[part::MANY]:
        store = original.copy()

        def die(call: Call, struck: Call = struck) -> None:
            if (call.number, call.when) == (struck.number, struck.when):
                raise ProcessDied(str(call))

        with pytest.raises(ProcessDied):
            with_fault(store, clock, rules, die)
        assert views(store, versions) == before
        clean(store, clock, rules)
        assert views(store, versions) == before
        assert kept(store) == kept(whole)


def test_the_litter_has_all_that_is_cleaned(litter: tuple[MemoryStore, TestClock]) -> None:
    store, clock = litter
    result = clean(store.copy(), clock, KEEP)
    assert {each.why for each in result.garbage} >= KINDS
    assert len(result.abandoned) == 2


@pytest.mark.parametrize("part", PARTS)
def test_appends_and_reads_during_a_cleaning_lose_nothing(
    litter: tuple[MemoryStore, TestClock], part: int
) -> None:
    """A batch is appended, and the view is read, before a call of the store, at calls in turn."""
    original, clock = litter
    calls: list[Call] = []
    with_fault(original.copy(), clock, KEEP, calls.append)
    places = [c.number for c in calls if c.when == "before" and c.name != "get_range"]
    log = mergelog.MergeLog(DeltaLog(original, parallel_reads=1))
    row: tuple[Any, ...] = (99, 9, "meanwhile")
    expected = [*view(log), row]
    for place in places[part::MANY][::6]:
        store = original.copy()
        done: list[Rows] = []

        def append(
            call: Call, place: int = place, store: MemoryStore = store, done: list[Rows] = done
        ) -> None:
            if call.number == place and call.when == "before":
                store.fault = None
                log = mergelog.MergeLog(DeltaLog(store, parallel_reads=1))
                with mergelog.LogWriter(log, "new", now_ms=clock.now_ms) as writer:
                    writer.append(rows(range(99, 100), "meanwhile", 9), batch=0)
                done.append(view(log))

        with_fault(store, clock, KEEP, append)
        log = mergelog.MergeLog(DeltaLog(store, parallel_reads=1))
        assert done == [expected] == [view(log)]
        assert state_of(log.snapshot()).live
