"""Statements that cannot be: columns that are not there, what does not fit, what fails on a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from badinput.bad_input import BadLake, assert_mentions, delete, ingest, update
from support.jobs.inline_runner import InlineRunner
from support.jobs.quick_jobs import QuickJobs
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs

BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown column": (
        update("kk = 1"),
        ["TableUpdate/more.spec.update.where", "no such column at line 1, column 1",
         "found: kk", "expected: perhaps k", "tandem table show"],
    ),
    "unknown column in an expression": (
        update("k = 1", v="v + elephant"),
        ["TableUpdate/more.spec.update.set.v", "line 1, column 5", "found: elephant",
         "expected: a column of the table", "tandem table show"],
    ),
    "unknown column to set": (
        update("k = 1", w="3"),
        ["TableUpdate/more.spec.update.set.w", "found: w", "expected:", "tandem table show"],
    ),
    "type mismatch: a value that does not fit": (
        update("k = 1", v="'abc'"),
        ["TableUpdate/more.spec.update.set.v", "found: STRING", "expected: BIGINT", "CAST"],
    ),
    "type mismatch: no condition": (
        delete("k + 1"),
        ["TableUpdate/less.spec.delete.where", "found: BIGINT", "expected: BOOLEAN", "Compare"],
    ),
    "a function that reaches outside": (
        delete("reflect('java.lang.Runtime', 'getRuntime') IS NULL"),
        ["TableUpdate/less.spec.delete.where", "reflect", "docs/statements.md"],
    ),
    "a sub-query": (
        delete("k IN (SELECT k FROM parquet.`/etc`)"),
        ["TableUpdate/less.spec.delete.where", "line 1, column 7", "found: SELECT",
         "Only the columns of the row itself"],
    ),
    "a sub-query of a text": (
        delete("k IN (SELECT 'a')"),
        ["TableUpdate/less.spec.delete.where", "line 1, column 7", "found: SELECT",
         "Only the columns of the row itself"],
    ),
    "no SQL": (
        delete("k = = 1"),
        ["TableUpdate/less.spec.delete.where", "line 1, column 5", "found: =", "expected:"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_statements_that_are_refused(what: str, lake: BadLake, jobs: QuickJobs) -> None:
    """Checked against the schema before a job starts."""
    operation, parts = BAD[what]
    with lake.unharmed():
        ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition("TableUpdate")
    assert condition["reason"] == "InvalidStatement"
    assert_mentions(condition["message"], *parts)
    assert jobs.started == []


def test_no_deletion_vectors(tmp_path: Path, jobs: QuickJobs) -> None:
    lake = BadLake(tmp_path).make({})
    with lake.unharmed():
        ended = lake.run(update(), table=lake.lake_table(vectors="Only"))
    assert ended.code == 1
    condition = ended.condition("TableUpdate")
    assert condition["reason"] == "DeletionVectorsDisabled"
    assert_mentions(
        condition["message"], "TableUpdate/more.spec.tableRef",
        "found: delta.enableDeletionVectors", "expected:", "enableDeletionVectors: true",
        "vectors: Auto",
    )  # fmt: skip
    assert jobs.started == []


# On rows: only Spark can say ----------------------------------------------------------------


@pytest.fixture
def on_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = InlineRunner(spark)
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=FileJobs(runner)))


FAILING = {
    "division by zero": (update("k = 1", v="CAST(v / (id - 11) AS BIGINT)"), "DIVIDE_BY_ZERO"),
    "division by zero in the condition": (delete("100 % (id - 11) = 0"), "REMAINDER_BY_ZERO"),
    "overflow": (update("id = 39", v="v + 9223372036854775807"), "ARITHMETIC_OVERFLOW"),
    "cast": (
        update("id = 39", v="CAST(concat('x', CAST(id AS STRING)) AS BIGINT)"),
        "CAST_INVALID_INPUT",
    ),
}


@pytest.mark.matrix
@pytest.mark.usefixtures("on_spark")
@pytest.mark.parametrize("what", FAILING)
def test_a_row_on_which_the_statement_fails(what: str, lake: BadLake) -> None:
    operation, condition_name = FAILING[what]
    with lake.unharmed():
        ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition("TableUpdate")
    assert condition["reason"] == "StatementFailed"
    assert_mentions(
        condition["message"], operation["metadata"]["name"], condition_name, "found:", "expected:",
        "Change the statement or the source",
    )  # fmt: skip


SOURCES = {
    "absent": (None, ["nowhere.csv", "the source does not exist", "Correct the location"]),
    "a column too many": ("id,k,v,w\n1,2,3,4\n", ["found: w", "expected: id, k, v"]),
    "a value that does not fit": (
        "id,k,v\n1,two,3\n",
        ["source.csv, line 2, column k", "found: two", "expected: bigint"],
    ),
    "no file that it says to be": (b"PAR1\0\0\0", ["load", "source.csv", "damaged, truncated"]),
}


@pytest.mark.usefixtures("on_spark")
@pytest.mark.parametrize("what", SOURCES)
def test_sources_that_do_not_fit(what: str, lake: BadLake) -> None:
    content, parts = SOURCES[what]
    source = lake.folder / ("nowhere.csv" if content is None else "source.csv")
    format_ = "Csv"
    if isinstance(content, str):
        source.write_text(content)
    elif isinstance(content, bytes):
        source.write_bytes(content)
        format_ = "Parquet"
    options = {"header": "true"} if format_ == "Csv" else {}
    operation = ingest(source, format_, **options)
    with lake.unharmed():
        ended = lake.run(operation)
    assert ended.code == 1
    condition = ended.condition("TableIngest")
    # Another attempt would read the same file: none is made.
    assert ended.status("TableIngest").get("attempt", 0) <= 1
    assert_mentions(condition["message"], *parts)
