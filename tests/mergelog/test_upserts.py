"""Rows by key through the engine, and statements that see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.orders import MERGE, STITCH, Orders, make, rows
from mergelog.test_beside import Before
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.present import present
from support.some import some
from tandem import mergelog
from tandem.jobs.formats import UpsertJob
from tandem.mergelog.usage import LogReader
from tandem.operations import garbage
from tandem.operations.kinds import upsert as upsert_kind
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import OperationStatus, Phase

# `TableUpdate.upsert` and `deleteKeys`, and `TableIngest` by key, through the engine. Files are
# real, jobs run in this process; `tests/spark/test_upsert_job.py` has real Spark.


VECTORS = {"delta.enableDeletionVectors": "true"}


def upsert(orders: Orders, upserts: pa.Table, **options: Any) -> OperationStatus:
    spec = {"upsert": {"source": orders.source(upserts)}}
    return orders.run(spec, **{"name": "upsert", **options})


def delete(orders: Orders, deletes: pa.Table, **options: Any) -> OperationStatus:
    spec = {"deleteKeys": {"source": orders.source(deletes, "deletes")}}
    return orders.run(spec, **{"name": "delete", **options})


def keys(orders: Orders, ids: range, at: int) -> pa.Table:
    columns = mergelog.MergedView.open(orders.log).settings.columns
    return rows(ids, "", at).select(list(columns))


def message(status: OperationStatus) -> str:
    return status.conditions[0].message


def test_rows_of_a_source_replace_those_of_their_keys(orders: Orders) -> None:
    before = orders.view()
    base, instant = orders.log.base.snapshot().version, orders.log.snapshot().version
    status = upsert(orders, rows(range(10, 14), "theirs", 9))
    assert status.phase is Phase.SUCCEEDED, status
    result = present(status.result)
    assert result.rows_affected is not None
    assert (result.rows_affected.upserted, result.rows_affected.deleted) == (4, 0)
    assert (result.blocks_out, result.version) == (1, instant + 1)
    assert result.instants == (str(instant + 1),)
    found = [row for row in before if row[0] < 10]
    assert orders.view() == [*found, *((n, 9, "theirs") for n in range(10, 14))]
    deleted = delete(orders, keys(orders, range(9, 12), 9))
    assert deleted.result is not None
    assert deleted.result.rows_affected is not None
    # The deletes have equal values, and are later.
    assert (deleted.result.rows_affected.upserted, deleted.result.rows_affected.deleted) == (0, 3)
    assert orders.view() == [*found[:-1], (12, 9, "theirs"), (13, 9, "theirs")]
    assert orders.log.base.snapshot().version == base
    orders.do(MERGE)
    assert orders.base() == orders.view() == [*found[:-1], (12, 9, "theirs"), (13, 9, "theirs")]


def test_the_same_resource_counts_once(orders: Orders) -> None:
    first = upsert(orders, rows(range(20, 21), "once", 9))
    orders.append(rows(range(20, 21), "later", 10))
    again = upsert(orders, rows(range(20, 21), "once", 9))
    assert again.result == first.result
    assert (20, 10, "later") in orders.view()


def test_with_an_ordering_column_the_greater_value_wins_whenever_it_arrives(
    orders: Orders,
) -> None:
    assert upsert(orders, rows(range(6, 7), "older", 1)).phase is Phase.SUCCEEDED
    assert [row for row in orders.view() if row[0] == 6] == [
        (6, 7, "second") if orders.ordered else (6, 1, "older")
    ]


def test_a_repeated_key_is_refused_unless_the_ordering_column_decides(orders: Orders) -> None:
    before, version = orders.view(), orders.log.snapshot().version
    twice = pa.concat_tables([rows(range(30, 40), "a", 1), rows(range(33, 37), "b", 2)])
    status = upsert(orders, twice)
    if orders.ordered:
        assert status.phase is Phase.SUCCEEDED, status
        found = {row[0]: row[2] for row in orders.view() if row[0] >= 30}
        assert found == {n: "b" if n in range(33, 37) else "a" for n in range(30, 40)}
        tied = pa.concat_tables([twice, rows(range(34, 36), "c", 2), rows(range(31, 32), "z", 0)])
        status = upsert(orders, tied, name="tied")
        before, version = orders.view(), orders.log.snapshot().version - 1
    assert status.phase is Phase.FAILED
    assert status.conditions[0].reason == "DuplicateKeys"
    expected = "2 keys: id = 34; id = 35" if orders.ordered else "4 keys: id = 33; id = 34; id = 35"
    assert expected in message(status)
    assert "spec.upsert.source" in message(status)
    assert orders.view() == before
    # It says in the log that it has ended, and adds no block.
    assert not list(orders.log.log.commit(version + 1).adds)  # type: ignore[union-attr]


def test_a_failed_upsert_leaves_a_gap_between_instants_and_nothing_else(orders: Orders) -> None:
    orders.append(rows(range(40, 41), "before", 9), batch=0)
    last = orders.log.log.latest_version()
    without_key = rows(range(1), "x", 9).set_column(0, "id", pa.nulls(1, pa.int64()))
    assert upsert(orders, without_key).phase is Phase.FAILED
    found = present(orders.log.log.commit(last + 1))
    assert found.info is not None
    assert found.info.operation == "ABANDON"
    orders.append(rows(range(41, 42), "after", 9), batch=1)
    before = orders.view()
    assert before[-2:] == [(40, 9, "before"), (41, 9, "after")]
    reader = LogReader(orders.log)
    assert reader.update()
    facts = reader.facts(orders.log.base.snapshot())
    # Four appends of the template and two here; the blocks on both sides of the gap are one run.
    assert (facts.newest, facts.counts.since_merge) == (last + 2, 6)
    status = orders.run(STITCH, name="stitch")
    assert status.result is not None
    assert status.result.instants == (f"1-{last + 2}",)
    assert orders.view() == before
    orders.do(MERGE)
    assert orders.base() == orders.view() == before


def test_deletes_of_one_key_in_one_source_are_one(orders: Orders) -> None:
    """Both rows mean the same, whichever comes first."""
    twice = pa.concat_tables([keys(orders, range(4, 6), 8), keys(orders, range(4, 5), 8)])
    expected = [row for row in orders.view() if row[0] not in (4, 5)]
    status = delete(orders, twice)
    assert status.phase is Phase.SUCCEEDED, status
    assert status.result is not None
    assert status.result.rows_affected is not None
    assert status.result.rows_affected.deleted == 2
    assert orders.view() == expected


def assert_names_the_row(status: OperationStatus, field: str, row: str) -> None:
    """That a key of this row is NULL, and nothing of expressions."""
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "StatementFailed")
    found = message(status)
    assert f"{field}.id: a key is NULL (found: NULL in the row {row}; expected: a value" in found
    assert "Leave rows without a key out of the source, or give them one" in found
    assert "expression" not in found


def test_a_row_without_a_key_deletes_nothing_and_is_named(orders: Orders) -> None:
    before, deletes = orders.view(), keys(orders, range(4, 7), 9)
    deletes = deletes.set_column(0, "id", pa.array([4, None, 6], pa.int64()))
    row = "at = 9" if orders.ordered else "without other columns"
    assert_names_the_row(delete(orders, deletes), "spec.deleteKeys.source", row)
    status = orders.run({"source": orders.source(rows(range(1), "x" * 99, 1).set_column(
        0, "id", pa.nulls(1, pa.int64())))}, name="ingest")  # fmt: skip
    assert_names_the_row(status, "spec.source", f"at = 1, value = '{'x' * 39}…{'x' * 38}'")
    assert orders.view() == before


@pytest.mark.parametrize(
    ("column", "values"), [("id", [1, None]), ("at", [1, None])], ids=["key", "ordering column"]
)
def test_null_is_refused_in_a_key_and_least_in_the_ordering_column(
    orders: Orders, column: str, values: list[Any]
) -> None:
    upserts = rows(range(50, 52), "null", 1)
    number = upserts.column_names.index(column)
    upserts = upserts.set_column(number, column, pa.array(values, pa.int64()))
    status = upsert(orders, upserts)
    if column == "id":
        assert_names_the_row(status, "spec.upsert.source", "at = 1, value = 'null'")
        return
    assert status.phase is Phase.SUCCEEDED, status
    assert mergelog.MergedView.open(orders.log).scan(["id"]).read_all().num_rows == 12
    older = upsert(orders, rows(range(51, 52), "a value", -5), name="greater")
    assert older.phase is Phase.SUCCEEDED
    found = mergelog.MergedView.open(orders.log).scan().read_all().to_pylist()
    assert {"id": 51, "at": -5, "value": "a value"} in found


def test_a_value_that_a_partition_column_cannot_hold_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write_deltalake(
        str(folder), rows(range(1), "x", 1), configuration=VECTORS, partition_by=["value"]
    )
    table = Orders(folder)
    mergelog.ensure_log(table.log, mergelog.LogSettings(("id",)), now_ms=0, nonce="made")
    instant = table.log.log.latest_version()
    source = table.source(rows(range(2, 4), "", 1))
    for name, spec in (("upsert", {"upsert": {"source": source}}), ("ingest", {"source": source})):
        status = table.run(spec, name=name)
        assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "StatementFailed")
        assert "value: a partition column cannot hold a value (found: ''" in message(status)
    # They say in the log that they have ended, and add no block.
    commits = [table.log.log.commit(instant + number) for number in (1, 2)]
    assert not [add for commit in commits if commit is not None for add in commit.adds]
    assert upsert(table, rows(range(2, 4), "y", 1), name="right").phase is Phase.SUCCEEDED


def test_an_upsert_that_an_earlier_version_planned_is_planned_again_for_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job has not checked what they can hold."""
    folder = tmp_path / "t"
    write_deltalake(
        str(folder), rows(range(1), "x", 1), configuration=VECTORS, partition_by=["value"]
    )
    table = Orders(folder)
    mergelog.ensure_log(table.log, mergelog.LogSettings(("id",)), now_ms=0, nonce="made")

    planned = UpsertJob

    def earlier(**fields: Any) -> UpsertJob:
        monkeypatch.setattr(upsert_kind, "UpsertJob", planned)
        del fields["partitions"]
        return planned(**fields)

    monkeypatch.setattr(upsert_kind, "UpsertJob", earlier)
    status = upsert(table, rows(range(2, 4), "", 1))
    assert (status.phase, status.attempt) == (Phase.FAILED, 2)
    assert "partition column cannot hold a value" in message(status)


