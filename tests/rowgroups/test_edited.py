"""Edits of files of every writer: each reader finds the rows that decoding all would give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

from rowgroups.editing import (
    Edit,
    assert_true_bounds,
    editor,
    make,
    new_values,
    read,
    shown,
    wanted,
)
from rowgroups.test_joined import READERS, plain
from rowgroups.writers import ROWS, SCHEMA, TABLE, WRITERS, footer_of, pyarrow, rows
from support.lake.delta_log import add, commit_name, lines
from support.parquet import go_parquet
from tandem.delta.datafiles import edited_files, joined_files
from tandem.delta.datafiles.copyable import Unfit
from tandem.delta.datafiles.edited_files import EditedFile
from tandem.delta.datafiles.footer import MOST_FOOTER
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.schema import COLUMN_ID, PHYSICAL_NAME, Field, PrimitiveType, StructType, parse
from tandem.errors import CorruptDeletionVector, CountMismatch, DataFileMissing, StorageError
from tandem.storage import Store, open_store

OLD = rows(1).to_pylist()


@pytest.fixture(autouse=True)
def _small_row_groups_are_not_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edited_files, "_TINY", 100)


EDITS = {
    "nothing": Edit(),
    "a row group dropped": Edit(frozenset(range(700))),
    "rows dropped": Edit(frozenset({0, 700, 701, 1_499})),
    "one column": Edit(values={n: row for n, row in enumerate(rows(2).to_pylist()) if n % 97 == 3},
                       columns=frozenset({"s"})),
    "floats": Edit(values={n: row for n, row in enumerate(rows(3).to_pylist()) if n > 1_300},
                   columns=frozenset({"f", "t"})),
    "whole rows": Edit(values={5: rows(2).to_pylist()[1], 1_450: rows(2).to_pylist()[2]}),
    "rows dropped and replaced": Edit(
        frozenset(range(600)),
        {n: row for n, row in enumerate(rows(4).to_pylist()) if n % 300 == 1},
        frozenset({"id", "small", "d"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_finds_the_rows(writer: str, edit: Edit, tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    WRITERS[writer](path, rows(1))
    found = make(editor(path, TABLE), TABLE, edit)
    made = tmp_path / found.file.path
    expected = wanted(OLD, TABLE, edit)
    assert found.whole is None
    assert found.file.rows == len(expected)
    assert found.file.size == made.stat().st_size
    assert shown(read(made, TABLE)) == shown(expected)
    assert_true_bounds(made, found.file.stats, expected, TABLE)
    for name, by in READERS.items():
        assert plain(by(made)) == plain(pa.Table.from_pylist(expected, SCHEMA)), name


def sql_of(folder: Path, found: EditedFile, query: str) -> list[tuple[Any, ...]]:
    """What deltalake (DataFusion) answers of a table of the edit alone; `t` is the table."""
    table = DeltaTable.create(folder, SCHEMA)
    action = add(found.file.path, size=found.file.size, stats=found.file.stats)
    (folder / commit_name(1)).write_bytes(lines([action]))
    table.update_incremental()
    answer = QueryBuilder().register("t", table).execute(query)
    return [tuple(row.values()) for row in pa.table(answer).to_pylist()]


@pytest.mark.parametrize(
    "writer",
    ["tandem", "pyarrow page indexes", "pyarrow bloom filters", "delta-rs", "polars", "parquet-go"],
)
def test_filters_find_new_values_and_no_old_ones(writer: str, tmp_path: Path) -> None:
    """Statistics, page indexes, bloom filters and dictionaries are those of the new values."""
    path = tmp_path / "source.parquet"
    WRITERS[writer](path, rows(1))
    filters = {"id": 0.01, "s": 0.01} if writer == "tandem" else {}
    table = replace(TABLE, filters=filters)
    at = [3, 699, 700, 1_400]
    values = {n: {**OLD[n], "id": 10_000 + n, "s": f"new {n}"} for n in at}
    edit = Edit(frozenset({5, 1_200}), values, frozenset({"id", "s"}))
    found = make(editor(path, table), table, edit)
    made = tmp_path / found.file.path
    expected = wanted(OLD, table, edit)
    for wanted_id in (*(10_000 + n for n in at), *(OLD[n]["id"] for n in (*at, 5, 6, 1_200))):
        count = sum(row["id"] == wanted_id for row in expected)
        assert pq.read_table(made, filters=[("id", "==", wanted_id)]).num_rows == count
        with duckdb.connect() as session:
            query = f"SELECT id FROM '{made}' WHERE id = {wanted_id}"
            assert len(session.sql(query).fetchall()) == count
        lazy = pl.scan_parquet(made).filter(pl.col("id") == wanted_id).select("id").collect()
        assert len(lazy) == count
    for text in ("new 3", "new 1400", "a", "x" * 300):
        count = sum(row["s"] == text for row in expected)
        with duckdb.connect() as session:
            query = f"SELECT id FROM '{made}' WHERE s = '{text}'"
            assert len(session.sql(query).fetchall()) == count
    [[count]] = sql_of(tmp_path, found, "SELECT count(*) FROM t WHERE id > 9999 AND s LIKE 'new%'")
    assert count == len(at)
    go_parquet.check(made)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_deltalake_reads_an_edit(edit: Edit, tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    WRITERS["delta-rs"](path, rows(1))
    found = make(editor(path, TABLE), TABLE, edit)
    expected = wanted(OLD, TABLE, edit)
    answer = sql_of(tmp_path, found, "SELECT id, small, s, d FROM t ORDER BY id")
    assert answer == sorted((row["id"], row["small"], row["s"], row["d"]) for row in expected)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_what_is_encoded_has_the_codec_of_the_file(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    pyarrow(compression=codec)(path, rows(1))
    for name in ("one column", "rows dropped"):
        found = make(editor(path, TABLE), TABLE, EDITS[name])
        made = tmp_path / found.file.path
        assert found.bytes_encoded
        codecs = {chunk.codec for group in footer_of(made).groups for chunk in group.chunks}
        assert codecs == {footer_of(path).groups[0].chunks[0].codec}
        for reader, by in READERS.items():
            expected = pa.Table.from_pylist(wanted(OLD, TABLE, EDITS[name]), SCHEMA)
            assert plain(by(made)) == plain(expected), reader


def pages(path: Path, number: int, column: str) -> bytes:
    """The bytes of a column in a row group."""
    data = footer_of(path).groups[number].chunks[SCHEMA.names.index(column)].data
    return path.read_bytes()[data.start : data.end]


def test_what_does_not_change_is_copied_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    pyarrow(row_group_size=500)(path, rows(1))
    edit = Edit(frozenset(range(500)), {501: {**OLD[501], "s": "new"}}, frozenset({"s"}))
    found = make(editor(path, TABLE), TABLE, edit)
    made = tmp_path / found.file.path
    groups = footer_of(made).groups
    assert [group.rows for group in groups] == [500, 500]
    encoded = groups[0].chunks[SCHEMA.names.index("s")].data.size
    assert (found.bytes_encoded, found.bytes_copied) == (
        encoded,
        sum(group.size for group in groups) - encoded,
    )
    for column in SCHEMA.names:
        assert pages(made, 1, column) == pages(path, 2, column)
        assert (pages(made, 0, column) == pages(path, 1, column)) is (column != "s")


def test_an_edit_of_an_edit_copies_too(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    WRITERS["pyarrow page indexes"](path, rows(1))
    expected, source = OLD, path
    for name in ("one column", "rows dropped", "floats", "nothing"):
        edit = EDITS[name]
        if name == "floats":
            assert edit.values is not None
            edit = replace(edit, values={n: r for n, r in edit.values.items() if n < len(expected)})
        found = make(editor(source, TABLE), TABLE, edit)
        moved = tmp_path / f"{name}.parquet"
        (tmp_path / found.file.path).rename(moved)
        expected, source = wanted(expected, TABLE, edit), moved
        assert found.whole is None
        assert shown(read(source, TABLE)) == shown(expected)
        assert_true_bounds(source, found.file.stats, expected, TABLE)


class TestEarlierEdits:
    """A round after a lost race pays for what changed meanwhile."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "source.parquet"
        pyarrow(row_group_size=500)(path, rows(1))
        return path

    def test_equal_row_groups_are_copied_from_it(self, path: Path) -> None:
        of = editor(path, TABLE)
        change = {n: {**OLD[n], "s": "new", "f": 3.0} for n in (2, 700)}
        first = Edit(frozenset({1}), change, frozenset({"s", "f"}))
        found = make(of, TABLE, first)
        assert found.bytes_encoded
        again = make(of, TABLE, first)
        assert again.bytes_encoded == 0
        assert again.file.stats == found.file.stats
        more = replace(first, drops=frozenset({1, 1_100}))
        last = make(of, TABLE, more)
        for each in (found, again, last):
            # Columns of two files in one row group: the first does not speak for all.
            assert footer_of(path.parent / each.file.path).creator.startswith(b"tandem version ")
        assert 0 < last.bytes_encoded < found.bytes_encoded
        for each, edit in ((again, first), (last, more)):
            made = path.parent / each.file.path
            expected = wanted(OLD, TABLE, edit)
            assert shown(read(made, TABLE)) == shown(expected)
            assert_true_bounds(made, each.file.stats, expected, TABLE)

    @pytest.mark.parametrize(
        "other",
        [
            Edit(frozenset({1}), {2: {**OLD[2], "s": "other"}}, frozenset({"s"})),
            Edit(frozenset({1}), {3: {**OLD[2], "s": "new"}}, frozenset({"s"})),
            Edit(frozenset({4}), {2: {**OLD[2], "s": "new"}}, frozenset({"s"})),
            Edit(frozenset({1}), {2: {**OLD[2], "s": None}}, frozenset({"s"})),
            Edit(frozenset({1}), {2: {**OLD[2], "s": "new"}}),
            Edit(frozenset({1})),
        ],
    )
    def test_others_are_encoded(self, path: Path, other: Edit) -> None:
        of = editor(path, TABLE)
        make(of, TABLE, Edit(frozenset({1}), {2: {**OLD[2], "s": "new"}}, frozenset({"s"})))
        found = make(of, TABLE, other)
        assert found.bytes_encoded
        expected = wanted(OLD, TABLE, other)
        assert shown(read(path.parent / found.file.path, TABLE)) == shown(expected)

    def test_readers_are_told_of_two_writers(self, path: Path) -> None:
        WRITERS["delta-rs"](path, rows(1))
        of = editor(path, TABLE)
        for _ in range(2):
            found = make(of, TABLE, EDITS["one column"])
            creator = footer_of(path.parent / found.file.path).creator
            assert creator.startswith(b"tandem version ")

    def test_one_that_was_deleted_is_encoded_again(self, path: Path) -> None:
        of = editor(path, TABLE)
        found = make(of, TABLE, EDITS["one column"])
        (path.parent / found.file.path).unlink()
        again = make(of, TABLE, EDITS["one column"])
        assert again.bytes_encoded == found.bytes_encoded
        assert make(of, TABLE, EDITS["one column"]).bytes_encoded == 0


