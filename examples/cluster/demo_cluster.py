"""The main job in Kubernetes: `kubectl apply`, and a table is compacted while its rows change.

    make demo-cluster       (which adds tools/ and examples/flights/ to the module path)
    make cluster            only the parts, until Ctrl-C

Starts a real API server, controller manager and etcd on this machine, `tandem operator` as its
own service account with the rights of `rbac.yaml`, and `tandem dev`, which runs SparkApplications
with local Spark; the jobs of this demo are small, and need none. `deltalake` writes 365 daily
loads. Then a compaction and, while its job is running, an update and a delete are applied as files.
At the end the rows must be those that DuckDB computes from the raw file, one statement after the
other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import data
from showing import (
    console,
    has_the_rows,
    load_daily,
    show_outcomes,
    show_replayed,
    show_sizes,
    verdict,
)

from cluster_access import Access, ApiRefused
from cluster_parts import ControlPlane, manifests
from cluster_processes import Part, PartFailed, built, etcd, free_ports
from tandem.cli.report import ProgressDisplay
from tandem.spec import AnyResource, OperationStatus, load
from tandem.spec.common import plural
from tandem.spec.resources import ResourceOutcome
from tandem.spec.status import ENDED, Phase

FLIGHTS = Path(data.__file__).parent
WORK = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem")) / "demo-cluster"
TANDEM = str(Path(sys.executable).with_name("tandem"))
NAMESPACE = "demo"
PATH = f"/apis/tandem.dev/v1alpha1/namespaces/{NAMESPACE}"
FILES = ("table", "compaction", "update", "delete")
PATIENCE_S = 240


@contextmanager
def cluster(folder: Path) -> Iterator[ControlPlane]:
    """API server, controllers, etcd, the operator and `tandem dev` as the Spark operator, in a new
    folder: only one process at a time may use it.

    Raises: PartFailed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as mine:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PartFailed(f"a cluster runs in {folder} already: end that one first") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with _parts(folder) as plane:
            yield plane


@contextmanager
def _parts(folder: Path) -> Iterator[ControlPlane]:
    store = etcd(folder)
    plane = ControlPlane(folder, store.endpoints[0])
    ours: list[Part] = []
    try:
        store.start()
        plane.start(manifests())
        tell(f"API server {plane.access.request('GET', '/version')['gitVersion']} and etcd run")
        health = f"127.0.0.1:{free_ports(1)[0]}"
        for name, options, is_ready in (
            (
                "operator",
                ["--etcd-endpoint", store.endpoints[0], "--health", health],
                lambda: answers(f"http://{health}/readyz"),
            ),
            ("dev", [], lambda: "SparkApplications" in (folder / "tandem-dev.log").read_text()),
        ):
            account = plane.access.of_service_account("tandem-system", f"tandem-{name}")
            kubeconfig = account.write(folder / f"{name}.kubeconfig")
            command = [TANDEM, name, "--kubeconfig", str(kubeconfig), *options]
            part = Part(f"tandem-{name}", command, folder, is_ready)
            ours.append(part)
            part.start()
            tell(f"tandem {name} runs as service account tandem-{name}")
        yield plane
    finally:
        for part in ours:
            part.terminate()
        plane.kill()
        store.kill()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Watch:
    """Shows operations while they run, and stores their states."""

    def __init__(self, access: Access, operations: list[AnyResource]) -> None:
        self._access = access
        self._operations = operations
        self.statuses: dict[str, OperationStatus] = {}

    def until(self, done: Callable[[], bool], display: ProgressDisplay) -> bool:
        """Poll until then; False after a time-out."""
        pause = threading.Event()
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for operation in self._operations:
                status = self._status(operation)
                if status is not None and status != self.statuses.get(operation.id):
                    self.statuses[operation.id] = status
                    display(operation, status)
            if done():
                return True
            pause.wait(0.3)
        return False

    def table_version(self) -> int:
        """The version in the LakeTable's status."""
        found = self._access.request("GET", f"{PATH}/laketables/flights")
        return int(found.get("status", {}).get("version", -1))

    def _status(self, operation: AnyResource) -> OperationStatus | None:
        try:
            found: Mapping[str, Any] = self._access.request(
                "GET", f"{PATH}/{plural(operation.kind_name)}/{operation.metadata.name}"
            )
        except ApiRefused as error:
            if error.status == 404:
                return None  # not applied yet
            raise
        status = found.get("status", {})
        return OperationStatus.model_validate(status) if "phase" in status else None


