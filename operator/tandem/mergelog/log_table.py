"""The log as a Delta table: its settings, its schema, and what a version of it says.

The log lies in `_tandem/log` of its base table. Its writer feature keeps other engines from writing
it; a log of a later format is refused here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import pyarrow as pa

from tandem.delta import protocol
from tandem.delta.actions import Action, Metadata, Protocol
from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.delta.schema import (
    COLLATIONS,
    Field,
    PrimitiveType,
    StructType,
    column_mapping_mode,
    fields_of,
    to_delta_json,
    types_of,
)
from tandem.errors import (
    AlreadyExists,
    CorruptLog,
    InvalidSpec,
    InvalidStatement,
    NotMergeOnRead,
    OutcomeUnknown,
    TableNotFound,
    UnsupportedFeature,
    closest_name,
)
from tandem.mergelog.versions import (
    BASE,
    FEATURE,
    FORMAT,
    MARK,
    Block,
    BlockLogState,
    block_of,
    require_own,
    txns_of,
)
from tandem.storage.paths import LOG_FOLDER
from tandem.storage.rooted import Subfolder
from tandem.storage.store import Store
from tandem.text import clean

if TYPE_CHECKING:
    from tandem.statements.local.rules import LocalRules

CHECKPOINT_INTERVAL = 50
"""Versions of a log between checkpoints. A writer writes them, and an append takes milliseconds."""

DELETED = protocol.HIDDEN_PREFIX + "deleted"
INSTANT = protocol.HIDDEN_PREFIX + "instant"
"""The columns of a log that its base table lacks: whether a record deletes its key; and its
instant, NULL in an appended block, whose instant is the version that added it."""

_KEPT_METADATA = ("delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.typeChanges")
_KEPT_PROPERTIES = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
# A restore of the base table needs the state that its log had then.

# The ids of our columns under column mapping: the last ones, which no base table reaches.
_IDS = {DELETED: 2**31 - 2, INSTANT: 2**31 - 1}
_FLOATS = frozenset({"float", "double"})
_VOID = "void"
_NESTED = "a nested type"
_COLLATED = "a text with a collation"

UNDO = (
    "Undo the change: rename the column back, or restore the table to the version before. To "
    "change the keys of a log, merge it first, remove `_tandem/log`, and make it again"
)
"""The remedy if keys or the ordering column have changed in the base table."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is fixed when a log is made.

    Attributes:
        keys: names of the key columns, as the base table spells them.
        ordering_column: its values decide which record of a key wins; "" without one.
        base_id: the id of the base table.
    """

    keys: tuple[str, ...]
    ordering_column: str = ""
    base_id: str = ""

    @property
    def ordered(self) -> bool:
        return bool(self.ordering_column)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide which record of a key wins."""
        return (*self.keys, self.ordering_column) if self.ordered else self.keys

    def configuration(self) -> dict[str, str]:
        return {
            "tandem.log.format": str(FORMAT),
            "tandem.log.keys": json.dumps(self.keys, ensure_ascii=False),
            "tandem.log.orderingColumn": self.ordering_column,
            "tandem.log.baseId": self.base_id,
        }


class MergeLog:
    """The log of a base table. Holds no state between calls: thread-safe."""

    def __init__(self, base: DeltaLog) -> None:
        self.base = base
        self.store: Store = Subfolder(base.store, LOG_FOLDER)
        self.log = DeltaLog(
            self.store,
            parallel_reads=base.parallel_reads,
            check=lambda commit: require_own(commit, self.store.location),
        )

    def exists(self) -> bool:
        return self.log.exists()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """A version of the log, by default the newest.

        Raises: NotMergeOnRead, VersionNotFound, UnsupportedFeature, CorruptLog.
        """
        try:
            found = self.log.snapshot(version)
        except TableNotFound:
            raise NotMergeOnRead(
                "the table has no log of blocks",
                resource=self.base.store.location,
                field=LOG_FOLDER,
                found="no Delta table",
                expected="the log of a merge-on-read table",
                remedy="Set spec.mergeOnRead of its LakeTable",
            ) from None
        check_format(found)
        return found

    def update(self, snapshot: Snapshot) -> Snapshot:
        """As `DeltaLog.update`. Raises: as `snapshot`."""
        return _checked(self.log.update(snapshot), snapshot)

    def commit_after(
        self,
        snapshot: Snapshot,
        actions: Sequence[Action],
        *,
        token: str,
        beside: Executor | None = None,
    ) -> Snapshot | None:
        """As `DeltaLog.commit_after`. Raises: OutcomeUnknown, and as `snapshot`."""
        newest = self.log.commit_after(snapshot, actions, token=token, beside=beside)
        return None if newest is None else _checked(newest, snapshot)


