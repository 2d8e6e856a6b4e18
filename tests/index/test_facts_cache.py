"""Facts are held within a limit, found where they are stored, and believed only of the file and the
table that they were taken from. Whatever becomes of them, no row of an answer changes (X-b, X-c,
X-e)."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.facts_files import by_pyarrow
from support.jobs import quick_lake
from support.lake.memory_store import MemoryStore
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.errors import AccessDenied, StorageError
from tandem.index import Query, TableIndex
from tandem.index.facts.bloom_filters import FilterPlace
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.files import (
    FOLDER,
    FORM,
    LISTED_S,
    FactsListing,
    name_of,
    pack,
    packs,
    unpack,
)
from tandem.index.facts.footers import read_facts
from tandem.index.facts.row_groups import UNKNOWN, ColumnFacts, FileFacts, concat
from tandem.storage.store import ObjectInfo, Store

TABLE = "a-table"
ROWS = pa.table(
    {"id": pa.array(range(1_000)), "key": [f"k{n * 7919 % 1_000}" for n in range(1_000)]}
)
DATA = by_pyarrow(ROWS, 100, bloom_filter_options={"key": {"ndv": 100, "fpp": 0.01}})


class CountingStore(MemoryStore):
    """Counts its requests by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.broken = ""

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.asked["list"] += 1
        if self.broken == "list":
            raise StorageError("planted")
        return super().list(prefix, start_after=start_after)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        kind = "facts" if path.startswith(FOLDER) else "data"
        self.asked[kind] += 1
        if self.broken == kind:
            raise StorageError("planted")
        return super().get_range(path, start, length)


def store_of(count: int, folder: str = "job-1") -> CountingStore:
    store = CountingStore()
    for number in range(count):
        store.put(f"{folder}/{number}.parquet", DATA)
    return store


def files_of(count: int, folder: str = "job-1") -> pa.Table:
    paths = [f"{folder}/{number}.parquet" for number in range(count)]
    return pa.table({"path": paths, "size": pa.array([len(DATA)] * count, pa.int64())})


def known_rows(count: int) -> Any:
    return np.full(count, ROWS.num_rows)


def stored(store: Store, count: int, folder: str = "job-1", table_id: str = TABLE) -> str:
    """Facts of files beside them, as a job writes them."""
    facts = concat(
        [read_facts(store, f"{folder}/{number}.parquet", len(DATA)) for number in range(count)]
    )
    data = pack(facts, table_id)
    path = f"{FOLDER}/{folder}/{name_of(data).rpartition('/')[2]}"
    store.put(path, data)
    if isinstance(store, CountingStore):
        store.asked.clear()
    return path


# The limit


def test_Xe_no_more_is_held_than_the_limit() -> None:
    store = store_of(40)
    one = FactsCache(store, worth_bytes=0)
    one.of(files_of(1), known_rows(1))
    limit = 12 * one.nbytes
    cache = FactsCache(store, worth_bytes=0, limit=limit)
    known, at = cache.of(files_of(40), known_rows(40))
    assert cache.nbytes <= limit
    assert known is not None
    assert 1 <= (at != UNKNOWN).sum() < 40
    paths = known.facts.paths.to_pylist()
    found = [paths[index] for index in at.tolist() if index != UNKNOWN]
    wanted = [p for p, index in zip(files_of(40)["path"].to_pylist(), at.tolist(), strict=True)
              if index != UNKNOWN]  # fmt: skip
    assert found == wanted


def test_a_question_that_does_not_fit_reads_no_further_footers() -> None:
    store = store_of(300)
    cache = FactsCache(store, worth_bytes=0, limit=20_000)
    cache.of(files_of(300), known_rows(300))
    assert store.asked["data"] <= 64
    assert cache.nbytes <= 20_000


def test_facts_that_were_used_least_recently_go_first() -> None:
    store = store_of(30)
    one = FactsCache(store, worth_bytes=0)
    one.of(files_of(1), known_rows(1))
    cache = FactsCache(store, worth_bytes=0, limit=10 * one.nbytes)
    often = files_of(2)
    for number in range(2, 30):
        cache.of(often, known_rows(2))
        cache.of(files_of(30).slice(number, 1), known_rows(1))
    store.asked.clear()
    _, at = cache.of(often, known_rows(2))
    assert (at != UNKNOWN).all()
    assert not store.asked


