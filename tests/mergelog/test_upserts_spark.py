"""Upserts and deletes by key with real Spark: columns, types, names, several tasks, statements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.orders import Orders, rows
from mergelog.services import bits
from mergelog.test_log_values import KEYS, PLAIN, ids, storable
from support.jobs.both_ways import both_ways as both_ways
from support.jobs.inline_runner import InlineRunner
from support.parquet.pages import flip, page_of
from support.values.kinds import KINDS
from tandem import mergelog
from tandem.mergelog.log_table import state_of
from tandem.spec.status import OperationStatus, Phase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture
def jobs(spark: SparkSession) -> InlineRunner:
    return InlineRunner(spark)


def made(folder: Path, base: pa.Table, keys: tuple[str, ...], ordering: str = "") -> Orders:
    write_deltalake(str(folder), base, configuration=VECTORS)
    return logged(folder, keys, ordering)


def logged(folder: Path, keys: tuple[str, ...], ordering: str = "") -> Orders:
    found = Orders(folder)
    settings = mergelog.LogSettings(keys, ordering)
    mergelog.ensure_log(found.log, settings, now_ms=0, nonce=str(folder))
    return found


def upsert(table: Orders, rows_: pa.Table, jobs: InlineRunner, **spec: Any) -> OperationStatus:
    source = {"upsert": {"source": table.source(rows_)}, **spec}
    return table.run(source, name=f"upsert-{len(jobs.seconds)}", jobs=jobs)


def delete(table: Orders, rows_: pa.Table, jobs: InlineRunner) -> OperationStatus:
    source = {"deleteKeys": {"source": table.source(rows_, "deletes")}}
    return table.run(source, name=f"delete-{len(jobs.seconds)}", jobs=jobs)


def view(table: Orders) -> pa.Table:
    return mergelog.MergedView.open(table.log).scan().read_all()


def reason(status: OperationStatus) -> str:
    return status.conditions[0].reason


@pytest.mark.matrix
def test_a_statement_sees_rows_that_were_appended_by_key(
    orders: Orders, jobs: InlineRunner
) -> None:
    before = orders.view()
    assert upsert(orders, rows(range(9, 14), "mine", 9), jobs).phase is Phase.SUCCEEDED
    columns = list(mergelog.MergedView.open(orders.log).settings.columns)
    gone = rows(range(12, 13), "", 9).select(columns)
    assert delete(orders, gone, jobs).phase is Phase.SUCCEEDED
    expected = [row for row in before if row[0] < 9]
    expected += [(n, 9, "mine") for n in (9, 10, 11, 13)]
    assert orders.view() == expected
    change = {"update": {"where": "id >= 11", "set": {"value": "'changed'"}}}
    orders.do(change, name="update", jobs=jobs)
    expected[-2:] = [(11, 9, "changed"), (13, 9, "changed")]
    assert orders.base() == orders.view() == expected
    # The same rows by an ingest from text.
    csv = orders.folder.parent / "rows.csv"
    csv.write_text("id,at,value\n11,10,loaded\n")
    source = {"format": "Csv", "location": csv.as_uri(), "options": {"header": "true"}}
    orders.do({"source": source}, name="load", jobs=jobs)
    assert (11, 10, "loaded") in orders.view()


def test_a_damaged_page_of_the_source_writes_no_block(orders: Orders, jobs: InlineRunner) -> None:
    before = orders.view()
    table = rows(range(20, 40), "mine", 9)
    source = orders.source(table)
    path = orders.folder.parent / "source.parquet"
    pq.write_table(table, path, write_page_checksum=True)
    flip(path, page_of(path, "value"))
    status = orders.run({"upsert": {"source": source}}, jobs=jobs)
    assert status.phase is Phase.FAILED
    assert reason(status) == "SourceUnreadable"
    assert "source.parquet.value: " in status.conditions[0].message
    assert orders.view() == before


def test_values_of_every_type_come_back(tmp_path: Path, jobs: InlineRunner) -> None:
    most = max(len(kind.extremes) for kind in KINDS) + 2
    columns = {
        kind.name: kind.array([*kind.extremes, kind.ordinary, *[None] * most][:most])
        for kind in KINDS
    }
    every = pa.table({"id": ids(range(most)), **columns})
    table = made(tmp_path / "t", every.slice(0, 1), ("id",))
    status = upsert(table, every, jobs)
    assert status.phase is Phase.SUCCEEDED, status
    found = view(table).sort_by("id")
    for kind in KINDS:
        assert bits(found[kind.name]) == bits(every[kind.name]), kind.name


@pytest.mark.matrix
def test_keys_of_every_type_find_their_rows_and_are_refused_twice(
    tmp_path: Path, jobs: InlineRunner
) -> None:
    """All of them are one key, and the rows are written by several tasks."""
    names = tuple(kind.name for kind in KEYS)
    most = max(len(kind.extremes) for kind in KEYS)
    columns = {
        kind.name: kind.array([*kind.extremes, *[kind.ordinary] * most][:most]) for kind in KEYS
    }
    every = pa.table({"n": ids(range(most)), **columns})
    table = made(tmp_path / "t", every, names)
    half = every.slice(0, most // 2).set_column(0, "n", ids(range(100, 100 + most // 2)))
    status = upsert(table, half, jobs, targetFileSize="16Mi")
    assert status.phase is Phase.SUCCEEDED, status
    assert len(state_of(table.log.snapshot()).live) > 1
    assert delete(table, every.slice(most // 2).select(list(names)), jobs).phase is Phase.SUCCEEDED
    assert sorted(view(table)["n"].to_pylist()) == list(range(100, 100 + most // 2))
    twice = pa.concat_tables([half, half])
    status = upsert(table, twice, jobs, targetFileSize="16Mi")
    assert reason(status) == "DuplicateKeys"
    assert f"{half.num_rows} keys" in status.conditions[0].message


@pytest.mark.parametrize("kind", [k for k in KINDS if k.name == "f64"], ids=["double"])
def test_the_ordering_column_decides_between_rows_of_a_source(
    tmp_path: Path, jobs: InlineRunner, kind: Any
) -> None:
    values = [None, float("-inf"), -0.0, 1.0, float("inf"), float("nan")]
    pairs = [(a, b) for n, a in enumerate(values) for b in values[n + 1 :]]
    sides = [
        pa.table(
            {
                "id": ids(range(len(pairs))),
                "o": kind.array([pair[at] for pair in pairs]),
                "who": [who] * len(pairs),
            }
        )
        for at, who in enumerate(("less", "greater"))
    ]
    table = made(tmp_path / "t", sides[0].slice(0, 0), ("id",), "o")
    status = upsert(table, pa.concat_tables([sides[1], sides[0]]), jobs)
    assert status.phase is Phase.SUCCEEDED, status
    assert view(table)["who"].to_pylist() == ["greater"] * len(pairs)
    zeros = pa.table({"id": ids([1, 1]), "o": [0.0, -0.0], "who": ["a", "b"]})
    assert reason(upsert(table, zeros, jobs)) == "DuplicateKeys"
    nulls = pa.table({"id": ids([1, 1]), "o": pa.array([None, None], pa.float64())})
    # Equal deletes of one key are one.
    assert delete(table, nulls, jobs).phase is Phase.SUCCEEDED


def test_odd_names_come_back(tmp_path: Path, jobs: InlineRunner) -> None:
    base = pa.table(
        {"a.b": ids([1, 2]), "x-`y`": ["p", "q"], 'it\'s "ü"': [0.5, None], "CamelCase": [1, 2]}
    )
    table = made(tmp_path / "t", base, ("a.b", "x-`y`"))
    other = base.slice(1).set_column(2, 'it\'s "ü"', pa.array([float("nan")]))
    other = other.rename_columns(["A.B", "X-`Y`", 'IT\'S "ü"', "camelcase"])
    assert upsert(table, other, jobs).phase is Phase.SUCCEEDED
    found = view(table).sort_by("a.b")
    assert found.column_names == base.column_names
    assert bits(found['it\'s "ü"']) == ["0.5", "nan"]
    gone = base.slice(0, 1).select(["x-`y`", "a.b"])
    assert delete(table, gone, jobs).phase is Phase.SUCCEEDED
    assert view(table)["a.b"].to_pylist() == [2]


@pytest.mark.matrix
def test_a_mapped_and_partitioned_table(
    tmp_path: Path, jobs: InlineRunner, delta_spark: SparkSession
) -> None:
    folder = tmp_path / "t"
    delta_spark.sql(
        f"CREATE TABLE delta.`{folder}` (`k 1` BIGINT, p STRING, s STRUCT<`a b`: STRING>, "
        "d DECIMAL(38, 10) NOT NULL) USING delta PARTITIONED BY (p) TBLPROPERTIES "
        "('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')"
    )
    table = logged(folder, ("k 1", "p"))
    source = {
        "k 1": ids([3, 1, 2]),
        "p": ["a/b", "ü", "a/b"],
        "s": pa.array([{"a b": "x"}, None, {"a b": None}], pa.struct([("a b", pa.string())])),
        "d": pa.array(["1.5", "0", "-2"]).cast(pa.decimal128(38, 10)),
    }
    mapped = pa.table(source)
    assert upsert(table, mapped, jobs).phase is Phase.SUCCEEDED
    assert len(state_of(table.log.snapshot()).live) == 2  # a block for each group
    assert view(table).sort_by("k 1").equals(mapped.sort_by("k 1"))
    assert delete(table, mapped.slice(0, 1).select(["p", "k 1"]), jobs).phase is Phase.SUCCEEDED
    table.do({"type": "LogMerge"}, jobs=jobs)
    found = delta_spark.read.format("delta").load(str(folder)).orderBy("`k 1`").collect()
    assert [(row[0], row[1]) for row in found] == [(1, "ü"), (2, "a/b")]
    for name, values in {"d": [None], "p": [""], "k 1": [None]}.items():
        at = mapped.column_names.index(name)
        array = pa.array(values, mapped.schema.field(at).type)
        status = upsert(table, mapped.slice(0, 1).set_column(at, name, array), jobs)
        assert reason(status) == "StatementFailed", name
        message = status.conditions[0].message
        assert name in message
        assert ("k 1: a key is NULL (found: NULL in the row p = 'a/b', s = " in message) is (
            name == "k 1"
        )


WRONG: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a column that the table lacks": ("upsert", {"id": [1], "at": [1], "x": [1]},
                                      "InvalidSpec", "x"),
    "another type": ("upsert", {"id": [1], "at": [1], "value": [[1]]}, "StatementFailed", "value"),
    "a value that does not fit": ("upsert", {"id": [2.0**70], "at": [1]}, "StatementFailed", "id"),
    "no key": ("upsert", {"at": [1]}, "InvalidSpec", "id"),
    "no ordering column": ("deleteKeys", {"id": [1]}, "InvalidSpec", "at"),
    "a delete with more than its key": ("deleteKeys", {"id": [1], "at": [1], "value": ["x"]},
                                        "InvalidSpec", "value"),
}  # fmt: skip


def test_a_source_that_does_not_fit_is_refused_and_nothing_is_appended(
    tmp_path: Path, jobs: InlineRunner
) -> None:
    table = made(tmp_path / "t", rows(range(2), "base", 1), ("id",), "at")
    before = table.view()
    for number, (what, (statement, columns, expected, named)) in enumerate(WRONG.items()):
        source = table.source(pa.table(columns), f"wrong-{number}")
        status = table.run({statement: {"source": source}}, name=f"wrong-{number}", jobs=jobs)
        message = status.conditions[0].message
        assert (status.phase, reason(status)) == (Phase.FAILED, expected), (what, message)
        assert f"spec.{statement}.source" in message or expected == "StatementFailed", message
        assert named in message, message
    assert table.view() == before
    assert not state_of(table.log.snapshot()).live


def test_a_delta_source_is_read_at_the_version_of_the_first_attempt(
    tmp_path: Path, jobs: InlineRunner
) -> None:
    table = made(tmp_path / "t", rows(range(2), "base", 1), ("id",))
    other = tmp_path / "other"
    write_deltalake(str(other), rows(range(1, 4), "first", 1))
    write_deltalake(str(other), rows(range(7, 9), "second", 1), mode="overwrite")
    source = {"format": "Delta", "location": other.as_uri(), "version": 0}
    table.do({"upsert": {"source": source}}, jobs=jobs)
    assert [row[::2] for row in table.view()] == [
        (0, "base"), (1, "first"), (2, "first"), (3, "first"),
    ]  # fmt: skip
    assert DeltaTable(str(tmp_path / "t")).version() == 0
    (block,) = state_of(table.log.snapshot()).live
    job = next((tmp_path / "t/_tandem/log/_tandem").rglob("job.json"))
    assert json.loads(job.read_text())["job"]["sourceVersion"] == 0
    stored = pq.read_table(tmp_path / "t/_tandem/log" / block)
    assert stored["__tandem_instant"].null_count == stored.num_rows


def test_spark_reads_what_partition_columns_hold(
    tmp_path: Path, jobs: InlineRunner, delta_spark: SparkSession
) -> None:
    """Values of all types at their extremes; the base has no file by another writer."""
    columns = {kind.name: storable(kind) for kind in PLAIN}
    texts = ["a\0b", "\0", "__HIVE_DEFAULT_PARTITION__", "null", " ", "a/b=c%41"]
    columns["text"] += texts
    most = max(map(len, columns.values()))
    every = pa.table(
        {
            "id": ids(range(most)),
            **{kind.name: kind.array((columns[kind.name] * most)[:most]) for kind in PLAIN},
        }
    )
    folder = tmp_path / "t"
    partitions = [kind.name for kind in PLAIN]
    write_deltalake(str(folder), every.slice(0, 0), configuration=VECTORS, partition_by=partitions)
    table = logged(folder, ("id",))
    assert upsert(table, every, jobs).phase is Phase.SUCCEEDED
    table.do({"type": "LogMerge"}, jobs=jobs)
    found = delta_spark.read.format("delta").load(str(folder)).toArrow().sort_by("id")
    for kind in PLAIN:
        assert bits(found[kind.name].cast(kind.arrow)) == bits(every[kind.name]), kind.name
