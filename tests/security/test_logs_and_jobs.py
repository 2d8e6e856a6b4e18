"""Secrets in logs, jobs and records: none."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aetcd import rpc
from deltalake import DeltaTable, write_deltalake

from cluster_processes import REPOSITORY
from security.canaries import Canaries, command_lines, objects
from security.locked_etcd import Locked, locked_etcd
from support.cluster.operator_thread import Resources, condition
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS
from support.waiting import await_that
from tandem.delta.dv import load
from tandem.delta.log.codec import encode_action
from tandem.errors import LocationNotAllowed, ManifestInvalid, TandemError
from tandem.jobs.formats import AnyJob, IngestJob, JobSpec, JobTable, MergeJob
from tandem.operations.attempt_files import job_name
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.spark.runtime.control import encode, open_job
from tandem.spark.runtime.datasource import get_work
from tandem.spark.runtime.session import cache_dir
from tandem.storage import open_store

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from support.lake.s3 import S3Server


# What a log and the files of a job lead to: nothing outside of the table, but below the prefixes
# of its namespace. Both are in the bucket, where others write who have no say in the cluster.


# What the log says


def hostile_paths(lake: QuickLake) -> list[str]:
    beside = lake.path.parent / "beside.parquet"
    data = (lake.path / lake.first_add.logged_path).read_bytes()
    beside.write_bytes(data)
    (lake.path / "link.parquet").symlink_to(beside)
    return [
        str(beside),
        beside.as_uri(),
        "../beside.parquet",
        "%2e%2e/beside.parquet",
        "x/../../beside.parquet",
        "link.parquet",
        "s3://lake/team-b/x.parquet",
        "s3a://lake/team-b/x.parquet",
        "file:///etc/passwd",
        f"file://{lake.path}2/x.parquet",
    ]


def live(lake: QuickLake) -> set[str]:
    return {add.logged_path for add in lake.log.snapshot().adds()}


@pytest.mark.parametrize("number", range(10))
def test_the_log_names_no_file_elsewhere(tmp_path: Path, number: int) -> None:
    lake = quick_lake.make(tmp_path, 2)
    path = hostile_paths(lake)[number]
    add = encode_action(lake.first_add)
    lake.log_raw({"add": {**add["add"], "path": path}})
    before = live(lake)
    status = lake.run(lake.compaction("Major"))
    assert status.phase == "Failed"
    assert live(lake) == before
    # The job says no, too, whatever the engine thought of it.
    with pytest.raises(TandemError):
        lake.store.get(path)
    allowed = open_store(lake.location, allowed_prefixes=["s3://lake/team-a", lake.location])
    with pytest.raises(TandemError):
        allowed.get(path)


@pytest.mark.parametrize("path", ["/etc/passwd", "file:///etc/passwd", "s3://lake/team-b/x.bin"])
def test_a_deletion_vector_outside_of_the_table_is_refused(tmp_path: Path, path: str) -> None:
    lake = quick_lake.make(tmp_path, 1)
    vector = {"storageType": "p", "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 36,
              "cardinality": 1}  # fmt: skip
    add = encode_action(lake.first_add)
    lake.log_raw({"add": {**add["add"], "deletionVector": vector}})
    [found] = [a.deletion_vector for a in lake.log.snapshot().adds() if a.deletion_vector]
    with pytest.raises(LocationNotAllowed):
        load(lake.store, found)
    before = live(lake)
    assert lake.run(lake.compaction("Major")).phase == "Failed"
    assert live(lake) == before


def test_a_shallow_clone_reads_below_the_namespaces_prefix(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    beside = lake.path.parent / "beside.parquet"
    beside.write_bytes(b"x")
    for prefix in (lake.path.parent.as_uri(), "file://", "file:///"):
        store = open_store(lake.location, allowed_prefixes=[prefix])
        assert store.get(str(beside)) == b"x"
        with pytest.raises(LocationNotAllowed):
            store.put(str(beside), b"y")


# The arguments of a job


def job(lake: QuickLake, *, merges: bool = False, **changes: Any) -> tuple[str, JobSpec]:
    """A job's file as the engine writes it."""
    folder = "_tandem/operations/o/attempts/1"
    source = changes.pop("source", f"{lake.location}/in.parquet")
    what: AnyJob = IngestJob(source_format="Parquet", source_location=source, target_file_size=1)
    if merges:
        what = MergeJob(
            source_format="Parquet", source_location=source, target_file_size=1,
            on="true", clauses=(), inputs=(),
        )  # fmt: skip
    job_table = JobTable(
        location=lake.location,
        version=0,
        table_id="",
        schema_string="",
        partition_columns=(),
        configuration={},
        storage_options={},
        allowed_prefixes=(lake.location,),
    )
    spec_ = JobSpec(
        operation_id="o",
        attempt=1,
        table=job_table.model_copy(update=changes),
        data_prefix="o-1",
        control_prefix=folder,
        job=what,
    )
    path = f"{folder}/job.json"
    lake.store.put(path, encode(spec_))
    return path, spec_


