"""Replaces by real jobs: rows outside of the scope, partitions, renamed columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import demo_replace
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.jobs.inline_runner import InlineRunner
from support.lake.lake import Lakes, message, result
from support.lake.timed import TimedLake, hours, interval, join, without
from tables.replaced import DAY_2, REST, S1, SR, made
from tandem.delta.partitions import NULL_PARTITION
from tandem.spark.jobs.ingest import any_of
from tandem.spec.resources import Operation
from tandem.spec.status import Phase


@pytest.mark.matrix
@pytest.mark.whole
def test_partitions_and_intervals_together(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, S1, partitioned=True)
    table.lake.do(table.replace(replaced={"partitions": [{"day": "2013-03-02"}]}))
    table.assert_shows(REST)
    both = {"intervals": [interval(0, 60)], "partitions": [{"day": "2013-03-03"}]}
    table.lake.do(table.replace(replaced=both, rows=hours(50, first=1_000)))
    table.assert_shows(without(REST, range(48, 60)), hours(50, first=1_000))


@pytest.mark.matrix
@pytest.mark.whole
def test_a_renamed_time_column(lakes: Lakes) -> None:
    """Under column mapping files have other names of columns than the table."""
    table = made(lakes)
    table.lake.sql("alter table TABLE set TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    table.lake.sql("alter table TABLE rename column ts to moment")
    table.lake.sql("alter table TABLE add column ts string")
    table.lake.time = {"column": "moment", "granularity": "Day"}
    table.lake.do(table.replace(interval(20, 40)))
    found = table.lake.delta_spark.read.format("delta").load(str(table.lake.path)).select("id")
    assert sorted(row.id for row in found.collect()) == sorted(without(S1, range(20, 40)))


@pytest.mark.part(2)
@pytest.mark.whole
@pytest.mark.parametrize("outside", ["Fail", "Drop"])
def test_rows_of_the_source_outside_of_the_scope(lakes: Lakes, outside: str) -> None:
    table = made(lakes)
    source = join(SR, hours(0, 70, first=1_500))
    status = table.lake.run(table.replace(DAY_2, rows=source, outside=outside))
    if outside == "Fail":
        assert status.phase is Phase.FAILED
        said = message(status)
        assert "outside of what is replaced" in said
        assert "ts=2013-03-0" in said
        table.assert_shows(S1)
        return
    table.assert_shows(REST, SR)
    did = result(status).replaced
    assert did is not None
    assert did.outside == 2


@dataclass(frozen=True)
class Condition:
    """In place of Spark's column: how deep an expression is."""

    depth: int = 1

    def __or__(self, other: Condition) -> Condition:
        return Condition(1 + max(self.depth, other.depth))


@pytest.mark.parametrize("count", [1, 2, 3, 1_000])
def test_as_many_intervals_as_a_spec_may_have_do_not_overflow_the_stack_of_spark(
    count: int,
) -> None:
    conditions: Any = [Condition()] * count
    found: Any = any_of(conditions)
    assert found.depth <= 1 + (count - 1).bit_length()


@pytest.mark.whole
def test_an_empty_text_of_the_source_is_in_the_partition_of_null(lakes: Lakes) -> None:
    """There the table has it: it is no row of a partition of empty texts."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    lake = lakes.empty(schema=schema, partition_by=["p"])
    lake.append(pa.table([pa.array([1, 2]), pa.array(["a", None])], schema=schema))
    source = {"format": "Parquet", "location": lake.source(
        pa.table([pa.array([3, 4]), pa.array(["", None])], schema=schema)
    ).as_uri()}  # fmt: skip

    def replace(value: str) -> Operation:
        partitions = {"partitions": [{"p": value}]}
        return lake.resource("TableReplace", {"replace": partitions, "source": source})

    assert lake.run(replace("")).phase is Phase.FAILED
    for _ in range(2):
        lake.do(replace(NULL_PARTITION))
        assert sorted(pa.table(lake.foreign().scan())["id"].to_pylist()) == [1, 3, 4]


def test_the_demo_keeps_the_late_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make demo-replace`, with fewer flights, on the session that tests share."""
    flights = data.loaded(data.unpack(tmp_path))
    few = "month = 2 AND day > 26 OR month = 3 AND day < 8 OR month = 3 AND day > 30"
    flights.execute(f"DELETE FROM flights WHERE NOT ({few}) OR flight % 5 <> 0")
    assert demo_replace.run(tmp_path, flights, InlineRunner(spark)), capsys.readouterr().out
