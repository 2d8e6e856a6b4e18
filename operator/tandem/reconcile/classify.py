"""Classifies commits: maps a Delta commit to a line of `rules`.

A blind append is recognized by its operation, never by its actions. A mapped rewrite is a commit
of Tandem with a valid row map for everything that it added. Any other commit counts as a change:
that costs an evaluation, but never a row.

Changes of the table itself between the read version and the latest.

Finds the differences; `rules.TABLE_CHANGES` has the response of a rewrite and of a statement to
each. Columns are identified by physical name: under column mapping a column keeps it forever;
without (and for columns older than the mapping) it is the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyroaring import BitMap64

from tandem.delta.actions import AddFile, Commit, DeletionVector, Metadata, Protocol, RemoveFile
from tandem.delta.identity import without_mark
from tandem.delta.protocol import (
    OperationKind,
    constraints,
    file_demands,
    refusals,
    row_id_columns,
    supports_deletion_vectors,
    writes_deletion_vectors,
)
from tandem.delta.schema import (
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructType,
    column_mapping_mode,
    parse,
)
from tandem.errors import Reason
from tandem.reconcile.model import Author, ChangeKind, CommitSummary, NewRows, RowMapLike, RowMaps
from tandem.reconcile.rules import (
    BLIND_APPENDS,
    NEUTRAL_WITHOUT_FILES,
    NEW_ROWS,
    TABLE_CHANGES,
    AppendRule,
    Engine,
    Response,
    TableChange,
)
from tandem.rowmap.run_table import span
from tandem.spec.common import OPERATIONS, Mode
from tandem.text import clean

ReadVector = Callable[[DeletionVector], BitMap64 | None]
"""The rows that a deletion vector deletes; None if its file is gone."""


def classify(
    commit: Commit, row_maps: RowMaps, read_vector: ReadVector | None = None
) -> CommitSummary:
    """The commit as reconciliation sees it.

    Args:
        row_maps: output path → row map, for outputs whose published map is readable and valid; a
            lost one is missing, and its rewrite is a change (C6b).
        read_vector: reads a deletion vector of a rewrite that cut its inputs. Without it, such a
            rewrite is a change.
    """
    kind = _kind(commit, row_maps, read_vector)
    return CommitSummary(
        version=commit.version,
        kind=kind,
        files=frozenset(
            [add.logged_path for add in commit.adds] + [gone.logged_path for gone in commit.removes]
        ),
        who=describe(commit),
        table_changed=tuple(
            name
            for name, type_ in (("metadata", Metadata), ("protocol", Protocol))
            if any(isinstance(action, type_) for action in commit.actions)
        ),
        author=author_of(commit),
        new_rows=new_rows(commit, kind),
        added=frozenset(add.logged_path for add in commit.adds),
    )


def gap(last: int, files: frozenset[str]) -> CommitSummary:
    """Versions up to `last` are no longer in the log; `files` differ between the versions
    around them (path or deletion vector)."""
    return CommitSummary(
        version=last,
        kind=ChangeKind.GAP,
        files=files,
        who=f"commits up to version {last} that are no longer in the log",
        added=files,
    )


def describe(commit: Commit) -> str:
    """Operation, engine, version and time, for messages."""
    author = author_of(commit)
    operation = author.operation or "an unknown operation"
    who = author.by or author.engine or "an unknown engine"
    when = datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{operation} by {who} (version {commit.version}, {when})"


def author_of(commit: Commit) -> Author:
    """The commit's author. Names are free text in the log, and are cleaned for messages."""
    info = commit.info
    if info is None:
        return Author(commit.version, time_ms=commit.timestamp_ms)
    resource = _ours(info.body).get("resource")
    # Outside a cluster the namespace is always `default`.
    by = resource.removeprefix("default/") if isinstance(resource, str) else ""
    return Author(
        commit.version,
        operation=clean(info.operation),
        engine=clean(info.engine),
        time_ms=commit.timestamp_ms,
        by=clean(by),
    )


def _kind(commit: Commit, row_maps: RowMaps, read_vector: ReadVector | None) -> ChangeKind:
    body = commit.info.body if commit.info else {}
    operation = str(body.get("operation", ""))
    if not commit.adds and not commit.removes:
        return ChangeKind.NEUTRAL if operation in NEUTRAL_WITHOUT_FILES else ChangeKind.CHANGE
    if not commit.removes and any(_is(rule, body) for rule in BLIND_APPENDS):
        return ChangeKind.BLIND_APPEND
    if _is_mapped_rewrite(commit, body, row_maps, read_vector):
        return ChangeKind.MAPPED_REWRITE
    return ChangeKind.CHANGE


