"""The table of features: what is refused, and what does not count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from features_page import features_table
from tandem.delta.actions import Metadata, Protocol
from tandem.delta.protocol import (
    FEATURES,
    OF_LOG,
    OperationKind,
    check,
    check_commits,
    check_readable,
    check_vectors,
    enable_deletion_vectors,
    features_in_use,
    features_used,
    for_new_table,
    refusals,
    row_id_columns,
    supports_deletion_vectors,
    writer_features,
    writes_deletion_vectors,
)
from tandem.errors import UnsupportedFeature

R, N, C, U, D, M, P = (
    OperationKind.READ,
    OperationKind.INGEST,
    OperationKind.COMPACTION,
    OperationKind.UPDATE,
    OperationKind.DELETE,
    OperationKind.MERGE,
    OperationKind.REPLACE,
)
WRITES = {N, C, U, D, M, P}
ALL = WRITES | {R} | OF_LOG


def _metadata(
    configuration: dict[str, str] | None = None,
    *,
    field: dict[str, Any] | None = None,
    type_: Any = "long",
    partitioned: bool = False,
) -> Metadata:
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "s",
            "type": {
                "type": "struct",
                "fields": [{"name": "x", "type": type_, "nullable": True, "metadata": field or {}}],
            },
            "nullable": True,
            "metadata": {},
        },
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return Metadata("id", schema, ("id",) if partitioned else (), configuration or {})


def on(name: str, value: str = "true") -> dict[str, Any]:
    """A property of the table."""
    return {"configuration": {f"delta.{name}": value}}


def _named(*features: str) -> Protocol:
    return Protocol(3, 7, frozenset(features), frozenset(features))


def _refused(protocol: Protocol, metadata: Metadata) -> set[OperationKind]:
    refused = set()
    for kind in OperationKind:
        if next(refusals(protocol, metadata, kind), None) is None:
            check(protocol, metadata, kind)
            continue
        with pytest.raises(UnsupportedFeature) as caught:
            check(protocol, metadata, kind, resource="t")
        error = caught.value
        assert all((error.resource, error.found, error.expected, error.remedy))
        refused.add(kind)
    return refused


IN_USE: dict[str, tuple[dict[str, Any], set[OperationKind]]] = {
    "appendOnly": (on("appendOnly"), {U, D, M, P}),
    "invariants": ({"field": {"delta.invariants": "{}"}}, set()),
    "checkConstraints": (on("constraints.a", "x > 1"), set()),
    "changeDataFeed": (on("enableChangeDataFeed"), set()),
    "generatedColumns": ({"field": {"delta.generationExpression": "1"}}, set()),
    "identityColumns": (
        {"field": {"delta.identity.start": 1}},
        {OperationKind.LOG_COMPACTION, OperationKind.LOG_APPEND},
    ),
    "allowColumnDefaults": ({"field": {"CURRENT_DEFAULT": "1"}}, set()),
    "columnMapping": (on("columnMapping.mode", "name"), set()),
    "deletionVectors": ({}, set()),
    "timestampNtz": ({"type_": "timestamp_ntz"}, set()),
    "v2Checkpoint": ({}, set()),
    "inCommitTimestamp": (on("enableInCommitTimestamps"), set()),
    "vacuumProtocolCheck": ({}, set()),
    "domainMetadata": ({}, set()),
    "clustering": ({}, set()),
    "typeWidening": ({"field": {"delta.typeChanges": []}}, set()),
    "typeWidening-preview": ({"field": {"delta.typeChanges": []}}, set()),
    "checkpointProtection": ({}, set()),
    "rowTracking": (on("enableRowTracking"), {C, U, D, M, P}),
    "variantType": ({"type_": "variant"}, ALL),
    "variantType-preview": ({"type_": "variant"}, ALL),
    "variantShredding": ({"type_": "variant"}, ALL),
    "variantShredding-preview": ({"type_": "variant"}, ALL),
    "geospatial": ({"type_": "geometry(OGC:CRS84)"}, ALL),
    "collations": ({"field": {"__COLLATIONS": {}}}, set()),
    "collations-preview": ({"field": {"__COLLATIONS": {}}}, set()),
    "materializePartitionColumns": ({"partitioned": True}, set()),
    "icebergCompatV1": (on("enableIcebergCompatV1"), WRITES),
    "icebergCompatV2": (on("enableIcebergCompatV2"), WRITES),
    "icebergCompatV3": (on("enableIcebergCompatV3"), WRITES),
    "icebergWriterCompatV1": (on("enableIcebergWriterCompatV1"), WRITES),
    "icebergWriterCompatV3": (on("enableIcebergWriterCompatV3"), WRITES),
    "coordinatedCommits-preview": (on("coordinatedCommits.commitCoordinator-preview", "x"), WRITES),
    "catalogManaged": ({}, set()),
    "tandem.mergeLog": ({}, WRITES),
    "catalogOwned-preview": ({}, set()),
    "redirectReaderWriter-preview": (on("redirectReaderWriter-preview", "{}"), ALL),
    "redirectWriterOnly-preview": (on("redirectWriterOnly-preview", "{}"), WRITES),
}


def test_every_feature_is_in_this_test() -> None:
    assert IN_USE.keys() == FEATURES.keys()


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_feature_in_use(name: str) -> None:
    arguments, expected = IN_USE[name]
    assert _refused(_named(name), _metadata(**arguments)) == expected
    assert name in features_in_use(_named(name), _metadata(**arguments))


@pytest.mark.parametrize("name", sorted(n for n, (a, _) in IN_USE.items() if a))
def test_feature_that_nothing_uses_does_not_count(name: str) -> None:
    assert _refused(_named(name), _metadata()) == set()
    assert features_in_use(_named(name), _metadata()) == ()


def test_rows_that_keep_their_ids_rule_out_what_would_lose_them() -> None:
    names = {
        "delta.rowTracking.materializedRowIdColumnName": "_id",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
    }
    tracked = {"delta.enableRowTracking": "TRUE", **names}
    features = frozenset({"rowTracking", "deletionVectors"})
    both = Protocol(3, 7, features - {"rowTracking"}, features)
    assert _refused(_named("rowTracking"), _metadata(tracked)) == set()
    vectors = {**tracked, "delta.enableDeletionVectors": "true"}
    assert _refused(both, _metadata(vectors)) == set()
    assert row_id_columns(both, _metadata(vectors)) == ("_id", "_version")
    for wrong in ("ID", "_VERSION", ""):
        clash = {**vectors, "delta.rowTracking.materializedRowIdColumnName": wrong}
        assert _refused(both, _metadata(clash)) == {C, U, M, P}
        without = {**clash, "delta.enableDeletionVectors": "false"}
        assert _refused(both, _metadata(without)) == {C, U, D, M, P}
    suspended = {**vectors, "delta.rowTrackingSuspended": "true"}
    assert _refused(both, _metadata(suspended)) == WRITES | OF_LOG
    assert _refused(both, _metadata(suspended | {"delta.enableRowTracking": "false"})) == set()
    assert _refused(both, _metadata({**names, "delta.enableRowTracking": "false"})) == set()
    # Without the feature the property means nothing; an upgrade would give it a meaning.
    for protocol in (Protocol(1, 2), Protocol(1, 7), Protocol(3, 7)):
        assert _refused(protocol, _metadata(vectors)) == set()
        with pytest.raises(UnsupportedFeature, match="files have no row ids yet"):
            check_vectors(protocol, _metadata(tracked))


def test_unknown_features_are_refused_by_name() -> None:
    writer_only = Protocol(1, 7, frozenset(), frozenset({"fromTheFuture"}))
    assert _refused(writer_only, _metadata()) == WRITES | OF_LOG
    assert _refused(_named("fromTheFuture"), _metadata()) == ALL
    with pytest.raises(UnsupportedFeature, match="fromTheFuture"):
        check(writer_only, _metadata(), C)


def test_newer_protocol_versions_are_refused() -> None:
    assert _refused(Protocol(4, 8), _metadata()) == ALL
    assert _refused(Protocol(3, 8), _metadata()) == WRITES | OF_LOG


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 1), set()),
        ((1, 2), {"appendOnly", "invariants"}),
        ((1, 3), {"appendOnly", "invariants", "checkConstraints"}),
        (
            (1, 4),
            {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"},
        ),
        (
            (2, 6),
            {
                "appendOnly",
                "invariants",
                "checkConstraints",
                "changeDataFeed",
                "generatedColumns",
                "columnMapping",
                "identityColumns",
            },
        ),
    ],
)
def test_legacy_versions_stand_for_features(version: tuple[int, int], expected: set[str]) -> None:
    assert writer_features(Protocol(*version)) == expected
    assert _refused(Protocol(*version), _metadata()) == set()
    in_use = {"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"}
    refused = _refused(Protocol(*version), _metadata(in_use))
    assert refused == ({U, D, M, P} if expected else set())


def test_features_that_block_the_log_and_features_that_block_rows_only() -> None:
    check_readable(_named("variantType"), _metadata(type_="variant"))
    for protocol in (
        _named("catalogManaged"),
        _named("fromTheFuture"),
        Protocol(1, 7, frozenset(), frozenset({"catalogOwned-preview"})),
        Protocol(4, 7),
    ):
        with pytest.raises(UnsupportedFeature):
            check_readable(protocol, _metadata())
    check_readable(Protocol(1, 7, frozenset(), frozenset({"fromTheFuture"})), _metadata())
    check_readable(_named("catalogManaged"), _metadata(), managed=True)


@pytest.mark.parametrize(
    ("protocol", "metadata"),
    [
        (_named("fromTheFuture"), _metadata()),
        (Protocol(1, 7, frozenset(), frozenset({"fromTheFuture"})), _metadata()),
        (Protocol(1, 8), _metadata()),
        (
            Protocol(1, 7, frozenset(), frozenset({"coordinatedCommits-preview"})),
            _metadata({"delta.coordinatedCommits.commitCoordinator": "x"}),
        ),
        (Protocol(1, 2), _metadata({"delta.setTransactionRetentionDuration": "1 day"})),
    ],
)
def test_where_not_even_a_commit_without_files_may_be_put(
    protocol: Protocol, metadata: Metadata
) -> None:
    with pytest.raises(UnsupportedFeature, match="committing is refused"):
        check_commits(protocol, metadata)


def test_features_that_forbid_files_allow_commits_without_files() -> None:
    features = frozenset({"rowTracking", "appendOnly", "icebergCompatV1"})
    configuration = {"delta.appendOnly": "true", "delta.enableIcebergCompatV1": "true"}
    check_commits(Protocol(1, 7, frozenset(), features), _metadata(configuration))


def test_upgrade_to_deletion_vectors_lists_all_legacy_features() -> None:
    protocol, metadata = enable_deletion_vectors(Protocol(1, 4), _metadata({"k": "v"}))
    assert (protocol.min_reader, protocol.min_writer) == (3, 7)
    assert protocol.reader_features == {"deletionVectors"}
    assert protocol.writer_features == {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "deletionVectors",
    }
    assert metadata.configuration == {"k": "v", "delta.enableDeletionVectors": "true"}
    assert writes_deletion_vectors(protocol, metadata)
    assert not writes_deletion_vectors(protocol, _metadata())
    assert supports_deletion_vectors(protocol)
    assert not supports_deletion_vectors(Protocol(1, 4))


# What Spark + Delta lists besides `deletionVectors` when such metadata is committed: (metadata,
# readers' features, writers' features).
SPARK_LISTS: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "nothing": ({}, set(), set()),
    "append-only": (on("appendOnly"), set(), {"appendOnly"}),
    "invariants": ({"field": {"delta.invariants": "{}"}}, set(), {"invariants"}),
    "constraints": (on("constraints.a", "id > 1"), set(), {"checkConstraints"}),
    "change feed": (on("enableChangeDataFeed", "TRUE"), set(), {"changeDataFeed"}),
    "generated": ({"field": {"delta.generationExpression": "1"}}, set(), {"generatedColumns"}),
    "identity": ({"field": {"delta.identity.start": 1}}, set(), {"identityColumns"}),
    "mapping": (on("columnMapping.mode", "name"), {"columnMapping"}, {"columnMapping"}),
    "timestamp_ntz": ({"type_": "timestamp_ntz"}, {"timestampNtz"}, {"timestampNtz"}),
    "v2 checkpoints": (on("checkpointPolicy", "v2"), {"v2Checkpoint"}, {"v2Checkpoint"}),
    "classic checkpoints": (on("checkpointPolicy", "classic"), set(), set()),
    "commit timestamps": (on("enableInCommitTimestamps"), set(), {"inCommitTimestamp"}),
    "widening enabled": (on("enableTypeWidening"), {"typeWidening"}, {"typeWidening"}),
    "widened": ({"field": {"delta.typeChanges": []}}, set(), set()),
    "defaults": ({"field": {"CURRENT_DEFAULT": "1"}}, set(), set()),
    "row tracking": (on("enableRowTracking"), set(), {"rowTracking", "domainMetadata"}),
    "Iceberg 1": (
        on("enableIcebergCompatV1"),
        {"columnMapping"},
        {"icebergCompatV1", "columnMapping"},
    ),
    "Iceberg 2": (
        on("enableIcebergCompatV2"),
        {"columnMapping"},
        {"icebergCompatV2", "columnMapping"},
    ),
    "Iceberg 3": (
        on("enableIcebergCompatV3"),
        {"columnMapping"},
        {"icebergCompatV3", "columnMapping", "rowTracking", "domainMetadata"},
    ),
    "variant": ({"type_": "variant"}, {"variantType"}, {"variantType"}),
    "partition columns": (
        on("enableMaterializePartitionColumnsFeature"),
        set(),
        {"materializePartitionColumns"},
    ),
}  # fmt: skip
REFUSED = {"row tracking", "Iceberg 1", "Iceberg 2", "Iceberg 3", "variant"}
LEGACY = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 5), (2, 6), (1, 7), (3, 7)]


@pytest.mark.parametrize("version", LEGACY)
@pytest.mark.parametrize("used", SPARK_LISTS)
def test_an_upgrade_lists_what_the_old_version_implies_and_the_metadata_uses(
    version: tuple[int, int], used: str
) -> None:
    arguments, readers, writers = SPARK_LISTS[used]
    before, metadata = Protocol(*version), _metadata(**arguments)
    assert tuple(map(set, features_used(metadata))) == (readers, writers)
    protocol, changed = enable_deletion_vectors(before, metadata)
    own = {"columnMapping"} if version[0] == 2 else set()
    assert protocol.reader_features == {"deletionVectors"} | own | readers
    known = writer_features(before)
    if "columnMapping" not in own | readers:
        known -= {"columnMapping"}  # of writers of version 5 and 6 alone: for both or not at all
    assert protocol.writer_features == known | {"deletionVectors"} | writers
    assert protocol.reader_features <= protocol.writer_features
    assert enable_deletion_vectors(protocol, changed) == (protocol, changed)
    fields = {"generatedColumns", "identityColumns"} & writers
    without_ids = used == "mapping"
    unclear = version[1] < 7 and (without_ids or not fields <= writer_features(before))
    if used not in REFUSED and not unclear:
        check_vectors(before, metadata)
        return
    with pytest.raises(UnsupportedFeature, match="enabling deletion vectors is refused"):
        check_vectors(before, metadata)


def test_a_preview_that_is_listed_stands_for_its_feature() -> None:
    """Clients of the preview know nothing else, and Spark does not list both."""
    widening = _metadata({"delta.enableTypeWidening": "true"})
    protocol, _ = enable_deletion_vectors(_named("typeWidening-preview"), widening)
    assert protocol.writer_features == {"typeWidening-preview", "deletionVectors"}
    assert protocol.reader_features == protocol.writer_features


def test_protocol_of_a_new_table_is_the_lowest_sufficient() -> None:
    vectors = {"delta.enableDeletionVectors": "true"}
    assert for_new_table(_metadata()) == Protocol(1, 2)
    assert for_new_table(_metadata({"delta.appendOnly": "true"})) == Protocol(1, 2)
    assert for_new_table(_metadata(vectors)).reader_features == {"deletionVectors"}
    ntz = for_new_table(_metadata(type_="timestamp_ntz"))
    assert ntz.reader_features == {"timestampNtz"}
    assert ntz.writer_features == {"timestampNtz", "appendOnly", "invariants"}
    feed = for_new_table(_metadata({"delta.enableChangeDataFeed": "true"}))
    assert (feed.min_reader, feed.min_writer, feed.reader_features) == (1, 7, frozenset())


def test_the_page_on_features_is_printed_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "features.md"
    assert page.read_text().endswith(features_table())
