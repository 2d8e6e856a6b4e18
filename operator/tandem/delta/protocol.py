"""What we may do to a table, by its protocol features: one table, `FEATURES`.

A feature counts only if it is *in use*: delta-rs lists `variantType` on every table that it
creates with deletion vectors, and a table at writer version 2 "supports" column invariants
that no column has. An unknown feature always counts. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tandem.delta import change_feed, identity
from tandem.delta.actions import Metadata, Protocol
from tandem.delta.schema import (
    COLLATIONS,
    NESTED_IDS,
    PrimitiveType,
    StructType,
    check_names,
    column_mapping_mode,
    fields_of,
    has_arrow_form,
    nested_paths,
    parse,
    types_of,
)
from tandem.errors import UnsupportedFeature


class OperationKind(StrEnum):
    """What a caller wants to do with a table."""

    READ = "Read"  # read rows
    INGEST = "Ingest"  # add new rows in new files
    COMPACTION = "Compaction"  # write the same rows to new files, dataChange=false
    UPDATE = "Update"  # hide rows and add changed ones
    DELETE = "Delete"  # hide rows, never write any
    MERGE = "Merge"  # all of the above
    REPLACE = "Replace"  # hide rows, and add new ones in new files
    LOG_COMPACTION = "LogCompaction"  # stitch blocks of a log of Tandem's
    LOG_APPEND = "LogAppend"  # add blocks to a log of Tandem's


_READ = frozenset({OperationKind.READ})
_STATEMENTS = frozenset(
    {OperationKind.UPDATE, OperationKind.DELETE, OperationKind.MERGE, OperationKind.REPLACE}
)
NEW_VALUES = frozenset(
    {OperationKind.INGEST, OperationKind.UPDATE, OperationKind.MERGE, OperationKind.REPLACE}
)
INSERTS = NEW_VALUES - {OperationKind.UPDATE}
_NEW_FILES = NEW_VALUES | {OperationKind.COMPACTION}
_WRITES = _NEW_FILES | _STATEMENTS
_MOVES = _STATEMENTS | {OperationKind.COMPACTION}
"""Operations that move rows to other files; a delete does so without deletion vectors."""
OF_LOG = frozenset({OperationKind.LOG_COMPACTION, OperationKind.LOG_APPEND})
"""Operations on the logs of merge-on-read tables."""
_ALL = _WRITES | _READ | OF_LOG
_NOTHING: frozenset[OperationKind] = frozenset()

_CONSTRAINT = "delta.constraints."
"""The prefix, in any case, of the properties that are CHECK constraints, by name."""

InUse = Callable[[Metadata, StructType], bool]


_TRACKING = "delta.enableRowTracking"
_SUSPENDED = "delta.rowTrackingSuspended"
_ROW_ID_COLUMNS = (
    "delta.rowTracking.materializedRowIdColumnName",
    "delta.rowTracking.materializedRowCommitVersionColumnName",
)


def _is_true(metadata: Metadata, name: str) -> bool:
    return metadata.configuration.get(name, "").lower() == "true"


def _always(_metadata: Metadata, _schema: StructType) -> bool:
    return True


def _property(name: str, value: str = "true") -> InUse:
    return lambda metadata, _: metadata.configuration.get(name, "").lower() == value


def _property_set(*prefixes: str) -> InUse:
    return lambda metadata, _: any(k.startswith(prefixes) for k in metadata.configuration)


def _field_key(*keys: str) -> InUse:
    def used(_: Metadata, schema: StructType) -> bool:
        return any(not set(keys).isdisjoint(f.metadata) for f in fields_of(schema))

    return used


def _type(*names: str) -> InUse:
    def used(_: Metadata, schema: StructType) -> bool:
        return any(
            isinstance(t, PrimitiveType) and t.name.split("(")[0] in names for t in types_of(schema)
        )

    return used


def constraints(configuration: Mapping[str, str]) -> dict[str, str]:
    """The text of each CHECK constraint by its property, in order. Spark finds them in any case."""
    return {k: v for k, v in sorted(configuration.items()) if k.lower().startswith(_CONSTRAINT)}


def _constrained(metadata: Metadata, _: StructType) -> bool:
    return bool(constraints(metadata.configuration))


def _feeds_changes(metadata: Metadata, _: StructType) -> bool:
    """`delta.enableChangeDataCapture` is the old name, which Spark reads, too."""
    names = ("delta.enableChangeDataFeed", "delta.enableChangeDataCapture")
    return any(metadata.configuration.get(name, "").lower() == "true" for name in names)


def _has_invariants(_: Metadata, schema: StructType) -> bool:
    """To Spark, a column that must not be null is an invariant."""
    return any("delta.invariants" in f.metadata or not f.nullable for f in fields_of(schema))


def _widens(metadata: Metadata, schema: StructType) -> bool:
    enabled = metadata.configuration.get("delta.enableTypeWidening", "").lower() == "true"
    return enabled or any("delta.typeChanges" in f.metadata for f in fields_of(schema))


def _maps_columns(metadata: Metadata, _: StructType) -> bool:
    return column_mapping_mode(metadata.configuration) != "none"


def _partitioned(metadata: Metadata, _: StructType) -> bool:
    return bool(metadata.partition_columns)


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table.

    `refused`: the operations that we refuse on a table that uses it. `why`: the reason, or, if
    nothing is refused, how we follow the feature's rules. `blocks_log`: the log itself cannot be
    interpreted. `blocks_commits`: not even a commit without files may be added.
    """

    name: str
    in_use: InUse
    refused: frozenset[OperationKind]
    why: str
    blocks_log: bool = False
    blocks_commits: bool = False


