"""Minor plans against CarbonData's exact lists, and against its loop written out slowly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, loads, segments
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionPlan, CompactionRequest
from tandem.spec.compaction import CompactionType
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names
from tandem.timeline.segments import Segment, SegmentStatus

MINOR = CompactionRequest(CompactionType.MINOR)
MONTHS = TimeColumn(("t",), Granularity.MONTH)


def steps(plan: CompactionPlan) -> list[tuple[str, list[str]]]:
    return [(step.output, list(step.inputs)) for run in plan.runs for step in run.steps]


def test_C11_twelve_loads_become_0_2_by_way_of_0_1_4_1_and_8_1() -> None:
    plan = plan_compaction(loads(range(12)), MINOR)

    assert steps(plan) == [
        ("0.1", ["0", "1", "2", "3"]),
        ("4.1", ["4", "5", "6", "7"]),
        ("8.1", ["8", "9", "10", "11"]),
        ("0.2", ["0.1", "4.1", "8.1"]),
    ]
    # The data is written once, under the last name, with what really existed as its parents.
    (run,) = plan.runs
    assert run.output == "0.2"
    assert run.segments == tuple(map(str, range(12)))
    assert list(run.parents()) == [str(n) for n in range(12)]
    assert [file.path for file in run.files] == [f"data-{n}.parquet" for n in range(12)]


def test_C11_loads_that_do_not_fill_a_threshold_stay() -> None:
    plan = plan_compaction(loads(range(11)), MINOR)

    assert [(run.output, run.segments) for run in plan.runs] == [
        ("0.1", ("0", "1", "2", "3")),
        ("4.1", ("4", "5", "6", "7")),
    ]


def test_C11_levels_of_earlier_compactions_count() -> None:
    plan = plan_compaction(loads(["0.1", "4.1", 8, 9, 10, 11, 12]), MINOR)

    assert steps(plan) == [("8.1", ["8", "9", "10", "11"]), ("0.2", ["0.1", "4.1", "8.1"])]
    (run,) = plan.runs
    assert (run.output, run.segments) == ("0.2", ("0.1", "4.1", "8", "9", "10", "11"))


def test_C11_preserve_2_leaves_the_latest_two() -> None:
    request = replace(MINOR, preserve=2)

    plan = plan_compaction(loads(range(6)), request)
    assert steps(plan) == [("0.1", ["0", "1", "2", "3"])]

    nothing = plan_compaction(loads(range(5)), request)
    assert not nothing.runs
    assert "minor" in nothing.nothing
    assert not plan_compaction(loads(range(1)), request).runs


def test_C11_minor_size_limit_skips_but_does_not_end_the_run() -> None:
    table = loads(range(6), sizes={"2": 64 * MIB, "4": 65 * MIB})

    plan = plan_compaction(table, replace(MINOR, max_segment_size=64 * MIB))

    assert steps(plan) == [("0.1", ["0", "1", "3", "5"])]


def test_C11_output_over_the_size_limit_is_not_merged_again() -> None:
    request = replace(MINOR, thresholds=(2, 2), max_segment_size=2 * MIB)

    plan = plan_compaction(loads(range(4)), request)

    assert [run.output for run in plan.runs] == ["0.1", "2.1"]


def test_C11_already_major_and_level_2_are_left_alone() -> None:
    table = loads(["0.1", "2.2", 5, 6, 7, 8], major=["0.1"])

    plan = plan_compaction(table, MINOR)

    assert steps(plan) == [("5.1", ["5", "6", "7", "8"])]


def test_C11_marked_for_update_is_valid_and_compacted_without_its_deleted_rows() -> None:
    # Decision 0013: CarbonData's check for this status meets nothing that sets it; an update
    # before the read version is already in the output (C2d), one after it is reconciled.
    table = loads(range(4), deleted={"1": 500})
    assert [s.status for s in table][:2] == [SegmentStatus.SUCCESS, SegmentStatus.MARKED_FOR_UPDATE]

    (run,) = plan_compaction(table, MINOR).runs

    assert run.segments == ("0", "1", "2", "3")
    assert sum(each.live_bytes for each in run.bins) == 4 * MIB - MIB // 2


def test_C11_second_threshold_1_counts_as_0() -> None:
    plan = plan_compaction(loads(["0.1", 2, 3]), replace(MINOR, thresholds=(2, 1)))

    assert steps(plan) == [("2.1", ["2", "3"])]


def test_three_thresholds_are_three_levels() -> None:
    plan = plan_compaction(loads(range(8)), replace(MINOR, thresholds=(2, 2, 2)))

    (run,) = plan.runs
    assert (run.output, len(run.steps)) == ("0.3", 7)


def test_C11_foreign_files_get_a_number_in_the_commit_loop() -> None:
    adds = [add_file(f"part-{n}.parquet", sequence=n) for n in range(4)]
    table = segments(adds)

    (run,) = plan_compaction(table, MINOR).runs

    assert run.segments == tuple(segment.name for segment in table)
    assert run.output is None
    names = output_names(
        [NameRequest(run.segments[0], run.level)], {s.name for s in table}, SegmentNumbers(-1)
    )
    assert names == ("0.1",)


def test_C11_nothing_to_gain_is_nothing_to_do() -> None:
    table = loads(range(4), sizes={str(n): 200 * MIB for n in range(4)})

    assert not plan_compaction(table, MINOR).runs


def test_C11b_minor_plans_never_cross_a_chunk() -> None:
    january, february = ("2013-01-05", "2013-01-06"), ("2013-02-05", "2013-02-06")
    times = {str(n): january if n < 2 else february for n in range(4)}
    assert not plan_compaction(
        loads(range(4), time=MONTHS, times=times), MINOR, granularity=Granularity.MONTH
    ).runs

    # Four more in each chunk: each chunk by itself.
    times |= {str(n): january if n % 2 else february for n in range(4, 12)}
    plan = plan_compaction(
        loads(range(12), time=MONTHS, times=times), MINOR, granularity=Granularity.MONTH
    )
    assert steps(plan) == [("0.1", ["0", "1", "5", "7"]), ("2.1", ["2", "3", "4", "6"])]


def test_C11b_file_that_spans_chunks_is_planned_with_its_neighbours_by_the_others_only() -> None:
    times = {
        "0": ("2013-01-30", "2013-01-31"),
        "1": ("2013-01-31", "2013-02-01"),
        "2": ("2013-02-02", "2013-02-03"),
        "3": ("2013-02-02", "2013-02-03"),
        "4": ("2013-03-02", "2013-03-03"),
        "5": ("2013-03-02", "2013-03-03"),
    }
    table = loads(range(6), time=MONTHS, times=times)

    def plan(request: CompactionRequest) -> CompactionPlan:
        return plan_compaction(table, request, granularity=Granularity.MONTH)

    twos = replace(MINOR, thresholds=(2, 0))
    assert [run.segments for run in plan(twos).runs] == [("2", "3"), ("4", "5")]

    semi_major = plan(CompactionRequest(CompactionType.SEMI_MAJOR))
    assert [run.segments for run in semi_major.runs] == [("0", "1", "2", "3"), ("4", "5")]

    (major,) = plan(CompactionRequest(CompactionType.MAJOR)).runs
    assert major.segments == tuple(times)
    assert [[file.path for file in each.files] for each in major.bins] == [
        [f"data-{n}.parquet" for n in range(4)],
        ["data-4.parquet", "data-5.parquet"],
    ]


def test_C11b_segment_in_two_chunks_takes_part_in_each() -> None:
    adds = [
        add_file(f"{n}-{month}.parquet", segment=str(n), sequence=n, times=(day, day))
        for n in range(4)
        for month, day in (("jan", "2013-01-15"), ("feb", "2013-02-15"))
    ]
    table = segments(adds, MONTHS)

    plan = plan_compaction(table, MINOR, granularity=Granularity.MONTH)

    january, february = plan.runs
    assert january.segments == february.segments == ("0", "1", "2", "3")
    assert {file.path[2:5] for file in january.files} == {"jan"}
    # One of them gets CarbonData's name; the other one a fresh number.
    assert [january.output, february.output] == ["0.1", None]
    requests = [NameRequest(run.segments[0], run.level) for run in plan.runs]
    assert output_names(requests, {s.name for s in table}, SegmentNumbers(3)) == ("0.1", "4.1")


def test_C14_segment_that_is_held_is_planned_around() -> None:
    table = loads(range(5))

    plan = plan_compaction(table, replace(MINOR, excluded=frozenset({"0"})))
    # Name, size and least count are those of what is left, unlike CarbonData's.
    assert steps(plan) == [("1.1", ["1", "2", "3", "4"])]

    held = plan_compaction(table, replace(MINOR, excluded=frozenset({"0", "2"})))
    assert not held.runs
    assert "Held by other operations: 0, 2" in held.nothing


# --- CarbonData's loop, slowly -----------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """A row of CarbonData's table status."""

    name: str
    size: int
    major: bool = False


