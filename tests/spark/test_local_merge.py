"""A merge over Arrow finds, writes and inserts the very rows that Spark does, with the same record,
and reads no more than it needs."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from spark.test_local_statement import (
    NUMBERS,
    SCHEMA,
    TEXTS,
    affected,
    shown,
    spoil,
    written_twice,
)
from spark.test_merge_job import (
    CASES,
    SOURCE,
    UPSERT,
    by_duckdb,
    job_for,
    left,
    matched,
    merged,
    missing,
)
from spark.test_merge_job import table as table
from support.foreign.tables import broken_texts, column, write
from support.jobs import job_files as jobs
from support.statements.rows import DDL
from support.statements.tables import extreme
from tandem.delta import dv
from tandem.errors import SourceChanged, StatementFailed, StorageError, UnsupportedFeature
from tandem.jobs.formats import SOURCE_IDS, InputFile, MergeClause, MergeJob, RoundRequest
from tandem.jobs.results import OutputFile
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs import merge, merge_source
from tandem.spark.jobs import merge_source as local_source
from tandem.spark.runtime.control import Control, answer, encode
from tandem.spark.sources import arrow_rows
from tandem.statements.merge import ClauseAction


def done_here(job: Control) -> bool:
    ended = threading.Event()
    job.store.put(job.path("done.json"), b"{}")
    return merge.run_here(job, ended, contextlib.nullcontext())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "s.parquet"
    pq.write_table(SOURCE, path)
    return path


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"no equality"}))
def test_merges_have_the_results_of_duckdb(table: Path, source: Path, name: str) -> None:
    case = CASES[name]
    job = job_for(table, source, case.clauses, on=case.on)
    assert done_here(job)
    assert merged(job) == by_duckdb(case)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_twice(tmp_path_factory.mktemp("odd") / "t")


def inputs_of(path: Path) -> tuple[InputFile, ...]:
    """All files, of which every third has deleted rows."""
    store, snapshot = jobs.snapshot_of(path)
    dead = dv.to_base64(BitMap64([0, 3, 16, 17, 20]))
    return tuple(
        file.model_copy(update={"dv": dead}) if number % 3 == 0 and file.rows > 20 else file
        for number, file in enumerate(jobs.input_files(store, snapshot))
    )


def source_rows(keys: Sequence[Any], seed: int = 0) -> pa.Table:
    """A row for each of these ids, and other columns at random; `op` says what is to happen."""
    chance = random.Random(seed)
    integers = [0, 1, None, 2**63 - 1, -(2**63), 7, -7]
    of = {
        "id": list(keys),
        "n": [chance.choice(integers) for _ in keys],
        "x": [chance.choice(NUMBERS) for _ in keys],
        "t": [chance.choice(TEXTS) for _ in keys],
        "b": [chance.choice((True, False, None)) for _ in keys],
        "d": pa.array([chance.randrange(-4000, 9000) for _ in keys], pa.int32()).cast(pa.date32()),
        "p": [chance.choice((None, "u", "v w/x", "new")) for _ in keys],
    }
    rows = pa.table(of, schema=SCHEMA)
    return rows.append_column("op", pa.array([chance.choice("UDK") for _ in keys]))


Outcome = tuple[list[str], list[str], list[tuple[Any, ...]]]


def outcome(job: Control) -> Outcome:
    """What a merge does to rows of the table; what it inserts; which source rows it recorded."""
    result = jobs.result(job)
    matches = jobs.matches(job)
    changed = [m for m in matches if m["output"] != KEPT]
    found = affected(job, [o for o in result.outputs if not o.fresh], changed)
    assert found == sorted(found, key=lambda row: row[:2])
    inserted = [repr(row) for o in result.outputs if o.fresh for row in _rows(job, o)]
    names = ("input", "position", "source_1", "source_2")
    record = [tuple(m[name] for name in names) for m in matches if "source_1" in m]
    assert (result.rows_matched, result.rows_written) == (
        len(found),
        len(inserted) + sum(row[2] is not None for row in found),
    )
    return shown(found), sorted(inserted), record


def _rows(job: Control, output: OutputFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = jobs.read_output(
        job, output.path, output.partition_values
    ).to_pylist()
    return rows


def copies(job: Control) -> tuple[bytes, list[str]]:
    """Whether the copy of the source is whole, and its rows, in any order."""
    ref = jobs.result(job).source
    assert ref is not None
    rows = pa.ipc.open_file(pa.py_buffer(jobs.side_file(job, ref))).read_all()
    names = sorted(rows.column_names)
    texts = sorted(repr([row[name] for name in names]) for row in rows.to_pylist())
    return rows.schema.metadata[b"tandem.source.whole"], texts


ODD_UPSERT = (
    matched("Delete", "s.op = 'D' AND NOT t.b"),
    matched("Update", "s.op <> 'K'"),
    missing("s.x >= 0.0D OR s.t IS NULL"),
    left("Update", "t.n = 7 AND t.x > 0.0D", t="t.t || '!'", p="'moved'"),
    left("Delete", "t.d IS NULL AND t.id > 200"),
)
KEYS = [*range(5, 290, 3), 300, 301, 302, None, None]
MERGES: dict[str, tuple[str, tuple[MergeClause, ...], list[Any]]] = {
    "upsert": ("t.id = s.id", ODD_UPSERT, KEYS),
    "keys by value": ("t.x <=> s.x AND t.id = s.id", UPSERT, KEYS),
    "partly": (
        "t.id = s.id AND t.p = 'u' AND s.op IN ('U', 'D')",
        (matched("Update", n="coalesce(t.n, 5)", p="s.p"), missing(id="s.id", x="s.x", p="s.p")),
        KEYS,
    ),
    "deletes": ("t.id = s.id AND t.n < 100", (matched("Delete"),), [*KEYS, *KEYS]),
    "deletes and inserts": ("t.id = s.id", (matched("Delete"), missing()), [*KEYS, 5, 300]),
    "inserts only": ("t.d = s.d AND t.b <=> s.b", (missing(),), KEYS),
    "unmatched only": ("t.t = s.t", (left("Update", "t.id < 9", x="t.x + 0.5D"),), KEYS),
    "no row": ("t.id = s.id + 1000", UPSERT, KEYS),
}


def odd_job(odd: Path, tmp_path: Path, name: str) -> Control:
    on, clauses, keys = MERGES[name]
    path = tmp_path / "s.parquet"
    if not path.exists():
        pq.write_table(source_rows(keys), path, row_group_size=9)
    return job_for(odd, path, clauses, on=on, inputs=inputs_of(odd))


@pytest.mark.part(8)
@pytest.mark.parametrize("name", MERGES)
def test_the_rows_are_those_that_spark_finds_and_writes(
    odd: Path, tmp_path: Path, spark: SparkSession, name: str
) -> None:
    here, on_spark, in_tasks = (odd_job(odd, tmp_path, name) for _ in range(3))
    for job in (on_spark, in_tasks):
        job.store.put(job.path("done.json"), b"{}")
    assert answer(lambda c: merge.run(c, spark, local=False), on_spark) == 0, jobs.failure(on_spark)
    expected = outcome(on_spark)
    assert done_here(here)
    assert outcome(here) == expected
    assert answer(lambda c: merge.run(c, spark), in_tasks) == 0
    assert outcome(in_tasks) == expected
    for job in (here, in_tasks):
        assert jobs.result(job).rows_read == jobs.result(on_spark).rows_read
        assert copies(job) == copies(on_spark)


CONDITIONS = ["t.id = s.id", "s.id = t.id AND t.b <=> s.b", "t.id = s.id + 1", "t.d = s.d",
              "t.x <=> s.x AND t.id = s.id", "t.t = s.t AND t.id = s.id",
              "t.p <=> s.p AND t.id = s.id AND t.x > -1.0D",
              "t.id = s.id AND t.n <> s.n"]  # fmt: skip
OF_BOTH = ["s.op = 'U'", "t.n <=> s.n", "t.x > s.x", "s.t LIKE '%a%'", "t.b OR s.b", "t.d < s.d",
           "t.p = s.p", "coalesce(t.n, s.n, 0) >= 0"]  # fmt: skip
OF_SOURCE = [
    "s.op <> 'D'",
    "s.x = 0.0D",
    "s.id > 100",
    "s.p IS NULL OR s.b",
    "s.n BETWEEN -9 AND 9",
]
OF_TABLE = ["t.id % 5 = 0", "t.p IS NULL", "t.b AND t.x <= 0.0D", "t.t IN ('a', 'abc', NULL)"]
SET_BY_BOTH = {"n": ["s.n", "NULL", "coalesce(s.n, t.n)"], "x": ["s.x", "-t.x", "s.id / 4"],
               "t": ["concat(t.t, s.op)", "s.t", "CASE WHEN s.b THEN t.t END"],
               "p": ["s.p", "coalesce(t.p, 'q')"], "d": ["s.d", "DATE'2020-02-29'"]}  # fmt: skip
SET_BY_TABLE = {"n": ["t.id"], "x": ["NULL", "0.5D"], "t": ["'left'"], "p": ["t.t"]}


def random_merge(chance: random.Random) -> tuple[str, tuple[MergeClause, ...]]:
    def assigned(of: dict[str, list[str]]) -> dict[str, str]:
        names = chance.sample(sorted(of), chance.randint(1, len(of)))
        return {name: chance.choice(of[name]) for name in names}

    def where(of: list[str], last: bool) -> str | None:
        return None if last and chance.random() < 0.5 else chance.choice(of)

    clauses: list[MergeClause] = []
    for number in range(chance.randint(0, 3)):
        when = where(OF_BOTH, number == 2)
        kind = chance.choice(["delete", "all", "some", "some"])
        set_ = assigned(SET_BY_BOTH) if kind == "some" else {}
        clauses.append(matched("Delete" if kind == "delete" else "Update", when, **set_))
        if when is None:
            break
    if chance.random() < 0.7:
        values = {"id": "s.id", "t": "s.op"} if chance.random() < 0.4 else {}
        clauses.append(missing(where(OF_SOURCE, last=True), **values))
    if chance.random() < 0.3 or not clauses:
        deletes = chance.random() < 0.4
        set_ = {} if deletes else assigned(SET_BY_TABLE)
        action: ClauseAction = "Delete" if deletes else "Update"
        clauses.append(left(action, chance.choice(OF_TABLE), **set_))
    return chance.choice(CONDITIONS), tuple(clauses)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(60))
def test_random_merges_are_those_of_spark(
    odd: Path, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    on, clauses = random_merge(chance)
    keys = [chance.choice([*range(320), None]) for _ in range(chance.choice([0, 30, 90, 200, 250]))]
    if chance.random() < 0.8:
        keys = sorted({key for key in keys if key is not None})  # else a row may match twice
    path = tmp_path / "s.parquet"
    pq.write_table(source_rows(keys, seed), path)
    here, on_spark = (job_for(odd, path, clauses, on=on, inputs=inputs_of(odd)) for _ in range(2))
    on_spark.store.put(on_spark.path("done.json"), b"{}")
    code = answer(lambda c: merge.run(c, spark, local=False), on_spark)
    if done_here(here):
        assert code == 0, jobs.failure(on_spark)
        assert outcome(here) == outcome(on_spark)
        assert copies(here) == copies(on_spark)
    else:
        assert code == 1
        assert jobs.failure(on_spark).reason == "StatementFailed"


def test_source_rows_have_the_identity_that_spark_gives_them(spark: SparkSession) -> None:
    """Also those of an operation that began without Spark."""
    rows = extreme(60, 1)
    rows = rows.select([f.name for f in rows.schema if not pa.types.is_nested(f.type)])
    rows = rows.append_column(
        "texts", pa.array([("\u00e9" * (n // 7) + "x" * n) for n in range(60)])
    )
    fields = f"{DDL.partition(', st STRUCT')[0]}, texts STRING"
    known = merge_source.with_identity(spark.createDataFrame(rows, fields).coalesce(1))
    assert known is not None
    expected = known.select(*SOURCE_IDS).toArrow()
    found = merge_source.with_arrow_identity(rows)
    assert found is not None
    assert found.select(SOURCE_IDS).to_pylist() == expected.to_pylist()


def test_long_and_nested_values_have_no_identity_here() -> None:
    for value in ("x" * (merge_source.LONGEST + 1), [1]):
        assert merge_source.with_arrow_identity(pa.table({"v": [value]})) is None


def test_rows_without_a_value_have_an_identity() -> None:
    rows = pa.table({"t": pa.array([None, None], pa.string()), "n": pa.array([1, 2], pa.int64())})
    for some in (rows, rows.slice(0, 0)):
        found = merge_source.with_arrow_identity(some)
        assert found is not None
        assert len({tuple(row.values()) for row in found.to_pylist()}) == some.num_rows


def test_a_round_on_a_part_inserts_nothing_and_records_the_same(table: Path, source: Path) -> None:
    job = job_for(table, source, UPSERT)
    assert isinstance(job.spec.job, MergeJob)
    inputs = job.spec.job.inputs
    for number, files in enumerate((inputs[:1], inputs, ()), start=1):
        request = RoundRequest(
            operation_id=job.spec.operation_id,
            attempt=job.spec.attempt,
            round=number,
            table_version=9,
            inputs=files,
            part=number == 1,
        )
        job.store.put(job.round_path(number, "request.json"), encode(request))
    assert done_here(job)
    results = [jobs.result(job, number) for number in range(4)]
    assert [sum(o.rows for o in r.outputs if o.fresh) for r in results] == [3, 0, 3, 8]
    first = [m for m in jobs.matches(job) if m["input"] == 0]
    assert len(first) == results[1].rows_matched > 0
    same = ("position", "source_1", "source_2")
    assert [[m[n] for n in same] for m in jobs.matches(job, 1)] == [
        [m[n] for n in same] for m in first
    ]
    assert all(o.round == number for number, r in enumerate(results) for o in r.outputs)


def two_columns(path: Path, *, group: int = 10, rows: int = 30) -> Path:
    """A table with one file, and the file."""
    found = pa.table(
        {"id": pa.array(range(rows), pa.int64()), "v": pa.array(range(rows), pa.int64())}
    )
    write(path, column("id"), column("v"), rows=found)
    [file] = path.glob("*.parquet")
    pq.write_table(found, file, row_group_size=group)
    return file


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """Keys of row groups that may have one of the source's; whole rows where one matches."""
    file = two_columns(tmp_path / "t")
    spoil(file, 0, "v")
    spoil(file, 2, "v")
    spoil(file, 2, "id")
    source = tmp_path / "s.parquet"
    pq.write_table(pa.table({"id": [5, 15, 40], "v": [1, 2, 3]}), source)
    deleted = job_for(tmp_path / "t", source, (matched("Delete"),))
    assert done_here(deleted)
    assert outcome(deleted)[0] == ["(0, 5, None)", "(0, 15, None)"]
    pq.write_table(pa.table({"id": [15, 40], "v": [2, 3]}), source)
    changed = job_for(tmp_path / "t", source, UPSERT)
    assert done_here(changed)
    assert outcome(changed)[:2] == (
        ["(0, 15, {'id': 15, 'v': 2})"],
        ["{'id': 40, 'v': 3}"],
    )
    pq.write_table(pa.table({"id": [5], "v": [2]}), source)
    with pytest.raises(StorageError):
        done_here(job_for(tmp_path / "t", source, UPSERT))


