"""Our jobs write the bloom filters that a LakeTable or a SegmentRewrite asks for, and store the
facts of what they wrote. Whatever becomes of these, the job and every answer are the same (X-b,
X-f)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.memory_store import MemoryStore
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.delta.schema import parse
from tandem.errors import InvalidSpec, StorageFull
from tandem.index import Query, TableIndex
from tandem.index.facts.files import FOLDER, WORTH_STORED, pack, unpack
from tandem.index.facts.footers import read_facts
from tandem.operations.adopt import adopt, preview
from tandem.operations.machine.events import Point
from tandem.operations.ports import SystemClock, SystemNonces
from tandem.spark.runtime import written_facts
from tandem.spark.runtime.written_facts import WORTH, FileDescriber, store_facts
from tandem.spec.status import Phase

SCHEMA = pa.schema(
    [("id", pa.int64()), ("key", pa.string()), ("flag", pa.bool_()), ("x", pa.float64())]
)
TYPES = {"id": "long", "key": "string", "flag": "boolean", "x": "double"}
FIELDS = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in TYPES.items()]
SCHEMA_JSON = json.dumps({"type": "struct", "fields": FIELDS})
COUNT = 1_000
KEYS = [f"k{n * 7919 % COUNT}" for n in range(COUNT)]
TABLE = pa.table(
    [range(COUNT), KEYS, [n % 2 == 0 for n in range(COUNT)], [0.0] * COUNT], schema=SCHEMA
)
FILTERED = {"bloomFilters": {"columns": ["KEY"], "falsePositives": 0.001}}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of row groups of 100 rows are worth everything that large ones are."""
    monkeypatch.setattr("tandem.delta.datafiles.writer.GROUP_ROWS", 100)
    monkeypatch.setattr("tandem.delta.datafiles.bloom_filters._LEAST", 100)
    monkeypatch.setattr(written_facts, "WORTH", 0)
    monkeypatch.setattr("tandem.index.facts.cache.WORTH_STORED", 0)


def lake_of(folder: Path, **index: Any) -> QuickLake:
    """A table of one load by another writer, in one row group."""
    lake = quick_lake.make(folder, 0, schema=SCHEMA)
    lake.append(TABLE)
    lake.index = index or None
    return lake


def compacted(lake: QuickLake) -> list[str]:
    """The live files after a rewrite of all."""
    purged = {"recompress": {"codec": "zstd"}}
    status = lake.run(lake.resource("SegmentRewrite", {"segments": lake.names, "rewrite": purged}))
    assert status.phase is Phase.SUCCEEDED, status
    return [add.path for add in lake.log.snapshot().adds()]


def filtered_columns(path: Path) -> set[str]:
    metadata = pq.read_metadata(path)
    chunks = [
        metadata.row_group(group).column(at)
        for group in range(metadata.num_row_groups)
        for at in range(metadata.num_columns)
    ]
    return {c.path_in_schema for c in chunks if c.bloom_filter_offset is not None}


def stored(lake: QuickLake) -> list[str]:
    return [meta.path for meta in lake.store.list(FOLDER)]


def index_of(lake: QuickLake) -> TableIndex:
    index = TableIndex(lake.log)
    assert index._facts is not None
    index._facts._worth = 0
    return index


# Bloom filters


def test_files_of_jobs_have_the_filters_that_the_table_asks_for(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, **FILTERED)
    [path] = compacted(lake)
    assert filtered_columns(lake.path / path) == {"key"}
    plain = lake_of(tmp_path / "plain")
    [path] = compacted(plain)
    assert filtered_columns(plain.path / path) == set()


def test_a_rewrite_adds_filters_to_files_that_are_there(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, **FILTERED)
    rewrite = {"addBloomFilters": {"columns": ["id"]}}
    operation = lake.resource("SegmentRewrite", {"segments": lake.names, "rewrite": rewrite})
    assert lake.run(operation).phase is Phase.SUCCEEDED
    [add] = lake.log.snapshot().adds()
    assert filtered_columns(lake.path / add.path) == {"id", "key"}


def test_filters_of_jobs_find_every_key_and_exclude_absent_ones(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, **FILTERED)
    [path] = compacted(lake)
    index = index_of(lake)
    with duckdb.connect() as engine:
        for key in (*KEYS[::37], *(f"no {n}" for n in range(30))):
            probed = engine.sql(
                f"FROM parquet_bloom_probe('{lake.path / path}', 'key', '{key}')"
            ).fetchall()
            may = [group for group, (*_, excluded) in enumerate(probed) if not excluded]
            found = index.splits(Query(f"key = '{key}'")).groups.to_pylist()
            # Bounds may exclude some more.
            left = found[0] if found and found[0] is not None else range(len(found) * 10)
            assert set(left) <= set(may), key
            assert index.count(Query(f"key = '{key}'")) == KEYS.count(key)
    absent = sum(len(index.splits(Query(f"key = 'k5{n}x'"))) for n in range(100))
    assert absent <= 5


def test_a_column_that_was_dropped_since_is_left_out(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, bloomFilters={"columns": ["gone", "flag", "key"]})
    [path] = compacted(lake)
    assert filtered_columns(lake.path / path) == {"key"}