def test_what_the_base_table_went_through_meanwhile_is_recorded(orders: Orders) -> None:
    def overwrite() -> None:
        write_deltalake(orders.location, rows(range(1), "new", 1), mode="overwrite")

    status = upsert(
        orders, rows(range(5), "mine", 9), interceptor=Before(Point.RECONCILE, overwrite)
    )
    assert status.phase is Phase.SUCCEEDED
    # Its instant is after the overwrite; those before it are void, also in the log itself.
    assert orders.view() == [(n, 9, "mine") for n in range(5)]
    assert len(mergelog.MergedView.open(orders.log).state.live) == 1
    assert orders.log.snapshot().txns["tandem.log.base"].version == 2


def test_a_restore_brings_records_back_in_the_commit(orders: Orders) -> None:
    before, version = orders.view(), orders.log.base.snapshot().version
    orders.do(MERGE)
    assert upsert(orders, rows(range(60, 61), "mine", 9)).phase is Phase.SUCCEEDED
    DeltaTable(orders.location).restore(version)
    assert orders.view() == before
    assert upsert(orders, rows(range(61, 62), "mine", 9), name="after").phase is Phase.SUCCEEDED
    assert orders.view() == [*before, (61, 9, "mine")]


def test_a_column_that_the_base_table_gets_meanwhile_is_in_the_block(orders: Orders) -> None:
    def add_column() -> None:
        wider = rows(range(70, 71), "wider", 1).append_column("new", pa.array(["x"]))
        write_deltalake(orders.location, wider, mode="append", schema_mode="merge")

    status = upsert(
        orders, rows(range(5), "mine", 9), interceptor=Before(Point.RECONCILE, add_column)
    )
    assert status.phase is Phase.SUCCEEDED, status
    assert status.attempt == 2
    assert "new" in orders.log.snapshot().schema.names
    found = mergelog.MergedView.open(orders.log).scan().read_all().to_pylist()
    assert {"id": 4, "at": 9, "value": "mine", "new": None} in found


