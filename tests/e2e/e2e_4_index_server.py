"""An IndexServer with TLS and an executor: it answers what scans find, a token of another namespace
learns nothing, a lost executor costs no answer, and nothing is left of it.

These tests go on with the same server, in this order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

from e2e import install
from e2e.figures import MIB, Figures
from e2e.install import LAKE, OTHER
from e2e.kube_api import Json, condition, until
from e2e.lake import APPLICATIONS, Applied, Lake
from e2e.readers import OWN_TOKEN, Reader, certificate
from e2e.target import Target

TABLE, ABSENT, SERVER = "orders", "absent", "lake"
LOADS, ROWS, ROW_GROUP = 3, 1_000_000, 100_000
LOOKED_INTO = 8 << 20
"""Files of so many bytes are narrowed to row groups."""
ONE_KEY = "k = 1234567"
ASKED: Mapping[str, pc.Expression] = {
    "": pc.scalar(True),
    ONE_KEY: pc.field("k") == 1_234_567,
    "k < 1500000": pc.field("k") < 1_500_000,
    "v > 100": pc.field("v") > 100,
    "k > 3000000": pc.field("k") > 3_000_000,
}
"""Conditions that the log decides, row groups, rows alone, or that leave nothing."""
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{LAKE}/endpointslices"
SLOW_S = 600.0
"""For starts of pods beside much other work."""


@dataclass(frozen=True)
class Served:
    """A server of one table, and who asks it.

    Attributes:
        before: what was in the namespace when there was no server.
    """

    lake: Lake
    server: Applied
    reader: Reader
    stranger: Reader
    before: frozenset[str]

    def scanned(self) -> Json:
        """What two readers of the whole table find for all conditions."""
        ours, theirs = (numbers(rows) for rows in self.lake.read_both(TABLE))
        assert ours == theirs
        return ours

    def answered(self) -> Json:
        """The same, as the server's reader counts and reads."""
        return answer_of(self.reader.ask(*ASKED))

    def narrows(self) -> str | None:
        """The id of the executor by which a question about one key needs one row group or few;
        None as long as none has looked into the file."""
        found = self.reader.ask(ONE_KEY, held=True)
        if "error" in found or found["of"][ONE_KEY]["narrowed"] != 1:
            return None
        holding = [each["id"] for each in found["executors"] if each["shards"]]
        return str(holding[0]) if holding else None

    def executor(self) -> str | None:
        """The name of the executor's pod, if it runs."""
        application = self.server.read().get("status", {}).get("application")
        running = [
            pod["metadata"]["name"]
            for pod in self.lake.target.kube.pods(LAKE, "spark-role=executor")
            if pod["metadata"]["labels"].get("sparkoperator.k8s.io/app-name") == application
            and pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return str(running[0]) if running else None

    def driver(self) -> Json:
        """The driver's pod, if it runs; empty otherwise."""
        application = self.server.read().get("status", {}).get("application")
        for pod in self.lake.target.kube.pods(LAKE, "spark-role=driver"):
            if (
                pod["metadata"]["name"] == f"{application}-driver"
                and pod["status"].get("phase") == "Running"
                and "deletionTimestamp" not in pod["metadata"]
            ):
                return pod
        return {}

    def behind(self) -> list[str]:
        """The pods to which its Service leads."""
        slices = self.lake.target.kube.items(
            f"{SLICES}?labelSelector=kubernetes.io/service-name={SERVER}-index"
        )
        return [end["targetRef"]["name"] for each in slices for end in each["endpoints"] or ()]

    def is_ready(self) -> bool:
        found = self.server.read()
        ready = condition(found, "Ready").get("status") == "True"
        return ready and found["status"].get("executors") == {"desired": 1, "ready": 1}


def answer_of(found: Json) -> Json:
    """Condition → how many rows, twice, and the sum of their keys, by what a reader's pod says."""
    assert "error" not in found, found
    return {
        where: (each["count"], each["rows"], each["sum"]) for where, each in found["of"].items()
    }


def numbers(rows: pa.Table) -> Json:
    """Rows by the conditions: how many, twice, and the sum of their keys."""
    found = {where: rows.filter(wanted)["k"] for where, wanted in ASKED.items()}
    return {where: (len(keys), len(keys), pc.sum(keys).as_py()) for where, keys in found.items()}


def memory(cluster: Target, pod: str) -> str:
    """What the programs of a pod hold (RSS)."""
    command = ("sh", "-c", "cat /proc/[0-9]*/status")
    statuses = cluster.kube("exec", "-n", LAKE, pod, "--", *command)
    held: dict[str, int] = {}
    for status in statuses.split("Name:")[1:]:
        lines = status.splitlines()
        for line in lines:
            if line.startswith("VmRSS:"):
                name = lines[0].strip()
                held[name] = held.get(name, 0) + int(line.split()[1]) * 1024
    large = {name: size // MIB for name, size in held.items() if size > 16 * MIB}
    return ", ".join(f"{name} {size} MiB" for name, size in sorted(large.items()))


def objects(cluster: Target) -> frozenset[str]:
    """All that a server could leave behind: paths of lists, and names."""
    core = ("pods", "services", "endpoints", "configmaps", "secrets", "persistentvolumeclaims")
    paths = [f"/api/v1/namespaces/{LAKE}/{kind}" for kind in core]
    paths += [APPLICATIONS, SLICES]
    return frozenset(
        f"{path.rsplit('/', 1)[1]}/{each['metadata']['name']}"
        for path in paths
        for each in cluster.kube.items(path)
    )


def write(table: Path) -> Path:
    """Three loads of ascending keys, with values that cannot be compressed."""
    some = np.random.default_rng(7)
    for load in range(LOADS):
        keys = np.arange(load * ROWS, (load + 1) * ROWS)
        rows = pa.table({"k": keys, "v": some.integers(-(2**62), 2**62, ROWS)})
        write_deltalake(
            str(table),
            rows,
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"} if not load else None,
            writer_properties=WriterProperties(max_row_group_size=ROW_GROUP),
        )
    sizes = pa.table(DeltaTable(str(table)).get_add_actions())["size_bytes"].to_pylist()
    assert len(sizes) == LOADS
    assert min(sizes) > LOOKED_INTO
    return table


@pytest.fixture(scope="module")
def served(
    cluster: Target, lake: Lake, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    if not cluster.kube.pods(install.SYSTEM, install.OPERATOR):
        install.tandem(cluster)
    cluster.kube.rolled_out(install.SYSTEM, "deployment/tandem-operator")
    folder = tmp_path_factory.mktemp("index")
    lake.upload(write(folder / "table"), TABLE)
    lake.adopt(TABLE)
    certificate(cluster, SERVER, folder)
    reader = Reader(cluster, LAKE, "reports", SERVER, TABLE)
    stranger = Reader(cluster, OTHER, "stranger", SERVER, TABLE)
    for each in (reader, stranger):
        each.start()
    before = objects(cluster)
    wanted: Json = {
        "tables": {"names": [TABLE]},
        "executors": 1,
        "memory": "128Mi",
        "disk": "1Gi",
    }
    [server] = lake.apply(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "IndexServer",
            "metadata": {"name": SERVER},
            "spec": wanted,
        }
    )
    yield Served(lake, server, reader, stranger, before)
    if server.read():
        server.delete()
    for each in (reader, stranger):
        each.remove()
    cluster.kube("delete", "secret", f"{SERVER}-index-tls", "-n", LAKE)
    lake.nothing_is_left_behind()


def test_an_index_server_answers_what_scans_find(served: Served, figures: Figures) -> None:
    """With its certificate and executor, first by the log alone, then by row groups."""
    began = time.monotonic()
    until(served.is_ready, served.server.described, within_s=SLOW_S)
    figures.fact("index server, applied to ready", f"{time.monotonic() - began:.0f} s")
    scanned = served.scanned()
    assert served.answered() == scanned
    until(served.narrows, served.server.described, within_s=SLOW_S)
    assert served.answered() == scanned
    found = served.server.read()["status"]
    assert served.behind() == [f"{found['application']}-driver"]
    for role, pod in (
        ("driver", f"{found['application']}-driver"),
        ("executor", until(served.executor, served.server.described)),
    ):
        figures.fact(f"index server, its {role}'s pod", memory(served.lake.target, pod))
    assert found["endpoint"] == f"grpc+tls://{SERVER}-index.{LAKE}.svc:8815"
    assert [(each["name"], each["version"]) for each in found["tables"]] == [(TABLE, LOADS - 1)]


def test_a_token_of_another_namespace_cannot_tell_whether_a_table_exists(served: Served) -> None:
    """Its account may read the index of its own namespace. A token for the API server is no better,
    also of who may ask."""
    refused = served.stranger.refused()
    assert served.stranger.refused(table=ABSENT) == refused
    assert served.stranger.refused(held=True) == refused
    assert served.reader.refused(token=OWN_TOKEN) == refused
    assert served.reader.refused(table=ABSENT, token=OWN_TOKEN) == refused
    assert served.reader.ask("", table=ABSENT)["error"]["kind"] == "ReferenceNotFound"


def test_a_lost_executor_pod_costs_no_answer(served: Served, figures: Figures) -> None:
    """All answers are right until its successor narrows questions again, and after a commit."""
    scanned = served.scanned()
    id_ = until(served.narrows, served.server.described, within_s=SLOW_S)
    pod = until(served.executor, served.server.described, within_s=SLOW_S)
    served.lake.target.kube("delete", "pod", pod, "-n", LAKE, "--force", "--grace-period=0")
    began, answers = time.monotonic(), 0

    def replaced() -> bool:
        nonlocal answers
        assert served.answered() == scanned
        answers += len(ASKED)
        return served.narrows() not in {None, id_}

    until(replaced, served.server.described, within_s=SLOW_S)
    took = time.monotonic() - began
    assert until(served.executor, served.server.described, within_s=SLOW_S) != pod
    until(served.is_ready, served.server.described, within_s=SLOW_S)
    figures.fact(
        "index server, its executor's pod deleted",
        f"{took:.0f} s until the next one holds row groups; {answers} answers meanwhile, all right",
    )

    [sevens] = served.lake.apply(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableUpdate",
            "metadata": {"name": "orders-sevens"},
            "spec": {"tableRef": {"name": TABLE}, "delete": {"where": "k % 7 = 0"}},
        }
    )
    sevens.succeeded(within_s=SLOW_S)
    after = served.answered()
    assert after == served.scanned() != scanned
    sevens.delete()


class Asker(threading.Thread):
    """Asks as readers do until it is stopped."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.stop = threading.Event()
        self._reader = reader
        self.answers: list[Json] = []
        self.embedded = 0
        self.failure = ""

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                found = self._reader.ask(*ASKED, fallback=True)
                self.answers.append(answer_of(found))
            except Exception as error:  # noqa: BLE001 - of a thread; the test shows it
                self.failure = repr(error)[:1_000]
                return
            self.embedded += found["embedded"]


def test_a_lost_driver_pod_costs_no_answer(served: Served, figures: Figures) -> None:
    """In the middle of questions: their own processes answer until the next driver does. Without
    a fallback, the error says why."""
    scanned = served.scanned()
    until(served.narrows, served.server.described, within_s=SLOW_S)
    lost = until(served.driver, served.server.described, within_s=SLOW_S)["metadata"]
    askers = [Asker(served.reader) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        until(lambda: all(each.answers or each.failure for each in askers), lambda: "no answer",
              within_s=SLOW_S)  # fmt: skip
        served.lake.target.kube(
            "delete", "pod", lost["name"], "-n", LAKE, "--force", "--grace-period=0"
        )
        began = time.monotonic()
        refused: set[str] = set()

        def replaced() -> bool:
            assert [each.failure for each in askers] == ["", ""]
            # Else it waits for the next driver.
            found = served.reader.ask("", brief=True)
            if "error" in found:
                refused.add(found["error"]["kind"])
                return False
            assert found["of"][""]["count"] == scanned[""][0]
            driver = served.driver()
            return bool(driver) and driver["metadata"]["uid"] != lost["uid"]

        until(replaced, served.server.described, within_s=SLOW_S)
        took = time.monotonic() - began
        before = [len(each.answers) for each in askers]
        until(
            lambda: all(
                len(each.answers) > number or each.failure
                for each, number in zip(askers, before, strict=True)
            ),
            lambda: "no further answer",
            within_s=SLOW_S,
        )
    finally:
        for asker in askers:
            asker.stop.set()
        for asker in askers:
            asker.join()
    assert [each.failure for each in askers] == ["", ""]
    answers = [answer for each in askers for answer in each.answers]
    assert all(answer == scanned for answer in answers)
    assert sum(each.embedded for each in askers) > 0, "no question came while it was away"
    assert refused == {"Unreachable"}
    # The next one has its executor again.
    until(served.narrows, served.server.described, within_s=SLOW_S)
    until(served.is_ready, served.server.described, within_s=SLOW_S)
    assert served.answered() == scanned
    assert served.behind() == [lost["name"]]
    figures.fact(
        "index server, its driver's pod deleted",
        f"{took:.0f} s until the next one answers; {len(ASKED) * len(answers)} answers meanwhile, "
        "all right",
    )


def test_a_deleted_index_server_leaves_nothing(served: Served) -> None:
    cluster = served.lake.target
    assert objects(cluster) - served.before
    served.server.delete()
    until(
        lambda: objects(cluster) <= served.before,
        lambda: sorted(objects(cluster) - served.before),
        within_s=SLOW_S,
    )
