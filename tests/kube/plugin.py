"""`kubectl tandem` on a stage: a real API server, an operator with quick jobs in a thread, who may
only look, and commands in this process or as people type them.

    with plugin_stage(cluster, folder, "plugin") as stage:
        stage.lake("t")
        assert stage.json("status", viewer=True)["problems"] == []
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from typer.testing import CliRunner, Result

from cluster_processes import built
from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from tandem.cli.kubectl.main import app

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

_RULES = [
    {
        "apiGroups": ["tandem.dev"],
        "resources": ["*"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["sparkoperator.k8s.io"],
        "resources": ["sparkapplications"],
        "verbs": ["get", "list", "watch"],
    },
]


@dataclass
class Stage:
    cluster: Cluster
    space: Resources
    jobs: HeldJobs
    folder: Path
    viewer: Path
    """kubeconfig of who may only look."""

    @property
    def namespace(self) -> str:
        return self.space.namespace

    def lake(self, name: str, loads: int = 4) -> QuickLake:
        lake = quick_lake.make(self.folder / name, loads)
        self.space.table(name, lake.location)
        self.space.await_reason("LakeTable", name, "Adopted")
        return lake

    def type(self, *words: str, viewer: bool = False, input_: str | None = None) -> Result:
        """A command in this process."""
        kubeconfig = self.viewer if viewer else self.cluster.kubeconfig
        typed = [words[0], "-n", self.namespace, "--kubeconfig", str(kubeconfig), *words[1:]]
        result = CliRunner().invoke(app, typed, input=input_, env={"COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *words: str, viewer: bool = False) -> Any:
        result = self.type(*words, "-o", "json", viewer=viewer)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def kubectl(self, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """As people type it: `kubectl tandem …`, in this namespace, who may only look."""
        found = [str(Path(sys.executable).parent), str(built("kubernetes") / "bin")]
        environ = {
            "PATH": os.pathsep.join([*found, os.environ["PATH"]]),
            "KUBECONFIG": os.pathsep.join([str(self.folder / "none"), str(self.viewer)]),
            "HOME": str(self.folder),
            "TERM": "xterm-256color",
        }
        return subprocess.Popen(
            ["kubectl", "tandem", *words],
            env=environ,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def plugin_stage(cluster: Cluster, folder: Path, prefix: str) -> Iterator[Stage]:
    """In a namespace of its own."""
    space = Resources(cluster, cluster.namespace(prefix))
    jobs = HeldJobs()
    before = structlog.get_config()
    with (folder / "operator.log").open("w") as log:
        # It runs in this process, and must not talk into what commands print.
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            with operating(quick_settings(cluster, space.namespace), jobs):
                viewer = _viewer(cluster, space.namespace, folder)
                yield Stage(cluster, space, jobs, folder, viewer)
        finally:
            structlog.configure(**before)


def _viewer(cluster: Cluster, namespace: str, folder: Path) -> Path:
    """Kubernetes' own role for looking, and ours that the chart aggregates to it."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    cluster.request("POST", accounts, {"metadata": {"name": "viewer"}})
    cluster.request("POST", f"{rbac}/roles", {"metadata": {"name": "look"}, "rules": _RULES})
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    for kind, name in (("Role", "look"), ("ClusterRole", "system:aggregate-to-view")):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {
            "metadata": {"name": kind.lower()},
            "roleRef": reference,
            "subjects": [subject],
        }
        cluster.request("POST", f"{rbac}/rolebindings", binding)
    access = cluster.admin.of_service_account(namespace, "viewer")
    path = access.write(folder / "viewer.kubeconfig")
    config = json.loads(path.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    path.write_text(json.dumps(config))
    return path