def test_appends_and_a_log_compaction_beside_it_do_not_disturb_it(orders: Orders) -> None:
    def beside() -> None:
        orders.append(rows(range(80, 81), "beside", 9))
        orders.do({"strategy": "AllBlocks"}, name="stitch")

    status = upsert(
        orders, rows(range(81, 82), "mine", 9), interceptor=Before(Point.RECONCILE, beside)
    )
    assert status.phase is Phase.SUCCEEDED
    assert orders.view()[-2:] == [(80, 9, "beside"), (81, 9, "mine")]


def test_a_dry_run_and_a_table_without_a_log(orders: Orders) -> None:
    version = orders.log.snapshot().version
    spec = {"upsert": {"source": orders.source(rows(range(3), "dry", 9))}, "dryRun": True}
    status = orders.run(spec)
    assert (status.phase, status.conditions[0].reason) == (Phase.SUCCEEDED, "DryRun")
    assert status.plan is not None
    assert status.plan.locks == ("Append to the log",)
    assert orders.log.snapshot().version == version


# Ingest


def ingest(orders: Orders, appended: pa.Table, **options: Any) -> OperationStatus:
    return orders.run({"source": orders.source(appended)}, **{"name": "ingest", **options})


def test_an_ingest_replaces_the_rows_of_its_keys(orders: Orders) -> None:
    before, base = orders.view(), orders.log.base.snapshot().version
    status = ingest(orders, rows(range(10, 14), "loaded", 9))
    assert status.result is not None
    assert status.result.rows_affected is not None
    assert status.result.rows_affected.upserted == 4
    kept = [row for row in before if row[0] < 10]
    assert orders.view() == [*kept, *((n, 9, "loaded") for n in range(10, 14))]
    assert orders.log.base.snapshot().version == base
    assert ingest(orders, rows(range(10, 14), "loaded", 9)).result == status.result


