"""A statement over Arrow finds and writes the very rows that Spark finds and writes, and reads no
more than it needs."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.schema import Field, PrimitiveType, Schema, StructType
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.foreign.tables import column, write
from support.jobs import job_files as jobs
from support.some import few
from tandem.delta import dv
from tandem.errors import StorageError
from tandem.jobs.formats import InputFile, StatementJob
from tandem.jobs.results import OutputFile
from tandem.spark.jobs import statement
from tandem.spark.jobs.local_statement import compiled, find_rows
from tandem.spark.runtime.control import Control, answer
from tandem.spark.runtime.row_files import InputSplit, joined
from tandem.storage.paths import object_path

LEAST, GREATEST = -(2**63), 2**63 - 1
NUMBERS = [1.5, -0.0, 0.0, math.nan, math.inf, -math.inf, None, 1e308, -2.5]
TEXTS = ["a", "", None, "Ä€😀", "a%b_c", "abc", "A", " a ", "zz"]


def odd_rows(first: int, rows: int) -> pa.Table:
    ids = range(first, first + rows)
    integers = [0, 1, None, GREATEST, LEAST, 7, -7]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array([integers[i % 7] for i in ids], pa.int64()),
            "x": pa.array([NUMBERS[i % 9] for i in ids], pa.float64()),
            "t": pa.array([TEXTS[i // 2 % 9] for i in ids]),
            "b": pa.array([(True, False, None)[i % 3] for i in ids]),
            "d": pa.array([None if i % 5 == 0 else i * 99 - 4000 for i in ids], pa.int32()).cast(
                pa.date32()
            ),
            "p": pa.array([(None, "u", "v w/x")[i % 3] for i in ids]),
        },
        schema=SCHEMA,
    )


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("p", pa.string()),
    ]
)


def written_twice(path: Path) -> Path:
    """Partitioned, with small row groups, and values at the ends of types."""
    for first in (0, 150):
        write_deltalake(
            str(path),
            odd_rows(first, 150),
            mode="append",
            partition_by=["p"],
            writer_properties=WriterProperties(max_row_group_size=16),
        )
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_twice(tmp_path_factory.mktemp("odd") / "t")


def job_for(
    path: Path,
    attempt: int,
    where: str,
    set_: dict[str, str] | None = None,
    *,
    set_only: bool = False,
) -> Control:
    """A job on all files, of which every third has deleted rows."""
    store, snapshot = jobs.snapshot_of(path)
    dead = dv.to_base64(BitMap64([0, 3, 16, 17, 20]))
    inputs = tuple(
        file.model_copy(update={"dv": dead}) if number % 3 == 0 and file.rows > 20 else file
        for number, file in enumerate(jobs.input_files(store, snapshot))
    )
    job = StatementJob(
        where=where,
        set=set_ or {},
        inputs=inputs,
        target_file_size=1 << 30,
        set_only=set_only or None,
    )
    return jobs.control(store, snapshot, job, attempt)


def done_here(job: Control) -> bool:
    ended = threading.Event()
    ended.set()
    return statement.run_here(job, ended, contextlib.nullcontext())


Affected = tuple[int, int, dict[str, Any] | None]
"""(input, position, new contents)"""


def rows_of(job: Control) -> list[Affected]:
    """The affected rows, as a job has published them."""
    found = affected(job, jobs.result(job).outputs, jobs.matches(job))
    assert found == sorted(found, key=lambda row: row[:2])
    return found


def affected(
    job: Control, outputs: Sequence[OutputFile], matches: list[dict[str, Any]]
) -> list[Affected]:
    contents = [jobs.read_output(job, o.path, o.partition_values).to_pylist() for o in outputs]
    assert [len(rows) for rows in contents] == [o.rows for o in outputs]
    return [
        (m["input"], m["position"],
         None if m["output"] is None else contents[m["output"]][m["output_position"]])
        for m in matches
    ]  # fmt: skip


def shown(rows: Sequence[Affected]) -> list[str]:
    """Texts of rows: NaN is the same as NaN, and -0.0 is not the same as 0.0."""
    return [repr(row) for row in rows]


ANYWHERE = "`p` <=> 'u' AND `n` > -8 OR `x` >= 1e308D OR `t` LIKE 'a\\\\%b%' OR `d` IS NULL"


STATEMENTS: list[tuple[str, dict[str, str]]] = [
    (ANYWHERE, {}),
    ("`x` = 0.0D OR `x` > 1e308D", {}),
    ("NOT (`b` OR `n` IN (1, 7, NULL)) OR `t` BETWEEN 'A' AND 'a'", {}),
    ("TRUE", {}),
    (ANYWHERE, {"t": "concat(`t`, '!')", "n": "coalesce(`n`, 3)"}),
    ("`id` % 7 = 1", {"p": "CASE WHEN `b` THEN 'new' ELSE `p` END", "x": "-`x`"}),
    ("TRUE", {"b": "`x` <= 0.0D", "d": "CAST('2020-02-29' AS DATE)"}),
    ("`id` > 280 AND `n` IS NOT NULL AND `n` < 100 AND `n` > -100",
     {"n": "(`n` - 1) * 2", "x": "`n` / 4"}),
]  # fmt: skip


@pytest.mark.part(3)
@pytest.mark.parametrize("number", range(len(STATEMENTS)))
def test_the_rows_are_those_that_spark_finds_and_writes(
    table: Path, spark: SparkSession, number: int
) -> None:
    here, on_spark, in_tasks = (
        job_for(table, 3 * number + kind, *STATEMENTS[number]) for kind in (1, 2, 3)
    )
    for job in (on_spark, in_tasks):
        job.store.put(job.path("done.json"), b"{}")
    assert answer(lambda c: statement.run(c, spark, local=False), on_spark) == 0
    expected = shown(rows_of(on_spark))
    assert expected
    assert done_here(here)
    assert shown(rows_of(here)) == expected
    assert answer(lambda c: statement.run(c, spark), in_tasks) == 0
    assert shown(rows_of(in_tasks)) == expected
    for job in (here, in_tasks):
        assert jobs.result(job).rows_read == jobs.result(on_spark).rows_read


STAY = [(where, set_) for where, set_ in STATEMENTS if set_ and "p" not in set_]
"""Updates whose rows stay in their partitions."""


@pytest.mark.parametrize("number", range(len(STAY)))
def test_for_edits_only_the_columns_that_are_set_are_written(
    table: Path, spark: SparkSession, number: int
) -> None:
    where, set_ = STAY[number]
    whole = job_for(table, 50 + number, where, set_)
    here, on_spark = (
        job_for(table, first + number, where, set_, set_only=True) for first in (60, 70)
    )
    on_spark.store.put(on_spark.path("done.json"), b"{}")
    assert done_here(whole)
    assert done_here(here)
    assert answer(lambda c: statement.run(c, spark, local=False), on_spark) == 0
    held = {*set_, "p"}
    expected = shown([
        (input_, position, {n: v if n in held else None for n, v in (row or {}).items()})
        for input_, position, row in rows_of(whole)
    ])  # fmt: skip
    assert expected
    for job in (here, on_spark):
        assert shown(rows_of(job)) == expected
        for output in jobs.result(job).outputs:
            content = job.store.get(object_path(output.path))
            assert {*pq.read_schema(pa.BufferReader(content)).names} == {*set_}


WHERES: dict[str, Callable[[int, int], bool]] = {
    "`k` = 1": lambda k, _v: k == 1,
    "TRUE": lambda _k, _v: True,
    "`k` = 1 AND `v` >= 3": lambda k, v: k == 1 and v >= 3,
    "`v` < `k`": lambda k, v: v < k,
}


@st.composite
def files(draw: st.DrawFn) -> list[tuple[list[int], int, set[int]]]:
    """Of each file the values of `k`, the rows of a row group, and which rows are deleted."""
    values = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=3))
    return [
        (ks, draw(st.integers(1, 5)), draw(st.sets(st.integers(0, len(ks) - 1)))) for ks in values
    ]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty table with the columns `k` and `v`."""
    path = tmp_path_factory.mktemp("numbers") / "t"
    write(path, column("k"), column("v"), rows=None)
    return path


