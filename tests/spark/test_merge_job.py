"""The merge job against other engines' MERGE, source formats, and what it refuses.

DuckDB executes the same merges on the same rows, and Spark + Delta some of them, each by its own
reading of the clauses.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from delta_session import interpreting
from support.foreign.tables import broken_texts, column, write
from support.jobs import job_files as jobs
from support.some import some
from tandem.delta import dv
from tandem.errors import Reason
from tandem.jobs.formats import MergeClause, MergeJob, RoundRequest
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs import merge
from tandem.spark.runtime.control import Control, answer, encode
from tandem.statements.merge import ClauseAction

TABLE = pa.schema([("id", pa.int64()), ("day", pa.string()), ("a", pa.int32()), ("x", pa.string())])
ROWS = pa.table(
    [
        list(range(20)),
        [f"d{n % 2}" for n in range(20)],
        [n if n % 4 else None for n in range(20)],
        [None if n % 7 == 0 else f"x{n}" for n in range(20)],
    ],
    schema=TABLE,
)
SOURCE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, 18, 30, 31, None], pa.int64()),
        "day": ["d0", "d0", "d1", None, "d9", "d1", "d9", "d0"],
        "a": pa.array([100, None, 300, 4, 18, 3000, None, 5], pa.int32()),
        "x": ["a", "b", None, "d", "e", "f", "g", "h"],
        "op": ["U", "D", "K", "U", "D", "U", "K", "U"],
    }
)


@dataclass(frozen=True)
class Case:
    """A merge; `sql` says its clauses for other engines, {U} and {I} being all columns."""

    clauses: tuple[MergeClause, ...]
    sql: str
    on: str = "t.id = s.id"


def matched(action: ClauseAction, where: str | None = None, **set_: str) -> MergeClause:
    return MergeClause(
        when="Matched", action=action, where=where, set=set_, all=action == "Update" and not set_
    )


def missing(where: str | None = None, **values: str) -> MergeClause:
    return MergeClause(when="NotMatched", action="Insert", where=where, set=values, all=not values)


def left(action: ClauseAction, where: str | None = None, **set_: str) -> MergeClause:
    return MergeClause(when="NotMatchedBySource", action=action, where=where, set=set_)


UPSERT = (matched("Update"), missing())
CASES = {
    "everything": Case(
        (
            matched("Delete", "s.op = 'D'"),
            matched("Update", "s.op = 'U'"),
            missing("s.id IS NOT NULL", id="s.id", day="coalesce(s.day, 'none')", a="s.a"),
            left("Delete", "t.id >= 15"),
            left("Update", x="'left'"),
        ),
        "WHEN MATCHED AND s.op = 'D' THEN DELETE WHEN MATCHED AND s.op = 'U' THEN {U} "
        "WHEN NOT MATCHED AND s.id IS NOT NULL THEN INSERT (id, day, a) "
        "VALUES (s.id, coalesce(s.day, 'none'), s.a) "
        "WHEN NOT MATCHED BY SOURCE AND t.id >= 15 THEN DELETE "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET x = 'left'",
    ),
    "upsert": Case(UPSERT, "WHEN MATCHED THEN {U} WHEN NOT MATCHED THEN {I}"),
    "update some": Case(
        (matched("Update", x="s.x || t.x", a="coalesce(s.a, t.a + 1)"),),
        "WHEN MATCHED THEN UPDATE SET x = s.x || t.x, a = coalesce(s.a, t.a + 1)",
    ),
    "delete": Case((matched("Delete"),), "WHEN MATCHED THEN DELETE"),
    "insert only": Case(
        (missing("s.a > 0", id="s.id", x="op"),),
        "WHEN NOT MATCHED AND s.a > 0 THEN INSERT (id, x) VALUES (s.id, s.op)",
    ),
    "first clause that applies": Case(
        (
            matched("Update", "s.op = 'U' AND s.id < 4", a="-1"),
            matched("Delete", "op <> 'K'"),
            matched("Update", "s.op IN ('U', 'K')", a="-2"),
            missing("op = 'U'", id="s.id", day="s.day"),
            missing(),
        ),
        "WHEN MATCHED AND s.op = 'U' AND s.id < 4 THEN UPDATE SET a = -1 "
        "WHEN MATCHED AND s.op <> 'K' THEN DELETE "
        "WHEN MATCHED AND s.op IN ('U', 'K') THEN UPDATE SET a = -2 "
        "WHEN NOT MATCHED AND s.op = 'U' THEN INSERT (id, day) VALUES (s.id, s.day) "
        "WHEN NOT MATCHED THEN {I}",
    ),
    "conditions that are null": Case(
        (matched("Update", "s.a > t.a", a="s.a"), missing("s.a > 5")),
        "WHEN MATCHED AND s.a > t.a THEN UPDATE SET a = s.a WHEN NOT MATCHED AND s.a > 5 THEN {I}",
    ),
    "not matched by source": Case(
        (left("Update", "t.a > 10", a="t.a * 2", day="'moved'"), left("Delete", "a IS NULL")),
        "WHEN NOT MATCHED BY SOURCE AND t.a > 10 THEN UPDATE SET a = t.a * 2, day = 'moved' "
        "WHEN NOT MATCHED BY SOURCE AND t.a IS NULL THEN DELETE",
    ),
    "null keys match": Case(
        UPSERT,
        "WHEN MATCHED THEN {U} WHEN NOT MATCHED THEN {I}",
        on="t.id = s.id AND t.day <=> s.day",
    ),
    "no equality": Case(
        (matched("Update", x="s.op"), missing("s.id > 30")),
        "WHEN MATCHED THEN UPDATE SET x = s.op WHEN NOT MATCHED AND s.id > 30 THEN {I}",
        on="t.id BETWEEN s.id - 1 AND s.id AND s.id IN (7, 2, 30)",
    ),
    "nothing matches": Case(
        (*UPSERT, left("Delete")),
        "WHEN MATCHED THEN {U} WHEN NOT MATCHED THEN {I} WHEN NOT MATCHED BY SOURCE THEN DELETE",
        on="t.id = s.id + 1000",
    ),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merge") / "t"
    for part in (ROWS.slice(0, 10), ROWS.slice(10)):
        write_deltalake(str(path), part, mode="append", partition_by=["day"])
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merge") / "s.parquet"
    pq.write_table(SOURCE, path)
    return path


ATTEMPTS = itertools.count(1)


def job_for(
    table: Path,
    source: Path | str,
    clauses: Sequence[MergeClause] = UPSERT,
    *,
    on: str = "t.id = s.id",
    format_: str = "Parquet",
    operation: str = "",
    **more: Any,
) -> Control:
    """A job of an operation of its own, unless one is named."""
    store, snapshot = jobs.snapshot_of(table)
    job = MergeJob(
        source_format=format_,
        source_location=source if isinstance(source, str) else source.as_uri(),
        on=on,
        clauses=tuple(clauses),
        target_file_size=1 << 30,
        **{"inputs": jobs.input_files(store, snapshot), **more},
    )
    made = jobs.control(store, snapshot, job, next(ATTEMPTS))
    spec = made.spec
    own = operation or f"{spec.attempt:016x}"
    prefix = f"_tandem/operations/{own}/attempts/{spec.attempt}"
    spec = spec.model_copy(
        update={
            "operation_id": own,
            "control_prefix": prefix,
            "data_prefix": f"{own}-{spec.attempt}",
        }
    )
    return Control(spec, store)


def run(job: Control, spark: SparkSession) -> int:
    """By Spark: what tasks do over Arrow is compared with it in `test_local_merge`."""
    job.store.put(job.path("done.json"), b"{}")
    return answer(lambda c: merge.run(c, spark, local=False), job)


Row = tuple[Any, ...]


def rows_of(table: pa.Table) -> list[Row]:
    columns = [table[name].to_pylist() for name in TABLE.names]
    return sorted(zip(*columns, strict=True), key=repr)


def merged(job: Control, round_: int = 0) -> list[Row]:
    """The table's rows as they are when the round's result is committed."""
    result = jobs.result(job, round_)
    assert isinstance(job.spec.job, MergeJob)
    gone: dict[int, set[int]] = {}
    updated = 0
    for match in jobs.matches(job, round_):
        if match["output"] == KEPT:
            continue
        positions = gone.setdefault(match["input"], set())
        assert match["position"] not in positions
        positions.add(match["position"])
        updated += match["output"] is not None
        assert match["output"] is None or not result.outputs[match["output"]].fresh
    found: list[Row] = []
    for number, file in enumerate(job.spec.job.inputs):
        rows = jobs.read_output(job, file.logged_path, file.partition_values)
        dead = gone.get(number, set()) | set(dv.from_base64(file.dv) if file.dv else ())
        kept = [n for n in range(rows.num_rows) if n not in dead]
        found += rows_of(rows.take(pa.array(kept, pa.int64())))
    for output in result.outputs:
        found += rows_of(jobs.read_output(job, output.path, output.partition_values))
    kinds = [output.fresh for output in result.outputs]
    assert kinds == sorted(kinds)
    assert sum(o.rows for o in result.outputs if not o.fresh) == updated
    return sorted(found, key=repr)


def clauses_of(case: Case, engine: Callable[[str], str] = str) -> str:
    """The clauses for another engine, which spells all columns out."""
    every = ", ".join(f"{name} = s.{name}" for name in TABLE.names)
    names = ", ".join(TABLE.names)
    values = ", ".join(f"s.{name}" for name in TABLE.names)
    insert = f"INSERT ({names}) VALUES ({values})"
    return engine(case.sql.replace("{U}", f"UPDATE SET {every}").replace("{I}", insert))


def by_duckdb(case: Case) -> list[Row]:
    on = case.on.replace("<=>", "IS NOT DISTINCT FROM")
    with duckdb.connect() as engine:
        engine.register("rows_", ROWS)
        engine.register("source_", SOURCE)
        engine.execute("CREATE TABLE t AS SELECT * FROM rows_")
        engine.execute(f"MERGE INTO t USING source_ AS s ON {on} {clauses_of(case)}")
        return rows_of(engine.sql("SELECT * FROM t").to_arrow_table())


@pytest.mark.part(3)
@pytest.mark.parametrize("name", some([*CASES], every=2))
def test_merges_have_the_results_of_duckdb(
    table: Path, source: Path, spark: SparkSession, name: str
) -> None:
    case = CASES[name]
    job = job_for(table, source, case.clauses, on=case.on)
    assert run(job, spark) == 0, jobs.failure(job)
    assert merged(job) == by_duckdb(case)


@pytest.mark.matrix
def test_merges_have_the_results_of_delta(
    source: Path, delta_spark: SparkSession, tmp_path: Path
) -> None:
    """DuckDB is compared with us above; here it is with Spark + Delta, for what is hardest."""
    case = CASES["everything"]
    write_deltalake(str(tmp_path / "t"), ROWS, partition_by=["day"])
    delta_spark.read.parquet(str(source)).createOrReplaceTempView("merge_source")
    delta_spark.sql(
        f"MERGE INTO delta.`{tmp_path / 't'}` t USING merge_source s ON {case.on} "
        f"{clauses_of(case)}"
    )
    found = delta_spark.read.format("delta").load(str(tmp_path / "t")).collect()
    rows = sorted((tuple(row[n] for n in TABLE.names) for row in found), key=repr)
    assert rows == by_duckdb(case)


@pytest.mark.matrix
def test_deleted_rows_are_absent_and_rounds_repeat_the_whole_merge(
    table: Path, source: Path, spark: SparkSession
) -> None:
    job = job_for(table, source)
    assert isinstance(job.spec.job, MergeJob)
    inputs = [
        file.model_copy(update={"dv": dv.to_base64(BitMap64([1]))}) for file in job.spec.job.inputs
    ]
    for number, files in enumerate((inputs, []), start=1):
        asked = RoundRequest(
            operation_id=job.spec.operation_id,
            attempt=job.spec.attempt,
            round=number,
            table_version=9,
            inputs=tuple(files),
        )
        job.store.put(job.round_path(number, "request.json"), encode(asked))
    assert run(job, spark) == 0
    second, third = jobs.result(job, 1), jobs.result(job, 2)
    assert (jobs.result(job).rows_matched, second.rows_read) == (5, 16)
    gone: set[int] = set()
    for file in inputs:
        rows = jobs.read_output(job, file.logged_path, file.partition_values)
        gone.add(rows["id"][1].as_py())
    keys = {1, 2, 3, 4, 18}
    assert second.rows_matched == len(keys - gone)
    inserted = [sum(o.rows for o in result.outputs if o.fresh) for result in (second, third)]
    assert inserted == [8 - len(keys - gone), 8]
    assert third.rows_matched == 0


def refused(job: Control, spark: SparkSession) -> str:
    assert run(job, spark) == 1
    failure = jobs.failure(job)
    assert not failure.transient
    return f"{failure.reason}: {failure.message}"


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("clauses", "on", "message"),
    [
        (UPSERT, "t.id = s.nope", "InvalidStatement: spec.merge.on: the source has no such column"),
        (UPSERT, "id = s.id", "expected: t.id or s.id"),
        ((matched("Update", a="s.x"),), "t.id = s.id", "STRING cannot be stored in a"),
        ((matched("Update", a="CAST(s.x AS INT)"),), "t.id = s.id", "StatementFailed"),
        ((matched("Update", a="1 DIV (s.a - 100)"),), "t.id = s.id", "StatementFailed"),
        (
            (matched("Update", "s.id = 1", a="1"), missing()),
            "t.id = s.id OR (s.id = 2 AND t.id = 1)",
            "several rows of the source match one row of the table, so it is not clear which "
            "applies (found: 2 rows for id = 1;",
        ),
    ],
)
def test_merges_that_the_job_refuses(
    table: Path,
    source: Path,
    spark: SparkSession,
    clauses: tuple[MergeClause, ...],
    on: str,
    message: str,
) -> None:
    assert message in refused(job_for(table, source, clauses, on=on), spark)


def test_a_source_with_a_column_of_our_names_is_refused(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    source = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"id": [1], "a": [1], "__TANDEM_here": [True]}), source)
    message = refused(job_for(table, source, UPSERT, on="t.id = s.id"), spark)
    assert "__TANDEM_here" in message
    assert "Rename the column in the source" in message


@pytest.mark.matrix
def test_csv_and_json_have_the_tables_types_where_it_has_the_column(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "1.csv").write_text("ID,op,a\n3,U,33\n40,U,\n")
    (tmp_path / "csv" / "2.csv").write_text("op,id,x\nD,5,\n")
    clauses = (
        matched("Delete", "s.op = 'D'"),
        matched("Update", a="s.a + 1", x="op"),
        missing(id="s.id", a="s.a", x="upper(s.x)"),
    )
    job = job_for(
        table, tmp_path / "csv", clauses, format_="Csv", source_options={"header": "true"}
    )
    assert run(job, spark) == 0, jobs.failure(job)
    after = {row[0]: row[1:] for row in merged(job)}
    assert (after[3], after[40], 5 in after) == (("d1", 34, "U"), (None, None, None), False)
    lines: list[dict[str, Any]] = [
        {"id": 3, "op": "U", "a": 7, "more": {"y": 1}},
        {"id": 5, "op": "D"},
        {"id": 50, "x": "q"},
    ]
    (tmp_path / "s.json").write_text("\n".join(map(json.dumps, lines)))
    job = job_for(
        table,
        tmp_path / "s.json",
        (matched("Update", "s.more.y = 1", a="s.a"), clauses[0], clauses[2]),
        format_="Json",
    )
    assert run(job, spark) == 0, jobs.failure(job)
    after = {row[0]: row[1:] for row in merged(job)}
    assert (after[3], after[50], 5 in after) == (("d1", 7, "x3"), (None, None, "Q"), False)


def test_an_operation_reads_one_source(table: Path, tmp_path: Path, spark: SparkSession) -> None:
    """Whichever attempt comes first says what is read; later ones take nothing that came since."""
    path = tmp_path / "s.parquet"
    pq.write_table(SOURCE, path)
    first = job_for(table, path)
    assert run(first, spark) == 0
    again = job_for(table, path, operation=first.spec.operation_id)
    assert run(again, spark) == 0
    assert merged(again) == merged(first)
    pq.write_table(SOURCE.slice(1), path)
    later = job_for(table, path, operation=first.spec.operation_id)
    assert refused(later, spark).startswith(f"{Reason.SOURCE_CHANGED}: {path.as_uri()}")
    path.unlink()
    last = job_for(table, path, operation=first.spec.operation_id)
    assert refused(last, spark).startswith(Reason.SOURCE_CHANGED)


LEFT = (matched("Update", x="s.id"), left("Delete"))
SET_A = (matched("Update", a="s.a"),)


@pytest.mark.part(3)
@pytest.mark.parametrize(
    ("name", "content", "clauses", "message"),
    some(
        [
            # Rows of the table that a source names must not be deleted as if it did not.
            ("s.json", '{"id": 1}{"id": 2}\n', LEFT, "s.json, line 1: a line holds more than one"),
            ("s.json", '{"id": 1} {"id": 2}\n', LEFT, "s.json, line 1: a line holds more than one"),
            ("s.json", '{"id": 1, "ID": 2}\n', LEFT, "s.json, line 1, column ID: an object has"),
            (
                "s.json",
                '{"id": 1, "more": {"k": 1, "k": 2}}\n',
                LEFT,
                "column more.k: an object has",
            ),
            ("s.json", '{"id": 1}\n{"id": 2.9}\n', LEFT, "s.json, line 2, column id: a value does"),
            (
                "s.csv",
                'id,x\n1,"a"b\n',
                LEFT,
                "s.csv, line 2, column x: text follows a closing quote",
            ),
            ("s.csv", 'id,x\n1,"a\n', LEFT, "s.csv, line 2: a quoted value is not terminated"),
            ("s.csv", "id,a\n1,2.9\n", SET_A, "line 2, column a"),
            ("s.parquet", pa.table({"id": [1], "a": [2.9]}), SET_A, "DOUBLE cannot be stored"),
            ("s.json", '{"id": 1, "a": 2.9}\n', SET_A, "s.json, line 1, column a: a value does"),
            (
                "s.parquet",
                "PAR1",
                LEFT,
                "SourceUnreadable: s.parquet: a file of the source is damaged",
            ),
            ("s.csv.gz", "id\n1\n", LEFT, "SourceUnreadable: s.csv.gz: a compressed file"),
        ],
        every=2,
    ),
)
def test_a_source_without_one_meaning_changes_nothing(
    table: Path,
    tmp_path: Path,
    spark: SparkSession,
    name: str,
    content: str | pa.Table,
    clauses: tuple[MergeClause, ...],
    message: str,
) -> None:
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        pq.write_table(content, tmp_path / name)
    form = {"json": "Json", "parquet": "Parquet"}.get(name.rpartition(".")[2], "Csv")
    options = {"header": "true"} if form == "Csv" else {}
    job = job_for(table, tmp_path / name, clauses, format_=form, source_options=options)
    assert message in refused(job, spark)


@pytest.mark.matrix
def test_values_over_lines_and_names_in_any_case_are_read(
    table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    clauses = (matched("Update", x="s.x"), left("Delete"))
    (tmp_path / "s.csv").write_text('id,x\n1,"two\n2,lines"\n3,"say ""it"""\n')
    (tmp_path / "s.json").write_text(
        '{"id": 1, "x": "two\\n2,lines"}\n[{"ID": 3, "X": "say \\"it\\""}]\n'
    )
    for name, form in (("s.csv", "Csv"), ("s.json", "Json")):
        options = {"header": "true"} if form == "Csv" else {}
        job = job_for(table, tmp_path / name, clauses, format_=form, source_options=options)
        assert run(job, spark) == 0, jobs.failure(job)
        assert {row[0]: row[3] for row in merged(job)} == {1: "two\n2,lines", 3: 'say "it"'}


