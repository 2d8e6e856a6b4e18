"""`tandem dev` against the real API server: states, words, deletion, restarts, secrets."""

from __future__ import annotations

import base64
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kube.applications import SETTINGS, Applications, ScriptedJobs
from support.cluster.api_proxy import ApiProxy
from support.cluster.api_server import Cluster
from support.jobs.job_files import control, input_files, snapshot_of
from support.waiting import await_that
from tandem.errors import AccessDenied, Reason, SparkMissing
from tandem.jobs.formats import JobBin, RewriteJob
from tandem.jobs.runner import JobPhase, JobRequest
from tandem.kube.dev import controller
from tandem.spark.application.manifest import build
from tandem.spark.application.port import JobOwner, JobPlacement, classify
from tandem.storage.renewable import CREDENTIALS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]

GOOD = ["", "SUBMITTED", "RUNNING", "SUCCEEDING", "COMPLETED"]


@pytest.fixture
def space(cluster: Cluster) -> Applications:
    return Applications(cluster)


@pytest.fixture
def owner(space: Applications) -> JobOwner:
    return space.owner()


@pytest.fixture
def jobs() -> ScriptedJobs:
    return ScriptedJobs()


@contextmanager
def running(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs, **spec: Any
) -> Iterator[None]:
    """`tandem dev`, and one application, `a`, whose job runs."""
    with space.dev(jobs), space.watched():
        space.create(space.body("a", owner, **spec))
        space.await_state("a", "RUNNING")
        yield


def test_a_job_that_ends_well(space: Applications, owner: JobOwner, jobs: ScriptedJobs) -> None:
    with running(space, owner, jobs):
        jobs.end()
        body = space.await_state("a", "COMPLETED")
        await_that(lambda: space.states["a"][-1] == "COMPLETED", lambda: space.states)
    assert space.states["a"] == GOOD
    assert body is not None
    status = body["status"]
    assert status["driverInfo"] == {"podName": "a-driver"}
    assert (status["executionAttempts"], status["submissionAttempts"]) == (1, 1)
    assert {"submissionID", "sparkApplicationId", "lastSubmissionAttemptTime"} < status.keys()
    assert status["lastSubmissionAttemptTime"] <= status["terminationTime"]
    assert classify(body, None).phase is JobPhase.ENDED
    [request] = jobs.requests
    assert (request.app, request.location, request.spec_path) == (
        "rewrite",
        "memory:///lake",
        "job.json",
    )
    assert (request.operation_id, request.attempt, request.memory_bytes) == ("op", 1, 1 << 30)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("spark-submit ended with exit code 3: no such column", 3),
        ("spark-submit was killed by signal 9", 137),
        ("it is dead", 1),
    ],
)
def test_a_job_that_fails(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs, message: str, code: int
) -> None:
    with running(space, owner, jobs):
        jobs.end(JobPhase.FAILED, message)
        body = space.await_state("a", "FAILED")
        await_that(lambda: space.states["a"][-1] == "FAILED", lambda: space.states)
    assert space.states["a"] == ["", "SUBMITTED", "RUNNING", "FAILING", "FAILED"]
    status = classify(body, None)
    assert (status.phase, status.reason) == (JobPhase.FAILED, Reason.JOB_FAILED)
    assert status.message == f"driver container failed with ExitCode: {code}, Reason: Error"
    assert status.log == f"/logs/{jobs.requests[0].name}.log"


@pytest.mark.parametrize(
    ("spec", "expected_text"),
    [
        ({"mainApplicationFile": "local:///opt/pi.py"}, "not one of Tandem's applications"),
        ({"mainApplicationFile": "local:///rewrite.py/../pi.jar"}, "not one of Tandem's"),
        ({"type": "Scala", "mainClass": "Pi"}, "not one of Tandem's applications"),
        ({"arguments": ["--location", "x"]}, "--spec"),
        ({"arguments": ["--location", "x", "--spec", "y", "--shell", "z"]}, "--shell"),
        ({"arguments": ["--location", "x", "--spec", "y", "--option", "z"]}, "KEY=VALUE"),
    ],
)
def test_applications_that_tandem_did_not_create_are_not_run(
    space: Applications,
    owner: JobOwner,
    jobs: ScriptedJobs,
    spec: dict[str, Any],
    expected_text: str,
) -> None:
    with space.dev(jobs), space.watched():
        space.create(space.body("a", owner, **spec))
        body = space.await_state("a", "FAILED")
        await_that(lambda: space.states["a"][-1] == "FAILED", lambda: space.states)
    assert space.states["a"] == ["", "SUBMISSION_FAILED", "FAILED"]
    status = classify(body, None)
    assert status.reason is Reason.SUBMISSION_FAILED
    assert expected_text in status.message
    assert not jobs.requests


def test_others_applications_are_left_alone(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs
) -> None:
    other = space.body("other", owner)
    del other["metadata"]["labels"]
    space.create(other)
    with running(space, owner, jobs):
        jobs.end()
        space.await_state("a", "COMPLETED")
        assert space.state("other") == ""
    with space.dev(jobs, every=True):
        await_that(lambda: len(jobs.requests) == 2, lambda: jobs.requests)


