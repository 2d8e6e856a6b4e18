"""A flipped bit in a page that has a checksum is an error that names the column and the page,
whether the page is decoded or copied; pages without a checksum are as readable as ever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rowgroups.joining import joined
from rowgroups.writers import TABLE, by_parquet_go, rows
from support.lake.memory_store import MemoryStore
from support.parquet.pages import Page, flip, page_of, pages
from tandem.delta.datafiles.joined_files import JoinedFile
from tandem.delta.datafiles.pages import CRC, ColumnPages, PageDamaged, has_checksum, require_pages
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.schema import Field, PrimitiveType, StructType, parse
from tandem.errors import StorageError
from tandem.storage import open_store
from tandem.storage.store import read_at

CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


def read(path: Path, table: TableFormat = TABLE) -> pa.Table:
    store = open_store(path.parent.as_uri())
    with DataFileReader(store, path.name, table) as reader:
        return pa.Table.from_batches(list(reader.batches()))


def assert_refused(path: Path, page: Page, *, table: TableFormat = TABLE, column: str = "") -> None:
    """By who decodes the page, and by who copies it."""
    with pytest.raises(StorageError) as decoded:
        read(path, table)
    error = decoded.value
    assert error.message == "a page of a data file does not match its checksum"
    assert (error.resource, error.field) == (path.name, column or page.column)
    assert f"{page.size} bytes from byte {page.start}: CRC-32 " in error.found
    assert error.found.startswith("the dictionary" if page.is_dictionary else "data page ")
    assert error.expected == f"{page.header[CRC] & 0xFFFFFFFF:08x}, as its header says"
    with pytest.raises(PageDamaged) as copied:
        joined(path.parent, [path], table=table)
    assert copied.value.column == page.column
    assert error.found.startswith(copied.value.page)
    assert list(path.parent.glob("part-*.parquet")) == []


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_bit_is_found_in_every_kind_of_page(
    tmp_path: Path, codec: str, version: str
) -> None:
    path = tmp_path / "a.parquet"
    table = rows(1)
    pq.write_table(
        table,
        path,
        compression=codec,
        data_page_version=version,
        data_page_size=500,
        row_group_size=700,
        write_page_checksum=True,
    )
    assert read(path).equals(table)
    whole = path.read_bytes()
    for column, dictionary in (("id", False), ("s", False), ("s", True), ("b", False)):
        path.write_bytes(whole)
        page = page_of(path, column, dictionary=dictionary)
        assert page.has_checksum
        flip(path, page)
        assert_refused(path, page)


def test_pages_without_checksums_are_read_and_copied_as_before(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(rows(1), path, row_group_size=700)
    assert not any(page.has_checksum for page in pages(path))
    copy = joined(tmp_path, [path])
    assert read(tmp_path / copy.path).equals(rows(1))


@pytest.mark.parametrize("version", [1, 2])
def test_checksums_of_parquet_go_are_understood(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.parquet"
    by_parquet_go(page_version=1 if version == 1 else 2)(path, rows(1))
    copy = joined(tmp_path, [path])
    assert read(path).equals(read(tmp_path / copy.path))
    (tmp_path / copy.path).unlink()
    page = page_of(path, "s")
    assert page.has_checksum
    flip(path, page)
    assert_refused(path, page)


@pytest.mark.parametrize("version", ["PARQUET_1_0", "PARQUET_2_0"])
def test_checksums_of_parquet_java_are_understood(
    tmp_path: Path, spark: SparkSession, version: str
) -> None:
    """It writes them by default."""
    frame = spark.range(5_000).selectExpr("id", "concat('s', id % 7) AS s").coalesce(1)
    frame.write.option("parquet.writer.version", version).parquet(str(tmp_path / "of spark"))
    [written] = (tmp_path / "of spark").glob("*.parquet")
    path = written.rename(tmp_path / "a.parquet")
    table = TableFormat(
        StructType(
            (
                Field("id", PrimitiveType("long"), nullable=True),
                Field("s", PrimitiveType("string"), nullable=True),
            )
        )
    )
    assert read(path, table)["id"].to_pylist() == list(range(5_000))
    copy = joined(tmp_path, [path], table=table)
    assert read(tmp_path / copy.path, table).equals(read(path, table))
    (tmp_path / copy.path).unlink()
    for page in (page_of(path, "id"), page_of(path, "s", dictionary=True)):
        assert page.has_checksum
        whole = path.read_bytes()
        flip(path, page)
        assert_refused(path, page, table=table)
        path.write_bytes(whole)


@pytest.mark.parametrize(("value", "checksum"), [(0x6DD90A9D, 0), (7, 0xBC93E7A5 - (1 << 32))])
def test_a_checksum_of_zero_or_below_is_one_like_any_other(
    tmp_path: Path, value: int, checksum: int
) -> None:
    """The field is a signed number. A required column of one number is a page of four bytes."""
    path = tmp_path / "a.parquet"
    table = TableFormat(StructType((Field("n", PrimitiveType("integer"), nullable=False),)))
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False)])
    number = pa.table({"n": pa.array([value], pa.int32())}, schema=schema)
    pq.write_table(number, path, compression="none", use_dictionary=False, write_page_checksum=True)
    [page] = pages(path)
    assert page.header[CRC] == checksum
    assert read(path, table)["n"].to_pylist() == [value]
    copy = joined(tmp_path, [path], table=table)
    (tmp_path / copy.path).unlink()
    flip(path, page)
    assert_refused(path, page, table=table)


def test_a_column_is_named_as_the_table_names_it(tmp_path: Path) -> None:
    """Under column mapping, files have other names."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"col-1": range(99)}), path, write_page_checksum=True)
    column = Field(
        "amount",
        PrimitiveType("long"),
        nullable=True,
        metadata={"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
    )
    table = TableFormat(StructType((column,)), (), {"delta.columnMapping.mode": "name"})
    page = page_of(path, "col-1")
    flip(path, page)
    assert_refused(path, page, table=table, column="amount")


def test_a_page_of_a_nested_column_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    nested = pa.table({"tags": [[{"k": n, "v": str(n)}] for n in range(500)]})
    pq.write_table(nested, path, write_page_checksum=True)
    page = page_of(path, "tags.list.element.v")
    flip(path, page)
    store = open_store(tmp_path.as_uri())
    schema = parse(
        '{"type":"struct","fields":[{"name":"tags","type":{"type":"array","elementType":'
        '{"type":"struct","fields":[{"name":"k","type":"long","nullable":true,"metadata":{}},'
        '{"name":"v","type":"string","nullable":true,"metadata":{}}]},"containsNull":true},'
        '"nullable":true,"metadata":{}}]}'
    )
    with (
        DataFileReader(store, path.name, TableFormat(schema)) as reader,
        pytest.raises(StorageError) as refused,
    ):
        list(reader.batches())
    assert refused.value.field == "tags.list.element.v"


def test_columns_that_are_not_read_are_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(rows(1), path, write_page_checksum=True)
    flip(path, page_of(path, "s"))
    store = open_store(tmp_path.as_uri())
    with DataFileReader(store, path.name, TABLE, columns=["id"]) as reader:
        assert sum(batch.num_rows for batch in reader.batches()) == rows(1).num_rows


def test_a_page_that_a_damaged_header_hides_is_missed(tmp_path: Path) -> None:
    """Headers have no checksum, and Arrow skips pages of types that it does not know."""
    path = tmp_path / "a.parquet"
    table = TableFormat(StructType((Field("n", PrimitiveType("long"), nullable=True),)))
    pq.write_table(
        pa.table({"n": range(10_000)}), path, use_dictionary=False, data_page_size=8_000,
        write_batch_size=500, row_group_size=5_000,
    )  # fmt: skip
    page = page_of(path, "n")
    before = [each for each in pages(path) if each.start < page.start][-1]
    data = bytearray(path.read_bytes())
    header = before.start + before.size
    assert data[header : header + 2] == b"\x15\x00"  # type: a data page
    data[header + 1] = 2  # an index page
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"pages of 9\d\d\d rows, 10000 by the footer"):
        read(path, table)


