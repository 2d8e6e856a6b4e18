"""Files of other writers in a table with row tracking: every type at its extremes, odd names, all
encodings of a file, and ids in any order, place and encoding. What a row says, its id and its
version stay what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS, Lake
from support.lake.tracking import NAMES, track
from support.values.kinds import KINDS
from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION
from tandem.delta.log.codec import encode_action
from tandem.delta.scan import scan
from tandem.spec.resources import Operation

ROWS, FILES = 40, 3
IDS, VERSIONS = NAMES.values()
ODD_NAMES = ("a.b", "a`b", "ä ö", "row_id", "base_row_id", 'x"y', " ")
Write = Callable[[pa.Table, Path, int], None]
Operations = Mapping[str, Callable[[Lake], Operation]]
OPERATIONS: Operations = {
    "copy": lambda lake: lake.compaction("Major", minRowGroupRows=0),
    "pack": lambda lake: lake.compaction("Major"),
    "sort": lambda lake: lake.compaction(
        "Major", layout={"strategy": "Sort", "columns": ["text", "id"]}
    ),
    "z-order": lambda lake: lake.compaction(
        "Major", layout={"strategy": "ZOrder", "columns": ["f64", "id"]}
    ),
    "delete": lambda lake: lake.delete("id % 5 = 0"),
    "update": lambda lake: lake.update("id % 5 = 0", i32="5"),
}


def rows(number: int) -> pa.Table:
    """Of one file; NULLs among the extremes."""
    columns = {"id": pa.array(range(number * ROWS, number * ROWS + ROWS), pa.int64())}
    for at, kind in enumerate(KINDS):
        values = [kind.ordinary, None, *kind.extremes]
        columns[kind.name] = kind.array([values[(i + at) % len(values)] for i in range(ROWS)])
    lists = [None if i % 7 == 0 else [{"a": i}] * (i % 3) for i in range(ROWS)]
    columns["list"] = pa.array(lists, pa.list_(pa.struct([("a", pa.int32())])))
    for name in ODD_NAMES:
        columns[name] = pa.array([None if i % 3 == 0 else i for i in range(ROWS)], pa.int32())
    return pa.table(columns)


def written(**options: Any) -> Write:
    return lambda table, path, _: pq.write_table(table, path, **options)


def empty_groups(table: pa.Table, path: Path, _: int) -> None:
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, count in ((0, 0), (0, 20), (0, 0), (20, ROWS)):
            writer.write_table(table.slice(start, count))


def with_ids(ids: Iterable[int | None], versions: Iterable[int | None], *, first: bool = False,
             dictionary: bool = False) -> Write:  # fmt: skip
    """With these columns, at the end or with the ids at the beginning; ids differ by file."""

    def write(table: pa.Table, path: Path, number: int) -> None:
        moved = [None if n is None else n - 10_000 * number for n in ids]
        columns = [pa.array(moved, pa.int64()), pa.array(list(versions), pa.int64())]
        if dictionary:
            columns = [each.dictionary_encode() for each in columns]
        both = dict(zip((IDS, VERSIONS), columns, strict=True))
        begun = {IDS: both[IDS], **dict(zip(table.column_names, table.columns, strict=True))}
        wide = pa.table(begun) if first else table
        for name in both.keys() - begun.keys() if first else both:
            wide = wide.append_column(name, both[name])
        pq.write_table(wide, path, row_group_size=17)

    return write


LAST = 2**63 - 1
EVERY = [10**6 + i for i in range(ROWS)]
HALF = [None if i % 2 else n for i, n in enumerate(EVERY)]
NONE = [None] * ROWS
ONES = [1] * ROWS
WRITERS: Mapping[str, Write] = {
    "INT96": written(use_deprecated_int96_timestamps=True),
    "a row group a row": written(row_group_size=1),
    "pages of version 2": written(data_page_version="2.0"),
    "page indexes": written(write_page_index=True, row_group_size=20, data_page_size=64),
    "no dictionary": written(use_dictionary=False, compression="NONE"),
    "no statistics": written(write_statistics=False),
    "empty row groups": empty_groups,
    "half of the ids": with_ids(HALF, [None if i % 3 else 1 for i in range(ROWS)]),
    "ids as a dictionary": with_ids(EVERY, ONES, dictionary=True),
    "ids first": with_ids(HALF, ONES, first=True),
    "the last ids of all": with_ids([None if i % 2 else LAST - i for i in range(ROWS)], NONE),
    "versions only": with_ids(NONE, ONES),
}


def make(folder: Path, write: Write, *, vectors: bool) -> QuickLake:
    properties = DELETION_VECTORS if vectors else {}
    lake = quick_lake.make(folder, 0, schema=rows(0).schema, properties=properties)
    for number in range(FILES):
        lake.append(rows(number))
    track(lake)
    again = []
    for number, add in enumerate(sorted(lake.log.snapshot().adds(), key=lambda a: a.logged_path)):
        write(lake.file(add.path), lake.path / add.path, number)
        changed = {**encode_action(add)["add"], "size": (lake.path / add.path).stat().st_size}
        again.append({"add": changed})
    lake.log_raw(*again)
    return lake


def contents(table: pa.Table) -> dict[int, str]:
    """Each row as a text, in which NaN equals NaN, by its `id`."""
    for at, field in enumerate(table.schema):
        kind = pa.date32() if pa.types.is_date32(field.type) else field.type
        if pa.types.is_temporal(kind):  # beyond Python's calendar
            whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
            table = table.set_column(at, field.name, table.column(at).cast(whole))
    return {row["id"]: repr(sorted(row.items())) for row in table.to_pylist()}


def live(lake: QuickLake) -> dict[int, str]:
    return contents(scan(lake.log.snapshot(), lake.store).read_all())


def ids(lake: QuickLake) -> dict[int, set[tuple[int, int]]]:
    """Every id and version that a file has for a row, by its `id`: deleted rows count, too."""
    found: dict[int, set[tuple[int, int]]] = {}
    for add in lake.log.snapshot().adds():
        table = lake.file(add.path)
        own, versions = (
            table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
            for name in (IDS, VERSIONS)
        )
        base, version = (int(str(add.extra[each])) for each in (BASE_ROW_ID, ROW_COMMIT_VERSION))
        for at, key in enumerate(table["id"].to_pylist()):
            row_id: Any = base + at if own[at] is None else own[at]
            own_version: Any = version if versions[at] is None else versions[at]
            found.setdefault(key, set()).add((row_id, own_version))
    return found


WITHOUT_VECTORS = ("INT96", "empty row groups", "half of the ids", "ids first")


@pytest.mark.part(4)
@pytest.mark.parametrize(
    ("writer", "vectors"),
    [*((each, True) for each in WRITERS), *((each, False) for each in WITHOUT_VECTORS)],
)
def test_rows_and_ids_of_foreign_files_are_kept(
    tmp_path: Path, writer: str, *, vectors: bool
) -> None:
    for name, operation in OPERATIONS.items():
        lake = make(tmp_path / name, WRITERS[writer], vectors=vectors)
        before, ids_before = live(lake), ids(lake)
        lake.do(operation(lake))
        after, ids_after = live(lake), ids(lake)
        hit = {key for key in before if key % 5 == 0 and name in ("delete", "update")}
        kept = before.keys() - hit
        assert after.keys() == (kept if name == "delete" else before.keys()), name
        assert {key: after[key] for key in kept} == {key: before[key] for key in kept}, name
        assert {key: ids_after[key] for key in kept} == {key: ids_before[key] for key in kept}
        if name == "update":
            updated = {key: {n for n, _ in ids_after[key]} for key in hit}
            assert updated == {key: {n for n, _ in ids_before[key]} for key in hit}
            assert all((max(v for _, v in ids_after[key])) == lake.version for key in hit)


@pytest.mark.parametrize("writer", ["page indexes", "half of the ids", "ids first"])
@pytest.mark.parametrize("operation", ["copy", "sort", "update"])
def test_other_readers_see_no_ids(tmp_path: Path, operation: str, writer: str) -> None:
    """With their defaults, and the same number of rows and columns as we."""
    lake = make(tmp_path, WRITERS[writer], vectors=False)
    lake.do(OPERATIONS[operation](lake))
    columns = rows(0).column_names
    by_deltalake = pa.table(DeltaTable(str(lake.path)).to_pyarrow_table())
    by_polars = pl.read_delta(str(lake.path)).to_arrow()
    for found in (by_deltalake, by_polars):
        assert found.column_names == columns
        assert sorted(found["id"].to_pylist()) == list(range(ROWS * FILES))
    assert contents(by_deltalake) == live(lake)
