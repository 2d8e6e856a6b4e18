"""Statements on a merge-on-read table: each sees what was acknowledged before it began, since a
merge runs first; what arrives meanwhile survives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.orders import Orders, make, rows
from mergelog.test_beside import Before
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.some import some
from tandem import mergelog
from tandem.operations.attempt import garbage
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase

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
    status = orders.run(UPDATE)
    assert status.phase is Phase.SUCCEEDED, status
    assert orders.view() == orders.base() == expected
    assert status.result is not None
    assert status.result.rows_affected is not None
    assert status.result.rows_affected.updated == 6
    # One merge, and the statement.
    assert status.result.version == 3


def test_a_delete_sees_the_records_of_the_log(orders: Orders) -> None:
    expected = [row for row in orders.view() if row[2] != "second" and row[0] != 3]
    assert orders.run(DELETE).phase is Phase.SUCCEEDED
    assert orders.view() == orders.base() == expected


def test_a_merge_matches_the_records_of_the_log(orders: Orders) -> None:
    kept = [row for row in orders.view() if row[0] < 9]
    assert orders.run(merge(orders)).phase is Phase.SUCCEEDED
    assert orders.view() == [*kept, *((n, 20, "merged") for n in range(9, 14))]


def test_without_unmerged_records_nothing_runs_first(orders: Orders) -> None:
    assert orders.run({"type": "LogMerge"}, name="before").phase is Phase.SUCCEEDED
    status = orders.run(UPDATE)
    assert status.result is not None
    assert status.result.version == 3


@pytest.mark.parametrize("point", [Point.START_JOB, Point.READ_RESULT, Point.PUT_COMMIT])
def test_what_is_appended_while_it_runs_survives_it(orders: Orders, point: Point) -> None:
    """While the log is merged, and right before the commit of the merge."""
    late = rows(range(7, 9), "second", 30)
    expected = [row for row in orders.view() if row[2] != "second" and row[0] != 3]

    status = orders.run(DELETE, Before(point, lambda: orders.append(late)))
    assert status.phase is Phase.SUCCEEDED, status
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

    status = orders.run(UPDATE, _AtStatement(Point.RECONCILE, restore))
    assert status.phase is Phase.SUCCEEDED, status
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
    status = orders.run(UPDATE)
    assert status.phase is Phase.SUCCEEDED, status
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
    assert orders.run({"type": "LogMerge"}, name="first").phase is Phase.SUCCEEDED
    write_deltalake(orders.location, rows(range(1), "older", 3), mode="append")
    assert 0 not in [row[0] for row in orders.view()]
    return orders


def test_a_row_that_a_merged_delete_hides_is_neither_updated_nor_deleted(hiding: Orders) -> None:
    before = hiding.view()
    for name, spec in (
        ("update", {"update": {"where": "id = 0", "set": {"at": "20"}}}),
        ("delete", {"delete": {"where": "value = 'older'"}}),
    ):
        status = hiding.run(spec, name=name)
        assert status.phase is Phase.SUCCEEDED
        affected = None if status.result is None else status.result.rows_affected
        assert affected is None or (affected.updated, affected.deleted) == (0, 0)
        assert hiding.view() == before


def test_a_row_that_a_merged_delete_hides_is_no_match_of_a_merge(hiding: Orders) -> None:
    before = hiding.view()
    source = hiding.source(rows(range(1), "merged", 20))
    body = {"source": source, "on": "t.id = s.id", "whenNotMatched": [{"insertAll": {}}]}
    assert hiding.run({"merge": body}).phase is Phase.SUCCEEDED
    assert hiding.view() == sorted([*before, (0, 20, "merged")])


def test_a_log_merge_removes_what_merged_deletes_hide_once(hiding: Orders) -> None:
    before = hiding.view()
    status = hiding.run({"type": "LogMerge"}, name="second")
    assert status.result is not None
    assert status.result.version is not None
    assert (hiding.view(), hiding.base()) == (before, before)
    again = hiding.run({"type": "LogMerge"}, name="third")
    assert again.result is None or again.result.version is None
