"""Names and order by column, against the segments themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import add_file, segments
from tandem.delta.actions import AddFile
from tandem.delta.log.files import from_adds
from tandem.timeline import lineage
from tandem.timeline.live_tags import read_live_tags
from tandem.timeline.names import parse_name
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_SEGMENT,
    TAG_SEQUENCE,
    output_tags,
    sequence_of,
)

NAMES = st.sampled_from(["0", "0.1", "17.2", "f-0123456789ab", "x", "", "007", "-1", "9" * 20])
SEQUENCES = st.sampled_from(["5", "-7", "123456789012345", "1234567890123456", "x", "", "5\n"])
PARENTS = st.sampled_from(["0-3", "f-0123456789ab,5.1", "x", "", "3-1", "4,+2"])

TAGS = {TAG_SEGMENT: NAMES, TAG_SEQUENCE: SEQUENCES, TAG_PARENTS: PARENTS}


@st.composite
def working_sets(draw: st.DrawFn) -> list[AddFile]:
    adds = []
    for number in range(draw(st.integers(0, 6))):
        tags = {}
        for key, values in (
            (TAG_SEGMENT, NAMES),
            (TAG_SEQUENCE, SEQUENCES),
            (TAG_PARENTS, PARENTS),
        ):
            if draw(st.booleans()):
                tags[key] = draw(values)
        adds.append(add_file(f"{number}", tags=tags, sequence=draw(st.integers(0, 20))))
    return adds


@given(working_sets(), st.sets(st.sampled_from(["0", "1", "2"])))
def test_columns_agree_with_the_segments(adds: list[AddFile], without: set[str]) -> None:
    left = [add for add in adds if add.logged_path not in without]
    live = segments(left)
    marks = read_live_tags(from_adds(adds), without=without)

    tagged = {add.tags.get(TAG_SEGMENT, "") for add in left}
    assert marks.names == {name for name in tagged if name and parse_name(name) is not None}
    assert marks.names <= {segment.name for segment in live}
    assert marks.newest == max((sequence_of(add) for add in left), default=None)
    by_segment = {name for segment in live for name in segment.parents.mentioned()}
    assert by_segment <= marks.mentioned


def test_lineage_guards_its_numbers() -> None:
    tags = output_tags("17.1", 5, parents=lineage.of(["f-" + "0" * 12, "18", "19"]))
    assert read_live_tags(from_adds([add_file("a", tags=tags)])).mentioned == {
        "17.1",
        "19",
        "f-" + "0" * 12,
    }


@pytest.mark.parametrize(("now_ms", "expected"), [(500, 1003), (5000, 5000)])
def test_a_new_sequence_is_after_every_live_one_when_clocks_disagree(
    now_ms: int, expected: int
) -> None:
    files = from_adds([add_file(f"{n}", sequence=1000 + n) for n in range(3)])
    assert read_live_tags(files).next_sequence(now_ms) == expected


def test_the_first_sequence_is_the_time() -> None:
    assert read_live_tags(from_adds([])).next_sequence(7) == 7
