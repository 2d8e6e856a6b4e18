"""Row groups of files of every writer, copied into one file: each reader finds the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowgroups.joining import joined
from rowgroups.writers import ROWS, SCHEMA, TABLE, WRITERS, demands, footer_of, pyarrow, rows
from support.parquet import go_parquet
from tandem.delta.datafiles import copyable
from tandem.delta.datafiles.copyable import key_of, unfit
from tandem.delta.datafiles.joined_files import JoinedFile
from tandem.delta.datafiles.reader import DataFileReader
from tandem.errors import StorageError
from tandem.storage import Store, open_store


@pytest.fixture(autouse=True)
def _small_row_groups_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copyable, "GROUP_ROWS", 1)


def by_pyarrow(path: Path) -> pa.Table:
    return pq.read_table(path, page_checksum_verification=True)


def by_duckdb(path: Path) -> pa.Table:
    with duckdb.connect() as session:
        session.sql("SET timezone = 'UTC'")
        return session.sql(f"SELECT * FROM '{path}'").to_arrow_table()


def by_polars(path: Path) -> pa.Table:
    return pl.read_parquet(path).to_arrow()


def by_tandem(path: Path) -> pa.Table:
    store = open_store(f"file://{path.parent}")
    with DataFileReader(store, path.name, TABLE) as reader:
        return pa.Table.from_batches(reader.batches())


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pyarrow": by_pyarrow,
    "duckdb": by_duckdb,
    "polars": by_polars,
    "arrow go": go_parquet.read,
    "tandem": by_tandem,
}


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows that can be compared: NaN is equal to itself, and zeros have a sign."""
    found = table.cast(SCHEMA).to_pylist()
    return [{**row, "f": repr(row["f"])} for row in found]


@pytest.fixture(params=WRITERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        WRITERS[request.param](path, rows(number))
    return paths


@pytest.mark.part(3)
def test_every_reader_finds_the_rows_of_every_writer(files: list[Path], tmp_path: Path) -> None:
    for path in files:
        assert unfit(footer_of(path), demands()) is None
    assert len({key_of(footer_of(path)) for path in files}) == 1
    found = joined(tmp_path, files)
    assert found.rows == 3 * ROWS
    assert found.size == (tmp_path / found.path).stat().st_size
    expected = plain(pa.concat_tables(rows(number) for number in range(3)))
    for name, read in READERS.items():
        assert plain(read(tmp_path / found.path)) == expected, name


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4"])
def test_row_groups_of_every_codec_are_copied(codec: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for number, path in enumerate(paths):
        pyarrow(compression=codec)(path, rows(number))
    found = joined(tmp_path, paths)
    expected = plain(pa.concat_tables(rows(number) for number in range(2)))
    for name, read in READERS.items():
        assert plain(read(tmp_path / found.path)) == expected, name


def test_a_file_of_copied_row_groups_can_be_copied_again(files: list[Path], tmp_path: Path) -> None:
    first = joined(tmp_path, files[:2])
    assert unfit(footer_of(tmp_path / first.path), demands()) is None
    second = joined(tmp_path, [tmp_path / first.path, files[2]])
    assert plain(by_pyarrow(tmp_path / second.path)) == plain(
        pa.concat_tables(rows(number) for number in range(3))
    )


def test_statistics_are_those_that_our_writer_gives_the_same_rows(
    files: list[Path], tmp_path: Path
) -> None:
    found = joined(tmp_path, files)
    ours = tmp_path / "encoded.parquet"
    WRITERS["tandem"](ours, pa.concat_tables(rows(number) for number in range(3)))
    again = joined(tmp_path, [ours])
    assert found.stats == again.stats


@pytest.mark.part(3)
def test_pushed_filters_find_rows_of_moved_row_groups(files: list[Path], tmp_path: Path) -> None:
    """Statistics, page indexes, bloom filters and dictionaries are where the footer says."""
    path = tmp_path / joined(tmp_path, files).path
    wanted = [0, ROWS - 1, ROWS, 2 * ROWS + 1, 3 * ROWS - 1]
    for id_ in wanted:
        assert pq.read_table(path, filters=[("id", "==", id_)])["id"].to_pylist() == [id_]
        with duckdb.connect() as session:
            query = f"SELECT id FROM '{path}' WHERE id = {id_}"
            assert session.sql(query).fetchall() == [(id_,)]
        lazy = pl.scan_parquet(path).filter(pl.col("id") == id_).select("id").collect()
        assert lazy["id"].to_list() == [id_]


@pytest.mark.part(3)
def test_indexes_and_filters_that_are_moved_say_what_pages_hold(
    files: list[Path], tmp_path: Path
) -> None:
    """By parquet-go, page by page. Floats lose theirs, which may hide NaN and a zero."""
    filters = 0
    for path in files:
        metadata = pq.read_metadata(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            chunks = [group.column(n) for n, name in enumerate(SCHEMA.names) if name != "f"]
            filters += sum(chunk.bloom_filter_offset is not None for chunk in chunks)
    pages = sum(go_parquet.check(path)[0] for path in files)
    assert go_parquet.check(tmp_path / joined(tmp_path, files).path) == (pages, filters)


def test_row_groups_are_copied_between_objects_as_between_files(
    tmp_path: Path, s3_store: Store
) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for number, path in enumerate(paths):
        WRITERS["pyarrow page indexes"](path, rows(number))
        s3_store.put(path.name, path.read_bytes())
    found = joined(tmp_path, paths, s3_store)
    local = joined(tmp_path, paths)
    assert found.stats == local.stats
    assert s3_store.get(found.path) == (tmp_path / local.path).read_bytes()


def test_nan_is_in_no_bound(tmp_path: Path) -> None:
    """Of a writer that hides NaN in its statistics."""
    path = tmp_path / "nan.parquet"
    pyarrow()(path, rows(0))
    found = joined(tmp_path, [path])
    assert '"f"' not in found.stats.partition("nullCount")[0]
    metadata = pq.read_metadata(tmp_path / found.path)
    column = metadata.row_group(0).column(SCHEMA.names.index("f"))
    assert not column.statistics.has_min_max


def test_what_files_disagree_on_is_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for number, path in enumerate(paths):
        table = rows(number).replace_schema_metadata(
            {"same": "yes", "differs": str(number), "pandas": "{}"}
        )
        pyarrow()(path, table)
    metadata = pq.read_metadata(tmp_path / joined(tmp_path, paths).path)
    assert metadata.metadata == {b"same": b"yes"}
    assert metadata.created_by == pq.read_metadata(paths[0]).created_by


def test_row_groups_of_two_writers_are_of_no_one_writer(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    WRITERS["delta-rs"](paths[0], rows(1))
    WRITERS["tandem"](paths[1], rows(2))
    found = joined(tmp_path, paths)
    metadata = pq.read_metadata(tmp_path / found.path)
    assert metadata.created_by.startswith("tandem version ")
    assert plain(by_duckdb(tmp_path / found.path)) == plain(pa.concat_tables([rows(1), rows(2)]))


def test_a_file_that_changes_while_it_is_copied_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow()(path, rows(1))
    footer = footer_of(path)
    store = open_store(f"file://{tmp_path}")
    content = path.read_bytes()
    path.write_bytes(b"\xff" * len(content))
    file = JoinedFile(store, "", TABLE, footer)
    with store.open_input(path.name) as source:
        for group in footer.groups:
            file.copy(source, footer, group, {})
    with pytest.raises(StorageError, match="is not what was written"):
        file.close(None)
