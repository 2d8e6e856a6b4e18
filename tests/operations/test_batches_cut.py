"""How the plan of a large compaction is cut, and what of a batch is left on a later version."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.documents import document
from support.lake.segments import MIB, loads
from tandem.operations.explain import total
from tandem.operations.kinds.batches import (
    BatchesRecord,
    batch_resource,
    batches_of,
    runs_at,
    runs_of,
)
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionPlan, CompactionRequest, is_worth_rewriting
from tandem.spec import parse
from tandem.spec.compaction import CompactionType, TableCompaction
from tandem.spec.status import OperationResult, Plan, Progress, Reconciled
from tandem.timeline.segments import Segments

TARGET = 64 * MIB
MAJOR = CompactionRequest(CompactionType.MAJOR, target_file_size=TARGET)
MINOR = CompactionRequest(CompactionType.MINOR, thresholds=(2, 2), target_file_size=TARGET)


def planned(request: CompactionRequest, count: int) -> tuple[Segments, CompactionPlan]:
    live = Segments.of(loads(range(count), sizes={str(n): 30 * MIB for n in range(count)}))
    return live, plan_compaction(live, request)


def record_of(plan: CompactionPlan, most: int, *, whole_runs: bool = False) -> BatchesRecord:
    batches = batches_of(plan.runs, most, whole_runs=whole_runs)
    return BatchesRecord(
        operation_id="0123456789abcdef",
        summary=Plan(read_version=0, inputs=len(plan.files), input_bytes=plan.input_bytes),
        most_bytes=most,
        runs=runs_of(plan.runs, batches),
        batches=batches,
    )


@given(count=st.integers(2, 24), most=st.integers(1, 800 * MIB), minor=st.booleans())
def test_batches_have_each_file_once_in_the_order_of_the_plan_and_keep_to_the_limit(
    count: int, most: int, minor: bool
) -> None:
    _, plan = planned(MINOR if minor else MAJOR, count)
    batches = batches_of(plan.runs, most, whole_runs=False)
    found = [path for batch in batches for each in batch.bins for path in each.files]
    assert found == [file.path for file in plan.files]
    assert sum(batch.bytes for batch in batches) == plan.input_bytes
    for batch in batches:
        assert batch.bytes <= most or len(batch.bins) == 1
    for run, number in zip(plan.runs, range(len(plan.runs)), strict=True):
        holders = [b for b in batches if any(each.run == number for each in b.bins)]
        assert len(holders) == 1 or run.input_bytes > most


def test_a_run_that_must_stay_whole_is_one_batch_however_large() -> None:
    _, plan = planned(MAJOR, 8)
    assert len(batches_of(plan.runs, 1, whole_runs=True)) == 1
    assert len(batches_of(plan.runs, 1, whole_runs=False)) == len(plan.runs[0].bins) > 1


def test_a_run_that_is_not_cut_is_planned_again_as_it_was() -> None:
    live, plan = planned(MINOR, 8)
    record = record_of(plan, plan.input_bytes)
    again = runs_at(record, 1, live, TARGET, is_worth_rewriting)
    assert [replace(run, output=None) for run in again] == [
        replace(run, output=None) for run in plan.runs
    ]


def test_a_batch_names_the_segments_of_its_own_files() -> None:
    live, plan = planned(MAJOR, 8)
    record = record_of(plan, 60 * MIB)
    runs = [runs_at(record, n + 1, live, TARGET, is_worth_rewriting) for n in range(4)]
    assert [run.segments for (run,) in runs] == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    assert all(run.major for (run,) in runs)


@pytest.mark.parametrize(("gone", "left"), [((), 1), (("0",), 0), (("0", "1"), 0)])
def test_files_that_are_gone_are_left_out_and_so_are_bins_that_gain_nothing(
    gone: tuple[str, ...], left: int
) -> None:
    live, plan = planned(MAJOR, 8)
    record = record_of(plan, 60 * MIB)
    later = live.where(~live.named(gone))
    assert len(runs_at(record, 1, later, TARGET, is_worth_rewriting)) == left


def test_the_progress_of_a_batch_is_shown_as_that_of_all() -> None:
    _, plan = planned(MAJOR, 8)
    part = record_of(plan, 60 * MIB).part(2)
    half = Progress(
        percent=50, files_done=1, files_total=2, bytes_done=30 * MIB, bytes_total=60 * MIB,
        eta_seconds=10,
    )  # fmt: skip
    whole = part.in_whole(half)
    assert (whole.files_done, whole.files_total) == (3, 8)
    assert whole.percent == 37
    assert whole.eta_seconds == 50
    assert part.in_whole(half.completed()).percent == 50  # and not all of it
    assert whole.summary == "3/8 files, batch 2 of 4"


def test_a_batch_copies_row_groups_as_its_operation_does() -> None:
    _, plan = planned(MAJOR, 8)
    operation = parse(
        document(
            "TableCompaction",
            "nightly",
            {"tableRef": {"name": "flights"}, "type": "Major", "minRowGroupRows": 0},
        )
    )
    assert isinstance(operation, TableCompaction)
    batch = batch_resource(operation, "0123456789abcdef", record_of(plan, 60 * MIB), 1)
    assert batch.spec.min_row_group_rows == 0


def test_the_result_of_batches_is_their_sum() -> None:
    first = OperationResult(
        version=4, files_added=1, files_removed=3, bytes_added=10, bytes_removed=12,
        segments=("0.1",), summary=("2 commits since version 1", "5 rows deleted by 3"),
        reconciled=Reconciled(commits_seen=2, deletes_remapped=5, by_segment={"0.1": 5}),
    )  # fmt: skip
    last = OperationResult(
        version=9, files_added=2, files_removed=4, files_marked=1, bytes_added=1,
        bytes_removed=2, segments=("7.1",), summary=("no other commit since version 8",),
        reconciled=Reconciled(),
    )  # fmt: skip
    found = total((first, last))
    assert found.version == 9
    assert (found.files_added, found.files_removed, found.files_marked) == (3, 7, 1)
    assert (found.bytes_added, found.bytes_removed) == (11, 14)
    assert found.segments == ("0.1", "7.1")
    assert found.reconciled == Reconciled(commits_seen=2, deletes_remapped=5, by_segment={"0.1": 5})
    assert found.summary == (
        "2 commits by others meanwhile",
        "5 rows deleted by 3",
        "in 2 batches (versions 4 and 9)",
    )
