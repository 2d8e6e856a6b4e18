"""Facts exclude no row group that has a matching row, and none is certain that has another one.

DuckDB reads the rows of each row group and evaluates the condition: that is the truth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.facts_files import (
    SCHEMA,
    SCHEMA_JSON,
    SQL_TYPES,
    USED,
    Condition,
    by_deltalake,
    by_duckdb,
    by_pyarrow,
    by_us,
    conditions,
    constants,
    facts_of,
    rows_by_group,
    tables,
    truth,
)
from support.some import few
from support.values.kinds import Kind
from support.values.kinds import tables as kind_tables
from tandem.delta import schema as schema_
from tandem.delta.schema import StructType
from tandem.index.facts.bloom_filters import BloomFilter, FilterPlace
from tandem.index.facts.cache import RowGroups
from tandem.index.facts.row_groups import concat
from tandem.pruning.bounds import PartitionBounds
from tandem.statements import parse_where, tree
from tandem.statements.types import BOOLEAN, STRING, Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check(data: bytes, asked: list[Condition]) -> Counter[str]:
    """Raises AssertionError for a mask that contradicts the rows. Returns: how many row groups were
    decided."""
    groups = RowGroups(facts_of(data))
    found = [groups.narrow(condition.where, SCHEMA) for condition in asked]
    with duckdb.connect() as engine:
        for number, rows in enumerate(rows_by_group(data)):
            values = truth(engine, rows, [condition.sql for condition in asked])
            for narrowed, of_rows, condition in zip(found, values, asked, strict=True):
                if not narrowed.may[number]:
                    assert True not in of_rows, (condition.sql, number)
                if narrowed.must[number]:
                    assert set(of_rows) <= {True}, (condition.sql, number)
    return Counter(
        excluded=sum(int((~each.may).sum()) for each in found),
        certain=sum(int(each.must.sum()) for each in found),
    )


OPTIONS: list[dict[str, Any]] = [
    {},
    {"version": "1.0"},
    {"version": "2.4", "coerce_timestamps": "ms", "allow_truncated_timestamps": True},
    {"use_deprecated_int96_timestamps": True},
    {"store_decimal_as_integer": True, "use_dictionary": False},
    {"write_statistics": False},
    {"write_statistics": ["i32", "text"]},
    {"store_schema": False, "data_page_version": "2.0"},
]
"""What pyarrow's writer can be asked for that changes a footer. A timestamp near the end of its
range is not converted to nanoseconds by either."""


def within_int96(rows: pa.Table) -> pa.Table:
    """Without times that a form of nanoseconds does not hold."""
    for name in ("moment", "local"):
        column = rows[name].cast(pa.int64())
        near = pa.array([v is not None and abs(v) < 10**15 for v in column.to_pylist()])
        kept = pc.if_else(near, column, pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, kept.cast(rows[name].type))
    return rows


@settings(max_examples=few(25, 800), deadline=None)
@given(
    tables(), st.integers(1, 5), st.sampled_from(OPTIONS),
    st.lists(conditions(), min_size=1, max_size=5),
)  # fmt: skip
def test_facts_of_files_of_pyarrow_agree_with_the_rows(
    rows: pa.Table, group_rows: int, options: dict[str, Any], asked: list[Condition]
) -> None:
    if "use_deprecated_int96_timestamps" in options or "coerce_timestamps" in options:
        rows = within_int96(rows)
    check(by_pyarrow(rows, group_rows, **options), asked)


SOME = settings(
    max_examples=few(10, 200), deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@SOME
@given(tables(), st.lists(conditions(), min_size=1, max_size=8))
def test_facts_of_our_files_agree_with_the_rows(rows: pa.Table, asked: list[Condition]) -> None:
    if rows.num_rows:
        check(by_us(rows), asked)


@SOME
@given(tables(), st.lists(conditions(), min_size=1, max_size=8))
def test_facts_of_files_of_duckdb_agree_with_the_rows(
    tmp_path: Path, rows: pa.Table, asked: list[Condition]
) -> None:
    check(by_duckdb(rows, tmp_path / "f.parquet"), asked)


@SOME
@given(tables(), st.integers(1, 5), st.lists(conditions(), min_size=1, max_size=8))
def test_facts_of_files_of_deltalake_agree_with_the_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, group_rows: int,
    asked: list[Condition],
) -> None:  # fmt: skip
    if rows.num_rows:
        check(by_deltalake(rows, tmp_path_factory.mktemp("t") / "t", group_rows), asked)


def extremes(kind: Kind) -> list[Condition]:
    """Comparisons with each value of a column that can be a constant."""
    return [
        Condition(
            tree.Binary(
                op=op,
                left=tree.ColumnRef(parts=(kind.name,), type=SQL_TYPES[kind.name]),
                right=literal,
                type=BOOLEAN,
            ),
            f'"{kind.name}" {op} {sql}',
        )
        for literal, sql in constants(kind)
        for op in ("=", "<", "<=", ">", ">=", "!=")
    ]


@pytest.mark.part(9)
@pytest.mark.parametrize("kind", USED, ids=lambda kind: kind.name)
def test_every_type_is_decided_at_its_extremes(kind: Kind) -> None:
    asked = extremes(kind)
    decided: Counter[str] = Counter()
    for table in kind_tables(USED):
        decided += check(by_pyarrow(table, 1), asked)
    assert decided["excluded"] > len(asked) // 2
    assert decided["certain"] > len(asked) // 4


def test_files_of_spark_are_decided_at_the_extremes(spark: SparkSession, tmp_path: Path) -> None:
    asked = [condition for kind in USED for condition in extremes(kind)]
    decided: Counter[str] = Counter()
    columns = [kind.name for kind in USED]
    rows = [table.select(columns) for table in kind_tables(USED)]
    for number, table in enumerate([rows[0], rows[-2], rows[-1]]):
        pq.write_table(table, tmp_path / f"{number}.parquet")
        written = tmp_path / f"t{number}"
        frame = spark.read.parquet(str(tmp_path / f"{number}.parquet")).coalesce(1)
        frame.write.option("compression", "none").parquet(str(written))
        [file] = written.glob("*.parquet")
        decided += check(file.read_bytes(), asked)
    assert decided["excluded"] > len(asked)
    assert decided["certain"] > len(asked) // 4


ROWS = pa.table(
    {
        "i32": pa.array([1, 2, 3, 4, None, None, 7, None], pa.int32()),
        "text": ["a", "b", "b", "c", None, "d", "e", "e"],
        "f64": [0.5, 1.5, float("nan"), 2.5, None, None, -0.0, 0.0],
        "dec38": pa.array([Decimal(n) for n in range(8)], pa.decimal128(38, 10)),
        "moment": pa.array(range(8), pa.timestamp("us", "UTC")),
        "local": pa.array(range(8), pa.timestamp("us")),
        "a.b": pa.array(range(8), pa.int64()),
        "a": pa.array([{"b": 100 + n} for n in range(8)]),
    }
)
"""Four row groups of two rows."""


def narrowed(text: str, data: bytes, **options: Any) -> tuple[str, str]:
    """The row groups on whose rows a condition may be true, and those on which it must be."""
    where = parse_where(text, Schema.from_json(SCHEMA_JSON))
    found = RowGroups(facts_of(data)).narrow(where, SCHEMA, **options)
    return shown(found.may), shown(found.must)


def shown(mask: Any) -> str:
    return " ".join(str(number) for number in np.flatnonzero(mask))


@pytest.mark.parametrize(
    ("text", "may", "must"),
    [
        ("i32 < 3", "0", "0"),
        ("i32 <= 3", "0 1", "0"),
        ("i32 = 7", "3", ""),
        ("i32 IS NULL", "2 3", "2"),
        ("i32 IS NOT NULL", "0 1 3", "0 1"),
        ("i32 <=> NULL", "2 3", "2"),
        ("i32 <=> 1", "0", ""),
        ("i32 != 7", "0 1", "0 1"),
        ("NOT (i32 > 2)", "0", "0"),
        ("i32 IN (2, 4)", "0 1", ""),
        ("i32 < 2.5", "0", "0"),
        ("text >= 'e'", "3", "3"),
        ("text LIKE 'b%'", "0 1", ""),
        ("f64 < 1", "0 3", ""),  # NaN is not counted
        ("f64 > -1", "0 1 3", "0 1 3"),  # NaN is greater
        ("f64 > 100", "0 1 3", ""),
        ("f64 = 0", "3", ""),
        ("dec38 >= 6", "3", ""),
        ("dec38 > 4.5", "2 3", "3"),
        ("moment >= TIMESTAMP '1970-01-01 00:00:00.000006'", "3", "3"),
        ("local < TIMESTAMP_NTZ '1970-01-01 00:00:00.000002'", "0", "0"),
        ("`a.b` > 3", "2 3", "2 3"),
        ("i32 + 1 = 2", "0 1 2 3", ""),
        ("i32 < 3 AND text = 'b'", "0", ""),
        ("i32 < 3 OR text >= 'e'", "0 3", "0 3"),
        ("whole38 = 1", "0 1 2 3", ""),
    ],
)
def test_row_groups_that_statistics_decide(text: str, may: str, must: str) -> None:
    assert narrowed(text, by_pyarrow(ROWS, 2)) == (may, must)


def test_a_field_of_a_struct_is_not_taken_for_a_column_of_that_name() -> None:
    facts = facts_of(by_pyarrow(ROWS, 2))
    [key] = [key for key in facts.columns if key.name == "a.b"]
    assert facts.columns[key].high.to_pylist() == [1, 3, 5, 7]
    assert "b" not in {key.name for key in facts.columns}
    nested = facts_of(by_pyarrow(ROWS.select(["a"]), 2))
    assert not nested.columns
    both = pa.table({"i32": [1], "st": [{"i32": 100}]})
    [column] = facts_of(by_pyarrow(both, 1)).columns.values()
    assert column.high.to_pylist() == [1]


@pytest.mark.parametrize(
    ("stored", "name", "text", "may"),
    [
        (pa.int8(), "i64", "i64 = 6", "3"),
        (pa.int32(), "i64", "i64 > 5", "3"),
        (pa.int32(), "f64", "f64 < 1.5D", "0"),
        (pa.int32(), "dec9", "dec9 >= 6", "3"),
        (pa.int64(), "dec38", "dec38 < 1.5", "0"),
        (pa.float32(), "f64", "f64 < 1.5D", "0"),
        (pa.decimal128(5, 1), "dec9", "dec9 > 5.5", "3"),
        (pa.decimal128(9, 2), "dec38", "dec38 > 5.5", "3"),
        (pa.decimal128(12, 1), "dec9", "dec9 > 5.5", "0 1 2 3"),  # no widening
        (pa.int64(), "f64", "f64 < 1.5D", "0 1 2 3"),
        (pa.uint32(), "i64", "i64 > 5", "0 1 2 3"),
        (pa.string(), "i64", "i64 > 5", "0 1 2 3"),
        (pa.binary(), "text", "text > '5'", "0 1 2 3"),
        (pa.int64(), "text", "text > '5'", "0 1 2 3"),
        (pa.timestamp("us", "UTC"), "local", "local > '1970-01-01 00:00:00.000005'", "0 1 2 3"),
        (pa.timestamp("us"), "moment", "moment > '1970-01-01 00:00:00.000005'", "0 1 2 3"),
        (pa.time64("us"), "i64", "i64 > 5", "0 1 2 3"),
    ],
    ids=str,
)
def test_values_of_another_type_decide_where_every_reader_converts_them_alike(
    stored: pa.DataType, name: str, text: str, may: str
) -> None:
    numbers: pa.Array = pa.array(range(8), pa.int64())
    if pa.types.is_binary(stored):
        numbers = numbers.cast(pa.string())
    if pa.types.is_decimal(stored):
        numbers = numbers.cast(pa.decimal128(38, stored.scale))
    rows = pa.table({name: numbers.cast(stored)})
    assert narrowed(text, by_pyarrow(rows, 2))[0] == may


def test_dates_are_read_as_timestamps_without_a_zone() -> None:
    rows = pa.table({"local": pa.array(range(8), pa.int32()).cast(pa.date32())})
    text = "local >= TIMESTAMP_NTZ '1970-01-07 00:00:00'"
    assert narrowed(text, by_pyarrow(rows, 2)) == ("3", "3")
    assert narrowed("local > TIMESTAMP_NTZ '1970-01-07 00:00:00'", by_pyarrow(rows, 2)) == ("3", "")


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_decide_in_every_unit(unit: str) -> None:
    seconds = pa.array(range(8), pa.int64()).cast(pa.timestamp("s", "UTC"))
    data = by_pyarrow(pa.table({"moment": seconds.cast(pa.timestamp(unit, "UTC"))}), 2)
    assert narrowed("moment = TIMESTAMP '1970-01-01 00:00:06'", data) == ("3", "")
    assert narrowed("moment < TIMESTAMP '1970-01-01 00:00:04'", data) == ("0 1", "0 1")


def test_nanoseconds_may_be_rounded_up_or_down() -> None:
    nanos = pa.array([1_999, 2_000], pa.int64()).cast(pa.timestamp("ns", "UTC"))
    data = by_pyarrow(pa.table({"moment": nanos}), 1)
    assert narrowed("moment = TIMESTAMP '1970-01-01 00:00:00.000001'", data)[0] == "0"
    assert narrowed("moment = TIMESTAMP '1970-01-01 00:00:00.000002'", data)[0] == "0 1"


@pytest.mark.parametrize(
    ("metadata", "may"),
    [
        ({}, "0"),
        ({"org.apache.spark.version": "4.0.0"}, "0"),
        ({"org.apache.spark.version": "2.4.8"}, "0 1"),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}, "0 1"),
    ],
    ids=["other writers", "Spark 4", "Spark 2", "Spark 3 in legacy mode"],
)
def test_dates_that_spark_rebases_exclude_nothing(metadata: dict[str, str], may: str) -> None:
    days = pa.array([-200_000, -200_000, -190_000, 0, 1, 2], pa.int32()).cast(pa.date32())
    data = by_pyarrow(pa.table({"day": days}).replace_schema_metadata(metadata), 2)
    assert narrowed("day < DATE '1440-01-01'", data)[0] == may


def test_columns_are_found_by_their_physical_name_and_field_id() -> None:
    def table_schema(name: str, id_: int) -> StructType:
        mapping = {"delta.columnMapping.physicalName": name, "delta.columnMapping.id": id_}
        field = {"name": "i32", "type": "integer", "nullable": True, "metadata": mapping}
        return schema_.parse(json.dumps({"type": "struct", "fields": [field]}))

    stored = pa.schema([pa.field("col-1", pa.int32(), metadata={"PARQUET:field_id": "7"})])
    data = by_pyarrow(pa.table([pa.array([1, 2], pa.int32())], schema=stored), 1)
    groups = RowGroups(facts_of(data))
    where = parse_where("i32 = 1", Schema.from_json(SCHEMA_JSON))

    def may(name: str, id_: int, *, by_id: bool) -> str:
        return shown(groups.narrow(where, table_schema(name, id_), by_id=by_id).may)

    assert may("col-1", 7, by_id=True) == may("col-1", 9, by_id=False) == "0"
    assert may("col-1", 9, by_id=True) == "0 1"
    assert may("i32", 7, by_id=True) == "0 1"


@pytest.mark.parametrize("names", [("x", "X"), ("x", "x")])
def test_columns_that_are_called_alike_are_unknown(names: tuple[str, str]) -> None:
    rows = pa.table([pa.array([1, 2]), pa.array([3, 4])], names=names)
    assert not facts_of(by_pyarrow(rows, 1)).columns


def test_partition_values_decide_with_facts() -> None:
    codes = np.array([0, 0, 1, -1])
    known = {"text": PartitionBounds(STRING, codes, [b"x", b"y"], None)}
    data = by_pyarrow(ROWS.drop_columns(["text"]), 2)
    assert narrowed("text = 'x' AND i32 < 3", data, known=known) == ("0", "0")
    assert narrowed("text = 'x'", data, known=known) == ("0 1 3", "0 1")
    chosen = np.array([3, 1])
    some = {"text": known["text"].take(chosen)}
    assert narrowed("text = 'x' AND i32 >= 3", data, known=some, groups=chosen) == ("0 1", "1")


def test_a_partition_column_in_a_file_decides_nothing() -> None:
    """Its values are those of the log, whatever the file holds."""
    data = by_pyarrow(ROWS, 2, bloom_filter_options={"text": {"ndv": 10}})
    groups = RowGroups(facts_of(data))
    where = parse_where("text = 'q' AND i32 < 3", Schema.from_json(SCHEMA_JSON))
    schema = SCHEMA.without(("text",))
    found = groups.narrow(where, schema)
    assert (shown(found.may), shown(found.must)) == ("0", "")
    codes = np.array([0, 0, 0, 0])
    known = {"text": PartitionBounds(STRING, codes, [b"q"], None)}
    found = groups.narrow(where, schema, known=known)
    assert (shown(found.may), shown(found.must)) == ("0", "0")
    where = parse_where("text = 'q' AND i32 = 1", Schema.from_json(SCHEMA_JSON))
    found = groups.narrow(where, schema, known=known, load=no_filter)
    assert shown(found.may) == "0"


def no_filter(places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
    raise AssertionError(f"{len(places)} filters were asked for")


def test_facts_of_many_files_decide_as_those_of_each() -> None:
    parts = [
        facts_of(by_pyarrow(ROWS.select(["i32", "text"]), 2)),
        facts_of(by_pyarrow(ROWS.select(["a.b"]), 3)),
        facts_of(by_pyarrow(pa.table({"i32": pa.array([9, 2**40])}), 1)),  # wider in this file
        facts_of(by_pyarrow(ROWS.slice(0, 0), 2)),
    ]
    whole = concat(parts)
    assert whole.groups.tolist() == [4, 3, 2, 1]
    where = parse_where("i32 < 3", Schema.from_json(SCHEMA_JSON))
    found = RowGroups(whole).narrow(where, SCHEMA)
    each = [RowGroups(part).narrow(where, SCHEMA) for part in parts]
    assert found.may.tolist() == [yes for one in each for yes in one.may.tolist()]
    assert found.must.tolist() == [yes for one in each for yes in one.must.tolist()]
    assert shown(found.may) == "0 4 5 6"
    some = whole.take(np.array([2, 0]))
    again = RowGroups(some).narrow(where, SCHEMA)
    assert again.may.tolist() == [*each[2].may.tolist(), *each[0].may.tolist()]
    assert some.paths.to_pylist() == ["f.parquet"] * 2


def test_without_files_nothing_is_found() -> None:
    where = parse_where("i32 < 3", Schema.from_json(SCHEMA_JSON))
    found = RowGroups(concat([])).narrow(where, SCHEMA)
    assert len(found.may) == len(found.must) == 0
