"""The matches that a merge job records, so that it can be evaluated in part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from support.jobs import job_files as jobs
from tandem.delta import dv
from tandem.jobs.formats import InputFile, MergeClause, MergeJob, RoundRequest
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs import merge
from tandem.spark.runtime.control import Control, answer, encode
from tandem.spark.runtime.session import session_conf

UPDATE = MergeClause(when="Matched", action="Update", where="op = 'U'", set={"a": "s.a"})
INSERT = MergeClause(when="NotMatched", action="Insert", set={"id": "s.id", "a": "s.a"})
DELETE = MergeClause(when="NotMatchedBySource", action="Delete", where="t.id = 5")
SOURCE = pa.table({"id": [1, 2, 13, 18, 30], "a": [7, 7, 7, 7, 7], "op": list("UKUKU")})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "t"
    for first in (0, 10):
        rows = pa.table({"id": list(range(first, first + 10)), "a": [0] * 10})
        write_deltalake(str(path), rows, mode="append")
    return path


ATTEMPTS = iter(range(1, 1000))


def job_for(table: Path, source: pa.Table, *clauses: MergeClause) -> Control:
    store, snapshot = jobs.snapshot_of(table)
    attempt = next(ATTEMPTS)
    path = table.parent / f"{attempt}.parquet"
    pq.write_table(source, path)
    job = MergeJob(
        source_format="Parquet",
        source_location=path.as_uri(),
        on="t.id = s.id",
        clauses=clauses,
        target_file_size=1 << 30,
        inputs=jobs.input_files(store, snapshot),
    )
    spec = jobs.control(store, snapshot, job, attempt).spec
    own = f"{attempt:016x}"
    places = {
        "operation_id": own,
        "control_prefix": f"_tandem/operations/{own}/attempts/{attempt}",
        "data_prefix": f"{own}-{attempt}",
    }
    return Control(spec.model_copy(update=places), store)


def ask_part(job: Control, number: int, files: Sequence[InputFile]) -> None:
    request = RoundRequest(
        operation_id=job.spec.operation_id,
        attempt=job.spec.attempt,
        round=number,
        table_version=9,
        inputs=tuple(files),
        part=True,
    )
    job.store.put(job.round_path(number, "request.json"), encode(request))


def run(job: Control, spark: SparkSession) -> None:
    job.store.put(job.path("done.json"), b"{}")
    assert answer(lambda c: merge.run(c, spark, local=False), job) == 0, jobs.failure(job)


def recorded(job: Control, inputs: Sequence[InputFile], round_: int = 0) -> dict[Any, Any]:
    """By file and position: the output, and which source row it was."""
    return {
        (inputs[row["input"]].logged_path, row["position"]): (
            row["output"],
            (row["source_1"], row["source_2"]),
        )
        for row in jobs.matches(job, round_)
    }


def test_a_partial_round_agrees_with_the_whole_merge_on_its_rows(
    table: Path, spark: SparkSession
) -> None:
    """Which source row each row matched, rows that stay included; and it inserts nothing."""
    job = job_for(table, SOURCE, UPDATE, INSERT, DELETE)
    assert isinstance(job.spec.job, MergeJob)
    inputs = job.spec.job.inputs
    some = inputs[1].model_copy(update={"dv": dv.to_base64(BitMap64([0, 1, 3]))})
    ask_part(job, 1, inputs[:1])
    ask_part(job, 2, [some])
    run(job, spark)
    parts = (inputs, inputs[:1], [some])
    whole, first, second = (recorded(job, files, n) for n, files in enumerate(parts))
    # 1 and 13 are updated, 2 and 18 stay, and 5 is deleted: of no source row.
    assert sorted(position for _, position in whole) == [1, 2, 3, 5, 8]
    outputs = [output for output, _ in whole.values()]
    assert (outputs.count(KEPT), outputs.count(None)) == (2, 1)
    sources = [ids for _, ids in whole.values()]
    assert len(set(sources)) == 5
    assert [ids for ids in sources if None in ids] == [(None, None)]
    everywhere = {**first, **second}
    assert {place: ids for place, (_, ids) in everywhere.items()} == {
        place: ids for place, (_, ids) in whole.items() if place in everywhere
    }
    missing = whole.keys() - everywhere.keys()
    assert len(missing) <= 3
    assert all(path == some.logged_path and position in (0, 1, 3) for path, position in missing)
    fresh = [sum(o.rows for o in jobs.result(job, n).outputs if o.fresh) for n in range(3)]
    assert fresh == [1, 0, 0]


@pytest.mark.matrix
def test_an_insert_only_merge_reports_its_matches(table: Path, spark: SparkSession) -> None:
    job = job_for(table, SOURCE, INSERT)
    run(job, spark)
    assert isinstance(job.spec.job, MergeJob)
    found = recorded(job, job.spec.job.inputs)
    assert [output for output, _ in found.values()] == [KEPT] * 4
    assert (jobs.result(job).rows_matched, jobs.result(job).rows_written) == (0, 1)
    doubled = job_for(table, pa.concat_tables([SOURCE, SOURCE.slice(0, 1)]), INSERT)
    run(doubled, spark)
    assert jobs.matches(doubled) == []  # nothing was done to any row, and nothing is recorded
    assert jobs.result(doubled).rows_written == 1


@pytest.mark.parametrize("limit", [3, 4])
def test_too_many_matches_are_not_recorded(
    table: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(merge, "MAX_RECORDED", limit)
    job = job_for(table, SOURCE, UPDATE, INSERT)
    run(job, spark)
    matches = jobs.matches(job)
    assert any("source_1" in match for match in matches) == (limit > 3)
    assert len(matches) == (4 if limit > 3 else 2)
    assert jobs.result(job).rows_matched == 2


def test_one_task_may_report_more_than_its_share_of_matches_but_not_all(
    table: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So little data is one task, whatever number of them was asked for."""
    conf = {**session_conf(), "spark.sql.shuffle.partitions": "20"}
    monkeypatch.setattr("tandem.spark.runtime.frames.session_conf", lambda: conf)
    for limit, known in ((19, False), (20, True)):
        monkeypatch.setattr(merge, "MAX_RECORDED", limit)
        job = job_for(table, SOURCE, UPDATE, INSERT)
        run(job, spark)
        assert any("source_1" in match for match in jobs.matches(job)) == known
