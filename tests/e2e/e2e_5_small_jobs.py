"""Small jobs in the operator's pod: how long a small compaction takes, many tables compacted once
each, the same without the Spark operator's kind, and an operator's pod that is deleted half-way.
What takes how long is printed and gates nothing.

E2E_SMALL_TABLES: how many tables are compacted; the figure that is published is of 200.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from e2e import install
from e2e.figures import Figures
from e2e.kube_api import Json, condition, until
from e2e.lake import API, ENDED, Lake, compaction
from e2e.target import Target

TABLES = int(os.environ.get("E2E_SMALL_TABLES", "20"))
AIM_TABLES, AIM_S = 200, 180
"""So many tables in so many seconds, on two cores."""
WARM, AIM_WARM_S, AIM_COLD_S = 7, 0.6, 6
LOST = 60
"""Tables whose jobs are under way, or wait, when the operator's pod is deleted."""
LOADS, ROWS = 4, 1_000
SMALL: Json = {"small": "256Mi"}
SLOW_S = 900.0
"""For starts of pods beside much other work, and for jobs that start again one after the other."""


def write(table: Path) -> None:
    """Loads that one minor compaction makes one segment of."""
    for load in range(LOADS):
        keys = range(load * ROWS, (load + 1) * ROWS)
        rows = pa.table({"k": pa.array(keys, pa.int64()), "text": [f"row {k}" for k in keys]})
        write_deltalake(str(table), rows, mode="append")


@dataclass(frozen=True)
class Tables:
    """Small tables in one folder of the store, adopted."""

    lake: Lake
    folder: str
    names: Sequence[str]

    @classmethod
    def made(cls, lake: Lake, local: Path, folder: str, count: int) -> Tables:
        names = [f"{folder}-{number:03}" for number in range(count)]
        for name in names:
            write(local / name)
        lake.upload(local, folder)
        made = cls(lake, folder, names)
        lake.apply(*map(made.table, names))
        until(
            lambda: made.all("laketables", lambda each: is_ready(each)),
            lambda: made.odd("laketables", lambda each: is_ready(each)),
            within_s=SLOW_S,
        )
        return made

    def table(self, name: str) -> Json:
        """The LakeTable of one."""
        found = self.lake.table(f"{self.folder}/{name}")
        found["metadata"]["name"] = name
        return found

    def compact(self, names: Sequence[str]) -> float:
        """Compact each once, all with one `kubectl apply`; seconds from then until all have
        ended."""
        began = time.monotonic()
        self.apply(names)
        self.await_ends()
        return time.monotonic() - began

    def apply(self, names: Sequence[str]) -> None:
        self.lake.apply(*(compaction(name, name) for name in names))

    def await_ends(self) -> None:
        """Of those that were applied."""
        until(
            lambda: all(phase(each) in ENDED for each in self.found("tablecompactions")),
            lambda: self.odd("tablecompactions", lambda each: phase(each) in ENDED),
            within_s=SLOW_S,
        )

    def found(self, resource: str) -> list[Json]:
        wanted = frozenset(self.names)
        listed = self.lake.target.kube.items(f"{API}/{resource}")
        return [each for each in listed if each["metadata"]["name"] in wanted]

    def all(self, resource: str, test: Callable[[Json], bool]) -> bool:
        found = self.found(resource)
        return len(found) == len(self.names) and all(map(test, found))

    def odd(self, resource: str, test: Callable[[Json], bool]) -> list[Json]:
        """What people would look at: the statuses of those that are not as wanted."""
        return [
            {"name": each["metadata"]["name"], **each.get("status", {})}
            for each in self.found(resource)
            if not test(each)
        ][:5]

    def attempts(self) -> list[int]:
        """By which attempt each succeeded."""
        found = self.found("tablecompactions")
        assert all(phase(each) == "Succeeded" for each in found), self.odd(
            "tablecompactions", lambda each: phase(each) == "Succeeded"
        )
        assert {each["status"]["result"]["filesRemoved"] for each in found} == {LOADS}
        return [int(each["status"]["attempt"]) for each in found]

    def applications(self) -> list[Json]:
        """The statuses of those that do the job of one of these compactions alone."""
        uids = {each["metadata"]["uid"] for each in self.found("tablecompactions")}
        return [
            each.get("status", {})
            for each in self.lake.applications()
            for owner in each["metadata"].get("ownerReferences", ())
            if owner["uid"] in uids
        ]

    def has_all_rows(self, *names: str) -> None:
        """Both readers find exactly what was loaded, in each of these."""
        keys = list(range(LOADS * ROWS))
        for name in names:
            for found in self.lake.read_both(f"{self.folder}/{name}"):
                assert sorted(found["k"].to_pylist()) == keys


def is_ready(table: Json) -> bool:
    return bool(condition(table, "Ready").get("status") == "True")


def phase(operation: Json) -> str:
    return str(operation.get("status", {}).get("phase", ""))


