"""With `in_tasks` each task of a read asks for its own files: the rows are those of
`format("delta")`, whichever answers the tasks, and the driver is given no file.

`index/test_portions` has what tasks do where servers fail, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from index.test_exact_numbers import CONDITIONS
from index.test_server import Served
from spark.test_indexed_read import TABLES, by_delta, numbered, rows_of, tables
from support.statements.rows import runtime_errors
from tandem import index
from tandem.errors import InvalidSpec, InvalidStatement, Unreachable
from tandem.index.server import client as client_
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import ENDPOINT_VARIABLE, FOLDER_VARIABLE, ChainedIndex, RemoteIndex
from tandem.index.server.transport import Connection
from tandem.spark import read
from tandem.spec import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["tables"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", TABLES)
def test_rows_and_schema_are_those_of_delta(
    delta_spark: SparkSession, tables: dict[str, Path], name: str
) -> None:
    """Partitions, mapped columns, vectors, widened types: each where the condition has a value.
    Spark is not to push conditions down: for `f64 = -0.0`, it then leaves a row out."""
    held = index.open_index(str(tables[name]))
    every = by_delta(delta_spark, tables[name])
    compared = 0
    conditions = ["", "i32 < 5 OR i32 IS NULL", *CONDITIONS[::4]]
    for text in conditions:
        try:
            expected = rows_of(every.where(f"coalesce(({text or 'TRUE'}), FALSE)"))
        except runtime_errors():
            continue
        found = read(delta_spark, held, text, in_tasks=True)
        assert found.schema == every.schema
        assert rows_of(found) == expected, text
        compared += 1
    assert compared > len(conditions) / 2


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of the LakeTable `flights`, with four files of ten rows."""
    root = Path(numbered(tmp_path))
    found = Served(root, AnswerFiles(tmp_path / "answers", inline_limit=100), token="")
    monkeypatch.setenv(ENDPOINT_VARIABLE, found.endpoint)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    # This process waits for a slow machine.
    monkeypatch.setattr(client_, "Connection", partial(Connection, timeout_s=60))
    with found.server:
        yield found


def lake_table(root: Path) -> LakeTable:
    return LakeTable.model_validate(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "flights"},
            "spec": {"location": root.as_uri(), "index": {"server": "lake"}},
        }
    )


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.collect())


def test_X13_I51_tasks_ask_the_server_and_go_on_without_it(
    delta_spark: SparkSession, served: Served
) -> None:
    table = lake_table(served.root)
    found = read(delta_spark, table, "id < 25", in_tasks=True)
    strict = read(delta_spark, table, "id < 25", in_tasks=True, fallback="Never")
    asked = served.service._served["flights"].questions
    write_deltalake(served.root, pa.table({"id": [5]}), mode="append")
    DeltaTable(served.root).delete("id < 12")
    assert ids(found) == list(range(25)), "of the version that was planned"
    assert served.service._served["flights"].questions > asked
    served.server.shutdown()
    assert ids(found) == list(range(25))
    with pytest.raises(Exception, match="does not answer"):
        strict.collect()
    with pytest.raises(Unreachable):
        read(delta_spark, table, in_tasks=True, fallback="Never")
    assert ids(read(delta_spark, table, "id < 25", in_tasks=True)) == list(range(12, 25))


def test_a_view_columns_segments_and_versions(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for n in range(3):
        write_deltalake(root, pa.table({"id": [n], "a b`c": [f"x{n}"]}), mode="append")
    held = index.open_index(str(root))
    segments = sorted(
        set[str]().union(*(part.entries.segments_at(part.rows) for part in held.view().chosen()))
    )
    only = read(delta_spark, held, "id > 0", columns=["a b`c"], in_tasks=True)
    assert only.columns == ["a b`c"]
    assert rows_of(only) == ["{x1}", "{x2}"]
    assert rows_of(read(delta_spark, held, "id > 0", columns=["a b`c"])) == rows_of(only)
    one = read(delta_spark, held, segments=segments[:1], in_tasks=True)
    assert rows_of(one) == rows_of(read(delta_spark, held, segments=segments[:1]))
    only.createOrReplaceTempView("names")
    write_deltalake(root, pa.table({"id": [9], "a b`c": ["x9"]}), mode="append")
    assert delta_spark.sql("SELECT max(`a b``c`) FROM names").collect()[0][0] == "x2"
    assert read(delta_spark, held, version=0, in_tasks=True).count() == 1
    assert read(delta_spark, held, "FALSE", in_tasks=True).collect() == []


def test_what_tasks_cannot_open_is_refused(delta_spark: SparkSession, tmp_path: Path) -> None:
    root = numbered(tmp_path)
    held = index.open_index(root)
    connection = Connection("grpc://127.0.0.1:1")
    chain = ChainedIndex(RemoteIndex(connection, "flights", held.store), lambda: held)
    with pytest.raises(InvalidSpec, match="a connection that this process holds"):
        read(delta_spark, chain, in_tasks=True)
    with pytest.raises(InvalidSpec, match="no such column"):
        read(delta_spark, root, columns=["idd"], in_tasks=True)
    with pytest.raises(InvalidStatement):
        read(delta_spark, root, "nope = 7", in_tasks=True)


def test_texts_of_declared_length_are_padded_as_delta_does(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Delta stores them as they are."""
    root = tmp_path / "t"
    delta_spark.sql(f"CREATE TABLE delta.`{root}` (id INT, c CHAR(4), v VARCHAR(3)) USING delta")
    rows = {"id": pa.array([1, 2], pa.int32()), "c": ["x", "yyyy"], "v": ["x", None]}
    write_deltalake(root, pa.table(rows), mode="append")
    every, found = by_delta(delta_spark, root), read(delta_spark, str(root), in_tasks=True)
    assert found.schema == every.schema
    assert rows_of(found) == rows_of(every) == ["{1, x   , x}", "{2, yyyy, null}"]
    assert found.where("c = 'x'").count() == every.where("c = 'x'").count() == 1
