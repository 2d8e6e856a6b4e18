"""A flipped bit in a page with a checksum: every operation refuses it, with file, column and page,
whether it is in a file of the table or of a source, and commits nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import convert_to_deltalake

from support.lake import rows as model
from support.lake.lake import DELETION_VECTORS, Lake, Lakes
from support.lake.rows import rows
from support.parquet.pages import Page, flip, page_of
from tandem.delta.scan import scan
from tandem.errors import StorageError
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

LAYOUT = {"strategy": "Sort", "columns": ["k", "id"]}
OF_TABLE: dict[str, Callable[[Lake], Operation]] = {
    "compaction that copies": lambda lake: lake.compaction("Major", minRowGroupRows=0),
    "compaction that encodes": lambda lake: lake.compaction("Major"),
    "compaction that sorts": lambda lake: lake.compaction("Major", layout=LAYOUT),
    "update": lambda lake: lake.update("k = 1", v="v + 15"),
    "update that Spark evaluates": lambda lake: lake.update("power(k, 2) > 0", v="v + 15"),
    "delete": lambda lake: lake.delete("k = 1"),
    "merge": lambda lake: lake.merge(rows(range(90, 110)), on="t.k = s.k and t.id = s.id"),
}
OF_SOURCE: dict[str, Callable[[Lake, dict[str, Any]], Operation]] = {
    "ingest": lambda lake, source: lake.resource("TableIngest", {"source": source}),
    "merge": lambda lake, source: lake.resource(
        "TableUpdate",
        {
            "merge": {
                "source": source,
                "on": "t.id = s.id",
                "whenMatched": [{"updateAll": {}}],
                "whenNotMatched": [{"insertAll": {}}],
            }
        },
    ),
    "replace": lambda lake, source: lake.resource(
        "TableReplace", {"replace": {"segments": [lake.names[0]]}, "source": source}
    ),
}


def delta_table(folder: Path, *, checksums: bool = True) -> list[Path]:
    """Two files of a hundred rows, which have a checksum in each page."""
    folder.mkdir()
    files = [folder / f"part-{number}.parquet" for number in range(2)]
    for number, file in enumerate(files):
        table = model.table(rows(range(number * 100, number * 100 + 100)))
        pq.write_table(table, file, compression="zstd", write_page_checksum=checksums)
    convert_to_deltalake(str(folder), configuration=DELETION_VECTORS)
    return files


@pytest.fixture
def made(lakes: Lakes, tmp_path: Path) -> Lake:
    delta_table(tmp_path / "with checksums")
    return lakes._lake(tmp_path / "with checksums")


def assert_refused(status: OperationStatus, file: Path, page: Page, reason: str) -> None:
    assert status.phase is Phase.FAILED
    [found] = [c for c in status.conditions if c.type.value == "Succeeded"]
    assert found.reason == reason
    for words in (
        file.name,
        page.column,
        "does not match its checksum",
        f"of its row group, {page.size} bytes from byte {page.start}: CRC-32",
    ):
        assert words in found.message


@pytest.mark.whole
@pytest.mark.parametrize("name", OF_TABLE)
def test_a_damaged_page_of_a_data_file_ends_every_operation(made: Lake, name: str) -> None:
    file = made.path / "part-1.parquet"
    page = page_of(file, "k")
    flip(file, page)
    version = made.version
    status = made.run(OF_TABLE[name](made))
    assert_refused(status, file, page, "StorageError")
    assert not any(made.commit(each).adds for each in range(version + 1, made.version + 1))
    made.assert_clean()


@pytest.mark.whole
@pytest.mark.parametrize("format_", ["Parquet", "Delta"])
@pytest.mark.parametrize("name", OF_SOURCE)
def test_a_damaged_page_of_a_source_ends_what_reads_it_at_its_first_attempt(
    made: Lake, tmp_path: Path, name: str, format_: str
) -> None:
    folder = tmp_path / "source"
    file = delta_table(folder)[1]
    page = page_of(file, "k", dictionary=True)
    flip(file, page)
    location = folder if format_ == "Delta" else file
    version = made.version
    status = made.run(OF_SOURCE[name](made, {"format": format_, "location": location.as_uri()}))
    assert_refused(status, file, page, "SourceUnreadable")
    assert not any(made.commit(each).adds for each in range(version + 1, made.version + 1))
    made.assert_clean()


def test_a_damaged_page_ends_a_scan(made: Lake) -> None:
    file = made.path / "part-1.parquet"
    flip(file, page_of(file, "k"))
    with pytest.raises(StorageError) as refused:
        scan(made.log.snapshot(), made.store).read_all()
    assert (refused.value.resource, refused.value.field) == (file.name, "k")


@pytest.mark.part(3)
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("name", OF_TABLE)
def test_what_is_whole_is_done(lakes: Lakes, tmp_path: Path, name: str, checksums: bool) -> None:
    folder = tmp_path / "whole"
    delta_table(folder, checksums=checksums)
    lake = lakes._lake(folder)
    lake.do(OF_TABLE[name](lake))