def test_deletion_kills_the_job(space: Applications, owner: JobOwner, jobs: ScriptedJobs) -> None:
    with running(space, owner, jobs):
        space.delete("a")
        await_that(lambda: jobs.stopped == [jobs.requests[0].name], lambda: jobs.stopped)
        # Another object of that name is another job.
        space.create(space.body("a", owner))
        space.await_state("a", "RUNNING")
        assert len({request.name for request in jobs.requests}) == 2


def test_suspended_and_resumed(space: Applications, owner: JobOwner, jobs: ScriptedJobs) -> None:
    with running(space, owner, jobs):
        space.patch("a", {"spec": {"suspend": True}})
        body = space.await_state("a", "SUSPENDED")
        assert jobs.stopped == [jobs.requests[0].name]
        assert classify(body, None).phase is JobPhase.STARTING
        space.patch("a", {"spec": {"suspend": False}})
        space.await_state("a", "RUNNING")
        jobs.end()
        body = space.await_state("a", "COMPLETED")
        await_that(lambda: space.states["a"][-1] == "COMPLETED", lambda: space.states)
    middle = ["SUSPENDING", "SUSPENDED", "RESUMING"]
    assert space.states["a"] == ["", "SUBMITTED", "RUNNING", *middle, *GOOD[1:]]
    assert body is not None
    assert body["status"]["executionAttempts"] == 2
    assert len({request.name for request in jobs.requests}) == 2


def test_a_changed_application_runs_again(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs
) -> None:
    with running(space, owner, jobs):
        space.patch("a", {"spec": {"timeToLiveSeconds": 3600}})
        space.patch("a", {"spec": {"image": "another:2"}})
        await_that(lambda: len(jobs.requests) == 2, lambda: space.states)
        assert jobs.stopped == [jobs.requests[0].name]
        space.await_state("a", "RUNNING")
        await_that(lambda: space.states["a"][-1] == "RUNNING", lambda: space.states)
    again = ["INVALIDATING", "PENDING_RERUN", "SUBMITTED", "RUNNING"]
    assert space.states["a"] == ["", "SUBMITTED", "RUNNING", *again]


def test_a_job_that_ran_when_dev_died_has_lost_its_driver(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs
) -> None:
    with running(space, owner, jobs):
        pass
    assert jobs.stopped == [jobs.requests[0].name]
    assert space.state("a") == "RUNNING"
    with space.dev(jobs):
        body = space.await_state("a", "FAILED")
        # An application that was not started yet starts.
        space.create(space.body("b", owner))
        space.await_state("b", "RUNNING")
    status = classify(body, None)
    assert (status.phase, status.reason) == (JobPhase.FAILED, Reason.JOB_VANISHED)
    assert status.message == "driver pod not found"
    assert len(jobs.requests) == 2


def test_time_to_live(space: Applications, owner: JobOwner, jobs: ScriptedJobs) -> None:
    with space.dev(jobs):
        space.create(space.body("short", owner, timeToLiveSeconds=0))
        space.create(space.body("long", owner, timeToLiveSeconds=3600))
        space.create(space.body("endless", owner))
        await_that(lambda: len(jobs.requests) == 3, lambda: jobs.requests)
        jobs.end()
        space.await_state("short", "gone")
        space.await_state("long", "COMPLETED")
        space.await_state("endless", "COMPLETED")
    # Also applications that ended while no controller ran.
    space.patch("long", {"spec": {"timeToLiveSeconds": 0}})
    with space.dev(jobs):
        space.await_state("long", "gone")
        assert space.state("endless") == "COMPLETED"


def test_no_more_jobs_than_allowed(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs
) -> None:
    with space.dev(jobs, max_jobs=1), space.watched():
        space.create(space.body("a", owner))
        space.await_state("a", "RUNNING")
        space.create(space.body("b", owner))
        space.await_state("b", "SUBMITTED")
        assert len(jobs.requests) == 1
        jobs.end()
        space.await_state("a", "COMPLETED")
        space.await_state("b", "RUNNING")


def secret(space: Applications, name: str, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    space.cluster.request(
        "POST",
        f"/api/v1/namespaces/{space.namespace}/secrets",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded},
    )


