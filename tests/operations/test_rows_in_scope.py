"""Which rows of a file are in the intervals of a replace: job and engine agree, row by row."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.jobs import job_files
from support.some import few
from tandem.errors import CountMismatch, ManifestInvalid
from tandem.intervals import IntervalSet, TimeInterval
from tandem.jobs.formats import InputFile, ReplaceJob, RowScope
from tandem.jobs.results import JobResult
from tandem.operations.attempt_files import PlanRecord
from tandem.operations.kinds.replace import rows_of_round
from tandem.operations.kinds.row_scope import ScopedRows
from tandem.operations.model import Identity, Table, Work
from tandem.pruning.scope import TimeScope
from tandem.rowmap.run_table import to_bitmap
from tandem.spark.jobs import ingest
from tandem.spark.runtime.control import Control, encode

DAY_MS = 86_400_000
DAY_US = DAY_MS * 1_000
TYPES = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
}
BORDERS_MS = st.sampled_from([-DAY_MS - 1, -DAY_MS, 0, 1, 1_000, DAY_MS - 1, DAY_MS, 2 * DAY_MS])
MICROS = st.builds(
    lambda ms, more: ms * 1_000 + more,
    BORDERS_MS,
    st.sampled_from([-1_001, -1_000, -999, -1, 0, 1, 999, 1_000]),
)


def make(folder: Path, type_: str, times: list[int | None]) -> None:
    """A table with one file whose rows have these times, in microseconds since 1970."""
    ids = pa.array(range(len(times)), pa.int64())
    if type_ == "date":
        days = [None if time is None else time // DAY_US for time in times]
        moments = pa.array(days, pa.int32()).cast(TYPES[type_])
    else:
        moments = pa.array(times, pa.int64()).cast(TYPES[type_])
    write_deltalake(str(folder / "t"), pa.table({"id": ids, "ts": moments}))


def job_on(folder: Path, intervals: IntervalSet) -> tuple[Control, InputFile]:
    store, snapshot = job_files.snapshot_of(folder / "t")
    pairs = tuple((piece.start_ms, piece.end_ms) for piece in intervals.pieces)
    job = ReplaceJob(
        source_location="",
        target_file_size=1,
        scope=RowScope(time_column="ts", intervals=pairs),
        inputs=job_files.input_files(store, snapshot),
    )
    return job_files.control(store, snapshot, job), job.inputs[0]


@settings(max_examples=few(20, 400))
@given(
    type_=st.sampled_from(sorted(TYPES)),
    times=st.lists(st.none() | MICROS, min_size=1, max_size=12),
    borders=st.lists(st.tuples(BORDERS_MS, BORDERS_MS), min_size=1, max_size=3),
)
def test_the_job_finds_the_rows_that_the_engine_finds(
    type_: str, times: list[int | None], borders: list[tuple[int, int]]
) -> None:
    intervals = IntervalSet(TimeInterval(*sorted(pair)) for pair in borders)
    with TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, type_, times)
        control, input_ = job_on(folder, intervals)
        _, snapshot = job_files.snapshot_of(folder / "t")
        [add] = snapshot.adds()
        here: dict[str, BitMap64] = {}
        scope = TimeScope(intervals, ("ts",), type_)
        ScopedRows(control.store, "ts", scope, here).read(snapshot, [add])
        by_job = to_bitmap(ingest.rows_of(control.store, control.spec, input_))
    assert by_job == here[add.logged_path]
    shown = [t if t is None or type_ != "date" else t // DAY_US * DAY_US for t in times]
    pieces = [(piece.start_ms, piece.end_ms) for piece in intervals.pieces]
    assert set(by_job) == {
        row
        for row, time in enumerate(shown)
        if time is not None and any(low <= time // 1_000 < high for low, high in pieces)
    }


def loaded(folder: Path, found: list[int] | None) -> dict[str, BitMap64]:
    """What the engine takes from a result with these rows of a file of three."""
    make(folder, "timestamp", [0, None, 5_000])
    control, input_ = job_on(folder, IntervalSet([TimeInterval(0, 1_000)]))
    result = JobResult(operation_id=job_files.OPERATION, attempt=1)
    if found is not None:
        positions = np.array(found, np.int64)
        result = ingest.with_matches(control, result, [input_], [positions])
    identity = Identity(job_files.OPERATION, "TableReplace", "", "x", "", {})
    work = Work(identity, Table(control.store, None, "LakeTable/t"))  # type: ignore[arg-type]
    work.plan, work.job = PlanRecord.model_construct(), control.spec
    work.results[0] = result
    return dict(rows_of_round(work, 0))


@pytest.mark.parametrize("found", [[], [0, 2]])
def test_the_engine_takes_what_the_job_found(tmp_path: Path, found: list[int]) -> None:
    [rows] = loaded(tmp_path, found).values()
    assert list(rows) == found


@pytest.mark.parametrize(
    ("found", "error"), [([3], CountMismatch), ([1, 1], CountMismatch), (None, ManifestInvalid)]
)
def test_a_wrong_answer_is_refused(
    tmp_path: Path, found: list[int] | None, error: type[Exception]
) -> None:
    """A row that the file does not have, a row twice, no answer."""
    with pytest.raises(error):
        loaded(tmp_path, found)


def test_a_job_that_reads_no_file_is_written_as_before(tmp_path: Path) -> None:
    make(tmp_path, "timestamp", [0])
    control, _ = job_on(tmp_path, IntervalSet([TimeInterval(0, 1_000)]))
    assert b'"inputs"' in encode(control.spec)
    none = control.spec.job.model_copy(update={"inputs": ()})
    assert b'"inputs"' not in encode(none)
    assert not none.needs_spark
