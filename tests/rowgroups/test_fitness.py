"""Which files are copied, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowgroups.writers import SCHEMA, TABLE, footer_of, pyarrow, rows
from tandem.delta.datafiles import copyable as fitness
from tandem.delta.datafiles.copyable import Demands, Unfit, counted_reasons, is_small, unfit
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.schema import COLUMN_ID, PHYSICAL_NAME, Field, PrimitiveType, StructType, parse

DEFAULT_ROWS = fitness.GROUP_ROWS


@pytest.fixture(autouse=True)
def _small_row_groups_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "GROUP_ROWS", 1)


def found(folder: Path, table: pa.Table | None = None, *, of: TableFormat = TABLE,
          deleted: int = 0, **options: Any) -> Unfit | None:  # fmt: skip
    path = folder / "a.parquet"
    pyarrow(**options)(path, rows(1) if table is None else table)
    return unfit(footer_of(path), Demands.of(of), deleted=deleted)


def properties(**more: str) -> TableFormat:
    return replace(TABLE, configuration={k.replace("_", "."): v for k, v in more.items()})


def test_a_file_of_the_table_fits(tmp_path: Path) -> None:
    assert found(tmp_path) is None


@pytest.mark.parametrize(("rows_", "size"), [(700, 1 << 40), (1 << 40, 4_000)])
def test_row_groups_fit_by_rows_or_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_: int, size: int
) -> None:
    monkeypatch.setattr(fitness, "GROUP_ROWS", rows_)
    monkeypatch.setattr(fitness, "GROUP_BYTES", size)
    assert found(tmp_path, row_group_size=750) is None
    assert found(tmp_path, row_group_size=10) is Unfit.SMALL


@pytest.mark.parametrize(("deleted", "why"), [(75, None), (76, Unfit.DELETED)])
def test_at_most_one_row_in_twenty_is_deleted(
    tmp_path: Path, deleted: int, why: Unfit | None
) -> None:
    assert found(tmp_path, deleted=deleted) is why


def test_row_groups_of_several_sizes_fit_by_their_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large row group outweighs small ones, which cost a reader little then."""
    path = tmp_path / "a.parquet"
    table = rows(1)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for start, size in ((0, 1_300), (1_300, 100), (1_400, 100)):
            writer.write_table(table.slice(start, size))
    footer = footer_of(path)
    assert [group.rows for group in footer.groups] == [1_300, 100, 100]
    monkeypatch.setattr(fitness, "GROUP_BYTES", 1 << 40)
    for least, why in ((500, None), (501, Unfit.SMALL)):
        monkeypatch.setattr(fitness, "GROUP_ROWS", least)
        assert unfit(footer, Demands.of(TABLE)) is why


@pytest.mark.parametrize("default", [1, 1 << 40])
@pytest.mark.parametrize(
    ("least", "why"),
    [(0, None), (1, None), (500, None), (501, Unfit.SMALL), (2**31 - 1, Unfit.SMALL)],
)
def test_a_number_of_rows_that_is_given_decides_whatever_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: int, least: int, why: Unfit | None
) -> None:
    for limit in ("GROUP_ROWS", "GROUP_BYTES"):
        monkeypatch.setattr(fitness, limit, default)
    path = tmp_path / "a.parquet"
    pyarrow(row_group_size=500)(path, rows(1))
    assert unfit(footer_of(path), Demands.of(TABLE, least)) is why
    assert unfit(footer_of(path), Demands.of(TABLE)) is (None if default == 1 else Unfit.SMALL)


@pytest.mark.parametrize(
    ("rows_", "size", "least", "small"),
    [
        (63_999, (4 << 20) - 1, None, True),
        (64_000, 1, None, False),
        (1, 4 << 20, None, False),
        (999, 1 << 40, 1_000, True),
        (1_000, 1, 1_000, False),
        (1, 1, 0, False),
        (0, 0, 0, False),
        (0, 0, None, True),
    ],
)
def test_what_is_small(
    rows_: int, size: int, least: int | None, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitness, "GROUP_ROWS", DEFAULT_ROWS)
    assert is_small(rows_, size, least) is small