def test_secrets_reach_the_environment_alone(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs, capfd: pytest.CaptureFixture[str]
) -> None:
    secret(space, "lake", AWS_ACCESS_KEY_ID="AKIA", AWS_SECRET_ACCESS_KEY="hush", LD_PRELOAD="x.so")
    request = JobRequest("a", "rewrite", "s3://lake/t", "job.json")
    body = build(request, JobPlacement(owner, space.namespace, secret_name="lake"), SETTINGS)
    with space.dev(jobs):
        space.create(body)
        found = space.await_state("a", "RUNNING")
    [started] = jobs.requests
    assert dict(started.environ) == {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hush"}
    output = "".join(capfd.readouterr())
    assert "LD_PRELOAD" in output
    for text in (output, str(found), repr(started), " ".join(started.arguments())):
        assert "hush" not in text


def test_credentials_that_a_catalog_vends_are_a_file_that_is_renewed(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_RENEW_S", 0.0)
    request = JobRequest("a", "rewrite", "s3://lake/t", "job.json", environ=(("A", "hush"),))
    body = build(request, JobPlacement(owner, space.namespace), SETTINGS)
    with space.dev(jobs):
        space.create(body)
        space.await_state("a", "SUBMITTED")
        secret(space, "a", **{"credentials.json": "first"})  # as a kubelet, it waits for this
        space.await_state("a", "RUNNING")
        [started] = jobs.requests
        [(name, text)] = started.environ
        file = Path(text)
        assert name == CREDENTIALS_VARIABLE
        assert file.read_text() == "first"
        assert file.stat().st_mode & 0o77 == file.parent.stat().st_mode & 0o77 == 0
        url = f"/api/v1/namespaces/{space.namespace}/secrets/a"
        merge = "application/merge-patch+json"
        renewed = {"stringData": {"credentials.json": "second"}}
        space.cluster.request("PATCH", url, renewed, content_type=merge)
        await_that(lambda: file.read_text() == "second", file.read_text)
        space.cluster.request("DELETE", url)
        jobs.end()
        space.await_state("a", "COMPLETED")
    assert not file.exists()


def test_a_secret_that_is_missing(space: Applications, owner: JobOwner, jobs: ScriptedJobs) -> None:
    driver = space.body("a", owner)["spec"]["driver"]
    missing = [{"secretRef": {"name": "nowhere"}}]
    with space.dev(jobs):
        space.create(space.body("a", owner, driver={**driver, "envFrom": missing}))
        body = space.await_state("a", "FAILED")
    assert 'secrets "nowhere" not found' in classify(body, None).message
    assert not jobs.requests


def test_jobs_go_on_while_the_api_server_is_away(
    space: Applications, owner: JobOwner, jobs: ScriptedJobs, tmp_path: Path
) -> None:
    with (
        ApiProxy(space.cluster.dev_kubeconfig) as proxy,
        space.dev(jobs, kubeconfig=proxy.kubeconfig(tmp_path)),
        space.watched(),
    ):
        for name in ("a", "b"):
            space.create(space.body(name, owner))
            space.await_state(name, "RUNNING")
        proxy.close_door()
        jobs.end(only="a")
        space.delete("b")
        # The end is noticed, and cannot be reported; the deletion is not noticed.
        await_that(lambda: jobs.stopped == [jobs.requests[0].name], lambda: jobs.stopped)
        assert space.state("a") == "RUNNING"
        proxy.open_door()
        space.await_state("a", "COMPLETED")
        await_that(lambda: len(jobs.stopped) == 2, lambda: jobs.stopped)
        space.create(space.body("c", owner))
        space.await_state("c", "RUNNING")
    assert space.states["a"] == GOOD
    assert set(jobs.stopped) == {request.name for request in jobs.requests}


def test_dev_without_rights(space: Applications, jobs: ScriptedJobs, tmp_path: Path) -> None:
    access = dataclasses.replace(space.cluster.dev, token="unknown")
    kubeconfig = access.write(tmp_path / "unknown.kubeconfig")
    with pytest.raises(AccessDenied, match="tandem-dev"), space.dev(jobs, kubeconfig=kubeconfig):
        pass


def test_without_the_spark_operators_crds(
    space: Applications, jobs: ScriptedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tandem.kube.client.api import ResourcePath
    from tandem.kube.dev import controller

    monkeypatch.setattr(
        controller, "APPLICATIONS", ResourcePath("sparkoperator.k8s.io", "v9", "nothing")
    )
    with (
        pytest.raises(SparkMissing, match="CRDs"),
        space.dev(jobs, kubeconfig=space.cluster.kubeconfig),
    ):
        pass


def test_the_command_runs_a_real_job(space: Applications, owner: JobOwner, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for number in range(2):
        write_deltalake(lake, pa.table({"id": [number, number + 10]}), mode="append")
    store, snapshot = snapshot_of(lake)
    job = control(
        store,
        snapshot,
        RewriteJob(
            inputs=input_files(store, snapshot),
            bins=(JobBin(inputs=(0, 1)),),
            target_file_size=1 << 20,
        ),
    )
    request = JobRequest("true", "rewrite", store.location, job.path("job.json"), input_bytes=100)
    body = build(request, JobPlacement(owner, space.namespace), SETTINGS)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tandem.cli.main", "dev"),
            *("--kubeconfig", str(space.cluster.dev_kubeconfig), "-n", space.namespace),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert f"in {space.namespace}" in process.stderr.readline()
        space.create(body)
        found = space.await_state("true", "COMPLETED", limit_s=120)
        assert store.head(job.round_path(0, "result.json")).size > 0
        assert found is not None
        assert Path(found["metadata"]["annotations"]["tandem.dev/log"]).is_file()
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
