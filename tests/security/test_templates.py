"""What a hostile `sparkTemplate` tries, and that the policy `restricted` refuses it by its path.

What is admitted affects the pods of the job alone, where a user who may create operations can run
any code anyway: the image is free (docs/security.md).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from security.hostile_templates import (
    DRIVER,
    HARMLESS,
    HOSTILE,
    OURS,
    SAFE,
    SPLIT,
    Json,
    conf,
    driver,
    pod,
    sidecar,
    spec,
)
from tandem.errors import InvalidSpec
from tandem.jobs.runner import JobRequest
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.policy import TemplatePolicy, violations
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement

REQUEST = JobRequest("tandem-1", "rewrite", "s3://lake/t", "job.json", operation_id="1")
OWNER = JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "uid")
JOBS = KubeflowApplications()


def build(template: Json | None, jobs: KubeflowApplications = JOBS, **more: Any) -> Json:
    return jobs.build(REQUEST, JobPlacement(OWNER, "n", template=template, **more))


@pytest.mark.parametrize("case", [*HOSTILE, *OURS])
def test_a_hostile_template_is_refused_by_its_path(case: str) -> None:
    template, path = {**HOSTILE, **OURS}[case]
    for attempt in (lambda: JOBS.check(template, resource="x"), lambda: build(template)):
        with pytest.raises(InvalidSpec) as refused:
            attempt()
        assert refused.value.field.startswith(f"spec.sparkTemplate.{path}")


@pytest.mark.parametrize("case", SPLIT)
@pytest.mark.parametrize("policy", list(TemplatePolicy))
def test_a_text_that_would_be_split_is_refused_under_both_policies(
    case: str, policy: TemplatePolicy
) -> None:
    template, path = SPLIT[case]
    jobs = KubeflowApplications(ApplicationSettings(template_policy=policy))
    for attempt in (lambda: jobs.check(template, resource="x"), lambda: build(template, jobs)):
        with pytest.raises(InvalidSpec) as refused:
            attempt()
        assert refused.value.field.startswith(f"spec.sparkTemplate.{path}")
        assert "\n" not in str(refused.value)
    # An administrator's template is one line for each argument, too.
    with pytest.raises(InvalidSpec):
        KubeflowApplications(ApplicationSettings(template=template))


def test_a_refusal_says_what_was_found_what_is_allowed_and_how_to_allow_it() -> None:
    with pytest.raises(InvalidSpec) as refused:
        JOBS.check(conf("spark.extraListeners"), resource="TableCompaction/nightly")
    for text in ("TableCompaction/nightly", "spark.extraListeners", "template-policy.md"):
        assert text in str(refused.value)
    assert "--template-allow" in refused.value.remedy
    with pytest.raises(InvalidSpec) as split:
        JOBS.check(conf("spark.jars=x"), resource="x")
    assert split.value.found == "a key with `=`"
    assert "letters" in split.value.expected


@pytest.mark.parametrize(
    ("pattern", "template"),
    [
        ("spark.extraListeners", conf("spark.extraListeners")),
        ("spark.sql.catalog.*", conf("spark.sql.catalog.lake.uri")),
        ("spark.hadoop.fs.s3a.*", spec(hadoopConf={"fs.s3a.connection.maximum": 9})),
        ("spec.batchScheduler", spec(batchScheduler="volcano")),
        ("spec.batchSchedulerOptions", spec(batchSchedulerOptions={"queue": "lake"})),
        ("spec.deps.packages", spec(deps={"packages": ["a:b:1"]})),
        ("spec.*.template.spec.nodeName", pod(nodeName="n1")),
    ],
)
def test_an_administrator_adds_to_the_lists(pattern: str, template: Json) -> None:
    with pytest.raises(InvalidSpec):
        JOBS.check(template)
    more = KubeflowApplications(replace(JOBS.settings, template_allow=(pattern,)))
    more.check(template)
    # What is ours, and what leaves the pods, stays refused.
    for refused, _ in (*OURS.values(), *SPLIT.values(), HOSTILE["host path"]):
        with pytest.raises(InvalidSpec):
            more.check(refused)


@pytest.mark.parametrize(
    "pattern", ["", "*", "driver.image", "spark", "spark.x=y", "spec.a b", "spec."]
)
def test_a_pattern_that_names_nothing_is_refused_at_the_start(pattern: str) -> None:
    with pytest.raises(InvalidSpec, match="--template-allow"):
        KubeflowApplications(ApplicationSettings(template_allow=(pattern,)))


ODD: tuple[Any, ...] = (
    True,
    5,
    "x",
    [[]],
    [None],
    {"a": []},
    [{"name": [], "value": {}}],
    {"add": 5, "drop": [[]]},
)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_template_value_of_another_type_is_refused_and_no_internal_error(value: Any) -> None:
    """Only the Spark operator defines what these mean."""
    inside = {"securityContext": {"sysctls": value}}
    for template in (
        driver(securityContext={"capabilities": {"drop": value}}),
        driver(securityContext={"capabilities": {"drop": ["ALL"], "add": value}}),
        driver(podSecurityContext={"sysctls": value}),
        driver(template={"spec": inside}),
        driver(sidecars=[sidecar(securityContext=value)]),
    ):
        with pytest.raises(InvalidSpec):
            JOBS.check(template, resource="x")
    with contextlib.suppress(InvalidSpec):  # no port of the host in most of them
        JOBS.check(driver(ports=value), resource="x")


@pytest.mark.parametrize("case", HARMLESS)
def test_template_fields_that_affect_only_the_pods_are_allowed(case: str) -> None:
    JOBS.check(HARMLESS[case])
    assert build(HARMLESS[case])["spec"]["driver"]


def test_policy_any_admits_fields_that_tandem_does_not_set() -> None:
    free = KubeflowApplications(ApplicationSettings(template_policy=TemplatePolicy.ANY))
    for template, _ in HOSTILE.values():
        build(template, free)
    for template, _ in OURS.values():
        with pytest.raises(InvalidSpec):
            build(template, free)


def test_a_tables_service_account_is_used_for_that_table_only() -> None:
    build(driver(serviceAccount="reader"), service_account="reader")
    JOBS.check(driver(serviceAccount="reader"), service_account="reader")
    with pytest.raises(InvalidSpec):
        build(driver(serviceAccount="admin"), service_account="reader")


def test_the_administrators_template_is_not_held_against_a_resource() -> None:
    beside = sidecar(securityContext={"privileged": True})
    mine = {
        "spec": {
            "sparkConf": {"spark.jars.packages": "ours:ours:1"},
            "driver": {"sidecars": [beside]},
        }
    }
    jobs = KubeflowApplications(replace(JOBS.settings, template=mine))
    build(driver(memory="8g"), jobs)
    for stolen in (
        driver(sidecars=[{"name": "beside", "image": "evil"}]),
        driver(sidecars=[{"name": "beside", "command": ["evil"]}]),
        conf("spark.jars.packages", "evil:evil:1"),
        driver(sidecars=[{"name": "another", "securityContext": {"privileged": True}}]),
    ):
        with pytest.raises(InvalidSpec):
            build(stolen, jobs)


HOST_MOUNT = {"name": "host", "mountPath": "/host"}
COMPLIANT = sidecar(name="mine", securityContext=SAFE, volumeMounts=[HOST_MOUNT])


@pytest.mark.parametrize(
    "template",
    [
        driver(volumeMounts=[HOST_MOUNT]),
        {"spec": {"executor": {"volumeMounts": [HOST_MOUNT]}}},
        driver(initContainers=[COMPLIANT]),
        driver(sidecars=[COMPLIANT]),
        driver(sidecars=[{"name": "logs", "image": "evil"}]),
        driver(template={"spec": {"containers": [COMPLIANT]}}),
        driver(template={"spec": {"initContainers": [COMPLIANT]}}),
    ],
    ids=json.dumps,
)
def test_an_administrators_host_volume_is_mounted_by_no_other_container(template: Json) -> None:
    logs = sidecar(name="logs", securityContext=SAFE, volumeMounts=[HOST_MOUNT])
    host = {"name": "host", "hostPath": {"path": "/var/log"}}
    admin = {"spec": {"volumes": [host], "driver": {"sidecars": [logs]}}}
    jobs = KubeflowApplications(replace(JOBS.settings, template=admin))
    build(driver(memory="8g"), jobs)
    with pytest.raises(InvalidSpec, match=r"volumeMounts\.host"):
        build(template, jobs)


@pytest.mark.parametrize("executors", [0, 4])
def test_our_own_pods_keep_to_restricted(executors: int) -> None:
    template = spec(executor={"instances": executors}) if executors else None
    made = build(template)["spec"]
    assert list(violations(made, accounts=["tandem-spark"])) == []
    for part, name in (("driver", DRIVER), ("executor", "spark-kubernetes-executor")):
        inner = made[part]["template"]["spec"]
        [main] = [c for c in inner["containers"] if c["name"] == name]
        for context_ in (made[part]["securityContext"], main["securityContext"]):
            assert context_["runAsNonRoot"] is True
            assert context_["runAsUser"] != 0
            assert context_["allowPrivilegeEscalation"] is False
            assert context_["capabilities"] == {"drop": ["ALL"]}
            assert context_["seccompProfile"] == {"type": "RuntimeDefault"}
        # Only a driver that makes executors needs the API server.
        speaks = part == "driver" and executors > 0
        assert inner.get("automountServiceAccountToken", True) is speaks


def test_examples_keep_to_restricted() -> None:
    root = Path(__file__).resolve().parents[2]
    for file in sorted(root.glob("examples/**/*.yaml")):
        for body in yaml.safe_load_all(file.read_text()):
            for template in _templates(body):
                JOBS.check(template, resource=str(file))


def _templates(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "sparkTemplate":
                yield inner
            yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


def test_no_content_of_a_template_is_repeated() -> None:
    secret = "CANARY-4711"
    for template in (
        conf("spark.hadoop.fs.s3a.secret.key", secret),
        driver(sidecars=[sidecar(env=[{"name": "K", "value": secret}])]),
    ):
        with pytest.raises(InvalidSpec) as refused:
            build(template)
        assert secret not in str(refused.value) + json.dumps(refused.value.__dict__, default=str)
