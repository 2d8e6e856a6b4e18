"""The life of an operation's resource under a real API server: every way to its end.

Jobs are quick ones; what is tested is what the operator makes of a resource. One operator for
all tests of the module, with its own service account.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
    reason_of,
)
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"


@dataclass
class Stage:
    space: Resources
    jobs: HeldJobs
    folder: Path
    _made: int = 0

    def lake(self, loads: int = 4) -> tuple[str, QuickLake]:
        """A table of its own, and the name of its LakeTable, which is ready."""
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name, loads)
        self.space.table(name, lake.location)
        self.space.await_reason("LakeTable", name, "Adopted")
        return name, lake


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    space = Resources(cluster, cluster.namespace("life"))
    jobs = HeldJobs()
    with operating(quick_settings(cluster, space.namespace), jobs):
        yield Stage(space, jobs, tmp_path_factory.mktemp("life"))


def test_a_compaction_succeeds_and_reports_it(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.space.compaction("thin", table)
    status = stage.space.await_end(KIND, "thin")
    assert status["phase"] == "Succeeded"
    assert status["result"]["version"] == lake.version == 5
    assert status["result"]["filesRemoved"] == 4
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Succeeded": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Ready": "True",
    }
    assert {c["observedGeneration"] for c in status["conditions"]} == {1}
    assert status["observedGeneration"] == 1
    assert status["startTime"] <= status["completionTime"]
    assert reason_of(status) == "Committed"
    assert stage.space.events("thin")[-1] == "Committed"


def test_a_compaction_in_batches_is_one_operation(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two files each: the table is small, so the default limit is."""
    monkeypatch.setattr("tandem.spec.compaction.DEFAULT_BYTES_PER_COMMIT", 1)
    space, lake = Resources(cluster, cluster.namespace("batches")), quick_lake.make(tmp_path)
    with operating(quick_settings(cluster, space.namespace), HeldJobs(), here=True):
        space.table("t", lake.location)
        target = 2 * lake.first_add.size
        space.compaction("batches", "t", type="Major", targetFileSize=target)
        status = space.await_end(KIND, "batches")
    assert reason_of(status) == "Committed"
    assert status["result"]["version"] == lake.version == 6
    assert status["result"]["filesRemoved"] == 4
    assert status["result"]["summary"][-1] == "in 2 batches (versions 5 and 6)"
    assert status["plan"]["inputs"] == 4


def test_a_running_operation_has_succeeded_unknown_and_progress(stage: Stage) -> None:
    table, _lake = stage.lake()
    with stage.jobs.held():
        stage.space.compaction("running", table)
        status = stage.space.await_phase(KIND, "running", "Running")
        assert condition(status, "Ready")["status"] == "Unknown"
        assert condition(status)["status"] == "Unknown"
        assert condition(status, "Reconciling")["status"] == "True"
        assert status["plan"]["inputs"] == 4
        assert status["application"] == stage.jobs.started[-1]
        found = stage.space.get(KIND, "running")
        assert found is not None
        assert "finalizers" not in found["metadata"]
        before = condition(status, "Stalled")["lastTransitionTime"]
    status = stage.space.await_end(KIND, "running")
    assert condition(status, "Stalled")["lastTransitionTime"] == before
    assert status["application"] == stage.jobs.started[-1]


def test_nothing_to_do_is_a_success(stage: Stage) -> None:
    table, lake = stage.lake(loads=2)
    stage.space.compaction("idle", table)
    status = stage.space.await_end(KIND, "idle")
    assert (status["phase"], reason_of(status)) == ("Succeeded", "NothingToDo")
    assert lake.version == 2


def test_a_dry_run_only_plans(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.space.compaction("dry", table, dryRun=True)
    status = stage.space.await_end(KIND, "dry")
    assert (status["phase"], reason_of(status)) == ("Succeeded", "DryRun")
    assert status["plan"]["inputs"] == 4
    assert lake.version == 4


def test_a_spec_that_the_schema_lets_pass_fails_with_a_message(stage: Stage) -> None:
    table, _lake = stage.lake()
    stage.space.update("twice", table, "k = 1", {"vV": "0", "Vv": "1"})
    status = stage.space.await_end("TableUpdate", "twice")
    assert (status["phase"], reason_of(status)) == ("Failed", "InvalidSpec")
    assert "names a column twice" in condition(status)["message"]
    assert condition(status, "Stalled")["status"] == "True"


def test_an_exclusive_compaction_says_that_it_yields(stage: Stage) -> None:
    table, lake = stage.lake()
    how = {"lockMode": "Exclusive", "exclusive": {"maxYields": 1, "backoff": "1s"}}
    with stage.jobs.held():
        stage.space.compaction("alone", table, **how)
        stage.space.await_phase(KIND, "alone", "Running")
        lake.append(batch(7))
    status = stage.space.await_end(KIND, "alone")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2)
    assert status["yields"]["count"] == 1
    assert "nextTry" not in status["yields"]
    events = stage.space.events("alone")
    assert "Yielded" in events
    assert "Retrying" not in events


