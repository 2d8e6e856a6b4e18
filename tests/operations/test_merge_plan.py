"""What a plan of a merge says and refuses, without its source and without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import reason
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.kinds.merge import clauses
from tandem.spec.resources import TableUpdate
from tandem.spec.status import OperationStatus, Phase

OPTIONS = {"header": "true"}
SOURCE: dict[str, Any] = {"format": "Csv", "location": "s3://lake/in/x.csv", "options": OPTIONS}
INSERT: dict[str, Any] = {"whenNotMatched": [{"insertAll": {}}]}


def planned(lake: QuickLake, on: str = "t.id = s.id", **more: Any) -> OperationStatus:
    body = {"source": SOURCE, "on": on, **(more or INSERT)}
    resource = lake.resource("TableUpdate", {"merge": body})
    session = open_session(resource, lake.table(), lake.ports(), ExecutionOptions(plan_only=True))
    return finish(session, resource, lake.ports())


def test_a_plan_needs_no_source(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 2)
    clauses_: dict[str, Any] = {
        "whenMatched": [{"where": "s.op = 'D'", "delete": {}}, {"updateAll": {}}],
        "whenNotMatched": [{"insert": {"values": {"id": "s.id", "v": "s.v * 2"}}}],
        "whenNotMatchedBySource": [{"where": "k = 1", "update": {"set": {"v": "0"}}}],
    }
    status = planned(lake, **clauses_)
    assert reason(status) == "DryRun"
    assert status.plan is not None
    assert status.plan.statement == (
        "MERGE ON (`t`.`id` = `s`.`id`) WHEN MATCHED AND (`s`.`op` = 'D') THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT (`id`, `v`) "
        "VALUES (CAST(`s`.`id` AS BIGINT), CAST((`s`.`v` * 2) AS BIGINT)) "
        "WHEN NOT MATCHED BY SOURCE AND (`t`.`k` = 1) THEN UPDATE SET `v` = CAST(0 AS BIGINT)"
    )
    assert status.plan.inputs == 2
    assert lake.version == 2


@pytest.mark.parametrize(
    ("more", "expected", "words"),
    [
        ({"on": "t.ib = s.id"}, "InvalidStatement", "spec.merge.on: the table has no such column"),
        ({"on": "t.id = s.id OR sum(k) > 1"}, "InvalidStatement", "at line 1, column 16"),
        (
            {"whenMatched": [{"delete": {}}, {"updateAll": {}}]},
            "InvalidStatement",
            "spec.merge.whenMatched[1]: this clause never applies",
        ),
        (
            {"whenNotMatched": [{"insert": {"values": {"id": "t.id"}}}]},
            "InvalidStatement",
            "spec.merge.whenNotMatched[0].insert.values.id: there is no row of the table",
        ),
        (
            {"whenNotMatchedBySource": [{"update": {"set": {"q": "1"}}}]},
            "InvalidStatement",
            "spec.merge.whenNotMatchedBySource[0].update.set.q: SET names a column that",
        ),
        (
            {"source": {**SOURCE, "options": {"mode": "DROPMALFORMED"}}, **INSERT},
            "InvalidSpec",
            "spec.merge.source.options.mode",
        ),
    ],
)
def test_merges_that_a_plan_refuses(
    tmp_path: Path, more: dict[str, Any], expected: str, words: str
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    status = planned(lake, **{**({} if "whenMatched" in more else INSERT), **more})
    assert (status.phase, reason(status)) == (Phase.FAILED, expected)
    assert words in status.conditions[0].message
    assert lake.version == 1


def test_without_deletion_vectors_a_merge_is_refused_only_where_its_lake_table_says_so(
    tmp_path: Path,
) -> None:
    lake = quick_lake.make(tmp_path, 1, properties={})
    assert reason(planned(lake)) == "DryRun"
    lake.vectors = "Only"
    status = planned(lake)
    assert reason(status) == "DeletionVectorsDisabled"
    assert "vectors: Auto" in status.conditions[0].message


def test_a_table_with_constraints_is_left_alone(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0)
    lake.foreign().alter.add_constraint({"small": "v < 1000"})
    status = planned(lake)
    assert reason(status) == "UnsupportedFeature"
    assert "merge is refused because of checkConstraints" in status.conditions[0].message


def test_a_merge_without_a_candidate_file(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0)
    status = planned(lake, whenMatched=[{"delete": {}}])
    assert "no file can hold a row that the statement affects" in status.conditions[0].message
    # Of an empty table there is nothing to update, and everything to insert.
    status = planned(lake, whenMatched=[{"delete": {}}], **INSERT)
    assert reason(status) == "DryRun"
    assert status.plan is not None
    assert status.plan.locks == ("Update the table",)


def test_files_are_left_out_only_where_nothing_in_them_can_matter(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1, partition_by=["k"])
    on = "t.k = 3 AND s.k = 3 AND t.id = s.id"
    matched = planned(lake, on, whenMatched=[{"delete": {}}], **INSERT)
    anything = planned(lake, on, whenNotMatchedBySource=[{"where": "k = 4", "delete": {}}])
    assert [p.plan.inputs for p in (matched, anything) if p.plan is not None] == [1, 5]


def test_clauses_know_their_position(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0)
    body = {
        "source": SOURCE,
        "on": "t.id = s.id",
        "whenMatched": [{"delete": {}}],
        "whenNotMatched": [
            {"where": "s.v > 0", "insertAll": {}},
            {"insert": {"values": {"id": "1"}}},
        ],
        "whenNotMatchedBySource": [{"delete": {}}],
    }
    resource = lake.resource("TableUpdate", {"merge": body})
    assert isinstance(resource, TableUpdate)
    assert resource.spec.merge is not None
    found = [(c.when, c.action, c.where, c.all, c.field) for c in clauses(resource.spec.merge)]
    assert found == [
        ("Matched", "Delete", None, False, "spec.merge.whenMatched[0]"),
        ("NotMatched", "Insert", "s.v > 0", True, "spec.merge.whenNotMatched[0]"),
        ("NotMatched", "Insert", None, False, "spec.merge.whenNotMatched[1]"),
        ("NotMatchedBySource", "Delete", None, False, "spec.merge.whenNotMatchedBySource[0]"),
    ]
