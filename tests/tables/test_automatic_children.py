"""The children that automatic planning makes, run on real tables: a drop of old rows, a compaction
of chunks. What is planned comes from a table that is kept from version to version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.documents import document
from support.jobs import quick_lake
from support.lake import timed
from support.lake.lake import DELETION_VECTORS, Lake, reason, result
from support.lake.timed import Hours, TimedLake, day, hours, join, moment, without
from support.present import present
from tandem.operations.auto_compaction import (
    TableMemory,
    decide_drop,
    preview_next_compaction,
    preview_next_drop,
)
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import AutoCompactionDecision, ChildCompaction
from tandem.spec.resources import LakeTable

FIRST, SECOND, THIRD = (hours(day(n), first=100 * n) for n in (1, 2, 3))
LATE = hours(6, 30, first=900)  # a file of the first and the second day
WEEK = {"rows": "168h"}
CHUNKS = {"chunks": {"minUncompacted": {"segments": 2}}, "skipOffsetFromLatest": "24h"}


class Kept:
    """A table as an operator keeps it: the log is followed, never read whole again."""

    def __init__(
        self, folder: Path, *loads: Hours, deletion_vectors: bool = True, **spec: Any
    ) -> None:
        properties = DELETION_VECTORS if deletion_vectors else {}
        self.lake: Lake = quick_lake.make(folder, 0, schema=timed.SCHEMA, properties=properties)
        self.timed = TimedLake(self.lake)
        for rows in loads:
            self.timed.append(rows)
        self.resource = LakeTable.model_validate(
            document(
                "LakeTable", "lake", {"location": self.lake.location, "time": timed.DAYS, **spec}
            )
        )
        self.snapshot = self.lake.log.snapshot()
        self.memory = TableMemory()
        self.lake.time = timed.DAYS

    def see(self) -> None:
        self.snapshot = self.lake.log.update(self.snapshot)
        self.memory.see(self.snapshot)

    def drop(self, days: int) -> AutoCompactionDecision:
        """The decision when all days up to this one ended a week ago."""
        now_ms = int(moment(24 * days + 168).timestamp() * 1000)
        self.see()
        table = self.memory.by_chunk(self.resource, "", self.snapshot)
        return decide_drop(self.resource, table, self.snapshot, (), now_ms)

    def run(self, child: ChildCompaction) -> Any:
        spec = {name: value for name, value in child.spec.items() if name != "tableRef"}
        return self.lake.do(self.lake.resource(child.kind, spec))


WAYS = pytest.mark.parametrize("way", ["vectors", "edits", "whole files"])
"""How rows may leave files."""


def kept_by(way: str, folder: Path, *loads: Hours) -> Kept:
    only = {"vectors": "Only"} if way == "whole files" else {}
    kept = Kept(folder, *loads, deletion_vectors=way == "vectors", retention=WEEK, **only)
    kept.lake.vectors = only.get("vectors", "Auto")
    return kept


@WAYS
def test_old_chunks_are_dropped_and_no_other_row(tmp_path: Path, way: str) -> None:
    kept = kept_by(way, tmp_path, FIRST, SECOND, {**THIRD, 999: None})
    assert kept.drop(0).due == ()
    for days, left in ((1, join(SECOND, THIRD)), (2, THIRD)):
        (child,) = kept.drop(days).create
        status = kept.run(child)
        assert result(status).replaced is not None
        kept.timed.assert_shows(left, {999: None})
        assert kept.drop(days).due == ()
    last = kept.drop(3)
    if way == "whole files":
        assert last.create == ()
        assert "newer or without a time" in last.why
    else:
        kept.run(last.create[0])
        kept.timed.assert_shows({999: None})
        # By vectors, the file's statistics still say that it has such rows; the hint says that
        # they are gone. An edit has statistics of its own.
        assert kept.drop(9).due == ()


@pytest.mark.parametrize("way", ["vectors", "edits"])
def test_a_straddling_file_keeps_its_other_rows(tmp_path: Path, way: str) -> None:
    kept = kept_by(way, tmp_path, FIRST, LATE, THIRD)
    before = kept.snapshot.protocol
    (child,) = kept.drop(1).create
    assert child.spec["replace"]["intervals"] == ["2013-03-01"]
    assert reason(kept.run(child)) == "Committed"
    kept.timed.assert_shows(without(join(FIRST, LATE, THIRD), day(1)))
    assert kept.drop(1).due == ()
    assert kept.snapshot.protocol == before
    vectors = [add for add in kept.snapshot.adds() if add.deletion_vector is not None]
    assert len(vectors) == (1 if way == "vectors" else 0)


def test_where_it_must_go_whole_it_waits_until_all_of_it_is_old(tmp_path: Path) -> None:
    kept = kept_by("whole files", tmp_path, FIRST, LATE, THIRD)
    waits = kept.drop(1)
    assert (waits.create, waits.due) == ((), ("2013-03-01",))
    (child,) = kept.drop(2).create
    kept.run(child)
    kept.timed.assert_shows(THIRD)


def test_late_rows_of_an_old_chunk_go_with_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path, FIRST, THIRD, retention=WEEK)
    (child,) = kept.drop(1).create
    kept.timed.append(hours(3, first=950))
    kept.run(child)
    kept.timed.assert_shows(THIRD)


def test_chunks_that_are_due_are_compacted_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path, FIRST, LATE, SECOND, THIRD, compaction=CHUNKS)
    assert kept.resource.spec.compaction is not None
    policy = kept.resource.spec.compaction

    def decided() -> AutoCompactionDecision:
        kept.see()
        table = kept.memory.at(kept.resource, "", kept.snapshot)
        return decide(policy, table, (), 0)

    (child,) = decided().create
    assert child.what == "SemiMajor of chunk 2013-03-01T00:00:00Z/2013-03-03T00:00:00Z"
    assert len(result(kept.run(child)).segments or ()) == 1
    kept.timed.assert_shows(FIRST, LATE, SECOND, THIRD)
    assert decided().due == ()
    # One late load is not enough, two are.
    kept.timed.append(hours(7, first=950))
    assert decided().due == ()
    kept.timed.append(hours(8, first=960))
    (again,) = decided().create
    assert again.name != child.name
    kept.run(again)
    assert decided().due == ()


def test_what_is_kept_is_built_again_when_the_log_was_replaced(tmp_path: Path) -> None:
    kept, other = (
        Kept(tmp_path / name, *loads, compaction=CHUNKS)
        for name, loads in (("a", (FIRST, LATE)), ("b", (FIRST, THIRD)))
    )
    table = kept.memory.at(kept.resource, "", kept.snapshot)
    kept.timed.append(hours(8, first=960))
    kept.see()
    assert kept.memory.at(kept.resource, "", kept.snapshot) is table
    other.timed.append(hours(60, first=970))
    other.see()
    kept.memory.see(other.snapshot)
    rebuilt = kept.memory.at(kept.resource, "", other.snapshot)
    assert rebuilt is not table
    assert rebuilt is kept.memory.at(kept.resource, "", other.snapshot)


def test_a_plan_says_what_an_operator_would_do(tmp_path: Path) -> None:
    kept = Kept(tmp_path, FIRST, LATE, SECOND, THIRD, compaction=CHUNKS, retention=WEEK)
    now_ms = int(moment(24 + 168).timestamp() * 1000)
    coming = present(preview_next_compaction(kept.resource, kept.snapshot, now_ms))
    assert (coming.chunks_due, coming.chunks) == (
        1,
        ("2013-03-01T00:00:00Z/2013-03-03T00:00:00Z",),
    )
    drop = present(preview_next_drop(kept.resource, kept.snapshot, now_ms))
    assert (drop.what, drop.chunks) == ("Drop of 2013-03-01", ("2013-03-01",))