@pytest.mark.parametrize("least", [None, 0])
def test_a_file_that_does_not_fit_is_encoded_whatever_its_size(
    tmp_path: Path, least: int | None
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow(compression="snappy")(path, rows(1))
    assert unfit(footer_of(path), Demands.of(TABLE, least)) is Unfit.CODEC
    pyarrow()(path, rows(1))
    assert unfit(footer_of(path), Demands.of(TABLE, least), deleted=76) is Unfit.DELETED


@pytest.mark.parametrize("codec", ["snappy", "none", "gzip", "brotli", "lz4"])
def test_files_of_another_codec_are_encoded_once(tmp_path: Path, codec: str) -> None:
    assert found(tmp_path, compression=codec) is Unfit.CODEC
    of = properties(delta_parquet_compression_codec=codec)
    assert found(tmp_path, compression=codec, of=of) is None


def _changed(column: str, type_: pa.DataType) -> pa.Table:
    index = SCHEMA.names.index(column)
    return rows(1).set_column(index, column, pa.nulls(1_500, type_))


OTHERS: Mapping[str, pa.Table] = {
    "a narrower type": _changed("id", pa.int32()),
    "a time zone": _changed("t", pa.timestamp("us")),
    "milliseconds": _changed("t", pa.timestamp("ms", "UTC")),
    "fewer columns": rows(1).drop_columns(["bytes"]),
    "more columns": rows(1).append_column("more", pa.nulls(1_500, pa.string())),
    "another order": rows(1).select(SCHEMA.names[::-1]),
    "another spelling": rows(1).rename_columns([name.upper() for name in SCHEMA.names]),
}


@pytest.mark.parametrize("table", OTHERS.values(), ids=OTHERS)
def test_files_with_other_columns_are_encoded(tmp_path: Path, table: pa.Table) -> None:
    assert found(tmp_path, table) is Unfit.COLUMNS


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ((1, 2), None),
        ((None, None), Unfit.COLUMNS),
        ((1, None), Unfit.COLUMNS),
        ((2, 1), Unfit.COLUMNS),
        ((1, 3), Unfit.COLUMNS),
    ],
)
@pytest.mark.parametrize("mode", ["id", "name"])
def test_field_ids_are_those_of_the_table(
    tmp_path: Path, ids: tuple[int | None, ...], why: Unfit | None, mode: str
) -> None:  # fmt: skip
    names = ("id", "s")
    fields = [
        Field(name, PrimitiveType(type_), metadata={COLUMN_ID: id_, PHYSICAL_NAME: f"col-{id_}"})
        for id_, (name, type_) in enumerate(zip(names, ("long", "string"), strict=True), 1)
    ]
    mapped = {"delta.columnMapping.mode": mode}
    of = TableFormat(StructType(tuple(fields)), configuration=mapped)
    columns = [
        pa.field(
            f"col-{number}",
            SCHEMA.field(name).type,
            metadata=None if id_ is None else {"PARQUET:field_id": str(id_)},
        )
        for number, (name, id_) in enumerate(zip(names, ids, strict=True), 1)
    ]
    table = rows(1).select(names)
    table = pa.table(table.columns, schema=pa.schema(columns))
    assert found(tmp_path, table, of=of) is why


def test_field_ids_of_a_table_without_column_mapping_mean_nothing(tmp_path: Path) -> None:
    column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"})
    table = pa.table([rows(1)["id"]], schema=pa.schema([column]))
    of = TableFormat(StructType((Field("id", PrimitiveType("long")),)))
    assert found(tmp_path, table, of=of) is None


def test_int96_is_encoded(tmp_path: Path) -> None:
    times = rows(1).select(["id"]).append_column(
        "t", pa.array([0] * 1_500, pa.timestamp("us"))
    )  # fmt: skip
    fields = (Field("id", PrimitiveType("long")), Field("t", PrimitiveType("timestamp")))
    of = TableFormat(StructType(fields))
    assert found(tmp_path, times, of=of, use_deprecated_int96_timestamps=True) is Unfit.COLUMNS