@pytest.mark.parametrize(
    ("columns", "at", "message"),
    [
        (["id", "nokey"], 1, "no such column"),
        (["flag"], 0, "of this type"),
        (["x"], 0, "of this type"),
        (["id.x"], 0, "no such column"),
    ],
)
def test_a_filter_that_no_file_can_have_is_refused(
    tmp_path: Path, columns: list[str], at: int, message: str
) -> None:
    lake = lake_of(tmp_path, bloomFilters={"columns": columns})
    refusals: tuple[Callable[[], object], ...] = (
        lambda: preview(lake.table()),
        lambda: adopt(lake.table(), SystemClock(), SystemNonces()),
    )
    for refusing in refusals:
        with pytest.raises(InvalidSpec, match=message) as refused:
            refusing()
        assert refused.value.field == f"spec.index.bloomFilters.columns[{at}]"
        assert refused.value.found == columns[at]
    lake.index = None
    rewrite = {"addBloomFilters": {"columns": columns}}
    status = lake.run(lake.resource("SegmentRewrite", {"segments": lake.names, "rewrite": rewrite}))
    assert status.phase is Phase.FAILED
    assert f"spec.rewrite.addBloomFilters.columns[{at}]" in str(status)


def test_a_partition_column_has_no_filter(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0, schema=SCHEMA, partition_by=["key"])
    lake.index = {"bloomFilters": {"columns": ["key"]}}
    with pytest.raises(InvalidSpec, match="partition column"):
        preview(lake.table())


# Facts


def test_a_job_stores_the_facts_of_all_its_files_together(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, **FILTERED)
    lake.append(TABLE)
    recompress = {"recompress": {"codec": "zstd"}}
    lake.run(lake.resource("SegmentRewrite", {"segments": lake.names, "rewrite": recompress}))
    adds = list(lake.log.snapshot().adds())
    assert len(adds) == 2
    [path] = stored(lake)
    folder = adds[0].path.rpartition("/")[0]
    assert path.startswith(f"{FOLDER}/{folder}/")
    table_id = lake.log.snapshot().metadata.id
    found = unpack(lake.store.get(path), table_id)
    assert sorted(found.paths.to_pylist()) == sorted(add.path for add in adds)
    for at, each in enumerate(found.paths.to_pylist()):
        [size] = [add.size for add in adds if add.path == each]
        footer = read_facts(lake.store, each, size)
        assert pack(found.take(np.array([at])), table_id) == pack(footer, table_id)


def test_stored_facts_answer_without_a_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, **FILTERED)
    compacted(lake)
    index = index_of(lake)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a footer is read")

    monkeypatch.setattr("tandem.index.facts.footers.read_facts", refuse)
    assert index.splits(Query("id < 150")).groups.to_pylist() == [[0, 1]]
    assert index.count(Query("id < 150")) == 150
    # Without filters and with one row group, there is nothing to store.
    monkeypatch.setattr("tandem.delta.datafiles.writer.GROUP_ROWS", 1 << 20)
    plain = lake_of(tmp_path / "plain")
    compacted(plain)
    assert stored(plain) == []


def test_facts_are_there_before_the_commit_that_names_their_files(tmp_path: Path) -> None:
    """A job that dies before its commit leaves facts that mean nothing, and go with its files."""
    lake = lake_of(tmp_path, **FILTERED)
    seen: list[list[str]] = []
    held = lake.hold(
        lake.resource(
            "SegmentRewrite", {"segments": lake.names, "rewrite": {"recompress": {"codec": "zstd"}}}
        ),
        Point.PUT_COMMIT,
    )
    seen.append(stored(lake))
    assert held.finish().phase is Phase.SUCCEEDED
    assert len(seen[0]) == 1
    assert stored(lake) == seen[0]


class FullStore(MemoryStore):
    """Has room for everything but facts."""

    def put(self, path: str, data: bytes) -> None:
        if path.startswith(FOLDER):
            raise StorageFull("planted", resource=path)
        super().put(path, data)


def written(store: MemoryStore, describe: FileDescriber) -> tuple[WrittenFile, ...]:
    format_ = TableFormat(parse(SCHEMA_JSON), (), {}, {"key": 0.01})
    with ParquetDataWriter(store, "job-1", format_, describe=describe) as writer:
        for batch in TABLE.to_batches():
            writer.write(batch)
    return writer.files


def test_Xf_a_store_without_room_for_facts_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FullStore()
    [file] = written(store, FileDescriber(store, "t"))
    assert file.facts
    store_facts(store, "t", [file])
    assert "the facts of files are not stored" in "".join(capsys.readouterr())
    monkeypatch.setattr(written_facts, "MOST_TRAVELLING", 10)
    [file] = written(store, FileDescriber(store, "t"))
    assert not file.facts
    assert "the facts of a file are not stored" in "".join(capsys.readouterr())
    assert len(pq.read_table(pa.BufferReader(store.get(file.path)))) == COUNT


def test_facts_that_are_too_large_to_travel_are_stored_by_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(written_facts, "MOST_TRAVELLING", 10)
    store = MemoryStore()
    [file] = written(store, FileDescriber(store, "t"))
    [path] = [path for path in store.paths() if path.startswith(FOLDER)]
    assert unpack(store.get(path), "t").paths.to_pylist() == [file.path]


def test_a_footer_that_cannot_be_described_fails_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert FileDescriber(MemoryStore(), "t")("f.parquet", 100, b"no footer") == b""
    assert "the facts of a file are not stored" in "".join(capsys.readouterr())


def test_small_files_are_not_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_facts, "WORTH", WORTH)
    store = MemoryStore()
    [file] = written(store, FileDescriber(store, "t"))
    assert not file.facts


def test_readers_look_for_facts_of_the_files_that_writers_describe() -> None:
    assert WORTH == WORTH_STORED