_TABLE = (
    # name, in use when, refused, why
    Feature("appendOnly", _property("delta.appendOnly"), _STATEMENTS,
            "rows of an append-only table may be rearranged, never changed or removed"),
    Feature("invariants", _field_key("delta.invariants"), _NOTHING,
            "checked on each row with new values, if written in the language of statements"),
    Feature("checkConstraints", _constrained, _NOTHING,
            "checked on each row with new values, if written in the language of statements"),
    Feature("changeDataFeed", _feeds_changes, _NOTHING,
            "change files are written for the changes that readers cannot derive"),
    Feature("generatedColumns", _field_key("delta.generationExpression"), _NOTHING,
            "computed for each row with new values, and compared where they are given; their "
            "expressions must be written in the language of statements"),
    Feature("identityColumns",
            _field_key(*identity.KEYS),
            OF_LOG, "a commit of its own reserves the values of new rows before these are "
            "committed; rows in the log of a merge-on-read table get none"),
    Feature("allowColumnDefaults", _field_key("CURRENT_DEFAULT", "EXISTS_DEFAULT"), _NOTHING,
            "columns that an insert or a source lacks get their default, if it is written in the "
            "language of statements"),
    Feature("columnMapping", _maps_columns, _NOTHING,
            "columns are read and written by physical name and field id"),
    Feature("deletionVectors", _always, _NOTHING, "read and written, checksums verified"),
    Feature("timestampNtz", _type("timestamp_ntz"), _NOTHING, "an Arrow timestamp without zone"),
    Feature("v2Checkpoint", _always, _NOTHING,
            "read with sidecars; we write classic V1 checkpoints, which stay allowed"),
    Feature("inCommitTimestamp", _property("delta.enableInCommitTimestamps"), _NOTHING,
            "used for time travel, and written, always later than those of the version before"),
    Feature("vacuumProtocolCheck", _always, _NOTHING,
            "we check the writer protocol before anything is removed"),
    Feature("domainMetadata", _always, _NOTHING,
            "domains are never touched; our checkpoints keep them"),
    Feature("clustering", _always, _NOTHING,
            "new files carry statistics; a compaction with layout strategy Clustering clusters as "
            "Delta's OPTIMIZE does, and other new files are left to either"),
    Feature("typeWidening", _field_key("delta.typeChanges"), _NOTHING,
            "older files are read with the type that the table has now"),
    Feature("typeWidening-preview", _field_key("delta.typeChanges"), _NOTHING,
            "older files are read with the type that the table has now"),
    Feature("checkpointProtection", _always, _NOTHING,
            "commits are unaffected; other engines clean up the log of such tables"),
    Feature("rowTracking", _property(_TRACKING), _NOTHING,
            "rows keep their ids and versions wherever they move, those with new values their ids; "
            "if it is supported and not enabled, files get ids"),
    Feature("variantType", _type("variant"), _ALL, "variant columns have no Arrow form here"),
    Feature("variantType-preview", _type("variant"), _ALL,
            "variant columns have no Arrow form here"),
    Feature("variantShredding", _type("variant"), _ALL,
            "variant columns have no Arrow form here"),
    Feature("variantShredding-preview", _type("variant"), _ALL,
            "variant columns have no Arrow form here"),
    Feature("geospatial", _type("geometry", "geography"), _ALL, "no Arrow form here"),
    Feature("collations", _field_key(COLLATIONS), _NOTHING,
            "a column with a collation is refused where an expression, a layout or a key names it"),
    Feature("collations-preview", _field_key(COLLATIONS), _NOTHING,
            "a column with a collation is refused where an expression, a layout or a key names it"),
    Feature("materializePartitionColumns", _partitioned, _NOTHING,
            "new files have the partition columns, too"),
    Feature("icebergCompatV1", _property("delta.enableIcebergCompatV1"), _WRITES,
            "it is superseded by icebergCompatV2"),
    Feature("icebergCompatV2", _property("delta.enableIcebergCompatV2"), _NOTHING,
            "new files have what Iceberg needs; Iceberg's own metadata is not written"),
    Feature("icebergCompatV3", _property("delta.enableIcebergCompatV3"), _WRITES,
            "that Iceberg can read the row ids of new files is not proven"),
    Feature("icebergWriterCompatV1", _property("delta.enableIcebergWriterCompatV1"), _WRITES,
            "its rules for names and ids of columns are not checked"),
    Feature("icebergWriterCompatV3", _property("delta.enableIcebergWriterCompatV3"), _WRITES,
            "its rules for names and ids of columns are not checked"),
    Feature("coordinatedCommits-preview", _property_set("delta.coordinatedCommits."), _WRITES,
            "commits go through a coordinator, not through the log folder", blocks_commits=True),
    Feature("catalogManaged", _always, _NOTHING,
            "the catalog says what is committed: opened through it, never by location"),
    Feature("catalogOwned-preview", _always, _NOTHING,
            "the catalog says what is committed: opened through it, never by location"),
    Feature("tandem.mergeLog", _always, _WRITES,
            "the log of a merge-on-read table is written by log writers and log compactions"),
    Feature("redirectReaderWriter-preview", _property_set("delta.redirectReaderWriter"), _ALL,
            "the table is somewhere else", blocks_log=True),
    Feature("redirectWriterOnly-preview", _property_set("delta.redirectWriterOnly"), _WRITES,
            "the table is written somewhere else", blocks_commits=True),
)  # fmt: skip

