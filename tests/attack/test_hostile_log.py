"""What a foreign writer may plant in the log, and what must not come of it.

Whatever the log says: no row is lost or doubled, no commit of ours makes the table unreadable to
others, and what cannot be read is refused by an error that names it, never by a traceback.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake, just_before
from support.lake.lake import loads
from support.lake.rows import join, k_is, plus, rows
from support.lake.vectors import encode_inline
from tandem.delta.log.codec import encode_action
from tandem.errors import CorruptLog, Reason
from tandem.operations.machine.events import Point
from tandem.spec.status import ConditionType, Phase
from tandem.timeline.names import MAX_NUMBER

ROWS = loads(range(4))
LONG_MAX = 2**63 - 1
DEEP = "[" * 100_000


@pytest.mark.parametrize("planted", [LONG_MAX, LONG_MAX - 1, MAX_NUMBER + 1, -5])
def test_planted_high_water_mark_leaves_the_log_readable(lake: QuickLake, planted: int) -> None:
    lake.log_raw({"txn": {"appId": "tandem.segments", "version": planted}})
    lake.do(lake.compaction())
    table = lake.foreign()
    assert table.transaction_version("tandem.segments") == 0
    table.create_checkpoint()
    lake.assert_rows(ROWS)
    assert lake.names == ["0.1"]


@pytest.mark.parametrize("planted", ["9" * 18, "9" * 16, "-" + "9" * 18, "٣", "1e3", "0x10"])
def test_planted_sequence_does_not_reorder_segments(lake: QuickLake, planted: str) -> None:
    lake.log_again(tags={"tandem.sequence": planted})
    lake.do(lake.update("k = 1", v="v + 15"))
    *_, last = lake.live
    assert last.name == "0"
    lake.assert_rows(plus(ROWS, k_is(1), 15))


@pytest.mark.parametrize(
    "tags",
    [
        {"tandem.segment": "../../x"},
        {"tandem.segment": "9" * 18},
        {"tandem.parents": "0-" + "9" * 17},
        {"tandem.rowMap": "../../../../etc/passwd"},
        {"tandem.rowMap": "https://example.invalid/x"},
        {"tandem.chunk": "yesterday"},
        {"tandem.type": "x" * 100_000},
    ],
    ids=lambda tags: next(iter(tags)),
)
def test_planted_tags_lose_no_row(lake: QuickLake, tags: dict[str, str]) -> None:
    lake.log_again(tags=tags)
    lake.do(lake.compaction("Major"))
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.assert_rows(plus(ROWS, k_is(1), 15))


@pytest.mark.parametrize(
    "stats",
    [
        DEEP,
        '{"numRecords":',
        "null",
        "[]",
        '{"numRecords":10,"minValues":[],"maxValues":{"k":{}}}',
        '{"numRecords":10,"x":"\\ud800"}',
        '{"numRecords":10,"x":' + "[" * 300 + "]" * 300 + "}",
    ],
    ids=["deep", "cut off", "null", "list", "odd bounds", "half a pair", "nested"],
)
def test_unreadable_statistics_count_as_absent(lake: QuickLake, stats: str) -> None:
    lake.log_again(stats=stats)
    lake.do(lake.update("k = 1", v="v + 15"))
    lake.do(lake.compaction("Major"))
    assert lake.by_tandem() == plus(ROWS, k_is(1), 15)


def test_bounds_keep_all_digits_when_a_file_gets_a_deletion_vector(tmp_path: Path) -> None:
    """A decimal of 38 digits that became a float would bound less than it holds: others, who
    skip files by it, would not find the row."""
    text = "9007199254740993.0000000001"
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.decimal128(38, 10))])
    lake = quick_lake.make(tmp_path, 0, schema=schema)
    column = pa.array([Decimal(text)] * 3, pa.decimal128(38, 10))
    data = pa.table([pa.array([1, 2, 3]), pa.array([1, 1, 2]), column], schema=schema)
    write_deltalake(lake.location, data, mode="append")
    exact = f'{{"numRecords":3,"minValues":{{"v":{text}}},"maxValues":{{"v":{text}}}}}'
    lake.log_again(stats=exact)
    lake.do(lake.delete("k = 2"))
    assert lake.first_add.stats is not None
    assert lake.first_add.stats.count(text) == 2
    assert json.loads(lake.first_add.stats)["tightBounds"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": {"a": 5}},
        {"partitionValues": {"a": 5}},
        {"stats": {"numRecords": 10}},
        {"size": 10**30},
        {"modificationTime": 10**30},
        {"baseRowId": "x"},
        {"clusteringProvider": 5},
        {"path": "\ud800"},
        {"deletionVector": {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 10**12,
                            "cardinality": 1}},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_fields_of_other_types_are_refused_by_name(
    lake: QuickLake, changes: Mapping[str, Any]
) -> None:
    add = encode_action(lake.first_add)
    lake.log_raw({"add": {**add["add"], **changes}})
    with pytest.raises(CorruptLog, match=r"00000000000000000005\.json\.line 2"):
        lake.log.snapshot()


@pytest.mark.parametrize(
    "line",
    [
        '{"commitInfo":' + '{"a":' * 100_000,
        '{"commitInfo":{"x":"\\ud800"}}',
        '{"txn":{"appId":"a","version":9223372036854775808}}',
        json.dumps({"metaData": {"id": "x", "schemaString": DEEP, "partitionColumns": []}}),
    ],
    ids=["deep", "half a pair", "a long too long", "deep schema"],
)
def test_unreadable_log_lines_are_refused(lake: QuickLake, line: str) -> None:
    (lake.path / f"_delta_log/{5:020d}.json").write_text(line + "\n")
    with pytest.raises(CorruptLog):
        lake.log.snapshot()


@pytest.mark.part(2)
@pytest.mark.parametrize(
    "info",
    [
        {"inCommitTimestamp": 10**30},
        {"inCommitTimestamp": 10**15},
        {"inCommitTimestamp": "soon"},
        {"timestamp": "soon"},
        {"operation": {"a": [1]}, "operationParameters": [1]},
        {"operation": "OPTIMIZE", "engineInfo": "tandem/1", "tandem": 5},
        {"operation": ["WRITE"], "engineInfo": "tandem/1", "tandem": {"kind": ["x"]}},
        {"isBlindAppend": [1], "engineInfo": 5},
    ],
)
def test_a_running_operation_survives_any_commit_info(
    lake: QuickLake, info: Mapping[str, Any]
) -> None:
    more = rows(range(100, 105))

    def write() -> None:
        lake.append(more)
        lake.log_raw({"txn": {"appId": "q", "version": 1}}, **info)

    update = lake.update("k = 1", isolation="Serializable", v="v + 15")
    lake.do(update, interceptor=just_before(Point.RECONCILE, write))
    lake.do(lake.compaction("Major"))
    lake.assert_rows(plus(join(ROWS, more), k_is(1), 15))


def test_a_forged_rewrite_that_loses_rows_counts_as_a_change(
    lake: QuickLake,
) -> None:
    gone = {"path": lake.first_add.logged_path, "dataChange": False, "deletionTimestamp": 1}
    forged = {"operation": "x", "kind": "TableCompaction"}

    def forge() -> None:
        lake.log_raw({"remove": gone}, operation="OPTIMIZE", engineInfo="tandem/0", tandem=forged)

    lake.do(lake.compaction("Major"), interceptor=just_before(Point.PUT_COMMIT, forge))
    left = lake.by_deltalake(5)
    assert len(left) == 30
    lake.assert_rows(left)


def test_a_pipe_in_place_of_a_data_file_is_an_error_and_does_not_block(lake: QuickLake) -> None:
    file = lake.path / lake.first_add.logged_path
    file.unlink()
    os.mkfifo(file)
    assert lake.run(lake.compaction("Major")).phase is Phase.FAILED


@pytest.mark.parametrize("operation", ["compaction", "delete"])
def test_a_file_that_is_live_twice_is_named_and_left_alone(lake: QuickLake, operation: str) -> None:
    """With two vectors a file is two logical files: changing one would leave rows of the other."""
    first = lake.first_add
    vector = encode_inline(BitMap64([1, 2]))
    stats = json.dumps({"numRecords": 10, "tightBounds": False})
    lake.log_raw(encode_action(replace(first, deletion_vector=vector, stats=stats)))
    before = lake.version
    resource = lake.compaction() if operation == "compaction" else lake.delete("k = 1")

    status = lake.run(resource)

    assert status.phase is Phase.FAILED
    succeeded = next(c for c in status.conditions if c.type == ConditionType.SUCCEEDED)
    assert succeeded.reason == Reason.CORRUPT_LOG
    assert first.logged_path in succeeded.message
    assert lake.version == before
