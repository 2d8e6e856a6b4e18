"""What others may plant in a table: statistics, row maps, another table in its place."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before, make
from support.lake import rows as model
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.lake import DELETION_VECTORS, batch, loads, reason
from support.lake.rows import k_is, plus
from support.lake.timed import DAYS, SCHEMA, TimedLake, hours
from tandem.operations.machine.events import Point
from tandem.operations.ports import LocalClaims
from tandem.pruning.selection import Selection
from tandem.spec.resources import Operation
from tandem.spec.status import Phase
from tandem.statements.statement import parse_statement
from tandem.timeline.segments import segments

# Statistics as other writers really write them, which is not always as the protocol says. A
# statement that skips a file because of them leaves rows unchanged and reports success.


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


# A row map planted below `_tandem` that claims more rows than memory holds.


def _claim_billions(path: Path) -> None:
    data = path.read_bytes()
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[24 : 24 + size])
    for file in (header["inputs"][0], header["outputs"][0]):
        file[1] = 1 << 40
    text = json.dumps(header).encode()
    changed = data[:12] + struct.pack("<I", len(text)) + data[16:24] + text + data[24 + size : -32]
    path.write_bytes(changed + hashlib.sha256(changed).digest())


def test_statement_does_without_a_map_that_claims_billions_of_rows(tmp_path: Path) -> None:
    lake = make(tmp_path, 4)

    def compact_and_plant() -> None:
        lake.do(lake.compaction())
        (planted,) = (lake.path / "_tandem/rowmaps").glob("*.rowmap")
        _claim_billions(planted)

    update = lake.update("k = 1", v="v + 15")
    lake.do(update, interceptor=just_before(Point.RECONCILE, compact_and_plant))
    lake.assert_rows(plus(loads(range(4)), k_is(1), 15))


# A table that was dropped and recreated at the same location, where `_tandem` was left behind.


def _made_again(lake: QuickLake, appends: int) -> None:
    shutil.rmtree(lake.path / "_delta_log")
    for path in lake.path.glob("*.parquet"):
        path.unlink()
    DeltaTable.create(lake.location, model.SCHEMA, configuration=dict(DELETION_VECTORS))
    for number in range(appends):
        lake.append(batch(number))


def test_an_operation_of_the_old_table_runs_again_on_the_new_one(tmp_path: Path) -> None:
    lake = make(tmp_path, 4)
    ingest, compaction = lake.ingest(batch(4)), lake.compaction()
    first = [lake.do(ingest), lake.do(compaction)]
    _made_again(lake, 4)
    second = [lake.do(ingest), lake.do(compaction)]
    assert [s.operation_id for s in first] != [s.operation_id for s in second]
    lake.assert_rows(loads(range(5)))
    assert lake.version == 6
    # From then on it is what it is everywhere: a result is reported, not made twice.
    assert [lake.do(ingest).operation_id, lake.do(compaction).operation_id] == [
        s.operation_id for s in second
    ]
    assert lake.version == 6


@pytest.mark.parametrize("point", [Point.START_JOB, Point.PUT_COMMIT])
def test_an_attempt_that_ran_in_the_old_table_is_left_alone(tmp_path: Path, point: Point) -> None:
    lake = make(tmp_path, 4)

    def begun(operation: Operation) -> None:
        with pytest.raises(ProcessDied):
            lake.run(
                operation,
                interceptor=StrikeOnce(point, Fault.DIE_BEFORE),
                ports=lake.ports(local_claims=LocalClaims()),
            )

    ingest = lake.ingest(batch(4))
    begun(ingest)
    _made_again(lake, 2)
    assert lake.do(ingest).phase is Phase.SUCCEEDED
    lake.assert_rows(model.join(loads(range(2)), batch(4)))


def test_a_table_with_a_changed_id_keeps_the_identity_of_its_log(tmp_path: Path) -> None:
    lake = make(tmp_path, 2)
    ingest = lake.ingest(batch(2))
    done = lake.do(ingest)
    metadata = lake.log.snapshot().metadata
    lake.log_raw(
        {
            "metaData": {
                "id": "another",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": metadata.schema_string,
                "partitionColumns": [],
                "configuration": dict(metadata.configuration),
            }
        }
    )
    assert lake.do(ingest).operation_id == done.operation_id
    lake.assert_rows(loads(range(3)))
