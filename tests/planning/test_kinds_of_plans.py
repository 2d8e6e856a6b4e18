"""Plans by size, by choice of segments, of divided chunks, and of segment rewrites."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, files_of, loads, segments
from tandem.delta.actions import AddFile
from tandem.errors import InvalidSpec, UnknownSegment
from tandem.intervals import IntervalSet, TimeInterval
from tandem.planning.compaction import plan_compaction
from tandem.planning.major import (
    SegmentRewriteRequest,
    check_selection,
    plan_segment_rewrite,
    taken_intervals,
)
from tandem.planning.plans import GIB, CompactionPlan, CompactionRequest, is_worth_rewriting, pack
from tandem.spec.compaction import (
    Codec,
    CompactionTemplate,
    CompactionType,
    LayoutStrategy,
    Recompress,
    Rewrite,
    SegmentRewriteSpec,
)
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TAG_MASKED, TimeColumn, format_masked, parse_chunk
from tandem.timeline.file_columns import TAG_CHUNK, TAG_LAYOUT
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_ROW_MAP,
    Segment,
    SegmentStatus,
    output_tags,
    successor_tags,
)

# Semi-major and major plans: by time chunk, and by size.


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


# Custom plans: what a person names, and CarbonData's words for what cannot be (C13).


CUSTOM = CompactionRequest(CompactionType.CUSTOM, resource="TableCompaction/pick")


def test_C13_custom_takes_the_named_segments_in_table_order() -> None:
    plan = plan_compaction(loads(range(5)), replace(CUSTOM, segments=("3", "1", "2")))

    assert [(run.output, run.segments) for run in plan.runs] == [("1.1", ("1", "2", "3"))]


def test_C13_custom_may_go_beyond_level_2() -> None:
    plan = plan_compaction(loads(["0.2", 12, 13]), replace(CUSTOM, segments=("0.2", "13")))

    assert [(run.output, run.level) for run in plan.runs] == [("0.3", 3)]


def test_C13_an_unknown_id_is_refused() -> None:
    with pytest.raises(UnknownSegment, match="Segment 9 does not exist or is not valid") as caught:
        plan_compaction(loads(range(5)), replace(CUSTOM, segments=("1", "9")))
    assert caught.value.resource == "TableCompaction/pick"
    assert caught.value.field == "spec.custom.segments"
    assert caught.value.found == "9 (unknown)"


@pytest.mark.parametrize("status", [SegmentStatus.COMPACTED, SegmentStatus.MARKED_FOR_DELETE])
def test_C13_a_segment_that_is_not_valid_is_refused(status: SegmentStatus) -> None:
    past = [Segment("1", 0, 1, (), status)]
    request = replace(CUSTOM, segments=("1", "2"))
    with pytest.raises(UnknownSegment, match="Segment 1 does not exist or is not valid") as caught:
        plan_compaction(loads(["0", "2"]), request, past=past)
    assert caught.value.found == f"1 ({status})"


def test_C13_one_id_has_nothing_to_merge() -> None:
    plan = plan_compaction(loads(range(3)), replace(CUSTOM, segments=("1",)))
    assert not plan.runs
    assert "choose two or more" in plan.nothing


@pytest.mark.parametrize("layout", [LayoutStrategy.SORT, LayoutStrategy.Z_ORDER])
def test_C13_one_id_is_sorted_again_unless_it_is_in_that_order(layout: LayoutStrategy) -> None:
    request = replace(CUSTOM, segments=("1",), layout=layout, layout_columns=("a", "b,c"))

    (run,) = plan_compaction(loads(range(3)), request).runs

    assert (run.segments, run.output) == (("1",), "1.1")
    assert request.layout_label == f"{layout}:a,b%2Cc"
    plan = plan_compaction(loads(range(3), layout=request.layout_label), request)
    assert not plan.runs
    assert f"already in order {layout}:a,b%2Cc" in plan.nothing


@pytest.mark.parametrize("kind", [t for t in CompactionType if t is not CompactionType.CUSTOM])
def test_C13_ids_with_another_kind(kind: CompactionType) -> None:
    message = f"Custom segments not supported when doing {kind.upper()} compaction"
    with pytest.raises(InvalidSpec, match=message):
        check_selection(replace(CUSTOM, type=kind, segments=("1", "2")))


def test_C13_a_choice_without_ids_is_refused() -> None:
    message = "Segment ids should not be empty when doing CUSTOM compaction"
    with pytest.raises(InvalidSpec, match=message):
        plan_compaction(loads(range(5)), CUSTOM)


def all_of(table: Sequence[Segment]) -> frozenset[str]:
    return frozenset(file.path for segment in table for file in segment.files)


def test_ids_and_filter_together_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="not both"):
        check_selection(replace(CUSTOM, segments=("1",), selected=frozenset()))


def test_filter_selects_whole_files_and_names_the_parts_apart() -> None:
    table = segments(
        add_file(f"{n}-{p}.parquet", segment=str(n), sequence=n, partition={"p": p})
        for n in range(3)
        for p in ("a", "b")
    )

    def choose(partition: str) -> CompactionRequest:
        return replace(CUSTOM, selected=frozenset({f"{n}-{partition}.parquet" for n in range(3)}))

    (run,) = plan_compaction(table, choose("a")).runs
    assert (run.output, run.segments) == ("0.1", ("0", "1", "2"))
    assert [file.path for file in run.files] == ["0-a.parquet", "1-a.parquet", "2-a.parquet"]

    # Later the rest: 0.1 is taken, so a fresh number is.
    rest = segments(
        [
            add_file("x.parquet", segment="0.1", sequence=0, partition={"p": "a"}),
            *(f.add for s in table for f in s.files if f.add.partition_values["p"] == "b"),
        ]
    )
    (run,) = plan_compaction(rest, choose("b")).runs
    assert run.output is None
    names = output_names(
        [NameRequest(run.segments[0], run.level)], {s.name for s in rest}, SegmentNumbers(2)
    )
    assert names == ("3.1",)


def test_filter_leaves_out_files_that_gain_nothing() -> None:
    table = loads(range(4), sizes={"1": 200 * MIB})

    plan = plan_compaction(table, replace(CUSTOM, selected=all_of(table)))

    assert [run.segments for run in plan.runs] == [("2", "3")]
    assert not plan_compaction(table, replace(CUSTOM, selected=frozenset())).runs


def test_request_of_a_resource() -> None:
    spec = CompactionTemplate.model_validate(
        {
            "type": "Minor",
            "minor": {"thresholds": [3, 2], "preserve": 1, "maxSegmentSize": "1Gi"},
            "targetFileSize": "64Mi",
        }
    )
    request = CompactionRequest.of(spec, excluded=frozenset({"7"}), resource="TableCompaction/a")
    assert request == CompactionRequest(
        CompactionType.MINOR,
        thresholds=(3, 2),
        preserve=1,
        max_segment_size=1024 * MIB,
        target_file_size=64 * MIB,
        excluded=frozenset({"7"}),
        resource="TableCompaction/a",
    )

    spec = CompactionTemplate.model_validate(
        {"type": "Custom", "custom": {"segments": ["3", "5.1"]}}
    )
    assert CompactionRequest.of(spec).segments == ("3", "5.1")


# Semi-major plans whose outputs end at borders of time: what is taken, and what is cut.


TIMES = {
    "first": ("2013-03-01T00:00:00.000Z", "2013-03-01T23:00:00.000Z"),
    "second": ("2013-03-02T00:00:00.000Z", "2013-03-02T23:00:00.000Z"),
    "both": ("2013-03-01T00:00:00.000Z", "2013-03-02T23:00:00.000Z"),
    "an hour": ("2013-03-02T05:00:00.000Z", "2013-03-02T05:30:00.000Z"),
}

CUT = replace(SEMI, chunks=("2013-03-02",), cuts=True)
SECOND = parse_chunk("2013-03-02", Granularity.DAY)


def files(*names: str, size: int = MIB) -> list[AddFile]:
    return [
        add_file(f"{at}-{name}", segment=str(at), sequence=at, size=size, times=TIMES[name])
        for at, name in enumerate(names)
    ]


def planned(
    found: list[AddFile],
    request: CompactionRequest,
    *,
    table: Granularity = Granularity.DAY,
    borders: Granularity = Granularity.DAY,
) -> CompactionPlan:
    return plan_compaction(
        segments(found, TimeColumn(("t",), table)),
        request,
        granularity=table,
        divided=segments(found, TimeColumn(("t",), borders)),
    )


def taken(plan: CompactionPlan) -> list[str]:
    return [file.path for file in plan.files]


def test_D41_a_day_is_divided_into_hours_once() -> None:
    request = replace(SEMI, chunks=("2013-03-02",))
    plan = planned(files("first", "second"), request, borders=Granularity.HOUR)
    assert taken(plan) == ["1-second"]
    [run] = plan.runs
    assert (run.output, run.interval) == ("1.1", SECOND)
    # Each of its files lies within an hour then.
    assert not planned(files("first", "an hour"), request, borders=Granularity.HOUR).runs


def test_S29_hours_and_days_side_by_side_are_put_together() -> None:
    plan = planned(files("second", "an hour", "first"), SEMI, table=Granularity.HOUR)
    assert taken(plan) == ["0-second", "1-an hour"]
    # At the granularity of hours the day spans its hours, and is divided.
    hours = planned(files("second", "an hour"), SEMI, borders=Granularity.HOUR)
    assert taken(hours) == ["0-second", "1-an hour"]


def test_Z17_borders_need_not_be_those_of_the_table() -> None:
    request = replace(SEMI, chunks=("2013-03",))
    plan = planned(files("both"), request, table=Granularity.MONTH)
    assert taken(plan) == ["0-both"]
    assert not planned(files("first", "second"), request, table=Granularity.MONTH).runs
    with pytest.raises(InvalidSpec, match="whole chunks"):
        planned(files("both"), replace(SEMI, chunks=("2013-03-02",)), table=Granularity.MONTH)


def test_S21_appends_do_not_keep_a_chunk_from_being_laid_out() -> None:
    """Files that are there when it plans are taken, whatever comes after them."""
    assert taken(planned(files("both", "second"), CUT)) == ["0-both", "1-second"]
    assert taken(planned(files("both", "second", "second"), CUT))[:2] == ["0-both", "1-second"]


def test_a_cut_takes_the_chosen_chunks_and_claims_no_more() -> None:
    plan = planned(files("both", "first"), CUT)
    assert taken(plan) == ["0-both"]
    assert plan.runs[0].interval == SECOND
    assert taken_intervals(CUT, Granularity.DAY) == IntervalSet([SECOND])
    assert taken_intervals(replace(CUT, chunks=()), Granularity.DAY) is None


@pytest.mark.parametrize(("cardinality", "again"), [(500, False), (501, True)])
def test_what_was_cut_out_is_not_cut_again(cardinality: int, again: bool) -> None:
    """As long as the hint is valid: it was written for a smaller vector, or one of that size."""
    hint = {TAG_MASKED: format_masked(IntervalSet([SECOND]), cardinality)}
    file = add_file("f", rows=1000, deleted=500, times=TIMES["both"], tags=hint)
    assert bool(planned([file], CUT).runs) is again
    other = replace(CUT, chunks=("2013-03-01",))
    assert planned([file], other).runs


def test_full_files_are_left_alone_unless_they_span_a_border() -> None:
    full = 128 * MIB
    assert not planned(files("second", size=full), CUT).runs
    assert taken(planned(files("both", "second", size=full), CUT)) == ["0-both"]


def test_without_borders_a_plan_is_as_before() -> None:
    found = files("both", "second")
    plan = plan_compaction(
        segments(found, TimeColumn(("t",), Granularity.DAY)),
        replace(SEMI, chunks=("2013-03-02",)),
        granularity=Granularity.DAY,
    )
    assert plan.runs[0].interval == TimeInterval(SECOND.start_ms - 86_400_000, SECOND.end_ms)


# Plans of segment rewrites: which files of the named segments, and nothing of their siblings.


PURGE = SegmentRewriteRequest(("7",), resource="SegmentRewrite/purge")
ALL = replace(PURGE, every_file=True)


def table() -> Sequence[Segment]:
    """Segment 7 has three files, one without deleted rows; 8 is its sibling."""
    return segments(
        [
            add_file("7-a", segment="7", sequence=1, rows=100, deleted=10, size=1000),
            add_file("7-b", segment="7", sequence=1, rows=100, size=500, partition={"p": "x"}),
            add_file("7-c", segment="7", sequence=1, rows=10, deleted=10, size=50),
            add_file("8-a", segment="8", sequence=2, deleted=10),
            add_file("other"),
        ]
    )


def spec(**wish: object) -> SegmentRewriteSpec:
    fields = {"tableRef": {"name": "t"}, "segments": ["7"], "rewrite": wish}
    return SegmentRewriteSpec.model_validate(fields)


def test_a_purge_takes_only_files_with_deleted_rows() -> None:
    plan = plan_segment_rewrite(table(), PURGE)

    assert plan.segments == ("7",)
    assert [file.path for file in plan.files] == ["7-a", "7-c"]
    assert plan.steps == ("7: 2 of 3 files, 20 deleted rows",)
    assert plan.input_bytes == 1050
    assert plan.expected_bytes == 900
    assert plan.expected_files == 1  # nothing is left of 7-c


def test_rewrites_of_every_row_take_all_files_of_the_segment() -> None:
    plan = plan_segment_rewrite(table(), ALL)

    assert [file.path for file in plan.files] == ["7-a", "7-b", "7-c"]
    assert plan.steps == ("7: 3 of 3 files, 20 deleted rows",)


def test_I10_each_file_is_rewritten_by_itself_and_no_sibling_is_touched() -> None:
    """Also of several segments at once: no bin mixes rows of two files."""
    plan = plan_segment_rewrite(table(), replace(ALL, segments=("8", "7")))

    assert plan.segments == ("7", "8")  # in table order
    assert [[f.path for f in b.files] for b in plan.bins] == [["7-a"], ["7-b"], ["7-c"], ["8-a"]]
    assert dict(plan.bins[1].partition) == {"p": "x"}


@pytest.mark.parametrize(
    ("wish", "every_file"),
    [
        ({"purgeDeleted": True}, False),
        ({"recompress": {"codec": "zstd"}}, True),
        ({"sortBy": ["a"]}, True),
        ({"purgeDeleted": True, "recompress": {"codec": "zstd", "level": 9}}, True),
    ],
)
def test_the_request_that_a_resource_makes(wish: dict[str, object], every_file: bool) -> None:
    made = SegmentRewriteRequest.of(spec(**wish), resource="SegmentRewrite/purge")
    assert made == replace(PURGE, every_file=every_file)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("1",), "No file of segment 1 has deleted rows to purge."),
        (("1", "2"), "No file of segments 1, 2 has deleted rows to purge."),
        (tuple(map(str, range(7))), "segments 0, 1, 2, 3, 4 and 2 more has"),
    ],
)
def test_where_there_is_nothing_to_purge_the_plan_says_so(
    names: tuple[str, ...], words: str
) -> None:
    plan = plan_segment_rewrite(loads(range(7)), replace(PURGE, segments=names))
    assert plan.parts == ()
    assert words in plan.nothing


def test_C13_unknown_segment_of_a_rewrite() -> None:
    message = "Segment 9 does not exist or is not valid"
    with pytest.raises(UnknownSegment, match=message) as caught:
        plan_segment_rewrite(table(), replace(PURGE, segments=("7", "9")))
    assert caught.value.resource == "SegmentRewrite/purge"
    assert caught.value.field == "spec.segments"
    assert caught.value.found == "9 (unknown)"


@pytest.mark.parametrize("status", [SegmentStatus.COMPACTED, SegmentStatus.MARKED_FOR_DELETE])
def test_C13_segment_of_a_rewrite_that_is_no_longer_live(status: SegmentStatus) -> None:
    past = [Segment("6", 0, 1, (), status)]
    with pytest.raises(UnknownSegment, match="Segment 6 does not exist or is not valid") as caught:
        plan_segment_rewrite(table(), replace(PURGE, segments=("6",)), past)
    assert caught.value.found == f"6 ({status})"


def test_I10_an_output_takes_exactly_the_place_of_its_input() -> None:
    """Name, order, lineage, chunk and type: what plans and locks go by."""
    tags = output_tags("0.1", 5, row_map="old", major=True) | {TAG_PARENTS: "0-3", TAG_CHUNK: "c"}
    add = add_file("a", tags={**tags, "ZCUBE_ID": "theirs"})
    assert successor_tags(add, row_map="new") == {**tags, TAG_ROW_MAP: "new"}


def test_an_output_that_was_sorted_by_itself_is_not_in_the_segment_s_order_any_more() -> None:
    add = add_file("a", tags=output_tags("0.1", 5, layout="ZOrder:a,b"))
    assert successor_tags(add, row_map="m")[TAG_LAYOUT] == "ZOrder:a,b"
    assert successor_tags(add, row_map="m", layout="ZOrder:a,b")[TAG_LAYOUT] == "ZOrder:a,b"
    assert TAG_LAYOUT not in successor_tags(add, row_map="m", layout="Sort:a")


def test_I10_a_foreign_segment_keeps_its_name_and_place() -> None:
    [before] = segments([add_file("theirs.parquet", sequence=77)])
    tags = successor_tags(before.files[0].add, row_map="map")
    [after] = segments([add_file("ours.parquet", sequence=99, tags=tags)])
    assert (after.name, after.sequence, after.level) == (before.name, 77, 0)


def test_the_codecs_are_those_that_the_writer_knows() -> None:
    for codec in Codec:
        assert Rewrite(recompress=Recompress(codec=codec)).recompress is not None