def apply(plane: ControlPlane, name: str, table: Path) -> None:
    """`kubectl apply` of the file, with the table's location set to `table`."""
    text = (FLIGHTS / f"{name}.yaml").read_text()
    tell(f"kubectl apply -f {name}.yaml")
    plane.kubectl(
        "apply", "-n", NAMESPACE, "-f", "-", text=text.replace(str(data.LOCATION), str(table))
    )


def tell(text: str) -> None:
    console.print(f"  {text}", highlight=False)


def get(plane: ControlPlane, kinds: str) -> None:
    console.rule(f"kubectl get {kinds}")
    console.print(plane.kubectl("get", kinds, "-n", NAMESPACE), highlight=False, markup=False)


def story(plane: ControlPlane, table: Path) -> tuple[bool, list[ResourceOutcome]]:
    """Apply everything and watch; whether all operations ended, and how."""
    _, *operations = load([FLIGHTS / f"{name}.yaml" for name in FILES])
    everything = [operation.id for operation in operations]
    compaction = everything[0]
    watch = Watch(plane.access, operations)
    plane.kubectl("create", "namespace", NAMESPACE)
    apply(plane, "table", table)
    apply(plane, "compaction", table)

    def are(names: Collection[str], phases: Collection[Phase]) -> Callable[[], bool]:
        return lambda: all(
            name in watch.statuses and watch.statuses[name].phase in phases for name in names
        )

    with ProgressDisplay() as display:
        at_work = {Phase.RUNNING, Phase.RECONCILING, *ENDED}
        ended = watch.until(are([compaction], at_work), display)
        for name in ("update", "delete"):
            apply(plane, name, table)
        ended &= watch.until(are(everything, ENDED), display)
        # The table's own status follows its log, within `--table-poll` seconds.
        newest = max((each.result.version or 0 for each in watch.statuses.values() if each.result),
                     default=0)  # fmt: skip
        watch.until(lambda: watch.table_version() >= newest, display)
    get(plane, "lake")
    return ended, [
        ResourceOutcome(operation, watch.statuses[operation.id])
        for operation in operations
        if operation.id in watch.statuses
    ]


def stay() -> int:
    """The parts alone, until Ctrl-C."""
    folder = WORK.with_name("cluster")
    try:
        with cluster(folder) as plane:
            console.rule("In another terminal")
            binaries = built("kubernetes") / "bin"
            for line in (
                f"export KUBECONFIG={plane.kubeconfig}",
                f"export PATH={binaries}:{Path(TANDEM).parent}:$PATH",
            ):
                console.print(f"  {line}", highlight=False, soft_wrap=True)
            console.print("  kubectl get lake -A        # nothing yet")
            console.rule("Ctrl-C ends it")
            threading.Event().wait()
    except PartFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("  Everything has stopped.")
    return 0


def main() -> int:
    if "--stay" in sys.argv[1:]:
        return stay()
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    original, table = WORK / "flights-before", WORK / "flights"
    console.rule("The flights of 2013, as 365 daily loads")
    raw = data.unpack(WORK)
    rows = load_daily(raw, original)
    shutil.copytree(original, table)
    answer = data.expected(raw)
    console.print(f"{rows:,} rows in {table}")

    console.rule("A cluster")
    try:
        with cluster(WORK / "parts") as plane:
            console.rule("A compaction, and rows change while it runs")
            ended, outcomes = story(plane, table)
    except PartFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1

    show_outcomes(outcomes)
    show_replayed(table)
    show_sizes(original, table)
    right = verdict(
        "every operation succeeded",
        ended and all(outcome.status.phase is Phase.SUCCEEDED for outcome in outcomes),
    )
    right &= has_the_rows(table, answer)
    console.rule()
    console.print(f"Took {time.monotonic() - began:.0f} s. Everything has stopped. Look around:")
    console.print(f"  .venv/bin/tandem history {table}", highlight=False)
    console.print(f"  less {WORK / 'parts' / 'tandem-operator.log'}", highlight=False)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
