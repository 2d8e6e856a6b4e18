"""Tables whose row ids cannot be as the protocol has them: a mark, columns, base ids and counts
that another writer got wrong. Each is refused by name before a write, or keeps what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lake, message, reason
from support.lake.rows import rows
from support.lake.tracking import NAMES, in_files, track
from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION
from tandem.delta.log.codec import encode_action
from tandem.delta.row_tracking import DOMAIN
from tandem.errors import CorruptLog
from tandem.spec.resources import Operation

LAST = 2**63 - 1
MARK = "rowIdHighWaterMark"
IDS, VERSIONS = NAMES.values()
Operations = Mapping[str, Callable[[Lake], Operation]]
WRITES: Operations = {
    "compaction": lambda lake: lake.compaction("Major"),
    "copy": lambda lake: lake.compaction("Major", minRowGroupRows=0),
    "sort": lambda lake: lake.compaction(
        "Major", layout={"strategy": "Sort", "columns": ["v", "id"]}
    ),
    "ingest": lambda lake: lake.ingest(rows(range(100, 110))),
    "delete": lambda lake: lake.delete("k = 1"),
    "update": lambda lake: lake.update("k = 1", v="v + 1"),
}
REWRITES = {name: WRITES[name] for name in ("compaction", "copy", "sort")}
MOVES = {**REWRITES, "update": WRITES["update"]}


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    """Three files of ten rows, with the ids 0 to 29; the mark is 29."""
    lake = quick_lake.make(tmp_path, 3)
    track(lake)
    return lake


def log_mark(lake: QuickLake, body: str) -> None:
    lake.log_raw({"domainMetadata": {"domain": DOMAIN, "configuration": body, "removed": False}})


def log_again(lake: QuickLake, **changes: Any) -> None:
    """The first file once more: with these fields."""
    lake.log_raw({"add": {**encode_action(lake.first_add)["add"], **changes}})


def written_again(lake: QuickLake, **columns: pa.Array) -> None:
    """The first file once more: its bytes are others, with these columns besides."""
    add = lake.first_add
    table = pq.read_table(lake.path / add.path)
    for name, array in columns.items():
        table = table.append_column(name.rstrip("2"), array)
    pq.write_table(table, lake.path / add.path)
    log_again(lake, size=(lake.path / add.path).stat().st_size)


def configured(lake: QuickLake, **names: str) -> None:
    """With these names of the columns of ids and versions."""
    metadata = encode_action(lake.log.snapshot().metadata)
    keys = dict(zip(("ids", "versions"), NAMES, strict=True))
    metadata["metaData"]["configuration"] |= {keys[key]: name for key, name in names.items()}
    lake.log_raw(metadata)


def refused(lake: QuickLake, operation: Operation, why: str, *words: str) -> None:
    before, files = lake.by_tandem(), {add.logged_path for add in lake.log.snapshot().adds()}
    status = lake.run(operation)
    assert reason(status) == why, status
    for word in words:
        assert word in message(status), message(status)
    # An attempt that was given up may have put a marker.
    assert (lake.by_tandem(), {add.logged_path for add in lake.log.snapshot().adds()}) == (
        before,
        files,
    )
    assert lake.unreachable() == set()


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize(
    "body", ["", "{}", "29", f'{{"{MARK}": "29"}}', f'{{"{MARK}": {LAST + 1}}}']
)
def test_a_mark_that_is_no_number(lake: QuickLake, body: str, operation: str) -> None:
    log_mark(lake, body)
    remedy = "Restore the table to a version with a valid mark"
    refused(lake, WRITES[operation](lake), "CorruptLog", DOMAIN, body[:20], MARK, remedy)


@pytest.mark.parametrize("operation", [*REWRITES, "ingest"])
@pytest.mark.parametrize("mark", [LAST, LAST - 9])
def test_a_mark_after_which_no_ids_are_left(lake: QuickLake, mark: int, operation: str) -> None:
    log_mark(lake, json.dumps({MARK: mark}))
    refused(lake, WRITES[operation](lake), "CorruptLog", DOMAIN, str(mark), f"at most {LAST}")


def test_the_last_ids_of_all_are_given(lake: QuickLake) -> None:
    log_mark(lake, json.dumps({MARK: LAST - 10}))
    before = in_files(lake)
    lake.do(WRITES["ingest"](lake))
    assert in_files(lake).items() >= before.items()
    assert sorted(row_id for row_id, _ in in_files(lake).values())[-10:] == [
        *range(LAST - 9, LAST + 1)
    ]
    lake.do(lake.delete("k = 1"))  # which needs no new ones
    refused(lake, WRITES["compaction"](lake), "CorruptLog", DOMAIN, f"at most {LAST}")


@pytest.mark.parametrize("body", [None, f'{{"{MARK}": -7}}', f'{{"{MARK}": 3}}'])
def test_a_mark_that_is_gone_negative_or_below_live_rows(lake: QuickLake, body: str | None) -> None:
    """New ids lie above those of all live rows, and the mark is right from then on."""
    gone = {"domain": DOMAIN, "configuration": "{}", "removed": True}
    log_mark(lake, body) if body is not None else lake.log_raw({"domainMetadata": gone})
    before = in_files(lake)
    for operation in ("ingest", "compaction"):
        lake.do(WRITES[operation](lake))
        after = in_files(lake)
        assert after.items() >= before.items()
        assert {row_id for key, (row_id, _) in after.items() if key >= 100} == {*range(30, 40)}
    mark = json.loads(lake.log.snapshot().domains[DOMAIN].configuration)[MARK]
    assert mark == 79


COLUMNS = {
    "texts": (pa.array([str(n) for n in range(10)]), ""),
    "structs": (pa.array([{"id": n} for n in range(10)]), ""),
    "fractions": (pa.array([n + 0.5 for n in range(10)]), "0.5"),
    "beyond 63 bits": (pa.array([LAST + 1] * 10, pa.uint64()), f"{LAST + 1}"),
}
"""Of ten rows, and what a message says of the values if it does not name the column."""


@pytest.mark.parametrize("operation", MOVES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", [IDS, VERSIONS])
def test_a_column_of_another_type(lake: QuickLake, name: str, column: str, operation: str) -> None:
    array, value = COLUMNS[column]
    written_again(lake, **{name: array})
    refused(lake, MOVES[operation](lake), "StorageError", value or name)


@pytest.mark.parametrize("operation", MOVES)
def test_ids_of_32_bits_are_ids(lake: QuickLake, operation: str) -> None:
    ids = pa.array([*range(1000, 1009), None], pa.int32())
    written_again(lake, **{IDS: ids})
    before = in_files(lake)
    lake.do(MOVES[operation](lake))
    assert {key: n for key, (n, _) in in_files(lake).items()} == {
        key: n for key, (n, _) in before.items()
    }
    assert {n for n, _ in before.values()} > {*range(1000, 1009)}


@pytest.mark.parametrize("operation", MOVES)
def test_two_columns_of_one_name(lake: QuickLake, operation: str) -> None:
    """Spark reads neither."""
    columns = [pa.array([*range(first, first + 10)], pa.int64()) for first in (0, 40)]
    written_again(lake, **dict(zip((IDS, f"{IDS}2"), columns, strict=True)))
    refused(lake, MOVES[operation](lake), "StorageError", IDS)


NAMED: Mapping[str, Mapping[str, str]] = {
    "like a column": {"ids": "v"},
    "like a column in another case": {"versions": "V"},
    "one name for both": {"ids": "_x", "versions": "_x"},
    "in another case for both": {"ids": "_x", "versions": "_X"},
    "no name": {"ids": ""},
}


@pytest.mark.parametrize("operation", MOVES)
@pytest.mark.parametrize("named", NAMED)
def test_names_that_cannot_be_those_of_the_columns(
    lake: QuickLake, named: str, operation: str
) -> None:
    configured(lake, **NAMED[named])
    words = "rowTracking", *NAMES, "do not name two columns that the schema lacks"
    refused(lake, MOVES[operation](lake), "UnsupportedFeature", *words)


def bases(lake: QuickLake, *found: int) -> None:
    """Other base ids of the files, in the order of their paths."""
    adds = sorted(lake.log.snapshot().adds(), key=lambda add: add.logged_path)
    changed = [encode_action(add) for add in adds]
    for action, base in zip(changed, found, strict=True):
        action["add"][BASE_ROW_ID] = base
    lake.log_raw(*changed)


def ids_of_rows(lake: QuickLake) -> dict[int, Any]:
    """Though some are given twice."""
    found: dict[int, Any] = {}
    for add in lake.log.snapshot().adds():
        table = pq.read_table(lake.path / add.path)
        own = table[IDS].to_pylist() if IDS in table.column_names else [None] * table.num_rows
        for at, key in enumerate(table["id"].to_pylist()):
            found[key] = add.extra[BASE_ROW_ID] + at if own[at] is None else own[at]
    return found


@pytest.mark.parametrize("operation", REWRITES)
def test_base_ids_that_overlap(lake: QuickLake, operation: str) -> None:
    """Which of two rows lost its id is not known: both keep what they have, and new ones get
    others."""
    bases(lake, 0, 5, 200)
    before = ids_of_rows(lake)
    lake.do(REWRITES[operation](lake))
    assert ids_of_rows(lake) == before
    lake.do(WRITES["ingest"](lake))
    new = {n for key, n in ids_of_rows(lake).items() if key >= 100}
    assert min(new) > 209


@pytest.mark.parametrize("operation", MOVES)
@pytest.mark.parametrize("base", [LAST - 5, -3])
def test_base_ids_out_of_range(lake: QuickLake, base: int, operation: str) -> None:
    bases(lake, 0, 10, base)
    refused(lake, MOVES[operation](lake), "ManifestInvalid", "base id")


@pytest.mark.parametrize("operation", REWRITES)
@pytest.mark.parametrize("claimed", [9, 11, 0])
def test_a_count_of_the_log_that_the_footer_denies(
    lake: QuickLake, claimed: int, operation: str
) -> None:
    log_again(lake, stats=json.dumps({"numRecords": claimed}))
    refused(lake, REWRITES[operation](lake), "CountMismatch", str(claimed))


@pytest.mark.parametrize("operation", WRITES)
@pytest.mark.parametrize("stats", [None, "{}", '{"numRecords": null}', '{"numRecords": -1}'])
def test_no_count(lake: QuickLake, stats: str | None, operation: str) -> None:
    """How many ids the file has is not known, but the mark says that they lie below it."""
    log_again(lake, stats=stats)
    before = in_files(lake)
    lake.do(WRITES[operation](lake))
    after = in_files(lake)
    assert all(n == before[key][0] for key, (n, _) in after.items() if key < 100)
    assert all(n > 29 for key, (n, _) in after.items() if key >= 100)


def test_no_count_and_no_mark(lake: QuickLake) -> None:
    log_again(lake, stats=None)
    gone = {"domain": DOMAIN, "configuration": "{}", "removed": True}
    lake.log_raw({"domainMetadata": gone})
    refused(lake, WRITES["ingest"](lake), "CorruptLog", DOMAIN, "the base id of a file")


@pytest.mark.parametrize("name", [BASE_ROW_ID, ROW_COMMIT_VERSION])
@pytest.mark.parametrize("value", ["x", LAST + 1, []])
def test_ids_of_a_file_that_are_no_numbers(lake: QuickLake, name: str, value: Any) -> None:
    log_again(lake, **{name: value})
    for operation in WRITES.values():
        with pytest.raises(CorruptLog, match=rf"{name}.* a whole number"):
            lake.run(operation(lake))


@pytest.mark.parametrize("name", [BASE_ROW_ID, ROW_COMMIT_VERSION])
def test_a_file_without_ids(lake: QuickLake, name: str) -> None:
    log_again(lake, **{name: None})
    for operation in WRITES.values():
        words = "baseRowId", ROW_COMMIT_VERSION, "none in 1 of 3 files"
        refused(lake, operation(lake), "RowTrackingIncomplete", *words)
