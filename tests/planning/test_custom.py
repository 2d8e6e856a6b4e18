"""Custom plans: what a person names, and CarbonData's words for what cannot be (C13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.lake.segments import MIB, add_file, loads, segments
from tandem.errors import InvalidSpec, UnknownSegment
from tandem.planning.compaction import plan_compaction
from tandem.planning.major import check_selection
from tandem.planning.plans import CompactionRequest
from tandem.spec.compaction import CompactionTemplate, CompactionType, LayoutStrategy
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names
from tandem.timeline.segments import Segment, SegmentStatus

CUSTOM = CompactionRequest(CompactionType.CUSTOM, resource="TableCompaction/pick")


def test_C13_custom_takes_the_named_segments_in_table_order() -> None:
    plan = plan_compaction(loads(range(5)), replace(CUSTOM, segments=("3", "1", "2")))

    assert [(run.output, run.segments) for run in plan.runs] == [("1.1", ("1", "2", "3"))]


def test_C13_custom_may_go_beyond_level_2() -> None:
    plan = plan_compaction(loads(["0.2", 12, 13]), replace(CUSTOM, segments=("0.2", "13")))

    assert [(run.output, run.level) for run in plan.runs] == [("0.3", 3)]


def test_C13_unknown_id() -> None:
    with pytest.raises(UnknownSegment, match="Segment 9 does not exist or is not valid") as caught:
        plan_compaction(loads(range(5)), replace(CUSTOM, segments=("1", "9")))
    assert caught.value.resource == "TableCompaction/pick"
    assert caught.value.field == "spec.custom.segments"
    assert caught.value.found == "9 (unknown)"


@pytest.mark.parametrize("status", [SegmentStatus.COMPACTED, SegmentStatus.MARKED_FOR_DELETE])
def test_C13_invalid_status(status: SegmentStatus) -> None:
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


def test_C13_no_ids() -> None:
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
