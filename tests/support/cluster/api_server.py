"""A real API server, controller manager and etcd for tests: see `tools/cluster_parts.py`.

`shared_cluster` is one for all tests and workers of a run; nothing starts before the first test
asks. Keep apart by namespace and by lock prefix. A test that hurts the parts starts its own:

    with own_cluster() as cluster:
        cluster.restart_apiserver()
        cluster.part("etcd").stop()
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cluster_access import Access, ApiRefused, KubectlFailed, kubectl
from cluster_processes import PartFailed, scratch

__all__ = [
    "Access",
    "ApiRefused",
    "Cluster",
    "KubectlFailed",
    "PartFailed",
    "own_cluster",
    "shared_cluster",
]

_REPOSITORY = Path(__file__).resolve().parents[3]
_KEEPER = Path(__file__).with_name("cluster_keeper.py")
# Long enough to build everything; a part that does not come up says so much sooner.
_READY_WITHIN_S = 1200.0
_POLL_S = 0.05
READS = ("get", "list", "watch")


@dataclass(frozen=True)
class RemotePart:
    """One process of a cluster: etcd, kube-apiserver or kube-controller-manager."""

    name: str
    _control: Path

    def kill(self) -> None:
        """SIGKILL."""
        self._ask("kill")

    def start(self) -> None:
        """After `kill`: same port, same data. Returns once it is ready."""
        self._ask("start")

    def restart(self) -> None:
        self._ask("restart")

    def stop(self) -> None:
        """SIGSTOP: it answers nothing, and its connections stay open."""
        self._ask("stop")

    def resume(self) -> None:
        """SIGCONT."""
        self._ask("resume")

    def _ask(self, action: str) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._control))
            control.sendall(f"{action} {self.name}\n".encode())
            control.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: control.recv(4096), b"")).decode()
        if answer != "ok":
            raise PartFailed(answer or f"{self.name}: the cluster's keeper has ended")


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Namespaces and objects are the test's own; CRDs and RBAC are there."""

    folder: Path
    etcd_endpoint: str
    """host:port of an etcd for locks, without TLS; the API server's own, under /registry."""
    audit_log: Path
    """One JSON object a line for every write, and for service accounts' reads: `verb`, `user`,
    `objectRef`, `responseStatus`."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    @property
    def operator_kubeconfig(self) -> Path:
        """Service account tandem-operator with the RBAC of `examples/cluster/rbac.yaml`."""
        return self.folder / "operator.kubeconfig"

    @property
    def dev_kubeconfig(self) -> Path:
        """Service account tandem-dev, likewise."""
        return self.folder / "dev.kubeconfig"

    @cached_property
    def admin(self) -> Access:
        return Access.read(self.kubeconfig)

    @cached_property
    def operator(self) -> Access:
        return Access.read(self.operator_kubeconfig)

    @cached_property
    def dev(self) -> Access:
        return Access.read(self.dev_kubeconfig)

    def namespace(self, prefix: str = "test") -> str:
        """Make a fresh namespace; its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.admin.request("POST", "/api/v1/namespaces", body)
        return name

    def lock_prefix(self) -> str:
        """A place in etcd that no other test uses."""
        return f"/test-{secrets.token_hex(4)}"

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002
        """Run kubectl as the administrator, with that standard input; what it prints.

        Raises KubectlFailed, whose `stderr` says what was wrong. Costs a tenth of a second:
        `admin.request` is for what is done often.
        """
        return kubectl(self.kubeconfig, *arguments, text=input)

    def request(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """One API call as the administrator; see `Access.request`."""
        return self.admin.request(method, path, body, **options)

    def writes(self, namespace: str) -> list[dict[str, Any]]:
        """The audit log's writes in that namespace, oldest first."""
        return [entry for entry in self.calls(namespace) if entry["verb"] not in READS]

    def calls(self, namespace: str) -> list[dict[str, Any]]:
        """Its writes, and the reads of service accounts there."""
        with self.audit_log.open() as lines:
            # The log is of the whole run; most of it need not be parsed.
            entries = [json.loads(line) for line in lines if namespace in line]
        return [
            entry for entry in entries if entry.get("objectRef", {}).get("namespace") == namespace
        ]

    def part(self, name: str) -> RemotePart:
        """etcd, kube-apiserver or kube-controller-manager."""
        return RemotePart(name, self.folder / "control")

    def restart_apiserver(self) -> None:
        """Kill it and start it again on the same port. Not for a shared cluster."""
        self.part("kube-apiserver").restart()


def shared_cluster(base: Path) -> Cluster:
    """The run's one cluster, started by the first caller; it ends with the run.

    `base` is the run's temporary folder, as `tmp_path_factory.getbasetemp()` gives it.
    """
    run = os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # A worker's folder lies in the run's; the process that started it outlives them all.
        base, run = base.parent, os.getppid()
    folder = base / "cluster"
    with (base / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            keeper = _keep(folder, run)
            # Only to report its end; it goes on when this process has ended.
            threading.Thread(target=keeper.wait, daemon=True).start()
        return _wait_until_ready(folder)


@contextmanager
def own_cluster() -> Iterator[Cluster]:
    """A cluster for the length of the block, for tests that hurt it. Takes about 5 s."""
    with scratch("tandem-cluster-") as folder:
        keeper = _keep(folder, os.getpid())
        try:
            yield _wait_until_ready(folder)
        finally:
            keeper.terminate()
            keeper.wait()


def _keep(folder: Path, run: int) -> subprocess.Popen[bytes]:
    with (folder / "keeper.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(_KEEPER), str(folder), str(run)],
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY / "tools")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_ready(folder: Path) -> Cluster:
    pause = threading.Event()
    for _ in range(int(_READY_WITHIN_S / _POLL_S)):
        if (folder / "state.json").exists():
            state = json.loads((folder / "state.json").read_text())
            if "error" in state:
                break
            return Cluster(folder, state["etcd"], Path(state["audit"]))
        pause.wait(_POLL_S)
    log = (folder / "keeper.log").read_text(errors="replace")
    raise PartFailed(f"the cluster in {folder} did not start: {log[-2000:]}")