WHOLE: dict[str, tuple[Callable[[pa.Table], pa.Table], dict[str, Any], Unfit]] = {
    "INT96": (lambda t: t, {"use_deprecated_int96_timestamps": True}, Unfit.COLUMNS),
    "milliseconds": (
        lambda t: t.set_column(
            6, "t", t["t"].cast(pa.timestamp("ms", "UTC"), safe=False)
        ), {}, Unfit.COLUMNS),
    "a narrower type": (
        lambda t: t.set_column(0, "id", t["id"].cast(pa.int32())), {}, Unfit.COLUMNS),
    "a column that the table does not have": (
        lambda t: t.append_column("more", t["id"]), {}, Unfit.COLUMNS),
    "another spelling": (
        lambda t: t.rename_columns([n.upper() for n in t.column_names]), {}, Unfit.COLUMNS),
    "no statistics": (lambda t: t, {"write_statistics": False}, Unfit.STATISTICS),
    "another calendar": (
        lambda t: t.set_column(5, "d", pa.nulls(ROWS, pa.date32()))
        .set_column(6, "t", pa.nulls(ROWS, pa.timestamp("us", "UTC")))
        .replace_schema_metadata({"org.apache.spark.version": "2.4.8"}), {}, Unfit.CALENDAR),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_whose_row_groups_cannot_be_copied_is_encoded(name: str, tmp_path: Path) -> None:
    change, options, why = WHOLE[name]
    path = tmp_path / "source.parquet"
    pyarrow(**options)(path, change(rows(1)))
    before = read(path, TABLE)
    for edit in (EDITS["one column"], EDITS["rows dropped and replaced"], EDITS["nothing"]):
        found = make(editor(path, TABLE), TABLE, edit)
        made = tmp_path / found.file.path
        assert (found.whole, found.bytes_copied) == (why, 0)
        expected = wanted(before, TABLE, edit)
        assert shown(read(made, TABLE)) == shown(expected)
        assert_true_bounds(made, found.file.stats, expected, TABLE)


def test_a_file_older_than_a_column_keeps_its_row_groups(tmp_path: Path) -> None:
    """Readers give NULL for a column that a file lacks. One that is set is written to all rows."""
    path = tmp_path / "source.parquet"
    old = SCHEMA.names[:2] + SCHEMA.names[4:]
    pyarrow()(path, rows(1).select(old[::-1]))
    before = read(path, TABLE)
    assert {row["f"] for row in before} == {None}
    for edit, whole in (
        (EDITS["nothing"], None),
        (replace(EDITS["whole rows"], columns=frozenset({"bytes", "d"})), None),
        (EDITS["rows dropped"], None),
        (EDITS["floats"], Unfit.COLUMNS),
        (EDITS["whole rows"], Unfit.COLUMNS),
    ):
        found = make(editor(path, TABLE), TABLE, edit)
        made = tmp_path / found.file.path
        assert found.whole is whole
        expected = wanted(before, TABLE, edit)
        assert shown(read(made, TABLE)) == shown(expected)
        if whole:
            assert_true_bounds(made, found.file.stats, expected, TABLE)


def nested(text: str) -> TableFormat:
    return TableFormat(parse('{"type":"struct","fields":[' + text + "]}"))


def column(name: str, type_: str, *, nullable: bool = True) -> str:
    return json.dumps({"name": name, "type": json.loads(type_), "nullable": nullable,
                       "metadata": {}})  # fmt: skip


def test_required_columns_stay_required(tmp_path: Path) -> None:
    """Their values have no levels. A new value that is NULL cannot be one of them."""
    table = nested(
        ",".join(
            [
                column("a", '"long"', nullable=False),
                column("l", '{"type":"array","elementType":"string","containsNull":false}'),
                column(
                    "p",
                    '{"type":"struct","fields":[{"name":"x","type":"long","nullable":false,'
                    '"metadata":{}}]}',
                ),
            ]
        )
    )
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("l", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("p", pa.struct([pa.field("x", pa.int64(), nullable=False)]), nullable=False),
        ]
    )
    old = [{"a": n, "l": [str(n)] * (n % 3) or None, "p": {"x": n}} for n in range(20)]
    path = tmp_path / "source.parquet"
    pq.write_table(pa.Table.from_pylist(old, schema), path, row_group_size=5)
    new = {"a": 100, "l": ["x", ""], "p": {"x": 7}}
    for edit, whole in (
        (Edit(frozenset({1})), None),
        (Edit(values={3: new}, columns=frozenset({"l"})), None),
        (Edit(values={3: new, 4: new}, columns=frozenset({"a", "p"})), None),
        (Edit(values={3: {**new, "p": None}}, columns=frozenset({"p"})), Unfit.COLUMNS),
    ):
        found = make(editor(path, table), table, edit)
        made = tmp_path / found.file.path
        assert found.whole is whole
        assert shown(read(made, table)) == shown(wanted(old, table, edit))
        required = pq.ParquetFile(made).schema_arrow.field("a").nullable
        assert required is (whole is not None)
        assert pl.read_parquet(made).to_dicts() == wanted(old, table, edit)


