"""A base table that refuses merges since a property was set after its log was made: appends are
refused too, since their records could not leave the log, and what is in the log already is kept.

`deltalake` sets and drops the properties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import DeltaTable

from mergelog.orders import MERGE, STITCH, Orders, rows
from mergelog.test_beside import Before
from support.present import present
from tandem import mergelog
from tandem.errors import UnsupportedFeature
from tandem.mergelog.writer import Upload
from tandem.operations.adopt import read_log_status
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.spec.status import Phase, TableStatus


@dataclass(frozen=True)
class Property:
    """How another engine makes the base table refuse merges, and how it takes that back. `names`:
    what each error has to name."""

    set_: Callable[[DeltaTable], None]
    drop: Callable[[DeltaTable], None]
    names: tuple[str, ...]


def setting(name: str, value: str) -> Callable[[DeltaTable], None]:
    return lambda table: table.alter.set_table_properties({name: value})


PROPERTIES = {
    "constraint": Property(
        lambda table: table.alter.add_constraint({"recent": "sqrt(at) >= 0"}),
        lambda table: table.alter.drop_constraint("recent"),
        ("delta.constraints.recent", "sqrt(at) >= 0"),
    ),
    "append only": Property(
        setting("delta.appendOnly", "true"), setting("delta.appendOnly", "false"), ("appendOnly",)
    ),
}


@pytest.fixture(params=PROPERTIES)
def property_(request: pytest.FixtureRequest) -> Property:
    return PROPERTIES[request.param]


def assert_named(text: str, property_: Property) -> None:
    for name in property_.names:
        assert name in text


def blocks(orders: Orders) -> list[str]:
    return [meta.path for meta in orders.log.store.list() if meta.path.endswith(".parquet")]


def test_an_open_writer_is_refused_before_it_uploads_until_the_property_is_dropped(
    orders: Orders, property_: Property
) -> None:
    before = orders.view()
    with mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer:
        writer.append(rows(range(20, 21), "accepted", 9), batch=0)
        property_.set_(DeltaTable(orders.location))
        # The writer finds it out while it uploads; from then on, before.
        with pytest.raises(UnsupportedFeature):
            writer.append(rows(range(21, 22), "refused", 9), batch=1)
        version, files = orders.log.log.latest_version(), blocks(orders)
        with pytest.raises(UnsupportedFeature) as caught:
            writer.append(rows(range(21, 22), "refused", 9), batch=1)
        assert_named(str(caught.value), property_)
        assert "then merge the log" in caught.value.remedy
        assert (orders.log.log.latest_version(), blocks(orders)) == (version, files)
        assert orders.view() == [*before, (20, 9, "accepted")]
        property_.drop(DeltaTable(orders.location))
        writer.append(rows(range(21, 22), "later", 9), batch=1)
    assert orders.view() == [*before, (20, 9, "accepted"), (21, 9, "later")]


def test_a_new_writer_and_a_batch_of_spark_are_refused_before_they_upload(
    orders: Orders, property_: Property
) -> None:
    begun = Upload.begin(orders.log)
    part = begun.write(orders.log.store, rows(range(30, 31), "uploaded", 9), None)
    property_.set_(DeltaTable(orders.location))
    version, files = orders.log.log.latest_version(), blocks(orders)
    with mergelog.LogWriter(orders.log, "spark") as writer:
        with pytest.raises(UnsupportedFeature) as caught:
            writer.append_uploaded([part], batch=0)
        assert_named(str(caught.value), property_)
        with pytest.raises(UnsupportedFeature):
            writer.append(rows(range(30, 31), "mine", 9), batch=0)
    with pytest.raises(UnsupportedFeature) as caught:
        Upload.begin(orders.log)
    assert_named(str(caught.value), property_)
    assert (orders.log.log.latest_version(), blocks(orders)) == (version, files)


@pytest.mark.part(5)
@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("operation", ["upsert", "delete by key", "ingest"])
def test_operations_that_append_are_refused(
    orders: Orders, property_: Property, operation: str, when: str
) -> None:
    mine = rows(range(1), "mine", 9)
    columns = list(mergelog.MergedView.open(orders.log).settings.columns)
    specs: dict[str, dict[str, Any]] = {
        "upsert": {"upsert": {"source": orders.source(mine)}},
        "delete by key": {"deleteKeys": {"source": orders.source(mine.select(columns), "gone")}},
        "ingest": {"source": orders.source(mine)},
    }
    before = orders.view()

    def set_() -> None:
        property_.set_(DeltaTable(orders.location))

    if when == "before":
        set_()
    status = orders.run(
        specs[operation], Before(Point.RECONCILE, set_) if when == "during" else None
    )
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "UnsupportedFeature")
    assert_named(status.conditions[0].message, property_)
    assert orders.view() == before


def test_a_merge_and_the_status_name_what_to_drop_and_nothing_is_lost(
    orders: Orders, property_: Property
) -> None:
    before = orders.view()
    property_.set_(DeltaTable(orders.location))
    status = orders.run(MERGE)
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "UnsupportedFeature")
    assert_named(status.conditions[0].message, property_)
    table = Table(orders.store, orders.log.base, "LakeTable/orders")
    log = present(read_log_status(table, None, TableStatus()))
    assert log.unmerged_blocks == 4
    assert_named(log.problem or "", property_)
    assert "then merge the log" in (log.problem or "")
    orders.do(STITCH, name="stitch")
    assert orders.view() == before
    property_.drop(DeltaTable(orders.location))
    orders.do(MERGE, name="again")
    assert orders.base() == orders.view() == before
    log = present(read_log_status(table, None, TableStatus()))
    assert log.problem is None


@pytest.mark.parametrize("operation", ["upsert", "merge"])
def test_where_a_lake_table_allows_vectors_alone_they_must_be_on(
    orders: Orders, operation: str
) -> None:
    before = orders.view()
    orders.allow("Only")
    setting("delta.enableDeletionVectors", "false")(DeltaTable(orders.location))
    upsert = {"upsert": {"source": orders.source(rows(range(1), "mine", 9))}}
    status = orders.run(upsert if operation == "upsert" else MERGE)
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "DeletionVectorsDisabled")
    assert "vectors: Auto" in status.conditions[0].message
    assert orders.view() == before
    orders.allow("Auto")
    orders.do(MERGE, name="again")
    assert orders.base() == before


def test_vectors_are_switched_off_while_a_merge_runs_that_may_not_do_without(
    orders: Orders,
) -> None:
    before = orders.view()
    orders.allow("Only")
    off = setting("delta.enableDeletionVectors", "false")
    switched = Before(Point.RECONCILE, lambda: off(DeltaTable(orders.location)))
    status = orders.run(MERGE, switched)
    assert switched.done
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "DeletionVectorsDisabled")
    assert orders.view() == before
    assert not mergelog.MergedView.open(orders.log).state.mark >= 0
