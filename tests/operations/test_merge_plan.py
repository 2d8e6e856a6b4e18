"""Plans of merges, and what a status says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import reason
from tandem.errors import Reason
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.kinds.merge import clauses
from tandem.operations.machine.events import Effect, Ending, Event
from tandem.operations.machine.state import LockState, OperationState, OutcomeState
from tandem.operations.status import conditions, duration_in_words, status_of
from tandem.spec.resources import TableUpdate
from tandem.spec.status import ENDED, OperationStatus, Phase

# What a plan of a merge says and refuses, without its source and without a job.


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


# What people and tools read from a status, phase by phase. Pure.


def kstatus(generation: int, status: dict[str, Any]) -> str:
    """The rules of kstatus (which Flux and others wait by), in their order, for objects that
    are not being deleted."""
    observed = status.get("observedGeneration")
    if observed is not None and observed != generation:
        return "InProgress"
    found = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if found.get("Reconciling") == "True":
        return "InProgress"
    if found.get("Stalled") == "True":
        return "Failed"
    if "Ready" in found:
        return "Current" if found["Ready"] == "True" else "InProgress"
    return "Current"


def status(state: OperationState, now_ms: int = 90_000) -> OperationStatus:
    return status_of(state, operation_id="x", generation=3, started_ms=50_000, now_ms=now_ms)


def in_phase(phase: Phase) -> OperationStatus:
    ended = None
    if phase in ENDED or phase is Phase.SUSPENDED:
        ended = Ending(phase, Reason.COMMITTED, "as the test wants it")
    return status(OperationState(outcome=OutcomeState(ended=ended), phase=phase))


EXPECTED = {
    Phase.PENDING: "InProgress",
    Phase.PLANNED: "InProgress",
    Phase.LOCKED: "InProgress",
    Phase.RUNNING: "InProgress",
    Phase.RECONCILING: "InProgress",
    Phase.SUCCEEDED: "Current",
    Phase.SUPERSEDED: "Current",
    Phase.FAILED: "Failed",
    Phase.SUSPENDED: "Current",
}


@pytest.mark.parametrize("phase", list(Phase))
def test_waiting_tools_see_the_state(phase: Phase) -> None:
    shown = in_phase(phase).manifest()
    assert kstatus(3, shown) == EXPECTED[phase]
    assert kstatus(4, shown) == "InProgress", "a newer spec has not been looked at"


def test_an_unobserved_resource_is_not_done() -> None:
    assert kstatus(1, {"observedGeneration": -1}) == "InProgress"


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_consistent_conditions(phase: Phase) -> None:
    found = {c.type.value: c.status for c in in_phase(phase).conditions}
    match EXPECTED[phase], phase:
        case "Failed", _:
            truth = {"Ready": "False", "Succeeded": "False", "Stalled": "True"}
        case "Current", Phase.SUSPENDED:
            truth = {"Succeeded": "Unknown", "Stalled": "False"}
        case "Current", _:
            truth = {"Ready": "True", "Succeeded": "True", "Stalled": "False"}
        case _:
            truth = {"Ready": "Unknown", "Succeeded": "Unknown", "Stalled": "False"}
    at_work = "True" if EXPECTED[phase] == "InProgress" else "False"
    assert found == {**truth, "Reconciling": at_work}


@pytest.mark.parametrize("phase", list(Phase))
def test_conditions_follow_the_conventions_of_kubernetes(phase: Phase) -> None:
    found = conditions(phase, Reason.RUNNING, "a message", 7, now_ms=1_700_000_000_000)
    assert len({c.type for c in found}) == len(found)
    for condition in found:
        assert condition.reason
        assert condition.observed_generation == 7
        assert condition.last_transition_time == "2023-11-14T22:13:20Z"
    assert found[0].message == "a message"


def test_a_status_names_the_holder_that_it_waits_for_and_how_long() -> None:
    blockers = (("TableCompaction/nightly", "segment 0.1"), ("TableUpdate/fix", "segment 3"))

    def waiting_for(*blockers: tuple[str, str]) -> OperationState:
        return OperationState(locks=LockState(blockers=blockers, waiting_since_ms=50_000))

    [first, *_] = status(waiting_for(blockers[0])).conditions
    assert first.reason == Reason.WAITING_FOR_LOCK
    assert first.message == "waits for TableCompaction/nightly on segment 0.1, 40 s"
    [first, *_] = status(waiting_for(*blockers), now_ms=230_000).conditions
    assert first.message == "waits for TableCompaction/nightly on segment 0.1 and 1 more, 3 min"
    [first, *_] = status(waiting_for()).conditions
    assert first.message == "waits for its turn, 40 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (3_599, "59 min"), (3_600, "1 h"),
     (7_500, "2 h 5 min")],
)  # fmt: skip
def test_durations_are_printed_for_people(seconds: int, text: str) -> None:
    assert duration_in_words(seconds) == text


def test_a_step_after_which_the_status_is_the_same_reports_none(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path)
    steps: list[Effect] = []
    reported: list[OperationStatus] = []

    def step(effect: Effect, call: Callable[[], Event]) -> Event:
        steps.append(effect)
        return call()

    options = ExecutionOptions(poll_ms=1, interceptor=step)
    operation = lake.compaction("Major")
    session = open_session(operation, lake.table(), lake.ports(), options, reported.append)
    while session.advance():
        pass
    assert reported[-1].phase is Phase.SUCCEEDED
    assert {s.phase for s in reported} >= {Phase.PLANNED, Phase.RUNNING, Phase.RECONCILING}
    assert 5 < len(reported) < len(steps)
