"""What the pods of a job may do: nothing but their work, and write to /tmp alone."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.jobs.runner import JobRequest
from tandem.spark.application.manifest import build
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement

Json = dict[str, Any]

REQUEST = JobRequest("tandem-0123456789abcdef-2", "rewrite", "s3://lake/flights", "job.json")
OWNER = JobOwner("tandem.dev/v1alpha1", "TableCompaction", "nightly", "uid-1")
PARTS = (("driver", "spark-kubernetes-driver"), ("executor", "spark-kubernetes-executor"))
TMP = {"name": "tandem-tmp", "mountPath": "/tmp"}


def spec(template: Json | None = None) -> Json:
    built = build(REQUEST, JobPlacement(OWNER, "lake", template=template), ApplicationSettings())
    found: Json = built["spec"]
    return found


def container(pod: Json, name: str) -> Json:
    [found] = [c for c in pod["template"]["spec"]["containers"] if c["name"] == name]
    return dict(found)


def test_pods_run_without_rights_and_keep_their_termination_message() -> None:
    for part, name in PARTS:
        pod = spec()[part]
        main = container(pod, name)
        assert main["terminationMessagePolicy"] == "FallbackToLogsOnError"
        for context in (pod["securityContext"], main["securityContext"]):
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] == 185
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_only_tmp_can_be_written() -> None:
    for part, name in PARTS:
        pod = spec()[part]
        assert pod["template"]["spec"]["volumes"] == [{"name": "tandem-tmp", "emptyDir": {}}]
        assert container(pod, name)["volumeMounts"] == [TMP]


def test_a_volume_mounted_twice_is_kept_with_ours() -> None:
    twice = [{"name": "a", "mountPath": "/x", "subPath": "x"}, {"name": "a", "mountPath": "/y"}]
    name = "spark-kubernetes-driver"
    template: Json = {"spec": {"containers": [{"name": name, "volumeMounts": twice}]}}
    template["spec"]["volumes"] = [{"name": "a", "emptyDir": {}}]
    driver = spec({"spec": {"driver": {"template": template}}})["driver"]
    assert container(driver, name)["volumeMounts"] == [*twice, TMP]
    assert [v["name"] for v in driver["template"]["spec"]["volumes"]] == ["a", "tandem-tmp"]


@pytest.mark.parametrize("way", ["field", "template", "setting"])
def test_a_templates_own_tmp_is_not_mounted_over(way: str) -> None:
    own = [{"name": "scratch", "mountPath": "/tmp/"}]
    for part, name in PARTS:
        setting = f"spark.kubernetes.{part}.volumes.emptyDir.scratch.mount.path"
        pieces: Json = {
            "field": {part: {"volumeMounts": own}},
            "template": {
                part: {"template": {"spec": {"containers": [{"name": name, "volumeMounts": own}]}}}
            },
            "setting": {"sparkConf": {setting: "/tmp"}},
        }
        pod = spec({"spec": pieces[way]})[part]
        mounts = container(pod, name).get("volumeMounts", [])
        assert mounts == (own if way == "template" else [])
        assert "volumes" not in pod["template"]["spec"]


@pytest.mark.parametrize("shape", ["x", 3, {"a": "b"}])
def test_an_invalid_list_of_mounts_is_left_to_the_api_server(shape: Any) -> None:
    pod = spec({"spec": {"driver": {"volumeMounts": shape}}})["driver"]
    assert pod["volumeMounts"] == shape
    assert "volumes" not in pod["template"]["spec"]


def test_the_default_image_is_the_one_of_this_version() -> None:
    from tandem import __version__

    assert spec()["image"] == f"tandem:{__version__}"