def test_what_is_deleted_is_not_in_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    names = [f"secret-{n}" for n in range(10)]
    data = pa.table({"id": range(10_000), "s": [names[n % 10] for n in range(10_000)]})
    table = TableFormat(
        StructType((Field("id", PrimitiveType("long")), Field("s", PrimitiveType("string"))))
    )
    pyarrow(compression="none", row_group_size=5_000)(path, data)
    old = read(path, table)
    gone = [n for n in range(10_000) if n % 10 == 3]
    for edit in (
        Edit(frozenset(gone)),
        Edit(values={n: {"id": n, "s": "x"} for n in gone}, columns=frozenset({"s"})),
    ):
        found = make(editor(path, table), table, edit)
        made = tmp_path / found.file.path
        assert footer_of(made).groups[0].chunks[1].data.size < 5_000
        assert b"secret-3" not in made.read_bytes()
        assert b"secret-4" in made.read_bytes()
        assert shown(read(made, table)) == shown(wanted(old, table, edit))


def test_long_values_without_bounds_are_copied(tmp_path: Path) -> None:
    """No writer has bounds for them, so that encoding them would give none either."""
    path = tmp_path / "source.parquet"
    old = [{**row, "s": "y" * 5_000} for row in OLD]
    pyarrow()(path, pa.Table.from_pylist(old, SCHEMA))
    found = make(editor(path, TABLE), TABLE, EDITS["rows dropped"])
    assert found.whole is None
    assert shown(read(tmp_path / found.file.path, TABLE)) == shown(
        wanted(old, TABLE, EDITS["rows dropped"])
    )


