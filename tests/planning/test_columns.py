"""Plans from columns of segments are those made segment by segment, to the last bin."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from planning import one_by_one
from support.lake.segments import MIB, add_file, segments
from tandem.delta.actions import AddFile
from tandem.planning.compaction import plan_compaction
from tandem.planning.layout import may_gain
from tandem.planning.plans import CompactionRequest
from tandem.planning.runs import is_worth_rewriting, pack
from tandem.spec.compaction import CompactionType, LayoutStrategy
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.names import foreign_name, parse_name
from tandem.timeline.segments import TAG_SEGMENT, Segments, output_tags

MONTHS = TimeColumn(("t",), Granularity.MONTH)
SORTED = "Sort:k"
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
            layout = draw(st.sampled_from(["", "", SORTED]))
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