@pytest.mark.parametrize("whole", [True, False], ids=["all columns", "some"])
def test_columns_of_bounded_length(tmp_path: Path, spark: SparkSession, whole: bool) -> None:
    fields = "id BIGINT, s STRUCT<x: CHAR(3)>, v VARCHAR(2), c CHAR(2)"
    interpreting(spark).sql(f"CREATE TABLE delta.`{tmp_path / 't'}` ({fields}) USING delta")
    source = tmp_path / "s.json"
    clause = missing() if whole else missing(id="s.id", v="s.v", c="s.c")

    def job_of(**more: Any) -> Control:
        source.write_text(json.dumps({"id": 1, "v": "ä", "s": {"x": "x"}, "c": "y", **more}) + "\n")
        return job_for(tmp_path / "t", source, (clause,), format_="Json")

    wrong: list[dict[str, Any]] = [{"v": "abc"}, {"c": "abc"}]
    for values in (*wrong, {"s": {"x": "abcd"}})[: 3 if whole else 2]:
        message = refused(job_of(**values), spark)
        assert message.startswith("ConstraintViolated: column ")
        assert "a string is too long for its column (found: abc" in message
    job = job_of(v="b   ")
    assert run(job, spark) == 0, jobs.failure(job).message
    [output] = jobs.result(job).outputs
    found = jobs.read_output(job, output.path, output.partition_values).to_pylist()
    assert found == [{"id": 1, "s": {"x": "x  "} if whole else None, "v": "b ", "c": "y "}]