def test_statistics_that_the_log_does_not_list_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    pyarrow(write_statistics=["id", "small"])(path, rows(1))
    of = replace(TABLE, configuration={"delta.dataSkippingNumIndexedCols": "2"})
    found = make(editor(path, of), of, EDITS["rows dropped"])
    assert found.whole is None
    assert json.loads(found.file.stats)["nullCount"].keys() == {"id", "small"}
    assert make(editor(path, TABLE), TABLE, EDITS["rows dropped"]).whole is Unfit.STATISTICS


def test_partition_columns_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    pyarrow()(path, rows(1).drop_columns(["small"]))
    table = replace(TABLE, partition_columns=("small",))
    store = open_store(f"file://{tmp_path}")
    of = edited_files.FileEditor(store, path.name, path.stat().st_size, ROWS, table, prefix="a/b",
                           partition_values={"small": "7"},
                           describe=lambda path, size, _: f"{path} {size}".encode())  # fmt: skip
    for values in (None, EDITS["one column"]):
        edit = values or EDITS["rows dropped"]
        found = make(of, table, edit)
        assert found.whole is None
        assert found.file.partition_values == {"small": "7"}
        assert found.file.facts == f"{found.file.path} {found.file.size}".encode()
        assert found.file.path.startswith("a/b/small=7/part-00000-")
        lone = TableFormat(table.data_schema)
        assert shown(read(tmp_path / found.file.path, lone)) == shown(wanted(
            read(path, lone), table, edit))  # fmt: skip


