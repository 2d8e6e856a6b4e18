"""Rounds without a job, and merges in part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from operations.small_cases import case
from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake, just_before
from support.lake import rows as model
from support.lake.lake import INSERT_ALL, loads
from support.lake.rows import Rows, plus
from tandem.delta.scan import scan
from tandem.jobs.formats import SOURCE_SCHEMA
from tandem.operations import small_rounds
from tandem.operations.machine.events import Point
from tandem.operations.small_rounds import ArrowRounds
from tandem.spec.status import OperationStatus

# Small rounds on real tables without Spark: they end as the job does, whatever others do
# meanwhile, and leave to the job what would take too much memory. With Spark:
# `tests/tables/test_merge_tables.py`.


MATRIX = pytest.mark.matrix


@pytest.mark.parametrize(
    ("seeds", "most"),
    [
        (range(8), 4),
        *(pytest.param(range(n, n + 50), 50, marks=MATRIX) for n in range(1_000, 1_600, 50)),
    ],
)
def test_small_rounds_end_as_the_job_does(tmp_path: Path, seeds: range, most: int) -> None:
    """Half of the statements or more have a small round, some a process that is killed."""
    answered = 0
    for seed in seeds:
        found = case(tmp_path / f"{seed}", seed)
        assert found.here == found.serial, seed
        answered += found.answered
    assert answered > most


def test_the_copy_of_a_source_goes_with_its_merge(tmp_path: Path) -> None:
    """Any reader of the table's store could read it."""
    lake = quick_lake.make(tmp_path, 1)
    seen: list[str] = []

    def look() -> None:
        seen.extend(m.path for m in lake.store.list("_tandem") if "source.arrow" in m.path)

    merge = lake.merge(((1, 1, 7), (30, 0, 7)))
    lake.do(
        merge,
        interceptor=just_before(Point.PUT_COMMIT, look),
        ports=lake.ports(jobs=QuickJobs(copies=True)),
    )
    assert len(seen) == 1
    seen.clear()
    look()
    assert seen == []


@pytest.mark.parametrize("limit", [1, small_rounds.READ_BYTES])
def test_rows_of_much_memory_are_left_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A file of some kilobytes may hold gigabytes of one text."""
    monkeypatch.setattr(small_rounds, "READ_BYTES", limit)
    lake = quick_lake.make(tmp_path, 2)
    interceptor = just_before(
        Point.RECONCILE, lambda: lake.foreign().update({"v": "v + 1"}, predicate="id < 20")
    )
    points: list[Point] = []

    def watched(effect: Any, call: Any) -> Any:
        points.append(effect.point)
        return interceptor(effect, call)

    lake.do(lake.update("k = 1", v="v + 15"), interceptor=watched)
    assert points.count(Point.REQUEST_ROUND) == (1 if limit == 1 else 0)
    expected = plus(plus(loads(range(2)), lambda _row: True, 1), lambda row: row[1] == 1, 15)
    lake.assert_rows_so_far(expected)
    lake.assert_clean()


def test_rounds_that_arrow_cannot_evaluate_are_left_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation must not end with an error that the job would not have."""

    def fails(*_args: Any, **_more: Any) -> None:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    monkeypatch.setattr(small_rounds._Files, "write", fails)
    assert issubclass(pa.ArrowCapacityError, pa.ArrowException)
    lake = quick_lake.make(tmp_path, 2)
    interceptor = just_before(
        Point.RECONCILE, lambda: lake.foreign().update({"v": "v + 1"}, predicate="id < 20")
    )
    ports = lake.ports(small_rounds=ArrowRounds)
    lake.do(lake.update("k = 1", v="v + 15"), interceptor=interceptor, ports=ports)
    expected = plus(plus(loads(range(2)), lambda _row: True, 1), lambda row: row[1] == 1, 15)
    lake.assert_rows_so_far(expected)


@pytest.mark.parametrize(("column", "key"), [("`a`", "```a```"), ("a.b", "`a.b`"), ("`", "````")])
def test_the_column_set_is_the_one_that_was_named(tmp_path: Path, column: str, key: str) -> None:
    """The job records the bare name: what looks like quotes or a field there is part of it."""
    rows = pa.table({"id": [1, 2], "z": [0, 0], "a": [{"b": 1}] * 2})
    rows = rows.append_column(column, pa.array([100, 200]))
    lake = quick_lake.make(tmp_path, 0, schema=rows.schema)
    lake.append(rows)
    update = {"update": {"where": "id = 1", "set": {key: "id * 7"}}}
    held = lake.hold(lake.resource("TableUpdate", update), Point.RECONCILE)
    DeltaTable(str(lake.path)).update({"z": "z + 1"}, predicate="id >= 1")
    held.succeed()
    expected = rows.to_pylist()
    for row in expected:
        row["z"] = 1
    expected[0][column] = 7
    found = pa.table(scan(lake.log.snapshot(), lake.store)).sort_by("id")
    assert found.to_pylist() == expected


def described(**metadata: Any) -> str:
    """The schema of a source with a text column `op` of such metadata."""
    columns = {"id": ("long", {}), "k": ("long", {}), "v": ("long", {}), "op": ("string", metadata)}
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": more}
        for name, (type_, more) in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


BOUNDED = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}
COLLATION = {"__COLLATIONS": {"op": "spark.UTF8_LCASE"}}


@pytest.mark.parametrize(("metadata", "rounds"), [({}, 0), (COLLATION, 0), (BOUNDED, 1)])
def test_texts_of_a_source_whose_lengths_spark_checks_are_left_to_the_job(
    tmp_path: Path, metadata: dict[str, Any], rounds: int
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    source = pa.table({"id": [1, 2], "k": [1, 1], "v": [7, 7], "op": ["D", "d"]})
    path = tmp_path / "source.parquet"
    pq.write_table(source.replace_schema_metadata({SOURCE_SCHEMA: described(**metadata)}), path)
    points: list[Point] = []
    interceptor = just_before(
        Point.PUT_COMMIT, lambda: lake.foreign().update({"v": "v + 1"}, predicate="id < 20")
    )

    def watched(effect: Any, call: Any) -> Any:
        points.append(effect.point)
        return interceptor(effect, call)

    merge = lake.merge(path, whenMatched=[{"update": {"set": {"v": "s.v"}}}])
    lake.do(merge, interceptor=watched, ports=lake.ports(jobs=QuickJobs(copies=True)))
    assert points.count(Point.REQUEST_ROUND) == rounds


# A merge that inserts beside a writer who touches rows that it matched and leaves as they are:
# whether a part of the table is enough hangs on these, too. Without Spark; with it:
# `tests/tables/test_merge_tables.py`.


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
