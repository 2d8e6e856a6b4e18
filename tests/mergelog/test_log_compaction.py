"""What a LogCompaction reports: its plan, its result, and who took its blocks away."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.aged import AgedOrders
from mergelog.lake import made, table
from mergelog.orders import MERGE, STITCH, Orders, Rows, make, rows
from mergelog.test_beside import Before
from support.documents import document
from tandem import mergelog
from tandem.errors import StorageError
from tandem.mergelog.state.log_table import LOG_FOLDER, state_of
from tandem.mergelog.upkeep import record_base
from tandem.operations.machine.events import Point
from tandem.spec import LakeTable
from tandem.spec.status import Phase


def sizes(orders: Orders) -> list[int]:
    return [block.size for block in state_of(orders.log.snapshot()).live.values()]


def test_its_plan_and_its_result_say_which_blocks_go_in_and_come_out(orders: Orders) -> None:
    before, version = sizes(orders), orders.log.snapshot().version
    dry = orders.run({**STITCH, "dryRun": True}, name="dry")
    assert (orders.log.snapshot().version, dry.result) == (version, None)
    done = orders.run(STITCH)
    for plan in (dry.plan, done.plan):
        assert plan is not None
        assert (plan.inputs, plan.input_bytes, plan.output_files) == (4, sum(before), 1)
        assert (plan.instants, plan.segments) == (("1-4",), ())
    result = done.result
    assert result is not None
    assert (result.blocks_in, result.bytes_in) == (4, sum(before))
    assert (result.blocks_out, result.bytes_out) == (1, sum(sizes(orders)))
    assert (result.instants, result.segments, result.version) == (("1-4",), None, version + 1)
    assert result.summary == (f"no other commit since version {version}",)


def test_a_superseded_one_names_the_commit_that_took_its_blocks(orders: Orders) -> None:
    def overwrite() -> None:
        write_deltalake(orders.location, rows(range(1), "new", 1), mode="overwrite")
        orders.append(rows(range(2), "later", 2))

    version = orders.log.snapshot().version
    status = orders.run(STITCH, Before(Point.RECONCILE, overwrite))
    assert (status.phase, status.result) == (Phase.SUPERSEDED, None)
    message = status.conditions[0].message
    assert "no run still has all of its blocks: 4 inputs gone to" in message
    assert f"version {version + 1} by `tandem/" in message


def test_a_restore_of_merged_records_beside_it_loses_none_of_them(tmp_path: Path) -> None:
    """The job leaves out upserts that the base table holds, and a restore takes them back. The
    blocks stay live, since their deletes are in force."""
    orders = Orders(make(tmp_path / "orders", "at"))
    before, read = orders.view(), orders.log.base.snapshot().version
    with mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer:
        for batch in range(2):
            upsert = rows(range(20 + batch, 21 + batch), "new", 5)
            gone = rows(range(90 + batch, 91 + batch), "", 5).select(["id", "at"])
            writer.append(upsert, gone, batch=batch)
        expected = [*before, (20, 5, "new"), (21, 5, "new")]
        orders.run(MERGE, name="merge")
        record_base(orders.log, now_ms=0)

        def restore() -> None:
            DeltaTable(orders.location).restore(read)
            writer.append(rows(range(30, 31), "later", 5), batch=2)

        status = orders.run(STITCH, Before(Point.RECONCILE, restore), name="stitch")
    assert status.phase is Phase.SUCCEEDED
    assert orders.view() == [*expected, (30, 5, "later")]


KEEPS_A_DAY = LakeTable.model_validate(
    document(
        "LakeTable",
        "orders",
        {
            "location": "file:///orders",
            "mergeOnRead": {"keys": ["id"], "orderingColumn": "at", "deletesKept": "24h"},
        },
    )
)


def test_a_writer_whose_clock_is_ahead_lets_no_delete_expire(tmp_path: Path) -> None:
    orders = AgedOrders(make(tmp_path / "orders", "at"))
    orders.lake = KEEPS_A_DAY
    expected = orders.view()
    orders.run(MERGE, name="first")
    orders.upsert("in-time", range(30, 31), "new", 1)
    orders.clock.pass_days(8)
    orders.upsert("ahead", range(30, 31), "new", 2)
    orders.clock.pass_days(-8)
    orders.run(MERGE, name="second")
    orders.upsert("after", range(30, 31), "new", 3)
    orders.upsert("last", range(30, 31), "new", 4)
    assert orders.run(STITCH, name="stitch").phase is Phase.SUCCEEDED
    orders.upsert("late", range(1), "less than the delete", 7)
    assert orders.view() == [*expected, (30, 4, "new")]


def test_a_delete_expires_once_a_merge_follows_that_is_so_much_younger(tmp_path: Path) -> None:
    orders = AgedOrders(make(tmp_path / "orders", "at"))
    orders.lake = KEEPS_A_DAY

    def merge(name: str) -> None:
        orders.run(MERGE, name=name)
        record_base(orders.log, now_ms=orders.clock.now_ms())

    def deletes() -> int:
        return sum(block.deletes for block in state_of(orders.log.snapshot()).live.values())

    expected = orders.view()
    merge("first")
    assert (orders.view(), deletes()) == (expected, 2)
    orders.clock.pass_days(0.5)
    orders.upsert("in-time", range(1), "less than the delete", 7)
    orders.clock.pass_days(8)
    assert orders.run(STITCH, name="young").phase is Phase.SUCCEEDED
    assert (orders.view(), deletes()) == (expected, 2), "a row that came in time needs the delete"
    merge("second")
    orders.upsert("much-later", range(30, 31), "new", 1)
    merge("third")
    orders.upsert("last", range(31, 32), "new", 1)
    expected = [*expected, (30, 1, "new"), (31, 1, "new")]
    assert (orders.view(), deletes()) == (expected, 2)
    assert orders.run(STITCH, name="old").phase is Phase.SUCCEEDED
    assert (orders.view(), deletes()) == (expected, 0)


@pytest.mark.part(2)
def test_a_damaged_page_of_a_stitched_block_is_never_read_as_other_rows(orders: Orders) -> None:
    orders.run(STITCH)
    (path,) = state_of(orders.log.snapshot()).live
    block, expected = orders.folder / LOG_FOLDER / path, orders.view()
    good = block.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    noticed = 0
    for at in range(4, footer, 5):
        block.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        found = view_or_error(orders)
        assert found == expected or block.name in str(found)
        noticed += isinstance(found, StorageError)
    assert noticed > (footer - 4) / 5 / 2


def view_or_error(orders: Orders) -> Rows | StorageError:
    try:
        return orders.view()
    except StorageError as error:
        return error


def test_I38_a_block_of_another_partition_between_the_stitched_ones_stays(tmp_path: Path) -> None:
    rows_of_base = table((1, "a", "x"), (2, "b", "y"))
    merged = made(tmp_path / "t", rows_of_base, keys=("k", "p"), partition_by=["p"])
    for row in ((3, "c", "x"), (4, "d", "y"), (5, "e", "x")):
        merged.append(table(row))
    expected = merged.rows()
    assert Orders(tmp_path / "t").run(STITCH).phase is Phase.SUCCEEDED
    assert merged.rows() == expected
    assert sorted((b.first, b.last) for b in merged.open().state.live.values()) == [(1, 3), (2, 2)]
