"""N22: row tracking is enabled, suspended, or backfilled by Spark while operations of ours are
about to commit. They are planned again where their files would lack ids, or have other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.lake.lake import DELETION_VECTORS, Lake, Lakes
from support.lake.rows import rows
from tables.test_replaced_row_ids import append
from tables.test_row_tracking import alter, ids
from tables.test_statement_row_ids import assert_ids
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

BOTH = range(20)
Step = Callable[[Lake], object]


def suspended_for_a_while(lake: Lake) -> None:
    """A file is added again in the meantime, and gets other ids afterwards."""
    alter(lake, tracking="false", suspended="true")
    lake.sql("DELETE FROM TABLE WHERE id = 5")
    alter(lake, suspended="false", tracking="true")


def backfilled(lake: Lake) -> None:
    """As `ALTER TABLE` does it, with a stop between the backfill and the enablement."""
    alter(lake, feature="supported")
    alter(lake, tracking="true")


SWITCHES: Mapping[str, tuple[Mapping[str, str], Step, bool]] = {
    "enabled": ({"feature": "supported"}, lambda lake: alter(lake, tracking="true"), True),
    "enabled, with a backfill": ({}, lambda lake: alter(lake, tracking="true"), True),
    "supported, then enabled": ({}, backfilled, True),
    "suspended": (
        {"tracking": "true"}, lambda lake: alter(lake, tracking="false", suspended="true"), False
    ),
    "suspended for a while": ({"tracking": "true"}, suspended_for_a_while, True),
}  # fmt: skip
"""Properties at first, what Spark does, and whether row tracking is enabled then."""


def replaced(lake: Lake) -> Operation:
    source = {"format": "Parquet", "location": lake.source(rows(range(200, 205))).as_uri()}
    body = {"replace": {"segments": [lake.names[0]]}, "scope": "AtStart", "source": source}
    return lake.resource("TableReplace", body)


def merged(lake: Lake) -> Operation:
    append(lake, ((3, 7, 1), (13, 7, 1), (200, 7, 1)), {14})
    return lake.compaction("LogMerge")


SORT = {"strategy": "Sort", "columns": ["v", "id"]}
OPERATIONS: Mapping[str, tuple[Callable[[Lake], Operation], Mapping[str, Any]]] = {
    "compaction": (lambda lake: lake.compaction("Major", minRowGroupRows=0), {}),
    "update": (lambda lake: lake.update("k = 3", v="v + 1"), {"updated": (3, 8, 13, 18)}),
    "sort": (lambda lake: lake.compaction("Major", layout=SORT), {}),
    "log merge": (merged, {"updated": (3, 13), "deleted": (14,), "inserted": (200,)}),
    "replace": (replaced, {"deleted": range(10), "inserted": range(200, 205)}),
}

REWRITES = ("compaction", "sort")


@pytest.mark.matrix
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("kind", OPERATIONS)
def test_N22_row_tracking_is_switched_meanwhile(
    spark: SparkSession, tmp_path: Path, templates: Path, kind: str, vectors: bool
) -> None:
    make, changes = OPERATIONS[kind]
    for name, (first, act, enabled) in SWITCHES.items():
        folder = tmp_path / name
        lakes = Lakes(spark, folder, templates, spark_works=False)
        lake = lakes.empty(properties=DELETION_VECTORS if vectors else {})
        for number in range(2):
            lake.append(rows(range(10 * number, 10 * number + 10)))
        alter(lake, **first)
        held = lake.hold(make(lake), Point.PUT_COMMIT)
        act(lake)
        before = ids(lake) if enabled else dict.fromkeys(BOTH, (0, 0))
        # Without vectors, Spark's delete makes one of the two files again.
        alone = kind in REWRITES and not vectors and act is suspended_for_a_while
        assert held.finish().phase is (Phase.SUPERSEDED if alone else Phase.SUCCEEDED)
        if enabled:
            given = {key: {*of} & ({*before} | {*range(200, 205)}) for key, of in changes.items()}
            assert_ids(ids(lake), before, lake.version, **given)
            continue
        assert {add.extra.get("baseRowId") for add in lake.commit().adds} == {None}
        alter(lake, suspended="false", tracking="true")
        left = {*BOTH} - {*changes.get("deleted", ())} | {*changes.get("inserted", ())}
        assert {*ids(lake)} == left
