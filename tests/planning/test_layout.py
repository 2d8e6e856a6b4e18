"""Plans with a layout: what is sorted together, and what lies in order already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.lake.segments import MIB, add_file, files_of, loads, segments
from tandem.delta.schema import parse
from tandem.errors import InvalidSpec
from tandem.planning.compaction import plan_compaction
from tandem.planning.layout import checked_columns
from tandem.planning.plans import CompactionRequest
from tandem.planning.runs import one_bin_per_group
from tandem.spec.compaction import CompactionType, LayoutStrategy
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import Segment, output_tags

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
