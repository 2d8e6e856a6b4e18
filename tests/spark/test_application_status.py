"""What a SparkApplication and its driver's pod say: every state, every way to fail."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import OutOfMemory, Reason
from tandem.jobs.runner import JobPhase
from tandem.spark.application.port import STATES, classify, needs_pod
from tandem.spark.runtime.control import translate
from tandem.spec.common import LOG_ANNOTATION

Json = dict[str, Any]

CREATED = "2026-01-01T00:00:00Z"
CREATED_MS = 1_767_225_600_000


def application(state: str, message: str = "", **annotations: str) -> Json:
    return {
        "metadata": {"name": "job-1", "namespace": "lake", "uid": "u1", "annotations": annotations},
        "status": {
            "applicationState": {"state": state, "errorMessage": message},
            "driverInfo": {"podName": "job-1-driver"},
        },
    }


def pod(phase: str, *, uid: str = "u1", conditions: list[Json] | None = None, **more: Json) -> Json:
    container = {"name": "spark-kubernetes-driver", **({"state": more} if more else {})}
    return {
        "metadata": {"ownerReferences": [{"uid": uid}], "creationTimestamp": CREATED},
        "status": {
            "phase": phase,
            "containerStatuses": [container],
            "conditions": conditions or [],
        },
    }


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"exitCode": code, "reason": reason, "message": message}


def waiting(reason: str, message: str = "") -> Json:
    return {"reason": reason, "message": message}


# States

EXPECTED = {
    "": JobPhase.STARTING,
    "SUBMITTED": JobPhase.STARTING,
    "RUNNING": JobPhase.RUNNING,
    "SUCCEEDING": JobPhase.RUNNING,  # not the end yet
    "COMPLETED": JobPhase.ENDED,
    "FAILING": JobPhase.RUNNING,
    "FAILED": JobPhase.FAILED,
    "SUBMISSION_FAILED": JobPhase.FAILED,
    "PENDING_RERUN": JobPhase.STARTING,
    "INVALIDATING": JobPhase.STARTING,
    "SUSPENDING": JobPhase.STARTING,
    "SUSPENDED": JobPhase.STARTING,
    "RESUMING": JobPhase.STARTING,
    "UNKNOWN": JobPhase.RUNNING,
}


def test_all_states_of_the_spark_operator_are_known() -> None:
    assert EXPECTED.keys() == STATES.keys()


@pytest.mark.parametrize("state", EXPECTED)
def test_states_of_the_spark_operator_map_to_phases(state: str) -> None:
    assert classify(application(state), None).phase is EXPECTED[state]


def test_an_unknown_state_is_waited_for() -> None:
    found = classify(application("DREAMING"), None)
    assert found.phase is JobPhase.RUNNING
    assert "DREAMING" in found.message


def test_an_application_without_status_has_not_been_seen_yet() -> None:
    assert classify({"metadata": {"name": "job-1"}}, None).phase is JobPhase.STARTING


def test_an_application_that_is_gone() -> None:
    found = classify(None, None)
    assert (found.phase, found.reason) == (JobPhase.UNKNOWN, Reason.JOB_VANISHED)


# Kinds of failures


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("driver container failed with ExitCode: 1, Reason: Error", Reason.JOB_FAILED),
        ("driver container failed with ExitCode: 137, Reason: OOMKilled", Reason.OUT_OF_MEMORY),
        ("driver container failed with ExitCode: 52, Reason: Error", Reason.OUT_OF_MEMORY),
        ("driver container status missing", Reason.JOB_FAILED),
        ("driver pod not found", Reason.JOB_VANISHED),
        (
            "failed to submit spark application: failed to run spark-submit: no such image",
            Reason.SUBMISSION_FAILED,
        ),
        ("", Reason.JOB_FAILED),
    ],
)
def test_failed_and_the_pod_is_gone(message: str, reason: Reason) -> None:
    found = classify(application("FAILED", message), None)
    assert (found.phase, found.reason) == (JobPhase.FAILED, reason)
    assert message in found.message
    assert found.message


@pytest.mark.parametrize(
    ("driver", "reason", "expected_text"),
    [
        (
            pod("Failed", terminated=ended(1, message="one\ntandem: no such column\n")),
            Reason.JOB_FAILED,
            "exit code 1 (Error): tandem: no such column",
        ),
        (pod("Failed", terminated=ended(137, "OOMKilled")), Reason.OUT_OF_MEMORY, "OOMKilled"),
        (pod("Failed", terminated=ended(52)), Reason.OUT_OF_MEMORY, "52"),
        (
            pod("Failed", terminated=ended(1, message="java.lang.OutOfMemoryError: Java heap")),
            Reason.OUT_OF_MEMORY,
            "Java heap",
        ),
        (pod("Failed", terminated=ended(137)), Reason.JOB_FAILED, "killed, exit code 137"),
        (pod("Failed", terminated=ended(143)), Reason.JOB_FAILED, "killed, exit code 143"),
        (pod("Failed"), Reason.JOB_FAILED, "said"),
        (
            pod(
                "Failed",
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "preempting to accommodate a higher priority pod",
                    }
                ],
                terminated=ended(143),
            ),
            Reason.DRIVER_EVICTED,
            "PreemptionByScheduler",
        ),
        (
            {
                "metadata": {"ownerReferences": [{"uid": "u1"}]},
                "status": {
                    "phase": "Failed",
                    "reason": "Evicted",
                    "message": "The node was low on resource: ephemeral-storage.",
                },
            },
            Reason.DRIVER_EVICTED,
            "ephemeral-storage",
        ),
    ],
)
def test_failed_and_the_pod_says_why(driver: Json, reason: Reason, expected_text: str) -> None:
    found = classify(application("FAILED", "said"), driver)
    assert (found.phase, found.reason) == (JobPhase.FAILED, reason)
    assert expected_text in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize("state", ["FAILED", "SUBMISSION_FAILED"])
def test_a_false_failure_of_the_spark_operator(state: str) -> None:
    """Issues 2573 and 2788 of the Spark operator: it submits again after its own restart, finds
    the driver there, and calls the application failed."""
    body = application(state, "failed to submit spark application: driver pod already exist")
    assert needs_pod(body)
    running = classify(body, pod("Running", running={"startedAt": CREATED}))
    assert running.phase is JobPhase.RUNNING
    assert "already exist" in running.message
    assert classify(body, pod("Pending")).phase is JobPhase.STARTING
    assert classify(body, pod("Succeeded", terminated=ended(0))).phase is JobPhase.ENDED
    assert classify(body, pod("Running", terminated=ended(0))).phase is JobPhase.ENDED
    failed = classify(body, pod("Failed", terminated=ended(1)))
    assert (failed.phase, failed.reason) == (JobPhase.FAILED, Reason.JOB_FAILED)
    # A pod of that name which an earlier application left says nothing of this one.
    other = classify(body, pod("Running", uid="u0"))
    assert (other.phase, other.reason) == (JobPhase.FAILED, Reason.SUBMISSION_FAILED)


def test_the_exception_in_the_output_of_spark_submit_is_reported() -> None:
    """As the real one words a right that is missing: warnings first, then the cause."""
    body = application(
        "FAILED",
        "failed to submit spark application: failed to run spark-submit: WARNING: Using incubator"
        " modules: jdk.incubator.vector\n" + "26/11/21 21:20:15 INFO SslContext: of no use\n" * 20
        + 'Exception in thread "main" a.b.KubernetesClientException: pods is forbidden: User'
        ' "system:serviceaccount:spark:it" cannot patch\n\tat a.b.c\nCaused by: x\n',
    )  # fmt: skip
    found = classify(body, None)
    assert found.reason == Reason.SUBMISSION_FAILED
    assert found.message == (
        "failed to submit spark application: a.b.KubernetesClientException: pods is forbidden:"
        ' User "system:serviceaccount:spark:it" cannot patch'
    )


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
    "lastTransitionTime": CREATED,
}


@pytest.mark.parametrize(
    ("driver", "reason", "limit_s"),
    [
        (pod("Pending", waiting=waiting("ErrImagePull")), Reason.IMAGE_PULL_FAILED, 300),
        (
            pod("Pending", waiting=waiting("ImagePullBackOff", 'Back-off pulling image "x"')),
            Reason.IMAGE_PULL_FAILED,
            300,
        ),
        (
            pod("Pending", waiting=waiting("CreateContainerConfigError", 'secret "x" not found')),
            Reason.JOB_NOT_STARTED,
            300,
        ),
        (pod("Pending", conditions=[UNSCHEDULABLE]), Reason.UNSCHEDULABLE, 1_800),
    ],
)
def test_a_hanging_driver_is_given_up_after_a_timeout(
    driver: Json, reason: Reason, limit_s: int
) -> None:
    submitted = application("SUBMITTED")
    assert needs_pod(submitted)
    soon = classify(submitted, driver, now_ms=CREATED_MS + limit_s * 1000)
    assert (soon.phase, soon.reason) == (JobPhase.STARTING, reason)
    late = classify(submitted, driver, now_ms=CREATED_MS + limit_s * 1000 + 1)
    assert (late.phase, late.reason, late.transient) == (JobPhase.FAILED, reason, True)
    assert late.message == soon.message


def test_a_pod_that_a_failed_submission_left_is_given_up_after_a_timeout() -> None:
    """It waits for a ConfigMap that spark-submit makes after the pod, and did not make."""
    cause = "failed to submit spark application: failed to run spark-submit: timed out"
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": CREATED}
    driver = pod("Pending", conditions=[scheduled], waiting=waiting("ContainerCreating"))
    for state in ("FAILED", "SUBMISSION_FAILED"):
        body = application(state, cause)
        soon = classify(body, driver, now_ms=CREATED_MS + 300_000)
        assert (soon.phase, soon.reason) == (JobPhase.STARTING, None)
        late = classify(body, driver, now_ms=CREATED_MS + 300_001)
        assert (late.phase, late.reason) == (JobPhase.FAILED, Reason.SUBMISSION_FAILED)
        assert late.transient
        assert late.message == f"its driver's pod does not start: {cause}"
    # What has a limit of its own keeps it.
    unschedulable = pod("Pending", conditions=[UNSCHEDULABLE])
    found = classify(application("FAILED", cause), unschedulable, now_ms=CREATED_MS + 300_001)
    assert (found.phase, found.reason) == (JobPhase.STARTING, Reason.UNSCHEDULABLE)


@pytest.mark.parametrize("why", ["InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_never_comes_fails_at_once(why: str) -> None:
    found = classify(application("SUBMITTED"), pod("Pending", waiting=waiting(why)))
    assert (found.phase, found.reason) == (JobPhase.FAILED, Reason.IMAGE_PULL_FAILED)
    assert not found.transient


def test_a_driver_that_is_being_created_is_no_failure() -> None:
    driver = pod("Pending", waiting=waiting("ContainerCreating"))
    found = classify(application("SUBMITTED"), driver, now_ms=CREATED_MS + 10**9)
    assert (found.phase, found.reason) == (JobPhase.STARTING, None)


# Logs


def test_where_the_log_is() -> None:
    wanted = "kubectl logs -n lake job-1-driver -c spark-kubernetes-driver"
    assert classify(application("FAILED"), None).log == wanted
    assert classify(application("RUNNING"), None).log == wanted
    local = application("FAILED", **{LOG_ANNOTATION: "/logs/job-1.log"})
    assert classify(local, None).log == "/logs/job-1.log"
    unseen = {"metadata": {"name": "job-1", "namespace": "lake"}}
    assert classify(unseen, None).log == ""


# Executors: their loss reaches us in the text of Spark's error


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure: … ExecutorLostFailure (executor 1 exited caused by one "
        "of the running tasks) Reason: \nThe executor with id 1 exited with exit code 137(SIGKILL, "
        "possible container OOM).\n\nThe API gave the following container statuses: …",
        "java.lang.OutOfMemoryError: Java heap space",
        "pyarrow.lib.ArrowMemoryError: malloc of size 1073741824 failed",
        "MemoryError",
    ],
)
def test_memory_that_an_executor_lacked(text: str) -> None:
    error = translate(RuntimeError(text))
    assert isinstance(error, OutOfMemory)
    assert error.found in text
    assert "memoryOverhead" in error.remedy


def test_memory_that_the_driver_lacked() -> None:
    assert translate(MemoryError()).reason is Reason.OUT_OF_MEMORY


def test_other_executor_losses_are_not_attributed_to_memory() -> None:
    assert translate(RuntimeError("executor 1 exited with exit code 1")).reason is Reason.JOB_FAILED
