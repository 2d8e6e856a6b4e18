"""`ViewReader` in this process: its tasks together give the rows of the merged view, whatever
filters were pushed. `test_spark_read` has the same through Spark."""

from __future__ import annotations

import pickle
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pytest
from deltalake import WriterProperties, write_deltalake
from pyspark.sql import types as spark_types
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from mergelog.lake import DELETION_VECTORS, Merged, in_memory
from support.some import some
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import InvalidSpec, TableReplaced, UnsupportedFeature
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter
from tandem.spark import connector as reader_
from tandem.spark import connector as source_
from tandem.spark.connector import TandemSource, ViewReader, ViewVersion, opened
from tandem.spark.connector_options import read_options
from tandem.storage import open_store

Row = tuple[Any, ...]
COLUMNS = pa.schema([("k", pa.int64()), ("o", pa.int32()), ("v", pa.string())])


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reader_, "TASK_BYTES", 900)
    yield
    opened.cache_clear()


class Random:
    """A base table of several files with duplicate keys, and a log of some batches."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.ordered = seed % 2 == 1
        self.path = path
        partitioned = ["k"] if seed % 5 == 0 else None
        for _ in range(self.random.randint(1, 4)):
            write_deltalake(
                str(path),
                self.rows(12),
                mode="append",
                configuration=DELETION_VECTORS,
                partition_by=partitioned,
                writer_properties=WriterProperties(max_row_group_size=3),
            )
        self.merged = Merged(open_store(path.as_uri()), ("k",), "o" if self.ordered else "")
        self.winners: dict[int, tuple[int, Row | None]] = {}
        for _ in range(self.random.randint(0, 4)):
            rows, deletes = self.rows(6), self.rows(3)
            self.merged.append(rows, deletes.select(["k", "o"] if self.ordered else ["k"]))
            for row in rows_in(rows):
                self.record(row, row)
            for row in rows_in(deletes):
                self.record(row, None)
            if self.random.random() < 0.3:
                write_deltalake(str(path), self.rows(4), mode="append")

    def rows(self, most: int) -> pa.Table:
        count = self.random.randint(1, most)
        low = self.random.randrange(20)
        rows = [
            (
                low + self.random.randrange(10),
                self.random.choice([None, 0, 1, 2, 3]),
                self.random.choice([None, "", "a", "ab", "b%", "ü"]),
            )
            for _ in range(count)
        ]
        return pa.Table.from_pylist([dict(zip("kov", row, strict=True)) for row in rows], COLUMNS)

    def record(self, row: Row, shown: Row | None) -> None:
        if row[0] not in self.winners or self.rank(row) >= self.winners[row[0]][0]:
            self.winners[row[0]] = self.rank(row), shown

    def rank(self, row: Row) -> int:
        """By the ordering column; NULL is least."""
        return (-1 if row[1] is None else row[1]) if self.ordered else 0

    def expected(self) -> list[Row]:
        """The view by its definition."""
        base = rows_in(scan(self.merged.log.base.snapshot(), self.merged.store).read_all())
        found: list[Row] = []
        winners = dict(self.winners)
        for row in base:
            winner = self.winners.get(row[0])
            if winner is None or self.rank(row) > winner[0]:
                found.append(row)
                winners.pop(row[0], None)
        found += [shown for _, shown in winners.values() if shown is not None]
        return sorted(found, key=repr)

    def filters(self) -> list[Filter]:
        def pick() -> Filter:
            column, value = self.random.choice(
                [("k", self.random.randrange(30)), ("o", self.random.randrange(4)), ("v", "a")]
            )
            path = (column,)
            makers: list[Callable[[], Filter]] = [
                lambda: EqualTo(path, value),
                lambda: EqualNullSafe(path, value),
                lambda: GreaterThan(path, value),
                lambda: GreaterThanOrEqual(path, value),
                lambda: LessThan(path, value),
                lambda: LessThanOrEqual(path, value),
                lambda: In(path, (value, None)),
                lambda: IsNull(path),
                lambda: IsNotNull(path),
                lambda: Not(EqualTo(path, value)),
                lambda: StringStartsWith(("v",), self.random.choice(["a", "b%", ""])),
                lambda: StringContains(("v",), "b"),
            ]
            return self.random.choice(makers)()

        return [pick() for _ in range(self.random.randint(1, 3))]


def holds(filter_: Filter, row: Row) -> bool | None:
    """As Spark evaluates it."""
    if isinstance(filter_, Not):
        found = holds(filter_.child, row)
        return None if found is None else not found
    fields: Any = filter_
    found = row["kov".index(fields.attribute[0])]
    if isinstance(filter_, IsNull | IsNotNull):
        return (found is None) == isinstance(filter_, IsNull)
    if isinstance(filter_, EqualNullSafe):
        return bool(found == filter_.value)
    if found is None:
        return None
    match filter_:
        case EqualTo():
            return bool(found == filter_.value)
        case GreaterThan():
            return bool(found > filter_.value)
        case GreaterThanOrEqual():
            return bool(found >= filter_.value)
        case LessThan():
            return bool(found < filter_.value)
        case LessThanOrEqual():
            return bool(found <= filter_.value)
        case In():
            return True if found in filter_.value else None
        case StringStartsWith():
            return str(found).startswith(filter_.value)
        case StringContains():
            return filter_.value in str(found)
    raise AssertionError(filter_)


def rows_in(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def rows_of(table: pa.Table) -> list[Row]:
    return sorted(rows_in(table), key=repr)


def read(view: MergedView, path: Path, filters: Sequence[Filter] = (), **options: str) -> list[Row]:
    """Each task on a copy of the reader, as in a worker."""
    asked = read_options({"path": str(path), **options})
    reader = ViewReader(ViewVersion.of(view, asked), view.base.schema.names)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    sent = pickle.dumps(reader)
    assert len(sent) < 2_000 + 400 * len(filters)
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions():
        worker = pickle.loads(sent)
        batches += worker.read(pickle.loads(pickle.dumps(partition)))
    return rows_of(pa.Table.from_batches(batches, view.scan().schema))


SEEDS = some(range(90), every=13)


@pytest.mark.part(6)
@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_together_give_the_view_at_each_version(tmp_path: Path, seed: int) -> None:
    made = Random(tmp_path / "t", seed)
    assert read(made.merged.open(), made.path) == made.expected()
    for version in range(made.merged.log.base.latest_version() + 1):
        view = made.merged.open(version)
        expected = rows_of(view.scan().read_all())
        assert read(view, made.path) == expected, version
        assert read(view, made.path, memory="300") == expected, version


@pytest.mark.part(9)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_filters_leave_out_they_would_drop(tmp_path: Path, seed: int) -> None:
    made = Random(tmp_path / "t", seed)
    for view in (made.merged.open(), MergedView.of_base(made.merged.log)):
        rows = rows_of(view.scan().read_all())
        for _ in range(8):
            filters = made.filters()
            found = read(view, made.path, filters)
            assert [r for r in found if all(holds(f, r) for f in filters)] == [
                r for r in rows if all(holds(f, r) for f in filters)
            ], filters


def table(ids: range, value: str, at: int) -> pa.Table:
    return pa.table({"k": ids, "o": pa.array([at] * len(ids), pa.int32()), "v": [value] * len(ids)})


@pytest.mark.parametrize("ordering", ["", "o"])
def test_filters_leave_out_files_and_blocks(tmp_path: Path, ordering: str) -> None:
    path = tmp_path / "t"
    for start in range(0, 40, 10):
        rows = table(range(start, start + 10), f"base {start}", 5)
        write_deltalake(str(path), rows, mode="append", configuration=DELETION_VECTORS)
    merged = Merged(open_store(path.as_uri()), ("k",), ordering)
    for start in range(0, 40, 10):
        merged.append(table(range(start, start + 2), "new", 7))
    view = merged.open()

    def inputs(*filters: Filter) -> tuple[int, int]:
        """Files of the base table and blocks that are read."""
        asked = read_options({"path": str(path)})
        reader = ViewReader(ViewVersion.of(view, asked), ["k"])
        reader.pushFilters(list(filters))
        splits = [split.input for task in reader.partitions() for split in task.splits]  # type: ignore[attr-defined]
        found = opened(reader._version, reader._where)
        files = [at for at in splits if at < len(found.files)]
        return len(set(files)), len(set(splits)) - len(set(files))

    assert inputs() == (4, 4)
    assert inputs(EqualTo(("k",), 15)) == (1, 0)
    assert inputs(In(("k",), (0, 30))) == (2, 2)
    # A record may have any value in another column, and hide a row that has this one.
    assert inputs(StringStartsWith(("v",), "base 2")) == (1, 4)
    assert inputs(GreaterThan(("k",), 9), EqualTo(("v",), "base 10")) == (1, 3)


def test_a_table_that_was_replaced_is_refused(tmp_path: Path) -> None:
    first, second = Random(tmp_path / "a", 2), Random(tmp_path / "b", 2)
    version = ViewVersion.of(first.merged.open(), read_options({"path": str(tmp_path / "b")}))
    assert version.instant == second.merged.open().instant
    with pytest.raises(TableReplaced, match="Load the table again"):
        ViewReader(version, ["k"]).partitions()


def test_a_log_that_was_made_again_is_refused(tmp_path: Path) -> None:
    """Its instants have the same numbers, and other records."""
    path = tmp_path / "t"
    rows = table(range(3), "base", 5)
    write_deltalake(str(path), rows, configuration=DELETION_VECTORS)
    merged = Merged(open_store(path.as_uri()), ("k",))
    merged.append(table(range(1), "first log", 6))
    version = ViewVersion.of(merged.open(), read_options({"path": str(path)}))
    rmtree(path / "_tandem" / "log")
    settings = LogSettings(("k",))
    assert ensure_log(merged.log, settings, now_ms=0, nonce="made again")
    with LogWriter(merged.log, "w") as writer:
        assert writer.append(table(range(1), "second log", 6), batch=0).instant == version.instant
    with pytest.raises(TableReplaced, match="the log of the table was replaced"):
        ViewReader(version, ["k"]).partitions()


def test_a_reader_works_with_and_without_pushed_filters() -> None:
    """What Spark checks before it refuses a reader while the setting is off."""
    assert "pushFilters" in vars(ViewReader)
    reader = ViewReader.__new__(ViewReader)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


OPTIONS = {
    "misspelled": ({"versoin": "3"}, "versoin.*perhaps version"),
    "of a write": ({"writer": "w"}, "writer"),
    "no number": ({"version": "-1"}, "version.*a number from 0"),
    "both versions": ({"version": "1", "versionAsOf": "2"}, "either"),
    "no flag": ({"base": "yes"}, "base.*true or false"),
    "no size": ({"memory": "much"}, "memory.*128Mi"),
    "no names": ({"columns": "a,,b"}, "columns.*one name or more"),
    "a name twice": ({"columns": '["a", "a"]'}, "columns.*each once"),
    "no JSON": ({"columns": "[a]"}, "columns.*JSON"),
    "numbers as names": ({"columns": "[1]"}, "columns.*JSON list of names"),
    "storage": ({"storageOptions": "[]"}, "storageOptions.*JSON object"),
    "no location": ({"path": ""}, "path.*the location of a table"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options_are_refused_by_name(case: str) -> None:
    options, message = OPTIONS[case]
    with pytest.raises(InvalidSpec, match=message):
        read_options({"path": "/t", **options})


@pytest.mark.parametrize(
    "options",
    [{"aws_secret_access_key": "hidden"}, {"storageOptions": '{"region": "x", hidden}'}],
)
def test_a_value_that_may_be_a_secret_is_not_shown(options: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_options({"path": "/t", **options})
    assert "hidden" not in "".join(traceback.format_exception(refused.value))


def test_user_info_of_a_location_is_not_shown() -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_options({"path": "s3://hidden:hidden@lake/t", "version": "x"})
    assert "lake/t" in str(refused.value)
    assert "hidden" not in str(refused.value)
    source = TandemSource({"path": "s3://hidden:hidden@lake/t?key=hidden"})
    none = spark_types.StructType([])
    uses: list[Callable[[], object]] = [
        source.schema,
        lambda: source.reader(none),
        lambda: source.writer(none, True),
        lambda: source.streamWriter(none, True),
    ]
    for use in uses:
        with pytest.raises(InvalidSpec) as refused:
            use()
        assert "lake/t" in str(refused.value)
        assert "hidden" not in str(refused.value)


def test_names_with_commas_and_spaces(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"id": [1], "a, b": ["x"], "[c]": ["y"], "d.e`f": ["z"]})
    write_deltalake(path, rows)
    for columns, expected in {
        "id": ["id"],
        " d.e`f , id": ["d.e`f", "id"],
        '["a, b", "[c]"]': ["a, b", "[c]"],
    }.items():
        source = TandemSource({"path": path, "columns": columns})
        assert source.schema().names == expected
        (partition,) = source.reader(source.schema()).partitions()
        found = source.reader(source.schema()).read(partition)
        assert pa.Table.from_batches(found).to_pylist() == rows.select(expected).to_pylist()
    with pytest.raises(InvalidSpec, match="no such column"):
        TandemSource({"path": path, "columns": "ID, nothing"}).schema()


def test_a_schema_of_the_user_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), table(range(3), "a", 1))
    path = str(tmp_path / "t")
    declared = TandemSource({"path": path, "columns": "k"}).schema()
    with pytest.raises(InvalidSpec, match="the option `columns` chooses columns"):
        TandemSource({"path": path}).reader(declared)


def test_a_variant_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store = in_memory(schema=StructType((Field("w", PrimitiveType("variant")),)))
    monkeypatch.setattr(source_, "open_log", lambda *_: MergeLog(DeltaLog(store)))
    with pytest.raises(UnsupportedFeature, match="variant"):
        TandemSource({"path": "/t"}).schema()
