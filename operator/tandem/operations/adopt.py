"""`LakeTable`: adopt the table at a location, or create it.

Adopting a table changes at most its protocol (deletion vectors), if that is requested. Support for
put-if-absent is probed: a store without it is refused before anything is committed.

What reads the log of a merge-on-read table and plans its upkeep is imported once there is one: most
tables have none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow.compute as pc

from tandem.delta import protocol
from tandem.delta.actions import Action, Metadata
from tandem.delta.datafiles.bloom_filters import required_filters
from tandem.delta.log.delta_log import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION, DeltaLog
from tandem.delta.log.files import SCHEMA
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.delta.properties import flag
from tandem.delta.schema import parse, to_delta_json
from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    DeletionVectorsDisabled,
    InvalidSpec,
    ObjectNotFound,
    OutcomeUnknown,
    Reason,
    StorageError,
    TableNotFound,
    TableReplaced,
    TandemError,
    UnsupportedFeature,
)
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log, new_log
from tandem.operations.kinds.commit_history import require_vectors_or_edits
from tandem.operations.kinds.time_column import time_column
from tandem.operations.model import Table
from tandem.operations.ports import Clock, Nonces
from tandem.spec.log_compaction import DEFAULT_MAX_BLOCK_BYTES, MergeOnRead
from tandem.spec.status import (
    Condition,
    ConditionType,
    LogStatus,
    NextLogAction,
    Phase,
    TableStatus,
    rfc3339,
)
from tandem.spec.table import Create, LakeTable
from tandem.storage import Store, open_store, probe_put_if_absent
from tandem.timeline.segments import segments

if TYPE_CHECKING:
    from tandem.catalogs.lookup import CatalogEntry
    from tandem.mergelog.versions import LogFacts
    from tandem.planning.auto.facts import AutoCompactionDecision


_TABLE_IDS = ("io.unitycatalog.tableId", "ucTableId")
"""Properties with the id of a table in Unity Catalog."""
SMALL_FILE_BYTES = 32 * 2**20
_TRIES = 64


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """The result of `adopt`: `reason` is Created or Adopted; `changed` describes what was
    committed. Without a snapshot there is no table yet (`preview`)."""

    snapshot: Snapshot | None
    reason: Reason
    changed: str = ""


def open_table(
    resource: LakeTable,
    *,
    allowed_prefixes: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
    ceiling_s: float | None = None,
    entry: CatalogEntry | None = None,
) -> Table:
    """The table of a LakeTable. Nothing of it is read yet; its catalog is asked, if it has one.
    Arguments as of `open_store`, but `allowed_prefixes` are `Table`'s.

    Args:
        entry: what the catalog has answered already.
    Raises: InvalidSpec, LocationNotAllowed, StorageError; as `look_up`.
    """
    if entry is None and resource.spec.catalog is not None:
        from tandem.catalogs.lookup import TOKEN_VARIABLE, look_up

        token = os.environ.get(TOKEN_VARIABLE, "")
        entry = look_up(resource, token=lambda: token, environ=environ, ceiling_s=ceiling_s)
    storage = resource.spec.storage
    prefixes = allowed_prefixes or storage.clone_sources
    if entry is not None and entry.unity is not None and storage.secret_ref is None:
        from tandem.catalogs.unity import open_vended_store

        store = open_vended_store(
            entry.unity,
            entry.location,
            storage.options,
            allowed_prefixes=prefixes,
            ceiling_s=ceiling_s,
        )
    else:
        store = open_store(
            resource.location if entry is None else entry.location,
            storage.options,
            allowed_prefixes=prefixes,
            environ=environ,
            ceiling_s=ceiling_s,
        )
    return Table(
        store=store,
        log=open_log(store, entry),
        display=resource.id,
        spec=resource,
        storage_options=dict(storage.options),
        allowed_prefixes=allowed_prefixes,
        ceiling_s=ceiling_s,
        entry=entry,
    )


def open_log(store: Store, entry: CatalogEntry | None) -> DeltaLog:
    """The log of a table, whose commits its catalog has if it manages the table."""
    if entry is None or entry.unity is None or not entry.managed_id:
        return DeltaLog(store)
    from tandem.delta.log.catalog_log import CatalogLog

    return DeltaLog(store, commits=CatalogLog(store, entry.unity, entry.managed_id))


def adopt(table: Table, clock: Clock, nonces: Nonces, *, probe: bool = True) -> AdoptedTable:
    """Ensure that there is a table that we can use.

    Raises: TableNotFound without `create`, StoreUnsuitable, UnsupportedFeature, AccessDenied;
        InvalidSpec for a log that cannot be made. What is refused is not written in part.
    """
    resource = table.spec
    assert resource is not None
    snapshot = _existing(table)
    if snapshot is None and resource.spec.create is None:
        raise _no_table(table)
    if probe:
        probe_put_if_absent(table.store)
    if snapshot is None:
        assert resource.spec.create is not None
        if _create(table, resource.spec.create, clock, nonces):
            created = AdoptedTable(table.log.snapshot(), Reason.CREATED, "created the table")
            return _with_log(table, created, clock, nonces)
        snapshot = table.log.snapshot()
    _check(table, snapshot)
    adopted = AdoptedTable(snapshot, Reason.ADOPTED)
    if resource.spec.enable_deletion_vectors:
        adopted = _enable_deletion_vectors(table, snapshot, clock, nonces)
    return _with_log(table, adopted, clock, nonces)


def must_upgrade(table: Table) -> bool:
    """Whether `adopt` would enable deletion vectors on a table that is there."""
    if table.spec is None or not table.spec.spec.enable_deletion_vectors:
        return False
    found = _existing(table)
    return found is not None and not protocol.writes_deletion_vectors(
        found.protocol, found.metadata
    )


def _with_log(table: Table, adopted: AdoptedTable, clock: Clock, nonces: Nonces) -> AdoptedTable:
    """Make the log of a merge-on-read table, if it is missing. Raises: InvalidSpec,
    UnsupportedFeature."""
    assert table.spec is not None
    wanted = table.spec.spec.merge_on_read
    if wanted is None:
        return adopted
    settings = LogSettings(wanted.keys, wanted.ordering_column or "")
    log = MergeLog(table.log)
    there = False
    try:
        there = log.exists()
        made = ensure_log(log, settings, now_ms=clock.now_ms(), nonce=nonces.nonce())
    except (AccessDenied, ObjectNotFound):
        if not there and _is_readable(log):
            raise  # it cannot be made
        return adopted  # `status.log` says why it cannot be read; the table itself can be used
    if not made:
        return adopted
    changed = ", ".join(filter(None, (adopted.changed, "created the log of upserts and deletes")))
    return replace(adopted, changed=changed)


def _is_readable(log: MergeLog) -> bool:
    try:
        log.exists()
    except (AccessDenied, ObjectNotFound):
        return False
    return True


def preview(table: Table) -> AdoptedTable:
    """What `adopt` would find. Changes nothing; without a table, there is no snapshot.

    Raises: TableNotFound without `create`, UnsupportedFeature, InvalidSpec.
    """
    resource = table.spec
    assert resource is not None
    snapshot = _existing(table)
    if snapshot is None:
        if resource.spec.create is None:
            raise _no_table(table)
        _first_version(table, resource.spec.create, 0, "")
        return AdoptedTable(None, Reason.CREATED, "would create the table")
    _check(table, snapshot)
    enabled = protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)
    upgrade = resource.spec.enable_deletion_vectors and not enabled
    changes = ["would enable deletion vectors"] if upgrade else []
    wanted = resource.spec.merge_on_read
    if wanted is not None and not MergeLog(table.log).exists():
        changes.append("would create the log of upserts and deletes")
    return AdoptedTable(snapshot, Reason.ADOPTED, ", ".join(changes))


def _no_table(table: Table) -> TableNotFound:
    return TableNotFound(
        "there is no Delta table at this location",
        resource=table.display,
        field="spec.location",
        found=table.location,
        expected="a Delta table",
        remedy="Correct the location, or set spec.create"
        if table.spec is None or table.spec.spec.catalog is None
        else "The catalog has this location: correct the table there, or the name",
    )


def _check(table: Table, snapshot: Snapshot) -> None:
    assert table.spec is not None
    _check_managed(table, snapshot)
    time_column(table.spec, snapshot)
    _check_filters(table.spec, snapshot)
    enabled = protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)
    if table.spec.spec.enable_deletion_vectors and not enabled:
        protocol.check_vectors(snapshot.protocol, snapshot.metadata, resource=table.display)
    protocol.check_adoptable(snapshot.protocol, snapshot.metadata, resource=table.display)
    _check_log(table, snapshot)


def _check_managed(table: Table, snapshot: Snapshot) -> None:
    """Check that a table that a catalog manages is the one at the location that the catalog has.

    Raises: UnsupportedFeature, TableReplaced.
    """
    entry = table.entry
    if entry is None or not entry.managed_id:
        return
    if not protocol.writer_features(snapshot.protocol).intersection(protocol.OF_CATALOGS):
        raise UnsupportedFeature(
            "the catalog manages this table, and the table's log does not say so",
            resource=table.display,
            field="protocol",
            found="no catalogManaged",
            expected="the feature catalogManaged",
            remedy="Other writers would commit past the catalog: correct the table by its engine",
        )
    found = next(filter(None, map(snapshot.configuration.get, _TABLE_IDS)), entry.managed_id)
    if found != entry.managed_id:
        raise TableReplaced(
            "the location that the catalog has is that of another table",
            resource=table.display,
            field="table uuid",
            found=f"{found} at {table.location}",
            expected=entry.managed_id,
            remedy="Correct the table in the catalog",
        )


def _check_filters(resource: LakeTable, snapshot: Snapshot) -> None:
    """Raises: InvalidSpec for a bloom filter that no file can have."""
    index = resource.spec.index
    if index is not None and index.bloom_filters is not None:
        required_filters(
            index.bloom_filters.columns,
            index.bloom_filters.false_positives,
            snapshot.schema,
            snapshot.partition_columns,
            resource=resource.id,
            field="spec.index.bloomFilters",
        )


def _check_log(table: Table, snapshot: Snapshot) -> None:
    """Refuse a log that cannot be made, or whose records could not be merged.

    Raises: InvalidSpec, UnsupportedFeature, DeletionVectorsDisabled.
    """
    assert table.spec is not None
    wanted = table.spec.spec.merge_on_read
    if wanted is None:
        return
    if table.log.commit_log.managed:
        raise UnsupportedFeature(
            "a table that its catalog manages has no log of upserts and deletes",
            resource=table.display,
            field="spec.mergeOnRead",
            found="both",
            expected="one of them",
            remedy="Remove spec.mergeOnRead, and write by TableUpdate or TableIngest",
        )
    new, metadata = table.rules(snapshot)
    snapshot = replace(snapshot, protocol=new, metadata=metadata)
    try:
        new_log(snapshot, LogSettings(wanted.keys, wanted.ordering_column or ""))
        require_vectors_or_edits(table, snapshot, table.spec.id, "spec.mergeOnRead")
    except (InvalidSpec, UnsupportedFeature, DeletionVectorsDisabled):
        if not MergeLog(table.log).exists():
            raise
        # It has been made already, and `ensure_log` or its status says what it lacks now.


def _existing(table: Table) -> Snapshot | None:
    try:
        return table.log.snapshot()
    except TableNotFound:
        return None


def _first_version(table: Table, create: Create, now_ms: int, nonce: str) -> Snapshot:
    """Version 0 of the table that `create` describes. Raises: UnsupportedFeature, InvalidSpec."""
    assert table.spec is not None
    fields = [
        {
            "name": column.name,
            "type": column.type,
            "nullable": column.nullable,
            "metadata": {"comment": column.comment} if column.comment is not None else {},
        }
        for column in create.columns
    ]
    schema = parse(_json({"type": "struct", "fields": fields}), resource=table.spec.id)
    configuration = dict(create.properties)
    # The property without the feature would be a table that Spark refuses.
    deletion_vectors = table.spec.spec.enable_deletion_vectors or flag(
        configuration, "delta.enableDeletionVectors", default=False
    )
    if deletion_vectors:
        configuration["delta.enableDeletionVectors"] = "true"
    # In the schema's spelling: names are case-insensitive.
    partition_by = tuple(schema[name].name for name in create.partition_by)
    metadata = Metadata(
        id=str(UUID(bytes=hashlib.sha256(nonce.encode()).digest()[:16], version=4)),
        schema_string=to_delta_json(schema),
        partition_columns=partition_by,
        configuration=configuration,
        created_ms=now_ms,
    )
    new = protocol.for_new_table(metadata)
    if deletion_vectors:
        protocol.check_vectors(new, metadata, resource=table.spec.id)
    ingest = protocol.OperationKind.INGEST
    protocol.check(new, metadata, ingest, resource=table.spec.id, asked="creating the table")
    files = SCHEMA.empty_table()
    first = Snapshot(table.location, 0, now_ms, metadata, new, {}, {}, files)
    _check_filters(table.spec, first)
    _check_log(table, first)
    return first


def _create(table: Table, create: Create, clock: Clock, nonces: Nonces) -> bool:
    """Put version 0; False if another writer did so meanwhile."""
    assert table.spec is not None
    now = clock.now_ms()
    nonce = nonces.nonce()
    first = _first_version(table, create, now, nonce)
    info = commit_info(
        "CREATE TABLE",
        {"mode": "ErrorIfExists", "partitionBy": _json(list(first.partition_columns))},
        now_ms=now,
        previous=None,
        blind_append=True,
        tandem={"resource": f"{table.spec.namespace}/{table.spec.id}"},
    )
    return _put(table, 0, [info, first.protocol, first.metadata], nonce)


def _enable_deletion_vectors(
    table: Table, snapshot: Snapshot, clock: Clock, nonces: Nonces
) -> AdoptedTable:
    changed = ""
    for _ in range(_TRIES):
        if protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata):
            return AdoptedTable(snapshot, Reason.ADOPTED, changed)
        before = protocol.writer_features(snapshot.protocol)
        new, metadata = protocol.enable_deletion_vectors(snapshot.protocol, snapshot.metadata)
        info = commit_info(
            "SET TBLPROPERTIES",
            {"properties": _json({"delta.enableDeletionVectors": "true"})},
            now_ms=clock.now_ms(),
            previous=snapshot,
            blind_append=False,
        )
        if "inCommitTimestamp" in new.writer_features - before:
            # Earlier commits may lack them (protocol, "In-Commit Timestamps").
            since = {
                ENABLEMENT_VERSION: str(snapshot.version + 1),
                ENABLEMENT_TIMESTAMP: str(info.timestamp_ms),
            }
            metadata = replace(metadata, configuration={**metadata.configuration, **since})
        if _put(table, snapshot.version + 1, [info, new, metadata], nonces.nonce()):
            changed = "enabled deletion vectors"
        snapshot = table.log.update(snapshot)
    raise AlreadyExists("other writers committed first every time", resource=table.location)


def _put(table: Table, version: int, actions: list[Action], token: str) -> bool:
    for _ in range(3):
        try:
            table.log.put_commit(version, actions, token=token)
        except AlreadyExists:
            return False
        except OutcomeUnknown:
            continue  # the same token again: the put that arrived is ours
        return True
    raise OutcomeUnknown(
        "whether the commit was made is unknown",
        resource=table.location,
        remedy="Run it again to find out",
    )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def status_of_table(
    table: Table, adopted: AdoptedTable, *, now_ms: int, running: tuple[str, ...] = ()
) -> TableStatus:
    """The facts of a table's status, from one snapshot."""
    resource, snapshot = table.spec, adopted.snapshot
    assert resource is not None
    rows: int | None = 0
    deleted = small = 0
    if snapshot is not None:
        known = snapshot.num_records
        deleted = pc.sum(snapshot.num_deleted).as_py() or 0
        rows = (pc.sum(known).as_py() or 0) - deleted if not known.null_count else None
        small = pc.sum(pc.less(snapshot.files["size"], SMALL_FILE_BYTES)).as_py() or 0
    generation = resource.metadata.generation
    when = rfc3339(now_ms)
    return TableStatus(
        observed_generation=generation,
        location=table.location,
        phase=Phase.SUCCEEDED,
        conditions=(
            Condition(
                type=ConditionType.READY,
                status="True",
                reason=adopted.reason,
                message=adopted.changed,
                last_transition_time=when,
                observed_generation=generation,
            ),
        ),
        version=snapshot.version if snapshot else None,
        segments=len(segments(snapshot.files)) if snapshot else 0,
        files=snapshot.num_files if snapshot else 0,
        bytes=snapshot.size_bytes if snapshot else 0,
        rows=rows,
        deleted_rows=deleted,
        small_files=small,
        running_operations=running,
    )


