"""Statistics as other writers really write them, which is not always as the protocol says.

A statement that skips a file because of them leaves rows unchanged and reports success.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import reason
from support.lake.timed import DAYS, SCHEMA, TimedLake, hours
from tandem.pruning.selection import Selection
from tandem.statements.statement import parse_statement
from tandem.timeline.segments import segments

CASES = {
    "a wei": (38, 18, "1.234567890123456789"),
    "cents of a great power": (18, 2, "1234567890123456.78"),
    "beyond a double": (38, 10, "9007199254740993.0000000001"),
    "beyond a long": (38, 0, "10000000000000000000000000000000000001"),
    "negative": (38, 18, "-1.234567890123456789"),
    "negative beyond a long": (38, 0, "-10000000000000000000000000000000000001"),
    "nine": (28, 6, "9999999999999999999999.999999"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", ["=", "<=", ">="])
def test_decimals_that_delta_rs_rounded_in_its_statistics_are_found(
    tmp_path: Path, case: str, op: str
) -> None:
    precision, scale, text = CASES[case]
    type_ = pa.decimal128(precision, scale)
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", type_)])
    lake = quick_lake.make(tmp_path, 0, schema=schema)
    column = pa.array([Decimal(text)] * 2, type_)
    data = pa.table([pa.array([1, 2]), pa.array([1, 1]), column], schema=schema)
    write_deltalake(lake.location, data, mode="append")
    assert _selected(lake, f"v {op} {text}")


@pytest.mark.parametrize("number", ["0", "5", "100.25", "-7.5"])
def test_files_far_from_a_decimal_are_still_skipped(tmp_path: Path, number: str) -> None:
    schema = pa.schema([("v", pa.decimal128(38, 18))])
    lake = quick_lake.make(tmp_path, 0, schema=schema)
    data = pa.table(
        [pa.array([Decimal("10.5"), Decimal("20.5")], schema.field(0).type)], schema=schema
    )
    write_deltalake(lake.location, data, mode="append")
    assert not _selected(lake, f"v = {number}")


def _selected(lake: QuickLake, where: str) -> bool:
    snapshot = lake.log.snapshot()
    statement = parse_statement(where, None, snapshot.metadata.schema_string)
    return bool(Selection(statement.where, snapshot).mask(snapshot.files).any())


@pytest.mark.parametrize("rows", ["9" * 5000, "1" + "0" * 30, "-" + "9" * 30])
def test_a_row_count_beyond_64_bits_counts_as_unknown(tmp_path: Path, rows: str) -> None:
    lake = quick_lake.make(tmp_path, 2)
    for text in ('{"numRecords":%s}', '{"x":1,"numRecords":%s}'):
        lake.log_again(stats=text % rows)
        snapshot = lake.log.snapshot()
        assert [file.rows for s in segments(snapshot.files) for file in s.files] == [None, None]
        assert snapshot.num_records.to_pylist() == [None, None]


@pytest.mark.parametrize("rows", [24, 40, 100])
@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
def test_a_replace_does_not_believe_a_wrong_row_count(
    tmp_path: Path, rows: int, scope: str
) -> None:
    """With 24, all rows of the first day, the file went whole, and two other days with it."""
    lake = quick_lake.make(tmp_path, 0, schema=SCHEMA)
    lake.time = DAYS
    table = TimedLake(lake)
    table.append(hours(range(72), first=0))
    stats = json.loads(lake.first_add.stats or "")
    lake.log_again(stats=json.dumps({**stats, "numRecords": rows}))
    status = lake.run(table.replace("2013-03-01", scope=scope))
    assert reason(status) == "CountMismatch"
    table.assert_shows(hours(range(72), first=0))