FEATURES: Mapping[str, Feature] = {feature.name: feature for feature in _TABLE}

# When Spark + Delta requires that a feature is listed: `metadataRequiresFeatureToBeEnabled` and
# `requiredFeatures` of its TableFeature.scala. Where it is not the feature's own `in_use`, a
# function says so. `allowColumnDefaults`, `clustering` and others are only ever asked for by name.
_REQUIRED: Mapping[str, InUse] = {
    **{
        name: FEATURES[name].in_use
        for name in (
            *("appendOnly", "checkConstraints", "changeDataFeed"),
            *("generatedColumns", "identityColumns", "columnMapping", "timestampNtz"),
            *("inCommitTimestamp", "variantType", "geospatial", "icebergCompatV1", "rowTracking"),
            *("icebergCompatV2", "icebergCompatV3", "icebergWriterCompatV1"),
            *("icebergWriterCompatV3", "coordinatedCommits-preview"),
            *("redirectReaderWriter-preview", "redirectWriterOnly-preview"),
        )
    },
    "invariants": _has_invariants,
    "deletionVectors": _property("delta.enableDeletionVectors"),
    "v2Checkpoint": _property("delta.checkpointPolicy", "v2"),
    "typeWidening": _property("delta.enableTypeWidening"),
    "variantShredding": _property("delta.enableVariantShredding"),
    "materializePartitionColumns": _property("delta.enableMaterializePartitionColumnsFeature"),
}
_WITH: Mapping[str, tuple[str, ...]] = {
    "rowTracking": ("domainMetadata",),
    "icebergCompatV1": ("columnMapping",),
    "icebergCompatV2": ("columnMapping",),
    "icebergCompatV3": ("columnMapping", "rowTracking", "domainMetadata"),
    "variantShredding": ("variantType",),
    "coordinatedCommits-preview": ("inCommitTimestamp", "vacuumProtocolCheck"),
}
_OF_READERS = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "typeWidening"),
        *("variantType", "variantShredding", "geospatial", "vacuumProtocolCheck"),
        "redirectReaderWriter-preview",
    }
)
"""Features that readers must support, too (protocol, "Valid Feature Names in Table Features")."""