def log_status(log: LogFacts, policy: MergeOnRead | None, table: TableStatus) -> LogStatus:
    """The facts of a log as its table's status shows them. Pure.

    Args:
        table: has the rows of the base table.
    """
    limit = DEFAULT_MAX_BLOCK_BYTES
    if policy is not None and policy.log_compaction is not None:
        limit = policy.log_compaction.max_block_bytes
    blocks = log.state.live.values()
    return LogStatus(
        newest_instant=log.newest,
        merged_instant=log.state.mark if log.state.mark >= 0 else None,
        blocks=len(blocks),
        unmerged_blocks=len(log.state.unmerged),
        small_blocks=sum(block.size < limit for block in blocks),
        bytes=log.state.size,
        oldest_unmerged=rfc3339(log.oldest_ms) if log.oldest_ms is not None else None,
        dead_percent=_dead_percent(table),
        problem=log.unmergeable or None,
    )


def _dead_percent(table: TableStatus) -> int | None:
    if table.rows is None or table.deleted_rows is None:
        return None
    rows = table.rows + table.deleted_rows
    return 100 * table.deleted_rows // rows if rows else 0


def is_automatic(policy: MergeOnRead | None) -> bool:
    """Whether log compactions or merges start by themselves."""
    return policy is not None and (policy.log_compaction or policy.merge) is not None


