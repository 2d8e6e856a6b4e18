"""What a LogCompaction and a LogMerge report and do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from mergelog.aged import AgedOrders
from mergelog.lake import made, table
from mergelog.orders import MERGE, STITCH, Orders, Rows, make, rows, sorted_rows
from mergelog.services import assert_services_change_nothing
from mergelog.test_beside import Before
from support.documents import document
from tandem import mergelog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import InvalidSpec, StorageError
from tandem.mergelog import blocks
from tandem.mergelog.log_table import state_of
from tandem.mergelog.upkeep import record_base
from tandem.mergelog.winners import MatchedRows, MergeResult, at_version
from tandem.operations.machine.events import Point
from tandem.spec import LakeTable
from tandem.spec.status import Phase
from tandem.storage.paths import LOG_FOLDER

# What a LogCompaction reports: its plan, its result, and who took its blocks away.


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
    assert (result.blocks_in, result.bytes_removed) == (4, sum(before))
    assert (result.blocks_out, result.bytes_added) == (1, sum(sizes(orders)))
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
    orders.do(STITCH, name="stitch")
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
    orders.do(STITCH, name="young")
    assert (orders.view(), deletes()) == (expected, 2), "a row that came in time needs the delete"
    merge("second")
    orders.upsert("much-later", range(30, 31), "new", 1)
    merge("third")
    orders.upsert("last", range(31, 32), "new", 1)
    expected = [*expected, (30, 1, "new"), (31, 1, "new")]
    assert (orders.view(), deletes()) == (expected, 2)
    orders.do(STITCH, name="old")
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


# `LogMerge` through the engine: one commit, the same view before and after, and others beside it.
# Jobs run in this process; `test_thin_path` has real Spark.


def test_a_row_that_was_deleted_meanwhile_beats_no_winner() -> None:
    found = MatchedRows(
        positions=np.array([0, 1, 2]),
        winners=np.array([7, 8, 9]),
        hidden=np.array([True, False, False]),
        greater=np.array([False, True, True]),
    )
    before = at_version({"a": found}, {})
    assert before == MergeResult({"a": BitMap64([0])}, frozenset({8, 9}))
    after = at_version({"a": found}, {"a": BitMap64([0, 1])})
    assert after == MergeResult({}, frozenset({9}))


def live(orders: Orders) -> int:
    return len(mergelog.MergedView.open(orders.log).state.live)


def test_blocks_go_four_one_none_and_no_view_changes(orders: Orders) -> None:
    expected = orders.view()
    assert live(orders) == 4
    orders.do(STITCH)
    assert (live(orders), orders.view()) == (1, expected)
    orders.do(MERGE)
    assert orders.view() == orders.base() == expected
    # With an ordering column a merged delete stays in force.
    assert live(orders) == (1 if orders.ordered else 0)
    assert not mergelog.MergedView.open(orders.log).state.unmerged
    version = orders.log.base.snapshot().version
    orders.do(MERGE, name="once-more")
    assert orders.log.base.snapshot().version == version
    orders.append(rows(range(1), "late", 3))
    assert orders.view() == (expected if orders.ordered else [(0, 3, "late"), *expected])


def test_what_others_commit_while_the_job_runs_comes_before_the_log(orders: Orders) -> None:
    def beside() -> None:
        # A row of a key of the log, one of another, a greater one, and a change of matched rows.
        write_deltalake(orders.location, rows(range(4, 5), "theirs", 4), mode="append")
        write_deltalake(orders.location, rows(range(50, 51), "theirs", 6), mode="append")
        write_deltalake(orders.location, rows(range(6, 7), "greater", 9), mode="append")
        changes = {"value": "'changed'"}
        DeltaTable(orders.location).update(updates=changes, predicate="id = 7 OR id = 3")
        DeltaTable(orders.location).optimize.compact()
        orders.append(rows(range(5, 6), "meanwhile", 8))

    before = Before(Point.READ_RESULT, beside)
    orders.do(MERGE, before)
    assert before.done
    found = orders.view()
    by_id = {row[0]: row[2] for row in found}
    assert len(found) == len(by_id)
    assert by_id[4] == "first"
    assert by_id[50] == "theirs"
    assert by_id[6] == ("greater" if orders.ordered else "second")
    assert by_id[7] == "second"
    assert by_id[3] == "changed"
    assert by_id[5] == "meanwhile"
    assert set(by_id) == {*range(2, 12), 50}
    # The append came after the log that was merged.
    assert [row for row in orders.base() if row[0] == 5] == [(5, 6, "first")]


def test_a_merge_between_a_readers_two_looks_loses_no_row(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read first: what its mark covers is in the base table that is read then."""
    expected = orders.view()
    looks: list[str] = []

    def watched(name: str, look: Callable[..., Snapshot]) -> Callable[..., Snapshot]:
        def call(*version: int | None, **when: int | None) -> Snapshot:
            found = look(*version, **when)
            looks.append(name)
            if len(looks) == 1:
                orders.run(MERGE)
                # Its commit removes the merged blocks from the log.
                orders.append(rows(range(100, 101), "later", 8))
            return found

        return call

    read = mergelog.open_log(orders.location)
    for log, name in ((read, "log"), (read.base, "base")):
        monkeypatch.setattr(log, "snapshot", watched(name, log.snapshot))
    view = mergelog.MergedView.open(read)
    assert {"log", "base"} <= set(looks)
    assert sorted_rows(view.scan().read_all()) == expected


