"""`spark.read.format("tandem")`: the rows of `tandem.mergelog.scan()`, by real tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergelog.lake import Merged, keys, made, table
from mergelog.services import bits
from mergelog.test_connector_reader import COLUMNS, Random, rows_of
from mergelog.test_log_values import NESTED, ids, nested
from support.some import some
from support.values.kinds import KINDS
from tandem import mergelog
from tandem.delta.scan import scan
from tandem.errors import TableNotFound
from tandem.spark.connector import register
from tandem.spark.runtime.control import translate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHED = "spark.sql.python.filterPushdown.enabled"


@dataclass(frozen=True)
class Reader:
    """Reads by Spark, in a session of its own."""

    session: SparkSession

    def load(self, path: Path, **options: str) -> DataFrame:
        return self.session.read.format("tandem").options(**options).load(str(path))

    def rows(self, path: Path, **options: str) -> list[tuple[Any, ...]]:
        return rows_of(self.load(path, **options).toArrow())

    @contextmanager
    def pushing(self) -> Iterator[None]:
        self.session.conf.set(PUSHED, "true")
        try:
            yield
        finally:
            self.session.conf.unset(PUSHED)


@pytest.fixture(scope="module")
def reader(delta_spark: SparkSession) -> Reader:
    session = delta_spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    register(session)
    return Reader(session)


def test_values_of_every_type_come_through(tmp_path: Path, reader: Reader) -> None:
    most = max(len(kind.extremes) for kind in KINDS) + 2
    columns = {
        kind.name: kind.array([*kind.extremes, kind.ordinary, *[None] * most][:most])
        for kind in KINDS
    }
    rows = pa.table({"id": ids(range(most)), **columns})
    flat = made(tmp_path / "flat", rows.slice(0, 2), keys=("id",))
    flat.append(rows.slice(1))
    found = reader.load(tmp_path / "flat").toArrow().sort_by("id")
    for kind in KINDS:
        assert bits(found[kind.name]) == bits(rows[kind.name]), kind.name
    deep = pa.Table.from_pylist([nested(at) for at in range(4)], NESTED)
    deep = deep.add_column(0, "id", ids(range(4)))
    made(tmp_path / "deep", deep.slice(0, 2), keys=("id",)).append(deep.slice(1))
    assert reader.load(tmp_path / "deep").toArrow().sort_by("id").to_pylist() == deep.to_pylist()


def test_a_column_mapped_table_with_odd_names(tmp_path: Path, reader: Reader) -> None:
    path = tmp_path / "t"
    location = f"delta.`{path}`"
    reader.session.sql(
        f"CREATE TABLE {location} (`a, b` INT NOT NULL, `c.d` STRING, "
        "s STRUCT<`x y`: INT>, l ARRAY<STRUCT<e: STRING>>, p DATE) USING delta "
        "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.columnMapping.mode' = 'name')"
    )
    reader.session.sql(
        f"INSERT INTO {location} SELECT id, 'v' || id, named_struct('x y', id), "
        "array(named_struct('e', 'w')), DATE'2024-02-29' FROM range(4)"
    )
    log = mergelog.open_log(str(path))
    mergelog.ensure_log(log, mergelog.LogSettings(("a, b",)), now_ms=0, nonce="made once")
    with mergelog.LogWriter(log, "w") as writer:
        upserts = pa.table({"a, b": [1, 7], "c.d": ["V1", None], "s": [{"x y": 9}, None]})
        writer.append(upserts, pa.table({"a, b": [3]}), batch=0)
    expected = mergelog.scan(str(path)).read_all()
    assert reader.rows(path) == rows_of(expected)
    some_columns = expected.select(["c.d", "a, b"])
    assert reader.rows(path, columns='["c.d", "a, b"]') == rows_of(some_columns)


@pytest.mark.parametrize("seed", some(range(20), every=10))
def test_a_random_table_at_each_version(tmp_path: Path, reader: Reader, seed: int) -> None:
    drawn = Random(tmp_path, seed + 9)
    newest = drawn.merged.log.base.latest_version()
    assert reader.rows(tmp_path) == drawn.expected()
    assert reader.rows(tmp_path, memory="300", columns="v,k") == rows_of(
        drawn.merged.view().select(["v", "k"])
    )
    for version in {0, newest}:
        assert reader.rows(tmp_path, version=str(version)) == drawn.merged.rows(version)
    assert reader.rows(tmp_path, versionAsOf="0", base="true") == rows_of(
        scan(drawn.merged.log.base.snapshot(0), drawn.merged.store).read_all()
    )


CONDITIONS = (
    "k = 12", "k > 14 AND v = 'a'", "k IN (3, 11, 12, 13) AND o IS NOT NULL", "v LIKE 'a%'",
    "NOT k = 12 AND o <=> NULL", "k BETWEEN 8 AND 16", "v LIKE 'b\\\\%%'", "v = '' OR k = 11",
    "o >= 2 AND k < 20", "k = 12 AND length(v) = 1", "v LIKE '%b%'", "k <> 12 AND v IS NULL",
)  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("seed", some(range(8), every=5))
def test_pushed_filters_change_no_row(tmp_path: Path, reader: Reader, seed: int) -> None:
    drawn = Random(tmp_path, 10 * seed + 1)
    whole = reader.session.createDataFrame(drawn.merged.view().cast(COLUMNS)).cache()
    try:
        for condition in some(CONDITIONS, every=2):
            expected = rows_of(whole.where(condition).toArrow())
            assert rows_of(reader.load(tmp_path).where(condition).toArrow()) == expected
            with reader.pushing():
                found = reader.load(tmp_path).where(condition)
                assert rows_of(found.toArrow()) == expected, condition
    finally:
        whole.unpersist()


def test_a_frame_is_the_view_of_its_load(tmp_path: Path, reader: Reader) -> None:
    """Whatever is committed, checkpointed or compacted meanwhile."""
    merged = made(tmp_path / "t", table((1, "a", "x"), (2, "b", "x")))
    merged.append(table((2, "B", "y")))
    frame = reader.load(tmp_path / "t")
    before = merged.rows()
    for number in range(3):
        merged.append(table((1, f"later {number}", None)), keys(2))
        write_deltalake(str(tmp_path / "t"), table((9, "z", None)), mode="append")
    assert rows_of(frame.toArrow()) == before
    assert frame.join(frame, "k").count() == len(before)
    assert reader.rows(tmp_path / "t") == merged.rows() != before


def test_tables_without_a_log_and_without_a_table(tmp_path: Path, reader: Reader) -> None:
    rows: Sequence[tuple[int, str | None, str | None]] = [(1, "a", "x"), (2, None, None)]
    write_deltalake(str(tmp_path / "plain"), table(*rows))
    assert reader.rows(tmp_path / "plain") == rows_of(table(*rows))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own type
        reader.load(tmp_path / "none")
    assert isinstance(translate(caught.value), TableNotFound)


def test_rows_of_a_log_without_a_base_row(tmp_path: Path, reader: Reader) -> None:
    merged: Merged = made(tmp_path / "t", table())
    assert reader.rows(tmp_path / "t") == []
    merged.append(table((1, "a", "x")))
    assert reader.rows(tmp_path / "t") == [(1, "a", "x")]