def _checked(found: Snapshot, before: Snapshot) -> Snapshot:
    """A version of the log that follows one that was checked."""
    if found.metadata is not before.metadata or found.protocol is not before.protocol:
        check_format(found)
    return found


def check_format(snapshot: Snapshot) -> None:
    """Refuse what is no log, or one of a later format. Raises: UnsupportedFeature."""
    features = snapshot.protocol.writer_features
    unknown = sorted(name for name in features if name not in protocol.FEATURES)
    version = snapshot.configuration.get("tandem.log.format", "none")
    if unknown or FEATURE not in features or version != str(FORMAT):
        raise UnsupportedFeature(
            "the log of blocks cannot be read",
            resource=snapshot.location,
            field="protocol",
            found=f"format {version}, features {', '.join(sorted(features)) or 'none'}",
            expected=f"format {FORMAT}, feature {FEATURE}, and no unknown one",
            remedy="Upgrade Tandem: a later version has written this log",
        )


def settings_of(snapshot: Snapshot) -> LogSettings:
    """The settings of a log. Raises: CorruptLog."""
    configuration = snapshot.configuration
    try:
        keys = json.loads(configuration["tandem.log.keys"])
        known = snapshot.schema.names
        if not keys or not all(key in known for key in keys):
            raise ValueError(f"keys {keys}")
        return LogSettings(
            tuple(keys),
            configuration.get("tandem.log.orderingColumn", ""),
            configuration["tandem.log.baseId"],
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptLog(
            "the settings of the log of blocks cannot be read",
            resource=snapshot.location,
            field="metaData.configuration",
            found=f"{type(error).__name__}: {error}",
            expected="tandem.log.keys and tandem.log.baseId",
            remedy="Restore the first commit of the log from a backup",
        ) from error


def state_of(
    snapshot: Snapshot, known: Mapping[str, Block] = MappingProxyType({})
) -> BlockLogState:
    """What a version of the log says.

    Args:
        known: blocks of earlier versions by path, which are not read again: a block never changes.
    Raises: CorruptLog.
    """
    paths = snapshot.files["path"].to_pylist()
    live = {path: known[path] for path in paths if path in known}
    try:
        base = snapshot.txns[BASE].version
        mark = snapshot.txns[MARK].version
        # Four columns: an append reads them, and need not decode an action for each block.
        files = snapshot.files.select(["path", "size", "tags", "partition_values"])
        if live:
            files = files.filter(pa.array([path not in live for path in paths]))
        for file in files.to_pylist(maps_as_pydicts="lossy"):
            live[file["path"]] = block_of(
                file["path"],
                file["size"],
                file["tags"] or {},
                file["partition_values"] or {},
                snapshot.version,
            )
    except (KeyError, ValueError) as error:
        raise CorruptLog(
            "a version of the log of blocks cannot be read",
            resource=snapshot.location,
            field=f"version {snapshot.version}",
            found=f"{type(error).__name__}: {error}",
            expected=f"txns {BASE} and {MARK}, and blocks with their instants as tags",
            remedy="Another writer has changed the log: restore its files from a backup",
        ) from error
    settings = settings_of(snapshot)
    # The schema is that of the base table as of the last commit that recorded it: then its columns
    # were those of the blocks.
    fields = (snapshot.schema.get(name) for name in settings.columns)
    columns = tuple((field.name, field.physical_name) for field in fields if field is not None)
    return BlockLogState(settings.base_id, base, mark, live, columns)


def new_log(base: Snapshot, settings: LogSettings) -> tuple[Protocol, Metadata]:
    """The first protocol and metadata of a log. Its `metaData.id` is left to the caller.

    Raises: InvalidSpec for keys or an ordering column that a log cannot have; UnsupportedFeature
        if the base table must not be merged into.
    """
    check_base(base)
    settings = check_settings(base, settings)
    return log_protocol(base), log_metadata(base, settings, "")


_FIRST = Protocol(1, 7, frozenset(), frozenset({FEATURE}))


def log_protocol(base: Snapshot, before: Protocol = _FIRST) -> Protocol:
    """The protocol of a log whose base table has this schema; features are never removed."""
    features = set(before.reader_features)
    if column_mapping_mode(base.configuration) != "none":
        features.add("columnMapping")
    if any(t == PrimitiveType("timestamp_ntz") for t in types_of(base.schema)):
        features.add("timestampNtz")
    if any("delta.typeChanges" in field.metadata for field in fields_of(base.schema)):
        features.add("typeWidening")
    reader = 3 if features else 1
    return Protocol(reader, 7, frozenset(features), before.writer_features | features)


def log_metadata(base: Snapshot, settings: LogSettings, id_: str) -> Metadata:
    """The metadata of a log whose base table has this schema."""
    mapping = {
        key: value
        for key, value in base.configuration.items()
        if key.startswith("delta.columnMapping.")
    }
    if mapping:
        mapping["delta.columnMapping.maxColumnId"] = str(max(_IDS.values()))
    kept = {key: base.configuration[key] for key in _KEPT_PROPERTIES if key in base.configuration}
    own = replace(settings, base_id=base.metadata.id).configuration()
    return Metadata(
        id=id_,
        schema_string=to_delta_json(log_schema(base.schema)),
        partition_columns=log_partitions(base, settings),
        configuration={
            "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
            # Not after a checkpoint: what plans and restores of the base table need stays.
            "delta.enableExpiredLogCleanup": "false",
            **mapping,
            **kept,
            **own,
        },
    )


def log_metadata_for(snapshot: Snapshot, base: Snapshot) -> Metadata:
    """The metadata of a version of the log that looks at this version of the base table: equal to
    the present one if nothing changed."""
    found = log_metadata(base, settings_of(snapshot), snapshot.metadata.id)
    return replace(
        snapshot.metadata,
        schema_string=found.schema_string,
        partition_columns=found.partition_columns,
        configuration=found.configuration,
    )


def log_partitions(base: Snapshot, settings: LogSettings) -> tuple[str, ...]:
    """The partition columns of blocks for this version of the base table: its own ones, if all of
    them are keys, else none. They change with a boundary only, so that all live blocks agree."""
    keys = {key.lower() for key in settings.keys}
    partitions = tuple(base.partition_columns)
    return partitions if all(column.lower() in keys for column in partitions) else ()


def check_base(base: Snapshot) -> None:
    """Raises: UnsupportedFeature if a merge into the base table is impossible."""
    for kind in (protocol.OperationKind.MERGE, protocol.OperationKind.LOG_APPEND):
        protocol.check(
            base.protocol, base.metadata, kind, resource=base.location, asked="merge-on-read"
        )
    _check_rules(base)
    if any(isinstance(type_, StructType) and not type_.fields for type_ in types_of(base.schema)):
        raise UnsupportedFeature(
            "merge-on-read cannot write a struct without fields",
            resource=base.location,
            field="metaData.schemaString",
            found="a column of type struct<>",
            expected="structs with a field, since Parquet has no others",
            remedy="Add a field to the struct, or drop the column",
        )


def rules_of_base(base: Snapshot) -> LocalRules:
    """The rules that records of the log must not break. Raises: InvalidStatement."""
    from tandem.statements.local.rules import LocalRules  # a parser: compactions need none

    metadata = base.metadata
    return LocalRules.of(metadata.schema_string, metadata.configuration, base.partition_columns)


def _check_rules(base: Snapshot) -> None:
    """Raises: UnsupportedFeature for a rule that is not evaluated here: writers of a log have no
    Spark."""
    try:
        rules = rules_of_base(base)
        found = [f"{rule.name}: {rule.text}" for rule in rules.left_to_spark]
    except InvalidStatement as error:
        found = [f"{error.field}: {error.message}: {error.snippet or error.found}"]
    if found:
        raise UnsupportedFeature(
            "merge-on-read is refused because of a rule of the table",
            resource=base.location,
            field="metaData",
            found="; ".join(clean(text, 300) for text in found),
            expected="CHECK constraints that are evaluated without Spark (docs/statements.md)",
            remedy="Drop it, or write it in another way",
        )


def require_mergeable(base: Snapshot) -> None:
    """Check that a merge could take the records of the log: other engines may have set a CHECK
    constraint, `delta.appendOnly` and the like since it was made.

    Raises: UnsupportedFeature.
    """
    try:
        check_base(base)
    except UnsupportedFeature as error:
        raise UnsupportedFeature(
            f"no merge can take records of the log, so none are appended: {error.message}",
            resource=error.resource,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy="Undo this in the base table (ALTER TABLE … DROP CONSTRAINT or UNSET "
            "TBLPROPERTIES), then merge the log. Until then it keeps its records",
        ) from error


def check_settings(base: Snapshot, settings: LogSettings) -> LogSettings:
    """The settings in the spelling of the base table. Raises: InvalidSpec."""
    if not settings.keys:
        raise _invalid(base, "keys", "none", "at least one column")
    keys = tuple(_column(base, "keys", name) for name in settings.keys)
    if len(set(keys)) < len(keys):
        raise _invalid(base, "keys", ", ".join(settings.keys), "each column once")
    for key in keys:
        found = _type_name(base, key)
        if found in (*_FLOATS, _VOID, _NESTED, _COLLATED):
            expected = "no float, no void, no nested type, no collation"
            raise _invalid(base, "keys", f"{key}: {found}", expected)
    ordering = ""
    if settings.ordering_column:
        ordering = _column(base, "orderingColumn", settings.ordering_column)
        found = _type_name(base, ordering)
        if found in (_VOID, _NESTED, _COLLATED):
            raise _invalid(base, "orderingColumn", f"{ordering}: {found}", "a plain type")
        if ordering in keys:
            raise _invalid(base, "orderingColumn", f"{ordering}, which is a key", "another column")
    return LogSettings(keys, ordering, base.metadata.id)


def _type_name(base: Snapshot, column: str) -> str:
    type_ = base.schema[column].type
    if COLLATIONS in base.schema[column].metadata:
        return _COLLATED
    return type_.name if isinstance(type_, PrimitiveType) else _NESTED


def require_columns(base: Snapshot, settings: LogSettings) -> None:
    """Check that the base table has the keys and the ordering column of its log, under the names
    that the log has.

    Raises: InvalidSpec.
    """
    try:
        found = check_settings(base, settings)
        if found.keys != settings.keys:
            raise _invalid(base, "keys", ", ".join(found.keys), ", ".join(settings.keys))
        if found.ordering_column != settings.ordering_column:
            names = found.ordering_column, settings.ordering_column
            raise _invalid(base, "orderingColumn", *names)
    except InvalidSpec as error:
        raise InvalidSpec(
            "the keys or the ordering column of the log have changed in the base table",
            resource=error.resource,
            field=error.field,
            found=error.found,
            expected=error.expected,
            remedy=UNDO,
        ) from error


def _column(base: Snapshot, field: str, name: str) -> str:
    found = base.schema.get(name)
    if found is None:
        meant = closest_name(name, base.schema.names)
        expected = f"perhaps {meant}" if meant else "a column of the table"
        raise _invalid(base, field, name, expected)
    return found.name


def _invalid(base: Snapshot, field: str, found: str, expected: str) -> InvalidSpec:
    return InvalidSpec(
        "the log of a merge-on-read table cannot be created",
        resource=base.location,
        field=f"spec.mergeOnRead.{field}",
        found=found,
        expected=expected,
        remedy="Correct spec.mergeOnRead",
    )


def log_schema(base: StructType) -> StructType:
    """The schema of a log: all columns nullable at any level, without constraints, and the log's
    own two."""
    own = (Field(DELETED, PrimitiveType("boolean")), Field(INSTANT, PrimitiveType("long")))
    mapped = any("delta.columnMapping.id" in field.metadata for field in base.fields)
    fields = [
        Field(
            field.name,
            field.type,
            True,
            {key: field.metadata[key] for key in _KEPT_METADATA if key in field.metadata},
        )
        for field in all_nullable(base).fields
    ]
    return StructType((*fields, *(_with_id(field) if mapped else field for field in own)))


def _with_id(field: Field) -> Field:
    mapping: Mapping[str, object] = {
        "delta.columnMapping.id": _IDS[field.name],
        "delta.columnMapping.physicalName": field.name,
    }
    return replace(field, metadata=mapping)


def block_schema(base: StructType) -> StructType:
    """The columns of blocks for this schema of the base table. The types are those of its rows,
    with the nullability of nested fields."""
    return StructType((*base.fields, *log_schema(base).fields[-2:]))


def block_format(base: Snapshot, settings: LogSettings) -> TableFormat:
    """How blocks are read and written for this version of the base table."""
    return TableFormat(
        block_schema(base.schema), log_partitions(base, settings), base.configuration
    )


# Makes the log of a base table, once, and commits to it.


_TRIES = 3
_T = TypeVar("_T")


def ensure_log(log: MergeLog, settings: LogSettings, *, now_ms: int, nonce: str) -> bool:
    """Make the log unless it is there; returns whether this call made it.

    Args:
        settings: `base_id` is ignored.
        now_ms: Unix milliseconds.
        nonce: unique text.
    Raises: InvalidSpec, also if the log has other settings, or their columns have changed in the
        base table; UnsupportedFeature; CorruptLog; OutcomeUnknown.
    """
    base = log.base.snapshot()
    if not log.exists():
        protocol, metadata = new_log(base, settings)
        id_ = UUID(bytes=hashlib.sha256(nonce.encode()).digest()[:16], version=4)
        info = commit_info(
            "CREATE TABLE",
            {"mode": "ErrorIfExists", "partitionBy": json.dumps(metadata.partition_columns)},
            now_ms=now_ms,
            previous=None,
            blind_append=True,
        )
        actions: list[Action] = [info, protocol, replace(metadata, id=str(id_), created_ms=now_ms)]
        actions += txns_of(BlockLogState(base.metadata.id, base.version))
        if put(log, 0, actions, nonce):
            return True
    found = settings_of(log.snapshot())
    if _names(found) != _names(settings):
        raise InvalidSpec(
            "the log of blocks has other settings, and they cannot be changed",
            resource=base.location,
            field="spec.mergeOnRead",
            found=_text(settings),
            expected=_text(found),
            remedy="Restore the settings; or merge the log, remove `_tandem/log`, and apply the "
            "new ones",
        )
    require_columns(base, found)
    return False


def put(log: MergeLog, version: int, actions: list[Action], token: str) -> bool:
    """Commit to the log; False if another writer has committed this version.

    Raises: OutcomeUnknown, if several tries do not tell.
    """

    def try_once() -> bool:
        try:
            log.log.put_commit(version, actions, token=token)
        except AlreadyExists:
            return False
        return True

    return _until_known(log, version, try_once)


def put_after(
    log: MergeLog,
    snapshot: Snapshot,
    actions: Sequence[Action],
    token: str,
    *,
    beside: Executor | None = None,
) -> Snapshot | None:
    """As `put`, right after a version of the log; `beside` as in `DeltaLog.commit_after`.

    Returns: None once it is committed; the newest version, if another writer was faster.
    Raises: OutcomeUnknown; as `MergeLog.snapshot`.
    """
    version = snapshot.version + 1
    return _until_known(
        log, version, lambda: log.commit_after(snapshot, actions, token=token, beside=beside)
    )


def _until_known(log: MergeLog, version: int, try_once: Callable[[], _T]) -> _T:
    """Repeat a put under its token while its outcome is unknown: one that arrived meanwhile is
    recognized as ours. Raises: OutcomeUnknown."""
    for _ in range(_TRIES):
        try:
            return try_once()
        except OutcomeUnknown:
            continue
    raise OutcomeUnknown(
        "whether the commit was made is unknown",
        resource=log.store.location,
        field=f"version {version}",
        remedy="Repeat the batch under its number: it counts once",
    )


def _names(settings: LogSettings) -> tuple[list[str], str]:
    """Names are case-insensitive to Delta."""
    return [key.lower() for key in settings.keys], settings.ordering_column.lower()


def _text(settings: LogSettings) -> str:
    ordering = f", orderingColumn {settings.ordering_column}" if settings.ordered else ""
    return f"keys {', '.join(settings.keys)}{ordering}"
