"""The real API server takes what is right, and refuses what is wrong in the words that we wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from crds.broken_fields import Broken, broken_fields, example, schema_of
from crds.dry_run import Sender
from crds.wrong_resources import (
    ONLY_THE_VALIDATOR,
    RIGHT,
    WRONG,
    manifest,
)
from support.cluster.api_server import ApiRefused, Cluster, KubectlFailed
from tandem.errors import InvalidSpec
from tandem.spec import KINDS, common, crd, load_all, load_text, parse
from tandem.spec.common import OPERATIONS
from tandem.spec.problems import InvalidSpecs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = f"apiVersion: {common.GROUP}/"


def fields_of(kind: str) -> dict[str, Any]:
    """The fields of its spec, with their schemas."""
    fields: dict[str, Any] = schema_of(kind)["properties"]["spec"]["properties"]
    return fields


def samples() -> list[tuple[str, str]]:
    """Every YAML of ours that a reader may apply."""
    found = [
        (str(file.relative_to(ROOT)), file.read_text())
        for file in sorted((ROOT / "examples").rglob("*.yaml"))
    ]
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)):
            found.append((f"{page.relative_to(ROOT)} {number}", block))
    return [(name, text) for name, text in found if is_ours(text)]


def is_ours(text: str) -> bool:
    """Others' resources may name our kinds within, as health checks do."""
    return re.search(rf"^{OURS}", text, re.M) is not None


# As `contract.md` types them: also what no version does yet.
CONTRACT = (Path(__file__).parent / "contract.yaml").read_text()


def test_every_sample_applies(cluster: Cluster, tmp_path: Path) -> None:
    """As a user does it, with one `kubectl apply` for all files."""
    found = [*samples(), ("contract.yaml", CONTRACT)]
    assert len(found) > 5
    count = 0
    for number, (name, text) in enumerate(found):
        ours = [document for document in re.split(r"^---$", text, flags=re.M) if is_ours(document)]
        count += len(ours)
        (tmp_path / f"{number}.yaml").write_text(f"# {name}\n" + "---\n".join(ours))
        for document in yaml.safe_load_all("---\n".join(ours)):
            namespace = document["metadata"].get("namespace", "default")
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            with suppress(ApiRefused):  # it is there already
                cluster.request("POST", "/api/v1/namespaces", body)
    printed = cluster.kubectl("apply", "--dry-run=server", "-f", str(tmp_path))
    assert printed.count("(server dry run)") == count


def test_the_contract_means_the_same_without_a_cluster() -> None:
    file = Path(__file__).parent / "contract.yaml"
    assert {resource.kind_name for resource in load_all([file])} == set(KINDS)
    # What runs without a cluster.
    assert {resource.kind_name for resource in load_text(CONTRACT)} == {*OPERATIONS, "LakeTable"}