def test_filters_go_before_facts() -> None:
    store = store_of(4)
    unlimited = FactsCache(store, worth_bytes=0)
    known, _ = unlimited.of(files_of(4), known_rows(4))
    assert known is not None
    facts_bytes = unlimited.nbytes
    [key] = [key for key in known.facts.columns if key.name == "key"]
    column = known.facts.columns[key]
    places_ = [
        FilterPlace(path, len(DATA), int(column.filter_start[at]), int(column.filter_bytes[at]))
        for path in files_of(4)["path"].to_pylist()
        for at in range(10)
    ]
    found = unlimited.filters(places_)
    assert all(each is not None for each in found)
    one = found[0]
    assert one is not None
    assert unlimited.nbytes == facts_bytes + 40 * one.nbytes
    limit = facts_bytes + 5 * one.nbytes
    cache = FactsCache(store, worth_bytes=0, limit=limit)
    cache.of(files_of(4), known_rows(4))
    found = cache.filters(places_)
    assert all(each is not None for each in found)
    assert cache.nbytes <= limit
    _, at = cache.of(files_of(4), known_rows(4))
    assert (at != UNKNOWN).all()
    store.asked.clear()
    cache.filters(places_[-5:])
    assert not store.asked  # the last ones are held
    without = FactsCache(store, worth_bytes=0, bloom_filters=False)
    without.of(files_of(4), known_rows(4))
    store.asked.clear()
    assert without.filters(places_) == [None] * len(places_)
    assert not store.asked


def test_Xe_the_bytes_are_those_of_the_buffers() -> None:
    """Within a tenth (X-e), also of facts that lie in the bytes of a file."""
    store = store_of(200)
    stored(store, 200)
    for table_id in ("", TABLE):
        gc.collect()  # what earlier tests left may not be freed in between
        before = pa.total_allocated_bytes()
        cache = FactsCache(store, worth_bytes=0)
        known, _ = cache.of(files_of(200), known_rows(200), table_id=table_id)
        assert known is not None
        arrow = pa.total_allocated_bytes() - before
        facts = known.facts
        own = [facts.sizes, facts.rows, facts.groups, facts.group_rows,
               *(n for column in facts.columns.values() for n in
               (column.nulls, column.filter_start, column.filter_bytes))]  # fmt: skip
        # Numbers are numpy's, unless they lie in Arrow's memory.
        numbers = sum(each.nbytes for each in own if each.base is None)
        held = arrow + numbers
        assert abs(cache.nbytes - held) <= 0.1 * held, (table_id, cache.nbytes, held)


def test_files_of_other_columns_each_do_not_take_more_than_the_limit() -> None:
    """A hostile writer names other columns in each file: together they are a matrix."""
    store = CountingStore()
    table = pa.table({f"c{n}": [1, 2] for n in range(50)})
    sizes = []
    for number in range(60):
        data = by_pyarrow(table.rename_columns([f"x{number}_{n}" for n in range(50)]), 1)
        store.put(f"f/{number}.parquet", data)
        sizes.append(len(data))
    files = pa.table({"path": [f"f/{n}.parquet" for n in range(60)], "size": sizes})
    cache = FactsCache(store, worth_bytes=0, limit=1 << 20)
    cache.of(files, np.full(60, 2))
    assert cache.nbytes <= 1 << 20
    cache = FactsCache(store, worth_bytes=0)
    known, _ = cache.of(files, np.full(60, 2), columns={"x7_3"})
    assert known is not None
    assert [key.name for key in known.facts.columns] == ["x7_3"]


def test_a_filter_is_of_a_file_of_that_size() -> None:
    """A file that was replaced under its name has its filter at the same place, of other values."""
    store = store_of(1)
    cache = FactsCache(store, worth_bytes=0)
    start, length = filter_place(cache)
    [before] = cache.filters([FilterPlace("job-1/0.parquet", len(DATA), start, length)])
    data = bytearray(DATA)
    data[start + 20 : start + 40] = bytes(20)
    store.put("job-1/0.parquet", bytes(data) + b"longer")
    [after] = cache.filters([FilterPlace("job-1/0.parquet", len(DATA) + 6, start, length)])
    assert before is not None
    assert after is not None
    assert before is not after


def filter_place(cache: FactsCache) -> tuple[int, int]:
    known, at = cache.of(files_of(1), known_rows(1))
    assert known is not None
    [column] = [column for key, column in known.facts.columns.items() if key.name == "key"]
    return int(column.filter_start[at[0]]), int(column.filter_bytes[at[0]])


# What is stored


