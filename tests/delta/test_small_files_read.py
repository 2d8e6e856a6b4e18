"""Small files read one after the other: each in one request, and what one says of its columns is
used for the next. The rows must be those that each file has alone."""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.delta.datafiles.reader import DataFileReader, TableFormat, read_whole
from tandem.delta.schema import parse
from tandem.errors import DataFileMissing, StorageError
from tandem.jobs.formats import InputFile
from tandem.spark.jobs.copied_bins import REQUESTS, live_batches
from tandem.storage import Store, open_store

SCHEMA = parse(
    '{"type": "struct", "fields": ['
    + ", ".join(
        f'{{"name": "{name}", "type": {type_}, "nullable": true, "metadata": {{}}}}'
        for name, type_ in (
            ("id", '"long"'),
            ("s", '"string"'),
            ("m", '"decimal(10,2)"'),
            ("t", '"timestamp"'),
            ("l", '{"type": "array", "elementType": "string", "containsNull": true}'),
            ("p", '"string"'),
        )
    )
    + "]}"
)
TABLE = TableFormat(SCHEMA, ("p",))
ROWS = 40
Found = tuple[int, pa.Table | None] | str


def plain(start: int = 0) -> dict[str, Any]:
    numbers = range(start, start + ROWS)
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    return {
        "id": pa.array(numbers, pa.int64()),
        "s": pa.array([f"a text of its own {n}" * 3 for n in numbers]),
        "m": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
        "t": pa.array(
            [moment + dt.timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")
        ),
        "l": pa.array([[f"x{n}", None] if n % 3 else None for n in numbers], pa.list_(pa.string())),
    }


def repetitive() -> dict[str, Any]:
    return {**plain(100), "s": pa.array([("often", "seldom", None)[n % 3] for n in range(ROWS)])}


KINDS: dict[str, pa.Table] = {
    "plain": pa.table(plain()),
    "dictionary": pa.table(repetitive()),
    "dictionary again": pa.table({**repetitive(), "id": pa.array(range(500, 500 + ROWS))}),
    "without a column": pa.table({k: v for k, v in repetitive().items() if k != "m"}),
    "only one column": pa.table({"id": plain(7)["id"]}),
    "other order": pa.table(dict(reversed(repetitive().items()))),
    "narrower": pa.table({**repetitive(), "id": pa.array(range(ROWS), pa.int32())}),
    "large text": pa.table({**repetitive(), "s": repetitive()["s"].cast(pa.large_string())}),
    "bytes": pa.table({**repetitive(), "s": repetitive()["s"].cast(pa.binary())}),
    "nothing known": pa.table({**plain(), "s": pa.nulls(ROWS)}),
    "other case": pa.table({k.upper(): v for k, v in repetitive().items()}),
    "no rows": pa.table(plain()).slice(0, 0),
    "nanoseconds": pa.table({**plain(), "t": plain()["t"].cast(pa.timestamp("ns", "UTC"))}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for name, table in KINDS.items():
        pq.write_table(table, made / name, row_group_size=ROWS // 2 if "again" in name else None)
    pq.write_table(KINDS["plain"], made / "int96", use_deprecated_int96_timestamps=True)
    pq.write_table(KINDS["dictionary"], made / "older int96", use_deprecated_int96_timestamps=True)
    return made


@pytest.fixture(scope="module")
def store(folder: Path) -> Store:
    return open_store(f"file://{folder}")


def rows_of(reader: DataFileReader) -> Found:
    """The number of rows, and the rows; or the error."""
    try:
        batches = list(reader.batches())
    except StorageError as error:
        return str(error)
    parts = [pa.Table.from_batches([each]) for each in batches]
    plain_parts = [
        part.cast(pa.schema([(f.name, _plain_type(f.type)) for f in part.schema])) for part in parts
    ]
    rows = sum(each.num_rows for each in batches)
    return rows, pa.concat_tables(plain_parts) if parts else None


def _plain_type(type_: Any) -> Any:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def read(
    store: Store, path: str, size: int, before: DataFileReader | None, **more: Any
) -> tuple[Found, DataFileReader | None]:
    values = {"p": path[:1]}
    data = read_whole(store, path, size) if size else None
    try:
        with DataFileReader(
            store,
            path,
            TABLE,
            partition_values=values,
            dictionaries=True,
            data=data,
            like=before,
            **more,
        ) as reader:
            return rows_of(reader), reader
    except StorageError as error:
        return str(error), before


@pytest.mark.parametrize("columns", [None, ("s", "id"), ("p", "m"), ()], ids=str)
def test_files_read_in_any_order_have_the_rows_that_each_has_alone(
    store: Store, folder: Path, columns: tuple[str, ...] | None
) -> None:
    paths = sorted(each.name for each in folder.iterdir())
    alone = {path: read(store, path, 0, None, columns=columns)[0] for path in paths}
    assert sum(not isinstance(each, str) for each in alone.values()) > 8
    chosen = random.Random(7)
    before: DataFileReader | None = None
    for _ in range(300):
        path = chosen.choice(paths)
        right = (folder / path).stat().st_size
        size = chosen.choice((right, right, right, right + 5, right - 5, 1, 0))
        found, before = read(store, path, size, before, columns=columns)
        assert found == alone[path], path


def test_what_is_exact_or_has_positions_is_so_after_other_readers(
    store: Store, folder: Path
) -> None:
    sizes = {each.name: each.stat().st_size for each in folder.iterdir()}
    _, before = read(store, "dictionary", sizes["dictionary"], None)
    path = "dictionary again"
    data = read_whole(store, path, sizes[path])
    with DataFileReader(store, path, TABLE, data=data, like=before) as reader:
        assert reader.num_rows == ROWS
        found = [b.column("__at").to_pylist() for b in reader.batches(positions="__at")]
    assert [at for each in found for at in each] == list(range(ROWS))
    _, nanos = read(store, "nanoseconds", sizes["nanoseconds"], None)
    alone = read(store, "nanoseconds", 0, None, exact=True)[0]
    assert read(store, "nanoseconds", sizes["nanoseconds"], nanos, exact=True)[0] == alone


def test_a_small_file_that_is_gone_or_cut_off_is_named(store: Store, folder: Path) -> None:
    with pytest.raises(DataFileMissing, match="gone"):
        read_whole(store, "gone", 100)
    data = (folder / "plain").read_bytes()
    (folder.parent / "other").mkdir(exist_ok=True)
    (folder.parent / "other" / "cut").write_bytes(data[: len(data) // 2])
    other = open_store(f"file://{folder.parent / 'other'}")
    with pytest.raises(StorageError, match="a data file cannot be read"):
        DataFileReader(other, "cut", TABLE, data=read_whole(other, "cut", len(data) // 2))


class _Distant:
    """A store whose requests are answered only once several have come."""

    location = "s3://bucket/table"

    def __init__(self, folder: Path, at_once: int) -> None:
        self._folder = folder
        self._barrier = threading.Barrier(at_once)
        self.requests: list[str] = []

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.requests.append(path)
        self._barrier.wait(timeout=300)
        return (self._folder / path).read_bytes()[start : start + length]


def test_small_files_of_an_object_store_take_one_request_each_and_several_at_once(
    tmp_path: Path,
) -> None:
    names = [f"{n:02d}.parquet" for n in range(REQUESTS * 3)]
    inputs = []
    for n, name in enumerate(names):
        pq.write_table(pa.table(plain(n * ROWS)), tmp_path / name)
        size = (tmp_path / name).stat().st_size
        inputs.append(InputFile(logged_path=name, size=size, rows=ROWS))
    store = _Distant(tmp_path, REQUESTS)
    batches = list(live_batches(cast(Store, store), inputs, TABLE))
    assert [slot for slot, _ in batches] == list(range(len(names)))
    ids = [id_ for _, batch in batches for id_ in batch.column("id").to_pylist()]
    assert ids == list(range(len(names) * ROWS))
    assert sorted(store.requests) == names


def test_a_small_file_that_is_gone_ends_the_rows_where_it_would_be(tmp_path: Path) -> None:
    pq.write_table(pa.table(plain()), tmp_path / "there")
    size = (tmp_path / "there").stat().st_size
    inputs = [InputFile(logged_path=name, size=size, rows=ROWS) for name in ("there", "gone")]
    batches = live_batches(open_store(f"file://{tmp_path}"), inputs, TABLE)
    assert next(batches)[0] == 0
    with pytest.raises(DataFileMissing, match="gone"):
        next(batches)
