"""What goes wrong in real clusters: each ends in the right rows, or in the right reason, and
leaves nothing that runs.

Tandem is installed by then: e2e_1_flights.py runs first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from e2e import install
from e2e.figures import Figures
from e2e.kube_api import Json, condition, until
from e2e.lake import Applied, Lake, compaction
from e2e.target import Target

LOADS, ROWS = 12, 2_000
LABEL = "tandem.dev/e2e"


@dataclass(frozen=True)
class Small:
    """A table of a dozen loads, adopted; `rows` are in order of their keys."""

    lake: Lake
    name: str
    rows: pa.Table

    def compact(self, name: str, template: Json | None = None, **spec: object) -> Applied:
        [applied] = self.lake.apply(compaction(f"{self.name}-{name}", self.name, template, **spec))
        return applied

    def delete_sevens(self) -> tuple[Applied, pa.Table]:
        """Delete a seventh of the rows; the rows that must be there then."""
        statement: Json = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableUpdate",
            "metadata": {"name": f"{self.name}-sevens"},
            "spec": {"tableRef": {"name": self.name}, "delete": {"where": "k % 7 = 0"}},
        }
        [applied] = self.lake.apply(statement)
        keys = pa.array([k % 7 != 0 for k in self.rows["k"].to_pylist()])
        return applied, self.rows.filter(keys)

    def has(self, rows: pa.Table) -> None:
        """Both readers find exactly these."""
        for found in self.lake.read_both(self.name):
            assert found.select(["k", "text"]).cast(rows.schema).sort_by("k").equals(rows)


@pytest.fixture
def small(lake: Lake, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Small]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-")
    keys = range(LOADS * ROWS)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "text": [f"row {k}" for k in keys]})
    target: str | DeltaTable = str(tmp_path / "table")
    for load in range(LOADS):
        write_deltalake(
            target,
            rows.slice(load * ROWS, ROWS),
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"} if not load else None,
        )
        target = DeltaTable(str(tmp_path / "table"))
    lake.upload(tmp_path / "table", name)
    lake.adopt(name)
    yield Small(lake, name, rows)
    lake.nothing_is_left_behind()


def test_executor_out_of_memory(small: Small) -> None:
    """The kernel kills it; the reason is reported, no row is lost, with more memory it succeeds."""
    tight = {
        "executor": {
            "instances": 1,
            "memory": "512m",
            "memoryOverhead": "150m",
            # All of the heap is there from the start, so that Python's workers find no room.
            "javaOptions": "-XX:+AlwaysPreTouch",
        },
        "sparkConf": {"spark.kubernetes.executor.deleteOnTermination": "false"},
    }
    tidy = small.compact("tight", tight, backoffLimit=0)
    until(lambda: _killed_for_memory(small.lake), tidy.described)
    tidy.failed("OutOfMemory")
    small.has(small.rows)
    small.compact("roomy", {"executor": {"instances": 1}}).succeeded()
    small.has(small.rows)


def test_image_cannot_be_pulled(small: Small) -> None:
    """Reported while Kubernetes retries; a deletion ends it, and nothing happened."""
    tidy = small.compact("nowhere", {"image": "registry.invalid/absent/image:1"})
    until(lambda: tidy.reason() == "ImagePullFailed", tidy.described)
    tidy.delete()
    assert tidy.read() == {}
    small.lake.nothing_is_left_behind()
    never = small.compact(
        "never", {"image": "registry.invalid/absent/image:1", "imagePullPolicy": "Never"}
    )
    never.failed("ImagePullFailed")
    small.has(small.rows)


def test_driver_unschedulable(small: Small, cluster: Target) -> None:
    """Reported while no node fits; it starts by itself when one does."""
    tidy = small.compact("choosy", {"driver": {"nodeSelector": {LABEL: "here"}}})
    until(lambda: tidy.reason() == "Unschedulable", tidy.described)
    node = cluster.some_node()
    cluster.kube("label", "node", node, f"{LABEL}=here")
    try:
        tidy.succeeded()
    finally:
        cluster.kube("label", "node", node, f"{LABEL}-")
    small.has(small.rows)


def test_operator_pod_deleted_half_way(small: Small, cluster: Target) -> None:
    """Without a word to it. The driver goes on, and the next operator takes it over."""
    tidy = small.compact("orphan")
    driver = tidy.running("driver")
    statement, rows = small.delete_sevens()
    for pod in cluster.kube.pods(install.SYSTEM, install.OPERATOR):
        name = pod["metadata"]["name"]
        cluster.kube("delete", "pod", "-n", install.SYSTEM, name, "--force", "--grace-period=0")
    for each in (tidy, statement):
        each.succeeded()
    assert tidy.read()["status"]["attempt"] == 1, tidy.described()
    assert driver["metadata"]["name"] == f"{tidy.read()['status']['application']}-driver"
    small.has(rows)


def test_node_restarted(small: Small, cluster: Target, figures: Figures) -> None:
    """All containers die at once with the node, the S3 server's and both operators' with them;
    what they were at is done when it is back."""
    tidy = small.compact("survivor")
    tidy.running("driver")
    statement, rows = small.delete_sevens()
    if cluster.node is not None:
        cluster.node.kill_node()
        cluster.node.start_node()
        until(lambda: _all_ready(cluster), "not all pods are ready again", within_s=180)
    else:
        figures.fact(
            "node restart",
            "does not apply to a cluster elsewhere; instead all pods of jobs and of Tandem, its"
            " etcd's included, were deleted at once",
        )
        for namespace in (install.LAKE, install.SYSTEM):
            cluster.kube("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
    for each in (tidy, statement):
        each.succeeded(within_s=400)
    small.has(rows)


def _killed_for_memory(lake: Lake) -> list[str]:
    """Executors' pods of which the kernel killed a container: its own word, not ours."""
    return [
        pod["metadata"]["name"]
        for pod in lake.target.kube.pods(install.LAKE, "spark-role=executor")
        for container in pod["status"].get("containerStatuses", ())
        if container.get("state", {}).get("terminated", {}).get("reason") == "OOMKilled"
    ]


def _all_ready(cluster: Target) -> bool:
    pods = [
        pod
        for namespace in (install.STORE, install.SYSTEM, install.SPARK)
        for pod in cluster.kube.pods(namespace)
    ]
    return bool(pods) and all(condition(pod, "Ready").get("status") == "True" for pod in pods)