def identify(status: list[Load], request: CompactionRequest) -> list[Load]:
    """`identifySegmentsToBeMergedBasedOnSegCount` in our words."""
    ordered = sorted(status, key=lambda load: float(load.name))
    if request.preserve:
        ordered = ordered[: -request.preserve]
    thresholds = [t if not at or t != 1 else 0 for at, t in enumerate(request.thresholds)]
    met: list[list[Load]] = [[] for _ in thresholds]
    for load in ordered:
        if request.max_segment_size is not None and load.size >= request.max_segment_size:
            continue
        level = int(load.name.partition(".")[2] or 0)
        if level >= len(thresholds) or load.major:
            continue
        met[level].append(load)
        if len(met[level]) == thresholds[level]:
            return met[level]
    return []


def loop(
    status: list[Load], request: CompactionRequest
) -> tuple[list[tuple[str, list[str]]], set[str]]:
    """Steps in CarbonData's order, and the names that are live at the end."""
    taken: list[tuple[str, list[str]]] = []
    while len(chosen := identify(status, request)) > 1:
        number, _, level = chosen[0].name.partition(".")
        name = f"{number}.{int(level or 0) + 1}"
        taken.append((name, [load.name for load in chosen]))
        status = [load for load in status if load not in chosen]
        status.append(Load(name, sum(load.size for load in chosen)))
    return taken, {load.name for load in status}


