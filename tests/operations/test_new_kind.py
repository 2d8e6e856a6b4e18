"""A kind of operation is one model and one entry: a kind that only this test knows
(`toy_kind`) runs by the command line, in the simulator and by the operator, none of which
knows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from operations.toy_kind import TableSeed, registered
from simulator import single
from simulator.actor import operation
from simulator.crashing import Beside, crash, passages
from support.cases import CASES
from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.lake.faults import Fault
from support.lake.rows import rows
from support.waiting import await_that
from tandem.cli.app import app
from tandem.cli.kubectl.arguments import kind_of
from tandem.cli.kubectl.plan import expected
from tandem.errors import InvalidSpec
from tandem.operations import runner
from tandem.operations.ports import Ports
from tandem.operations.registry import PERFORMED_BY
from tandem.operations.session.job_control import FileJobs
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind
from tandem.spec import load_text
from tandem.spec.common import OPERATIONS, Mode, plural
from tandem.spec.crd import definition

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

SEEDED = rows(range(100, 107))
BOTH = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: t}}
spec: {{location: "{lake.location}"}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableSeed
metadata: {{name: seed}}
spec: {{tableRef: {{name: t}}, rows: "{rows}"}}
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path) -> quick_lake.QuickLake:
    return quick_lake.make(tmp_path)


def tandem(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_every_kind_is_performed_and_tried() -> None:
    assert PERFORMED_BY.keys() == set(OPERATIONS.values())
    assert CASES.keys() == OPERATIONS.keys()
    assert len({model.short_name for model in OPERATIONS.values()}) == len(OPERATIONS)


def test_the_new_kind_is_unknown_elsewhere(lake: quick_lake.QuickLake) -> None:
    with pytest.raises(InvalidSpec, match="unknown kind"):
        load_text(BOTH.format(lake=lake, rows="file:///a.parquet"))


@pytest.mark.usefixtures("toy")
def test_it_runs_by_the_command_line(
    lake: quick_lake.QuickLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))
    source = lake.source(SEEDED).as_uri()
    file = tmp_path / "both.yaml"
    file.write_text(BOTH.format(lake=lake, rows=source))

    planned = tandem("plan", "-f", file)
    assert planned.exit_code == 0, planned.output
    assert "TableSeed/seed: Planned" in planned.output
    assert f"those of {source}"[:40] in planned.output
    assert lake.version == lake.first_version

    before = lake.by_deltalake()
    run = tandem("run", "-f", file, "-o", "json")
    assert run.exit_code == 0, run.output
    _, seeded = json.loads(run.stdout)
    assert seeded["status"]["phase"] == "Succeeded"
    assert seeded["status"]["result"]["rowsAffected"]["inserted"] == len(SEEDED)
    assert lake.by_deltalake() == tuple(sorted((*before, *SEEDED)))

    # What it promises by its mode is what others make of its commit.
    commit = lake.log.commit(lake.version)
    assert commit is not None
    assert classify(commit, {}).kind is ChangeKind.BLIND_APPEND


@pytest.mark.usefixtures("toy")
def test_other_operations_can_depend_on_it_and_the_plugin_knows_it() -> None:
    source = {"format": "Csv", "location": "file:///b.csv"}
    seed = {"kind": "TableSeed", "name": "seed"}
    later = operation("TableIngest", "later", {"source": source, "dependsOn": [seed]})
    assert later.spec.depends_on[0].kind == "TableSeed"
    assert kind_of("tseed") == "TableSeed"
    rewrite = {"operation": "TableCompaction/c", "mode": "Rewrite", "segments": ["0"]}
    assert expected("TableSeed", {"segments": ["0"]}, [rewrite]) == []
    everything = {**rewrite, "mode": str(Mode.EXCLUSIVE)}
    assert [each["means"] for each in expected("TableSeed", {"segments": ["0"]}, [everything])]


@pytest.mark.usefixtures("toy")
def test_it_survives_crashes_in_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "seed"
    monkeypatch.setitem(
        single.MAKERS, case, lambda world: operation("TableSeed", case, {"rows": world.batch()})
    )
    try:
        for passage in passages(case, Beside.DELETE):
            for fault in Fault:
                crash(case, Beside.DELETE, passage, fault)
    finally:
        passages.cache_clear()


@pytest.fixture
def served(toy: None, cluster: Cluster) -> Iterator[Cluster]:
    """The API server, which serves it as it serves our own kinds: by its generated definition, but
    without the category, by which neighbours on the same server list all kinds that there are."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = definition(TableSeed.kind_name)
    del made["spec"]["names"]["categories"]
    one = f"{definitions}/{made['metadata']['name']}"
    cluster.admin.request("POST", definitions, made)
    try:

        def established() -> bool:
            found: dict[str, Any] = cluster.admin.request("GET", one)
            conditions = found.get("status", {}).get("conditions") or ()
            states = {(each["type"], each["status"]) for each in conditions}
            return {("Established", "True"), ("NamesAccepted", "True")} <= states

        await_that(established, lambda: "its definition is not served")
        yield cluster
    finally:
        cluster.admin.request("DELETE", one)


def test_it_runs_by_the_operator(served: Cluster, lake: quick_lake.QuickLake) -> None:
    space = Resources(served, served.namespace("toy"))
    settings = quick_settings(served, space.namespace, kubeconfig=served.kubeconfig)
    with operating(settings, HeldJobs(), here=True):
        space.table("t", lake.location)
        spec = {"tableRef": {"name": "t"}, "rows": lake.source(SEEDED).as_uri()}
        space.create("TableSeed", "seed", spec)
        status = space.await_end("TableSeed", "seed")
        assert status["phase"] == "Succeeded", status
        shown = served.kubectl("get", plural("TableSeed"), "-n", space.namespace)
        assert "ROWS" in shown.splitlines()[0].split()
    assert status["result"]["rowsAffected"]["inserted"] == len(SEEDED)
    lake.assert_clean()
