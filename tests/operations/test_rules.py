"""CHECK constraints, invariants, NOT NULL: no row with new values breaks one (R-15). Real jobs,
without Spark; with it: `tests/spark/matrix_of_rules.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake
from support.lake.lake import DELETION_VECTORS, message, reason
from tandem.spec.resources import Operation

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
VECTORS = pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "edits"])


def lake_with(folder: Path, text: str, name: str = "small", *, vectors: bool = True) -> ArrowLake:
    """Ten rows, `v` = `id`, with a constraint."""
    properties = DELETION_VECTORS if vectors else {}
    lake = quick_lake.of_kind(
        ArrowLake, quick_lake.make(folder, 1, properties=properties).location, folder / "sources"
    )
    lake.foreign().alter.add_constraint({name: text})
    return lake


def files(lake: ArrowLake) -> set[str]:
    return {add.path for add in lake.log.snapshot().adds()}


def assert_refused(lake: ArrowLake, operation: Operation, *shown: str) -> None:
    """It ends with the rule and a row, and the table is as before."""
    before = files(lake), lake.by_tandem()
    status = lake.run(operation)
    assert reason(status) == "ConstraintViolated", message(status)
    for part in shown:
        assert part in message(status)
    assert (files(lake), lake.by_tandem()) == before
    lake.assert_clean()


@VECTORS
def test_an_update_that_breaks_a_constraint_publishes_nothing(
    tmp_path: Path, vectors: bool
) -> None:
    lake = lake_with(tmp_path, "v < 1000", vectors=vectors)
    rows = lake.by_tandem()
    shown = ("delta.constraints.small", "v < 1000", "v = 1000", "id = 3")
    assert_refused(lake, lake.update("id = 3", v="1000"), *shown)
    lake.do(lake.update("id = 3", v="999"))
    assert lake.by_tandem() == tuple((i, k, 999 if i == 3 else v) for i, k, v in rows)


@VECTORS
def test_a_constraint_on_a_column_that_is_not_set(tmp_path: Path, vectors: bool) -> None:
    """A whole row has new values, also if only a part of it is written."""
    lake = lake_with(tmp_path, "v < 500 OR k < 5", vectors=vectors)
    assert_refused(lake, lake.update("id = 7", k="9"), "v = 700", "k = 9")
    lake.do(lake.update("id = 4", k="9"))
    assert (4, 9, 400) in lake.by_tandem()


def test_null_breaks_a_constraint_as_in_spark(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "v < 1000")
    assert_refused(lake, lake.update("id = 3", v="NULL"), "v = NULL")


def test_inserts_updates_and_loads_that_break_a_constraint(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "v < 1000")
    right, wrong = (30, 0, 7), (31, 0, 1000)
    assert_refused(lake, lake.merge((right, wrong)), "id = 31")
    assert_refused(lake, lake.merge((right, (3, 3, 1000))), "id = 3")
    assert_refused(lake, lake.ingest((right, wrong)), "id = 31")
    rows = lake.by_tandem()
    lake.do(lake.merge((right, (3, 3, 999))))
    lake.do(lake.ingest(((32, 1, 999),)))
    changed = tuple((i, k, 999 if i == 3 else v) for i, k, v in rows)
    assert lake.by_tandem() == (*changed, right, (32, 1, 999))
    # Rows that a merge deletes, or leaves as they are, need not fit.
    lake.do(lake.merge(((3, 3, 5000),), whenMatched=[{"delete": {}}]))
    assert 3 not in {row[0] for row in lake.by_tandem()}


TOO_MUCH = "v < 1000 AND sinh(v) >= 0"


@pytest.mark.parametrize(
    "operation",
    [
        lambda lake: lake.update("id = 3", v="1"),
        lambda lake: lake.merge(((3, 3, 1),)),
        lambda lake: lake.ingest(((40, 3, 1),)),
    ],
    ids=["update", "merge", "ingest"],
)
def test_a_constraint_beyond_the_grammar_is_refused_before_a_job(
    tmp_path: Path, operation: Callable[[ArrowLake], Operation]
) -> None:
    lake = lake_with(tmp_path, TOO_MUCH)
    version = lake.version
    status = lake.run(operation(lake))
    assert reason(status) == "InvalidStatement"
    assert "delta.constraints.small" in message(status)
    assert "\n" + " " * 13 + "^" in message(status), message(status)
    assert lake.version == version