def test_stored_facts_cost_one_listing_and_one_read_for_all_files_of_a_job() -> None:
    store = store_of(50)
    stored(store, 50)
    cache = FactsCache(store, worth_bytes=0)
    known, at = cache.of(files_of(50), known_rows(50), table_id=TABLE)
    assert known is not None
    assert (at != UNKNOWN).all()
    assert store.asked == {"list": 1, "facts": 1}
    cache.of(files_of(50), known_rows(50), table_id=TABLE)
    assert store.asked == {"list": 1, "facts": 1}


def test_a_listing_is_not_repeated_within_its_interval() -> None:
    store, seconds = store_of(4), [0.0]
    cache = FactsCache(store, worth_bytes=0, now=lambda: seconds[0])
    for count in (1, 2, 3):
        cache.of(files_of(count), known_rows(count), table_id=TABLE)
    assert store.asked["list"] == 1
    seconds[0] += LISTED_S
    stored(store, 4)
    cache.of(files_of(4), known_rows(4), table_id=TABLE)
    assert store.asked == {"list": 1, "facts": 1}


def test_facts_of_other_folders_are_not_read() -> None:
    store = store_of(2)
    stored(store, 2)
    store.put(f"{FOLDER}/job-2/x.facts", b"never read")
    cache = FactsCache(store, worth_bytes=0)
    cache.of(files_of(2), known_rows(2), table_id=TABLE)
    assert store.asked == {"list": 1, "facts": 1}


def test_facts_of_foreign_files_lie_in_the_root() -> None:
    store = store_of(2, "p=1")
    path = stored(store, 2, "p=1")
    data = store.get(path)
    store.delete([path])
    store.put(name_of(data), data)
    cache = FactsCache(store, worth_bytes=0)
    _, at = cache.of(files_of(2, "p=1"), known_rows(2), table_id=TABLE)
    assert (at != UNKNOWN).all()
    assert store.asked == {"list": 1, "facts": 1}


def test_small_files_are_not_looked_for() -> None:
    store = store_of(2)
    cache = FactsCache(store)
    cache.of(files_of(2), known_rows(2), table_id=TABLE)
    assert not store.asked


@pytest.mark.parametrize("broken", ["list", "facts", "data"])
def test_a_store_that_fails_leaves_facts_unknown_until_it_works(broken: str) -> None:
    store = store_of(2)
    stored(store, 2)
    store.broken = broken
    cache = FactsCache(store, worth_bytes=0)
    _, at = cache.of(files_of(2), known_rows(2), table_id=TABLE)
    assert (at != UNKNOWN).all()  # from the other source
    store.broken = ""
    _, at = cache.of(files_of(2), known_rows(2), table_id=TABLE)
    assert (at != UNKNOWN).all()


def test_another_table_at_the_place_is_known_nothing_of() -> None:
    store = store_of(2)
    stored(store, 2)
    cache = FactsCache(store, worth_bytes=0)
    known, at = cache.of(files_of(2), known_rows(2), table_id=TABLE)
    assert (at != UNKNOWN).all()
    store.asked.clear()
    cache._worth = 1 << 40
    known, at = cache.of(files_of(2), known_rows(2), table_id="another")
    assert known is None
    assert (at == UNKNOWN).all()
    cache._worth = 0
    cache.of(files_of(2), known_rows(2), table_id="another")
    assert cache._stored.not_believed == {"tableId": 1}
    assert store.asked["data"] == 2


def test_facts_of_a_file_of_another_size_give_way_to_its_footer() -> None:
    store = store_of(1)
    stored(store, 1)
    other = by_pyarrow(ROWS.slice(0, 500), 100)
    store.put("job-1/0.parquet", other)
    files = pa.table({"path": ["job-1/0.parquet"], "size": [len(other)]})
    cache = FactsCache(store, worth_bytes=0)
    known, at = cache.of(files, np.array([500]), table_id=TABLE)
    assert known is not None
    assert known.facts.groups[at].tolist() == [5]


def test_hostile_facts_take_no_more_memory_than_the_limit() -> None:
    """Small files that hold a lot: facts of files that are not there, all alike."""
    store = store_of(1)
    [key] = [key for key in read_facts(store, "job-1/0.parquet", len(DATA)).columns
             if key.name == "id"]  # fmt: skip
    groups = 10_000
    zeros = np.zeros(groups, np.int64)
    bounds = pa.array(zeros)
    for number in range(40):
        column = ColumnFacts(bounds, bounds, zeros, zeros, zeros)
        facts = FileFacts(
            pa.array([f"job-1/no{number}.parquet"]), np.array([1]), np.array([0]),
            np.array([groups]), zeros, {key: column},
        )  # fmt: skip
        store.put(f"{FOLDER}/job-1/{number}.facts", pack(facts, TABLE))
    assert sum(len(store.get(path)) for path in store.paths() if FOLDER in path) < 200_000
    limit = 1 << 20
    cache = FactsCache(store, worth_bytes=0, limit=limit)
    cache.of(files_of(1), known_rows(1), table_id=TABLE)
    assert cache.nbytes <= limit
    assert store.asked["facts"] <= 16
    _, at = cache.of(files_of(1), known_rows(1), table_id=TABLE)
    assert (at != UNKNOWN).all()