def new_rows(commit: Commit, kind: ChangeKind) -> NewRows:
    """Where the rows of the commit's new files come from."""
    if kind is ChangeKind.BLIND_APPEND:
        return NewRows.ARRIVED
    if kind is ChangeKind.MAPPED_REWRITE:
        return NewRows.MAPPED
    operation = commit.info.operation if commit.info else ""
    if operation == "MERGE" and not commit.removes:
        return NewRows.ARRIVED
    return NEW_ROWS.get(operation, NewRows.UNKNOWN)


def _engine(body: Mapping[str, Any]) -> Engine:
    names = (str(body.get("engineInfo") or ""), str(body.get("clientVersion") or ""))
    if any(name.startswith("tandem/") for name in names):
        return Engine.TANDEM
    if any(name.startswith(("delta-rs:", "delta-rs.")) for name in names):
        return Engine.DELTA_RS
    return Engine.OTHER


def _is(rule: AppendRule, body: Mapping[str, Any]) -> bool:
    parameters = body.get("operationParameters")
    mode = parameters.get("mode") if isinstance(parameters, Mapping) else None
    return (
        body.get("operation") == rule.operation
        and rule.engine in (None, _engine(body))
        and body.get("isBlindAppend") in rule.blind
        and rule.mode in (None, mode)
        and rule.ours in (None, _mode(body))
    )


