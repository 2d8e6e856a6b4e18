"""N17 and N29: files of other writers, and random tables, that statements without deletion vectors
make again and again. Four engines read the same rows, and the bounds in the log are true.

Which row groups are copied, and how, is tested in `tests/rowgroups`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, convert_to_deltalake
from pyspark.sql import SparkSession

from delta_session import interpreting
from rowgroups.editing import assert_true_bounds
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.held import Held
from support.lake.lake import reconciled
from support.lake.plain import assert_no_vectors_of_ours
from support.some import few
from support.values.readers import live_files
from tandem.delta.datafiles.reader import DataFileReader
from tandem.delta.scan import scan, table_format
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

Row = dict[str, Any]

TIMES = [dt * 86_400_000_000 + dt for dt in range(-3, 40)]


def rows(size: int, first: int = 0) -> list[Row]:
    """Ids from `first` on; some values are NULL, NaN and empty."""
    return [
        {
            "id": n,
            "k": n % 7,
            "v": n * 100 if n % 11 else None,
            "s": f"text {n % 13}" if n % 5 else None,
            "x": float("nan") if n % 17 == 3 else -0.0 if n % 17 == 5 else n / 7,
            "at": TIMES[n % len(TIMES)] if n % 9 else None,
            "nested": {"a": n, "b": [str(n), None]} if n % 6 else None,
            "list": [n, None, n + 1] if n % 8 else [],
        }
        for n in range(first, first + size)
    ]


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("list", pa.list_(pa.int64())),
    ]
)
FLAT = ["id", "k", "v", "s", "x", "at"]


def as_table(of: list[Row], names: list[str] | None = None) -> pa.Table:
    found = pa.Table.from_pylist(of, SCHEMA)
    return found if names is None else found.select(names)


@dataclass(frozen=True)
class Foreign:
    """How a file was written, and which of its columns there are; `size` rows."""

    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    size: int = 2_000


FILES = {
    "plain": Foreign({"row_group_size": 300}),
    "INT96": Foreign({"row_group_size": 300, "use_deprecated_int96_timestamps": True}, tuple(FLAT)),
    "nested": Foreign({"row_group_size": 500}, ("id", "k", "v", "nested", "list")),
    "many row groups": Foreign({"row_group_size": 1}, ("id", "k", "v"), few(3_750, 30_000)),
    "bloom filters": Foreign(
        {"row_group_size": 400, "bloom_filter_options": {"s": True, "id": True}}, tuple(FLAT)
    ),
    "page indexes": Foreign(
        {"row_group_size": 1_000, "write_page_index": True, "data_page_size": 500},
        ("id", "k", "v", "s", "x"),
    ),
    "checksums": Foreign({"row_group_size": 300, "write_page_checksum": True}, tuple(FLAT)),
}


def made(folder: Path, of: Foreign) -> tuple[QuickLake, list[Row]]:
    """Two files below a folder that deltalake takes for a table."""
    (folder / "lake").mkdir(parents=True)
    names = list(of.columns)
    for number in range(2):
        table = as_table(rows(of.size, number * of.size), names)
        pq.write_table(table, folder / "lake" / f"{number}.parquet", **of.options)
    convert_to_deltalake(str(folder / "lake"))
    lake = quick_lake.at((folder / "lake").as_uri(), folder / "sources")
    lake.first_version = lake.version
    found = as_table(rows(2 * of.size), names).to_pylist()
    return lake, found


def comparable(found: pa.Table) -> list[str]:
    """NaN is equal to itself, and zeros have a sign."""
    order = found.sort_by("id").to_pylist()
    return [repr(sorted(row.items())) for row in order]


def by_duckdb(lake: QuickLake) -> pa.Table:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        names = live_files(lake.path)
        return engine.sql("SELECT * FROM read_parquet($1)", params=[names]).to_arrow_table()


READERS: dict[str, Callable[[QuickLake], pa.Table]] = {
    "tandem": lambda lake: pa.table(scan(lake.log.snapshot(), lake.store)),
    "deltalake": lambda lake: pa.table(DeltaTable(lake.location).scan()),
    "duckdb": by_duckdb,
    "polars": lambda lake: pl.read_parquet(live_files(lake.path), glob=False).to_arrow(),
}


def assert_shows(lake: QuickLake, expected: list[Row], *, spark: Any = None) -> None:
    """In every engine, and in the bounds and counts of the log."""
    names = [field.name for field in lake.log.snapshot().schema]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    wanted = comparable(as_table(expected, names))
    for name, read in READERS.items():
        assert comparable(read(lake).select(names).cast(schema)) == wanted, name
    if spark is not None:
        found = interpreting(spark).read.format("delta").load(str(lake.path)).toArrow()
        assert comparable(found.select(names).cast(schema)) == wanted, "Spark"
    snapshot = lake.log.snapshot()
    table = table_format(snapshot)
    for add in snapshot.adds():
        with DataFileReader(lake.store, add.path, table) as reader:
            of_file = [row for batch in reader.batches() for row in batch.to_pylist()]
        if "tandem.rowMap" in add.tags:
            assert_true_bounds(lake.path / add.path, add.stats or "", of_file, table)
    lake.assert_clean()
    assert_no_vectors_of_ours(lake)


def plus_15(of: list[Row], test: Callable[[Row], bool]) -> list[Row]:
    return [
        {**row, "v": None if row["v"] is None else row["v"] + 15} if test(row) else row
        for row in of
    ]


def but(of: list[Row], test: Callable[[Row], bool]) -> list[Row]:
    return [row for row in of if not test(row)]


@pytest.mark.parametrize("writer", FILES)
def test_N17_files_of_other_writers_are_edited(tmp_path: Path, writer: str) -> None:
    edited(tmp_path, writer)


@pytest.mark.matrix
@pytest.mark.parametrize("writer", FILES)
def test_N17_spark_reads_edited_files_of_other_writers(
    tmp_path: Path, writer: str, spark: SparkSession
) -> None:
    edited(tmp_path, writer, spark)


def edited(folder: Path, writer: str, spark: SparkSession | None = None) -> None:
    of = FILES[writer]
    lake, expected = made(folder, of)
    # Scattered values of one column.
    lake.do(lake.update("k = 3 AND id % 2 = 0", v="v + 15"))
    expected = plus_15(expected, lambda row: row["k"] == 3 and row["id"] % 2 == 0)
    assert_shows(lake, expected)
    # Whole row groups, and a part of one.
    gone = range(of.size // 2, of.size // 2 + 650)
    lake.do(lake.delete(f"id >= {gone.start} AND id < {gone.stop}"))
    expected = but(expected, lambda row: row["id"] in gone)
    assert_shows(lake, expected)
    # An input of a compaction is made again by another engine.
    held = lake.hold(lake.compaction("Major"), Point.READ_RESULT)
    lake.foreign().delete("k = 5 AND id < 300")
    expected = but(expected, lambda row: row["k"] == 5 and row["id"] < 300)
    done = held.finish()
    assert done.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), done
    lake.do(lake.update("id = 7", k="70"))
    expected = [{**row, "k": 70} if row["id"] == 7 else row for row in expected]
    assert_shows(lake, expected, spark=spark)


def test_N17_most_of_a_file_is_copied(tmp_path: Path) -> None:
    """One column of some rows is new: its chunks are encoded, and nothing else."""
    lake, expected = made(tmp_path, FILES["plain"])
    done = lake.do(lake.update("id = 1", v="v + 15"))
    found = reconciled(done)
    assert found.bytes_copied is not None
    assert found.bytes_encoded is not None
    assert found.bytes_copied > 20 * found.bytes_encoded
    assert_shows(lake, plus_15(expected, lambda row: row["id"] == 1))


# N29: random histories


class Story:
    """Operations that overlap, and what the table must show: each takes effect at its commit."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        options = {"row_group_size": self.random.choice([7, 40, 1_000])}
        size = self.random.choice([30, 90])
        self.lake, self.rows = made(folder, Foreign(options, tuple(SCHEMA.names), size))
        self.next_id = 10_000
        self.running: list[tuple[Held, Callable[[list[Row]], list[Row]]]] = []
        self.told: list[str] = []

    def tell(self, steps: int) -> None:
        for _ in range(steps):
            choices = [self.begin, self.begin, self.foreign]
            if self.running:
                choices += [self.end, self.end]
            self.random.choice(choices)()
        while self.running:
            self.end()

    def begin(self) -> None:
        if len(self.running) == 3:
            self.end()
        name, operation, effect = self.random.choice([self.update, self.delete, self.rewrite])()
        at = self.random.choice([Point.READ_RESULT, Point.RECONCILE, Point.PUT_COMMIT])
        try:
            held = self.lake.hold(operation, at)
        except AssertionError as error:
            if "ended before" not in str(error) or "Phase.FAILED" in str(error):
                raise
            return  # nothing to do
        self.told.append(f"{name} begins, held at {at}")
        self.running.append((held, effect))

    def end(self) -> None:
        held, effect = self.running.pop(self.random.randrange(len(self.running)))
        done: OperationStatus = held.finish()
        assert done.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), (self.told, done)
        self.told.append(f"one ends: {done.phase}")
        if done.phase is Phase.SUCCEEDED:
            self.rows = effect(self.rows)
        self.check()

    def check(self) -> None:
        names = list(SCHEMA.names)
        found = comparable(READERS["tandem"](self.lake).select(names).cast(SCHEMA))
        assert found == comparable(as_table(self.rows, names)), self.told

    def some(self) -> tuple[str, Callable[[Row], bool]]:
        """A condition: scattered rows, a range, all rows, or none."""
        n, m = self.random.randrange(7), self.random.randrange(120)
        found: list[tuple[str, Callable[[Row], bool]]] = [
            (f"k = {n}", lambda row: row["k"] == n),
            (f"id >= {m} AND id < {m + 25}", lambda row: m <= row["id"] < m + 25),
            (f"id = {m}", lambda row: row["id"] == m),
            (f"v > {m * 100}", lambda row: row["v"] is not None and row["v"] > m * 100),
            (f"id % 5 = {n}", lambda row: row["id"] % 5 == n),
        ]
        return self.random.choice(found)

    def update(self) -> tuple[str, Operation, Callable[[list[Row]], list[Row]]]:
        where, test = self.some()
        amount = self.random.randrange(1, 5)
        sets: list[tuple[dict[str, str], Callable[[Row], Row]]] = [
            (
                {"v": f"v + {amount}"},
                lambda row: {**row, "v": None if row["v"] is None else row["v"] + amount},
            ),
            ({"k": f"{amount}"}, lambda row: {**row, "k": amount}),
            ({"s": "'new'", "v": "id"}, lambda row: {**row, "s": "new", "v": row["id"]}),
        ]
        set_, change = self.random.choice(sets)
        spec = {"update": {"where": where, "set": set_}, "isolation": "Serializable"}
        operation = self.lake.resource("TableUpdate", spec)
        return (
            f"UPDATE SET {set_} WHERE {where}",
            operation,
            lambda of: [change(row) if test(row) else row for row in of],
        )

    def delete(self) -> tuple[str, Operation, Callable[[list[Row]], list[Row]]]:
        where, test = self.some()
        operation = self.lake.delete(where, isolation="Serializable")
        return f"DELETE WHERE {where}", operation, lambda of: but(of, test)

    def rewrite(self) -> tuple[str, Operation, Callable[[list[Row]], list[Row]]]:
        layout = self.random.choice(
            [
                None,
                {"strategy": "Sort", "columns": ["v"]},
                {"strategy": "ZOrder", "columns": ["k", "s"]},
            ]
        )
        more = {} if layout is None else {"layout": layout}
        return f"REWRITE {layout}", self.lake.compaction("Major", **more), lambda of: of

    def foreign(self) -> None:
        where, test = self.some()
        act = self.random.choice(["append", "delete", "update", "optimize"])
        self.told.append(f"deltalake: {act} WHERE {where}")
        if act == "append":
            new = rows(self.random.randrange(1, 20), self.next_id)
            self.next_id += 100
            self.lake.append(as_table(new))
            self.rows = [*self.rows, *as_table(new).to_pylist()]
        elif act == "delete":
            self.lake.foreign().delete(where)
            self.rows = but(self.rows, test)
        elif act == "update":
            self.lake.foreign().update({"v": "v + 1000"}, predicate=where)
            self.rows = [
                {**row, "v": row["v"] + 1000} if test(row) and row["v"] is not None else row
                for row in self.rows
            ]
        else:
            self.lake.foreign().optimize.compact()
        self.check()


@pytest.mark.parametrize("seed", range(few(6, 60)))
def test_N29_random_operations_show_what_decoding_all_would(tmp_path: Path, seed: int) -> None:
    story = Story(tmp_path, seed)
    story.tell(14)
    assert_shows(story.lake, story.rows)
    protocol = story.lake.log.snapshot().protocol
    assert protocol == story.lake.log.snapshot(0).protocol
    assert not any(add.deletion_vector for add in story.lake.log.snapshot().adds())