# Reading in the background


def never() -> bool:
    return False


def test_footers_are_read_in_the_background_and_stored_for_the_next_process() -> None:
    store = store_of(30, "p=1")
    files, rows = files_of(30, "p=1"), known_rows(30)
    cache = FactsCache(store, worth_bytes=0)
    assert cache.warm(files, rows, never, table_id=TABLE) == 30
    store.asked.clear()
    _, at = cache.of(files, rows, table_id=TABLE)
    assert (at != UNKNOWN).all()
    assert not store.asked["data"]
    assert cache.warm(files, rows, never, table_id=TABLE) == 0
    again = FactsCache(store, worth_bytes=0)
    store.asked.clear()
    _, at = again.of(files, rows, table_id=TABLE)
    assert (at != UNKNOWN).all()
    assert store.asked == {"list": 1, "facts": 1}
    assert FactsCache(store, worth_bytes=0).warm(files, rows, never, table_id=TABLE) == 0


def test_it_stops_when_told_to_and_when_memory_is_full() -> None:
    store = store_of(300)
    files, rows = files_of(300), known_rows(300)
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 2

    assert FactsCache(store, worth_bytes=0).warm(files, rows, stop, table_id=TABLE) == 128
    small = FactsCache(store_of(300), worth_bytes=0, limit=40_000)
    assert small.warm(files, rows, never, table_id=TABLE) < 300
    assert small.nbytes <= 40_000
    assert small.warm(files, rows, never, table_id=TABLE) == 0


def test_a_store_that_cannot_be_written_is_tried_once() -> None:
    class ReadOnly(CountingStore):
        def put(self, path: str, data: bytes) -> None:
            if path.startswith(FOLDER):
                self.asked["put"] += 1
                raise AccessDenied("planted", resource=path)
            super().put(path, data)

    store = ReadOnly()
    for number in range(4):
        store.put(f"job-1/{number}.parquet", DATA)
    cache = FactsCache(store, worth_bytes=0)
    for count in (2, 4):
        assert cache.warm(files_of(count), known_rows(count), never, table_id=TABLE) == 2
    assert store.asked["put"] == 1
    _, at = cache.of(files_of(4), known_rows(4), table_id=TABLE)
    assert (at != UNKNOWN).all()


def test_footers_that_are_none_are_not_read_again() -> None:
    store = store_of(2)
    store.put("job-1/1.parquet", b"x" * len(DATA))
    cache = FactsCache(store, worth_bytes=0)
    assert cache.warm(files_of(2), known_rows(2), never, table_id=TABLE) == 1
    store.asked.clear()
    assert cache.warm(files_of(2), known_rows(2), never, table_id=TABLE) == 0
    assert not store.asked["data"]


def test_facts_are_packed_so_that_they_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(40)
    parts = [read_facts(store, f"job-1/{number}.parquet", len(DATA)) for number in range(40)]
    monkeypatch.setattr("tandem.index.facts.files.MOST_BYTES", 8 * parts[0].nbytes)
    found = [facts for _, data in packs(parts, TABLE) for facts in [unpack(data, TABLE)]]
    assert len(found) > 4
    assert [p for facts in found for p in facts.paths.to_pylist()] == [
        f"job-1/{number}.parquet" for number in range(40)
    ]
    assert all(facts.nbytes <= 8 * parts[0].nbytes for facts in found)
    monkeypatch.setattr("tandem.index.facts.files.MOST_BYTES", parts[0].nbytes)
    assert list(packs(parts, TABLE)) == []


# End to end: no row changes

CONDITIONS = ("id < 250", "id >= 250 AND id < 350", "key = 'k777'", "key = 'absent'", "id IS NULL")


