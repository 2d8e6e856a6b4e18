"""No record of a log that breaks a CHECK constraint of the base table is appended, or merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.orders import MERGE, Orders, rows
from tandem import mergelog
from tandem.delta.log.codec import encode_action
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import ConstraintViolated, StatementFailed
from tandem.spec.status import Phase


def constrain(orders: Orders, text: str) -> None:
    DeltaTable(orders.location).alter.add_constraint({"late": text})


def test_a_record_that_breaks_a_constraint_is_not_appended(orders: Orders) -> None:
    before = orders.view()
    constrain(orders, "at >= 5")
    with mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer:
        with pytest.raises(ConstraintViolated, match=r"delta\.constraints\.late") as caught:
            writer.append(rows(range(20, 21), "early", 4), batch=0)
        assert "at = 4, id = 20" in caught.value.found
        # A delete has no more than its key.
        columns = list(mergelog.MergedView.open(orders.log).settings.columns)
        writer.append(
            rows(range(20, 21), "late", 9), rows(range(4, 5), "", 9).select(columns), batch=0
        )
    assert orders.view() == [*(row for row in before if row[0] != 4), (20, 9, "late")]


def test_a_rule_that_has_no_value_on_a_row(orders: Orders) -> None:
    constrain(orders, "at + 1 > 0 AND at * 4611686018427387904 > 0")
    with (
        mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer,
        pytest.raises(StatementFailed, match="cannot be evaluated on a row"),
    ):
        writer.append(rows(range(20, 21), "much", 9), batch=0)


@pytest.mark.parametrize("operation", ["upsert", "ingest", "deleteKeys"])
def test_operations_that_append(orders: Orders, operation: str) -> None:
    constrain(orders, "at >= 5 AND value IS NOT NULL")
    early = rows(range(20, 21), "early", 4)
    if operation == "deleteKeys":
        columns = list(mergelog.MergedView.open(orders.log).settings.columns)
        orders.do({operation: {"source": orders.source(early.select(columns))}}, name="delete")
        return
    source = {"source": orders.source(early)}
    status = orders.run(source if operation == "ingest" else {operation: source})
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "ConstraintViolated")
    assert "at = 4" in status.conditions[0].message


def test_a_constraint_that_is_younger_than_a_record(orders: Orders) -> None:
    """The record stays in the log, until one of its key that fits comes after it."""
    before, base = orders.view(), orders.base()
    constrain(orders, "value <> 'second'")
    status = orders.run(MERGE)
    assert (status.phase, status.conditions[0].reason) == (Phase.FAILED, "ConstraintViolated")
    assert "value = 'second'" in status.conditions[0].message
    assert (orders.view(), orders.base()) == (before, base)
    with mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer:
        writer.append(rows(range(6, 12), "third", 9), batch=0)
    orders.do(MERGE, name="again")
    assert [row for row in orders.base() if row[0] in (6, 11)] == [
        (6, 9, "third"),
        (11, 9, "third"),
    ]


@pytest.mark.parametrize("operation", ["upsert", "deleteKeys"])
def test_not_null_below_a_struct(tmp_path: Path, operation: str) -> None:
    """As in Delta: a field of a struct that is NULL is NULL. A delete has no more than its key."""
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    base = rows(range(4, 8), "base", 5)
    base = base.append_column(pa.field("s", inner), pa.array([{"a": 1}] * 4, inner))
    write_deltalake(
        str(tmp_path / "t"), base, configuration={"delta.enableDeletionVectors": "true"}
    )
    orders = Orders(tmp_path / "t")
    settings = mergelog.LogSettings(("id",))
    mergelog.ensure_log(orders.log, settings, now_ms=0, nonce="made once")
    source = {"source": orders.source(pa.table({"id": [5]}))}
    status = orders.run({operation: source})
    if operation == "deleteKeys":
        assert status.phase is Phase.SUCCEEDED, status.conditions
        found = mergelog.scan(orders.location).read_all()
        assert sorted(found["id"].to_pylist()) == [4, 6, 7]
    else:
        assert status.conditions[0].reason == "ConstraintViolated"
        assert "s.a: a column that must not be null" in status.conditions[0].message


def compute(orders: Orders) -> None:
    """`value` is generated from `at`, which has a default."""
    log = DeltaLog(orders.store)
    metadata = log.snapshot().metadata
    schema = json.loads(metadata.schema_string)
    computed = {
        "value": {"delta.generationExpression": "CAST(at AS STRING)"},
        "at": {"CURRENT_DEFAULT": "9"},
    }
    for column in schema["fields"]:
        column["metadata"] |= computed.get(column["name"], {})
    changed = encode_action(replace(metadata, schema_string=json.dumps(schema)))
    name = f"_delta_log/{log.latest_version() + 1:020d}.json"
    (orders.folder / name).write_text(json.dumps(changed) + "\n")


def test_columns_that_an_append_lacks_are_computed(orders: Orders) -> None:
    ordered = mergelog.MergedView.open(orders.log).settings.ordering_column
    compute(orders)
    with mergelog.LogWriter(orders.log, "w", pause=lambda _: None) as writer:
        writer.append(rows(range(20, 21), "8", 8), batch=0)
        writer.append(rows(range(21, 22), "", 8).drop_columns(["value"]), batch=1)
        if not ordered:
            writer.append(rows(range(22, 23), "", 0).select(["id"]), batch=2)
        with pytest.raises(ConstraintViolated, match="generated column value"):
            writer.append(rows(range(23, 24), "7", 8), batch=3)
    found = [row for row in orders.view() if row[0] >= 20]
    assert found == [(20, 8, "8"), (21, 8, "8"), *([] if ordered else [(22, 9, "9")])]
