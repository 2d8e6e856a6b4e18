"""A file means the same to kubectl, which reads YAML 1.1, and to `tandem run`, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.cluster.api_server import Cluster, KubectlFailed
from tandem.errors import InvalidSpec
from tandem.spec import TableUpdate, load_text, parse
from tandem.spec.yaml_source import documents

HEAD = "apiVersion: tandem.dev/v1alpha1\n"
TABLE = HEAD + "kind: LakeTable\nmetadata: {name: flights}\nspec: {location: 's3://b/t'}\n---\n"

SCALARS = """
    yes no on off y n Y N Yes No On Off YES NO ON OFF true false True False TRUE FALSE
    null Null NULL ~ 0 1 -1 +1 010 017 09 -010 0o17 0x1F -0x1 0b11 1_000 1__0 0x_1F 1_0.5
    0.1 5.10 .5 +.5 1. 1e3 1E3 1e-3 1.5e3 1e400 1e 0x 1Gi 128Mi 1G 01:00 23:59 190:20:30 1:30
    2013-02 2013-02-01 2013-02-01T10:00:00Z 10m 4h 1.2.3 = yess onn nope a=b
"""
KEYS = "yes no on off y n Y N On true null 010 0x1F 1_000 1.50 1e3 7 -7 2013-02-01 a.b ~"
REFUSED = object()


def operation(template: str) -> str:
    return (
        f"{HEAD}kind: TableCompaction\nmetadata: {{name: x}}\n"
        f"spec: {{tableRef: {{name: flights}}, type: Major, sparkTemplate: {template}}}\n"
    )


def by_kubectl(cluster: Cluster, text: str) -> dict[str, Any]:
    printed = cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f", "-", input=text)
    template: dict[str, Any] = json.loads(printed)["spec"]["sparkTemplate"]
    return template


def by_us(text: str) -> Any:
    """The template, or `REFUSED` where we say that it must be in quotes."""
    try:
        (document,) = documents(text, "a.yaml")
    except InvalidSpec as error:
        return REFUSED if "in quotes" in error.expected else error
    return document.data["spec"]["sparkTemplate"]


def test_a_plain_scalar_means_the_same_or_is_refused(cluster: Cluster) -> None:
    theirs = by_kubectl(cluster, operation(f"{{a: [{', '.join(SCALARS.split())}]}}"))["a"]
    refused = set()
    for scalar, expected in zip(SCALARS.split(), theirs, strict=True):
        ours = by_us(operation(f"{{a: [{scalar}]}}"))
        if ours is REFUSED:
            refused.add(scalar)
        else:
            assert ours == {"a": [expected]}, scalar
            assert (type(ours["a"][0]) is bool) == (type(expected) is bool), scalar
    # What a person may well type is not among the refused.
    assert not {"true", "0.1", "1e3", "1Gi", "01:00", "2013-02", "10m"} & refused
    assert {"yes", "off", "y", "010", "1_000"} < refused


def test_a_plain_key_means_the_same_or_is_refused(cluster: Cluster) -> None:
    for key in KEYS.split():
        text = operation(f"{{{key}: 1}}")
        ours = by_us(text)
        assert ours is REFUSED or ours == by_kubectl(cluster, text), key


@pytest.mark.parametrize("scalar", [".inf", ".nan", "-.Inf"])
def test_yaml_that_kubectl_cannot_send_is_refused(cluster: Cluster, scalar: str) -> None:
    text = operation(f"{{a: {scalar}}}")
    assert by_us(text) is REFUSED
    with pytest.raises(KubectlFailed):
        by_kubectl(cluster, text)


@pytest.mark.parametrize("key", ["on", '"on"', "'on'"])
def test_a_merge_may_say_on_with_and_without_quotes(cluster: Cluster, key: str) -> None:
    text = (
        f"{HEAD}kind: TableUpdate\nmetadata: {{name: x}}\nspec:\n  tableRef: {{name: flights}}\n"
        f"  merge:\n    source: {{format: Delta, location: 's3://b/s'}}\n    {key}: t.id = s.id\n"
        "    whenNotMatched: [{insertAll: {}}]\n"
    )
    printed = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=text)
    theirs, (_, ours) = parse(json.loads(printed)), load_text(TABLE + text)
    assert isinstance(theirs, TableUpdate)
    assert isinstance(ours, TableUpdate)
    assert theirs.spec == ours.spec
    assert theirs.spec.merge is not None
    assert theirs.spec.merge.on == "t.id = s.id"


@pytest.mark.parametrize(
    ("kind", "spec", "theirs", "ours"),
    [
        # The column `no`, which kubectl would make `false`.
        # A segment whose name is a number to YAML.
        (
            "TableCompaction",
            "type: Custom, custom: {segments: [0.1]}",
            "must be of type string",
            'in quotes: "0.1"',
        ),
        (
            "TableCompaction",
            "type: Custom, custom: {segments: [3]}",
            "must be of type string",
            'in quotes: "3"',
        ),
        ("TableCompaction", "type: Major, suspend: 'yes'", "must be of type boolean", "true or"),
        (
            "TableIngest",
            "source: {format: Csv, location: 's3://b/c', options: {header: true}}",
            "must be of type string",
            'in quotes: "true"',
        ),
        ("TableCompaction", "type: Major, targetFileSize: 1GB", "must be a size such as", "128Mi"),
    ],
)
def test_slips_of_yaml_are_refused_with_a_hint(
    cluster: Cluster, kind: str, spec: str, theirs: str, ours: str
) -> None:
    text = (
        f"{HEAD}kind: {kind}\nmetadata: {{name: x}}\n"
        f"spec: {{tableRef: {{name: flights}}, {spec}}}\n"
    )
    with pytest.raises(KubectlFailed) as refused:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)
    assert theirs in refused.value.stderr
    with pytest.raises(InvalidSpec) as caught:
        load_text(TABLE + text)
    assert ours in str(caught.value)


def test_a_column_called_no_is_accepted_from_a_file_and_refused_with_a_hint_by_the_server(
    cluster: Cluster,
) -> None:
    text = (
        f"{HEAD}kind: TableUpdate\nmetadata: {{name: x}}\n"
        "spec: {tableRef: {name: flights}, update: {set: {no: '1'}}}\n"
    )
    with pytest.raises(KubectlFailed) as refused:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)
    assert "put column names such as" in refused.value.stderr
    _, ours = load_text(TABLE + text)
    assert isinstance(ours, TableUpdate)
    assert ours.spec.update is not None
    assert list(ours.spec.update.set) == ["no"]


def test_a_schedule_reads_as_a_schedule(cluster: Cluster) -> None:
    """`0 3 * * *` needs no quotes; one that begins with a star is an alias without them."""
    text = (
        f"{HEAD}kind: LakeTable\nmetadata: {{name: x}}\nspec:\n  location: s3://b/t\n"
        "  compaction:\n    schedules:\n      - cron: 0 3 * * *\n        template: {type: Major}\n"
    )
    cluster.kubectl("create", "--dry-run=server", "-f", "-", input=text)
    load_text(text)
    for starred in (text.replace("0 3 * * *", "*/5 * * * *"),):
        with pytest.raises(KubectlFailed, match="YAML"):
            cluster.kubectl("create", "--dry-run=server", "-f", "-", input=starred)
        with pytest.raises(InvalidSpec, match="not valid YAML"):
            load_text(starred)