def test_a_file_outside_of_the_table_is_edited_into_it(tmp_path: Path) -> None:
    """As of a shallow clone, where the administrator allows it."""
    (tmp_path / "table").mkdir()
    path = tmp_path / "source.parquet"
    pyarrow(row_group_size=100)(path, rows(1))
    location = f"file://{tmp_path}"
    store = open_store(f"{location}/table", allowed_prefixes=[location])
    of = edited_files.FileEditor(store, f"{location}/source.parquet", path.stat().st_size, ROWS,
                           TABLE, prefix="edits", partition_values={})  # fmt: skip
    found = make(of, TABLE, EDITS["one column"])
    assert found.bytes_copied
    made = tmp_path / "table" / found.file.path
    assert shown(read(made, TABLE)) == shown(wanted(OLD, TABLE, EDITS["one column"]))


@pytest.mark.parametrize("mode", ["id", "name"])
def test_field_ids_are_kept(mode: str, tmp_path: Path) -> None:
    fields = tuple(
        replace(f, metadata={COLUMN_ID: n, PHYSICAL_NAME: f"col-{n}"})
        for n, f in enumerate(TABLE.schema, 1)
    )
    table = TableFormat(StructType(fields), configuration={"delta.columnMapping.mode": mode})
    physical = [
        pa.field(f"col-{n}", SCHEMA.field(n - 1).type, metadata={"PARQUET:field_id": str(n)})
        for n in range(1, len(SCHEMA) + 1)
    ]
    path = tmp_path / "source.parquet"
    pyarrow()(path, pa.table(rows(1).columns, schema=pa.schema(physical)))
    edit = replace(EDITS["one column"], columns=frozenset({"col-4"}))
    found = make(editor(path, table), table, edit)
    made = tmp_path / found.file.path
    assert found.whole is None
    assert found.bytes_copied
    assert footer_of(made).schema == footer_of(path).schema
    assert shown(read(made, table)) == shown(wanted(OLD, table, edit))
    assert "col-4" in found.file.stats