@settings(max_examples=few(26, 80), deadline=None)
@given(
    of=files(),
    where=st.sampled_from(sorted(WHERES)),
    set_=st.sampled_from([{}, {"v": "`v` + 100"}, {"k": "9"}]),
    parts=st.integers(1, 3),
    cut=st.integers(0, 9),
)
def test_every_row_is_found_once_however_files_are_cut(
    numbers: Path,
    of: list[tuple[list[int], int, set[int]]],
    where: str,
    set_: dict[str, str],
    parts: int,
    cut: int,
) -> None:
    store, snapshot = jobs.snapshot_of(numbers)
    inputs = []
    expected = []
    for number, (ks, group, dead) in enumerate(of):
        vs = range(len(ks))
        pq.write_table(
            pa.table({"k": pa.array(ks, pa.int64()), "v": pa.array(vs, pa.int64())}),
            numbers / f"{number}.parquet",
            row_group_size=group,
        )
        vector = dv.to_base64(BitMap64(dead)) if dead else ""
        name = f"{number}.parquet"
        inputs.append(InputFile(logged_path=name, size=1, rows=len(ks), dv=vector))
        for position, (k, v) in enumerate(zip(ks, vs, strict=True)):
            if position not in dead and WHERES[where](k, v):
                after = {"k": 9 if "k" in set_ else k, "v": v + 100 if "v" in set_ else v}
                expected.append((number, position, after if set_ else None))
    job = jobs.control(
        store,
        snapshot,
        StatementJob(where=where, set=set_, inputs=tuple(inputs), target_file_size=1 << 30),
    )
    splits = [InputSplit(i, part, parts) for i in range(len(inputs)) for part in range(parts)]
    answers = [
        find_rows(store, job.spec, inputs, task, some)
        for task, some in enumerate((splits[:cut], splits[cut:]))
    ]
    outputs, matches = joined(answers, 0)
    assert affected(job, outputs, matches.to_pylist()) == expected