@pytest.fixture(scope="module")
def small(cluster: Target, lake: Lake) -> Iterator[Lake]:
    """Tandem as it is installed by default: the others' jobs are all SparkApplications."""
    if cluster.kube.pods(install.SYSTEM, install.OPERATOR):
        install.remove_tandem(cluster)
    install.tandem(cluster, SMALL)
    cluster.kube.rolled_out(install.SYSTEM, "deployment/tandem-operator")
    yield lake
    lake.nothing_is_left_behind()


def test_small_compactions(small: Lake, figures: Figures, tmp_path: Path) -> None:
    """The first begins a process, the others find it."""
    tables = Tables.made(small, tmp_path, "small-warm", WARM + 1)
    cold, *warm = (tables.compact([name]) for name in tables.names)
    figures.fact(
        "a small compaction, applied to Succeeded",
        f"the first one {cold:.1f} s (≤ {AIM_COLD_S}); median of {len(warm)} more"
        f" {statistics.median(warm):.1f} s, {min(warm):.1f} to {max(warm):.1f} (≤ {AIM_WARM_S})",
    )
    assert set(tables.attempts()) == {1}
    assert not tables.applications()
    tables.has_all_rows(tables.names[0], tables.names[-1])


def test_many_tables_compacted_once_each(small: Lake, figures: Figures, tmp_path: Path) -> None:
    tables = Tables.made(small, tmp_path, "small-many", TABLES)
    seconds = tables.compact(tables.names)
    figures.fact(
        f"small jobs, {TABLES} tables compacted once each",
        f"{seconds:.0f} s, {TABLES / seconds:.2f} a second (≤ {AIM_S} s for {AIM_TABLES})",
    )
    assert len(tables.attempts()) == TABLES
    assert not tables.applications()
    tables.has_all_rows(tables.names[0], tables.names[TABLES // 2], tables.names[-1])


def test_an_operator_that_is_deleted_half_way_loses_no_operation(
    small: Lake, figures: Figures, tmp_path: Path
) -> None:
    """With its processes, while jobs run and wait. The next one begins them again."""
    tables = Tables.made(small, tmp_path, "small-lost", LOST)
    began = time.monotonic()
    tables.apply(tables.names)
    until(
        lambda: any(phase(each) == "Running" for each in tables.found("tablecompactions")),
        lambda: tables.odd("tablecompactions", lambda _: False),
    )
    kube = small.target.kube
    for pod in kube.pods(install.SYSTEM, install.OPERATOR):
        name = str(pod["metadata"]["name"])
        kube("delete", "pod", name, "-n", install.SYSTEM, "--force", "--grace-period=0")
    left = sum(phase(each) not in ENDED for each in tables.found("tablecompactions"))
    assert left, "all compactions were over before the operator died"
    tables.await_ends()
    attempts = tables.attempts()
    figures.fact(
        "small jobs, the operator's pod deleted half-way",
        f"{left} of {LOST} compactions were left; all succeeded {time.monotonic() - began:.0f} s"
        f" after they were applied, {sum(each > 1 for each in attempts)} by a second attempt",
    )
    tables.has_all_rows(*tables.names)


def test_each_tenant_with_a_release_of_its_own(small: Lake, tmp_path: Path) -> None:
    """Both do their work, and neither operator has a right in the other's namespace."""
    kube, folder = small.target.kube, "tenants"
    write(tmp_path / "theirs")
    small.upload(tmp_path, folder)
    install.second_release(small.target, SMALL)
    kube.rolled_out(install.OTHERS, f"deployment/{install.OTHERS}-operator")
    kube.apply(
        install.secret("lake", install.OTHER, small.environ),
        *(
            {**each, "metadata": {"name": "theirs", "namespace": install.OTHER}}
            for each in (small.table(f"{folder}/theirs"), compaction("theirs", "theirs"))
        ),
    )
    path = API.replace(install.LAKE, install.OTHER) + "/tablecompactions/theirs"
    until(lambda: phase(kube.get(path) or {}) == "Succeeded", lambda: kube.get(path))
    tables = Tables.made(small, tmp_path, "ours", 1)
    tables.compact(tables.names)
    assert tables.attempts() == [1]

    tenants = (
        ("tandem", install.SYSTEM, install.LAKE),
        (install.OTHERS, install.OTHERS, install.OTHER),
    )
    for release, namespace, own in tenants:
        for served in (install.LAKE, install.OTHER):
            asked = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": f"system:serviceaccount:{namespace}:{release}-operator",
                    "resourceAttributes": {
                        "namespace": served,
                        "verb": "get",
                        "resource": "secrets",
                    },
                },
            }
            answer = kube(
                *("create", "-f", "-", "-o", "jsonpath={.status.allowed}"), text=json.dumps(asked)
            )
            assert (answer == "true") is (served == own), (release, served)
    small.target.run_helm("uninstall", install.OTHERS, "--namespace", install.OTHERS, "--wait")
