"""Minor plans of adjacent loads: Druid's restrictions (S15 to S18), and root tags as such."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.segments import MIB, add_file, segments
from tandem.delta.actions import AddFile
from tandem.errors import UnsupportedFeature
from tandem.planning.adjacency import Adjacency, beside
from tandem.planning.auto.facts import TableId, minor_spec
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionPlan, CompactionRequest
from tandem.spec.compaction import CompactionType, Minor
from tandem.spec.table import AutomaticCompaction, AutomaticMinor, Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.lineage import (
    TAG_GROUP,
    TAG_MINOR,
    TAG_ROOT,
    Root,
    group_size_of,
    read_roots,
    root_of,
)
from tandem.timeline.names import MAX_MINOR, MAX_NUMBER, SegmentNumbers
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segments, output_tags

ADJACENT = CompactionRequest(CompactionType.MINOR, thresholds=(2, 2), adjacent_only=True)
DAYS = TimeColumn(("t",), Granularity.DAY)


def load(number: int, **more: object) -> AddFile:
    return add_file(f"p{number}", segment=str(number), sequence=1000 + number, **more)  # type: ignore[arg-type]


def merged(
    path: str, name: str, first: int, last: int, *, minor: int = 1, size: int = 1
) -> AddFile:
    tags = output_tags(name, 1000 + first) | Root(first, last, minor).tags(size)
    return add_file(path, sequence=1000 + first, tags=tags)


def foreign(path: str, sequence: int) -> AddFile:
    return add_file(path, sequence=sequence)


def root(live: Segments, *paths: str) -> str | None:
    """The root of what is made of these files, which are of one cell."""
    files = live.files
    taken = SegmentFiles(files.columns, files.places).where(files.among(frozenset(paths)))
    assert len(taken) == len(paths)
    [(_, found)] = Adjacency(live).roots(taken)
    return None if found is None else f"{found} m{found.minor}"


def runs(plan: CompactionPlan) -> list[tuple[str, ...]]:
    return [run.segments for run in plan.runs]


def test_S15_loads_with_another_between_are_not_adjacent() -> None:
    live = segments(load(n) for n in range(5))
    assert root(live, "p0", "p1") == "0-1 m1"
    assert root(live, "p2", "p4") is None
    assert root(live, "p2", "p3", "p4") == "2-4 m1"


def test_S15_a_plan_takes_adjacent_loads_only() -> None:
    big = {3: MIB * 9}
    live = segments(load(n, size=big.get(n, MIB)) for n in range(6))
    request = replace(ADJACENT, thresholds=(3,), max_segment_size=MIB * 9)
    assert runs(plan_compaction(live, request)) == [("0", "1", "2")]
    # Without it, the loop leaves the large one out, and goes on beyond.
    freely = plan_compaction(live, replace(request, thresholds=(5,), adjacent_only=False))
    assert runs(freely) == [("0", "1", "2", "4", "5")]
    nothing = plan_compaction(live, replace(request, thresholds=(5,)))
    assert not nothing.runs
    assert "needs SemiMajor or Major" in nothing.nothing


def groups() -> Segments:
    """P6 and P7 are made of loads 0 to 2, P8 of 4 and 5; P3 is a load."""
    p6, p7 = (merged(path, "0.1", 0, 2, size=2) for path in ("p6", "p7"))
    return segments([p6, p7, load(3), merged("p8", "4.1", 4, 5)])


def test_S16_groups_with_a_load_between_them_are_not_adjacent() -> None:
    assert root(groups(), "p6", "p7", "p8") is None
    assert root(groups(), "p3", "p8") == "3-5 m2"


def test_S17_all_members_of_a_group_are_taken_or_none() -> None:
    assert root(groups(), "p6") is None
    assert root(groups(), "p6", "p3") is None
    assert root(groups(), "p6", "p7", "p3") == "0-3 m2"


def test_S18_alternating_small_and_big_segments_need_major() -> None:
    live = segments(load(n, size=MIB * (9 if n % 2 else 1)) for n in range(8))
    plan = plan_compaction(live, replace(ADJACENT, max_segment_size=MIB * 9))
    assert not plan.runs
    assert "not adjacent" in plan.nothing
    assert "It needs SemiMajor or Major." in plan.nothing
    # Where nothing qualifies either way, the usual reason is given.
    one = plan_compaction(segments([load(0)]), ADJACENT)
    assert "adjacent" not in one.nothing


def test_a_foreign_file_has_no_root_and_breaks_adjacency() -> None:
    live = segments([load(0), load(1), foreign("x", 1001), load(2), load(3)])
    assert root(live, "p0", "p1", "p2") is None
    assert root(live, "p2", "p3") == "2-3 m1"
    assert root(live, "x") is None
    plan = plan_compaction(live, replace(ADJACENT, thresholds=(2,)))
    assert runs(plan) == [("2", "3")]


def test_a_merge_that_leaves_a_segment_of_a_lower_level_out_is_not_planned() -> None:
    made = [merged("a", "0.1", 0, 1), load(2), merged("b", "3.1", 3, 4)]
    plan = plan_compaction(segments(made), ADJACENT)
    assert not plan.runs
    assert runs(plan_compaction(segments([made[0], merged("b", "2.1", 2, 4)]), ADJACENT)) == [
        ("0.1", "2.1")
    ]


def test_chunks_and_partitions_have_their_own_neighbours() -> None:
    def at(number: int, day: int, carrier: str) -> AddFile:
        moment = f"2013-03-0{day}T12:00:00Z"
        return load(number, times=(moment, moment), partition={"c": carrier})

    live = segments([at(0, 1, "a"), at(1, 2, "a"), at(2, 1, "b"), at(3, 1, "a")], DAYS)
    assert root(live, "p0", "p3") == "0-3 m1"
    both = ("2013-03-01T12:00:00Z", "2013-03-02T12:00:00Z")
    wide = load(2, times=both, partition={"c": "a"})
    spanned = segments([at(0, 1, "a"), wide, at(3, 1, "a")], DAYS)
    assert root(spanned, "p0", "p3") is None
    assert root(spanned, "p2") is None, "a file that spans chunks is in none"


def test_only_files_beside_those_taken_matter() -> None:
    live = segments(load(n) for n in range(50))
    table = live.columns.files._table
    near = beside(table, {"p10", "p12"})
    assert sorted(near["path"].to_pylist()) == ["p10", "p11", "p12"]
    mixed = segments([*(load(n) for n in range(9)), foreign("x", 1004), foreign("y", 2000)])
    near = beside(mixed.columns.files._table, {"p3", "p4"})
    assert sorted(near["path"].to_pylist()) == ["p3", "p4", "x"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_adjacency_against_a_slow_model(kinds: list[int], data: st.DataObject) -> None:
    """Kind 0: a foreign file; else a segment of that many files, with a range of loads."""
    files: list[tuple[str, int, int, int]] = []  # path, first, last, sequence
    adds = []
    at = 0
    for number, kind in enumerate(kinds):
        if not kind:
            adds.append(foreign(f"f{number}", 1000 + at))
            files.append((f"f{number}", -1, -1, 1000 + at))
            continue
        last = at + data.draw(st.integers(0, 3))
        for each in range(kind):
            path = f"s{number}-{each}"
            adds.append(merged(path, f"{at}.1", at, last, size=kind))
            files.append((path, at, last, 1000 + at))
        at = last + 1 + data.draw(st.integers(0, 1))
    taken = data.draw(st.sets(st.sampled_from([f[0] for f in files]), min_size=1))
    mine = [f for f in files if f[0] in taken]
    others = [f for f in files if f[0] not in taken]
    low, high = min(f[1] for f in mine), max(f[2] for f in mine)
    adjacent = low >= 0
    for _, first, last, sequence in others:
        if first < 0:
            adjacent &= not mine[0][3] <= sequence <= mine[-1][3]
        else:
            adjacent &= last < low or first > high
    found = root(segments(adds), *taken)
    assert (found is not None) == adjacent
    near = segments(adds)
    again = segments_of_table(beside(near.columns.files._table, taken))
    assert root(again, *taken) == found


def segments_of_table(table: pa.Table) -> Segments:
    from tandem.timeline.segments import segments as of_table

    return of_table(table)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"tandem.segment": "7"}, Root(7, 7)),
        ({"tandem.segment": "7.1"}, None),
        ({"tandem.segment": "f-0123456789ab"}, None),
        ({}, None),
        ({TAG_ROOT: "12-15", TAG_MINOR: "2"}, Root(12, 15, 2)),
        ({TAG_ROOT: "12", TAG_MINOR: "0"}, Root(12, 12)),
        ({TAG_ROOT: "15-12", TAG_MINOR: "1", "tandem.segment": "7"}, Root(7, 7)),
        ({TAG_ROOT: "012-15", TAG_MINOR: "1"}, None),
        ({TAG_ROOT: "12-15", TAG_MINOR: "-1"}, None),
        ({TAG_ROOT: "12-15"}, None),
        ({TAG_ROOT: f"0-{MAX_NUMBER}", TAG_MINOR: str(MAX_MINOR)}, Root(0, MAX_NUMBER, MAX_MINOR)),
        ({TAG_ROOT: f"0-{MAX_NUMBER + 1}", TAG_MINOR: "1"}, None),
        ({TAG_ROOT: "0-1", TAG_MINOR: str(MAX_MINOR + 1)}, None),
        ({TAG_ROOT: "9" * 40, TAG_MINOR: "9" * 40}, None),
        ({TAG_ROOT: "٣-٤", TAG_MINOR: "1"}, None),
        ({TAG_ROOT: "1-2\n", TAG_MINOR: "1"}, None),
    ],
)
def test_root_tags_are_read_and_written_back(tags: dict[str, str], expected: Root | None) -> None:
    assert root_of(tags) == expected
    if expected is not None:
        assert root_of(expected.tags(3)) == expected
        assert group_size_of(expected.tags(3)) == 3


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "9" * 40, "٣"])
def test_a_forged_group_size_counts_as_absent(text: str) -> None:
    assert group_size_of({TAG_GROUP: text}) is None


def test_the_loads_of_a_segment_as_text() -> None:
    live = segments(
        [merged("a", "0.1", 0, 3), merged("b", "0.1", 5, 5), merged("c", "0.1", 4, 4), load(9)]
    )
    assert [segment.loads for segment in live] == ["0-5", "9"]
    assert [segment.loads for segment in segments([foreign("x", 1)])] == [""]
    assert str(read_roots(segments([]).columns.files._table)) == ""


def test_S23_beyond_the_limits_there_is_a_clear_error_and_no_root() -> None:
    live = segments([merged("a", "0.1", 0, 1, minor=MAX_MINOR), load(2)])
    assert root(live, "a", "p2") is None
    numbers = SegmentNumbers(MAX_NUMBER - 1)
    assert numbers.take() == MAX_NUMBER
    with pytest.raises(UnsupportedFeature, match="no segment number left"):
        numbers.take()


def test_named_segments_do_not_go_with_adjacent_only() -> None:
    with pytest.raises(ValueError, match="adjacentOnly does not go with segments"):
        Minor.model_validate({"segments": ["1"], "adjacentOnly": True})
    assert Minor.model_validate({"segments": ["1"], "adjacentOnly": False}).segments == ("1",)


def test_an_automatic_compaction_of_adjacent_loads_names_no_segments() -> None:
    minor = AutomaticMinor(adjacent_only=True)
    spec = minor_spec(TableId("t", "u"), AutomaticCompaction(minor=minor), minor, ["0", "1"])
    assert spec["minor"] == {"adjacentOnly": True, "thresholds": [4, 3]}
    usual = minor_spec(TableId("t", "u"), AutomaticCompaction(), AutomaticMinor(), ["0", "1"])
    assert usual["minor"] == {"thresholds": [4, 3], "segments": ["0", "1"]}
