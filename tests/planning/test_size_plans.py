"""Semi-major and major plans: by time chunk, and by size."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, files_of, loads, segments
from tandem.errors import InvalidSpec
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import GIB, CompactionRequest
from tandem.planning.runs import is_worth_rewriting, pack
from tandem.spec.compaction import CompactionType
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn

MAJOR = CompactionRequest(CompactionType.MAJOR)
SEMI = CompactionRequest(CompactionType.SEMI_MAJOR)
MONTHS = TimeColumn(("t",), Granularity.MONTH)
JANUARY, FEBRUARY = ("2013-01-05", "2013-01-06"), ("2013-02-05", "2013-02-06")


def test_C12_major_takes_one_contiguous_run_below_the_size() -> None:
    sizes = {str(n): 300 * MIB for n in range(6)}

    plan = plan_compaction(loads(range(6), sizes=sizes), replace(MAJOR, target_file_size=512 * MIB))

    # One pass, one run: 3, 4 and 5 wait for the next one.
    assert [(run.output, run.segments) for run in plan.runs] == [("0.1", ("0", "1", "2"))]
    assert plan.runs[0].major


def test_C12_oversize_segment_in_the_middle_ends_a_run_of_two() -> None:
    plan = plan_compaction(loads(range(5), sizes={"2": 2 * GIB}), MAJOR)

    assert [run.segments for run in plan.runs] == [("0", "1")]


def test_C12_oversize_segment_behind_a_single_one_starts_a_new_run() -> None:
    plan = plan_compaction(loads(range(5), sizes={"1": 2 * GIB}), MAJOR)

    assert [(run.output, run.segments) for run in plan.runs] == [("2.1", ("2", "3", "4"))]


def test_C12_segment_that_exceeds_the_size_starts_a_new_run() -> None:
    # 0 and 1 together reach the size; 1 alone does not.
    sizes = {"0": 600 * MIB, "1": 424 * MIB, "2": 10 * MIB, "3": 10 * MIB}

    plan = plan_compaction(loads(range(4), sizes=sizes), MAJOR)

    assert [run.segments for run in plan.runs] == [("1", "2", "3")]


def test_C12_loads_that_arrive_meanwhile_are_not_in_the_plan() -> None:
    before = plan_compaction(loads(range(4)), MAJOR)
    assert before.segments == ("0", "1", "2", "3")

    # The next one begins with the output of the first (CarbonData: 0.1 and 4 become 0.2).
    after = plan_compaction(loads(["0.1", 4], major=["0.1"]), MAJOR)
    assert [(run.output, run.segments) for run in after.runs] == [("0.2", ("0.1", "4"))]


def test_C12_run_without_gain_is_passed_over() -> None:
    sizes = {"0": 400 * MIB, "1": 400 * MIB, "2": 2 * GIB}

    plan = plan_compaction(loads(range(5), sizes=sizes), MAJOR)

    assert [run.segments for run in plan.runs] == [("3", "4")]
    assert not plan_compaction(loads(range(3), sizes=sizes), MAJOR).runs


def test_C12b_semi_major_of_a_chunk_takes_all_that_the_read_version_has() -> None:
    times = {str(n): (JANUARY if n % 2 else FEBRUARY) for n in range(8)}
    table = loads(range(6), time=MONTHS, times=times)
    request = replace(SEMI, chunks=("2013-02",))

    plan = plan_compaction(table, request, granularity=Granularity.MONTH)

    (run,) = plan.runs
    assert (run.output, run.segments) == ("0.1", ("0", "2", "4"))
    assert plan.expected_files == 1
    # Appends after the read version (6, 7) are not in it; afterwards one segment is nothing to do.
    done = loads(["0.1", 1, 3, 5], time=MONTHS, times={"0.1": FEBRUARY, **times})
    assert not plan_compaction(done, request, granularity=Granularity.MONTH).runs


def test_C12b_all_chunks_by_default_one_run_each() -> None:
    times = {str(n): (JANUARY if n % 2 else FEBRUARY) for n in range(4)}

    plan = plan_compaction(
        loads(range(4), time=MONTHS, times=times), SEMI, granularity=Granularity.MONTH
    )

    assert [(run.output, run.segments) for run in plan.runs] == [
        ("1.1", ("1", "3")),
        ("0.1", ("0", "2")),
    ]


def test_full_files_stay_where_they_are() -> None:
    table = loads(range(5), sizes={"0": 120 * MIB, "1": 120 * MIB})

    assert [run.segments for run in plan_compaction(table, SEMI).runs] == [("2", "3", "4")]

    # Until many of their rows are deleted.
    table = loads(range(2), sizes={"0": 120 * MIB, "1": 120 * MIB}, deleted={"1": 100})
    assert [run.segments for run in plan_compaction(table, SEMI).runs] == [("1",)]


def test_partitions_are_chunks_where_no_time_is_set() -> None:
    table = segments(
        add_file(f"p={p}/{n}.parquet", segment=str(n), sequence=n, partition={"p": p})
        for n in range(3)
        for p in ("a", "b")
    )

    plan = plan_compaction(table, SEMI)
    assert [
        (run.segments, {f.add.partition_values["p"] for f in run.files}) for run in plan.runs
    ] == [
        (("0", "1", "2"), {"a"}),
        (("0", "1", "2"), {"b"}),
    ]
    assert [run.output for run in plan.runs] == ["0.1", None]

    one = plan_compaction(table, replace(SEMI, chunks=("p=b",)))
    assert {file.path for file in one.files} == {f"p=b/{n}.parquet" for n in range(3)}


@pytest.mark.parametrize(
    ("chunk", "granularity"),
    [
        ("p=c", None),
        ("2013-02", None),
        ("soon", Granularity.MONTH),
        ("2013-02-01", Granularity.MONTH),
    ],
)
def test_unknown_chunks_are_refused(chunk: str, granularity: Granularity | None) -> None:
    table = loads(range(2), time=MONTHS, times={"0": JANUARY, "1": JANUARY})
    with pytest.raises(InvalidSpec) as caught:
        plan_compaction(table, replace(SEMI, chunks=(chunk,)), granularity=granularity)
    assert caught.value.found == chunk


def test_files_of_unknown_time_are_packed_among_themselves() -> None:
    times = {"0": JANUARY, "1": JANUARY}

    plan = plan_compaction(
        loads(range(4), time=MONTHS, times=times), SEMI, granularity=Granularity.MONTH
    )

    assert [run.segments for run in plan.runs] == [("0", "1"), ("2", "3")]
    assert plan.runs[1].interval is None


def test_plan_sums_up_what_it_costs() -> None:
    table = loads(range(20), sizes={str(n): 10 * MIB for n in range(20)}, deleted={"0": 500})

    plan = plan_compaction(table, MAJOR)

    assert plan.input_bytes == 200 * MIB
    assert plan.expected_bytes == 195 * MIB
    assert plan.input_bytes + plan.expected_bytes == 395 * MIB
    assert plan.expected_files == 2
    assert plan.segments == tuple(map(str, range(20)))


# --- bins ---------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from("ab"), st.integers(0, 1000)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 256),
)
def test_bins_hold_every_file_once_in_order(rows: list[tuple[int, str, int]], target: int) -> None:
    table = segments(
        add_file(f"{n:03}", segment=str(n), sequence=n, size=size, deleted=dead, partition={"p": p})
        for n, (size, p, dead) in enumerate(rows)
    )
    files = files_of(table)

    bins = pack(files, target)

    assert sorted(file.path for each in bins for file in each.files) == [f.path for f in files]
    for each in bins:
        paths = [file.path for file in each.files]
        assert paths == sorted(paths)
        assert {tuple(f.add.partition_values.items()) for f in each.files} == {each.partition}
        assert each.live_bytes == sum(file.live_bytes for file in each.files)
        assert len(each.files) == 1 or each.live_bytes <= 1.25 * target
        assert len(each.files) == 1 or each.expected_files <= 1
        assert (each.expected_files == 0) == all(file.deleted == 1000 for file in each.files)
    # Two neighbours of one partition never fit together.
    for left, right in itertools.pairwise(bins):
        if left.partition == right.partition:
            assert left.live_bytes + right.files[0].live_bytes > target


def test_files_of_little_over_half_the_target_are_paired() -> None:
    sizes = {str(n): 70 * MIB for n in range(5)}
    files = files_of(loads(range(5), sizes=sizes))
    assert [len(each.files) for each in pack(files, 128 * MIB)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("count", "bins"),
    [(18, [18]), (22, [22]), (23, [18, 5]), (38, [18, 20]), (46, [18, 18, 10])],
)
def test_a_small_remainder_joins_the_bin_before_it(count: int, bins: list[int]) -> None:
    sizes = {str(n): 7 * MIB for n in range(count)}
    files = files_of(loads(range(count), sizes=sizes))
    assert [len(each.files) for each in pack(files, 128 * MIB)] == bins


def test_a_bin_of_deleted_rows_is_rewritten_without_an_output() -> None:
    (each,) = pack(files_of(loads(["0"], deleted={"0": 1000})), MIB)
    assert each.expected_files == 0
    assert is_worth_rewriting(each)


def test_a_chunk_without_data_is_named() -> None:
    segments_ = loads(["0", "1"], time=MONTHS, times={"0": JANUARY, "1": JANUARY})
    request = replace(SEMI, chunks=("2019-01",))
    plan = plan_compaction(segments_, request, granularity=Granularity.MONTH)
    assert not plan.runs
    assert plan.nothing == "No file lies in 2019-01."