def features_used(metadata: Metadata) -> tuple[frozenset[str], frozenset[str]]:
    """(reader features, writer features) that a protocol with features must list because the
    schema, the metadata of fields or the properties use them. Spark cannot read a table without
    them (DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH)."""
    schema = parse(metadata.schema_string)
    used = {name for name, required in _REQUIRED.items() if required(metadata, schema)}
    used |= {more for name in used for more in _WITH.get(name, ())}
    return frozenset(used & _OF_READERS), frozenset(used)


# Legacy protocol versions → the features that they stand for (protocol, "Writer Version
# Requirements" and "Reader Version Requirements").
_LEGACY_WRITER = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_LEGACY_READER = {2: ("columnMapping",)}
_NEWEST_READER, _NEWEST_WRITER = 3, 7
_UNKNOWN = "we do not know this feature"


def reader_features(protocol: Protocol) -> frozenset[str]:
    """The features that a reader must support, including those of legacy versions."""
    if protocol.min_reader >= 3:
        return protocol.reader_features
    return _legacy(_LEGACY_READER, protocol.min_reader)


def writer_features(protocol: Protocol) -> frozenset[str]:
    """The features that a writer must support: the writer's and the reader's."""
    if protocol.min_writer >= 7:
        return protocol.writer_features | reader_features(protocol)
    return _legacy(_LEGACY_WRITER, protocol.min_writer) | reader_features(protocol)


def _legacy(table: Mapping[int, tuple[str, ...]], version: int) -> frozenset[str]:
    return frozenset(name for v, names in table.items() if v <= version for name in names)


def features_in_use(protocol: Protocol, metadata: Metadata) -> tuple[str, ...]:
    """Names of the features that count, unknown ones included, sorted."""
    schema = parse(metadata.schema_string)
    return tuple(
        name
        for name in sorted(writer_features(protocol))
        if name not in FEATURES or FEATURES[name].in_use(metadata, schema)
    )


FORGETFUL = "delta.setTransactionRetentionDuration"
"""With this property, checkpoints of other writers leave out each `txn` that is older. The log
then no longer shows what was committed or abandoned: an ingest could run twice, and the files of
a success could be deleted as those of a failure."""


HIDDEN_PREFIX = "__tandem_"
"""The prefix, in any case, of columns that jobs add to the rows that they read. A column of the
table, or of a merge's source, of the same name would be taken for one of them."""


def is_reserved_column(column: str) -> bool:
    """Whether a column's name is reserved for jobs."""
    return column.lower().startswith(HIDDEN_PREFIX)


_SPARKS_OWN = frozenset({"_metadata", "_tmp_metadata_row_index"})
"""Columns that Spark adds when it reads files, in lower case, and needs to skip deleted rows. If
a table has such a column itself, Spark cannot read it once a file has a deletion vector
(`AMBIGUOUS_REFERENCE`)."""


def _vector_clashes(schema: StructType) -> Iterator[tuple[str, str]]:
    for field in schema:
        if field.name.lower() in _SPARKS_OWN:
            yield (
                f"column {field.name}",
                "Spark reserves this column name, and cannot read the table once a file has a "
                "deletion vector; rename the column",
            )


