"""charts/tandem in a real API server: every object is accepted, a release lives and goes, and the
operator works as the chart's service account, with the chart's rights and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import chart_docs
from chart.chart_etcd import bundled
from chart.chart_values import BUNDLED, MATRIX, NAMESPACES
from cluster_processes import free_ports
from support.cluster.api_proxy import ApiProxy
from support.cluster.api_server import Access, ApiRefused, Cluster, own_cluster
from support.cluster.helm import CHART, NAMESPACE, containers, helm, one, pods, template
from support.cluster.operator_process import Order, ProcessStarter, starter
from support.cluster.operator_thread import Resources
from support.jobs import quick_lake
from support.some import few
from support.waiting import await_that

Json = dict[str, Any]
RELEASE, SYSTEM = "lake", "lake-system"
ACCOUNT = "lake-tandem-operator"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CHANGED = "tablecompactions.tandem.dev"
SECRETS = ("tls", "root", "user")


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    """A cluster whose definitions come and go. Those of the Prometheus operator are there."""
    crds = subprocess.run(
        [str(chart_docs.ROOT / "tools" / "build-prometheus-crds.sh")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout.strip()
    with own_cluster() as cluster:
        cluster.kubectl("apply", "--server-side", "-f", crds)
        cluster.kubectl("create", "-f", "-", input=_namespaces(*NAMESPACES, SYSTEM, "locked"))
        yield cluster


def _namespaces(*names: str) -> str:
    """Pod Security enforces "restricted" in the one named `locked`."""
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    items = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": enforce if name == "locked" else {}},
        }
        for name in names
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


# What the API server says of each object


@pytest.mark.matrix
def test_the_api_server_takes_every_object_of_every_combination(place: Cluster) -> None:
    """As `kubectl apply --dry-run=server` with unknown fields refused: real schemas, real
    admission; those of Prometheus's kinds, too."""
    distinct = {
        json.dumps(each, sort_keys=True): None
        for values in MATRIX.values()
        for each in template(values)
    }
    assert len(distinct) > 100
    answers = place.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server"),
        *("--validate=strict", "-f", "-"),
        input="\n---\n".join(distinct),
    )
    assert len(answers.splitlines()) == len(distinct)


@pytest.mark.matrix
def test_pod_security_admits_every_pod_as_restricted(place: Cluster) -> None:
    """By the API server's own admission."""
    distinct = {
        json.dumps({**spec, "serviceAccountName": "default"}, sort_keys=True): None
        for values in MATRIX.values()
        for _, spec in pods(template(values))
    }
    accounts = "/api/v1/namespaces/locked/serviceaccounts"
    await_that(lambda: bool(place.request("GET", accounts)["items"]), lambda: "no account")
    for number, spec in enumerate(distinct):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}}
        path = "/api/v1/namespaces/locked/pods?dryRun=All"
        pod = json.loads(spec)
        # A StatefulSet's claims become volumes only when it makes its pod.
        known = {volume["name"] for volume in pod.get("volumes", ())}
        used = {mount["name"] for c in containers(pod) for mount in c.get("volumeMounts", ())}
        pod["volumes"] = [
            *pod.get("volumes", ()),
            *({"name": n, "persistentVolumeClaim": {"claimName": n}} for n in used - known),
        ]
        # Priority classes are made by a controller manager that has all its controllers.
        pod.pop("priorityClassName", None)
        place.request("POST", path, {**body, "spec": pod})
    pod["containers"][0].pop("securityContext")
    with pytest.raises(ApiRefused, match="violates PodSecurity"):
        place.request("POST", path, {**body, "spec": pod})


# A release


class Release:
    """`helm` on one release, values kept between two calls."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder

    def put(self, action: str, values: Mapping[str, Any], *more: str, chart: Path = CHART) -> str:
        file = self._folder / "values.yaml"
        file.write_text(yaml.dump(dict(values)))
        words = (action, RELEASE, str(chart), "-n", SYSTEM, "-f", str(file), *more)
        return helm(*words, kubeconfig=self.cluster.kubeconfig)

    def uninstall(self) -> str:
        return helm("uninstall", RELEASE, "-n", SYSTEM, kubeconfig=self.cluster.kubeconfig)

    def secrets(self) -> dict[str, Json]:
        path = f"/api/v1/namespaces/{SYSTEM}/secrets/lake-tandem-etcd-"
        return {name: self.cluster.request("GET", path + name)["data"] for name in SECRETS}

    def definition(self, name: str = CHANGED) -> Json | None:
        found = self.cluster.request("GET", DEFINITIONS)["items"]
        return next((each for each in found if each["metadata"]["name"] == name), None)

    def columns(self) -> list[str]:
        definition = self.definition()
        assert definition is not None
        [version] = definition["spec"]["versions"]
        return [column["name"] for column in version["additionalPrinterColumns"]]

    @property
    def account(self) -> Access:
        """What the operator's pod is."""
        return self.cluster.admin.of_service_account(SYSTEM, ACCOUNT)


