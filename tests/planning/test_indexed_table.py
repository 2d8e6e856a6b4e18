"""What is kept from version to version gives the decisions of the list of all segments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planning.automatic import FLIGHTS, NOON, policy
from support.lake.segments import MIB, add_file
from support.some import few
from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import ChildState
from tandem.planning.auto.indexed_table import IndexedTable
from tandem.planning.auto.table_facts import TableFacts
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.masks import TAG_MASKED
from tandem.timeline.segments import segments

DAYS = TimeColumn(("t",), Granularity.DAY)


@dataclass
class Lake:
    """A table that changes by chance, and what is known of its changes."""

    random: Random
    live: dict[str, AddFile] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    @property
    def files(self) -> Any:
        return files_.from_adds(list(self.live.values()))

    def put(self, number: int) -> None:
        """A file of a segment or a foreign one, in one day, in several, or at an unknown time."""
        choice: Any = self.random.choice
        first = choice(range(1, 6))
        last = first + choice([0, 0, 0, 0, 1, 3])
        times = (f"2026-01-{first:02}T01:00:00Z", f"2026-01-{last:02}T02:00:00Z")
        name = choice([None, str(number), f"{number}.1", f"{number}.2", "7", "3.1", "bad name"])
        add = add_file(
            f"part-{number:03}.parquet",
            segment=name,
            sequence=choice([number, number, 5]),
            size=choice([MIB, 3 * MIB, 60 * MIB, 130 * MIB]),
            rows=choice([1000, 1000, None]),
            deleted=choice([0, 0, 0, 30, 500]),
            times=choice([*[times] * 9, None]),
            partition=choice([{}, {}, {"c": "UA"}]),
            major=choice([False] * 9 + [True]),
            layout=choice(["", "", "Sort:a"]),
        )
        if choice([False] * 9 + [True]):
            hint = "1 2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
            add = replace(add, tags={**add.tags, TAG_MASKED: hint})
        self.live[add.logged_path] = add
        self.changed.add(add.logged_path)

    def change(self, turn: int) -> None:
        """Files come, go, and are added again in another form."""
        for number in range(self.random.choice(range(4))):
            paths = sorted(self.live)
            if paths and self.random.random() < 0.5:
                gone = self.random.choice(paths)
                del self.live[gone]
                self.changed.add(gone)
            if paths and self.random.random() < 0.5:
                self.put(int(self.random.choice(paths)[5:8]))
            self.put(100 + 10 * turn + number)

    def follow(self, kept: IndexedTable) -> None:
        files, changed = self.files, self.changed
        kept.follow(files, changed, files_.with_paths(files, changed))
        self.changed = set()

    def listed(self) -> TableFacts:
        return TableFacts(FLIGHTS, segments(self.files, DAYS), Granularity.DAY)


def a_policy(random: Random) -> dict[str, Any]:
    choice = random.choice
    fields: dict[str, Any] = {"skipOffsetFromLatest": choice(["0s", "24h", "72h"])}
    kinds = choice([("minor",), ("chunks",), ("minor", "chunks")])
    if "minor" in kinds:
        fields["minor"] = {
            "thresholds": choice([[2], [2, 2], [3, 2]]),
            "preserve": choice([0, 0, 1, 4]),
            "adjacentOnly": choice([False, False, False, True]),
        }
    if "chunks" in kinds:
        fields["chunks"] = {
            "layout": choice([{}, {"strategy": "Sort", "columns": ["a"]}]),
            "minUncompacted": choice([{"segments": 2}, {"percent": 30}, {"bytes": "50Mi"}]),
            "order": choice(["NewestFirst", "MostFragmentedFirst", "OldestFirst"]),
            "maxBytes": choice(["1Ki", "100Mi", "64Gi"]),
        }
    return fields


def a_child(held: frozenset[str]) -> ChildState:
    return ChildState("t-minor-1", "other", "Running", created_ms=NOON, segments=held)


@settings(deadline=None, max_examples=few(30, 2_000))
@given(seed=st.integers(0, 1 << 32))
def test_decisions_are_those_of_the_list_of_all_segments(seed: int) -> None:
    random = Random(seed)
    lake = Lake(random)
    for number in range(random.choice(range(15))):
        lake.put(number)
    kept = IndexedTable(FLIGHTS, lake.files, DAYS)
    lake.changed = set()
    wanted = policy(**a_policy(random))
    for turn in range(4):
        lake.change(turn)
        lake.follow(kept)
        listed = lake.listed()
        names = sorted({segment.name for segment in listed.segments})
        held = frozenset(random.choices([*names, "gone"], k=random.choice(range(4))))
        children = [a_child(held)] if random.choice([True, False]) else []

        assert decide(wanted, kept, children, NOON) == decide(wanted, listed, children, NOON)
        assert kept.times_of(names[::3]) == listed.times_of(names[::3])
        if random.choice([True, False, False]):
            wanted = policy(**a_policy(random))


def test_segments_that_are_no_longer_held_are_planned_again() -> None:
    lake = Lake(Random(1))
    for number in range(14):
        lake.put(number)
    kept = IndexedTable(FLIGHTS, lake.files, DAYS)
    lake.changed = set()
    listed = lake.listed()
    wanted = policy(skipOffsetFromLatest="0s", minor={"thresholds": [2]})
    free = decide(wanted, listed, [], NOON)
    child = a_child(frozenset(segment.name for segment in listed.segments))
    for children in ([], [child], []):
        assert decide(wanted, kept, children, NOON) == decide(wanted, listed, children, NOON)
    assert free != decide(wanted, listed, [child], NOON)