def _feed_clashes(schema: StructType) -> Iterator[tuple[str, str]]:
    for field in schema:
        if field.name.lower() in change_feed.RESERVED:
            yield f"column {field.name}", "a change data feed has a column of this name; rename it"
        elif field.physical_name.lower() == change_feed.CHANGE_TYPE.name:
            yield f"column {field.name}", "its physical name is that of a column of change files"


def check_vectors(protocol: Protocol, metadata: Metadata, *, resource: str = "") -> None:
    """Reject enabling deletion vectors if that would make the table unreadable for Spark, or if
    what it uses, once it is listed, rules out even compactions. Raises: UnsupportedFeature."""
    schema = parse(metadata.schema_string, resource=resource)
    found = [
        *_vector_clashes(schema),
        *_not_to_upgrade(protocol, metadata, schema),
        *refusals(*enable_deletion_vectors(protocol, metadata), OperationKind.COMPACTION),
    ]
    _refuse(found, "enabling deletion vectors is refused", resource)


def _not_to_upgrade(
    protocol: Protocol, metadata: Metadata, schema: StructType
) -> Iterator[tuple[str, str]]:
    """What has no certain meaning once features are listed: Spark reads it on a table that lists
    features only, or takes it out when it upgrades the table."""
    if _is_true(metadata, _TRACKING) and "rowTracking" not in protocol.writer_features:
        yield "rowTracking", f"{_TRACKING} is true, but files have no row ids yet"
    if protocol.min_writer >= _NEWEST_WRITER:
        return
    known = writer_features(protocol)
    for name in ("generatedColumns", "identityColumns"):
        if name not in known and FEATURES[name].in_use(metadata, schema):
            yield name, "the schema has them, but the protocol does not have them in effect"
    for key in _WHETHER:
        value = metadata.configuration.get(key, "false")
        if value.lower() not in ("true", "false"):
            yield key, f"{value!r} is neither true nor false, which Spark then refuses"
    policy = metadata.configuration.get("delta.checkpointPolicy", "classic")
    if policy not in ("classic", "v2"):
        yield "delta.checkpointPolicy", f"{policy!r} is neither classic nor v2"
    symlinks = metadata.configuration.get(_SYMLINKS, "false")
    if symlinks.lower() == "true":
        yield _SYMLINKS, "a manifest of files cannot say which of their rows are deleted"
    maps = column_mapping_mode(metadata.configuration) != "none"
    if maps and any(_COLUMN_ID not in field.metadata for field in schema):
        yield "columnMapping", "it is on, and columns have no ids"


_COLUMN_ID = "delta.columnMapping.id"
_SYMLINKS = "delta.compatibility.symlinkFormatManifest.enabled"
_WHETHER = (
    "delta.appendOnly",
    "delta.enableChangeDataFeed",
    "delta.enableChangeDataCapture",
    "delta.enableInCommitTimestamps",
    "delta.enableRowTracking",
    "delta.enableTypeWidening",
)


def refusals(
    protocol: Protocol, metadata: Metadata, kind: OperationKind
) -> Iterator[tuple[str, str]]:
    """(feature or version, reason) of everything that rules `kind` out."""
    reads = kind is OperationKind.READ
    yield from _too_new(protocol, reads=reads)
    if not reads:
        yield from _forgets(metadata)
    schema = parse(metadata.schema_string)
    if not reads and kind not in OF_LOG:
        for column in filter(is_reserved_column, (field.name for field in schema)):
            yield f"column {column}", f"names beginning with {HIDDEN_PREFIX} are reserved by Tandem"
    if kind in _STATEMENTS:
        yield from _vector_clashes(schema)
        if feeds_changes(protocol, metadata):
            yield from _feed_clashes(schema)
    by_catalog = not writer_features(protocol).isdisjoint(OF_CATALOGS)
    if by_catalog and kind in INSERTS and identity.has_columns(metadata.schema_string):
        yield "identityColumns", "marks of catalog-managed tables have not been tried"
    for column, type_ in _strange_types(schema):
        yield f"column {column}", f"we do not know its type, {type_}"
    for name in sorted(reader_features(protocol) if reads else writer_features(protocol)):
        feature = FEATURES.get(name)
        if feature is None:
            yield name, _UNKNOWN
        elif kind in feature.refused and feature.in_use(metadata, schema):
            yield name, feature.why
    if not reads and keeps_row_ids(protocol, metadata):
        yield from (("rowTracking", why) for why in _loses_row_ids(protocol, metadata, kind))
    if kind in _WRITES:
        for version in _iceberg(protocol, metadata):
            name = f"icebergCompatV{version}"
            yield from ((name, why) for why in _not_for_iceberg(version, protocol, metadata))