def _ours(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tandem's part of a commitInfo; empty for commits of other writers."""
    found = body.get("tandem")
    return found if _engine(body) is Engine.TANDEM and isinstance(found, Mapping) else {}


def _mode(body: Mapping[str, Any]) -> Mode | None:
    """The mode of a commit's operation; None for other writers, and for unknown kinds."""
    model = OPERATIONS.get(str(_ours(body).get("kind")))
    return None if model is None else model.mode


def _is_mapped_rewrite(
    commit: Commit, body: Mapping[str, Any], row_maps: RowMaps, read_vector: ReadVector | None
) -> bool:
    """Whether Tandem made it, and all it added or removed is output or input of a valid map. An
    input that it added again must have lost exactly the rows that the outputs took from it."""
    if body.get("operation") != "OPTIMIZE" or not _ours(body) or not commit.adds:
        return False
    removed = {remove.logged_path: remove for remove in commit.removes}
    cuts = [add for add in commit.adds if add.logged_path in removed]
    outputs = [add for add in commit.adds if add.logged_path not in removed]
    maps = [row_maps.get(add.logged_path) for add in outputs]
    inputs: dict[str, RowMapLike] = {}
    for add, row_map in zip(outputs, maps, strict=True):
        if row_map is None or add.data_change or add.logged_path not in row_map.output_paths:
            return False
    for row_map in {id(found): found for found in maps}.values():
        if row_map is not None:
            inputs.update(dict.fromkeys(row_map.input_paths, row_map))
    if not all(not gone.data_change and path in inputs for path, gone in removed.items()):
        return False
    for add in cuts:
        path = add.logged_path
        if read_vector is None or not _lost_what_was_taken(
            add, removed[path], inputs[path], read_vector
        ):
            return False
    return True


def _lost_what_was_taken(
    now: AddFile, before: RemoveFile, row_map: RowMapLike, read_vector: ReadVector
) -> bool:
    known = row_map.input(now.logged_path)
    taken = span(0, known.rows) - known.dead
    was, is_ = (
        read_vector(vector) if vector is not None else BitMap64()
        for vector in (before.deletion_vector, now.deletion_vector)
    )
    if was is None or is_ is None:
        return False
    return not now.data_change and is_ == was | taken


_ORDER = (Response.SURVIVE, Response.VALIDATE, Response.CONFLICT)
_REASONS: Mapping[TableChange, Reason] = {
    TableChange.OTHER_TABLE: Reason.TABLE_REPLACED,
    TableChange.OLDER_VERSION: Reason.TABLE_REPLACED,
    TableChange.PROTOCOL_REFUSED: Reason.UNSUPPORTED_FEATURE,
    TableChange.VECTORS_OFF: Reason.DELETION_VECTORS_DISABLED,
}
# Integers and floats that hold every value of the narrower type (protocol, "Type Widening").
_WIDER: Mapping[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
_DECIMAL_DIGITS: Mapping[str, int] = {"byte": 10, "short": 10, "integer": 10, "long": 20}


@dataclass(frozen=True, slots=True)
class TableState:
    """The table at a version, without its files."""

    version: int
    metadata: Metadata
    protocol: Protocol


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The response; `why` and `reason` are of the change that determined it."""

    response: Response
    changes: tuple[TableChange, ...] = ()
    why: str = ""
    reason: Reason = Reason.CONFLICT


def check_table(
    read: TableState, latest: TableState, kind: OperationKind, *, needs_vectors: bool
) -> TableVerdict:
    """Compare, and return the most severe response to all differences.

    `needs_vectors`: the operation must give a live or new file a deletion vector.
    """
    changes = tuple(dict.fromkeys(differences(read, latest, kind)))
    worst, cause = Response.SURVIVE, None
    for change in changes:
        response = TABLE_CHANGES[change].response(kind)
        if response is Response.VECTORS:
            response = Response.CONFLICT if needs_vectors else Response.SURVIVE
        if _ORDER.index(response) > _ORDER.index(worst):
            worst, cause = response, change
    if cause is None:
        return TableVerdict(Response.SURVIVE, changes)
    return TableVerdict(
        worst,
        changes,
        f"the table changed since version {read.version}: {cause}",
        _REASONS.get(cause, Reason.CONFLICT),
    )


def differences(read: TableState, latest: TableState, kind: OperationKind) -> Iterator[TableChange]:
    """Every difference between the two, possibly some more than once."""
    old, new = read.metadata, latest.metadata
    if old.id != new.id:
        yield TableChange.OTHER_TABLE
    if latest.version < read.version:
        yield TableChange.OLDER_VERSION
    if old.partition_columns != new.partition_columns:
        yield TableChange.PARTITIONING
    if (read.protocol, old) != (latest.protocol, new) and any(refusals(latest.protocol, new, kind)):
        yield TableChange.PROTOCOL_REFUSED
    if writes_deletion_vectors(read.protocol, old) and not (
        supports_deletion_vectors(latest.protocol) and writes_deletion_vectors(latest.protocol, new)
    ):
        yield TableChange.VECTORS_OFF
    if row_id_columns(read.protocol, old) != row_id_columns(latest.protocol, new):
        yield TableChange.ROW_IDS
    if file_demands(read.protocol, old) != file_demands(latest.protocol, new):
        yield TableChange.FILE_DEMANDS
    modes = column_mapping_mode(old.configuration), column_mapping_mode(new.configuration)
    if modes[0] != modes[1] and modes != ("none", "name"):
        yield TableChange.MAPPING_MODE
    if old.schema_string != new.schema_string:
        mapped = modes[1] != "none"
        yield from _columns(parse(old.schema_string), parse(new.schema_string), mapped)
    if old.configuration != new.configuration:
        constraints = [_constraints(m.configuration) for m in (old, new)]
        different = constraints[0] != constraints[1]
        yield TableChange.CONSTRAINTS if different else TableChange.PROPERTIES


def _constraints(configuration: Mapping[str, str]) -> dict[str, str]:
    append_only = {k: v for k, v in configuration.items() if k == "delta.appendOnly"}
    return constraints(configuration) | append_only


def _columns(old: StructType, new: StructType, mapped: bool) -> Iterator[TableChange]:
    before = {field.physical_name: field for field in old}
    after = {field.physical_name: field for field in new}
    for name, field in after.items():
        if name not in before:
            yield (
                TableChange.COLUMN_ADDED if field.nullable else TableChange.COLUMN_ADDED_REQUIRED
            )
    for name, field in before.items():
        other = after.get(name)
        if other is None:
            yield TableChange.COLUMN_DROPPED_MAPPED if mapped else TableChange.COLUMN_DROPPED
            continue
        if field.name != other.name:
            yield TableChange.COLUMN_RENAMED_MAPPED
        if field.nullable != other.nullable:
            yield TableChange.NULLABLE_CHANGED
        if without_mark(field.metadata) != without_mark(other.metadata):
            yield TableChange.FIELD_METADATA
        yield from _types(field.type, other.type, mapped)


def _types(old: DataType, new: DataType, mapped: bool) -> Iterator[TableChange]:
    if old == new:
        return
    if isinstance(old, StructType) and isinstance(new, StructType):
        yield from _columns(old, new, mapped)
    elif isinstance(old, ArrayType) and isinstance(new, ArrayType):
        yield from _types(old.element, new.element, mapped)
        if old.contains_null != new.contains_null:
            yield TableChange.NULLABLE_CHANGED
    elif isinstance(old, MapType) and isinstance(new, MapType):
        yield from _types(old.key, new.key, mapped)
        yield from _types(old.value, new.value, mapped)
        if old.value_contains_null != new.value_contains_null:
            yield TableChange.NULLABLE_CHANGED
    elif isinstance(old, PrimitiveType) and isinstance(new, PrimitiveType) and _wider(old, new):
        yield TableChange.TYPE_WIDENED
    else:
        yield TableChange.TYPE_CHANGED


def _wider(old: PrimitiveType, new: PrimitiveType) -> bool:
    if new.name in _WIDER.get(old.name, frozenset()):
        return True
    if new.decimal is None:
        return False
    precision, scale = new.decimal
    if old.decimal is not None:
        digits, old_scale = old.decimal
        return scale >= old_scale and precision - scale >= digits - old_scale
    return old.name in _DECIMAL_DIGITS and precision - scale >= _DECIMAL_DIGITS[old.name]