class Lake:
    """A table of two files of ten row groups, with facts beside them."""

    def __init__(self, folder: Path) -> None:
        self.lake = quick_lake.make(folder, 0, schema=ROWS.schema)
        root = self.lake.path
        for number in (0, 1):
            path = root / "job-1" / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(DATA)
            stats = f'{{"numRecords":{ROWS.num_rows}}}'
            add = AddFile(f"job-1/{number}.parquet", {}, len(DATA), 1, True, stats)
            self.lake.log_raw(encode_action(add))
        self.table_id = self.lake.log.snapshot().metadata.id
        self.facts = root / stored(self.lake.store, 2, table_id=self.table_id)

    def index(self, *, row_groups: bool = True, footers: bool = True) -> TableIndex:
        index = TableIndex(self.lake.log, row_groups=row_groups)
        if index._facts is not None:
            index._facts._worth = 0
            index._facts._most = 1_000 if footers else 0
        return index


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 4]) + data[101:]


def newer(data: bytes) -> bytes:
    changed = FORM.magic + struct.pack("<H", FORM.version + 1) + data[len(FORM.magic) + 2 : -32]
    return changed + hashlib.sha256(changed).digest()


def renamed(data: bytes) -> bytes:
    """Facts of other files, under these names."""
    store = MemoryStore()
    other = by_pyarrow(pa.table({"id": pa.array(range(5_000, 5_070)), "key": ["z"] * 70}), 7)
    parts = []
    for number in (0, 1):
        store.put(f"job-1/{number}.parquet", other)
        parts.append(read_facts(store, f"job-1/{number}.parquet", len(other)))
    return pack(concat(parts), table_of(data))


def table_of(data: bytes) -> str:
    header = data[24 : 24 + int.from_bytes(data[12:16], "little")]
    found: str = json.loads(header)["tableId"]
    return found


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "absent": lambda _: b"",
    "whole": lambda data: data,
    "torn": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"\n",
    "flipped": flipped,
    "newer": newer,
    "of another file": renamed,
    "of another table": lambda data: pack(unpack(data, table_of(data)), "another"),
}


@pytest.mark.part(3)
@pytest.mark.parametrize("footers", [True, False], ids=["footers", "no footers"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_Xb_stored_facts_change_no_row(tmp_path: Path, damage: str, footers: bool) -> None:
    lake = Lake(tmp_path)
    data = DAMAGES[damage](lake.facts.read_bytes())
    lake.facts.unlink()
    if data:
        lake.facts.write_bytes(data)
    by_files, by_groups = lake.index(row_groups=False), lake.index(footers=footers)
    for where in CONDITIONS:
        query = Query(where)
        assert by_groups.count(query) == by_files.count(query), where
        expected = by_files.reader(query).read_all().sort_by([("id", "ascending")])
        assert by_groups.reader(query).read_all().sort_by([("id", "ascending")]) == expected, where
    narrow = by_groups.splits(Query("id < 250")).groups.to_pylist()
    used = footers or damage == "whole"
    assert narrow == [[0, 1, 2]] * 2 if used else [None] * 2


def test_a_table_that_was_made_again_believes_nothing_of_the_last_one(tmp_path: Path) -> None:
    """The same names, sizes and numbers of rows, other rows."""
    lake = Lake(tmp_path)
    index = lake.index()
    assert index.count(Query("id < 250")) == 500
    kept = lake.facts.read_bytes()
    shutil.rmtree(lake.lake.path)
    again = Lake(tmp_path)
    assert again.table_id != lake.table_id
    turned = by_pyarrow(
        ROWS.set_column(0, "id", pa.array(range(1_000, 0, -1))), 100,
        bloom_filter_options={"key": {"ndv": 100, "fpp": 0.01}},
    )  # fmt: skip
    assert len(turned) != len(DATA) or turned != DATA
    for number in (0, 1):
        pq.write_table(
            pq.read_table(pa.BufferReader(turned)),
            again.lake.path / f"job-1/{number}.parquet",
            row_group_size=100,
        )
    again.facts.write_bytes(kept)
    size = (again.lake.path / "job-1/0.parquet").stat().st_size
    again.lake.log_raw(
        *(
            encode_action(AddFile(f"job-1/{number}.parquet", {}, size, 1, True, None))
            for number in (0, 1)
        )
    )
    for each in (index, again.index()):
        found = each.reader(Query("id > 990")).read_all()
        assert sorted(found["id"].to_pylist()) == sorted([*range(991, 1_001)] * 2)


def test_stored_facts_are_listed_once_for_a_while() -> None:
    store, now = MemoryStore(), [0.0]
    listing = FactsListing(store, now=lambda: now[0])
    store.put(f"{FOLDER}/one.facts", b"1")
    for _ in range(2):
        assert [each.path for each in listing.files()[""]] == [f"{FOLDER}/one.facts"]
        store.put(f"{FOLDER}/two.facts", b"2")
    now[0] = LISTED_S
    assert len(listing.files()[""]) == 2
