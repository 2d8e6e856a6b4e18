"""Changes of the table itself between the read version and the latest.

Finds the differences; `rules.TABLE_CHANGES` has the response of a rewrite and of a statement to
each. Columns are identified by physical name: under column mapping a column keeps it forever;
without (and for columns older than the mapping) it is the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandem.delta.actions import Metadata, Protocol
from tandem.delta.protocol import (
    OperationKind,
    refusals,
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
from tandem.reconcile.rules import TABLE_CHANGES, Response, TableChange

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
    return {
        key: value
        for key, value in configuration.items()
        if key.startswith("delta.constraints.") or key == "delta.appendOnly"
    }


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
        if field.metadata != other.metadata:
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