def test_an_ingest_that_is_older_than_the_log_is_not_repeated(
    orders: Orders, tmp_path: Path
) -> None:
    """It is found on the table. Repeated by request, it goes to the log, and is found there."""
    write_deltalake(str(tmp_path / "plain"), rows(range(3), "base", 1), configuration=VECTORS)
    plain = Orders(tmp_path / "plain")
    with contextlib.suppress(ProcessDied):
        ingest(
            plain,
            rows(range(2, 5), "loaded", 2),
            interceptor=StrikeOnce(Point.PUT_COMMIT, Fault.DIE_AFTER),
        )
    settings = mergelog.LogSettings(("id",), "at" if orders.ordered else "")
    mergelog.ensure_log(plain.log, settings, now_ms=0, nonce="made later")
    found = ingest(plain, rows(range(2, 5), "loaded", 2))
    assert found.phase is Phase.SUCCEEDED
    assert found.result is not None
    assert (found.result.version, found.result.instants) == (1, None)
    again = ingest(plain, rows(range(2, 5), "loaded", 2), again=True)
    assert again.result is not None
    assert again.result.instants == ("1",)
    assert plain.log.base.snapshot().version == 1
    assert [row[0] for row in plain.view()] == list(range(5))
    assert ingest(plain, rows(range(2, 5), "loaded", 2)).result == again.result


# Statements on a merge-on-read table: each sees what was acknowledged before it began, since a
# merge runs first; what arrives meanwhile survives it.


UPDATE: dict[str, Any] = {"update": {"where": "value = 'second'", "set": {"value": "'changed'"}}}
DELETE: dict[str, Any] = {"delete": {"where": "value = 'second' OR id = 3"}}


def merge(orders: Orders) -> dict[str, Any]:
    """Its matched and its new rows follow from records of the log."""
    source = orders.source(rows(range(9, 14), "merged", 20))
    clauses: dict[str, Any] = {
        "whenMatched": [{"updateAll": {}}],
        "whenNotMatched": [{"insertAll": {}}],
    }
    return {"merge": {"source": source, "on": "t.id = s.id", **clauses}}