@pytest.mark.parametrize(
    ("on", "clauses"),
    [
        ("t.id > s.id AND s.id = 7", (matched("Delete"),)),  # no equality
        ("t.id = s.id AND greatest(t.v, 1) = 1", (matched("Delete"),)),
        ("t.id = s.id", (matched("Update", v="t.v * 4611686018427387904"),)),  # overflows
        ("t.id = s.id AND 1 / (t.v - 8) > 0", (matched("Delete"),)),  # in a row without a match
        ("t.id = s.id % 2", UPSERT),  # several rows match one
    ],
)
def test_what_needs_spark_leaves_no_result(
    tmp_path: Path, on: str, clauses: tuple[MergeClause, ...]
) -> None:
    two_columns(tmp_path / "t")
    pq.write_table(pa.table({"id": [1, 7, 9], "v": [0, 0, 0]}), tmp_path / "s.parquet")
    job = job_for(tmp_path / "t", tmp_path / "s.parquet", clauses, on=on)
    assert not done_here(job)
    assert not any("result.json" in m.path for m in job.store.list(job.path("rounds")))


def test_sources_that_need_spark_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_columns(tmp_path / "t")
    (tmp_path / "s.json").write_text('{"id": 1}\n')
    assert not done_here(job_for(tmp_path / "t", tmp_path / "s.json", UPSERT, format_="Json"))
    (tmp_path / "s").mkdir()
    pq.write_table(pa.table({"id": [1], "v": [0]}), tmp_path / "s" / "1.parquet")
    assert done_here(job_for(tmp_path / "t", tmp_path / "s", UPSERT))
    for where, name in ((arrow_rows, "MEMORY"), (local_source, "FILE_BYTES")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, 1)
            assert not done_here(job_for(tmp_path / "t", tmp_path / "s", UPSERT))
    pq.write_table(pa.table({"id": [2], "v": [0], "w": [1]}), tmp_path / "s" / "2.parquet")
    assert not done_here(job_for(tmp_path / "t", tmp_path / "s", UPSERT))