def test_a_log_that_is_made_again_while_the_job_runs_is_not_marked_as_merged(
    orders: Orders,
) -> None:
    def make_again() -> None:
        settings = mergelog.MergedView.open(orders.log).settings
        shutil.rmtree(orders.folder / LOG_FOLDER)
        mergelog.ensure_log(orders.log, settings, now_ms=0, nonce="again")
        with mergelog.LogWriter(orders.log, "new", pause=lambda _: None) as writer:
            for batch in range(6):
                writer.append(rows(range(100 + batch, 101 + batch), "new", 9), batch=batch)

    orders.do(MERGE, Before(Point.RECONCILE, make_again))
    assert [row for row in orders.base() if row[0] >= 4] == orders.view()[4:]
    assert [row[0] for row in orders.view() if row[0] >= 100] == list(range(100, 106))


def test_Z15_an_overwrite_while_the_job_runs_voids_the_records(orders: Orders) -> None:
    def overwrite() -> None:
        write_deltalake(orders.location, rows(range(1), "new", 1), mode="overwrite")

    status = orders.run(MERGE, Before(Point.READ_RESULT, overwrite))
    assert status.phase in (Phase.SUPERSEDED, Phase.SUCCEEDED)
    assert orders.base() == orders.view() == [(0, 1, "new")]


def test_a_restore_after_a_merge_brings_the_records_back(orders: Orders) -> None:
    before, read = orders.view(), orders.log.base.snapshot().version
    orders.do(MERGE)
    DeltaTable(orders.location).restore(read)
    assert orders.view() == before
    orders.append(rows(range(20, 21), "later", 1))
    assert orders.view() == [*before, (20, 1, "later")]
    orders.do(MERGE, name="again")
    assert orders.base() == [*before, (20, 1, "later")]


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [(pa.string(), "", "''"), (pa.binary(), b"\xff", "X'ff'")],
    ids=["empty", "no text"],
)
def test_a_value_of_an_older_log_that_no_partition_can_hold_is_named_and_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: pa.DataType, value: Any, shown: str
) -> None:
    def row(id_: int, partition: Any) -> pa.Table:
        return pa.table({"id": pa.array([id_], pa.int64()), "p": pa.array([partition], type_)})

    merged = made(tmp_path / "t", row(1, None), keys=("id",), partition_by=["p"])
    with pytest.raises(InvalidSpec, match="partition column cannot hold a value"):
        merged.append(row(2, value))
    with monkeypatch.context() as before:
        before.setattr(blocks, "unstorable", lambda _: None)
        merged.append(row(2, value))
    expected = merged.rows()
    assert (2, value) in expected
    table = Orders(tmp_path / "t")
    status = table.run(MERGE)
    assert (status.phase, status.attempt) == (Phase.FAILED, 1)
    assert status.conditions[0].reason == "StatementFailed"
    for part in (
        "partition column cannot hold",
        ".p: ",
        f"{shown} of id = 2",
        "with another value",
    ):
        assert part in status.conditions[0].message
    assert merged.rows() == expected
    merged.append(row(2, "good" if type_ == pa.string() else b"good"))
    assert_services_change_nothing(tmp_path / "t")


# A reader looks at the log and then at the base table; what is merged in between must not be lost
# to it.


def test_a_reader_that_a_merge_overtakes_sees_the_deletes_of_that_merge(tmp_path: Path) -> None:
    """It lists the log; a delete is appended and merged, and hides a row that comes after it; it
    lists the base table."""
    orders = Orders(make(tmp_path / "overtaken", "at"))
    log = _Overtaken(orders.log.base)

    def overtake() -> None:
        with mergelog.LogWriter(orders.log, "other", pause=lambda _: None) as writer:
            writer.append(None, rows(range(3, 4), "", 9).select(["id", "at"]), batch=0)
        orders.do(MERGE, name="overtakes")
        write_deltalake(orders.location, rows(range(3, 4), "older", 6), mode="append")

    log.meanwhile = overtake
    found = sorted_rows(mergelog.MergedView.open(log).scan().read_all())
    assert log.meanwhile is None
    assert 3 not in [row[0] for row in found]
    assert found == orders.view()


class _Overtaken(mergelog.MergeLog):
    """A log whose reader is slow, once."""

    meanwhile: Callable[[], None] | None = None

    def snapshot(self, version: int | None = None) -> Snapshot:
        found = super().snapshot(version)
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return found
