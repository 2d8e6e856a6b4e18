"""Plans of segment rewrites: which files of the named segments, and nothing of their siblings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.lake.segments import add_file, loads, segments
from tandem.errors import UnknownSegment
from tandem.planning.segment_rewrite import SegmentRewriteRequest, plan_segment_rewrite
from tandem.spec.segment_rewrite import Codec, Recompress, Rewrite, SegmentRewriteSpec
from tandem.timeline.file_columns import TAG_CHUNK, TAG_LAYOUT
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_ROW_MAP,
    Segment,
    SegmentStatus,
    output_tags,
    successor_tags,
)

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