def test_rows_that_break_a_rule_of_the_table(tmp_path: Path, spark: SparkSession) -> None:
    """Those that a merge deletes, or leaves as they are, need not fit."""
    write_deltalake(str(tmp_path / "t"), ROWS)
    source = tmp_path / "s.parquet"
    pq.write_table(SOURCE.filter(pa.compute.is_valid(SOURCE["a"])), source)
    alter = DeltaTable(str(tmp_path / "t")).alter
    alter.add_constraint({"small": "a IS NULL OR a * 2 < 6000"})
    message = refused(job_for(tmp_path / "t", source, UPSERT), spark)
    assert "ConstraintViolated: delta.constraints.small" in message
    assert "(found: a = 3000, id = 30" in message
    for clauses in ((matched("Delete"),), (matched("Update"), missing("s.a < 3000"))):
        job = job_for(tmp_path / "t", source, clauses)
        assert run(job, spark) == 0, jobs.failure(job).message


@pytest.mark.matrix
def test_texts_that_a_merge_sets_must_be_utf8(tmp_path: Path, spark: SparkSession) -> None:
    """In the rows of the clause that sets them: another one carries over what is there."""
    rows = pa.table({"id": [1, 2], "s": broken_texts(2)})
    write(tmp_path / "t", column("id"), column("s", "string"), rows=rows)
    source = tmp_path / "s.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "b": [b"x", b"\xff", b"\xfe"]}), source)
    value = "CAST(s.b AS STRING)"
    clauses = (matched("Update", "s.id = 1", s=value), matched("Update", id="t.id + 10"))
    job = job_for(tmp_path / "t", source, clauses)
    assert run(job, spark) == 0, jobs.failure(job).message
    [output] = jobs.result(job).outputs
    found = jobs.read_output(job, output.path, output.partition_values).sort_by("id")
    assert found["s"].cast(pa.binary()).to_pylist() == [b"x", b"\xff"]
    for broken in ((matched("Update", s=value),), (missing(id="s.id", s=value),)):
        message = refused(job_for(tmp_path / "t", source, broken), spark)
        assert "StatementFailed: s: a new string is not valid UTF-8" in message