# How they are read ---------------------------------------------------------------------------


class Requests(MemoryStore):
    """Notes the ranges that are read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.put("a", path.read_bytes())
        self.source = self.open_input("a")
        fetch = self.source._fetch  # type: ignore[attr-defined]
        self.ranges: list[tuple[int, int]] = []

        def noted(start: int, size: int) -> bytes:
            self.ranges.append((start, size))
            found: bytes = fetch(start, size)
            return found

        self.source._fetch = noted  # type: ignore[attr-defined]


def columns_of(path: Path) -> list[ColumnPages]:
    group = pq.read_metadata(path).row_group(0)
    chunks = map(group.column, range(group.num_columns))
    places = [(c.path_in_schema, c.data_page_offset, c.total_compressed_size) for c in chunks]
    return [ColumnPages(name, start, start + size) for name, start, size in places]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    path = tmp_path / "wide.parquet"
    table = pa.table({name: pa.array(range(60_000)) for name in "abc"})
    pq.write_table(
        table, path, compression="none", use_dictionary=False, data_page_size=20_000,
        write_page_checksum=True,
    )  # fmt: skip
    return path


def test_of_columns_without_checksums_only_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({name: pa.array(range(60_000)) for name in "abc"})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    found = Requests(path)
    require_pages(found.source, columns_of(path))
    assert found.ranges == [(each.start, 64) for each in columns_of(path)]
    found.ranges.clear()
    require_pages(found.source, columns_of(path), one_writer=True)
    assert found.ranges == [(columns_of(path)[0].start, 64)]


def test_a_small_row_group_is_one_request(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({name: pa.array(range(1_000)) for name in "abc"})
    pq.write_table(table, path, use_dictionary=False, write_page_checksum=True)
    found = Requests(path)
    require_pages(found.source, columns_of(path))
    [(start, size)] = found.ranges
    assert (start, start + size) == (columns_of(path)[0].start, columns_of(path)[-1].end)


def test_a_large_row_group_is_read_in_pieces(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.delta.datafiles.pages._FAR", 100_000)
    found = Requests(wide)
    columns = columns_of(wide)
    require_pages(found.source, columns)
    pieces = found.ranges[len(columns) :]
    assert all(size <= 100_000 for _, size in pieces)
    assert sum(size for _, size in pieces) >= sum(each.end - each.start for each in columns)


@pytest.mark.parametrize("ahead", [1, 70, 4_096, 30_000, 1 << 20])
@pytest.mark.parametrize("distant", [False, True])
def test_every_page_is_verified_however_pieces_cut_it(
    wide: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, distant: bool
) -> None:
    monkeypatch.setattr("tandem.delta.datafiles.pages._NEAR", ahead)
    monkeypatch.setattr("tandem.delta.datafiles.pages._FAR", ahead)
    whole = wide.read_bytes()
    found = pages(wide)
    for page in (found[0], found[len(found) // 2], found[-1]):
        wide.write_bytes(whole)
        flip(wide, page)
        store = open_store(wide.parent.as_uri())
        source = Requests(wide).source if distant else store.open_input(wide.name)
        with pytest.raises(PageDamaged) as refused:
            require_pages(source, columns_of(wide), one_writer=page is found[-1])
        assert f"{page.size} bytes from byte {page.start}" in refused.value.page


def test_a_range_is_read_wherever_the_position_is(wide: Path) -> None:
    whole = wide.read_bytes()
    store = open_store(wide.parent.as_uri())
    for source in (store.open_input(wide.name), Requests(wide).source):
        source.seek(5)
        assert read_at(source, 100, 10) == whole[100:110]
        assert read_at(source, len(whole) - 3, 10) == whole[-3:]
        assert source.tell() == 5


@pytest.mark.parametrize("header", [b"", b"\x00", b"\x15", b"\xff" * 64, b"\x15\x80"])
def test_bytes_that_are_no_header_have_no_checksum(header: bytes) -> None:
    """Who decodes them says what they are."""
    assert not has_checksum(header)


def test_nothing_is_written_of_a_row_group_that_is_damaged(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended: list[int] = []
    monkeypatch.setattr(JoinedFile, "_copy_pages", lambda *_: appended.append(1))
    flip(wide, page_of(wide, "b"))
    with pytest.raises(PageDamaged):
        joined(wide.parent, [wide])
    assert appended == []
