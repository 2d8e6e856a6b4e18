"""What people write is accepted exactly as the contract spells it, or refused with a good word."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tandem.errors import InvalidSpec, ReferenceNotFound, TandemError
from tandem.spec import (
    LakeTable,
    TableCompaction,
    TableIngest,
    TableUpdate,
    load,
    load_text,
    parse,
    spec_hash,
)
from tandem.spec.common import OPERATIONS, Exclusive, Operation
from tandem.spec.problems import InvalidSpecs

HEAD = "apiVersion: tandem.dev/v1alpha1\n"
TABLE = (
    HEAD + "kind: LakeTable\nmetadata: {name: flights}\nspec: {location: 'file:///data/flights'}\n"
)


def document(kind: str, spec: str, name: str = "x", meta: str = "") -> str:
    return f"{HEAD}kind: {kind}\nmetadata: {{name: {name}{meta}}}\nspec: {spec}\n"


def compaction(spec: str, name: str = "nightly") -> str:
    return document("TableCompaction", f"{{tableRef: {{name: flights}}, {spec}}}", name)


def update(spec: str, name: str = "late") -> str:
    return document("TableUpdate", f"{{tableRef: {{name: flights}}, {spec}}}", name)


def problems(text: str) -> list[InvalidSpec]:
    with pytest.raises(InvalidSpec) as caught:
        load_text(text, "a.yaml")
    return list(caught.value.problems) if isinstance(caught.value, InvalidSpecs) else [caught.value]


def test_a_table_with_every_field_of_the_contract() -> None:
    (table,) = load_text(
        HEAD
        + """
kind: LakeTable
metadata: {name: flights}
spec:
  location: s3://lake/flights/
  storage:
    secretRef: {name: lake}
    options: {endpoint: "https://s3.example", region: eu-central-1}
  enableDeletionVectors: true
  create: {schema: [{name: id, type: long, nullable: false}], partitionBy: []}
  time: {column: time_hour, granularity: Month}
  retention: {files: 168h, rowMaps: 24h}
  compaction:
    minor: {enabled: true, thresholds: [4, 3]}
    schedules: [{cron: "0 3 * * *", template: {type: SemiMajor,
      layout: {strategy: ZOrder, columns: [carrier]}}}]
    skipOffsetFromLatest: 24h
    minInterval: 10m
    maintenanceWindow: {start: "01:00", duration: 4h, timeZone: Europe/Berlin}
    history: {succeeded: 3, failed: 3}