def _loses_row_ids(protocol: Protocol, metadata: Metadata, kind: OperationKind) -> Iterator[str]:
    """What rules out an operation that keeps the ids of rows otherwise."""
    if _is_true(metadata, _SUSPENDED):
        yield f"it is both enabled and suspended; set {_SUSPENDED} or {_TRACKING} to false"
    by_vectors = kind is OperationKind.DELETE and writes_deletion_vectors(protocol, metadata)
    if kind in _MOVES and not by_vectors and row_id_columns(protocol, metadata) is None:
        yield f"{' and '.join(_ROW_ID_COLUMNS)} do not name two columns that the schema lacks"


def _iceberg(protocol: Protocol, metadata: Metadata) -> list[int]:
    """The versions of Iceberg compatibility that the table has on."""
    listed, schema = writer_features(protocol), StructType()
    names = {n: FEATURES[f"icebergCompatV{n}"] for n in (1, 2, 3)}
    return [n for n, each in names.items() if each.name in listed and each.in_use(metadata, schema)]


def _not_for_iceberg(version: int, protocol: Protocol, metadata: Metadata) -> Iterator[str]:
    """What in the table contradicts the feature ("Iceberg Compatibility" in the protocol, and
    `IcebergCompat.scala` of Delta): Spark refuses to commit to it, too."""
    if len(on := _iceberg(protocol, metadata)) > 1:
        yield f"so are {' and '.join(f'V{n}' for n in on if n != version)}; enable one version"
    if version < 2:
        return
    if column_mapping_mode(metadata.configuration) == "none":
        yield "it needs column mapping"
    if version == 2 and writes_deletion_vectors(protocol, metadata):
        yield "it forbids deletion vectors; set delta.enableDeletionVectors to false"
    schema = parse(metadata.schema_string)
    for field in schema:
        if any(type_ == PrimitiveType("void") for type_ in types_of(field.type)):
            yield f"column {field.name} is of type void"
    for field in fields_of(schema):
        ids = field.metadata.get(NESTED_IDS)
        known = set(ids) if isinstance(ids, dict) else set()
        if not known.issuperset(nested_paths(field)):
            yield f"elements, keys or values in column {field.name} have no ids ({NESTED_IDS})"
        for change in field.metadata.get("delta.typeChanges", ()):
            if not _is_promotion(str(change.get("fromType")), str(change.get("toType"))):
                yield (
                    f"column {field.name} was widened from {change.get('fromType')} to "
                    f"{change.get('toType')}, which Iceberg does not know"
                )


_INTEGERS = ("byte", "short", "integer", "long")