def test_a_bad_statement_fails_with_a_message(stage: Stage) -> None:
    table, _lake = stage.lake()
    stage.space.update("typo", table, "no_such_column = 1", {"v": "0"})
    status = stage.space.await_end("TableUpdate", "typo")
    assert (status["phase"], reason_of(status)) == ("Failed", "InvalidStatement")
    assert "no_such_column" in condition(status)["message"]


def test_a_segment_rewrite_leaves_its_siblings_alone(stage: Stage) -> None:
    table, lake = stage.lake(loads=2)
    names, kind = lake.names, "SegmentRewrite"
    spec = {"tableRef": {"name": table}, "rewrite": {"purgeDeleted": True}, "segments": names[:1]}
    stage.space.update("some", table, "k = 0", {"v": "0"})
    stage.space.await_end("TableUpdate", "some")
    assert set(lake.deleted()) == set(names)

    stage.space.create(kind, "dry", {**spec, "dryRun": True})
    plan = stage.space.await_end(kind, "dry")["plan"]
    assert (plan["segments"], plan["outputs"], plan["outputFiles"]) == (names[:1], names[:1], 1)
    stage.space.create(kind, "purge", spec)
    status = stage.space.await_end(kind, "purge")
    assert (status["phase"], reason_of(status)) == ("Succeeded", "Committed")
    assert status["result"]["segments"] == names[:1]
    assert set(lake.deleted()) == {names[1]}
    assert lake.names[:2] == names
    stage.space.create(kind, "lost", {**spec, "segments": ["9"]})
    assert reason_of(stage.space.await_end(kind, "lost")) == "UnknownSegment"
    lake.assert_clean()