"""
    )
    assert isinstance(table, LakeTable)
    assert table.spec.location == "s3://lake/flights"
    assert table.spec.create is not None
    assert table.spec.create.columns[0].nullable is False
    assert table.spec.retention is not None
    assert table.spec.retention.row_maps == 24 * 3_600_000
    assert table.spec.compaction is not None
    assert table.spec.compaction.schedules[0].template.layout.columns == ("carrier",)


def test_a_compaction_fills_in_defaults() -> None:
    _, resource = load_text(f"{TABLE}---\n{compaction('type: Minor')}")
    assert isinstance(resource, TableCompaction)
    assert resource.spec.minor_options.thresholds == (4, 3)
    assert resource.spec.target_file_size is None, "the table says"
    assert resource.spec.backoff_limit == 3
    assert resource.namespace == "default"
    assert resource.id == "TableCompaction/nightly"


def test_an_update_an_ingest_and_their_manifests_print_as_typed() -> None:
    _, late, day = load_text(
        f"{TABLE}---\n"
        + update(
            "update: {where: \"carrier = 'UA'\", set: {dep_delay: dep_delay + 15}},"
            " conflict: {maxAttempts: 2}"
        )
        + "---\n"
        + document(
            "TableIngest",
            "{tableRef: {name: flights}, targetFileSize: 64Mi, source: {format: Csv,"
            ' location: "file:///in/d.csv", options: {header: "true"}}}',
        )
    )
    assert isinstance(late, TableUpdate)
    assert isinstance(day, TableIngest)
    assert late.manifest() == {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "TableUpdate",
        "metadata": {"name": "late"},
        "spec": {
            "tableRef": {"name": "flights"},
            "update": {"where": "carrier = 'UA'", "set": {"dep_delay": "dep_delay + 15"}},
            "conflict": {"maxAttempts": 2},
        },
    }
    assert day.manifest()["spec"]["targetFileSize"] == "64Mi"
    assert parse(late.manifest()) == late


def test_on_is_a_key_and_times_and_months_are_text() -> None:
    _, merge, chunks = load_text(
        f"{TABLE}---\n"
        + update(
            "merge: {source: {format: Delta, location: 's3://b/s'}, on: t.id = s.id,"
            " whenNotMatched: [{insertAll: {}}]}"
        )
        + "---\n"
        + compaction("type: SemiMajor, semiMajor: {chunks: [2013-02, 2013-02-01]}")
    )
    assert isinstance(merge, TableUpdate)
    assert merge.spec.merge is not None
    assert merge.spec.merge.on == "t.id = s.id"
    assert isinstance(chunks, TableCompaction)
    assert chunks.spec.semi_major_options.chunks == ("2013-02", "2013-02-01")


def test_fields_that_the_api_server_adds_are_accepted() -> None:
    resource = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {
                "name": "flights",
                "namespace": "lake",
                "uid": "u",
                "generation": 3,
                "resourceVersion": "12",
                "creationTimestamp": "2026-11-21T10:00:00Z",
                "managedFields": [{}],
            },
            "spec": {"location": "file:///data/flights"},
            "status": {"phase": "Succeeded"},
        }
    )
    assert resource.metadata.generation == 3
    assert resource.key == ("LakeTable", "lake", "flights")


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ("type: minor", "spec.type", "Did you mean Minor?"),
        ("typ: Minor", "spec.typ", "Did you mean type?"),
        ("type: Minor, minor: {maxSegmentsize: 1}", "spec.minor.maxSegmentsize", "maxSegmentSize"),
        ("type: Minor, minor: {thresholds: [4, 1]}", "spec.minor.thresholds[1]", "greater than"),
        ("type: Minor, minor: {thresholds: []}", "spec.minor.thresholds", "at least 1"),
        ("type: Minor, minor: {thresholds: [4, '3']}", "spec.minor.thresholds[1]", "whole number"),
        ("type: Minor, minor: {thresholds: 4}", "spec.minor.thresholds", "a list"),
        ("type: Minor, minor: {preserve: -1}", "spec.minor.preserve", "greater than or equal"),
        ("type: Custom, custom: {segments: ['1', '1']}", "spec.custom.segments", "twice"),
        ("type: Custom, custom: {segments: [3]}", "spec.custom.segments[0]", 'in quotes: "3"'),
        ("type: Major, maxBytesPerCommit: 16GB", "spec.maxBytesPerCommit", "128Mi"),
        ("type: Major, minRowGroupRows: -1", "spec.minRowGroupRows", "greater than or equal"),
        ("type: Major, minRowGroupRows: 2147483648", "spec.minRowGroupRows", "less than or equal"),
        ("type: Major, minRowGroupRows: 1.0", "spec.minRowGroupRows", "whole number"),
        ("type: Major, minRowGroupRows: '1'", "spec.minRowGroupRows", "whole number"),
        ("type: Major, minRowGroupRows: true", "spec.minRowGroupRows", "whole number"),
        ("type: Major, suspend: 'true'", "spec.suspend", "true or false"),
        ("type: Major, backoffLimit: 1.0", "spec.backoffLimit", "whole number"),
        ("type: Major, activeDeadlineSeconds: 0", "spec.activeDeadlineSeconds", "greater than"),
        (
            "type: Major, dependsOn: [{kind: LakeTable, name: x}]",
            "spec.dependsOn[0].kind",
            "one of",
        ),
    ],
)
def test_a_wrong_compaction_names_field_and_remedy(spec: str, field: str, words: str) -> None:
    (problem,) = problems(f"{TABLE}---\n{compaction(spec)}")
    assert problem.resource == "TableCompaction/nightly"
    assert problem.field == field
    assert words in str(problem)
    assert "a.yaml:" in problem.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("update: {where: 'a = 1', set: {}}", "at least 1"),
        ("update: {set: {a: 1}}", 'in quotes: "1"'),
        ("delete: {}", "Add where"),
        ("delete: {where: 'a'}, isolation: Snapshot", "WriteSerializable, Serializable"),
        ("delete: {where: 'a'}, conflict: {maxAttempts: 0}", "greater than"),
        (
            "merge: {source: {format: Csv, location: 's3://b/c', version: 3}, on: a,"
            " whenMatched: [{delete: {}}]}",
            "format Delta",
        ),
    ],
)
def test_a_wrong_update_is_refused(spec: str, words: str) -> None:
    (problem,) = problems(f"{TABLE}---\n{update(spec)}")
    assert problem.resource == "TableUpdate/late"
    assert words in str(problem)


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ("{}", "spec", "Add location"),
        (
            "{location: 's3://b/t', compaction: {minRowGroupRows: -1}}",
            "spec.compaction.minRowGroupRows",
            "greater than or equal",
        ),
    ],
)
def test_a_wrong_table_is_refused(spec: str, field: str, words: str) -> None:
    (problem,) = problems(document("LakeTable", spec))
    assert problem.field == field
    assert words in str(problem)


def test_all_problems_of_all_files_are_listed_at_once() -> None:
    found = problems(
        f"{TABLE}---\n{compaction('type: Mayor, minor: {max: 1}')}---\n{update('isolation: X')}"
    )
    assert [problem.field for problem in found] == [
        "spec.type",
        "spec.minor.max",
        "spec.isolation",
    ]


@pytest.mark.parametrize("scalar", ["yes", "No", "on", "OFF", "y", "n"])
def test_a_word_that_kubectl_takes_for_a_boolean_is_text_except_in_a_template(scalar: str) -> None:
    text = update(f"update: {{set: {{{scalar}: '1'}}}}")
    (_, resource) = load_text(f"{TABLE}---\n{text}")
    assert isinstance(resource, TableUpdate)
    assert resource.spec.update is not None
    assert list(resource.spec.update.set) == [scalar]
    for template in (f"{{a: [{scalar}]}}", f"{{{scalar}: x}}"):
        with pytest.raises(InvalidSpec, match="kubectl, which reads YAML"):
            load_text(f"spec: {{sparkTemplate: {template}}}")


@pytest.mark.parametrize("scalar", ["010", "-0x1", "1_000", "0b1", ".inf", ".NaN"])
def test_values_that_kubectl_reads_differently_must_be_quoted(scalar: str) -> None:
    with pytest.raises(InvalidSpec, match="kubectl, which reads YAML") as caught:
        load_text(f"a: [{scalar}]")
    assert f'"{scalar}"' in caught.value.expected
    with pytest.raises(InvalidSpec, match="kubectl, which reads YAML"):
        load_text(f"set: {{{scalar}: x}}")
    for quoted in (f'"{scalar}"', f"!!str {scalar}"):
        with pytest.raises(InvalidSpec, match="expected: one of LakeTable"):
            load_text(f"a: [{quoted}]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: [", "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: the key 'a' occurs twice"),
        ("- 1\n", "not a resource"),
        ("just text", "not a resource"),
        (HEAD + "metadata: {name: x}", "expected: one of LakeTable"),
        (HEAD + "kind: TableUpdates\nmetadata: {name: x}", "Did you mean TableUpdate?"),
        (HEAD + "kind: IndexServr\nmetadata: {name: x}", "Did you mean IndexServer?"),
        ("apiVersion: v1\nkind: LakeTable\nmetadata: {name: x}", "tandem.dev/v1alpha1"),
        ("a: !!python/object/apply:os.system [ls]", "tags are not supported"),
        ("a: !x 1", "tags are not supported"),
        ("a: &a 1\nb: {<<: *a}", "merge keys"),
        ("? [1]\n: 2", "a key must be text"),
        ("&x [*x]", "too many values"),
        ("[" * 500 + "]" * 500, "nested too deeply"),
    ],
)
def test_documents_that_are_no_resource_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_text(text, "a.yaml")
    assert words in str(caught.value)


def test_aliases_that_multiply_are_stopped() -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(InvalidSpec, match="too many values"):
        load_text("\n".join(lines))


def test_two_resources_of_one_name_are_refused_and_both_places_named() -> None:
    (problem,) = problems(f"{TABLE}---\n{TABLE}")
    assert "a.yaml:1 and a.yaml:6" in problem.message


def test_the_same_name_in_another_namespace_or_kind_is_another_resource() -> None:
    other = document("LakeTable", "{location: 's3://b/t'}", "flights", ", namespace: lake")
    assert len(load_text(f"{TABLE}---\n{other}")) == 2


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (compaction("type: Major").replace("{name: flights}", "{name: flight}"), "tableRef", "Did"),
        (
            compaction("type: Major, dependsOn: [{kind: TableUpdate, name: u}]"),
            "dependsOn[0]",
            "-f",
        ),
    ],
)
def test_references_to_absent_resources(text: str, field: str, words: str) -> None:
    with pytest.raises(ReferenceNotFound) as caught:
        load_text(f"{TABLE}---\n{text}")
    assert field in caught.value.field
    assert words in caught.value.remedy


def test_operations_that_wait_for_each_other_are_refused() -> None:
    one = compaction("type: Major, dependsOn: [{kind: TableCompaction, name: b}]", "a")
    two = compaction("type: Major, dependsOn: [{kind: TableCompaction, name: a}]", "b")
    (problem,) = problems(f"{TABLE}---\n{one}---\n{two}")
    assert "cycle" in problem.message


def test_exclusive_has_defaults_and_is_no_part_of_the_identity() -> None:
    plain = one(compaction("type: Major, lockMode: Exclusive"))
    given = one(compaction("type: Major, lockMode: Exclusive, exclusive: {maxYields: 2}"))
    assert plain.exclusive == Exclusive()
    assert given.exclusive == Exclusive(max_yields=2)
    assert one(compaction("type: Major")).exclusive is None
    assert spec_hash(plain) == spec_hash(given) != spec_hash(one(compaction("type: Major")))


def test_the_time_between_yields_doubles_up_to_an_hour() -> None:
    found = [Exclusive().backoff_ms(count) // 60_000 for count in range(1, 9)]
    assert found == [1, 2, 4, 8, 16, 32, 60, 60]


def test_files_folders_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "resources"
    folder.mkdir()
    (folder / "a.yaml").write_text(TABLE)
    (folder / "notes.txt").write_text("not read")
    monkeypatch.setattr("sys.stdin", io.StringIO(compaction("type: Major")))
    assert [resource.id for resource in load([folder, "-"])] == [
        "LakeTable/flights",
        "TableCompaction/nightly",
    ]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"", b"# nothing\n"])
def test_files_without_resources(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidSpec) as caught:
        load([file])
    assert "a.yaml" in caught.value.resource


def test_a_list_as_kubectl_prints_it() -> None:
    indented = "".join(f"    {line}\n" for line in TABLE.splitlines())
    text = "apiVersion: v1\nkind: List\nitems:\n  -\n" + indented
    assert [resource.id for resource in load_text(text)] == ["LakeTable/flights"]


def one(text: str) -> TableCompaction | TableUpdate:
    resource = load_text(f"{TABLE}---\n{text}")[1]
    assert isinstance(resource, TableCompaction | TableUpdate)
    return resource


@pytest.mark.parametrize(
    "same",
    [
        "type: Minor, minor: {thresholds: [4, 3]}",
        "targetFileSize: 134217728, type: Minor",
        "type: Minor, targetFileSize: 131072Ki",
        "type: Minor, suspend: true",
        "type: Minor, priority: 7, backoffLimit: 0, ttlSecondsAfterFinished: 1",
        "type: Minor, activeDeadlineSeconds: 9, sparkTemplate: {spec: {driver: {cores: 2}}}",
        "type: Minor, lockMode: Concurrent, layout: {strategy: BinPack}",
        "type: Minor, lockGranularity: TimeChunk",
        "type: Minor, maxBytesPerCommit: 1Gi",
        "type: Minor, minRowGroupRows: 0",
    ],
)
def test_the_hash_ignores_spelling_and_mutable_fields(same: str) -> None:
    assert spec_hash(one(compaction(same))) == spec_hash(one(compaction("type: Minor")))


@pytest.mark.parametrize(
    ("kind", "spec", "hash_"),
    [
        ("TableCompaction", "type: Minor", "85586e53df80e4a8"),
        ("TableCompaction", "type: LogMerge", "2b161f9859248ac5"),
        ("TableUpdate", "delete: {where: 'a = 1'}", "73da3fe788dcf3a2"),
        ("TableIngest", "source: {format: Parquet, location: 'file:///x'}", "daf67b94bb5b0d2d"),
        ("SegmentRewrite", "segments: ['7'], rewrite: {purgeDeleted: true}", "6df042857e3f5680"),
        ("LogCompaction", "strategy: AllBlocks", "10f7a3f731ec915b"),
        ("TableReplace", "replace: {intervals: [all]}", "97734a1e640937b6"),
    ],
)
@pytest.mark.parametrize("more", ["", ", priority: 0", ", priority: 7"])
def test_the_hash_is_that_of_earlier_versions(kind: str, spec: str, hash_: str, more: str) -> None:
    """A default that changes, or a field that is added, must not start operations again."""
    text = document(kind, f"{{tableRef: {{name: t}}, {spec}{more}}}")
    _, resource = load_text(f"{TABLE.replace('flights', 't')}---\n{text}")
    assert isinstance(resource, Operation)
    assert spec_hash(resource)[:16] == hash_


def test_the_priority_without_one_is_that_of_the_kind() -> None:
    by_kind = {kind: model.default_priority for kind, model in OPERATIONS.items()}
    assert by_kind == {
        "TableIngest": 75,
        "TableUpdate": 50,
        "TableReplace": 50,
        "TableCompaction": 25,
        "SegmentRewrite": 25,
        "LogCompaction": 25,
    }
    assert one(compaction("type: Minor")).lock_priority == 25
    assert one(compaction("type: Minor, priority: 0")).lock_priority == 0
    assert one(compaction("type: Minor")).spec.priority is None


@pytest.mark.parametrize(
    "other",
    [
        "type: Major",
        "type: Minor, minor: {thresholds: [4, 4]}",
        "type: Minor, targetFileSize: 1Gi",
        "type: Minor, dryRun: true",
    ],
)
def test_the_hash_distinguishes_different_specs(other: str) -> None:
    assert spec_hash(one(compaction(other))) != spec_hash(one(compaction("type: Minor")))


def test_every_error_names_what_where_and_expected() -> None:
    (problem,) = problems(f"{TABLE}---\n{compaction('type: Mnior')}")
    assert isinstance(problem, TandemError)
    assert problem.found == "'Mnior'"
    assert problem.expected == "one of Minor, SemiMajor, Major, Custom, LogMerge"
    assert problem.remedy == "Did you mean Minor?"