@pytest.mark.parametrize("merges", [False, True])
def test_the_arguments_of_a_job_override_its_file(tmp_path: Path, merges: bool) -> None:
    """A user with access to the bucket, and none to the cluster, may change the file."""
    lake = quick_lake.make(tmp_path, 1)
    allowed = (lake.location,)
    path, good = job(lake, merges=merges)
    assert open_job(lake.location, path, {}, allowed).spec == good
    for changes, error in (
        ({"source": "file:///var/run/secrets/kubernetes.io/serviceaccount"}, LocationNotAllowed),
        ({"source": f"{lake.location}2/in"}, LocationNotAllowed),
        ({"location": "file:///etc"}, ManifestInvalid),
        ({"allowed_prefixes": ("file:///",)}, ManifestInvalid),
        ({"allowed_prefixes": ()}, ManifestInvalid),
        ({"storage_options": {"endpoint": "http://evil.example"}}, ManifestInvalid),
    ):
        path, _ = job(lake, merges=merges, **changes)
        with pytest.raises(error):
            open_job(lake.location, path, {}, allowed)
    with pytest.raises(LocationNotAllowed):
        open_job(lake.location, path, {}, ("s3://lake/team-a",))


def test_a_worker_accepts_only_what_its_driver_wrote(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    lake.store.put("_tandem/work.json", b'{"location": "file:///etc"}')
    options = {
        "location": lake.location,
        "storage": "{}",
        "work": "_tandem/work.json",
        "digest": "0" * 64,
    }
    with pytest.raises(ManifestInvalid):
        get_work(options)


@pytest.mark.parametrize(
    "source", ["file:///var/run/secrets/kubernetes.io/serviceaccount/token", "file:///etc/passwd"]
)
@pytest.mark.parametrize("kind", ["TableIngest", "TableUpdate"])
def test_sources_outside_the_allowed_locations_are_refused(
    tmp_path: Path, source: str, kind: str
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    ours = replace(lake.table(), allowed_prefixes=(tmp_path.as_uri(),))
    version, ports = lake.version, lake.ports()
    body: dict[str, Any] = {"source": {"format": "Parquet", "location": source}}
    field = "spec.source.location"
    if kind == "TableUpdate":
        body = {"merge": {**body, "on": "t.id = s.id", "whenMatched": [{"delete": {}}]}}
        field = "spec.merge.source.location"
    resource = lake.resource(kind, body)
    status = finish(open_session(resource, ours, ports, ExecutionOptions()), resource, ports)
    assert status.phase == "Failed"
    assert status.conditions[0].reason == "LocationNotAllowed"
    assert f"{resource.id}.{field}:" in status.conditions[0].message
    assert lake.version == version


# Unmistakable credentials, through all that can happen to them; then they are looked for
# everywhere. Everything is a process of its own, as it is installed: operators with either form
# of log, Spark, S3, etcd over TLS with a password, the API server.


LONG_S = 300.0
"""A limit, reached where something hangs: a slow machine takes a minute for a job."""
KIND = "TableCompaction"


class Story:
    """What happened, and what was reported about it."""

    def __init__(self, cluster: Cluster, s3: S3Server, etcd: Locked, folder: Path) -> None:
        self.cluster = cluster
        self.s3 = s3
        self.etcd = etcd
        self.folder = folder
        self.space = Resources(cluster, cluster.namespace("canary"))
        self.location = s3.fresh_location()
        self.wrong = f"canary-wrong-{secrets.token_hex(8)}"
        self.password = f"canary-etcd-{secrets.token_hex(8)}"
        self.root = "root's word"
        self.lines: set[bytes] = set()
        self.logs: dict[str, Path] = {}
        self.keys: list[bytes] = []
        self.jobs: list[str] = []
        self.objects: list[tuple[str, str]] = []

    @property
    def canaries(self) -> Canaries:
        return Canaries([self.s3.secret_key, self.wrong, self.password, self.root])

    @contextmanager
    def process(self, name: str, *words: str, **environ: str) -> Iterator[None]:
        """`tandem …` for the length of the block, ended as a pod is."""
        log = self.logs[name] = self.folder / f"{name}.log"
        path = os.pathsep.join([str(REPOSITORY / "operator")])
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        with log.open("ab") as output:
            running = subprocess.Popen(
                [sys.executable, "-m", "tandem.cli.main", *words],
                env={**inherited, "PYTHONPATH": path, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield
                assert running.poll() is None, log.read_text()
            finally:
                running.send_signal(signal.SIGTERM)
                running.wait(60)

    @contextmanager
    def operator(self, form: str, *words: str, **environ: str) -> Iterator[None]:
        with self.process(
            f"operator-{form}",
            "operator",
            *("--kubeconfig", str(self.cluster.operator_kubeconfig)),
            *("--namespace", self.space.namespace, "--verbose", "--log-format", form),
            *("--etcd-endpoint", f"https://{self.etcd.endpoint}", "--etcd-user", "tandem"),
            *("--etcd-ca", str(self.etcd.folder / "ca.pem"), "--etcd-ttl", "5"),
            *("--allowed-location", f"s3://{self.s3.bucket}", "--health", ""),
            *("--allowed-endpoint", "127.0.0.1", "--table-poll", "0.5", *words),
            **environ,
        ):
            yield

    def secret(self, name: str, values: Mapping[str, str]) -> None:
        url = f"/api/v1/namespaces/{self.space.namespace}/secrets"
        body = {"metadata": {"name": name}, "stringData": dict(values)}
        self.cluster.request("POST", url, body)

    def table(self, name: str, secret: str, **options: str) -> None:
        storage = {
            "secretRef": {"name": secret},
            "options": {**self.s3.options, **options},
        }
        self.space.table(name, self.location, storage=storage)

    def await_reason(self, name: str, reason: str) -> None:
        status = self.space.await_reason("LakeTable", name, reason)
        assert condition(status, "Ready")["message"] or reason == "Adopted"

    def play(self) -> None:
        """Success, denials, a store that is away, and a job that fails with Spark's traceback."""
        right = self.s3.environ
        batch = pa.table({"k": [1, 2, 3], "v": [1, 0, 1]})
        DeltaTable.create(
            self.location,
            batch.schema,
            configuration=dict(DELETION_VECTORS),
            storage_options=self.s3.storage_options,
        )
        for _ in range(4):
            write_deltalake(
                self.location, batch, mode="append", storage_options=self.s3.storage_options
            )
        self.secret("keys", right)
        self.secret("wrong", {**right, "AWS_SECRET_ACCESS_KEY": self.wrong})
        self.secret("elsewhere", {**right, "AWS_ENDPOINT_URL": f"http://{self.wrong}.example"})
        self.secret("pointing", {**right, "AWS_WEB_IDENTITY_TOKEN_FILE": f"/{self.wrong}"})
        dev = ["--kubeconfig", str(self.cluster.dev_kubeconfig), "-n", self.space.namespace]
        with self.process("dev", "-v", "dev", *dev):
            file = self.etcd.file("canary", self.password)
            with self.operator("json", "--etcd-password-file", file):
                self.table("good", "keys")
                self.table("denied", "wrong")
                self.table("away", "keys", endpoint="http://127.0.0.1:1")
                self.table("elsewhere", "elsewhere")
                self.table("pointing", "pointing")
                self.space.update("failing", "good", "1 / v > 0", {"v": "v + 1"}, backoffLimit=0)
                self.space.compaction("works", "good")
                self.await_reason("good", "Adopted")
                self.await_reason("denied", "AccessDenied")
                self.await_reason("elsewhere", "LocationNotAllowed")
                self.await_reason("pointing", "InvalidSpec")
                # The next one takes over what runs.
                self.space.await_phase("TableUpdate", "failing", "Running", limit_s=LONG_S)
                self.keys = self.etcd.keys("root", self.root)
                self.objects += objects(self.cluster, self.space.namespace)
            with self.operator("console", TANDEM_ETCD_PASSWORD=self.password):
                self.await_reason("away", "StorageError")
                status = self.space.await_end("TableUpdate", "failing", limit_s=LONG_S)
                assert status["phase"] == "Failed"
                self.jobs.append(job_of(status))
                status = self.space.await_end(KIND, "works", limit_s=LONG_S)
                assert status["phase"] == "Succeeded", status
                self.jobs.append(job_of(status))
                self.objects += objects(self.cluster, self.space.namespace)

    def job_logs(self) -> list[Path]:
        """`tandem dev` adds a suffix to an application's name that distinguishes its runs."""
        logs = cache_dir() / "logs"
        return [path for name in self.jobs for path in sorted(logs.glob(f"{name}-*.log"))]


def job_of(status: Mapping[str, Any]) -> str:
    """The job of an operation. Its status does not name it if an operator found the commit of the
    one before."""
    return job_name(status["operationId"], status["attempt"])


@pytest.fixture(scope="module")
def story(
    cluster: Cluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    with locked_etcd() as etcd:
        played = Story(cluster, s3_server, etcd, tmp_path_factory.mktemp("canary"))
        assert etcd.tandem(user=played.password)[0] == 0
        with command_lines() as played.lines:
            played.play()
        yield played


@pytest.mark.matrix
def test_no_secret_is_anywhere(story: Story) -> None:
    canaries = story.canaries
    for kind, body in story.objects:
        canaries.look(kind, body)
    for name, log in story.logs.items():
        canaries.look(name, log.read_bytes())
    for log in story.job_logs():
        canaries.look("jobs' logs", log.read_bytes())
    for line in story.lines:
        canaries.look("command lines", line)
    canaries.look_below("the bucket", story.s3.folder)
    canaries.look_below("etcd's files", story.etcd.member.data)
    assert canaries.found == []
    # It was looked where something could have been.
    text = story.logs["operator-json"].read_text() + story.logs["operator-console"].read_text()
    for reason in ("AccessDenied", "LocationNotAllowed", "failing", "works"):
        assert reason in text
    jobs = "".join(log.read_text() for log in story.job_logs())
    assert "DIVIDE_BY_ZERO" in jobs
    assert {"laketables.tandem.dev", "tablecompactions.tandem.dev", "events",
            "sparkapplications.sparkoperator.k8s.io"} <= canaries.looked_at.keys()  # fmt: skip
    lines = b"\n".join(story.lines)
    # `spark-submit` itself is over too soon; the JVM that it becomes has its arguments.
    for program in (b"SparkSubmit", b"tandem.cli.main"):
        assert program in lines
    assert canaries.looked_at["etcd's files"] > 10_000


@pytest.mark.matrix
def test_the_search_finds_planted_secrets(story: Story) -> None:
    """The same search in places where the secrets are on purpose."""
    canaries = story.canaries
    url = f"/api/v1/namespaces/{story.space.namespace}/secrets"
    canaries.look("the Secrets", str(story.cluster.request("GET", url)))
    canaries.look("a file", (story.etcd.folder / "canary").read_bytes())
    for word in (story.s3.secret_key, story.wrong, story.password):
        canaries.look("encoded", canaries_in_base64(word))
    assert len(canaries.found) >= 6


def canaries_in_base64(word: str) -> bytes:
    return base64.b64encode(b"x" + word.encode() + b"yz")


@pytest.mark.matrix
def test_the_operators_user_has_written_only_its_prefix(story: Story) -> None:
    """All that etcd holds, as root sees it."""
    keys = [*story.keys, *story.etcd.keys("root", story.root)]
    assert keys
    assert {key for key in keys if not key.startswith(b"/tandem/v1/")} == set()
    everything = rpc.RangeRequest(key=b"\0", range_end=b"\0")
    answer = story.etcd.ask("tandem", story.password, ("KV", "Range", everything))
    assert answer == ["etcdserver: permission denied"]


@pytest.mark.matrix
def test_secrets_were_read_one_by_one_and_only_those_named(story: Story) -> None:
    await_that(lambda: bool(story.cluster.calls(story.space.namespace)), lambda: "no audit")
    read = {
        (entry["verb"], entry["objectRef"].get("name"))
        for entry in story.cluster.calls(story.space.namespace)
        if entry["objectRef"]["resource"] == "secrets"
        and "tandem-operator" in entry["user"]["username"]
    }
    assert read == {("get", name) for name in ("keys", "wrong", "elsewhere", "pointing")}
