"""Tables that others have damaged: statistics that are none, a file that is there twice, a log with
a gap, a broken commit, a feature that is not known, a clock that jumps. The numbers are those of a
scan, or an error names the field, what was found and what to do; once it is mended, the index that
was held answers again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from support.lake.vectors import encode_inline
from tandem.delta import scan
from tandem.delta.log.codec import encode_action
from tandem.errors import CorruptLog, TandemError, UnsupportedFeature
from tandem.index import Query, TableIndex, open_index
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer

LOADS = 3
CONDITIONS: dict[str, Callable[[int], bool]] = {
    "": lambda _: True,
    "id < 15": lambda n: n < 15,
    "id >= 10": lambda n: n >= 10,
    "id = 7": lambda n: n == 7,
    "id IS NULL": lambda _: False,
}


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path, LOADS)


def require_numbers_of_a_scan(lake: QuickLake, held: TableIndex) -> None:
    ids = scan.scan(lake.log.snapshot(), lake.log.store).read_all()["id"].to_pylist()
    for index in (held, open_index(lake.location)):
        for where, test in CONDITIONS.items():
            expected = sorted(n for n in ids if test(n))
            assert index.count(Query(where)) == len(expected), where
            assert sorted(index.reader(Query(where)).read_all()["id"].to_pylist()) == expected
        assert index.bounds(["id"]) == {"id": (min(ids), max(ids))}


@pytest.mark.parametrize(
    "stats",
    [
        '{"numRecords":',
        "null",
        "[]",
        '"x"',
        '{"numRecords":-5}',
        '{"numRecords":"10"}',
        '{"numRecords":10.5}',
        '{"numRecords":1e400}',
        '{"numRecords":true}',
        '{"numRecords":10,"minValues":{"id":"a"},"maxValues":{"id":"b"},"nullCount":{"id":0}}',
        '{"numRecords":10,"minValues":{"id":1.5},"maxValues":{"id":2.5},"nullCount":{"id":0}}',
        '{"numRecords":10,"minValues":{"id":true},"maxValues":{"id":true},"nullCount":{"id":0}}',
        '{"numRecords":10,"minValues":[1],"maxValues":{"id":{}},"nullCount":5}',
        '{"numRecords":10,"nullCount":{"id":-1}}',
        '{"numRecords":10,"nullCount":{"id":11}}',
        '{"numRecords":10,"nullCount":{"id":"0"}}',
        '{"numRecords":10,"minValues":{"id":9},"maxValues":{"id":-9},"nullCount":{"id":0}}',
    ],
)
def test_Xb_statistics_that_are_none_or_of_wrong_types_count_as_absent(
    lake: QuickLake, stats: str
) -> None:
    held = open_index(lake.location)
    assert held.count() == LOADS * 10
    lake.log_again(stats=stats)
    require_numbers_of_a_scan(lake, held)


def twice(lake: QuickLake) -> None:
    lake.log_raw(encode_action(lake.first_add), encode_action(lake.first_add))


def with_another_vector(lake: QuickLake) -> None:
    """With two vectors a file is two logical files, for every reader."""
    stats = json.dumps({"numRecords": 10, "tightBounds": False})
    vector = encode_inline(BitMap64([1, 2]))
    lake.log_raw(encode_action(replace(lake.first_add, deletion_vector=vector, stats=stats)))


def removed_and_added(lake: QuickLake) -> None:
    lake.log_raw(removal(lake.first_add.logged_path), encode_action(lake.first_add))


def added_and_removed(lake: QuickLake) -> None:
    lake.log_raw(encode_action(lake.first_add), removal(lake.first_add.logged_path))


def removed_what_is_not_there(lake: QuickLake) -> None:
    lake.log_raw(removal("nowhere.parquet"))


def removal(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}


DUPLICATES = [
    twice, with_another_vector, removed_and_added, added_and_removed, removed_what_is_not_there,
]  # fmt: skip


@pytest.mark.parametrize("change", DUPLICATES, ids=lambda change: change.__name__)
def test_Xa_a_file_that_is_added_twice_is_what_a_scan_takes_it_for(
    lake: QuickLake, change: Callable[[QuickLake], None]
) -> None:
    held = open_index(lake.location)
    assert held.count() == LOADS * 10
    change(lake)
    require_numbers_of_a_scan(lake, held)


def refused(held: TableIndex, kind: type[TandemError], field: str, found: str, remedy: str) -> None:
    for index in (held, TableIndex(held.log)):
        with pytest.raises(kind) as raised:
            index.count()
        assert field in f"{raised.value.resource}.{raised.value.field}"
        assert found in raised.value.found
        assert remedy in raised.value.remedy
    # A version that is held is not touched by what came later.
    assert held.count(Query(version=LOADS)) == LOADS * 10


def test_a_gap_in_the_log_is_named_until_it_is_closed(lake: QuickLake) -> None:
    held = open_index(lake.location)
    assert held.count() == LOADS * 10
    for number in (LOADS, LOADS + 1):
        lake.append(batch(number))
    missing = lake.path / f"_delta_log/{LOADS + 1:020d}.json"
    text = missing.read_text()
    missing.unlink()
    refused(held, CorruptLog, missing.name, "no such object", "Restore the missing file")
    missing.write_text(text)
    require_numbers_of_a_scan(lake, held)


@pytest.mark.parametrize("what", ["cut off", "binary"])
def test_a_broken_commit_is_named_until_it_is_mended(lake: QuickLake, what: str) -> None:
    held = open_index(lake.location)
    assert held.count() == LOADS * 10
    lake.append(batch(LOADS))
    broken = lake.path / f"_delta_log/{LOADS + 1:020d}.json"
    data = broken.read_bytes()
    broken.write_bytes(data[: len(data) // 2] if what == "cut off" else b"\x00\xff" * 40)
    refused(held, CorruptLog, broken.name, "", "Restore the file from a backup")
    broken.write_bytes(data)
    require_numbers_of_a_scan(lake, held)


def test_a_feature_that_comes_later_is_refused_from_its_version_on(lake: QuickLake) -> None:
    held = open_index(lake.location)
    assert held.count() == LOADS * 10
    names = ["deletionVectors", "quantumRows"]
    lake.log_raw(
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7,
                      "readerFeatures": names, "writerFeatures": names}}
    )  # fmt: skip
    refused(held, UnsupportedFeature, "protocol", "quantumRows", "docs/features.md")


@pytest.mark.parametrize("weeks", [-520, 520])
def test_a_clock_that_jumps_changes_no_answer(
    lake: QuickLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weeks: int
) -> None:
    """Staleness, tickets and reviews count by a clock that never goes back, holds by the store's
    time."""
    parts = AnswerFiles(tmp_path / "answers", inline_limit=100)
    service = IndexService({"lake": lambda: open_index(lake.location)}, parts)
    with FlightServer(service, "127.0.0.1", 0) as server:
        connection = Connection(f"grpc://127.0.0.1:{server.port}", timeout_s=60)
        index = RemoteIndex(connection, "lake", lake.store)
        assert index.count() == LOADS * 10
        ticket = connection.ask("GetSplits", b'{"table": "lake"}')[0]["ticket"]
        before_ms = int(time.time() * 1000)
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() + weeks * 7 * 86_400)
        assert connection.fetch(ticket).num_rows == LOADS
        lake.append(batch(LOADS))
        assert index.count(Query(max_staleness_s=3_600)) == LOADS * 10
        assert index.count() == (LOADS + 1) * 10
        held = index.splits(Query(hold_s=60))
        assert len(held) == LOADS + 1
        [hold] = (lake.path / "_tandem/holds").glob("*.hold")
        assert hold.stat().st_mtime * 1000 >= before_ms - 1_000
