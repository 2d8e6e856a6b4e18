"""`writeStream.format("tandem")`: real streams of Spark into a log. What may fail in between is in
`test_connector_writer`."""

from __future__ import annotations

import os
import re
import runpy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergelog.lake import Merged, made, table
from mergelog.test_log_writer import batches, commits
from tandem.errors import DuplicateKeys
from tandem.spark.connector import register
from tandem.spark.runtime.control import translate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS = pa.schema(
    [("k", pa.int64()), ("v", pa.string()), ("p", pa.string()), ("gone", pa.bool_())]
)


@pytest.fixture(scope="module")
def session(spark: SparkSession, delta_spark: SparkSession) -> Iterator[SparkSession]:
    session = delta_spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    # A stream that starts looks its format up in the thread's active session.
    assert spark._jvm is not None
    sessions = spark._get_j_spark_session_class(spark._jvm)
    sessions.setActiveSession(session._jsparkSession)
    register(session)
    yield session
    sessions.setActiveSession(spark._jsparkSession)


@dataclass
class Stream:
    """A folder of files of events, each a micro-batch, that a stream writes to a table."""

    session: SparkSession
    folder: Path
    merged: Merged = field(init=False)
    files: int = 0

    def __post_init__(self) -> None:
        (self.folder / "events").mkdir()
        self.merged = made(self.folder / "t", table((1, "base", None)))

    def event(self, *rows: tuple[Any, ...]) -> None:
        path = self.folder / "events" / f"{self.files}.parquet"
        columns = [dict(zip(EVENTS.names, row, strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(columns, EVENTS), path)
        # Files are read in the order of their times, by which Spark tells old from new.
        os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1

    def source(self, at_once: int = 1) -> DataFrame:
        return (
            self.session.readStream.schema("k bigint, v string, p string, gone boolean")
            .option("maxFilesPerTrigger", at_once)
            .parquet(str(self.folder / "events"))
        )

    def run(self, rows: DataFrame, **options: str) -> StreamingQuery:
        """Until all files are read."""
        query = (
            rows.writeStream.format("tandem")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .options(**options)
            .trigger(availableNow=True)
            .start(str(self.folder / "t"))
        )
        query.awaitTermination()
        return query


@pytest.fixture
def stream(session: SparkSession, tmp_path: Path) -> Stream:
    return Stream(session, tmp_path)


@pytest.mark.matrix
def test_a_stream_that_restarts_from_an_older_checkpoint(stream: Stream) -> None:
    checkpoint, older = stream.folder / "checkpoint", stream.folder / "older"

    def run() -> None:
        stream.run(stream.source(), writer="orders", deletes="gone")

    stream.event((1, "a", "x", False), (2, "b", "x", False))
    run()
    shutil.copytree(checkpoint, older)
    stream.event((1, None, None, True), (3, "c", None, False))
    run()
    assert batches(commits(stream.merged), "orders") == [0, 1]
    expected = [(2, "b", "x"), (3, "c", None)]
    assert stream.merged.rows() == expected
    stream.merged.append(table((3, "C", None)))
    shutil.rmtree(checkpoint)
    older.rename(checkpoint)
    stream.event((4, "d", "y", False))
    run()
    # Batch 1 came again, and would have replaced row 3.
    assert batches(commits(stream.merged), "orders") == [0, 1, 2]
    assert stream.merged.rows() == [(2, "b", "x"), (3, "C", None), (4, "d", "y")]


@pytest.mark.matrix
def test_a_stream_without_a_name_is_a_writer_by_its_checkpoint(stream: Stream) -> None:
    stream.event((1, "a", None, False), (2, "b", None, False))
    stream.event((5, "ignored", None, False))
    stream.event((2, "d", None, False))
    query = stream.run(stream.source().where("v <> 'ignored'").drop("gone"))
    # The batch without rows is not in the log.
    assert batches(commits(stream.merged), query.id) == [0, 2]
    assert stream.merged.rows() == [(1, "a", None), (2, "d", None)]


def test_batches_that_are_reduced_to_one_row_a_key(stream: Stream) -> None:
    def upsert(rows: DataFrame, batch: int) -> None:
        last = rows.groupBy("k").agg({"v": "max"}).toDF("k", "v")
        writer = last.write.format("tandem").mode("append").options(writer="reduced", batch=batch)
        writer.save(str(stream.folder / "t"))

    stream.event((1, "a", None, False), (1, "c", None, False), (1, "b", None, False))
    query = (
        stream.source()
        .writeStream.foreachBatch(upsert)
        .option("checkpointLocation", str(stream.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert batches(commits(stream.merged), "reduced") == [0]
    assert stream.merged.rows() == [(1, "c", None)]


def test_a_key_in_two_tasks_of_a_batch_fails_the_stream(stream: Stream) -> None:
    stream.event((7, "a", None, False))
    stream.event((7, "b", None, False), (8, "c", None, False))
    rows = stream.source(at_once=2).drop("gone").repartition(2, "v")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own type
        stream.run(rows, writer="w2")
    error = translate(caught.value)
    assert isinstance(error, DuplicateKeys)
    assert "k = 7" in str(error)
    assert batches(commits(stream.merged), "w2") == []
    assert stream.merged.rows() == [(1, "base", None)]


def test_a_write_that_is_repeated_counts_once(session: SparkSession, tmp_path: Path) -> None:
    merged = made(tmp_path / "t", table((1, "base", None)))
    rows = session.createDataFrame([(1, "a"), (2, "b")], "k bigint, v string")
    writer = rows.write.format("tandem").mode("append").options(writer="nightly", batch="20240229")
    for _ in range(2):
        writer.save(str(tmp_path / "t"))
    assert batches(commits(merged), "nightly") == [20240229]
    assert merged.rows() == [(1, "a", None), (2, "b", None)]


def test_the_example_prints_what_its_page_shows(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "merge-on-read.md").read_text()
    (block,) = re.findall(r"```text\n\$ [^\n]*stream.py[^\n]*\n(.*?)```", page, re.DOTALL)
    example = runpy.run_path(str(root / "examples" / "merge_on_read" / "stream.py"))
    example["main"](session, tmp_path)
    assert capsys.readouterr().out.split() == block.split()
