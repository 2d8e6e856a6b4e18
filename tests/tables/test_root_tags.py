"""Root tags on real tables: which loads the output of a compaction was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch, loads
from support.lake.rows import join, k_is, without
from tandem.cli.commands.tables import segments as print_segments
from tandem.cli.commands.target import target
from tandem.cli.output import Output
from tandem.operations.machine.events import Point
from tandem.timeline.lineage import TAG_GROUP, TAG_MINOR, TAG_ROOT

FOUR = {"thresholds": [4, 3]}


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    return quick_lake.make(tmp_path, 0)


def tags(lake: QuickLake) -> dict[str, list[tuple[str, str, str]]]:
    """Root, minor version and group size of the files of each segment that has them."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for segment in lake.live:
        for file in segment.files:
            if TAG_ROOT in file.add.tags:
                root, minor, group = (
                    file.add.tags[key] for key in (TAG_ROOT, TAG_MINOR, TAG_GROUP)
                )
                found.setdefault(segment.name, []).append((root, minor, group))
    return found


def shown_loads(lake: QuickLake, capsys: pytest.CaptureFixture[str]) -> dict[str, str | None]:
    capsys.readouterr()
    print_segments.function(target(lake.location), output=Output.JSON, version=None, every=False)
    return {each["name"]: each["loads"] for each in json.loads(capsys.readouterr().out)}


def test_a_compaction_of_adjacent_loads_has_their_range(
    lake: QuickLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.load(*(batch(n) for n in range(9)))
    lake.do(lake.compaction("Custom", custom={"segments": ["1", "2"]}))
    assert tags(lake) == {"1.1": [("1-2", "1", "1")]}
    lake.do(lake.compaction("Custom", custom={"segments": ["0", "1.1", "3"]}))
    assert tags(lake) == {"0.1": [("0-3", "2", "1")]}
    assert lake.names == ["0.1", "4", "5", "6", "7", "8"]
    assert shown_loads(lake, capsys)["0.1"] == "0-3"
    assert shown_loads(lake, capsys)["8"] == "8"
    lake.load(batch(9))
    assert lake.names[-1] == "9", "no number was used for it"
    lake.assert_rows(loads(range(10)))


def test_a_compaction_around_a_live_segment_has_a_number_of_its_own(
    lake: QuickLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.load(*(batch(n) for n in range(3)))
    lake.do(lake.compaction("Custom", custom={"segments": ["0", "2"]}))
    assert tags(lake) == {"0.1": [("3", "0", "1")]}
    lake.load(batch(3))
    assert lake.names == ["0.1", "1", "4"]
    assert shown_loads(lake, capsys) == {"0.1": "3", "1": "1", "4": "4"}


def test_a_foreign_file_gets_a_root_when_it_is_first_compacted(
    lake: QuickLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.append(batch(0))
    lake.append(batch(1))
    only_adjacent = lake.compaction(minor={"thresholds": [2], "adjacentOnly": True})
    messages = [each.message for each in lake.do(only_adjacent).conditions or ()]
    assert "It needs SemiMajor or Major" in " ".join(messages)
    assert set(shown_loads(lake, capsys).values()) == {None}
    lake.do(lake.compaction("Major"))
    assert tags(lake) == {"0.1": [("0", "0", "1")]}
    lake.load(batch(2))
    lake.do(lake.compaction("Major", major={"targetSegmentSize": "1Gi"}))
    [[(found, *_)]] = tags(lake).values()
    assert found == "0-1"
    lake.assert_rows(loads(range(3)))


def test_adjacency_is_that_of_the_version_to_commit_upon(lake: QuickLake) -> None:
    """A restore brings back a load between the inputs while the compaction runs."""
    lake.load(*(batch(n) for n in range(3)))
    before = lake.version
    lake.do(lake.delete("id >= 10 AND id < 20"))
    assert lake.names == ["0", "2"]
    held = lake.hold(lake.compaction("Custom", custom={"segments": ["0", "2"]}), Point.RECONCILE)
    DeltaTable(lake.location).restore(before)
    lake.load(batch(7))
    held.finish()
    assert tags(lake) == {"0.1": [("4", "0", "1")]}
    lake.assert_rows(join(loads(range(3)), batch(7)))


def test_a_group_is_what_a_run_wrote_for_a_partition(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 0, partition_by=["k"])
    lake.append(batch(0))
    lake.append(batch(1))
    lake.do(lake.compaction("Major"))
    partitions = {add.partition_values["k"] for add in lake.log.snapshot().adds()}
    assert len(partitions) > 1
    assert set(tags(lake)["0.1"]) == {("0", "0", "1")}
    assert len(tags(lake)["0.1"]) == len(partitions)


def test_a_rewritten_file_keeps_its_root(lake: QuickLake) -> None:
    lake.load(*(batch(n) for n in range(2)))
    lake.do(lake.compaction("Major"))
    before = tags(lake)
    lake.do(lake.delete("k = 1"))
    name = lake.names[0]
    rewrite = {"segments": [name], "rewrite": {"purgeDeleted": True}}
    lake.do(lake.resource("SegmentRewrite", rewrite))
    assert tags(lake) == before == {"0.1": [("0-1", "1", "1")]}
    lake.assert_rows(without(loads(range(2)), k_is(1)))


@pytest.mark.parametrize(
    "forged",
    [
        {TAG_ROOT: "0-999999", TAG_MINOR: "3", TAG_GROUP: "2"},
        {TAG_ROOT: "5", TAG_MINOR: str(2**31 - 1), TAG_GROUP: "1"},
        {TAG_ROOT: "x", TAG_MINOR: "x", TAG_GROUP: "x"},
    ],
)
def test_I56_forged_root_tags_cost_work_or_a_refusal_and_no_row(
    lake: QuickLake, forged: dict[str, str]
) -> None:
    lake.load(*(batch(n) for n in range(4)))
    lake.log_again(tags=forged)
    lake.load(*(batch(n) for n in range(4, 8)))
    lake.do(lake.compaction(minor={**FOUR, "adjacentOnly": True}))
    lake.assert_rows_so_far(loads(range(8)))
    lake.do(lake.delete("k = 1"))
    lake.do(lake.compaction("Major"))
    lake.assert_rows(without(loads(range(8)), k_is(1)))