def next_log_action(decision: AutoCompactionDecision, why: str) -> NextLogAction:
    """The decision as a field of a LakeTable's status. Pure."""
    from tandem.planning.auto.decide import kubernetes_time

    return NextLogAction(
        what=decision.next_what,
        next_time=kubernetes_time(decision.next_ms) if decision.next_ms is not None else None,
        why=why,
    )


def read_log_status(
    table: Table, resource: LakeTable | None, status: TableStatus, now_ms: int | None = None
) -> LogStatus | None:
    """The log of a table as it is now, None if it has none; why it cannot be read, if so.

    Args:
        now_ms: for what an operator would do next that sees the table for the first time; without
            it that is left out.
    Raises: StorageError.
    """
    policy = resource.spec.merge_on_read if resource is not None else None
    log = MergeLog(table.log)
    try:
        if policy is None and not log.exists():
            return None
        from tandem.mergelog.usage import LogReader

        reader = LogReader(log)
        if not reader.update():
            return None
        facts = reader.facts(table.log.snapshot())
    except (AccessDenied, ObjectNotFound) as error:
        return LogStatus(problem=str(error))
    except StorageError:
        raise
    except TandemError as error:
        return LogStatus(problem=str(error))
    found = log_status(facts, policy, status)
    if now_ms is None or policy is None or resource is None or not is_automatic(policy):
        return found
    from tandem.planning.auto.facts import TableId
    from tandem.planning.auto.log import decide_log

    decision = decide_log(policy, TableId(resource.name, ""), facts, (), (), now_ms)
    return found.model_copy(update={"next": next_log_action(decision, decision.why)})
