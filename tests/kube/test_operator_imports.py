"""The operator's own process has none of the engine: its children have."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from support.cluster.operator_thread import Resources
from support.jobs import quick_lake

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

ROOT = Path(__file__).parents[2]
CONTRACT = "The operator holds no table: its children do"
UNUSED = {"deltalake", "duckdb", "obstore", "pandas", "pyspark"}
"""Packages that the contract leaves out: modules of the operator import them with what they do for
others."""


def forbidden() -> set[str]:
    """What the contract of imports forbids, and packages with code of the engine."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {each["name"]: each for each in config["tool"]["importlinter"]["contracts"]}
    return {*contracts[CONTRACT]["forbidden_modules"], *UNUSED}


def test_it_has_served_an_operation_and_imported_no_engine(
    cluster: Cluster, tmp_path: Path
) -> None:
    space, lake = Resources(cluster, cluster.namespace("imports")), quick_lake.make(tmp_path / "t")
    script, found = tmp_path / "operator_that_says.py", tmp_path / "modules"
    script.write_text(_OPERATOR)
    command = [sys.executable, str(script), str(found), "operator"]
    command += ["--kubeconfig", str(cluster.operator_kubeconfig), "--namespace", space.namespace]
    command += ["--etcd-endpoint", cluster.etcd_endpoint, "--etcd-prefix", cluster.lock_prefix()]
    command += ["--health", "127.0.0.1:0", "--election-id", space.namespace]
    with subprocess.Popen(command) as operator:
        try:
            space.table("t", lake.location)
            space.compaction("m", "t", type="Major")
            assert space.await_end("TableCompaction", "m")["phase"] == "Succeeded"
            operator.send_signal(signal.SIGTERM)
            assert operator.wait(60) == 0
        finally:
            operator.kill()
    modules = found.read_text().split()
    assert "tandem.kube.children.services" in modules
    unwanted = forbidden()
    assert not [
        name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in unwanted)
    ]
    lake.assert_clean()


_OPERATOR = """
import sys
from pathlib import Path
from tandem.cli.main import main

if __name__ == "__main__":
    found = sys.argv.pop(1)
    try:
        main()
    finally:
        Path(found).write_text(" ".join(sys.modules))
"""
