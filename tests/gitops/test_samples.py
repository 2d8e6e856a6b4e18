"""The samples of examples/gitops fit together, and with the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_processes import REPOSITORY
from gitops.health_tools import EXAMPLES
from tandem.spec import LakeTable, Operation, load

Json = dict[str, Any]
TABLES = EXAMPLES / "tables"
VALUES = yaml.safe_load((REPOSITORY / "charts" / "tandem" / "values.yaml").read_text())


def documents(path: Path) -> list[Json]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def one(path: Path, kind: str, name: str) -> Json:
    (found,) = (
        item for item in documents(path) if (item["kind"], item["metadata"]["name"]) == (kind, name)
    )
    return found


def unknown(values: Json, known: Json, path: str = "") -> list[str]:
    """Values that the chart does not have; below an empty map it takes any."""
    wrong = []
    for key, value in values.items():
        if known and key not in known:
            wrong.append(f"{path}{key}")
        elif isinstance(value, dict) and isinstance(known.get(key), dict):
            wrong += unknown(value, known[key], f"{path}{key}.")
    return wrong


def test_manifests_in_git_are_valid_and_never_deleted_by_the_operator() -> None:
    kustomization = yaml.safe_load((TABLES / "kustomization.yaml").read_text())
    assert set(kustomization) == {"apiVersion", "kind", "namespace", "resources"}
    resources = load([TABLES / name for name in kustomization["resources"]])
    files = {path.name for path in TABLES.iterdir()} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    operations = [item for item in resources if isinstance(item, Operation)]
    tables = {item.name for item in resources if isinstance(item, LakeTable)}
    assert {item.spec.table_ref.name for item in operations} <= tables
    assert all(item.spec.ttl_seconds_after_finished is None for item in operations)


def test_argo_applies_tables_before_operations() -> None:
    wave = "argocd.argoproj.io/sync-wave"
    for path in TABLES.glob("*.yaml"):
        for item in documents(path):
            annotations = item.get("metadata", {}).get("annotations", {})
            assert (annotations.get(wave) == "-1") == (item["kind"] == "LakeTable")


@pytest.mark.parametrize("tool", ["argocd", "flux"])
def test_the_chart_takes_the_values(tool: str) -> None:
    if tool == "argocd":
        found = one(EXAMPLES / "argocd" / "operator.yaml", "Application", "tandem")
        source = found["spec"]["source"]
        chart, values = source["path"], source["helm"]["valuesObject"]
    else:
        found = one(EXAMPLES / "flux" / "operator" / "release.yaml", "HelmRelease", "tandem")
        chart = found["spec"]["chart"]["spec"]["chart"]
        values = found["spec"]["values"]
    assert (REPOSITORY / chart / "Chart.yaml").exists()
    assert unknown(values, VALUES) == []
    assert unknown({"etcd": {"endpoint": 1}}, VALUES) == ["etcd.endpoint"]


def test_flux_applies_the_operator_first() -> None:
    path = EXAMPLES / "flux" / "kustomizations.yaml"
    operator = one(path, "Kustomization", "tandem")["spec"]
    tables = one(path, "Kustomization", "lake")["spec"]
    assert [item["name"] for item in tables["dependsOn"]] == ["tandem"]
    assert operator["wait"] is True
    assert tables["wait"] is True
    assert (EXAMPLES / operator["path"]).is_dir()
    assert (EXAMPLES / tables["path"]).resolve() == TABLES