def changed(orders: Orders, *, updated: Callable[[tuple[int, int, str]], bool]) -> Any:
    return [(n, at, "changed") if updated((n, at, v)) else (n, at, v) for n, at, v in orders.view()]


def test_an_update_sees_the_records_of_the_log(orders: Orders) -> None:
    expected = changed(orders, updated=lambda row: row[2] == "second")
    status = orders.do(UPDATE)
    assert orders.view() == orders.base() == expected
    assert status.result is not None
    assert status.result.rows_affected is not None
    assert status.result.rows_affected.updated == 6
    # One merge, and the statement.
    assert status.result.version == 3


def test_a_delete_sees_the_records_of_the_log(orders: Orders) -> None:
    expected = [row for row in orders.view() if row[2] != "second" and row[0] != 3]
    orders.do(DELETE)
    assert orders.view() == orders.base() == expected


def test_a_merge_matches_the_records_of_the_log(orders: Orders) -> None:
    kept = [row for row in orders.view() if row[0] < 9]
    orders.do(merge(orders))
    assert orders.view() == [*kept, *((n, 20, "merged") for n in range(9, 14))]


def test_without_unmerged_records_nothing_runs_first(orders: Orders) -> None:
    orders.do({"type": "LogMerge"}, name="before")
    status = orders.run(UPDATE)
    assert status.result is not None
    assert status.result.version == 3


@pytest.mark.parametrize("point", [Point.START_JOB, Point.READ_RESULT, Point.PUT_COMMIT])
def test_what_is_appended_while_it_runs_survives_it(orders: Orders, point: Point) -> None:
    """While the log is merged, and right before the commit of the merge."""
    late = rows(range(7, 9), "second", 30)
    expected = [row for row in orders.view() if row[2] != "second" and row[0] != 3]

    orders.do(DELETE, Before(point, lambda: orders.append(late)))
    assert orders.view() == sorted([*expected, (7, 30, "second"), (8, 30, "second")])


def test_what_is_appended_after_the_merge_survives_the_statement(orders: Orders) -> None:
    late = rows(range(7, 9), "second", 30)
    expected = [row for row in orders.view() if row[2] != "second" and row[0] != 3]
    assert orders.run(DELETE, _AtStatement(Point.PUT_COMMIT, lambda: orders.append(late))).result
    assert orders.view() == sorted([*expected, (7, 30, "second"), (8, 30, "second")])


