"""Thousands of generated templates (`make matrix`: four times as many): what the policy admits
arrives at Spark as the policy read it.

Those that pass become SparkApplications; the Spark operator's own argument builder makes arguments
of them, and Spark's own parser reads these. A setting that is not among those that the
application's fields mean, or a list with another item, is one that broke out.
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from security.dry_submit import API_SERVER, operators_arguments, sparks_parsing
from security.generated_templates import expected_properties, templates
from support.some import few
from tandem.errors import InvalidSpec
from tandem.jobs.runner import JobRequest
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.policy import TemplatePolicy, setting_allowed
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement
from tandem.spark.runtime.session import launch_environment, session_conf, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]

COUNT = {TemplatePolicy.RESTRICTED: few(2_500, 10_000), TemplatePolicy.ANY: few(500, 2_000)}
PREPARED_EACH = 50
"""Of so many one is also prepared for submission, which takes longer."""
REQUEST = JobRequest("tandem-1", "rewrite", "s3://lake/t", "job.json", operation_id="1")
OWNER = JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "uid")
LISTS = {
    "jars": "spark.jars",
    "files": "spark.files",
    "pyFiles": "spark.submit.pyFiles",
    "archives": "spark.archives",
}
OPERATORS_OWN = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.label\.sparkoperator\.k8s\.io/.*"
    r"|spark\.kubernetes\.(driver|executor)\.podTemplate(File|ContainerName)"
    r"|spark\.kubernetes\.driver\.pod\.name|spark\.kubernetes\.submission\.waitAppCompletion"
)
"""Settings that the Spark operator adds to every application."""


def applications(policy: TemplatePolicy, seed: int) -> list[tuple[Json, Json]]:
    """Templates that the policy admits, and the applications that they make."""
    jobs = KubeflowApplications(ApplicationSettings(template_policy=policy))
    made = []
    for template in templates(COUNT[policy], seed):
        try:
            made.append(
                (template, jobs.build(REQUEST, JobPlacement(OWNER, "n", template=template)))
            )
        except InvalidSpec:
            continue
    return made


@pytest.mark.matrix
@pytest.mark.parametrize("policy", list(TemplatePolicy))
def test_admitted_templates_arrive_as_the_policy_read_them(
    policy: TemplatePolicy, spark: SparkSession, tmp_path: Path
) -> None:
    made = applications(policy, seed=20_260)
    assert COUNT[policy] // 4 < len(made) < COUNT[policy] * 9 // 10
    # What is of another type than the field's, its definition in the cluster refuses, too.
    answers = operators_arguments(application for _, application in made)
    made = [pair for pair, each in zip(made, answers, strict=True) if "error" not in each]
    submitted = [each for each in answers if "error" not in each]
    if policy is TemplatePolicy.RESTRICTED:
        assert len(made) == len(answers)
    # Under `any` a template may name hosts that a preparation would look for.
    each = PREPARED_EACH if policy is TemplatePolicy.RESTRICTED else 0
    lists = [answer["arguments"] for answer in submitted]
    parsed = sparks_parsing(spark, lists, tmp_path, each)
    assert len(parsed) == len(made)
    for (template, application), arrived in zip(made, parsed, strict=True):
        assert_arrived(template, application, arrived, policy)
    assert sum("properties" in arrived for arrived in parsed) > len(made) * 9 // 10
    assert any("prepared" in arrived for arrived in parsed) is bool(each)


def assert_arrived(
    template: Json, application: Json, arrived: Json, policy: TemplatePolicy
) -> None:
    spec = application["spec"]
    if "error" in arrived:
        # Spark refuses a size that is none.
        assert "must be a positive number" in arrived["error"], (template, arrived)
        return
    properties = arrived["properties"]
    own = {key for key in properties if OPERATORS_OWN.fullmatch(key)}
    expected = expected_properties(application)
    # Spark drops what is no setting of Spark.
    expected = {key: value for key, value in expected.items() if key.startswith("spark.")}
    found = {key: value for key, value in properties.items() if key not in own}
    assert found == expected, template
    pins = session_conf()
    assert {key: properties[key] for key in pins} == pins, template
    # What the job is.
    host, port = API_SERVER
    assert arrived["master"] == f"k8s://https://{host}:{port}"
    assert arrived["deployMode"] == "cluster"
    assert arrived["primaryResource"] == spec["mainApplicationFile"]
    assert arrived["childArgs"] == spec["arguments"]
    assert arrived["name"] == application["metadata"]["name"]
    assert arrived["mainClass"] is None
    deps = spec.get("deps") or {}
    for kind, setting in LISTS.items():
        items = [] if arrived[kind] is None else arrived[kind].split(",")
        beside = expected[setting].split(",") if setting in expected else []
        wanted = deps.get(kind) or beside
        if policy is TemplatePolicy.RESTRICTED:
            assert items == wanted, template
        # Spark makes whole addresses of paths; each item stays one.
        assert len(items) == len(wanted), template
    if policy is TemplatePolicy.RESTRICTED:
        assert (arrived["packages"], arrived["proxyUser"]) == (None, None)
        asked = (template.get("spec") or {}).get("sparkConf") or {}
        assert all(setting_allowed(key) for key in asked), template
        local = [item for kind in LISTS for item in deps.get(kind) or ()]
        assert all(item.startswith("local:///") for item in local), template
        assert not any("${" in str(value) for value in found.values()), template
    if "prepared" in arrived:
        # In the parser's own process there are settings of the tests, too.
        prepared = dict(arrived["prepared"])
        assert arrived["client"].endswith("KubernetesClientApplication")
        assert {key: prepared[key] for key in pins} == pins
        assert prepared["spark.master"] == arrived["master"]
        items = [item for key in LISTS.values() for item in prepared.get(key, "").split(",")]
        assert all(item.startswith("local:///") for item in items if item), (template, prepared)


@pytest.mark.matrix
def test_spark_submit_connects_to_nothing_that_a_template_names(tmp_path: Path) -> None:
    """The real program: it looks for a file of the setting that no key smuggles in any more."""
    jobs = KubeflowApplications()
    with listener() as (port, connected), listener() as (another, too):
        smuggled = f"spark.files=hdfs://127.0.0.1:{port}/x,"
        with pytest.raises(InvalidSpec):
            jobs.check({"spec": {"sparkConf": {smuggled: "x"}}})
        admitted = {"spec": {"sparkConf": {"spark.sql.shuffle.partitions": 4}}}
        application = jobs.build(REQUEST, JobPlacement(OWNER, "n", template=admitted))
        [answer] = operators_arguments([application])
        arguments = answer["arguments"]
        at = arguments.index(application["spec"]["mainApplicationFile"])
        # What the same arguments would do with the key: the test can see it.
        with_key = ["--conf", f"spark.files=hdfs://127.0.0.1:{another}/x,=x"]
        hostile = submit([*arguments[:at], *with_key, *arguments[at:]], tmp_path)
        output, _ = submit(arguments, tmp_path).communicate(timeout=240)
        hostile.communicate(timeout=240)
        assert "spark.sql.shuffle.partitions" in output
        assert "KubernetesClientException" in output
    assert not connected.is_set()
    assert too.is_set()


def submit(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """`spark-submit --verbose` up to the API server, which is not there."""
    env = {
        **launch_environment(),
        "KUBERNETES_REQUEST_RETRY_BACKOFFLIMIT": "0",
        "HADOOP_CONF_DIR": str(folder),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    env.pop("KUBECONFIG", None)
    # Hadoop asks a host that does not answer as it should ten times, and more.
    (folder / "core-site.xml").write_text(
        "<configuration><property><name>ipc.client.connect.max.retries</name><value>0</value>"
        "</property></configuration>"
    )
    return subprocess.Popen(
        [str(spark_home() / "bin" / "spark-submit"), "--verbose", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def listener() -> Iterator[tuple[int, threading.Event]]:
    """A port of this machine, and an event that is set when something has connected to it. It
    hangs up at once."""
    connected = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:  # closed
                    return
                connected.set()
                client.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], connected
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