def refusals(stderr: str) -> dict[str, str]:
    """File name → what kubectl printed about it."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=Error from server)", stderr, flags=re.M):
        name = re.search(r'error when creating ".*?([^/"]+)\.yaml"', part)
        if name:
            found[name.group(1)] = part
    return found


def test_wrong_resources_are_refused_with_messages_of_tandem(
    cluster: Cluster, space: str, tmp_path: Path
) -> None:
    for number, wrong in enumerate(WRONG):
        (tmp_path / f"{number:03}.yaml").write_text(yaml.safe_dump(wrong.manifest()))
    with pytest.raises(KubectlFailed) as caught:
        cluster.kubectl("-n", space, "create", "--dry-run=server", "-f", str(tmp_path))
    refused = refusals(caught.value.stderr)
    missing = [
        (wrong.id, refused.get(f"{number:03}", "accepted"))
        for number, wrong in enumerate(WRONG)
        if wrong.words not in refused.get(f"{number:03}", "")
    ]
    assert missing == []
    assert "hunter2" not in caught.value.stderr


def test_resources_that_only_the_validator_can_refuse_are_admitted(sender: Sender) -> None:
    """So that the list says the truth; the operator then says what is wrong."""
    answers = sender.dry_run([wrong.manifest() for wrong in ONLY_THE_VALIDATOR])
    assert answers == [""] * len(ONLY_THE_VALIDATOR)


@pytest.mark.part(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_bound_and_name_of_a_field_counts(sender: Sender, kind: str) -> None:
    """The API server and `tandem run` both refuse each, and name the field."""
    broken = list(broken_fields(kind, schema_of(kind)))
    assert len(broken) > 40
    answers = sender.dry_run([one.resource for one in broken])
    server = [
        (one.id, answer or "accepted")
        for one, answer in zip(broken, answers, strict=True)
        if one.words not in answer or one.field not in answer.replace("[a]", ".a")
    ]
    assert server == []
    assert [(one.id, fields_refused(one)) for one in broken if not is_refused(one)] == []


def is_refused(broken: Broken) -> bool:
    """Whether `tandem run` says the same; what is there twice it says of the list."""
    fields = fields_refused(broken)
    return broken.field in fields or (
        broken.why == "twice" and any(broken.field.startswith(field) for field in fields)
    )


def fields_refused(broken: Broken) -> list[str]:
    """The fields that are wrong without a cluster."""
    try:
        parse(broken.resource)
    except InvalidSpecs as error:
        return [problem.field for problem in error.problems]
    except InvalidSpec as error:
        return [error.field]
    return []


def created(cluster: Cluster, space: str, resource: dict[str, Any]) -> dict[str, Any]:
    plural = common.plural(resource["kind"])
    path = f"/apis/{common.GROUP}/{common.VERSION}/namespaces/{space}/{plural}"
    made: dict[str, Any] = cluster.request("POST", path, resource)
    return made


def changes(kind: str, made: dict[str, Any], fields: Iterable[str]) -> list[dict[str, Any]]:
    """For each field of the spec, the resource with that field changed, added or taken away."""
    spec = fields_of(kind)
    found = []
    for field in fields:
        old = made["spec"].get(field)
        match old:
            case None:
                new = example(spec[field])
            case bool():
                new = not old
            case int():
                new = old + 1
            case str() if "enum" in spec[field]:
                new = spec[field]["enum"][-1]
            case str():
                new = {"location": "s3://lake/elsewhere"}.get(field, "2Gi")
            case [first, *_]:
                new = [first, "8"]
            case dict():
                new = {**old, **DIFFERENT[field]}
            case _:
                raise AssertionError(f"{field}: {old!r}")
        assert new != old
        found.append({**made, "spec": {**made["spec"], field: new}})
    return found


DIFFERENT: dict[str, dict[str, Any]] = {
    "tableRef": {"name": "other"},
    "replace": {"intervals": ["2014"]},
    "source": {"location": "s3://lake/other"},
    "delete": {"where": "a = 2"},
    "rewrite": {"purgeDeleted": False},
    "layout": {"strategy": "Sort", "columns": ["a"]},
    "conflict": {"maxAttempts": 7},
    "sparkTemplate": {"spec": {"driver": {"cores": 3}}},
}
FREE = {"suspend": True, "priority": 7, "ttlSecondsAfterFinished": 60}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_an_operation_keeps_its_spec_but_for_three_fields(
    cluster: Cluster, space: str, sender: Sender, kind: str
) -> None:
    template = {"sparkTemplate": {"spec": {"driver": {"cores": 2}}}}
    made = created(cluster, space, manifest(kind, template, f"keeps-{kind.lower()}"))
    fixed = sorted(set(fields_of(kind)) - set(FREE))
    answers = sender.dry_run(changes(kind, made, fixed))
    for field, answer in zip(fixed, answers, strict=True):
        assert f"spec.{field}: Forbidden: cannot be changed: create a new {kind}" in answer
        assert "only priority, suspend, ttlSecondsAfterFinished may change" in answer
    free = [{**made, "spec": {**made["spec"], field: value}} for field, value in FREE.items()]
    assert sender.dry_run([made, *free]) == [""] * 4
    # Taking one away is a change too.
    without = {key: value for key, value in made["spec"].items() if key != "sparkTemplate"}
    (answer,) = sender.dry_run([{**made, "spec": without}])
    assert "spec.sparkTemplate: Forbidden: cannot be changed" in answer


def test_a_table_keeps_its_location_and_nothing_else(
    cluster: Cluster, space: str, sender: Sender
) -> None:
    made = created(cluster, space, manifest("LakeTable", {}, "keeps"))
    others = {
        "enableDeletionVectors": True,
        "vectors": "Only",
        "retention": {"files": "1h", "rowMaps": "1h"},
        "storage": {"options": {"region": "eu-central-1"}},
        "time": {"column": "day"},
        "create": {"schema": [{"name": "a", "type": "long"}]},
        "compaction": {"minor": {}},
        "mergeOnRead": {"keys": ["a"]},
        "index": {"server": "lake"},
    }
    assert {"location", "catalog", *others} == set(fields_of("LakeTable"))
    location, catalog, *rest = sender.dry_run(
        [
            *changes("LakeTable", made, ["location", "catalog"]),
            *({**made, "spec": {**made["spec"], name: value}} for name, value in others.items()),
        ]
    )
    assert "spec.location: Forbidden: cannot be changed: create a new LakeTable" in location
    assert "spec.catalog: Forbidden: cannot be changed: create a new LakeTable" in catalog
    assert rest == [""] * len(others)


def test_a_refused_change_names_the_remedy(cluster: Cluster, space: str) -> None:
    late = yaml.safe_dump(manifest("TableUpdate", {}, "late"))
    cluster.kubectl("-n", space, "apply", "-f", "-", input=late)
    with pytest.raises(KubectlFailed, match="create a new TableUpdate"):
        cluster.kubectl("-n", space, "apply", "-f", "-", input=late.replace("a = 1", "a = 2"))
    cluster.kubectl(
        "-n", space, "patch", "tupd", "late", "--type=merge", "-p", '{"spec": {"suspend": true}}'
    )


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_the_model_and_the_status_is_empty(
    cluster: Cluster, space: str, kind: str
) -> None:
    made = created(cluster, space, manifest(kind, {}, f"new-{kind.lower()}"))
    assert made["status"] == {"observedGeneration": -1}
    # What the API server filled in changes no meaning: the model fills in the same.
    assert parse(made).spec == parse(manifest(kind, {})).spec
    filled = set(made["spec"]) - set(RIGHT[kind])
    assert filled
    assert filled <= set(parse(made).spec.model_dump(by_alias=True))


def test_kubectl_lists_explains_and_selects(cluster: Cluster, space: str) -> None:
    resource = created(cluster, space, manifest("TableCompaction", {}, "shown"))
    cluster.request(
        "PATCH",
        f"/apis/{common.GROUP}/{common.VERSION}/namespaces/{space}/tablecompactions/shown/status",
        {
            "status": {
                "observedGeneration": resource["metadata"]["generation"],
                "phase": "Running",
                "attempt": 1,
                "progress": {"percent": 60, "summary": "12/20 files"},
                "conditions": [
                    {
                        "type": "Succeeded",
                        "status": "Unknown",
                        "reason": "Running",
                        "message": "",
                        "lastTransitionTime": "2026-11-21T10:00:00Z",
                    }
                ],
            }
        },
        content_type="application/merge-patch+json",
    )
    get = ("-n", space, "get")
    printed = cluster.kubectl(*get, "tcomp", "shown").splitlines()
    assert printed[0].split() == ["NAME", "TABLE", "TYPE", "PHASE", "PROGRESS", "REASON", "AGE"]
    assert printed[1].split()[:-1] == [
        *["shown", "flights", "Major", "Running", "12/20", "files", "Running"],
    ]
    assert "ATTEMPT" in cluster.kubectl(*get, "tcomp", "shown", "-o", "wide")
    selector = "--field-selector=spec.tableRef.name=flights,status.phase=Running"
    assert cluster.kubectl(*get, "tcomp", selector, "-o", "name").split() == [
        "tablecompaction.tandem.dev/shown"
    ]
    assert cluster.kubectl(*get, "tcomp", "--field-selector=status.phase=Failed").strip() == ""
    assert "tablecompaction.tandem.dev/shown" in cluster.kubectl(*get, "lake", "-o", "name")


def test_short_names_the_category_and_the_columns_of_a_table(cluster: Cluster, space: str) -> None:
    created(cluster, space, manifest("LakeTable", {}, "columns"))
    listed = cluster.kubectl("api-resources", "--api-group", common.GROUP, "-o", "wide")
    rows = {line.split()[0]: line for line in listed.splitlines()[1:]}
    for kind, model in KINDS.items():
        assert model.short_name in rows[common.plural(kind)].split()
        assert rows[common.plural(kind)].split()[-1] == crd.CATEGORY
    header, *_ = cluster.kubectl("-n", space, "get", "ltbl", "columns").splitlines()
    assert header.split() == [
        *["NAME", "VERSION", "SEGMENTS", "FILES", "BYTES", "READY", "REASON", "AGE"],
    ]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("tcomp.spec.targetFileSize", "A Kubernetes quantity in bytes"),
        ("ltbl.spec.retention.files", "A Go duration"),
        ("tupd.spec.isolation", "WriteSerializable"),
        ("segrw", "each under its own name"),
        ("ting.status.result.version", "The Delta version of the commit"),
    ],
)
def test_kubectl_explains(cluster: Cluster, field: str, words: str) -> None:
    assert words in " ".join(cluster.kubectl("explain", field).split())
