"""Layouts and the columns that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning import one_by_one
from support.lake.segments import MIB, add_file, files_of, loads, segments
from tandem.delta.actions import AddFile
from tandem.delta.schema import parse
from tandem.errors import InvalidSpec
from tandem.planning.compaction import plan_compaction
from tandem.planning.layout import checked_columns, may_gain
from tandem.planning.plans import CompactionRequest, is_worth_rewriting, one_bin_per_group, pack
from tandem.spec.compaction import CompactionType, LayoutStrategy
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.names import foreign_name, parse_name
from tandem.timeline.segments import TAG_SEGMENT, Segment, Segments, output_tags

# Plans with a layout: what is sorted together, and what lies in order already.


SORTED = CompactionRequest(
    CompactionType.SEMI_MAJOR,
    target_file_size=4 * MIB,
    layout=LayoutStrategy.SORT,
    layout_columns=("a",),
)
LABEL = "Sort:a"
SCHEMA = parse(
    '{"type":"struct","fields":['
    '{"name":"a","type":"long","nullable":true,"metadata":{}},'
    '{"name":"Bee","type":"string","nullable":true,"metadata":{}},'
    '{"name":"day","type":"date","nullable":true,"metadata":{}},'
    '{"name":"s","type":{"type":"struct","fields":['
    '{"name":"x","type":"long","nullable":true,"metadata":{}}]},"nullable":true,"metadata":{}}]}'
)


def test_all_files_of_a_chunk_are_sorted_together_however_large() -> None:
    sizes = {"1": 40 * MIB, "2": 7 * MIB}

    (run,) = plan_compaction(loads(range(4), sizes=sizes), SORTED).runs

    (one,) = run.bins
    assert [file.path for file in one.files] == [f"data-{n}.parquet" for n in range(4)]
    assert one.expected_files == round(49 / 4)
    assert (run.segments, run.output) == (("0", "1", "2", "3"), "0.1")


def after(plan_of: Sequence[Segment], request: CompactionRequest = SORTED) -> Sequence[Segment]:
    """The table when the plan was done and nothing else was committed."""
    plan = plan_compaction(plan_of, request)
    gone = {file.path for file in plan.files}
    adds = [file.add for s in plan_of for file in s.files if file.path not in gone]
    for run in plan.runs:
        tags = output_tags(run.output or "99.1", run.sequence, layout=request.layout_label)
        adds += [
            add_file(f"out-{run.output}-{number}-{n}", tags=tags, partition=dict(each.partition))
            for number, each in enumerate(run.bins)
            for n in range(each.expected_files)
        ]
    return segments(adds)


def all_of(table: Sequence[Segment]) -> frozenset[str]:
    return frozenset(file.path for segment in table for file in segment.files)


@pytest.mark.parametrize("kind", [CompactionType.SEMI_MAJOR, CompactionType.CUSTOM])
def test_sorted_segments_are_left_alone_until_new_rows_arrive(kind: CompactionType) -> None:
    request = replace(SORTED, type=kind)
    custom = kind is CompactionType.CUSTOM
    live = loads(range(4), sizes={"1": 40 * MIB})
    request = replace(request, selected=all_of(live) if custom else None)
    table = after(live, request)
    request = replace(request, selected=all_of(table) if custom else None)
    assert len(table) == 1
    assert len(table[0].files) == 11

    again = plan_compaction(table, request)
    assert not again.runs
    assert again.nothing

    other = replace(request, layout_columns=("b",))
    assert plan_compaction(table, other).runs, "another order is something to do"
    new = segments([*(f.add for f in table[0].files), add_file("new", segment="9", sequence=9999)])
    request = replace(request, selected=all_of(new) if custom else None)
    (run,) = plan_compaction(new, request).runs
    assert len(run.files) == 12, "what is new is sorted into all of its chunk"


def test_two_sorted_segments_of_one_chunk_overlap_and_are_sorted_together() -> None:
    (run,) = plan_compaction(loads(range(2), layout=LABEL), SORTED).runs
    assert len(run.files) == 2


def test_many_deleted_rows_are_a_reason_to_sort_again() -> None:
    assert plan_compaction(loads(["0"], layout=LABEL, deleted={"0": 51}), SORTED).runs
    assert not plan_compaction(loads(["0"], layout=LABEL, deleted={"0": 50}), SORTED).runs


def test_partitions_are_sorted_apart_and_only_where_something_is_new() -> None:
    adds = [
        add_file(f"{p}-{n}", segment=str(n), sequence=n, partition={"p": p})
        for p in ("x", "y")
        for n in range(2)
    ]
    table = after(segments(adds))
    assert not plan_compaction(table, SORTED).runs
    new = add_file("new", segment="9", sequence=9999, partition={"p": "y"})
    live = segments([*(file.add for each in table for file in each.files), new])

    (run,) = plan_compaction(live, SORTED).runs

    assert {dict(each.partition)["p"] for each in run.bins} == {"y"}


def test_time_chunks_are_sorted_apart() -> None:
    months = TimeColumn(("t",), Granularity.MONTH)
    times = {
        "0": ("2013-01-05", "2013-01-06"),
        "1": ("2013-02-05", "2013-02-06"),
        "2": ("2013-01-07", "2013-01-08"),
    }
    live = loads(range(3), time=months, times=times)

    plan = plan_compaction(live, SORTED, granularity=Granularity.MONTH)

    assert [run.segments for run in plan.runs] == [("0", "2"), ("1",)]


@pytest.mark.parametrize("kind", [CompactionType.MINOR, CompactionType.MAJOR])
def test_minor_and_major_sort_what_they_merge(kind: CompactionType) -> None:
    sizes = {str(n): 5 * MIB for n in range(4)}
    request = replace(SORTED, type=kind)
    full = plan_compaction(loads(range(4), sizes=sizes), replace(request, layout_columns=("a",)))
    (run,) = full.runs
    assert len(run.bins) == 1
    plain = replace(request, layout=LayoutStrategy.BIN_PACK, layout_columns=())
    assert not plan_compaction(loads(range(4), sizes=sizes), plain).runs


@pytest.mark.parametrize("layout", [LayoutStrategy.SORT, LayoutStrategy.Z_ORDER])
def test_a_major_sorts_a_single_segment_of_any_size_once(layout: LayoutStrategy) -> None:
    request = replace(
        SORTED, type=CompactionType.MAJOR, layout=layout, target_segment_size=10 * MIB
    )
    for size in (MIB, 40 * MIB):
        live = loads(["0"], sizes={"0": size})
        (run,) = plan_compaction(live, request).runs
        assert (run.segments, run.output, run.major) == (("0",), "0.1", True)
        again = plan_compaction(after(live, request), request)
        assert not again.runs
        assert f"in order {layout}:a" in again.nothing
    held = replace(request, excluded=frozenset({"0"}))
    assert not plan_compaction(loads(["0"]), held).runs
    assert not plan_compaction(loads(["0"]), replace(request, type=CompactionType.MINOR)).runs


def test_a_major_sorts_a_segment_beyond_its_size_alone() -> None:
    request = replace(SORTED, type=CompactionType.MAJOR, target_segment_size=10 * MIB)
    sizes = {"0": 9 * MIB, "1": 40 * MIB}
    assert plan_compaction(loads(range(3), sizes=sizes), request).segments == ("0",)
    rest = {"1": 40 * MIB}
    assert plan_compaction(loads([1, 2], sizes=rest), request).segments == ("1",)
    both = {"1": 9 * MIB, "2": 9 * MIB}
    assert plan_compaction(loads([1, 2], sizes=both), request).segments == ("1",)


def test_more_rows_than_a_row_map_counts_are_cut() -> None:
    adds = [add_file(str(n), segment="0", sequence=0, rows=3 * 2**30) for n in range(3)]
    files = files_of(segments(adds))
    assert [len(each.files) for each in one_bin_per_group(files, MIB)] == [1, 1, 1]


def test_columns_are_found_in_any_case_and_spelt_as_the_schema_does() -> None:
    assert checked_columns(("bee", "A"), SCHEMA, ("day",), resource="x") == ("Bee", "a")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("nope",), "no column nope"),
        (("s",), "no order"),
        (("s.x",), "whole columns only"),
        (("day",), "partition column"),
        (("a", "A"), "named twice"),
    ],
)
def test_columns_that_cannot_order_rows_are_refused(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message) as caught:
        checked_columns(columns, SCHEMA, ("day",), resource="TableCompaction/x")
    assert caught.value.field == "spec.layout.columns"
    assert caught.value.resource == "TableCompaction/x"
    assert caught.value.found == columns[-1]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("be", "perhaps Bee"), ("dya", "perhaps day"), ("q", "a column of the table")],
)
def test_an_unknown_column_is_answered_with_the_one_that_was_meant(
    typed: str, expected: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        checked_columns((typed,), SCHEMA, (), resource="x", field="spec.rewrite.sortBy")
    assert (caught.value.field, caught.value.expected) == ("spec.rewrite.sortBy", expected)
    assert "tandem table show" in caught.value.remedy


# Plans from columns of segments are those made segment by segment, to the last bin.


MONTHS = TimeColumn(("t",), Granularity.MONTH)
SORTED_BY_K = "Sort:k"
TIMES = (
    *(("2013-01-05", "2013-01-06"),) * 3,
    *(("2013-02-05", "2013-02-06"),) * 3,
    ("2013-03-05", "2013-03-06"),
    ("2013-01-31", "2013-02-01"),
    None,
)


@st.composite
def tables(draw: st.DrawFn) -> list[AddFile]:
    """Files of other writers, and ours: several of one segment, some in partitions, of several
    levels, with deleted rows, sorted, spanning chunks, or with the name of a foreign file."""
    adds = []
    names = draw(st.lists(st.sampled_from([None, None, None, "0", "1.1", "2.1", "3.2", "4", "f"])))
    for at, name in enumerate(names):
        sequence = draw(st.integers(0, 3)) if name is None else ord(name[0])
        major = name is not None and draw(st.integers(0, 9)) == 0
        tags = {}
        if name is not None:
            text = foreign_name("0") if name == "f" else name
            layout = draw(st.sampled_from(["", "", SORTED_BY_K]))
            tags = output_tags(text, sequence, major=major, layout=layout)
        adds.append(
            add_file(
                str(at),
                sequence=sequence,
                tags=tags,
                size=draw(st.sampled_from([0, 1, 9, 40, 64, 70, 90, 96, 120, 130, 300])) * MIB,
                rows=draw(st.sampled_from([1000, 1000, 1000, None])),
                deleted=draw(st.sampled_from([0, 0, 0, 0, 20, 500, 1000])),
                times=draw(st.sampled_from(TIMES)),
                partition={"p": draw(st.sampled_from("ab"))},
            )
        )
    return adds


sizes = st.integers(1, 900).map(lambda n: n * MIB)
requests = st.builds(
    CompactionRequest,
    type=st.sampled_from([CompactionType.MINOR, CompactionType.SEMI_MAJOR, CompactionType.MAJOR]),
    thresholds=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    preserve=st.sampled_from([0, 0, 1, 3]),
    max_segment_size=st.none() | sizes,
    target_segment_size=sizes,
    excluded=st.sets(st.sampled_from([foreign_name("1"), foreign_name("2"), "1.1", "x"])).map(
        frozenset
    ),
    among=st.none() | st.just(frozenset([*map(foreign_name, "0123456789"), "0", "2.1"])),
    skip_offset_ms=st.sampled_from([0, 0, 0, 2, 20 * 86_400_000]),
)
layouts = st.sampled_from([(), (), ("k",)])


@given(tables(), requests, layouts, st.booleans(), st.booleans())
def test_plans_are_those_made_one_by_one(
    adds: list[AddFile],
    request: CompactionRequest,
    columns: tuple[str, ...],
    timed: bool,
    as_list: bool,
) -> None:
    if columns:
        request = replace(request, layout=LayoutStrategy.SORT, layout_columns=columns)
    time, granularity = (MONTHS, Granularity.MONTH) if timed else (None, None)
    table = segments(adds, time)

    found = plan_compaction(list(table) if as_list else table, request, granularity=granularity)

    assert list(found.runs) == one_by_one.plan(list(table), request, granularity)


@given(tables(), st.integers(1, 200))
def test_runs_that_are_passed_over_have_no_useful_bin(adds: list[AddFile], target: int) -> None:
    files = segments(adds).files
    runs = files.places % 3 - 1
    request = CompactionRequest(CompactionType.MAJOR, target_file_size=target * MIB)

    gaining = may_gain(files, runs, request)

    for run in (0, 1):
        bins = pack(files.where(runs == run), target * MIB)
        useful = pack(files.where(runs == run), target * MIB, useful_only=True)
        assert useful == tuple(filter(is_worth_rewriting, bins))
        if useful:
            (mine,) = (members for number, members in gaining if number == run)
            assert mine == files.where(runs == run)
    assert all(run >= 0 for run, _ in gaining)


@given(tables())
def test_segments_are_views_of_the_same_segments(adds: list[AddFile]) -> None:
    table = segments(adds, MONTHS)

    every = list(table)

    assert [segment.order for segment in every] == sorted(segment.order for segment in every)
    assert Segments.of(every) == table == tuple(table[at] for at in range(len(table)))
    assert [f.path for f in table.files] == [f.path for s in every for f in s.files]
    for add in adds:
        text = add.tags.get(TAG_SEGMENT, "")
        name = text if parse_name(text) is not None else foreign_name(add.logged_path)
        (owner,) = (s for s in every if add.logged_path in {file.path for file in s.files})
        assert (owner.name, owner.files[0].segment) == (name, name)
    for segment in every:
        parsed = parse_name(segment.name)
        assert parsed is not None
        assert segment.level == parsed.level
    names = [segment.name for segment in every]
    chosen = {*names[::2], "x"}
    assert table.among(chosen) == set(names[::2])
    assert list(table.where(table.named(chosen))) == every[::2]
    assert list(table.where(table.having(table[1:2].files))) == every[1:2]
