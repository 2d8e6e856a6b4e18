"""Four engines that filter the rows of a table: they skip files, row groups and pages by what
is written beside the values, each in its own way.

`evaluated` gives the truth, as the engine itself sees it: filters are columns of a query over all
rows, by which it cannot skip any. `found` filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from delta_session import interpreting
from support.values.kinds import Filter, for_datafusion, for_duckdb, for_spark
from tandem.delta.log.delta_log import DeltaLog
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ids = frozenset[int]
Spelling = Callable[[pa.DataType, Any], str]


def live_files(root: Path) -> list[str]:
    """Of the latest version, which must have no deletion vector: such readers know of none."""
    adds = list(DeltaLog(open_store(root.as_uri())).snapshot().adds())
    assert not any(add.deletion_vector for add in adds)
    return [str(root / unquote(add.path)) for add in adds]


def _sql(filter_: Filter, spell: Spelling, nested: str) -> str:
    column = nested if pa.types.is_struct(filter_.kind.arrow) else filter_.kind.name
    if filter_.value is None:
        return f"{column} {filter_.operator}"
    return f"{column} {filter_.operator} {spell(filter_.kind.leaf, filter_.value)}"


def _sets(rows: pa.Table, count: int) -> list[Ids]:
    """From `id` and a column of truth for each filter."""
    ids = rows["id"].to_pylist()
    columns = [rows[f"c{n}"].to_pylist() for n in range(count)]
    return [frozenset(i for i, yes in zip(ids, c, strict=True) if yes) for c in columns]


def _projection(texts: Sequence[str]) -> str:
    return ", ".join(["id", *(f"({text}) AS c{n}" for n, text in enumerate(texts))])


def _branches(texts: Sequence[str], source: str) -> str:
    """One query for all filters, each with a scan of its own."""
    return " UNION ALL ".join(
        f"SELECT {n} AS f, id FROM {source} WHERE {text}" for n, text in enumerate(texts)
    )


def _by_branch(rows: pa.Table, count: int) -> list[Ids]:
    found: list[set[int]] = [set() for _ in range(count)]
    for number, id_ in zip(rows["f"].to_pylist(), rows["id"].to_pylist(), strict=True):
        assert id_ not in found[number], "a row is there twice"
        found[number].add(id_)
    return [frozenset(ids) for ids in found]


@dataclass(frozen=True)
class Spark:
    """Spark + Delta as the session is set."""

    session: SparkSession
    name: str = "Spark"

    @classmethod
    def quick(cls, session: SparkSession) -> Self:
        return cls(interpreting(session))

    def _source(self, root: Path) -> DataFrame:
        return self.session.read.format("delta").load(str(root))

    def evaluated(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_spark, "nested.f") for f in filters]
        self._source(root).createOrReplaceTempView("t")
        return _sets(self.session.sql(f"SELECT {_projection(texts)} FROM t").toArrow(), len(texts))

    def found(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_spark, "nested.f") for f in filters]
        self._source(root).createOrReplaceTempView("t")
        return _by_branch(self.session.sql(_branches(texts, "t")).toArrow(), len(texts))


@dataclass(frozen=True)
class SparkOnFiles(Spark):
    """The live files alone: without Delta, which runs a job for each filter."""

    name: str = "Spark on files"

    def _source(self, root: Path) -> DataFrame:
        return self.session.read.parquet(*live_files(root))


@dataclass(frozen=True)
class DuckDB:
    """Reads the live files alone: it skips by their footers."""

    name: str = "DuckDB"

    def _source(self, root: Path) -> str:
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in live_files(root))
        return f"read_parquet([{listed}], hive_partitioning = false)"

    def evaluated(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_duckdb, "nested.f") for f in filters]
        with duckdb.connect() as engine:
            query = f"SELECT {_projection(texts)} FROM {self._source(root)}"
            return _sets(engine.sql(query).to_arrow_table(), len(texts))

    def found(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_duckdb, "nested.f") for f in filters]
        with duckdb.connect() as engine:
            query = _branches(texts, self._source(root))
            return _by_branch(engine.sql(query).to_arrow_table(), len(texts))


@dataclass(frozen=True)
class Deltalake:
    """DataFusion over deltalake: it skips by Delta's statistics and by footers."""

    name: str = "deltalake"

    def _query(self, root: Path, query: str) -> pa.Table:
        builder = QueryBuilder().register("t", DeltaTable(str(root)))
        return pa.table(builder.execute(query))

    def evaluated(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_datafusion, "nested['f']") for f in filters]
        return _sets(self._query(root, f"SELECT {_projection(texts)} FROM t"), len(texts))

    def found(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        texts = [_sql(f, for_datafusion, "nested['f']") for f in filters]
        return _by_branch(self._query(root, _branches(texts, "t")), len(texts))


@dataclass(frozen=True)
class Polars:
    """Reads the live files alone: it skips by their footers."""

    name: str = "Polars"

    def _scan(self, root: Path) -> pl.LazyFrame:
        return pl.scan_parquet(live_files(root), hive_partitioning=False)

    def evaluated(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        rows = self._scan(root).collect()
        # INT96, which is how Spark writes instants, is nanoseconds without a zone here.
        rows = rows.with_columns(pl.selectors.datetime("ns").cast(pl.Datetime("us")))
        zoned = {f.kind.name for f in filters if getattr(f.kind.arrow, "tz", None)}
        instants = pl.selectors.datetime("us", time_zone=None) & pl.selectors.by_name(
            *zoned, require_all=False
        )
        rows = rows.with_columns(instants.dt.replace_time_zone("UTC"))
        named = [_polars(f).alias(f"c{n}") for n, f in enumerate(filters)]
        return _sets(rows.select("id", *named).to_arrow(), len(filters))

    def found(self, root: Path, filters: Sequence[Filter]) -> list[Ids]:
        rows = [self._scan(root).filter(_polars(f)).select("id") for f in filters]
        return [frozenset(frame["id"].to_list()) for frame in pl.collect_all(rows)]


def _polars(filter_: Filter) -> pl.Expr:
    kind = filter_.kind
    column = pl.col(kind.name)
    if pa.types.is_struct(kind.arrow):
        column = column.struct.field(kind.arrow.field(0).name)
    match filter_.operator:
        case "IS NULL":
            return column.is_null()
        case "IS NOT NULL":
            return column.is_not_null()
    wanted = _literal(kind.leaf, filter_.value)
    match filter_.operator:
        case "=":
            return column == wanted
        case "<>":
            return column != wanted
        case "<":
            return column < wanted
        case "<=":
            return column <= wanted
        case ">":
            return column > wanted
        case ">=":
            return column >= wanted
        case other:
            raise ValueError(other)


def _literal(type_: pa.DataType, value: Any) -> pl.Expr:
    if pa.types.is_date(type_):
        return pl.lit(value, dtype=pl.Int32).cast(pl.Date)
    if pa.types.is_timestamp(type_):
        return pl.lit(value, dtype=pl.Int64).cast(pl.Datetime("us", type_.tz))
    if pa.types.is_decimal(type_):
        return pl.lit(value, dtype=pl.Decimal(type_.precision, type_.scale))
    types = {pa.float32(): pl.Float32, pa.int8(): pl.Int8, pa.int16(): pl.Int16,
             pa.int32(): pl.Int32, pa.int64(): pl.Int64}  # fmt: skip
    return pl.lit(value, dtype=types.get(type_))


Reader = Spark | DuckDB | Deltalake | Polars


def differences(
    reader: Reader, truth: Sequence[Ids], found: Sequence[Ids], filters: Sequence[Filter]
) -> list[str]:
    """What a filter loses or brings, a line each."""
    return [
        f"{reader.name}: {f.kind.name} {f.operator} {f.value!r:.40}: "
        f"lost {sorted(evaluated - ids)}, too many {sorted(ids - evaluated)}"
        for f, evaluated, ids in zip(filters, truth, found, strict=True)
        if evaluated != ids
    ]
