"""Updates, merges and deletes of tables with row tracking: unchanged rows keep id and version,
updated ones the id, with the version of the commit, and inserted ones get ids of their own (R-11),
whatever other writers do meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from support.jobs.quick_lake import QuickLake
from support.lake.lake import QuickClock
from support.lake.rows import rows
from tables.test_compacted_row_ids import in_files, quick
from tables.test_row_tracking import Ids
from tandem.locks.store import InProcessLocks
from tandem.operations.ports import Ports
from tandem.spark.in_process import InProcessJobs

EACH = pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])


def assert_ids(
    found: Ids,
    before: Ids,
    version: int,
    *,
    updated: Collection[int] = (),
    deleted: Collection[int] = (),
    inserted: Collection[int] = (),
) -> None:
    """`found` are those of the commit of this version, `before` those of the version before it."""
    highest = max(row_id for row_id, _ in before.values())
    new = {key: found[key] for key in inserted}
    assert all(row_id > highest and own == version for row_id, own in new.values())
    kept = {key: own for key, own in before.items() if key not in deleted}
    assert found == {**kept, **{key: (before[key][0], version) for key in updated}, **new}


class ArrowLake(QuickLake):
    """Its jobs are the real ones, without Spark."""

    def ports(self, **changes: Any) -> Ports:
        given: dict[str, Any] = {"jobs": InProcessJobs(None), "locks": InProcessLocks()}
        return Ports(**{**given, "clock": QuickClock(), **changes})


def tracked(folder: Path, *, vectors: bool) -> ArrowLake:
    """A table that tracks rows, with three files."""
    made = quick(folder, vectors=vectors)
    lake = ArrowLake(made.location, made.spark, made.sources, made.store)
    lake.first_version = lake.version
    return lake


def test_the_thin_path(tmp_path: Path) -> None:
    for vectors in (True, False):
        lake = tracked(tmp_path / str(vectors), vectors=vectors)
        before = in_files(lake)
        lake.do(lake.update("k = 1", v="v + 1"))
        updated = {n for n in before if n % 5 == 1}
        after = in_files(lake)
        assert_ids(after, before, lake.version, updated=updated)
        lake.do(lake.merge(rows(range(25, 35))))
        merged = in_files(lake)
        assert_ids(merged, after, lake.version, updated=range(25, 30), inserted=range(30, 35))
        lake.do(lake.delete("id IN (1, 2, 25, 33)"))
        left = in_files(lake)
        assert_ids(left, merged, lake.version, deleted={1, 2, 25, 33})
        lake.do(lake.compaction("Major"))
        assert in_files(lake) == left
        lake.do(lake.update("k = 3", v="v + 1"))
        updated = {n for n in left if n % 5 == 3}
        assert_ids(in_files(lake), left, lake.version, updated=updated)
