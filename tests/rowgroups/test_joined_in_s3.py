"""Compactions whose row groups the object store copies: the bytes of a stream, few of them
moved."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

from rowgroups.joining import joined
from support.jobs.quick_lake import QuickLake
from support.lake.distant import Distance, at_a_distance
from support.lake.lake import DELETION_VECTORS
from support.lake.s3 import S3Server
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.scan import scan
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import StorageError
from tandem.spark.jobs import bins, copied_bins
from tandem.spec.status import Phase
from tandem.storage import open_store, s3
from tandem.storage.s3 import client_of

ROWS = 70_000
SCHEMA = pa.schema([("id", pa.int64()), ("data", pa.binary())])
TABLE = TableFormat(
    StructType(
        (
            Field("id", PrimitiveType("long"), nullable=True),
            Field("data", PrimitiveType("binary"), nullable=True),
        )
    )
)


@pytest.fixture(autouse=True)
def _no_store_has_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_refused", set())


@pytest.fixture
def distance(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distance]:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    with at_a_distance(s3_server) as found:
        yield found


def rows(number: int, count: int = ROWS) -> pa.Table:
    """Some 7 MB that no codec makes smaller."""
    chance = random.Random(number)
    ids = range(number * count, (number + 1) * count)
    return pa.table({"id": ids, "data": [chance.randbytes(100) for _ in ids]}, schema=SCHEMA)


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}], ids=["plain", "indexes"])
def test_the_file_is_that_of_a_stream_byte_by_byte(
    distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    store = distance.server.open()
    paths = [tmp_path / f"{n}.parquet" for n in range(3)]
    for number, path in enumerate(paths):
        # The last one has a second row group, too small to be copied by itself.
        count = ROWS if number < 2 else ROWS + ROWS // 4
        pq.write_table(
            rows(number, count), path, compression="zstd", row_group_size=ROWS, **options
        )
        store.put(path.name, path.read_bytes())
    distance.requests.clear()
    made = joined(tmp_path, paths, store, TABLE)
    assert copies(distance) == 3
    assert distance.moved < 0.02 * made.size
    monkeypatch.setattr(s3.Bucket, "copies", False)
    distance.requests.clear()
    wanted = joined(tmp_path, paths, store, TABLE)
    assert copies(distance) == 0
    assert distance.moved > 1.9 * wanted.size
    assert store.get(made.path) == store.get(wanted.path)
    assert (made.size, made.rows, made.stats) == (wanted.size, wanted.rows, wanted.stats)


def copies(distance: Distance) -> int:
    return sum(each.kind == "COPY" for each in distance.requests)


def make(distance: Distance, counts: Sequence[int] = (ROWS,) * 4) -> QuickLake:
    """A table whose files have so many rows."""
    server = distance.server
    location = server.fresh_location()
    options = server.storage_options
    DeltaTable.create(
        location, SCHEMA, configuration=dict(DELETION_VECTORS), storage_options=options
    )
    for number, count in enumerate(counts):
        write_deltalake(
            location,
            rows(number, count),
            mode="append",
            storage_options=options,
            writer_properties=WriterProperties(compression="ZSTD"),
        )
    return QuickLake(
        location,
        None,  # type: ignore[arg-type]
        Path(),
        open_store(location, server.options),
        options=server.options,
        foreign_options=options,
    )


def compacted(lake: QuickLake, distance: Distance) -> tuple[str, ...]:
    """What the result of a compaction says; the requests are those of it alone."""
    distance.requests.clear()
    status = lake.do(lake.compaction("Major"))
    assert status.result is not None
    return status.result.summary or ()


def size_of(lake: QuickLake) -> int:
    return sum(add.size for add in lake.log.snapshot().adds())


def content(lake: QuickLake) -> pa.Table:
    """The live rows, by our reader."""
    found = scan(lake.log.snapshot(), lake.store)
    return found.read_all().cast(SCHEMA).sort_by("id").combine_chunks()


def test_a_compaction_moves_two_percent_of_the_bytes(distance: Distance) -> None:
    lake = make(distance)
    size = size_of(lake)
    summary = compacted(lake, distance)
    assert distance.moved < 0.02 * size
    assert f"{size / (1 << 20):.0f} MiB of row groups copied inside of the store" in summary
    assert len(list(lake.log.snapshot().adds())) == 1
    assert content(lake) == pa.concat_tables([rows(n) for n in range(4)]).combine_chunks()


def test_deleted_rows_and_small_files_are_as_in_a_stream(
    distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are deleted stay so, in the order of the rows; files between are encoded."""
    found = []
    for is_copied in (True, False):
        if not is_copied:
            monkeypatch.setattr(s3.Bucket, "copies", False)
        lake = make(distance, (1_000, ROWS, ROWS, 2_000, 3_000, ROWS))
        lake.do(lake.delete("id IN (3, 70001, 70002)"))
        summary = compacted(lake, distance)
        assert (copies(distance) > 0) is is_copied
        assert any("inside of the store" in each for each in summary) is is_copied
        [add] = lake.log.snapshot().adds()
        found.append((content(lake), lake.store.get(add.path)))
    (table, data), (wanted, stream) = found
    assert table == wanted
    assert table.num_rows == 3 * ROWS + 6_000 - 3
    assert data == stream