@pytest.fixture
def release(place: Cluster, tmp_path: Path) -> Release:
    return Release(place, tmp_path)


def older(folder: Path) -> Path:
    """The chart as it may have been: another version, one definition without a column."""
    chart = folder / "older"
    shutil.copytree(CHART, chart)
    file = chart / "Chart.yaml"
    file.write_text(file.read_text().replace("0.1.0", "0.0.9"))
    file = chart / "files" / "crds" / "tandem.dev_tablecompactions.yaml"
    definition = yaml.safe_load(file.read_text())
    definition["spec"]["versions"][0]["additionalPrinterColumns"].pop()
    file.write_text(yaml.dump(definition, sort_keys=False))
    return chart


@pytest.mark.matrix
def test_a_release_is_installed_upgraded_and_uninstalled(release: Release, tmp_path: Path) -> None:
    cluster = release.cluster
    columns = release.columns()
    # The definitions that `kubectl apply -f crds/` made before are taken over.
    notes = release.put("install", BUNDLED, "--take-ownership", chart=older(tmp_path))
    assert release.columns() == columns[:-1]
    assert "no namespace has the service account of jobs" in notes
    assert "no Spark operator" not in notes
    made = release.secrets()

    notes = release.put("upgrade", {**BUNDLED, "jobs": {"namespaces": ["team-a"]}})
    assert release.columns() == columns
    assert release.secrets() == made
    assert "FIRST" not in notes
    assert "kubectl get lake -n team-a" in notes
    manifest = notes.partition("<<EOF\n")[2].partition("\nEOF\n")[0]
    documents = list(yaml.safe_load_all(manifest))
    assert [each["kind"] for each in documents] == ["LakeTable", "TableCompaction"]
    for document in documents:
        cluster.kubectl(
            "create", "-n", "team-a", "--dry-run=server", "-f", "-", input=json.dumps(document)
        )

    Resources(cluster, "team-a").table("kept", "s3://lake/kept")
    release.uninstall()
    assert release.definition() is not None
    assert Resources(cluster, "team-a").get("LakeTable", "kept") is not None
    for path in (
        f"/apis/apps/v1/namespaces/{SYSTEM}/deployments",
        f"/api/v1/namespaces/{SYSTEM}/secrets",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a/roles",
    ):
        assert not cluster.request("GET", path)["items"]
    roles = cluster.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    assert not [each for each in roles if each["metadata"]["name"].startswith("lake-")]

    # It comes back to what it left; the next time all goes.
    release.put("install", {**BUNDLED, "crds": {"keep": False}})
    assert release.secrets() != made
    release.uninstall()
    await_that(lambda: release.definition() is None, lambda: "the definitions stay")
    release.put("install", BUNDLED)
    assert release.columns() == columns
    release.uninstall()


# The operator, as the chart starts it


@contextmanager
def operator(
    release: Release, folder: Path, kubeconfig: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """The process of the Deployment that is installed, by its own command line, as the chart's
    service account; its log and its address. Another `kubeconfig` leads there on a detour."""
    path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/lake-tandem-operator"
    pod = release.cluster.request("GET", path)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    words = [word for word in container["args"] if not word.startswith("--health=")]
    account = folder / f"operator-{len(list(folder.iterdir()))}"
    kubeconfig = kubeconfig or release.account.write(account)
    log = kubeconfig.with_suffix(".log")
    command = [sys.executable, "-m", "tandem.cli.main", *words]
    [port] = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--kubeconfig={kubeconfig}", f"--health=127.0.0.1:{port}"],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(chart_docs.ROOT / "operator"),
                "POD_NAME": kubeconfig.name,
            },
            stderr=output,
        )
    try:
        yield log, f"127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(100) == 0, log.read_text()


@pytest.fixture
def dev(place: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessStarter]:
    """Runs the SparkApplications of both namespaces, without Spark."""
    with starter(tmp_path_factory.mktemp("dev")) as made:
        order = Order(str(place.dev_kubeconfig), tuple(NAMESPACES), role="dev")
        made.start(order).ready()
        yield made


def refused(access: Access, method: str, path: str) -> bool:
    try:
        access.request(method, path)
    except ApiRefused as error:
        return error.status == 403
    return False


