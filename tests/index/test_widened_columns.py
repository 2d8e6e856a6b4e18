"""A column whose type is widened while its table is held: the bounds of older files, partition
values and row groups keep their meaning, beside files of the wider type."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tandem.delta import scan
from tandem.index import Query, TableIndex, open_index
from tandem.index.library import IndexReader

Conditions = dict[str, Callable[[Any], bool]]
NEWER = "newer.parquet"


@dataclass(frozen=True)
class Widened:
    """Types of the log, and values of a file of each. `partition`: the column is one."""

    narrow: str
    wide: str
    old: pa.Array
    new: pa.Array | None
    conditions: Conditions
    partition: bool = False


NEW_YEAR = dt.datetime.fromisoformat("2020-01-01")
SECOND = dt.timedelta(seconds=1)
CASES = {
    "integer to long": Widened(
        "integer", "long",
        pa.array([1, 2**31 - 1, -(2**31), None], pa.int32()), pa.array([2**40, 5], pa.int64()),
        {"a > 3000000000": lambda v: v > 3_000_000_000, "a = 2147483647": lambda v: v == 2**31 - 1,
         "a >= -2147483648": lambda v: v >= -(2**31), "a < 5": lambda v: v < 5},
    ),
    "integer to double": Widened(
        "integer", "double",
        pa.array([1, 2**31 - 1, None], pa.int32()), pa.array([2.5, float("inf")], pa.float64()),
        {"a > 2.0D": lambda v: v > 2, "a = 2147483647.0D": lambda v: v == 2**31 - 1,
         "a < 0.5D": lambda v: v < 0.5},
    ),
    "integer to decimal": Widened(
        "integer", "decimal(10,0)",
        pa.array([1, 2**31 - 1], pa.int32()), pa.array([Decimal(9_999_999_999)]),
        {"a > 2147483647BD": lambda v: v > 2**31 - 1, "a = 1BD": lambda v: v == 1},
    ),
    "byte to integer": Widened(
        "byte", "integer", pa.array([127, -128, 0], pa.int8()), pa.array([1_000], pa.int32()),
        {"a > 127": lambda v: v > 127, "a = 127": lambda v: v == 127},
    ),
    "float to double": Widened(
        "float", "double", pa.array([0.1, 1.5], pa.float32()), pa.array([0.1], pa.float64()),
        {"a = 0.1D": lambda v: v == 0.1, "a > 0.1D": lambda v: v > 0.1,
         "a < 1.5D": lambda v: v < 1.5},
    ),
    "decimal": Widened(
        "decimal(5,2)", "decimal(10,4)",
        pa.array([Decimal("1.10"), Decimal("999.99")], pa.decimal128(5, 2)),
        pa.array([Decimal("1.1001"), Decimal("99999.9999")], pa.decimal128(10, 4)),
        {"a > 1.1BD": lambda v: v > Decimal("1.1"),
         "a = 999.99BD": lambda v: v == Decimal("999.99"),
         "a >= 99999.9999BD": lambda v: v >= Decimal("99999.9999")},
    ),
    "date to a time": Widened(
        "date", "timestamp_ntz", pa.array([dt.date(2020, 1, 1), dt.date(1969, 12, 31)]),
        pa.array([NEW_YEAR + SECOND], pa.timestamp("us")),
        {"a > TIMESTAMP_NTZ'2020-01-01 00:00:00'": lambda v: v > NEW_YEAR,
         "a = TIMESTAMP_NTZ'2020-01-01 00:00:00'": lambda v: v == NEW_YEAR},
    ),
    "a partition of integers": Widened(
        "integer", "long", pa.array([1, 2**31 - 1], pa.int32()), None,
        {"a > 3000000000": lambda v: v > 3_000_000_000, "a = 1": lambda v: v == 1}, partition=True,
    ),
    "a partition of dates": Widened(
        "date", "timestamp_ntz", pa.array([dt.date(2020, 1, 1)]), None,
        {"a = TIMESTAMP_NTZ'2020-01-01 00:00:00'": lambda v: v == NEW_YEAR}, partition=True,
    ),
}  # fmt: skip


def commit(root: Path, version: int, *actions: dict[str, Any]) -> None:
    every = [{"commitInfo": {"timestamp": 1}}, *actions]
    text = "".join(json.dumps(action) + "\n" for action in every)
    (root / f"_delta_log/{version:020d}.json").write_text(text)


def widen(root: Path, case: Widened) -> None:
    """What an engine commits for ALTER COLUMN TYPE, and then a file of the wider type."""
    lines = (root / f"_delta_log/{0:020d}.json").read_text().splitlines()
    [metadata] = [action for line in lines if "metaData" in (action := json.loads(line))]
    body = metadata["metaData"]
    schema = json.loads(body["schemaString"])
    changes = [{"fromType": case.narrow, "toType": case.wide}]
    schema["fields"][0] |= {"type": case.wide, "metadata": {"delta.typeChanges": changes}}
    body["schemaString"] = json.dumps(schema)
    body["configuration"] = {"delta.enableTypeWidening": "true"}
    names = ["typeWidening"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7,
                "readerFeatures": names, "writerFeatures": names}  # fmt: skip
    commit(root, 1, {"protocol": protocol}, metadata)
    if case.new is not None:
        pq.write_table(pa.table({"a": case.new, "n": range(len(case.new))}), root / NEWER)
        add = {"path": NEWER, "partitionValues": {}, "size": (root / NEWER).stat().st_size,
               "modificationTime": 1, "dataChange": True,
               "stats": json.dumps({"numRecords": len(case.new)})}  # fmt: skip
        commit(root, 2, {"add": add})


def with_row_groups(root: Path) -> TableIndex:
    """Facts of small files, too."""
    found = open_index(str(root))
    assert found._facts is not None
    found._facts._worth = 0
    return found


@pytest.mark.parametrize("name", CASES)
def test_Xd_older_bounds_count_for_the_wider_type(name: str, tmp_path: Path) -> None:
    case, root = CASES[name], tmp_path / "t"
    rows = pa.table({"a": case.old, "n": range(len(case.old))})
    write_deltalake(root, rows, partition_by=["a"] if case.partition else None)
    held: list[IndexReader] = [open_index(str(root)), with_row_groups(root)]
    for index in held:
        assert index.count(Query("a IS NOT NULL")) == len(case.old) - case.old.null_count
    widen(root, case)
    log = open_index(str(root)).log
    values = scan.scan(log.snapshot(), log.store).read_all()["a"].drop_null().to_pylist()
    for index in (*held, open_index(str(root))):
        for where, test in case.conditions.items():
            expected = [value for value in values if test(value)]
            assert index.count(Query(where)) == len(expected), where
            assert index.reader(Query(where)).read_all().num_rows == len(expected), where
            bounds = (min(expected), max(expected)) if expected else (None, None)
            assert index.bounds(["a"], Query(where)) == {"a": bounds}, where
