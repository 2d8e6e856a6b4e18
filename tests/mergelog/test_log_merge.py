"""`LogMerge` through the engine: one commit, the same view before and after, and others beside it.

Jobs run in this process; `test_thin_path` has real Spark.
"""

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

from mergelog.lake import made
from mergelog.orders import MERGE, STITCH, Orders, rows, sorted_rows
from mergelog.services import assert_services_change_nothing
from mergelog.test_beside import Before
from tandem import mergelog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import InvalidSpec
from tandem.mergelog.rows import blocks
from tandem.mergelog.rows.winners import MatchedRows, MergeResult, at_version
from tandem.mergelog.state.log_table import LOG_FOLDER
from tandem.operations.machine.events import Point
from tandem.spec.status import Phase


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
    assert orders.run(STITCH).phase is Phase.SUCCEEDED
    assert (live(orders), orders.view()) == (1, expected)
    assert orders.run(MERGE).phase is Phase.SUCCEEDED
    assert orders.view() == orders.base() == expected
    # With an ordering column a merged delete stays in force.
    assert live(orders) == (1 if orders.ordered else 0)
    assert not mergelog.MergedView.open(orders.log).state.unmerged
    version = orders.log.base.snapshot().version
    assert orders.run(MERGE, name="once-more").phase is Phase.SUCCEEDED
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
    assert orders.run(MERGE, before).phase is Phase.SUCCEEDED
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

    status = orders.run(MERGE, Before(Point.RECONCILE, make_again))
    assert status.phase is Phase.SUCCEEDED
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
    assert orders.run(MERGE).phase is Phase.SUCCEEDED
    DeltaTable(orders.location).restore(read)
    assert orders.view() == before
    orders.append(rows(range(20, 21), "later", 1))
    assert orders.view() == [*before, (20, 1, "later")]
    assert orders.run(MERGE, name="again").phase is Phase.SUCCEEDED
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