class TestRowGroups:
    """Of any number and size."""

    TABLE = TableFormat(
        StructType((Field("id", PrimitiveType("long")), Field("s", PrimitiveType("string"))))
    )

    def write(self, path: Path, count: int, size: int = 1) -> list[dict[str, Any]]:
        data = pa.table({"id": range(count), "s": [f"{n % 7}" for n in range(count)]})
        with pq.ParquetWriter(path, data.schema, compression="none", use_dictionary=False) as made:
            for start in range(0, count, size):
                made.write_table(data.slice(start, size))
                if start % 5 == 0:
                    made.write_table(data.slice(0, 0))
        found: list[dict[str, Any]] = data.to_pylist()
        return found

    @pytest.mark.parametrize("count", [2_500, pytest.param(25_000, marks=pytest.mark.matrix)])
    def test_thirty_thousand_of_one_row_or_none(
        self, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Its rows are less than its footer, and would be decoded.
        monkeypatch.setattr(joined_files, "_LONG_FOOTER", MOST_FOOTER)
        path = tmp_path / "source.parquet"
        old = self.write(path, count)
        assert len(footer_of(path).groups) == count * 6 // 5
        values = {n: {"id": -n, "s": "new"} for n in (0, 1_234, 1_235, count - 1)}
        edit = Edit(frozenset(range(100, count, 1_000)), values, frozenset({"id"}))
        found = make(editor(path, self.TABLE), self.TABLE, edit)
        made = tmp_path / found.file.path
        assert found.whole is None
        assert len(footer_of(made).groups) == count - len(edit.drops) - 1
        expected = wanted(old, self.TABLE, edit)
        assert shown(read(made, self.TABLE)) == shown(expected)
        assert pl.read_parquet(made).to_dicts() == expected
        with duckdb.connect() as session:
            assert session.sql(f"SELECT * FROM '{made}'").to_arrow_table().to_pylist() == expected
        stats = json.loads(found.file.stats)
        assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1 - count, count - 2)

    def test_a_file_that_is_mostly_footer_is_encoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(joined_files, "_LONG_FOOTER", 1)
        path = tmp_path / "source.parquet"
        old = self.write(path, 50)
        edit = Edit(frozenset({3}))
        found = make(editor(path, self.TABLE), self.TABLE, edit)
        assert found.whole is Unfit.FOOTER
        assert shown(read(tmp_path / found.file.path, self.TABLE)) == shown(
            wanted(old, self.TABLE, edit)
        )

    def test_small_ones_that_change_are_encoded_together(self, tmp_path: Path) -> None:
        path = tmp_path / "source.parquet"
        old = self.write(path, 50, 2)
        values = {n: {"id": -n, "s": "new"} for n in (*range(10, 20), 40)}
        edit = Edit(frozenset({21, 30}), values, frozenset({"s"}))
        found = make(editor(path, self.TABLE), self.TABLE, edit)
        made = tmp_path / found.file.path
        assert [group.rows for group in footer_of(made).groups] == [
            *[2] * 5, 11, *[2] * 4, 1, *[2] * 9,
        ]  # fmt: skip
        assert shown(read(made, self.TABLE)) == shown(wanted(old, self.TABLE, edit))

    def test_more_than_a_footer_numbers_are_encoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(edited_files, "MOST_GROUPS", 20)
        path = tmp_path / "source.parquet"
        old = self.write(path, 50, 2)
        found = make(editor(path, self.TABLE), self.TABLE, Edit(frozenset({1})))
        made = tmp_path / found.file.path
        assert found.whole is Unfit.SMALL
        assert len(footer_of(made).groups) == 1
        assert read(made, self.TABLE) == [old[0], *old[2:]]

    @pytest.mark.parametrize("limit", ["GROUP_BYTES", "GROUP_ROWS"])
    def test_large_ones_are_divided(
        self, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No more rows are held than the writer holds; a column cannot be divided alone."""
        monkeypatch.setattr(edited_files, limit, 1_000)
        monkeypatch.setattr(edited_files, "BATCH_ROWS", 300)
        path = tmp_path / "source.parquet"
        old = self.write(path, 5_000, 5_000)
        for edit in (
            Edit(frozenset({1})),
            Edit(values={1: {"id": 1, "s": "new"}}, columns=frozenset({"s"})),
        ):
            found = make(editor(path, self.TABLE), self.TABLE, edit)
            made = tmp_path / found.file.path
            assert found.whole is None
            divided = len(footer_of(made).groups) > 3
            assert divided is (limit == "GROUP_BYTES" or edit.values is None)
            assert shown(read(made, self.TABLE)) == shown(wanted(old, self.TABLE, edit))
            again = make(editor(path, self.TABLE), self.TABLE, edit)
            assert again.file.stats == found.file.stats


class TestErrors:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "source.parquet"
        pyarrow(write_page_checksum=True)(path, rows(1))
        return path

    def assert_only(self, path: Path) -> None:
        """Nothing is left of the edit, not even a temporary file."""
        assert [each for each in path.parent.rglob("*") if each.is_file()] == [path]

    def test_all_rows_dropped(self, path: Path) -> None:
        with pytest.raises(ValueError, match="drops all of its 1500 rows"):
            make(editor(path, TABLE), TABLE, Edit(frozenset(range(ROWS))))
        self.assert_only(path)

    def test_a_row_that_is_not_there(self, path: Path) -> None:
        with pytest.raises(CorruptDeletionVector, match="names a row that its file does not have"):
            make(editor(path, TABLE), TABLE, Edit(frozenset({ROWS})))

    @pytest.mark.parametrize("positions", [[-1, 2], [2, 1], [2, 2], [2, ROWS], [1, 2, 3]])
    def test_positions_that_are_wrong(self, path: Path, positions: list[int]) -> None:
        values = new_values(TABLE, Edit(values={0: OLD[0], 1: OLD[1]}))
        assert values is not None
        wrong = replace(values, positions=np.array(positions, np.int64))
        with pytest.raises(ValueError, match="positions"):
            editor(path, TABLE).edit(BitMap64(), wrong)

    @pytest.mark.parametrize("columns", [frozenset({"other"}), None])
    def test_columns_that_are_wrong(self, path: Path, columns: frozenset[str] | None) -> None:
        values = new_values(TABLE, Edit(values={0: OLD[0]}))
        assert values is not None
        wrong = replace(values, columns=columns)
        if columns is None:
            wrong = replace(wrong, rows=values.rows.drop_columns(["f"]))
        with pytest.raises(ValueError, match="are not in both"):
            editor(path, TABLE).edit(BitMap64(), wrong)

    @pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
    def test_another_number_of_rows(self, path: Path, options: dict[str, Any]) -> None:
        pyarrow(**options)(path, rows(1))
        store = open_store(f"file://{path.parent}")
        of = edited_files.FileEditor(store, path.name, path.stat().st_size, ROWS + 1, TABLE,
                               prefix="edits", partition_values={})  # fmt: skip
        with pytest.raises(CountMismatch, match="differs from the log"):
            make(of, TABLE, EDITS["rows dropped"])
        self.assert_only(path)

    def test_a_file_that_is_gone(self, path: Path) -> None:
        of = editor(path, TABLE)
        path.unlink()
        with pytest.raises(DataFileMissing):
            make(of, TABLE, EDITS["rows dropped"])

    @pytest.mark.parametrize("size", [0, 7, 3_000, -1])
    def test_a_file_that_was_cut(self, path: Path, size: int) -> None:
        of = editor(path, TABLE)
        content = path.read_bytes()
        path.write_bytes(content[:size])
        for name in ("rows dropped", "one column", "nothing"):
            with pytest.raises(StorageError):
                make(of, TABLE, EDITS[name])
            self.assert_only(path)

    @pytest.mark.parametrize("name", ["rows dropped", "one column"])
    def test_a_bit_that_flipped(self, path: Path, name: str) -> None:
        """In a page that is decoded, by its checksum."""
        of = editor(path, TABLE)
        chunk = footer_of(path).groups[0].chunks[SCHEMA.names.index("s")]
        content = bytearray(path.read_bytes())
        content[chunk.data.end - 3] ^= 1
        path.write_bytes(content)
        with pytest.raises(StorageError, match="does not match its checksum"):
            make(of, TABLE, EDITS[name])
        self.assert_only(path)

    @pytest.mark.parametrize("name", ["rows dropped", "one column", "nothing"])
    @pytest.mark.parametrize("after", [0, 1])
    @pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
    def test_an_edit_that_is_stopped(
        self, path: Path, name: str, after: int, options: dict[str, Any]
    ) -> None:
        class Stopped(Exception):
            pass

        calls = 0

        def check() -> None:
            nonlocal calls
            calls += 1
            if calls > after:
                raise Stopped

        pyarrow(**options)(path, rows(1))
        edit = EDITS[name]
        with pytest.raises(Stopped):
            editor(path, TABLE).edit(BitMap64(edit.drops), new_values(TABLE, edit), check=check)
        self.assert_only(path)

    @pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
    def test_a_file_that_is_not_what_was_written(
        self, path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pyarrow(**options)(path, rows(1))
        monkeypatch.setattr(joined_files, "read_footer", lambda _: b"")
        with pytest.raises(StorageError, match="is not what was written"):
            make(editor(path, TABLE), TABLE, EDITS["rows dropped"])
        self.assert_only(path)


@pytest.mark.parametrize("count", [ROWS, 200_000])
def test_an_edit_in_an_object_store_is_that_of_files(
    count: int, tmp_path: Path, s3_store: Store
) -> None:
    path = tmp_path / "source.parquet"
    pyarrow(write_page_index=True, row_group_size=count // 2)(path, rows(1, count))
    s3_store.put(path.name, path.read_bytes())
    there, here = editor(path, TABLE, s3_store), editor(path, TABLE)
    for name in ("one column", "rows dropped", "one column"):
        found, local = make(there, TABLE, EDITS[name]), make(here, TABLE, EDITS[name])
        assert found.file.stats == local.file.stats
        assert s3_store.get(found.file.path) == (tmp_path / local.file.path).read_bytes()
