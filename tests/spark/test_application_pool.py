"""The application of a job pool, and what its driver does with a job that is withdrawn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from support.jobs import quick_lake
from support.jobs.job_files import control, input_files
from tandem.errors import InvalidSpec
from tandem.jobs.formats import JobBin, RewriteJob
from tandem.jobs.pool import POOL_APP, PoolConfig, PooledJob, arguments, read_config
from tandem.jobs.results import JobResult
from tandem.jobs.runner import SHORT_JOB_BYTES, JobRequest
from tandem.kube.dev.request import InvalidApplication, is_pool, request_of, serves
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement
from tandem.spark.launch.pooled import Outcome, PooledControl, PooledJobs, _allocation

Json = dict[str, Any]
CONFIG = PoolConfig(namespace="lake", name="tandem-pool-1", slots=3)


def made(template: Json | None = None, **placement: Any) -> Json:
    request = JobRequest(
        CONFIG.name,
        POOL_APP,
        "",
        "",
        input_bytes=SHORT_JOB_BYTES,
        tasks=1,
        request=arguments(CONFIG),
    )
    owner = JobOwner("v1", "ConfigMap", CONFIG.name, "u1")
    placed = JobPlacement(owner, "lake", template=template, **placement)
    return KubeflowApplications(ApplicationSettings()).build_pool(request, placed)


def test_its_driver_has_a_token_and_room_for_several_jobs() -> None:
    body = made(secret_name="keys")
    driver = body["spec"]["driver"]
    assert "automountServiceAccountToken" not in driver["template"]["spec"]
    assert driver["memoryOverhead"] == "3072m"
    assert driver["kubernetesMaster"] == "local[2]"
    assert driver["envFrom"] == [{"secretRef": {"name": "keys"}}]
    # It lives long enough for the optimizing compiler.
    assert "TieredStopAtLevel" not in body["spec"]["sparkConf"]["spark.driver.extraJavaOptions"]
    assert body["spec"]["restartPolicy"] == {"type": "Never"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert "blockOwnerDeletion" not in owner


def test_a_template_still_changes_and_removes_what_is_given() -> None:
    template = {
        "spec": {"driver": {"memoryOverhead": "5g", "securityContext": {"runAsUser": None}}}
    }
    driver = made(template)["spec"]["driver"]
    assert driver["memoryOverhead"] == "5g"
    assert "runAsUser" not in driver["securityContext"]
    with pytest.raises(InvalidSpec, match="restartPolicy"):
        made({"spec": {"restartPolicy": {"type": "Always"}}})


def test_tandem_dev_reads_it_back() -> None:
    body = made()
    assert is_pool(body)
    assert not serves(body)
    request = request_of(body, "job", {"A": "b"})
    assert (request.app, request.input_bytes) == (POOL_APP, SHORT_JOB_BYTES)
    assert dict(request.environ) == {"A": "b"}
    assert read_config(request.request) == CONFIG
    body["spec"]["arguments"] = ["--request", "{}"]
    with pytest.raises(InvalidApplication, match="Field required"):
        request_of(body, "job", {})


def test_each_slot_is_a_fair_pool_with_a_core_of_its_own() -> None:
    pools = ElementTree.fromstring(_allocation(3)).findall("pool")
    assert [pool.get("name") for pool in pools] == ["slot-0", "slot-1", "slot-2"]
    assert {pool.findtext("minShare") for pool in pools} == {"1"}


def test_a_withdrawn_job_answers_no_more(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path / "t")
    store, snapshot = lake.store, lake.log.snapshot()
    inputs = input_files(store, snapshot)
    bins = (JobBin(run=0, inputs=tuple(range(len(inputs)))),)
    opened = control(
        store, snapshot, RewriteJob(inputs=inputs, bins=bins, target_file_size=1 << 20)
    )
    withdrawn = threading.Event()
    pooled = PooledControl(opened.spec, opened.store, withdrawn)
    assert not pooled.is_done()
    withdrawn.set()
    assert pooled.is_done()
    answer = JobResult(operation_id=opened.spec.operation_id, attempt=opened.spec.attempt)
    assert not pooled.publish(answer)
    pooled.fail(InvalidSpec("not written"))
    assert not list(store.list(pooled.path("rounds")))
    withdrawn.clear()
    assert pooled.publish(answer)


def test_a_job_that_is_not_there_fails_by_itself(tmp_path: Path) -> None:
    class Context:
        def setJobGroup(self, *_: Any, **__: Any) -> None: ...

        def setLocalProperty(self, *_: Any) -> None: ...

    jobs = PooledJobs(CONFIG)
    jobs._context = Context()  # type: ignore[assignment]
    ended: list[Outcome] = []
    done = threading.Event()

    def on_end(outcome: Outcome) -> None:
        ended.append(outcome)
        done.set()

    odd = PooledJob(app="rewrite", location=tmp_path.as_uri(), spec="job.json", posted_ms=0)
    jobs.begin("odd", odd, 0, on_end)
    assert done.wait(120)
    (outcome,) = ended
    assert outcome.end.code == 1
    assert "no such object" in outcome.end.message
    assert not outcome.taints