class _AtStatement(Before):
    """As `Before`, but the second time: the first one is that of the merge."""

    seen = 0

    def __call__(self, effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is self.point and not self.done:
            self.seen += 1
            if self.seen < 2:
                return call()
        event: Event = super().__call__(effect, call)
        return event


def test_a_restore_that_takes_the_merge_back_makes_it_merge_again(orders: Orders) -> None:
    version = orders.log.base.snapshot().version
    expected = changed(orders, updated=lambda row: row[2] == "second")

    def restore() -> None:
        DeltaTable(orders.location).restore(version)

    orders.do(UPDATE, _AtStatement(Point.RECONCILE, restore))
    assert orders.view() == orders.base() == expected


def test_an_invalid_statement_merges_nothing(orders: Orders) -> None:
    version = orders.log.base.snapshot().version
    status = orders.run({"delete": {"where": "nope = 1"}})
    assert status.conditions[0].reason == "InvalidStatement"
    assert orders.log.base.snapshot().version == version


def test_a_dry_run_says_what_runs_first_and_merges_nothing(orders: Orders) -> None:
    version = orders.log.base.snapshot().version
    status = orders.run({**UPDATE, "dryRun": True})
    assert status.plan is not None
    assert status.plan.first is not None
    assert "LogMerge" in status.plan.first
    assert orders.log.base.snapshot().version == version


STRIKES = [
    (point, fault, nth)
    for point in (
        Point.PLAN,
        Point.CLAIM_ATTEMPT,
        Point.START_JOB,
        Point.READ_RESULT,
        Point.PUT_COMMIT,
        Point.RECORD_RESULT,
        Point.MAINTAIN,
    )
    for nth in (1, 2)
    for fault in Fault
]


@pytest.mark.part(6)
@pytest.mark.parametrize(("point", "fault", "nth"), some(STRIKES, every=5))
def test_a_fault_in_the_merge_or_the_statement_costs_nothing(
    orders: Orders, point: Point, fault: Fault, nth: int
) -> None:
    """The first time a point is reached it is the merge's, except for the plan; then the
    statement's."""
    expected = changed(orders, updated=lambda row: row[2] == "second")
    strike = StrikeOnce(point, fault, nth)
    with contextlib.suppress(ProcessDied):
        orders.run(UPDATE, strike)
    assert strike.struck
    orders.append(rows(range(20, 21), "second", 9))
    orders.do(UPDATE)
    # The append began after the statement, or before it if that had to begin again.
    assert orders.view()[:-1] == expected
    assert orders.view()[-1][2] in ("second", "changed")
    assert not garbage.unfinished(orders.store)
    assert len(mergelog.MergedView.open(orders.log).scan(["id"]).read_all()) == len(expected) + 1


def test_the_status_names_the_merge_that_runs_first(orders: Orders) -> None:
    seen: list[tuple[str, int, str]] = []
    orders.run(
        UPDATE, on_status=lambda s: seen.append((s.phase, s.attempt, s.conditions[0].message))
    )
    before = "TableCompaction/before-"
    first = {(phase, attempt) for phase, attempt, text in seen if text.startswith(before)}
    assert "Succeeded" not in [phase for phase, _ in first]
    # With its attempt: the operator takes a status without one for that of a session that begins.
    assert {("Running", 1), ("Reconciling", 1)} <= first


@pytest.mark.parametrize("where", ["true", "1 = 1", "id IS NULL OR TRUE"])
def test_what_is_appended_while_a_statement_deletes_every_row_survives_it(
    orders: Orders, where: str
) -> None:
    """A DELETE without condition of another engine makes unmerged records void; ours has merged
    those that came before it, and the others come after it."""
    late = rows(range(7, 9), "late", 30)
    status = orders.run(
        {"delete": {"where": where}}, _AtStatement(Point.PUT_COMMIT, lambda: orders.append(late))
    )
    assert status.phase is Phase.SUCCEEDED, status
    assert orders.view() == [(7, 30, "late"), (8, 30, "late")]


@pytest.fixture
def hiding(tmp_path: Path) -> Orders:
    """A merged delete of key 0 stays in force, and hides an older row that came after the merge."""
    orders = Orders(make(tmp_path / "hiding", "at"))
    orders.do({"type": "LogMerge"}, name="first")
    write_deltalake(orders.location, rows(range(1), "older", 3), mode="append")
    assert 0 not in [row[0] for row in orders.view()]
    return orders


def test_a_row_that_a_merged_delete_hides_is_neither_updated_nor_deleted(hiding: Orders) -> None:
    before = hiding.view()
    for name, spec in (
        ("update", {"update": {"where": "id = 0", "set": {"at": "20"}}}),
        ("delete", {"delete": {"where": "value = 'older'"}}),
    ):
        status = hiding.do(spec, name=name)
        affected = None if status.result is None else status.result.rows_affected
        assert affected is None or (affected.updated, affected.deleted) == (0, 0)
        assert hiding.view() == before


def test_a_row_that_a_merged_delete_hides_is_no_match_of_a_merge(hiding: Orders) -> None:
    before = hiding.view()
    source = hiding.source(rows(range(1), "merged", 20))
    body = {"source": source, "on": "t.id = s.id", "whenNotMatched": [{"insertAll": {}}]}
    hiding.do({"merge": body})
    assert hiding.view() == sorted([*before, (0, 20, "merged")])


def test_a_log_merge_removes_what_merged_deletes_hide_once(hiding: Orders) -> None:
    before = hiding.view()
    status = hiding.run({"type": "LogMerge"}, name="second")
    assert status.result is not None
    assert status.result.version is not None
    assert (hiding.view(), hiding.base()) == (before, before)
    again = hiding.run({"type": "LogMerge"}, name="third")
    assert again.result is None or again.result.version is None