def test_the_operator_works_with_the_charts_rights_alone(
    release: Release, dev: ProcessStarter, tmp_path: Path
) -> None:
    """For all namespaces and for a pattern; in `make matrix` also for a listed one, which the next
    test uses."""
    cluster = release.cluster
    values: Json = {
        "locks": "in-process",
        "allowedLocations": {"team-*": [f"{tmp_path.as_uri()}/"]},
        "settings": {"tablePollSeconds": 0.3},
        "jobs": {"namespaces": NAMESPACES},
    }
    take = "--take-ownership"
    for number, watched in enumerate(([], ["team-*"], ["team-a"])[: few(2, 3)]):
        release.put("upgrade", {**values, "watch": {"namespaces": watched}}, "--install", take)
        folder = tmp_path / str(number)
        folder.mkdir()
        lake = quick_lake.make(folder)
        space = Resources(cluster, "team-a")
        with operator(release, folder) as (log, address):
            space.table(f"t{number}", lake.location)
            space.compaction(f"c{number}", f"t{number}")
            status = space.await_end("TableCompaction", f"c{number}", limit_s=120)
            assert status["phase"] == "Succeeded", status
            assert helm_test(address) == 0
            if watched == ["team-*"]:
                late = Resources(cluster, cluster.namespace("team-late"))
                late.table("t", lake.location)
                late.await_reason("LakeTable", "t", "Adopted")
        lake.assert_clean()
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        assert not [line for line in entries if "orbidden" in json.dumps(line)]

        account = release.account
        assert refused(account, "GET", "/api/v1/namespaces/team-a/secrets")
        assert refused(account, "GET", "/api/v1/secrets")
        beyond = "/apis/tandem.dev/v1alpha1/namespaces/team-b/laketables"
        assert refused(account, "GET", beyond) is (watched == ["team-a"])
        assert refused(account, "GET", "/api/v1/namespaces") is (watched != ["team-*"])
    release.uninstall()
    assert helm_test(address) != 0, "the service still answers"


def may_see_jobs(account: Access, namespace: str) -> bool:
    url = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{namespace}/sparkapplications/none"
    try:
        account.request("GET", url)
    except ApiRefused as refused:
        return refused.status == 404
    return True


@pytest.mark.matrix
def test_a_listed_namespace_can_be_deleted_and_comes_back(
    release: Release, dev: ProcessStarter, tmp_path: Path
) -> None:
    """The operator's Role goes first: it can neither write there nor watch any more."""
    cluster = release.cluster
    going, staying = cluster.namespace("going"), "team-a"
    values: Json = {
        "locks": "in-process",
        "allowedLocations": {"*": [f"{tmp_path.as_uri()}/"]},
        "settings": {"tablePollSeconds": 0.3},
        "jobs": {"small": "0"},
        "watch": {"namespaces": [going, staying]},
    }
    release.put("upgrade", values, "--install", "--take-ownership")
    lakes = {name: quick_lake.make(tmp_path / name) for name in (going, staying)}
    with (
        ApiProxy(release.account.write(tmp_path / "account")) as proxy,
        operator(release, tmp_path, proxy.kubeconfig(tmp_path)) as (log, _),
    ):

        def work(name: str, phase: str) -> None:
            space = Resources(cluster, name)
            space.table("t", lakes[name].location)
            space.await_reason("LakeTable", "t", "Adopted")
            space.compaction("m", "t")
            space.await_phase("TableCompaction", "m", phase)

        # Only SparkApplications, which nothing runs there: it stays so.
        work(going, "Running")
        cluster.kubectl("delete", "namespace", going, "--timeout=120s")

        def refusals(*verbs: str) -> set[str]:
            found = [call for call in proxy.calls if call.status == 403]
            return {call.namespace for call in found if not verbs or call.verb in verbs}

        assert proxy.cut_watches() > 0
        await_that(lambda: refusals("watch") == {going}, refusals)
        work(staying, "Succeeded")
        assert refusals() == {going}

        cluster.kubectl("create", "-f", "-", input=_namespaces(going))
        release.put("upgrade", values)
        # The API server takes up roles one by one.
        await_that(lambda: may_see_jobs(release.account, going), lambda: "no right yet")
        work(going, "Running")
    for lake in lakes.values():
        lake.assert_clean()
    release.uninstall()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert not [line for line in entries if "exception" in line or "raceback" in line["event"]]


def helm_test(address: str) -> int:
    """What the pod of `helm test` would do, for that address; its exit code."""
    hook = one(template({"locks": "in-process"}), "Pod", "-test")
    [container] = hook["spec"]["containers"]
    script, url = container["args"]
    assert container["command"] == ["python3", "-c"]
    assert url == f"http://tandem-operator.{NAMESPACE}.svc:8080/readyz"
    command = [sys.executable, "-c", script, f"http://{address}/readyz"]
    return subprocess.run(command, capture_output=True, check=False).returncode


# The bundled etcd, as the chart starts it


def test_the_bundled_etcd_serves_only_the_operators_user(tmp_path: Path) -> None:
    """The real etcd with the arguments of the StatefulSet and the generated certificate, the real
    `tandem etcd-user` with those of the init container; then locks with the operator's."""
    objects = template(BUNDLED)
    assert one(objects, "StatefulSet")["metadata"]["namespace"] == NAMESPACE
    with bundled(objects, tmp_path) as etcd:
        assert "nothing to change" not in etcd.init()
        assert "nothing to change" in etcd.init()
        assert etcd.can_lock()
        assert not etcd.can_lock(user="")
        assert not etcd.can_lock(prefix="/of/others")