@st.composite
def tables(draw: st.DrawFn) -> list[Load]:
    # One name per number: CarbonData orders names as decimal numbers.
    levels = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]), max_size=40))
    return [
        Load(
            f"{number}.{level}" if level else str(number),
            draw(st.integers(1, 9)) * MIB,
            draw(st.integers(0, 9)) == 0,
        )
        for number, level in enumerate(levels)
    ]


requests = st.builds(
    CompactionRequest,
    type=st.just(CompactionType.MINOR),
    thresholds=st.one_of(
        st.tuples(st.integers(0, 5), st.integers(0, 4)),
        st.lists(st.integers(2, 3), min_size=1, max_size=4).map(tuple),
    ),
    preserve=st.integers(0, 5),
    max_segment_size=st.none() | st.integers(1, 30).map(lambda n: n * MIB),
    target_file_size=st.just(1 << 40),  # every run is worth it: this is about the lists
)


@given(tables(), requests)
def test_collapsed_plan_is_the_loop(status: list[Load], request: CompactionRequest) -> None:
    table = loads(
        [load.name for load in status],
        sizes={load.name: load.size for load in status},
        major=[load.name for load in status if load.major],
    )

    plan = plan_compaction(table, request)

    expected, live = loop(status, request)
    assert sorted(steps(plan)) == sorted(expected)
    # A step's inputs were made by steps before it.
    made = {segment.name for segment in table}
    for output, inputs in steps(plan):
        assert made.issuperset(inputs)
        made.add(output)
    after = {segment.name for segment in table} - set(plan.segments)
    after |= {run.output for run in plan.runs if run.output}
    assert after == live
    check_runs(table, plan)


def check_runs(table: Sequence[Segment], plan: CompactionPlan) -> None:
    order = {file.path: at for at, s in enumerate(table) for file in s.files}
    paths = [file.path for file in plan.files]
    assert len(paths) == len(set(paths)), "a file is in at most one bin"
    for run in plan.runs:
        positions = [order[file.path] for file in run.files]
        assert positions == sorted(positions), "files are in the order of their segments"
        assert run.sequence == table[positions[0]].sequence


DAYS = st.integers(1, 28)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), DAYS, st.integers(0, 1), DAYS, st.integers(1, 200)),
        max_size=30,
    ),
    st.integers(2, 4),
)
def test_minor_never_crosses_a_chunk(
    rows: list[tuple[int, int, int, int, int]], threshold: int
) -> None:
    adds = []
    for at, (month, day, more, other, size) in enumerate(rows):
        first, last = sorted([(month, day), (month + more, other)])
        times = (f"2013-{first[0]:02}-{first[1]:02}", f"2013-{last[0]:02}-{last[1]:02}")
        segment = str(at // 2)  # two files each, which may lie in different chunks
        adds.append(
            add_file(f"{at:03}.parquet", segment=segment, sequence=at // 2, times=times,
                     size=size * MIB)
        )  # fmt: skip
    table = segments(adds, MONTHS)
    months = {add.logged_path: (first_month(add.stats), last_month(add.stats)) for add in adds}

    plan = plan_compaction(
        table, replace(MINOR, thresholds=(threshold, 2)), granularity=Granularity.MONTH
    )

    assert plan == plan_compaction(
        segments(reversed(adds), MONTHS),
        replace(MINOR, thresholds=(threshold, 2)),
        granularity=Granularity.MONTH,
    )
    check_runs(table, plan)
    for run in plan.runs:
        assert len({month for file in run.files for month in months[file.path]}) == 1


def first_month(stats: str | None) -> str:
    assert stats
    return stats.split('"minValues": {"t": "')[1][:7]


def last_month(stats: str | None) -> str:
    assert stats
    return stats.split('"maxValues": {"t": "')[1][:7]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_segments_are_nothing_to_do(count: int) -> None:
    plan = plan_compaction(loads(range(count)), MINOR)
    assert not plan.runs
    assert plan.nothing