def spoil(path: Path, group: int, name: str) -> None:
    """Make the values of a column in a row group unreadable."""
    meta = pq.read_metadata(path).row_group(group)
    chunk = next(c for c in map(meta.column, range(meta.num_columns)) if c.path_in_schema == name)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """Of row groups without a match, only the columns of the condition; for a delete no others."""
    rows = pa.table({"id": pa.array(range(30), pa.int64()), "v": pa.array(range(30), pa.int64())})
    write(tmp_path / "t", column("id"), column("v"), rows=rows)
    [file] = (tmp_path / "t").glob("*.parquet")
    pq.write_table(rows, file, row_group_size=10)
    spoil(file, 0, "v")
    spoil(file, 2, "v")
    found = job_for(tmp_path / "t", 1, "`id` = 5")
    assert done_here(found)
    assert rows_of(found) == [(0, 5, None)]
    changed = job_for(tmp_path / "t", 2, "`id` = 15", {"v": "`v` + 1"})
    assert done_here(changed)
    assert rows_of(changed) == [(0, 15, {"id": 15, "v": 16})]
    with pytest.raises(StorageError):
        done_here(job_for(tmp_path / "t", 3, "`id` = 5", {"v": "`v` + 1"}))
    constant = job_for(tmp_path / "t", 4, "`id` = 5", {"v": "7"}, set_only=True)
    assert done_here(constant)
    assert rows_of(constant) == [(0, 5, {"id": None, "v": 7})]


def test_a_row_that_needs_spark_leaves_no_result(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, GREATEST], pa.int64())})
    write(tmp_path / "t", column("id"), rows=rows)
    job = job_for(tmp_path / "t", 1, "`id` > 0", {"id": "`id` + 1"})
    assert not done_here(job)
    assert not any("result.json" in m.path for m in job.store.list(job.path("rounds")))


@pytest.mark.parametrize(
    ("where", "set_", "set_only", "here"),
    [
        ("`id` = 1", {}, False, True),
        ("`id` = 1 AND `v` = 'a'", {}, False, False),
        ("`s`.`v` = 'a'", {}, False, False),
        ("`id` = 1", {"id": "2"}, False, False),
        ("`id` = 1", {"id": "2"}, True, True),
        ("`id` = 1", {"id": "2", "v": "'b'"}, True, False),
        ("`v` = 'a'", {"id": "2"}, True, False),
    ],
)
def test_what_reads_or_writes_no_text_of_a_maximal_length_is_done_here(
    tmp_path: Path, where: str, set_: dict[str, str], set_only: bool, here: bool
) -> None:
    text = Field(
        "v", PrimitiveType("string"), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}
    )
    fields = [Field("id", PrimitiveType("long")), text, Field("s", StructType([text]))]
    DeltaTable.create(tmp_path, Schema(fields))
    rows = pa.table({"id": [1, 2], "v": ["a", "b"], "s": [{"v": "a"}, {"v": "b"}]})
    write_deltalake(tmp_path, rows, mode="append")
    job = job_for(tmp_path, 1, where, set_, set_only=set_only)
    assert (compiled(job.spec) is not None) is here
    if here:
        assert done_here(job)
        new = {"id": 2, "v": None, "s": None} if set_ else None
        assert rows_of(job) == [(0, 0, new)]
