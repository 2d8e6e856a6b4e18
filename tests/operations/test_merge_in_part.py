"""A merge that inserts beside a writer who touches rows that it matched and leaves as they are:
whether a part of the table is enough hangs on these, too. Without Spark; with it:
`tests/tables/test_merge_tables.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before
from support.lake import rows as model
from support.lake.lake import INSERT_ALL
from support.lake.rows import Rows
from tandem.operations.machine.events import Point
from tandem.spec.status import OperationStatus

SOURCE: Rows = ((1, 1, 7), (2, 2, -7), (30, 0, 7))
"""Row 1 is updated, row 2 matches and stays, row 30 is new."""
CLAUSES: dict[str, Any] = {
    "whenMatched": [{"where": "s.v > 0", "update": {"set": {"v": "s.v"}}}],
    **INSERT_ALL,
}


def merged(lake: QuickLake, what: str, source: Rows = SOURCE, **clauses: Any) -> OperationStatus:
    """Merge; just before the first reconciliation deltalake updates or deletes row 2."""

    def act() -> None:
        if what == "update":
            lake.foreign().update({"v": "-1"}, predicate="id = 2")
        else:
            lake.foreign().delete("id = 2")

    interceptor = just_before(Point.RECONCILE, act)
    return lake.do(lake.merge(source, **(clauses or CLAUSES)), interceptor=interceptor)


def executed_again(status: OperationStatus) -> list[bool]:
    """Of each commit that was met, whether it led to a whole execution."""
    found = status.manifest()["result"]["reconciled"]["met"]
    return ["executedAgain" in each for each in found]


def test_a_row_that_stays_is_a_match_after_it_changed(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    assert executed_again(merged(lake, "update")) == [False]
    others = [row for row in model.rows(range(10)) if row[0] not in (1, 2)]
    lake.assert_rows(tuple(sorted((*others, (1, 1, 7), (2, 2, -1), (30, 0, 7)))))


def test_a_kept_row_that_is_deleted_leaves_its_source_row_to_insert(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    # The rows that deltalake wrote again are evaluated first.
    assert executed_again(merged(lake, "delete")) == [False, True]
    others = [row for row in model.rows(range(10)) if row[0] not in (1, 2)]
    lake.assert_rows(tuple(sorted((*others, (1, 1, 7), (2, 2, -7), (30, 0, 7)))))


@pytest.mark.parametrize("clauses", [{"whenMatched": [{"delete": {}}]}, {}])
def test_a_row_of_two_matches_has_no_record(tmp_path: Path, clauses: dict[str, Any]) -> None:
    """Where the row is deleted or stays anyway, it makes no difference which match counts."""
    lake = quick_lake.make(tmp_path, 1)
    source = (*SOURCE, (1, 0, 0))
    assert executed_again(merged(lake, "update", source, **clauses, **INSERT_ALL)) == [True]
    left = [
        (2, 2, -1) if row[0] == 2 else row
        for row in model.rows(range(10))
        if not clauses or row[0] not in (1, 2)
    ]
    lake.assert_rows(tuple(sorted((*left, (30, 0, 7)))))