def _is_promotion(old: str, new: str) -> bool:
    """Whether Iceberg widens types so."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    decimals = PrimitiveType(old).decimal, PrimitiveType(new).decimal
    same_scale = decimals[0] and decimals[1] and decimals[0][1] == decimals[1][1]
    return bool(same_scale) or (old, new) == ("float", "double")


def _strange_types(schema: StructType) -> Iterator[tuple[str, str]]:
    """(top-level column, type) of types without an Arrow form, at any depth, whether or not a
    feature declares them."""
    for field in schema:
        for type_ in types_of(field.type):
            if isinstance(type_, PrimitiveType) and not has_arrow_form(type_):
                yield field.name, type_.name


def _too_new(protocol: Protocol, *, reads: bool) -> Iterator[tuple[str, str]]:
    if protocol.min_reader > _NEWEST_READER:
        yield f"reader version {protocol.min_reader}", "we know reader versions 1 to 3"
    if not reads and protocol.min_writer > _NEWEST_WRITER:
        yield f"writer version {protocol.min_writer}", "we know writer versions 1 to 7"


def check(
    protocol: Protocol,
    metadata: Metadata,
    kind: OperationKind,
    *,
    resource: str = "",
    asked: str = "",
) -> None:
    """Refuse `kind` on a table that it would harm or misread, before anything is written.

    `asked` is what the message calls the operation, if it has another name than `kind`.

    Raises: UnsupportedFeature, which names every feature concerned.
    """
    found = list(refusals(protocol, metadata, kind))
    _refuse(found, f"{asked or kind.lower()} is refused", resource)


def check_adoptable(protocol: Protocol, metadata: Metadata, *, resource: str = "") -> None:
    """Refuse a table that cannot be compacted. Raises: UnsupportedFeature."""
    found = list(refusals(protocol, metadata, OperationKind.COMPACTION))
    _refuse(found, "the table is refused", resource)


def check_remembers(metadata: Metadata, *, resource: str = "") -> None:
    """Refuse a table whose log may have expired the `txn`s of our commits. Raises:
    UnsupportedFeature."""
    _refuse(list(_forgets(metadata)), "continuing is refused", resource)


def _forgets(metadata: Metadata) -> Iterator[tuple[str, str]]:
    if FORGETFUL in metadata.configuration:
        yield FORGETFUL, "checkpoints may forget which operations have committed"


OF_CATALOGS = ("catalogManaged", "catalogOwned-preview")
"""Features of tables that are read and written through their catalog only."""


def check_readable(
    protocol: Protocol, metadata: Metadata, *, resource: str = "", managed: bool = False
) -> None:
    """Refuse a table whose *log* cannot be interpreted. Weaker than `check(…, READ)`: a table
    with a variant column can be listed but not scanned.

    Args:
        managed: whether the log is read through the table's catalog.
    Raises: UnsupportedFeature, CorruptLog.
    """
    schema = parse(metadata.schema_string, resource=resource)
    check_names(schema, metadata.partition_columns, resource=resource)
    of_catalog = [(n, FEATURES[n].why) for n in OF_CATALOGS if n in writer_features(protocol)]
    if of_catalog and not managed:
        _refuse(of_catalog, "the table cannot be opened by its location", resource, _BY_CATALOG)
    found = list(_too_new(protocol, reads=True))
    for name in sorted(reader_features(protocol)):
        feature = FEATURES.get(name)
        if feature is None:
            found.append((name, _UNKNOWN))
        elif feature.blocks_log and feature.in_use(metadata, schema):
            found.append((name, feature.why))
    # With some writer features the log is not authoritative, either.
    found += [
        (name, FEATURES[name].why)
        for name in sorted(writer_features(protocol) - reader_features(protocol))
        if name in FEATURES
        and FEATURES[name].blocks_log
        and FEATURES[name].in_use(metadata, schema)
    ]
    _refuse(found, "the table cannot be read", resource)


def check_commits(protocol: Protocol, metadata: Metadata, *, resource: str = "") -> None:
    """Refuse a table whose log is readable, but to which not even a commit without files may be
    added. Raises: UnsupportedFeature."""
    found = [*_too_new(protocol, reads=False), *_forgets(metadata)]
    for name in features_in_use(protocol, metadata):
        feature = FEATURES.get(name)
        if feature is None:
            found.append((name, _UNKNOWN))
        elif feature.blocks_commits:
            found.append((name, feature.why))
    _refuse(found, "committing is refused", resource)


_BY_CATALOG = (
    "Name it as its catalog does: unity://HOST/CATALOG.SCHEMA.TABLE in place of the location, or "
    "spec.catalog in a LakeTable"
)
_LEAVE = (
    "Leave this table to its engine, or drop the feature there; docs/features.md lists what is "
    "possible with each"
)


def _refuse(found: list[tuple[str, str]], what: str, resource: str, remedy: str = _LEAVE) -> None:
    if not found:
        return
    raise UnsupportedFeature(
        what + " because of " + "; ".join(f"{name}: {why}" for name, why in found),
        resource=resource,
        field="protocol",
        found=", ".join(name for name, _ in found),
        expected="a table that uses only features known to Tandem for this operation",
        remedy=remedy,
    )


def supports_deletion_vectors(protocol: Protocol) -> bool:
    """Whether adds of this table may carry deletion vectors."""
    return (
        "deletionVectors" in protocol.reader_features
        and "deletionVectors" in protocol.writer_features
    )


def asks_for_deletion_vectors(configuration: Mapping[str, str]) -> bool:
    """Whether `delta.enableDeletionVectors` is true."""
    return configuration.get("delta.enableDeletionVectors", "").lower() == "true"


def writes_deletion_vectors(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether writers are to use them: supported, and `delta.enableDeletionVectors` is true."""
    enabled = asks_for_deletion_vectors(metadata.configuration)
    return enabled and supports_deletion_vectors(protocol)