def test_a_store_that_refuses_has_the_same_rows(distance: Distance) -> None:
    lake = make(distance)
    distance.instead = lambda kind, _: (501, b"") if kind == "COPY" else None
    summary = compacted(lake, distance)
    assert not any("inside of the store" in each for each in summary)
    assert content(lake) == pa.concat_tables([rows(n) for n in range(4)]).combine_chunks()


def test_a_file_that_is_replaced_after_its_footer_was_read_is_refused(
    distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(distance)
    [*_, last] = sorted(add.path for add in lake.log.snapshot().adds())
    choose = copied_bins.choose

    def replaced(*args: Any) -> copied_bins.CopyChoice | None:
        chosen = choose(*args)
        lake.store.put(last, lake.store.get(last)[:-1] + b"2")
        return chosen

    monkeypatch.setattr(bins, "choose", replaced)
    status = lake.run(lake.compaction("Major"))
    assert status.phase is Phase.FAILED
    assert "the file was replaced after its footer was read" in str(status.conditions)


def test_a_file_that_vanishes_while_it_is_copied_is_the_missing_one(distance: Distance) -> None:
    """It is not the one that is appended when the store says so."""
    lake = make(distance)
    first, *_ = sorted(add.path for add in lake.log.snapshot().adds())

    def instead(kind: str, headers: Mapping[str, str]) -> None:
        if kind == "COPY" and unquote(headers["x-amz-copy-source"]).endswith(first):
            distance.instead = None
            lake.store.delete([first])

    distance.instead = instead
    status = lake.run(lake.compaction("Major"))
    assert status.phase is Phase.FAILED
    found = str(status.conditions)
    assert "DataFileMissing" in found
    assert f"{first}: a data file listed in the log does not exist" in found


def test_a_store_that_copies_more_than_a_range_is_noticed(
    distance: Distance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer would be found, and the first page, but others would be elsewhere."""

    class Whole:
        """Copies whole objects."""

        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def upload_part_copy(self, **arguments: Any) -> Any:
            del arguments["CopySourceRange"]
            return self._client.upload_part_copy(**arguments)

    monkeypatch.setattr(s3, "client_of", lambda *args: Whole(client_of(*args)))
    monkeypatch.setattr(s3, "MOST", s3.LEAST)
    path = tmp_path / "0.parquet"
    pq.write_table(rows(0, 2 * ROWS), path, compression="zstd", row_group_size=2 * ROWS)
    store = distance.server.open()
    store.put(path.name, path.read_bytes())
    with pytest.raises(StorageError, match="not what was written"):
        joined(tmp_path, [path], store, TABLE)
