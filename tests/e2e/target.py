"""Where `make e2e` runs: a node of our own, or a cluster that a kubeconfig's context names.

Images are of this machine in both. Our own node is given them as archives; into a cluster
elsewhere they are loaded or pushed beforehand, under the names in E2E_IMAGE, E2E_S3_IMAGE,
E2E_ETCD_IMAGE and E2E_SPARK_OPERATOR_IMAGE.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster_processes import REPOSITORY, built
from e2e.kube_api import Kube, command
from single_node import archives
from single_node.cluster import SingleNode, single_node
from single_node.settings import NODE
from tandem import __version__

CACHE = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem"))
TOOLS = REPOSITORY / "tools"


@dataclass(frozen=True)
class Images:
    """Names that pods pull. `spark_operator` may be empty: what its own chart says."""

    tandem: str
    s3: str
    etcd: str
    spark_operator: str


OURS = Images(
    tandem=f"docker.io/library/tandem:{__version__}",
    s3="docker.io/library/tandem-e2e-s3:1",
    etcd="quay.io/coreos/etcd:v3.7.3",
    spark_operator="docker.io/library/tandem-e2e-spark-operator:2.5.1",
)


@dataclass
class Target:
    """The cluster under test. `node` is None if it is a foreign one."""

    kube: Kube
    images: Images
    helm: Path
    folder: Path
    node: SingleNode | None = None
    image_bytes: int | None = None

    def run_helm(self, *arguments: str) -> str:
        """Helm as the same user in the same cluster."""
        options = [
            f"--kube-context={option.removeprefix('--context=')}"
            if option.startswith("--context=")
            else option
            for option in self.kube.options
        ]
        return command([str(self.helm), *options, *arguments])

    def some_node(self) -> str:
        """The name of a node that takes pods."""
        return NODE if self.node is not None else self.kube(
            "get", "nodes", "-o", "jsonpath={.items[-1:].metadata.name}"
        )  # fmt: skip


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    """What KUBECONTEXT says, for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    kubectl = built("kubernetes") / "bin" / "kubectl"
    helm = Path(_built("build-helm.sh"))
    context = os.environ.get("KUBECONTEXT", "")
    if context:
        images = Images(
            tandem=os.environ.get("E2E_IMAGE", f"tandem:{__version__}"),
            s3=os.environ.get("E2E_S3_IMAGE", OURS.s3),
            etcd=os.environ.get("E2E_ETCD_IMAGE", OURS.etcd),
            spark_operator=os.environ.get("E2E_SPARK_OPERATOR_IMAGE", ""),
        )
        with Kube(kubectl, [f"--context={context}"], folder).served() as kube:
            yield Target(kube, images, helm, folder)
        return
    found = image_archives()
    with single_node(CACHE / "single-node") as node:
        node.load(*found)
        for name in archives.names_in(found[0]):
            if name != OURS.tandem:
                node.ctr("images", "tag", "--force", _full(name), OURS.tandem)
        options = [f"--kubeconfig={node.kubeconfig}"]
        with Kube(kubectl, options, folder).served() as kube:
            yield Target(kube, OURS, helm, folder, node, found[0].stat().st_size)


def image_archives() -> list[Path]:
    """Archives of all images that `OURS` names, ours first; made where missing or old."""
    given = os.environ.get("E2E_IMAGE_ARCHIVE")
    tandem = Path(given or _built("build-image.sh"))
    folder = CACHE / "e2e-images"
    cluster = Path(_built("build-cluster.sh", "spark-operator"))
    server = Path(_built("build-versitygw.sh"))
    etcd = built("etcd") / "bin" / "etcd"
    return [
        tandem,
        archives.of_programs(
            folder / "s3.tar", OURS.s3, {"/bin/versitygw": server}, ["/bin/versitygw"]
        ),
        archives.of_programs(
            folder / "etcd.tar", OURS.etcd, {"/usr/local/bin/etcd": etcd}, ["/usr/local/bin/etcd"]
        ),
        # As its own image is made: its program over one that has Spark.
        archives.with_programs(
            tandem,
            folder / "spark-operator.tar",
            OURS.spark_operator,
            {"/usr/bin/spark-operator": cluster / "bin" / "spark-operator"},
            ["/usr/bin/spark-operator"],
        ),
    ]


def _built(script: str, *arguments: str) -> str:
    """What a script of tools/ prints first: the path of what it has built."""
    done = subprocess.run(
        [str(TOOLS / script), *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout.split()[0]


def _full(name: str) -> str:
    """As containerd writes a name without a registry."""
    first = name.split("/", 1)[0]
    if "/" in name and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"
