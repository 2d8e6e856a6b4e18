"""What became of the table, and what that means for whom."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tandem.delta.actions import Metadata, Protocol
from tandem.delta.protocol import OperationKind
from tandem.errors import Reason
from tandem.reconcile.classify import TableState, TableVerdict, check_table, differences
from tandem.reconcile.rules import TABLE_CHANGES, Response, TableChange

VECTORS = frozenset({"deletionVectors"})
MAPPING = {"delta.columnMapping.mode": "name"}
ON = {"delta.enableDeletionVectors": "true"}


def column(name: str, type_: object = "long", nullable: bool = True, **metadata: Any) -> Any:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def mapped(name: str, physical: str, type_: object = "long") -> Any:
    keys: dict[str, Any] = {
        "delta.columnMapping.id": 1,
        "delta.columnMapping.physicalName": physical,
    }
    return column(name, type_, **keys)


def state(
    *columns: Any,
    version: int = 3,
    table: str = "t",
    partitions: tuple[str, ...] = (),
    configuration: Mapping[str, str] = ON,
    features: frozenset[str] = VECTORS,
) -> TableState:
    schema = json.dumps({"type": "struct", "fields": list(columns) or [column("a"), column("b")]})
    protocol = Protocol(3, 7, features & VECTORS, features)
    return TableState(version, Metadata(table, schema, partitions, configuration), protocol)


def struct(*columns: Any) -> Any:
    return {"type": "struct", "fields": list(columns)}


A, B = column("a"), column("b")
TRACKED = {
    **ON,
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
}
WITH_MAPPING = {**ON, **MAPPING}
CASES: tuple[tuple[TableChange, TableState, TableState], ...] = (
    (TableChange.OTHER_TABLE, state(), state(table="u")),
    (TableChange.OLDER_VERSION, state(version=4), state(version=3)),
    (TableChange.PARTITIONING, state(), state(partitions=("a",))),
    (TableChange.PROTOCOL_REFUSED, state(), state(features=VECTORS | {"fromTheFuture"})),
    (TableChange.VECTORS_OFF, state(), state(configuration={})),
    (
        TableChange.MAPPING_MODE,
        state(configuration=WITH_MAPPING),
        state(configuration=ON),
    ),
    (TableChange.COLUMN_ADDED, state(), state(A, B, column("c"))),
    (TableChange.COLUMN_ADDED_REQUIRED, state(), state(A, B, column("c", nullable=False))),
    (TableChange.COLUMN_DROPPED, state(), state(A)),
    (
        TableChange.COLUMN_DROPPED_MAPPED,
        state(mapped("a", "p"), mapped("b", "q"), configuration=WITH_MAPPING),
        state(mapped("a", "p"), configuration=WITH_MAPPING),
    ),
    (
        TableChange.COLUMN_RENAMED_MAPPED,
        state(mapped("a", "p"), configuration=WITH_MAPPING),
        state(mapped("z", "p"), configuration=WITH_MAPPING),
    ),
    # Mapping was switched on meanwhile, then a column renamed: files keep the old name.
    (
        TableChange.COLUMN_RENAMED_MAPPED,
        state(column("a")),
        state(mapped("z", "a"), configuration=WITH_MAPPING),
    ),
    (TableChange.TYPE_WIDENED, state(column("a", "integer")), state(column("a", "long"))),
    (
        TableChange.TYPE_WIDENED,
        state(column("a", "decimal(10,2)")),
        state(column("a", "decimal(12,3)")),
    ),
    (
        TableChange.TYPE_CHANGED,
        state(column("a", "decimal(10,2)")),
        state(column("a", "decimal(10,3)")),
    ),
    (TableChange.TYPE_CHANGED, state(column("a", "long")), state(column("a", "string"))),
    (TableChange.TYPE_CHANGED, state(column("a", "long")), state(column("a", "integer"))),
    (TableChange.NULLABLE_CHANGED, state(), state(column("a", nullable=False), B)),
    (TableChange.FIELD_METADATA, state(), state(column("a", comment="new"), B)),
    (
        TableChange.COLUMN_ADDED,
        state(column("a", struct(B))),
        state(column("a", struct(B, column("c")))),
    ),
    (
        TableChange.TYPE_WIDENED,
        state(column("a", {"type": "array", "elementType": "integer", "containsNull": True})),
        state(column("a", {"type": "array", "elementType": "long", "containsNull": True})),
    ),
    (
        TableChange.ROW_IDS,
        state(configuration=TRACKED, features=VECTORS | {"rowTracking"}),
        state(features=VECTORS | {"rowTracking"}),
    ),
    (
        TableChange.FILE_DEMANDS,
        state(partitions=("a",)),
        state(partitions=("a",), features=VECTORS | {"materializePartitionColumns"}),
    ),
    (
        TableChange.CONSTRAINTS,
        state(),
        state(configuration={**ON, "delta.constraints.positive": "a > 0"}),
    ),
    (TableChange.PROPERTIES, state(), state(configuration={**ON, "who": "me"})),
)


def test_every_change_has_a_rule_and_a_case() -> None:
    assert set(TABLE_CHANGES) == set(TableChange) == {change for change, _, _ in CASES}


@pytest.mark.parametrize(("change", "read", "latest"), CASES)
@pytest.mark.parametrize("kind", [OperationKind.COMPACTION, OperationKind.UPDATE])
def test_each_change_is_found_and_answered(
    change: TableChange, read: TableState, latest: TableState, kind: OperationKind
) -> None:
    found = set(differences(read, latest, kind))
    assert change in found
    # What comes with it may be listed too, but decides nothing by itself.
    assert found <= {change, TableChange.PROPERTIES, TableChange.FIELD_METADATA}
    verdict = check_table(read, latest, kind, needs_vectors=True)
    expected = TABLE_CHANGES[change].response(kind)
    assert verdict.response is (Response.CONFLICT if expected is Response.VECTORS else expected)


def test_an_unchanged_table_lets_an_operation_go_on() -> None:
    verdict = check_table(state(), state(version=9), OperationKind.UPDATE, needs_vectors=True)
    assert verdict == TableVerdict(Response.SURVIVE)


def test_vectors_switched_off_matter_only_where_they_are_needed() -> None:
    read, latest = state(), state(configuration={})
    verdict = check_table(read, latest, OperationKind.COMPACTION, needs_vectors=False)
    assert verdict.response is Response.SURVIVE
    verdict = check_table(read, latest, OperationKind.COMPACTION, needs_vectors=True)
    assert (verdict.response, verdict.reason) == (
        Response.CONFLICT,
        Reason.DELETION_VECTORS_DISABLED,
    )


def test_the_worst_change_decides_and_is_named() -> None:
    latest = state(A, B, column("c"), table="u", configuration={**ON, "who": "me"})
    verdict = check_table(state(), latest, OperationKind.UPDATE, needs_vectors=True)
    assert (verdict.response, verdict.reason) == (Response.CONFLICT, Reason.TABLE_REPLACED)
    assert "another table" in verdict.why
    assert TableChange.COLUMN_ADDED in verdict.changes


CONFLICTS_WITH_A_REWRITE = {
    TableChange.OTHER_TABLE,
    TableChange.OLDER_VERSION,
    TableChange.PARTITIONING,
    TableChange.PROTOCOL_REFUSED,
    TableChange.MAPPING_MODE,
    TableChange.COLUMN_ADDED_REQUIRED,
    TableChange.COLUMN_DROPPED,
    TableChange.TYPE_CHANGED,
}
"""Changes that would make its files wrong: not read from the rules, so that a rule that changed is
noticed."""
CONFLICTS_WITH_A_STATEMENT = {
    TableChange.OTHER_TABLE,
    TableChange.OLDER_VERSION,
    TableChange.PROTOCOL_REFUSED,
}
"""After any other change a statement is validated again, and executed again."""


@pytest.mark.parametrize("change", TableChange)
def test_the_rules_are_those_of_the_design(change: TableChange) -> None:
    rewrite = TABLE_CHANGES[change].response(OperationKind.COMPACTION)
    statement = TABLE_CHANGES[change].response(OperationKind.UPDATE)
    if change is TableChange.VECTORS_OFF:
        assert rewrite is statement is Response.VECTORS
        return
    assert (rewrite is Response.CONFLICT) == (change in CONFLICTS_WITH_A_REWRITE)
    if change in (TableChange.ROW_IDS, TableChange.FILE_DEMANDS):
        assert rewrite is Response.VALIDATE
    else:
        assert rewrite in (Response.CONFLICT, Response.SURVIVE)
    if change is TableChange.PROPERTIES:
        assert statement is Response.SURVIVE
    else:
        conflicts = change in CONFLICTS_WITH_A_STATEMENT
        assert statement is (Response.CONFLICT if conflicts else Response.VALIDATE)