def test_suspended_from_the_start_it_waits_and_then_runs(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.space.compaction("patient", table, suspend=True)
    status = stage.space.await_phase(KIND, "patient", "Suspended")
    # Tools must take Suspended for current: no Ready condition.
    assert condition(status, "Ready") == {}
    assert condition(status, "Reconciling")["status"] == "False"
    assert lake.version == 4
    stage.space.patch(KIND, "patient", {"spec": {"suspend": False}})
    status = stage.space.await_end(KIND, "patient")
    assert status["phase"] == "Succeeded"
    assert status["observedGeneration"] == 2
    events = stage.space.events("patient")
    assert events.index("Suspended") < events.index("Resumed")


def test_suspending_stops_the_job_and_resuming_starts_another(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():
        stage.space.compaction("paused", table)
        stage.space.await_phase(KIND, "paused", "Running")
        stage.space.patch(KIND, "paused", {"spec": {"suspend": True}})
        status = stage.space.await_phase(KIND, "paused", "Suspended")
        assert stage.jobs.stopped[-1] == stage.jobs.started[-1]
        assert status["observedGeneration"] == 2
    stage.space.patch(KIND, "paused", {"spec": {"suspend": False}})
    status = stage.space.await_end(KIND, "paused")
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2)
    assert status["application"] == stage.jobs.started[-1]
    lake.assert_clean()
    # A requested suspension is not reported as a failure.
    reasons = ["JobStarted", "Suspended", "Resumed", "JobStarted", "Committed"]
    await_that(
        lambda: stage.space.events("paused") == reasons, lambda: stage.space.events("paused")
    )


def test_a_deadline_ends_an_operation(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():
        stage.space.compaction("late", table, activeDeadlineSeconds=1)
        status = stage.space.await_end(KIND, "late")
    assert (status["phase"], reason_of(status)) == ("Failed", "DeadlineExceeded")
    assert stage.jobs.stopped[-1] == stage.jobs.started[-1]
    lake.assert_clean()


def test_as_many_attempts_as_backoff_limit_allows(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.jobs.fail = 2
    stage.space.compaction("weak", table, backoffLimit=1)
    status = stage.space.await_end(KIND, "weak")
    assert stage.jobs.fail == 0
    assert (status["phase"], status["attempt"]) == ("Failed", 2)
    assert "the test made it fail" in condition(status)["message"]
    assert "Retrying" in stage.space.events("weak")
    lake.assert_clean()


def test_an_annotation_asks_for_one_more_run(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.jobs.fail = 1
    stage.space.compaction("again", table, backoffLimit=0)
    status = stage.space.await_end(KIND, "again")
    assert status["phase"] == "Failed"
    retry = {"metadata": {"annotations": {"tandem.dev/retry": "1"}}}
    stage.space.patch(KIND, "again", retry)
    status = stage.space.await_end_of(KIND, "again", "Succeeded")
    assert status["observedRetry"] == "1"
    assert status["result"]["version"] == lake.version
    # The same value again asks for nothing, and a success is not repeated.
    version = lake.version
    stage.space.patch(KIND, "again", {"metadata": {"annotations": {"tandem.dev/retry": "2"}}})
    stage.space.compaction("after", table)
    stage.space.await_end(KIND, "after")
    assert lake.version == version
    lake.assert_clean()


def test_an_operation_is_deleted_after_its_ttl(stage: Stage) -> None:
    table, _lake = stage.lake()
    stage.space.compaction("brief", table, ttlSecondsAfterFinished=0)
    stage.space.await_gone(KIND, "brief")
    stage.space.compaction("lasting", table, targetFileSize="64Mi")
    stage.space.await_end(KIND, "lasting")
    stage.space.patch(KIND, "lasting", {"spec": {"ttlSecondsAfterFinished": 0}})
    stage.space.await_gone(KIND, "lasting")


def test_a_change_after_the_end_is_observed(stage: Stage) -> None:
    table, _lake = stage.lake()
    stage.space.compaction("changed", table)
    stage.space.await_end(KIND, "changed")
    stage.space.patch(KIND, "changed", {"spec": {"ttlSecondsAfterFinished": 3600}})
    status = stage.space.await_status(KIND, "changed", lambda s: s["observedGeneration"] == 2)
    assert {c["observedGeneration"] for c in status["conditions"]} == {2}
    assert status["phase"] == "Succeeded"


def test_a_change_while_a_job_runs_is_observed(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():  # without progress to report
        stage.space.compaction("edited", table)
        stage.space.await_phase(KIND, "edited", "Running")
        stage.space.patch(KIND, "edited", {"spec": {"ttlSecondsAfterFinished": 3600}})
        status = stage.space.await_status(KIND, "edited", lambda s: s["observedGeneration"] == 2)
        assert {c["observedGeneration"] for c in status["conditions"]} == {2}
        assert status["phase"] == "Running"
        assert status["application"] == stage.jobs.started[-1]
    assert stage.space.await_end(KIND, "edited")["phase"] == "Succeeded"
    lake.assert_clean()


def test_deleted_while_it_waits_for_locks(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():
        stage.space.compaction("first", table)
        stage.space.await_phase(KIND, "first", "Running")
        stage.space.compaction("second", table, targetFileSize="64Mi")
        status = stage.space.await_reason(KIND, "second", "WaitingForLock")
        assert "TableCompaction/first" in condition(status)["message"]
        stage.space.delete(KIND, "second")
        stage.space.await_gone(KIND, "second")
    assert stage.space.await_end(KIND, "first")["phase"] == "Succeeded"
    lake.assert_clean()


def test_deleted_while_it_runs(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():
        stage.space.compaction("doomed", table)
        stage.space.await_phase(KIND, "doomed", "Running")
        stage.space.delete(KIND, "doomed")
        await_that(
            lambda: stage.space.events("doomed") == ["JobStarted", "Cancelled"],
            lambda: stage.space.events("doomed"),
        )
        assert stage.jobs.stopped[-1] == stage.jobs.started[-1]
    lake.assert_clean()


def test_made_again_under_the_same_name_it_waits_for_the_cleaning_and_runs(stage: Stage) -> None:
    table, lake = stage.lake()
    with stage.jobs.held():
        made = stage.space.compaction("phoenix", table)
        stage.space.await_phase(KIND, "phoenix", "Running")
        stage.space.delete(KIND, "phoenix")
        stage.space.await_gone(KIND, "phoenix", made["metadata"]["uid"])
        stage.space.compaction("phoenix", table)
    status = stage.space.await_end(KIND, "phoenix")
    assert status["phase"] == "Succeeded"
    assert status["result"]["version"] == lake.version
    lake.assert_clean()


def test_made_again_after_its_success_it_reports_that_one(stage: Stage) -> None:
    table, lake = stage.lake()
    made = stage.space.compaction("once", table)
    first = stage.space.await_end(KIND, "once")
    stage.space.delete(KIND, "once")
    stage.space.await_gone(KIND, "once", made["metadata"]["uid"])
    version = lake.version
    stage.space.compaction("once", table)
    second = stage.space.await_end(KIND, "once")
    assert second["result"]["version"] == first["result"]["version"]
    assert lake.version == version


def test_one_waits_for_another_by_dependson(stage: Stage) -> None:
    table, _lake = stage.lake()
    needs = [{"kind": "TableUpdate", "name": "before"}]
    stage.space.compaction("behind", table, dependsOn=needs)
    status = stage.space.await_reason(KIND, "behind", "WaitingForDependency")
    assert "TableUpdate/before" in condition(status)["message"]
    stage.space.update("before", table, "k = 1", {"v": "v + 1"})
    before = stage.space.await_end("TableUpdate", "before")
    behind = stage.space.await_end(KIND, "behind")
    assert before["result"]["version"] < behind["result"]["version"]


def test_writes_are_few(stage: Stage) -> None:
    table, _lake = stage.lake()
    stage.space.compaction("frugal", table)
    stage.space.await_end(KIND, "frugal")

    writes = _writes(stage.space, "frugal")
    events = len(stage.space.events("frugal"))
    # The creation and the deletion of its SparkApplication come on top.
    assert {what for _, _, what in writes} == {"status"}
    assert len(writes) + events + 2 <= 9, writes


def _writes(space: Resources, name: str) -> list[tuple[str, str, Any]]:
    return [
        (entry["verb"], entry["objectRef"]["resource"], entry["objectRef"].get("subresource"))
        for entry in space.cluster.writes(space.namespace)
        if entry["objectRef"].get("name") == name and "tandem-operator" in str(entry["user"])
    ]