def supports_row_tracking(protocol: Protocol) -> bool:
    """Whether files have row ids, unless that is suspended."""
    return "rowTracking" in writer_features(protocol)


def suspends_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether files get no row ids, although the table supports them."""
    return supports_row_tracking(protocol) and _is_true(metadata, _SUSPENDED)


def keeps_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether row tracking is enabled: rows keep their ids and versions when they are moved."""
    return supports_row_tracking(protocol) and _is_true(metadata, _TRACKING)


def feeds_changes(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether the table has a change data feed: its commits name change files for what readers
    cannot derive from the files that are added and removed."""
    feature = FEATURES["changeDataFeed"]
    if feature.name not in writer_features(protocol):
        return False
    return feature.in_use(metadata, StructType())


def file_demands(protocol: Protocol, metadata: Metadata) -> tuple[bool, Sequence[int]]:
    """What new data files must be like, as far as it is neither in the schema nor row tracking."""
    return repeats_partitions(protocol, metadata), _iceberg(protocol, metadata)


def repeats_partitions(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether new data files must have the partition columns, too."""
    must = "materializePartitionColumns" in writer_features(protocol)
    return bool(metadata.partition_columns) and (must or bool(_iceberg(protocol, metadata)))


def row_id_columns(protocol: Protocol, metadata: Metadata) -> tuple[str, str] | None:
    """The columns of data files, by physical name, that have the id and the commit version that a
    row had before it was moved there; the schema does not have them. None if rows do not keep
    them, or if there are no two such columns."""
    if not keeps_row_ids(protocol, metadata):
        return None
    row_id, version = (metadata.configuration.get(key, "") for key in _ROW_ID_COLUMNS)
    schema = parse(metadata.schema_string)
    others = {name.lower() for field in schema for name in (field.name, field.physical_name)}
    found = {row_id.lower(), version.lower()}
    usable = row_id and version and len(found) == 2 and others.isdisjoint(found)
    return (row_id, version) if usable else None


def enable_deletion_vectors(protocol: Protocol, metadata: Metadata) -> tuple[Protocol, Metadata]:
    """The upgrade that `enableDeletionVectors` of a LakeTable requests. All features that the
    legacy versions stood for are listed, as the protocol requires, and all that are used."""
    configuration = {**metadata.configuration, "delta.enableDeletionVectors": "true"}
    metadata = replace(metadata, configuration=configuration)
    readers, writers = features_used(metadata)
    # Of a feature and its preview one is enough, and older clients know the preview only.
    known = writer_features(protocol)
    previewed = frozenset(name for name in writers if f"{name}-preview" in known)
    if "columnMapping" not in reader_features(protocol) | readers:
        # Writers of version 5 and 6 knew it; it is listed for both or not at all.
        known -= {"columnMapping"}
    upgraded = replace(
        protocol,
        min_reader=3,
        min_writer=7,
        reader_features=reader_features(protocol) | (readers - previewed),
        writer_features=known | (writers - previewed),
    )
    return upgraded, metadata


def for_new_table(metadata: Metadata) -> Protocol:
    """The lowest protocol for a table with this schema and these properties."""
    readers, writers = features_used(metadata)
    basic = writer_features(Protocol(1, 2))
    if writers <= basic:
        return Protocol(1, 2)
    return Protocol(3 if readers else 1, 7, readers, writers | basic)