def test_required_columns_fit(tmp_path: Path) -> None:
    table = rows(1).select(["id"])
    table = table.cast(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    of = TableFormat(StructType((Field("id", PrimitiveType("long"), nullable=False),)))
    assert found(tmp_path, table, of=of) is None


@pytest.mark.parametrize("options", [{"write_statistics": False}, {"write_statistics": ["id"]}])
def test_files_without_statistics_are_encoded(tmp_path: Path, options: dict[str, Any]) -> None:
    assert found(tmp_path, **options) is Unfit.STATISTICS


def test_columns_with_filters_must_have_them(tmp_path: Path) -> None:
    of = replace(TABLE, filters={"id": 0.01})
    assert found(tmp_path, of=of) is Unfit.FILTERS
    assert found(tmp_path, of=of, bloom_filter_options={"id": {"ndv": 10, "fpp": 0.01}}) is None


@pytest.mark.parametrize(
    ("version", "legacy", "why"),
    [
        ("2.4.8", False, Unfit.CALENDAR),
        ("3.0.1", False, Unfit.CALENDAR),
        ("3.5.1", True, Unfit.CALENDAR),
        ("3.5.1", False, None),
    ],
)
def test_files_of_the_julian_calendar_are_encoded(
    tmp_path: Path, version: str, legacy: bool, why: Unfit | None
) -> None:
    pairs = {"org.apache.spark.version": version}
    if legacy:
        pairs["org.apache.spark.legacyDateTime"] = ""
    assert found(tmp_path, rows(1).replace_schema_metadata(pairs)) is why


@pytest.mark.parametrize(
    ("creator", "why"),
    [
        (b"parquet-mr version 1.8.1 (build 4aba4dae)", Unfit.WRITER),
        (b"parquet-mr version 1.9.0", Unfit.WRITER),
        (b"parquet-mr version 1.10.1", None),
        (b"parquet-mr version 1.15.2", None),
        (b"parquet-cpp version 1.3.2-SNAPSHOT", Unfit.WRITER),
        (b"parquet-cpp-arrow version 26.0.1", None),
        (b"", None),
    ],
)  # fmt: skip
def test_files_of_old_writers_are_encoded(
    tmp_path: Path, creator: bytes, why: Unfit | None
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow()(path, rows(1))
    assert unfit(replace(footer_of(path), creator=creator), Demands.of(TABLE)) is why


def test_nested_columns_fit(tmp_path: Path) -> None:
    schema = parse(
        '{"type":"struct","fields":['
        '{"name":"l","type":{"type":"array","elementType":"string","containsNull":true},'
        '"nullable":true,"metadata":{}},'
        '{"name":"m","type":{"type":"map","keyType":"string","valueType":"double",'
        '"valueContainsNull":true},"nullable":true,"metadata":{}},'
        '{"name":"p","type":{"type":"struct","fields":['
        '{"name":"x","type":"decimal(10,2)","nullable":true,"metadata":{}}]},'
        '"nullable":true,"metadata":{}}]}'
    )
    table = pa.table(
        {
            "l": pa.array([["a", None], [], None], pa.list_(pa.string())),
            "m": pa.array([[("k", 1.5)], [], None], pa.map_(pa.string(), pa.float64())),
            "p": pa.array(
                [{"x": 1}, {"x": None}, None], pa.struct([("x", pa.decimal128(10, 2))])
            ),
        }
    )  # fmt: skip
    of = TableFormat(schema)
    assert found(tmp_path, table, of=of) is None
    assert found(tmp_path, table, of=of, store_decimal_as_integer=True) is None
    assert found(tmp_path, table, of=of, use_compliant_nested_type=False) is Unfit.COLUMNS
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 3


def test_reasons_are_counted() -> None:
    assert counted_reasons({Unfit.CODEC: 1, Unfit.SMALL: 3}) == (
        "3 files with small row groups",
        "1 file with another codec than new files",
    )
