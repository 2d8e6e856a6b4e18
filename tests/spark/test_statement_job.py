"""The statement job: which rows match, what they become, and rounds served until done."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.foreign.tables import broken_texts, column, write
from support.jobs import job_files as jobs
from tandem.delta import dv
from tandem.errors import Reason
from tandem.jobs.formats import RoundRequest, StatementJob
from tandem.spark.jobs import statement
from tandem.spark.runtime.control import Control, answer, encode


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    for start in range(0, 300, 100):
        ids = range(start, start + 100)
        data = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "day": pa.array([f"d{i % 2}" for i in ids]),
                "delay": pa.array([i % 10 if i % 4 else None for i in ids], pa.int32()),
            }
        )
        write_deltalake(str(path), data, mode="append", partition_by=["day"])
    return path


def job_for(
    table: Path, where: str, set_: dict[str, str] | None = None, attempt: int = 1
) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    inputs = jobs.input_files(store, snapshot)
    return jobs.control(
        store,
        snapshot,
        StatementJob(where=where, set=set_ or {}, inputs=inputs, target_file_size=1 << 30),
        attempt,
    )


def run(job: Control, spark: SparkSession) -> int:
    job.store.put(job.path("done.json"), b"{}")
    return answer(lambda c: statement.run(c, spark), job)


def source_row(job: Control, match: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(job.spec.job, StatementJob)
    input_ = job.spec.job.inputs[match["input"]]
    found = jobs.read_output(job, input_.logged_path, input_.partition_values)
    row: dict[str, Any] = found.slice(match["position"], 1).to_pylist()[0]
    return row


def test_a_delete_finds_positions(table: Path, spark: SparkSession) -> None:
    job = job_for(table, "`delay` = 3")
    assert run(job, spark) == 0
    result = jobs.result(job)
    found = jobs.matches(job)
    assert sorted(source_row(job, m)["id"] for m in found) == [
        i for i in range(300) if i % 4 and i % 10 == 3
    ]
    assert result.rows_matched == len(found)
    assert (result.outputs, result.rows_read) == ((), 300)
    assert all(m["output"] is None for m in found)
    assert found == sorted(found, key=lambda m: (m["input"], m["position"]))


@pytest.mark.parametrize("all_deleted", [False, True])
def test_an_input_without_live_rows_has_an_empty_result(
    table: Path, spark: SparkSession, all_deleted: bool
) -> None:
    """Statistics can leave no file to look at, and deletion vectors no row in those left."""
    store, snapshot = jobs.snapshot_of(table)
    inputs = tuple(
        file.model_copy(update={"dv": dv.to_base64(BitMap64(range(file.rows)))})
        for file in jobs.input_files(store, snapshot)
    )
    job = jobs.control(
        store,
        snapshot,
        StatementJob(
            where="`id` < 0",
            set={"delay": "1"},
            inputs=inputs if all_deleted else (),
            target_file_size=1 << 30,
        ),
    )
    assert run(job, spark) == 0
    assert jobs.matches(job) == []
    result = jobs.result(job)
    assert (result.outputs, result.rows_read, result.rows_matched) == ((), 0, 0)


def test_an_update_writes_changed_rows_also_into_other_partitions(
    table: Path, spark: SparkSession
) -> None:
    job = job_for(
        table, "`id` < 50", {"delay": "coalesce(`delay`, 0) + 15", "day": "concat(`day`, 'x')"}
    )
    assert run(job, spark) == 0
    result = jobs.result(job)
    outputs = [jobs.read_output(job, o.path, o.partition_values) for o in result.outputs]
    assert {o.partition_values["day"] for o in result.outputs} == {"d0x", "d1x"}
    found = jobs.matches(job)
    assert len(found) == 50
    for match in found:
        before = source_row(job, match)
        after = outputs[match["output"]].slice(match["output_position"], 1).to_pylist()[0]
        assert after == {
            "id": before["id"],
            "day": before["day"] + "x",
            "delay": (before["delay"] or 0) + 15,
        }


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("where", "set_", "condition"),
    [
        ("1 / (`id` - 7) > 0", {}, "DIVIDE_BY_ZERO"),
        ("`id` >= 0", {"delay": "2147483640 + CAST(`id` AS INT)"}, "ARITHMETIC_OVERFLOW"),
        ("`id` >= 0", {"delay": "CAST(concat(`day`, 'q') AS INT)"}, "CAST_INVALID_INPUT"),
    ],
)
def test_a_row_on_which_the_statement_raises_fails_it(
    table: Path, spark: SparkSession, where: str, set_: dict[str, str], condition: str
) -> None:
    job = job_for(table, where, set_)
    assert run(job, spark) == 1
    failure = jobs.failure(job)
    assert failure.reason == Reason.STATEMENT_FAILED
    assert condition in failure.message
    assert not failure.transient


@pytest.mark.part(4)
@pytest.mark.parametrize(
    ("set_", "column"),
    [
        ({"n": "nullif(`n`, 3)"}, "n"),
        ({"p": "CASE WHEN `n` = 3 THEN NULL ELSE `p` END"}, "p"),
        ({"s": "named_struct('a', nullif(`n`, 3), 'b', 1)"}, "s.a"),
        ({"l": "array(nullif(`n`, 3))"}, "l.element"),
    ],
)
def test_a_computed_null_where_none_may_be_fails_the_statement(
    tmp_path: Path, spark: SparkSession, set_: dict[str, str], column: str
) -> None:
    path = tmp_path / "strict"
    fields = [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("p", pa.string(), nullable=False),
        pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])),
        pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
    ]
    rows = [{"n": n, "p": "x", "s": {"a": n, "b": None}, "l": [n]} for n in range(5)]
    data = pa.Table.from_pylist(rows, schema=pa.schema(fields))
    write_deltalake(str(path), data, partition_by=["p"])
    job = job_for(path, "`n` < 4", set_)
    assert run(job, spark) == 1
    failure = jobs.failure(job)
    assert failure.reason == Reason.CONSTRAINT_VIOLATED
    assert "must not be null" in failure.message
    assert column in failure.message
    assert not any("result.json" in m.path for m in job.store.list(job.path("rounds")))
    fine = job_for(path, "`n` < 3", set_, attempt=2)
    assert run(fine, spark) == 0
    assert jobs.result(fine).rows_matched == 3


def test_rounds_are_served_until_the_engine_is_done(table: Path, spark: SparkSession) -> None:
    job = job_for(table, "`id` % 2 = 0")
    assert isinstance(job.spec.job, StatementJob)
    one = job.spec.job.inputs[0]
    rest = dv.to_base64(BitMap64(range(10, one.rows)))
    request = RoundRequest(
        operation_id=jobs.OPERATION,
        attempt=1,
        round=1,
        table_version=9,
        inputs=(one.model_copy(update={"dv": rest}),),
    )
    service = threading.Thread(target=answer, args=(lambda c: statement.run(c, spark), job))
    service.start()
    job.store.put(job.round_path(1, "request.json"), encode(request))
    while not any("rounds/1/result" in m.path for m in job.store.list(job.path("rounds"))):
        service.join(0.05)
        assert service.is_alive(), "the driver ended before done.json was written"
    job.store.put(job.path("done.json"), b"{}")
    service.join(100)
    assert not service.is_alive()
    assert jobs.result(job, 1).rows_read == 10
    assert {m["position"] for m in jobs.matches(job, 1)} <= set(range(10))


def test_a_missing_input_is_named(table: Path, spark: SparkSession) -> None:
    job = job_for(table, "`id` = 1")
    assert isinstance(job.spec.job, StatementJob)
    gone = job.spec.job.inputs[2].logged_path
    job.store.delete([gone])
    assert run(job, spark) == 1
    failure = jobs.failure(job)
    assert failure.reason == Reason.DATA_FILE_MISSING
    assert gone in failure.message


def test_new_texts_must_be_utf8_and_old_ones_are_kept(tmp_path: Path, spark: SparkSession) -> None:
    """Most readers refuse a file with other bytes; what another writer left is not lost."""
    rows = pa.table({"id": [1, 2], "old": broken_texts(2), "s": ["a", "b"], "b": [b"\xff", b"x"]})
    columns = [column("id"), *(column(n, "string") for n in ("old", "s")), column("b", "binary")]
    write(tmp_path / "t", *columns, rows=rows)
    refused = job_for(tmp_path / "t", "`id` > 0", {"s": "CAST(`b` AS STRING)"})
    assert run(refused, spark) == 1
    failure = jobs.failure(refused)
    assert (failure.reason, failure.transient) == (Reason.STATEMENT_FAILED, False)
    assert "s: a new string is not valid UTF-8" in failure.message
    assert "X'ff'" in failure.message
    fine = job_for(tmp_path / "t", "`id` = 2", {"s": "CAST(`b` AS STRING)"}, attempt=2)
    assert run(fine, spark) == 0, jobs.failure(fine).message
    [output] = jobs.result(fine).outputs
    found = jobs.read_output(fine, output.path, output.partition_values)
    assert found["s"].to_pylist() == ["x"]
    assert found["old"].cast(pa.binary()).to_pylist() == [b"\xff"]


def test_a_row_that_breaks_a_rule_of_the_table(table: Path, spark: SparkSession) -> None:
    """Spark evaluates the rule where it evaluates the statement; the error shows a row."""
    DeltaTable(str(table)).alter.add_constraint({"late": "delay IS NULL OR delay * 2 < 30"})
    for number, (value, code) in enumerate((("15", 1), ("14", 0)), 1):
        job = job_for(table, "`id` = 7 AND rand() >= 0", {"delay": value}, number)
        assert run(job, spark) == code
    failure = jobs.failure(job_for(table, "true", None, 1))
    assert failure.reason == Reason.CONSTRAINT_VIOLATED
    assert "delta.constraints.late" in failure.message
    assert "delay = 15, id = 7, day = 'd1'" in failure.message
    assert not failure.transient
