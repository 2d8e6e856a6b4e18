"""Statistics as other writers leave them: of a type that a column had before, and lies that
`verify` must find."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tandem import index
from tandem.delta.actions import Metadata, Protocol
from tandem.errors import InvalidStatement
from tandem.index.library import condition
from tandem.index.rows import verify_view
from tandem.index.window import Head

FAR = 400_000_000_000_000_000
"""Microseconds until a moment of the year 14645, which Python's calendar does not have."""


def written(folder: Path, rows: pa.Table, change: Callable[[str, Any], None]) -> str:
    """A table of one file; `change` is called with the kind and the body of each action."""
    write_deltalake(folder, rows)
    commit = folder / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        for kind, body in action.items():
            change(kind, body)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(folder)


def restated(**wanted: Any) -> Callable[[str, Any], None]:
    def change(kind: str, body: Any) -> None:
        if kind == "add":
            body["stats"] = json.dumps({**json.loads(body["stats"]), **wanted})

    return change


def described(body: Any, **field: Any) -> None:
    """Change the first field of the schema in `metaData`."""
    schema = json.loads(body["schemaString"])
    schema["fields"][0].update(field)
    body["schemaString"] = json.dumps(schema)


def differences(root: str) -> set[tuple[str, Any, Any]]:
    held = index.open_index(root)
    return {(d.field, d.log, d.rows) for found in verify_view(held.view(), held.store)
            for d in found}  # fmt: skip


def widened(kind: str, body: Any) -> None:
    if kind == "metaData":
        changes = [{"fromType": "float", "toType": "double"}]
        described(body, type="double", metadata={"delta.typeChanges": changes})
    if kind == "protocol":
        body.update(minReaderVersion=3, minWriterVersion=7)
        body.update(readerFeatures=["typeWidening"], writerFeatures=["typeWidening"])
    restated(minValues={"f": 0.7}, maxValues={"f": 0.7})(kind, body)


def test_a_double_that_was_a_float_has_the_bounds_of_a_float(tmp_path: Path) -> None:
    """The float 0.7 is 0.69999998807… as a double; Spark writes 0.7 in its statistics."""
    root = written(tmp_path / "t", pa.table({"f": pa.array([0.7], pa.float32())}), widened)
    assert index.count(root, "f < 0.7D") == 1
    assert index.count(root, "f >= 0.7D") == 0
    assert index.count(root, "f < 0.6D") == 0
    assert differences(root) == set()


def test_verify_finds_wrong_numbers_of_nulls(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, None, 3], "b": [1, 2, None], "c": pa.nulls(3, pa.int64())})
    lied = restated(nullCount={"a": 0, "b": 3, "c": 3})
    root = written(tmp_path / "t", rows, lied)
    assert differences(root) == {("nullCount.a", 0, 1), ("nullCount.b", 3, 1)}


def test_verify_finds_times_beyond_pythons_calendar(tmp_path: Path) -> None:
    days = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    past = pa.array([0, -FAR], pa.int64()).cast(pa.timestamp("us", "UTC"))
    names = {"d": "1970-01-01", "t": "1970-01-01T00:00:00Z"}
    root = written(
        tmp_path / "t", pa.table({"d": days, "t": past}), restated(minValues=names, maxValues=names)
    )
    assert {field for field, _, _ in differences(root)} == {"maxValues.d", "minValues.t"}


def test_a_condition_on_a_column_with_a_collation_is_refused() -> None:
    name = {"name": "s", "type": "string", "nullable": True,
            "metadata": {"__COLLATIONS": {"s": "spark.UTF8_LCASE"}}}  # fmt: skip
    schema = json.dumps({"type": "struct", "fields": [name]})
    head = Head("t", 0, 0, Metadata("t", schema, (), {}), Protocol(1, 2))
    with pytest.raises(InvalidStatement, match="collation"):
        condition(head, "s = 'a'")
