"""docs/install.md and docs/upgrading.md: their commands are run, one after the other, against a
real API server, and their values are values of the chart."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import chart_docs
from support.cluster.api_server import Cluster, own_cluster
from support.cluster.helm import CHART, NAMESPACE, helm, one, template
from support.waiting import await_that

ROOT = chart_docs.ROOT
INSTALL = (ROOT / "docs" / "install.md").read_text()
UPGRADING = (ROOT / "docs" / "upgrading.md").read_text()
NEEDS_PODS = ("rollout status", "helm test", "kubectl tandem")
"""There is no kubelet; `make e2e` and tests of the plugin run these."""
OF_OTHERS = ("https://kubeflow.github.io", "spark-operator/spark-operator")
"""From the internet; `make e2e` installs that chart of that version with those values."""
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def commands(page: str) -> list[str]:
    """What a reader types, in order."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        found += block.replace("\\\n", " ").replace("|\n", "| ").strip().splitlines()
    return [line for line in found if not any(word in line for word in NEEDS_PODS + OF_OTHERS)]


def values(page: str, folder: Path) -> Path:
    """The page's values.yaml."""
    [text] = re.findall(r"```yml\n# values\.yaml\n(.*?)```", page, re.DOTALL)
    (folder / "values.yaml").write_text(text)
    return folder / "values.yaml"


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """As it is before: the Spark operator's definitions, and none of ours."""
    with own_cluster() as cluster:
        rights = (ROOT / "examples" / "cluster" / "rbac.yaml").read_text()
        namespaced = [each for each in yaml.safe_load_all(rights) if each["kind"] != "Namespace"]
        cluster.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(namespaced))
        cluster.kubectl("delete", "-f", str(ROOT / "crds"))
        for name in ("team-a", "team-b"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            cluster.request("POST", "/api/v1/namespaces", body)
        yield cluster


def definitions(cluster: Cluster) -> list[str]:
    """Ours that are there."""
    items = cluster.request("GET", DEFINITIONS)["items"]
    return [each["metadata"]["name"] for each in items if each["spec"]["group"] == "tandem.dev"]


def run(cluster: Cluster, line: str, file: Path) -> str:
    """One command, as it stands on the page."""
    words = [str(CHART) if word == "charts/tandem" else word for word in shlex.split(line)]
    words = [str(file) if word == "values.yaml" else word for word in words]
    if "|" in words:
        end = words.index("|")
        words, reader = words[:end], words[end + 1 :]
        assert reader[0] == "jq", line  # which may not be here: it reads JSON
        json.loads(run(cluster, shlex.join(words), file))
    program, *arguments = words
    if program == "kubectl":
        # A namespace takes seconds to go: what must be gone is looked for in the end.
        return cluster.kubectl(*arguments, *(["--wait=false"] if arguments[0] == "delete" else []))
    assert program == "helm", line
    return helm(*arguments, kubeconfig=cluster.kubeconfig)


@pytest.mark.matrix
def test_the_commands_of_both_pages_work(place: Cluster, tmp_path: Path) -> None:
    file = values(INSTALL, tmp_path)
    lines = commands(INSTALL)
    last = next(number for number, line in enumerate(lines) if line.startswith("kubectl delete"))
    outputs = [run(place, line, file) for line in lines[:last]]
    assert "kubectl get lake -n default --watch" in outputs[0]
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/tandem-operator"
    assert place.request("GET", path)["spec"]["replicas"] == 2
    for line in commands(UPGRADING):
        run(place, line, file)
    for line in lines[last:]:
        run(place, line, file)
    await_that(lambda: not definitions(place), lambda: definitions(place))


def test_the_values_of_the_page_render(tmp_path: Path) -> None:
    objects = template({}, "--values", str(values(INSTALL, tmp_path)))
    arguments = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--allowed-location=team-a=s3://lake/a/" in arguments
    assert "--namespace=team-a" in arguments


def test_the_spark_operators_values_are_those_that_are_tried() -> None:
    block = re.findall(r"```yml\nspark:\n(.*?)```", INSTALL, re.DOTALL)[0]
    tried = (ROOT / "tests" / "e2e" / "install.py").read_text()
    for name in re.findall(r"([a-z]\w+):", block):
        assert f'"{name}"' in tried, name
    [version] = re.findall(r"spark-operator/spark-operator --version (\S+)", INSTALL)
    built = (ROOT / "tools" / "spark-operator" / "go.mod").read_text()
    assert f"github.com/kubeflow/spark-operator/v2 v{version} " in built
