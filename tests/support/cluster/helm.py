"""Helm as a user has it, and charts/tandem as it renders.

template({"replicaCount": 2})      # the objects, as a list
helm("install", …, kubeconfig=…)   # raises HelmFailed, whose text is Helm's output
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster_processes import REPOSITORY, scratch

Json = dict[str, Any]
CHART = REPOSITORY / "charts" / "tandem"
RELEASE, NAMESPACE = "tandem", "tandem-system"


class HelmFailed(RuntimeError):
    """Helm's output."""


@cache
def program() -> str:
    """Built where it is missing."""
    script = str(REPOSITORY / "tools" / "build-helm.sh")
    done = subprocess.run([script], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.strip()


def helm(*arguments: str, kubeconfig: Path | None = None, text: str | None = None) -> str:
    """Run it; what it prints. It keeps nothing, and without a kubeconfig finds no cluster.

    Raises: HelmFailed.
    """
    with scratch("tandem-helm-") as home:
        folders = {f"HELM_{name}_HOME": str(home) for name in ("CACHE", "CONFIG", "DATA")}
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), **folders}
        environ["KUBECONFIG"] = str(kubeconfig or home / "none")
        done = subprocess.run(
            [program(), *arguments],
            env=environ,
            input=text,
            capture_output=True,
            check=False,
            text=True,
        )
    if done.returncode != 0:
        raise HelmFailed(done.stdout + done.stderr)
    return done.stdout


def template(values: Mapping[str, Any], *more: str) -> list[Json]:
    """The objects that `helm install` would make with these values, hooks included.

    Raises: HelmFailed.
    """
    return [dict(each) for each in json.loads(_rendered(json.dumps(values), more))]


@cache
def _rendered(values: str, more: Sequence[str]) -> str:
    text = helm("template", RELEASE, str(CHART), "-n", NAMESPACE, "--values=-", *more, text=values)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return json.dumps([each for each in yaml.load_all(text, loader) if each])


def of_kind(objects: Sequence[Json], *kinds: str) -> list[Json]:
    return [each for each in objects if each["kind"] in kinds]


def one(objects: Sequence[Json], kind: str, suffix: str = "") -> Json:
    """The only object of that kind whose name ends so."""
    [found] = [o for o in of_kind(objects, kind) if o["metadata"]["name"].endswith(suffix)]
    return found


def pods(objects: Sequence[Json]) -> list[tuple[str, Json]]:
    """(what makes it, spec) of every pod."""
    found = []
    for each in objects:
        where = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            found.append((where, each["spec"]))
        elif each["kind"] in ("Deployment", "StatefulSet", "Job", "DaemonSet"):
            found.append((where, each["spec"]["template"]["spec"]))
    return found


def containers(pod: Json) -> list[Json]:
    return [*pod.get("initContainers", ()), *pod["containers"]]
