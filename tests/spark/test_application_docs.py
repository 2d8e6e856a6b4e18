"""The tables of `docs/spark-applications.md` are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tandem.errors import Reason
from tandem.jobs.runner import JobRequest
from tandem.spark.application.manifest import (
    BYTES_PER_SLOT,
    DRIVER_ALONE_BYTES,
    GIB,
    JOB_EXECUTOR_CORES,
    LARGE_BYTES,
    KubeflowApplications,
    job_sizes,
)
from tandem.spark.application.port import (
    STATES,
    ApplicationSettings,
    DriverTimeouts,
    JobOwner,
    JobPlacement,
)
from tandem.spark.application.template import OURS
from tandem.spark.runtime.session import session_conf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-applications.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_states() -> None:
    written = {
        state.replace("(none)", ""): (job, meaning)
        for state, job, meaning in table("What a state means")
    }
    assert written == {state: (str(phase), meaning) for state, (phase, meaning) in STATES.items()}


def test_reserved_template_paths() -> None:
    pinned = {f"spec.sparkConf.{key}" for key in session_conf()}
    page = (PAGE.parent / "template-policy.md").read_text()
    reserved = page.split("## Reserved\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in reserved.splitlines() if line.startswith("| `")]
    written = [path for row in rows for path in re.findall(r"`([^`]+)`", row)]
    assert sorted(written) == sorted(path for path in OURS if path not in pinned)


def test_sizes() -> None:
    rows = table("Sizes")
    edges = [0, DRIVER_ALONE_BYTES, LARGE_BYTES]
    assert (edges[1], edges[2]) == (GIB, 100 * GIB)
    for (_, driver, _), input_bytes in zip(rows, edges, strict=True):
        pod = job_sizes(input_bytes).driver
        cores, heap, beside = map(int, re.findall(r"\d+", driver)[:3])
        assert (cores, heap * GIB, beside * GIB) == (pod.cores, pod.heap, pod.overhead)
    executor = job_sizes(GIB).executor
    match = re.search(r"An executor has (\d) cores, (\d) GiB heap and (\d) GiB", PAGE.read_text())
    assert match is not None
    assert [int(n) for n in match.groups()] == [
        executor.cores,
        executor.heap // GIB,
        executor.overhead // GIB,
    ]
    assert BYTES_PER_SLOT * JOB_EXECUTOR_CORES == GIB  # "one per GiB"
    assert f"at most {ApplicationSettings().max_executors} " in rows[1][2]
    assert job_sizes(LARGE_BYTES - 1).executors == ApplicationSettings().max_executors


def test_reasons_and_patience() -> None:
    rows = table("Why a job failed")
    assert {reason for reason, *_ in rows} == {
        Reason.IMAGE_PULL_FAILED,
        Reason.JOB_NOT_STARTED,
        Reason.UNSCHEDULABLE,
        Reason.SUBMISSION_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.DRIVER_EVICTED,
        Reason.JOB_VANISHED,
        Reason.JOB_FAILED,
    }
    waited = {reason: after for reason, _, after, _ in rows if after.endswith(" s")}
    patience = DriverTimeouts()
    assert waited == {
        Reason.IMAGE_PULL_FAILED: f"{patience.image_pull_s} s",
        Reason.JOB_NOT_STARTED: f"{patience.container_s} s",
        Reason.UNSCHEDULABLE: f"{patience.unschedulable_s} s",
    }


def test_the_example_is_a_template() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    _, compaction = yaml.safe_load_all(block)
    template = compaction["spec"]["sparkTemplate"]
    applications = KubeflowApplications()
    applications.check(template)
    built = applications.build(
        JobRequest("tandem-x-1", "rewrite", "s3://lake/t", "job.json"),
        JobPlacement(
            JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "u"),
            "lake",
            template=template,
        ),
    )
    assert built["spec"]["executor"]["instances"] == 4
    assert built["spec"]["sparkConf"]["spark.local.dir"] == "/spill"