def test_a_merge_over_arrow_imports_no_spark() -> None:
    code = "import sys, tandem.spark.jobs.merge; sys.exit('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], timeout=600, check=False)
    assert done.returncode == 0


def test_a_delta_source_is_read_at_its_version(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_deltalake(str(path), SOURCE.slice(0, 4))
    write_deltalake(str(path), SOURCE.slice(4), mode="append")
    first = job_for(table, path, format_="Delta", source_version=0)
    newest = job_for(table, path, format_="Delta")
    assert done_here(first)
    assert done_here(newest)
    inserted = [sum(o.rows for o in jobs.result(j).outputs if o.fresh) for j in (first, newest)]
    assert inserted == [0, 3]
    assert [jobs.result(j).rows_matched for j in (first, newest)] == [4, 5]


def test_a_source_that_changes_fails_the_merge(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.parquet"
    pq.write_table(SOURCE, path)
    job = job_for(table, path)
    load = local_source.load

    def changed(*args: Any) -> local_source.ArrowSource:
        pq.write_table(SOURCE.slice(1), path)
        return load(*args)

    monkeypatch.setattr(local_source, "load", changed)
    with pytest.raises(SourceChanged):
        done_here(job)


def test_texts_that_a_merge_sets_must_be_utf8(tmp_path: Path) -> None:
    """In the rows of the clause that sets them: another one carries over what is there."""
    rows = pa.table({"id": [1, 2], "s": broken_texts(2)})
    write(tmp_path / "t", column("id"), column("s", "string"), rows=rows)
    source = tmp_path / "s.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "b": ["x", "y", "z"]}), source)
    clauses = (matched("Update", "s.id = 1", s="s.b"), matched("Update", id="t.id + 10"))
    job = job_for(tmp_path / "t", source, clauses)
    assert done_here(job)
    [output] = jobs.result(job).outputs
    found = jobs.read_output(job, output.path, output.partition_values).sort_by("id")
    assert found["s"].cast(pa.binary()).to_pylist() == [b"x", b"\xff"]
    with pytest.raises(StatementFailed, match="a new string is not valid UTF-8"):
        done_here(job_for(tmp_path / "t", source, (matched("Update", s="t.s || s.b"),)))


def test_a_row_of_an_empty_partition_text_becomes_null(tmp_path: Path) -> None:
    """By other writers: theirs is an empty text, ours of it is null."""
    rows, p = pa.table({"id": [1, 2]}), column("p", "string")
    of = tmp_path / "t"
    write(of, column("id"), p, rows=rows, partition_by=["p"], partition_values={"p": ""})
    source = tmp_path / "s.parquet"
    pq.write_table(pa.table({"id": [1, 2], "p": pa.array([None, "x"]), "id2": [8, 9]}), source)
    for set_, expected in (({"p": "s.p"}, [None, "x"]), ({"id": "s.id2"}, ["", ""])):
        job = job_for(of, source, (matched("Update", **set_),))
        assert done_here(job)
        found = affected(job, jobs.result(job).outputs, jobs.matches(job))
        assert [row["p"] for _, _, row in found if row is not None] == expected


def test_dates_of_another_calendar_are_refused_whatever_their_bounds(tmp_path: Path) -> None:
    """Spark 2 wrote 1 January of the year 1 as a day that is now two days earlier."""
    legacy = {"org.apache.spark.version": "2.4.8"}
    rows = pa.table({"d": pa.array([-719_164], pa.int32()).cast(pa.date32()), "v": [1]})
    write(
        tmp_path / "t", column("d", "date"), column("v"), rows=rows.replace_schema_metadata(legacy)
    )
    source = tmp_path / "s.parquet"
    pq.write_table(
        pa.table({"d": pa.array([-719_162], pa.int32()).cast(pa.date32()), "v": [7]}), source
    )
    with pytest.raises(UnsupportedFeature):
        done_here(job_for(tmp_path / "t", source, on="t.d = s.d"))


def test_too_many_matches_are_not_recorded(
    table: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, known in ((4, False), (5, True)):
        monkeypatch.setattr(merge, "MAX_RECORDED", limit)
        job = job_for(table, source, (matched("Delete", "s.op = 'D'"), missing()))
        assert done_here(job)
        assert len(outcome(job)[2]) == (5 if known else 0)
        assert jobs.result(job).rows_matched == 2
